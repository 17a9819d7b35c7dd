"""Change the code at random, one place at a time, and see whether the tests notice.

`map` runs each package's tests once on a copy of the tree and keeps which test executes
which line, and its processor time. `run` tries mutants on the copy, the cheapest tests
that execute the changed line first; it takes up where it stopped. `report` sums up and
shows what was not noticed. Each mutant is tried in a forked process (libraries are
loaded once) under a limit of processor time, so that a busy machine kills nothing. With
`--jobs` several are tried at a time, each job on a copy of its own; all packages go on
together, so that a run that is cut short has a part of every sample.
"""

import argparse
import ast
import difflib
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest

from tools.jobs import Task, append, rows_of, share
from tools.mutants import Mutant, draw, sites

ROOT = Path(__file__).parent.parent
MEMORY = 8 * 2**30
COMPILATION = 60.0  # processor seconds: a job may have to compile numba's functions
MARKS = "not deep and not postgres"
PYTEST = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]  # loaded before the fork
LOADED = """numpy scipy.stats scipy.optimize scipy.integrate numba mpmath sqlalchemy
dp_accounting.pld.privacy_loss_distribution dp_accounting.rdp pyarrow.parquet"""


class Observer:
    """A pytest plugin: choose and order tests, time them, note what they execute."""

    def __init__(self, chosen: list[str], cover: coverage.Coverage | None = None):
        self.rank = {test: i for i, test in enumerate(chosen)}
        self.cover = cover
        self.times: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only those chosen, in their order; all, if none is."""
        if self.rank:
            chosen = [item for item in items if item.nodeid in self.rank]
            items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Put what is executed, and its processor time, under the test's name."""
        if self.cover:
            self.cover.switch_context(item.nodeid)
        before = sum(os.times()[:4])
        result = yield
        self.times[item.nodeid] = sum(os.times()[:4]) - before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Who noticed."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that does not import is noticed too."""
        if report.failed:
            self.failed.append(f"import of {report.nodeid}")


class Package:
    """A part of mutants.toml: modules, their tests, and the files of a run."""

    def __init__(
        self, name: str, part: dict[str, Any], work: Path, place: Path | None = None
    ) -> None:
        self.name, self.part, self.work = name, part, place or work
        self.tree = self.work / "tree"
        self.home = self.tree / "src" / "demur"
        self.map_file = work / f"map-{name}.json"
        self.pieces_file = work / f"map-{name}.jsonl"
        self.results_file = work / f"results-{name}.jsonl"

    def at(self, place: Path) -> "Package":
        """The same files of a run, with the copy of the tree that a job has."""
        return Package(self.name, self.part, self.map_file.parent, place)

    def modules(self) -> list[str]:
        """The modules that are mutated, from src/demur on."""
        files = [f for glob in self.part["modules"] for f in self.home.glob(glob)]
        left = [f for f in files if f.name not in self.part.get("without", [])]
        return sorted(str(f.relative_to(self.home)) for f in left)

    def tests(self) -> list[str]:
        """The files of its tests, and the modules themselves for their doctests."""
        found: list[Path] = []
        for entry in map(self.tree.joinpath, self.part["tests"]):
            found += sorted(entry.glob("test_*.py")) if entry.is_dir() else [entry]
        left = [f for f in found if f.name not in self.part.get("without", [])]
        own = [self.home / module for module in self.modules()]
        return [str(f.relative_to(self.tree)) for f in left + own]

    def sites(self) -> list[list[Mutant]]:
        """Every site of its modules."""
        return [site for m in self.modules() for site in sites(self.home / m, m)]

    def results(self) -> dict[str, dict[str, Any]]:
        """The last word on each mutant tried."""
        return {row["key"]: row for row in rows_of(self.results_file)}


