"""Which check finds which sabotage: the audit at two sizes, and two sets of tests.

    python -m tools.sabotage_matrix run --jobs 14
    python -m tools.sabotage_matrix table     # into docs/audit.md

The audits run as `python -m demur.testing.sabotages` does. Of the tests those that
`make check` runs come first, by folder, that of the sabotaged package before the
others, up to the first failure; then those that only `make test` runs. Tests that fail
without a sabotage (a missing program, another machine) are noted first and left out.
Results are appended line by line, and a run that was ended goes on.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from demur.testing.sabotages import CATALOGUE
from demur.testing.sabotages.patches import Sabotage
from tools.jobs import Task, append, rows_of, share

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "audit.md"
PLUGIN = "demur.testing.sabotages.pytest_plugin"
MARKS = {
    "check": "not deep and not slow and not serial and not spark and not postgres",
    "test": "not deep and (slow or serial) and not spark and not postgres",
}
FOLDERS = """core ledger mechanisms known_bugs convex cluster unlearning training
testing audit tuning preprocessing report serve cli""".split()
# Processes that tests start are sabotaged too; pages see none.
DRAWS_NOTHING = ("(replay)", "(accounting)", "(sensitivity)")
LIMIT = 900  # seconds a folder may take


def folders_for(broken: Sabotage) -> list[str]:
    """The folders of tests in the order to try."""
    own = [place.split(".")[1].partition(":")[0] for place in broken.places]
    first = [name for name in dict.fromkeys(own) if name in FOLDERS]
    near = [name for name in ("testing", broken.engine) if name in FOLDERS]
    return list(dict.fromkeys([*first, *near, *FOLDERS]))


def tests(
    folder: str, marks: str, left_out: list[str], name: str | None
) -> tuple[int, list[str], str]:
    """Exit code, what failed, and the end of the output, of one folder's tests."""
    stop = [] if name is None else ["-x"]
    without = [
        part
        for test in left_out  # a file alone is one that cannot be loaded
        for part in ("--deselect" if "::" in test else "--ignore", test)
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", PLUGIN, *stop]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command += ["-m", MARKS[marks], *without, f"tests/{folder}"]
    environment = {k: v for k, v in os.environ.items() if k != "DEMUR_SABOTAGE"}
    if name is not None:
        environment["DEMUR_SABOTAGE"] = name
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, [], ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return done.returncode, failed, (done.stdout + done.stderr)[-600:]


def noted_without(file: Path, folder: str, marks: str, place: Path) -> None:
    """What fails in a folder although nothing is broken."""
    del place
    started = time.monotonic()
    code, failed, end = tests(folder, marks, [], None)
    append(
        file,
        {
            "folder": folder,
            "marks": marks,
            "code": code,
            "failed": failed,
            "seconds": round(time.monotonic() - started, 1),
            "end": end if code not in (0, 1, 5) else "",
        },
    )


def found_by_tests(
    broken: Sabotage, marks: str, left_out: dict[str, list[str]]
) -> dict[str, Any]:
    """The first test that fails with the sabotage."""
    for folder in folders_for(broken):
        if f"{marks} {folder}" not in left_out:
            continue
        known = left_out[f"{marks} {folder}"]
        code, failed, end = tests(folder, marks, known, broken.name)
        if code == 124:
            return {"found": True, "by": f"tests/{folder} does not end"}
        new = [test for test in failed if test not in known]
        if new:
            return {"found": True, "by": new[0]}
        if code not in (0, 1, 5):
            return {"found": False, "by": "", "error": end}
    return {"found": False, "by": ""}


def found_by_audit(broken: Sabotage, size: str) -> dict[str, Any]:
    """The first audit that refutes it."""
    command = [sys.executable, "-m", "demur.testing.sabotages", "--json", broken.name]
    if size == "quick":
        command.insert(-1, "--quick")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {"found": False, "by": "", "error": done.stderr[-600:]}
    found = json.loads(lines[-1])
    return {key: found[key] for key in ("found", "by", "evidence", "seconds")}


def cell(file: Path, broken: Sabotage, check: str, without: Path, place: Path) -> None:
    """Decide one cell of the matrix and note it."""
    del place
    if check in ("quick", "standard"):
        result = found_by_audit(broken, check)
    else:
        left_out = {
            f"{row['marks']} {row['folder']}": row["failed"]
            for row in rows_of(without)
            if row["code"] in (0, 1, 5)
        }
        result = found_by_tests(broken, check, left_out)
    append(file, {"name": broken.name, "check": check, **result})
    told = result["by"] or result.get("error", "")[-200:] or "NOT FOUND"
    print(f"{check:8} {broken.name}: {told}", flush=True)


def run(work: Path, jobs: int, checks: list[str], names: list[str]) -> None:
    """All cells that are missing; of `make test` those that `make check` left open."""
    without, cells = work / "without.jsonl", work / "cells.jsonl"
    done = {(row["folder"], row["marks"]) for row in rows_of(without)}
    wanted = [each for each in CATALOGUE if not names or each.name in names]

    def settle(job: int) -> Path:
        os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        return work

    def cells_of(check: str) -> list[Task]:
        rows = {(r["name"], r["check"]): r for r in rows_of(cells)}
        left = [each for each in wanted if (each.name, check) not in rows]
        if check == "test":  # what make check finds is found: it is a part
            left = [e for e in left if not rows.get((e.name, "check"), {}).get("found")]
        return [partial(cell, cells, each, check, without) for each in left]

    marks = [check for check in checks if check in MARKS]
    tasks: list[Task] = [
        partial(noted_without, without, folder, mark)
        for mark in marks
        for folder in FOLDERS
        if (folder, mark) not in done
    ]
    # Audits do not wait for what fails without a sabotage.
    tasks += [t for c in checks if c not in MARKS for t in cells_of(c)]
    share(tasks, jobs, settle)
    for check in marks:
        share(cells_of(check), jobs, settle)


def table(work: Path) -> None:
    """Replace the table on the page."""
    rows = {(r["name"], r["check"]): r for r in rows_of(work / "cells.jsonl")}

    def told(each: Sabotage, check: str) -> str:
        name, row = each.name, rows.get((each.name, check))
        if check == "quick" and each.full:
            return "no"  # it leaves these audits out
        if row is None:
            smaller = {"test": "check", "standard": "quick"}.get(check, check)
            before = rows.get((name, smaller), {})
            # Of what make check finds make test is more; a larger sample changes
            # nothing for an audit that draws none.
            same = check == "test" or before.get("by", "").endswith(DRAWS_NOTHING)
            return "found" if before.get("found") and same else "not run"
        quick = rows.get((name, "quick"), {})
        if check == "standard" and row["found"] and row["by"] == quick.get("by"):
            return "found"
        if not row["found"]:
            return "no" if not row.get("files") else f"not by {', '.join(row['files'])}"
        return re.sub(r"\[.*", "", row["by"]).removeprefix("tests/")

    head = ["what is broken", "category", "`demur audit --quick`", "`demur audit`"]
    head += ["`make check`", "`make test`"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for each in CATALOGUE:
        checks = [told(each, c) for c in ("quick", "standard", "check", "test")]
        lines.append("| " + " | ".join([each.name, str(each.category), *checks]) + " |")
    text = PAGE.read_text()
    start, end = "<!-- matrix: table -->\n", "<!-- matrix: end -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    PAGE.write_text(before + start + "\n".join(lines) + "\n" + end + after)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run", "table"])
    parser.add_argument("names", nargs="*", help="sabotages; all if none")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "sabotages")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--checks", default="quick,standard,check,test")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.command == "table":
        table(args.work)
    else:
        run(args.work, args.jobs, args.checks.split(","), args.names)


if __name__ == "__main__":
    main()