def prepare(work: Path, packages: list[Package]) -> None:
    """A copy of the tree, and the libraries that every job starts with."""
    tree = work / "tree"
    if not tree.exists():
        for part in ("src", "tests", "docs", "tools"):  # tests read the last two
            unwanted = shutil.ignore_patterns("*.pyc")
            shutil.copytree(ROOT / part, tree / part, ignore=unwanted)
        shutil.copy(ROOT / "pyproject.toml", tree)
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    hypothesis.settings.register_profile(
        "mutants", max_examples=25, derandomize=True, database=None, deadline=None
    )
    hypothesis.settings.load_profile("mutants")
    jax = " jax optax" if any(p.name == "training" for p in packages) else ""
    for library in (LOADED + jax).split():
        import_module(library)


def settle(work: Path, job: int) -> Path:
    """In a job: its own copy of the tree, from which it and its children import."""
    place = work / f"job-{job}"
    tree = place / "tree"
    if not tree.exists():
        shutil.copytree(work / "tree", tree)
    restore(place)
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    given = os.environ.get("PYTHONPATH", "")
    os.environ |= {"PYTHONPATH": f"{tree / 'src'}:{tree}:{given}"}
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    return place


def forked(
    work: Path, observer: Observer, arguments: list[str], cpu: float
) -> tuple[str, list[str], dict[str, float]]:
    """Run pytest in a child: the outcome, what failed, the times."""
    note = work / "child.json"
    note.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu), math.ceil(cpu) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        log = os.open(work / "child.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 3
        try:
            if observer.cover:
                observer.cover.start()
            marks = os.environ.get("DEMUR_MARKS", MARKS)
            given = [*PYTEST, "-m", marks, *arguments]
            code = int(pytest.main(given, plugins=[observer]))
            if observer.cover:
                observer.cover.stop()
                observer.cover.save()
            note.write_text(json.dumps([observer.failed, observer.times]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    # The clock ends only a child that waits for ever.
    deadline = time.monotonic() + 20 * cpu + 120
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    try:
        os.killpg(child, signal.SIGKILL)  # what the tests had started
    except ProcessLookupError:
        pass
    failed, times = json.loads(note.read_text()) if note.exists() else ([], {})
    if os.WIFSIGNALED(ended[1]):
        limits = (signal.SIGXCPU, signal.SIGKILL)
        return "timeout" if os.WTERMSIG(ended[1]) in limits else "killed", failed, times
    code = os.WEXITSTATUS(ended[1])
    outcome = {0: "survived", 1: "killed", 2: "killed"}.get(code, f"error {code}")
    return outcome, failed, times


def map_part(shared: Package, files: list[str], place: Path) -> None:
    """Run some files of tests unchanged: which executes which line, at what cost."""
    package = shared.at(place)
    data = package.work / "coverage"
    data.unlink(missing_ok=True)
    cover = coverage.Coverage(
        data_file=str(data), config_file=False, include=[f"{package.home}/*"]
    )
    use_cache(package.work / "numba")
    outcome, failed, times = forked(
        package.work, Observer([], cover), files, cpu=1800.0
    )
    if outcome not in ("survived", "killed", "error 5"):  # 5: no test to run
        failed.append(f"all of {' '.join(files)}: {outcome}")
    for test in failed:  # one that fails without a mutant says nothing of one
        times.pop(test, None)
    lines = {}
    if times:
        measured = coverage.CoverageData(str(data))
        measured.read()
        for module in package.modules():
            found = measured.contexts_by_lineno(str(package.home / module))
            lines[module] = {n: sorted(set(t) & set(times)) for n, t in found.items()}
    row = {"files": files, "times": times, "lines": lines, "failed": failed}
    append(package.pieces_file, row)


def map_tasks(package: Package) -> list[Task]:
    """What is left to map: files of tests one by one, examples of modules together."""
    if package.map_file.exists():
        return []
    done = {file for row in rows_of(package.pieces_file) for file in row["files"]}
    left = [file for file in package.tests() if file not in done]
    alone = [[file] for file in left if file.startswith("tests/")]
    examples = [file for file in left if not file.startswith("tests/")]
    parts = alone + [examples[i : i + 12] for i in range(0, len(examples), 12)]
    return [partial(map_part, package, part) for part in parts]


def merge_map(package: Package) -> None:
    """One map of all that was noted."""
    if package.map_file.exists():
        return
    times: dict[str, float] = {}
    lines: dict[str, dict[str, list[str]]] = {m: {} for m in package.modules()}
    for row in rows_of(package.pieces_file):
        for test in row["failed"]:
            print("left out:", test)
        times |= row["times"]
        for module, found in row["lines"].items():
            for line, tests in found.items():
                lines[module].setdefault(line, []).extend(tests)
    if not times:  # or every mutant would count as not noticed
        sys.exit(f"no test of {package.name} ran")
    package.map_file.write_text(json.dumps({"times": times, "lines": lines}))
    cost = sum(times.values())
    print(f"{package.name}: {len(times)} tests, {cost:.0f} s of processor", flush=True)


def smallest_statement(tree: ast.Module, line: int) -> range:
    """The smallest statement around a line (of a compound one, its head)."""
    best = range(line, line + 1)
    size = math.inf
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            if node.lineno <= line <= end and end - node.lineno < size:
                best, size = range(node.lineno, end + 1), end - node.lineno
    return best


def called(tree: ast.Module, line: int) -> bool:
    """Whether a line lies in the body of a function, and so is not run at import."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def plan(
    mapped: dict[str, Any], mutant: Mutant, source: str, cpu: float
) -> list[list[str]]:
    """Tests in the order to try: a few of the likeliest files, then the others.

    To collect all of a package's tests takes longer than to run those few.
    """
    times, lines = mapped["times"], mapped["lines"][mutant.path]
    tree = ast.parse(source)
    here = {
        test
        for line in smallest_statement(tree, mutant.line)
        for test in lines.get(str(line), [])
    }
    if not called(tree, mutant.line):
        # Run at import, of which the map shows at most the first; what is made there
        # may be used anywhere.
        here = set(times)
    elif not here and "njit" in source:
        # Compiled: tests that execute the module, or none at all.
        every = [t for by in mapped["lines"].values() for t in by.values()]
        executing = {test for tests in every for test in tests}
        here = {t for ts in lines.values() for t in ts} | (set(times) - executing)
    order: list[str] = []
    for test in sorted(here, key=lambda t: (times[t], t)):
        cpu -= times[test]
        if cpu < 0:
            break
        order.append(test)
    likely = Counter(test.partition("::")[0] for test in order).most_common(2)
    files = [file for file, _ in likely]
    first = [test for test in order if test.partition("::")[0] in files][:60]
    return [first, [test for test in order if test not in set(first)]]


def use_cache(folder: Path) -> None:
    """Where numba keeps what it compiles."""
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    import_module("numba").config.CACHE_DIR = str(folder)


def attempt(
    package: Package, mapped: dict[str, Any], mutant: Mutant, cpu: float
) -> dict[str, Any]:
    """Put a mutant into the copy, run the tests, put the copy back."""
    path = package.home / mutant.path
    source, stamp = path.read_text(), path.stat()
    text = mutant.code(source)
    assert text is not None  # see `sample`
    # numba's cache does not see that an inlined function of another module has changed.
    compiled = "njit" in source
    cache = package.work / ("numba-fresh" if compiled else "numba")
    if compiled:
        shutil.rmtree(cache, ignore_errors=True)
    use_cache(cache)
    outcome, tried = "survived", 0
    failed: list[str] = []
    undo = [str(path), source, stamp.st_mtime_ns]
    (package.work / "undo.json").write_text(json.dumps(undo))
    try:
        path.write_text(text)
        os.utime(path, (stamp.st_atime, stamp.st_mtime + 10))
        for tests in filter(None, plan(mapped, mutant, source, cpu)):
            limit = 2 * sum(mapped["times"][t] for t in tests)
            limit += COMPILATION
            files = sorted({test.partition("::")[0] for test in tests})
            tried += len(tests)
            outcome, failed, _ = forked(
                package.work, Observer(tests), ["-x", *files], limit
            )
            if outcome != "survived":
                break
    finally:
        restore(package.work)
    diff = difflib.unified_diff(
        source.splitlines(), text.splitlines(), n=0, lineterm=""
    )
    return {
        "key": mutant.key,
        "outcome": outcome,
        "by": failed[:1],
        "tests": tried,
        "diff": "\n".join(list(diff)[2:]),
    }


def restore(work: Path) -> None:
    """Put the copy back as it was before the mutant in progress, if there is one."""
    undo = work / "undo.json"
    if undo.exists():
        path, source, modified = json.loads(undo.read_text())
        Path(path).write_text(source)
        os.utime(path, ns=(modified, modified))
        undo.unlink()


def sample(package: Package, seed: str) -> list[Mutant]:
    """The beginning of the draw, without changes that leave the program as it is."""
    found: list[Mutant] = []
    texts = {m: (package.home / m).read_text() for m in package.modules()}
    for mutant in draw(package.sites(), f"{seed} {package.name}"):
        if len(found) == package.part["sample"]:
            break
        if mutant.code(texts[mutant.path]) is not None:
            found.append(mutant)
    return found


def run_tasks(
    package: Package, seed: str, cpu: float, again: list[str]
) -> Iterator[Task]:
    """What is left of the sample; `again` are outcomes to try once more."""
    known = package.results()

    def task(mutant: Mutant, place: Path) -> None:
        result = attempt(package.at(place), mapped, mutant, cpu)
        append(package.results_file, result)
        print(f"{result['outcome']:9} {mutant.key}", flush=True)

    mapped = json.loads(package.map_file.read_text())
    for mutant in sample(package, seed):
        result = known.get(mutant.key)
        if result is None or result["outcome"] in again:
            yield partial(task, mutant)


def wilson(killed: int, of: int) -> tuple[float, float]:
    """A 95% interval for a proportion."""
    z2 = 1.959964**2
    middle = (killed + z2 / 2) / (of + z2)
    half = math.sqrt(z2 * (killed * (of - killed) / max(of, 1) + z2 / 4)) / (of + z2)
    return middle - half, middle + half


def report(packages: list[Package]) -> None:
    """A table, and everything that was not noticed, to be judged by a reader."""
    total: Counter[str] = Counter()
    left = []
    print("package, sites, tried, killed (of these by time), 95% interval")
    for package in packages:
        rows = list(package.results().values())
        count = Counter(row["outcome"] for row in rows)
        total += count
        killed = count["killed"] + count["timeout"]
        low, high = wilson(killed, len(rows))
        print(
            f"{package.name:11} {len(package.sites()):5} {len(rows):4} {killed:4}"
            f" ({count['timeout']}) {low:.0%} to {high:.0%}"
        )
        left += [r for r in rows if r["outcome"] not in ("killed", "timeout")]
    killed = total["killed"] + total["timeout"]
    low, high = wilson(killed, total.total())
    print(f"all: {killed} of {total.total()}, {low:.1%} to {high:.1%}")
    for row in left:
        print(f"\n{row['outcome']} {row['key']} ({row['tests']} tests)\n{row['diff']}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["map", "run", "report"])
    parser.add_argument("packages", nargs="*", help="of mutants.toml; all if none")
    parser.add_argument("--config", type=Path, default=ROOT / "tools/mutants.toml")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "mutants")
    parser.add_argument("--seed", help="another sample")
    parser.add_argument("--again", nargs="*", default=[], help="outcomes to try again")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--marks", default=MARKS, help="which tests, as for pytest -m")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    config = tomllib.loads(args.config.read_text())
    names = args.packages or [k for k, v in config.items() if isinstance(v, dict)]
    packages = [Package(name, config[name], work) for name in names]
    # Ended so, it puts the copies back; ended hard, it does so on the next run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    os.environ["DEMUR_MARKS"] = args.marks
    prepare(work, packages)
    if args.command == "report":
        report(packages)
        return
    seed = args.seed or str(config["seed"])
    if args.command == "map":
        queues = [iter(map_tasks(package)) for package in packages]
    else:
        cpu = config["cpu_seconds"]
        queues = [run_tasks(package, seed, cpu, args.again) for package in packages]
    tasks = [task for turn in zip_longest(*queues) for task in turn if task is not None]
    share(tasks, args.jobs, lambda job: settle(work, job))
    if args.command == "map":
        for package in packages:
            merge_map(package)


if __name__ == "__main__":
    main()
