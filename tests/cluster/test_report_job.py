"""A file of points into a file of reports: once, whole, and only for what was paid."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from demur.cluster import InputChanged, PointTable, make_reports
from demur.cluster.files import checked_points, point_tables, report_files
from demur.cluster.files.report_files import read_reports, sidecar
from demur.cluster.files.report_job import mechanism_for_job
from demur.cluster.files.report_metadata import ReportMetadata
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import NoiseKey
from demur.core.errors import BudgetExceeded, IdempotencyConflict, NoiseReuse
from demur.durable import atomic_files
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM
from tests.families import thinned
from tests.programs import python

EPSILON, L = 4.0, 0.5
SECRET = 61.62636465  # a value that must not show up anywhere
BOUNDS = {"low": [0.0, -5.0], "high": [100.0, 5.0]}
OF_TABLE = ("low", "high", "columns", "id_column", "clip", "space")


def points(n: int = 1000) -> pa.Table:
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "id": np.arange(n, dtype=np.uint64) * 3 + 5,
            "age": rng.integers(0, 101, n),
            "score": rng.uniform(-5.0, 5.0, n),
            "name": ["somebody"] * n,
        }
    )


def write(path, table: pa.Table):
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)
    return path


def new_ledger(folder, *, epsilon: float = 1e6) -> Ledger:
    return Ledger.open(
        folder / "ledger.db",
        dataset="d",
        budgets={ReplaceOne(): Budget(epsilon)},
        filter="pure",
    )


def make(source, output, **more):
    asked = {**BOUNDS, "columns": ["age", "score"], "id_column": "id", **more}
    table = PointTable(source, **{k: asked.pop(k) for k in OF_TABLE if k in asked})
    return make_reports(table, output, **{"epsilon": EPSILON, "L": L, **asked})


def values(path) -> np.ndarray:
    return read_reports(path).reports.values


def partials(folder) -> list:
    """What is left of outputs (a ledger is made under such a name, too)."""
    names = (n for n in os.listdir(folder) if n.endswith(".partial"))
    return [name for name in names if not name.startswith(".ledger.db.")]


class Killed(BaseException):
    pass


def dies(*_):
    raise Killed


# -- what comes out ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind_in", ["csv", "parquet"])
@pytest.mark.parametrize("kind_out", ["csv", "parquet"])
def test_reports_carry_their_mechanism(tmp_path, kind_in, kind_out):
    source = write(tmp_path / f"in.{kind_in}", points())
    made = make(source, tmp_path / f"out.{kind_out}")
    found, metadata = read_reports(made.path)
    assert found.mechanism == BPM(EPSILON, L, 2)
    assert metadata.columns == ("age", "score") and metadata.id_column == "id"
    assert (metadata.low, metadata.high) == ((0.0, -5.0), (100.0, 5.0))
    np.testing.assert_array_equal(found.row_ids, points()["id"])
    assert not made.entry.durable and "Not recorded" in made.entry.statement()
    # Nothing but the named columns left the input.
    text = made.path.read_bytes()
    assert b"somebody" not in text and b"name" not in text.replace(b"path_name", b"")


@pytest.mark.slow
def test_reports_follow_the_mechanisms_law(tmp_path):
    """The share within L of the (scaled) points is p_L, not the seed's formula."""
    n = 40_000
    table = pa.table({"age": np.full(n, 50.0), "score": np.full(n, 1.0)})
    source = write(tmp_path / "in.parquet", table)
    made = make(source, tmp_path / "out.parquet", id_column=None)
    near = np.linalg.norm(values(made.path) - [0.5, 0.6], axis=1) <= L
    deviation = math.sqrt(0.349 * 0.651 / n)
    assert abs(near.mean() - 0.349) < 5 * deviation < abs(0.798 - 0.349)


def test_both_files_give_the_same_points(tmp_path, monkeypatch):
    """CSV and Parquet, in batches of any size, are the same input."""
    digests = []
    for name, rows in (("a.csv", 2**22), ("b.parquet", 7), ("c.parquet", 2**16)):
        source = write(tmp_path / name, points())
        monkeypatch.setattr(point_tables, "_MOST_ROWS", rows)
        table = PointTable(source, low=[0, -5], high=[100, 5], columns=["age", "score"])
        digests.append(checked_points.check_point_table(table, lambda *_: None).digest)
    assert len(set(digests)) == 1


# -- killed, repeated, changed -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("where", ["write", "finish", "commit"])
def test_a_job_that_died_repeats_its_reports(tmp_path, monkeypatch, where):
    source = write(tmp_path / "in.parquet", points())
    written = []
    plain_write = report_files.ReportWriter.write

    def watched(self, reports, ids):
        written.append(np.array(reports))
        if where == "write" and len(written) == 3:
            raise Killed
        plain_write(self, reports, ids)

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch, new_ledger(tmp_path) as ledger:
        patch.setattr(point_tables, "_MOST_ROWS", 100)
        patch.setattr(report_files.ReportWriter, "write", watched)
        if where == "finish":
            patch.setattr(report_files.ReportWriter, "finish", die)
        if where == "commit":
            patch.setattr(Ledger, "_commit", die)
        with pytest.raises(Killed):
            make(source, tmp_path / "out.csv", ledger=ledger, idempotency_key="job")
        spent = ledger.epsilon()
    assert partials(tmp_path) == []
    assert (tmp_path / "out.csv").exists() == (where == "commit")
    with new_ledger(tmp_path) as ledger:
        monkeypatch.setattr(point_tables, "_MOST_ROWS", 7)
        make(
            source,
            tmp_path / "again.parquet",
            ledger=ledger,
            idempotency_key="job",
        )
        assert len(ledger.entries()) == 1 and ledger.epsilon() == spent
        before = np.vstack(written)
        np.testing.assert_array_equal(
            values(tmp_path / "again.parquet")[: len(before)], before
        )
        # Another key is another entry and other noise: the check above can fail.
        make(source, tmp_path / "o.parquet", ledger=ledger, idempotency_key="other")
        assert len(ledger.entries()) == 2
        assert not np.array_equal(values(tmp_path / "o.parquet")[:100], before[:100])
        # After its commit the key is gone.
        with pytest.raises(NoiseReuse, match="committed"):
            make(source, tmp_path / "third.csv", ledger=ledger, idempotency_key="job")
    assert not (tmp_path / "third.csv").exists()


def dies_at_the_end(patch, where: str) -> None:
    """Killed right after one of the last steps of a job."""
    if where == "renamed":
        patch.setattr(Ledger, "_commit", dies)
        return
    assert where == "words written"  # those of a CSV, before it has its name

    def named(files, **_):
        os.link(*files[0])
        raise Killed

    patch.setattr(report_files, "name_all", named)


KILLED_AT = [
    ("renamed", "out.parquet"), ("renamed", "out.csv"), ("words written", "out.csv")
]  # fmt: skip


@pytest.mark.parametrize(("where", "name"), KILLED_AT)
def test_the_same_call_finishes_what_was_killed_at_the_end(
    tmp_path, monkeypatch, where, name
):
    """No overwrite by hand; the same entry, the same file, the key wiped."""
    source, out = write(tmp_path / "in.parquet", points(300)), tmp_path / name
    with new_ledger(tmp_path) as ledger:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            dies_at_the_end(patch, where)
            make(source, out, ledger=ledger, idempotency_key="job")
        left = {p.name: p.read_bytes() for p in tmp_path.glob("out*")}
        assert out.exists() == (where == "renamed") and left
        (entry,) = ledger.entries()
        made = make(source, out, ledger=ledger, idempotency_key="job")
        assert made.entry.id == entry.id and len(ledger.entries()) == 1
        for path in tmp_path.glob("out*"):
            assert path.read_bytes() == left.get(path.name, path.read_bytes())
        assert len(values(out)) == 300
        with pytest.raises(NoiseReuse, match=f"{name} is there, and .* committed"):
            make(source, out, ledger=ledger, idempotency_key="job")
    assert not list((tmp_path / "ledger.db.keys").glob(f"{entry.id}*"))


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name"), KILLED_AT)
@pytest.mark.parametrize("whose", ["words", "reports", "one byte", "a folder"])
def test_a_job_taken_up_replaces_no_other_file(
    tmp_path, monkeypatch, where, name, whose
):
    source, out = write(tmp_path / "in.parquet", points(300)), tmp_path / name
    place = sidecar(out) if where == "words written" else out
    with new_ledger(tmp_path) as ledger:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            dies_at_the_end(patch, where)
            make(source, out, ledger=ledger, idempotency_key="job")
        if whose == "reports":  # of the same points, by another entry
            make(source, tmp_path / f"other{place.suffixes[0]}")
            other = tmp_path / f"other{''.join(place.suffixes)}"
            text = other.read_bytes()
            if place == sidecar(out):
                text = text.replace(b"4.0", b"2.0")
        elif whose == "one byte":
            text = place.read_bytes() if place.exists() else b"x"
            text = text[:-1] + bytes([text[-1] ^ 1])
        else:
            text = b"mine"
        place.unlink(missing_ok=True)
        place.mkdir() if whose == "a folder" else place.write_bytes(text)
        with pytest.raises(ValueError, match=r"holds something else|exists already"):
            make(source, out, ledger=ledger, idempotency_key="job")
        assert place.is_dir() or place.read_bytes() == text
        assert out == place or not out.exists()
        assert partials(tmp_path) == [] and len(ledger.entries()) == 1
        place.rmdir() if whose == "a folder" else place.unlink()
        make(source, out, ledger=ledger, idempotency_key="job")
        assert len(values(out)) == 300 and len(ledger.entries()) == 1


def test_a_file_that_comes_while_the_job_runs_is_not_replaced(tmp_path):
    """Nor is what was paid for lost: without a key it could not be made again."""
    source = write(tmp_path / "in.parquet", points(300))

    def come(what, done, total):
        if what == "perturbing":
            (tmp_path / "out.csv").write_text("mine")

    with new_ledger(tmp_path) as ledger:
        with pytest.raises(ValueError, match=r"something else.*reports are in") as told:
            make(source, tmp_path / "out.csv", ledger=ledger, progress=come)
        assert len(ledger.entries()) == 1
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert not (tmp_path / "out.csv.json").exists()
    (left,) = partials(tmp_path)
    assert left in str(told.value)
    kept = (tmp_path / left).rename(tmp_path / "kept.csv")
    assert pyarrow.csv.read_csv(kept).num_rows == 300


def test_a_file_that_comes_before_the_charge_costs_nothing(tmp_path):
    source = write(tmp_path / "in.parquet", points(300))

    def come(what, done, total):
        if what == "checking":
            (tmp_path / "out.csv").write_text("mine")

    with new_ledger(tmp_path) as ledger:
        with pytest.raises(ValueError, match="exists already"):
            make(source, tmp_path / "out.csv", ledger=ledger, progress=come)
        assert ledger.entries() == [] and partials(tmp_path) == []
    assert (tmp_path / "out.csv").read_text() == "mine"


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_a_file_system_without_links_will_do(tmp_path, monkeypatch, name):
    plain = os.link

    def link(old, new):
        if "out" in new.name:  # the ledger lies on another one
            raise OSError(errno.ENOTSUP, "not supported")
        plain(old, new)

    monkeypatch.setattr(atomic_files.os, "link", link)
    source, out = write(tmp_path / "in.parquet", points(300)), tmp_path / name
    with new_ledger(tmp_path) as ledger:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Ledger, "_commit", dies)
            make(source, out, ledger=ledger, idempotency_key="job")
        before = out.read_bytes()
        make(source, out, ledger=ledger, idempotency_key="job")
        assert out.read_bytes() == before and len(ledger.entries()) == 1
    assert partials(tmp_path) == []


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_name_too_long_for_a_file_costs_nothing(tmp_path, name):
    """Of a CSV that of its words is the longest; all of them come before the charge."""
    source = write(tmp_path / "in.parquet", points(300))
    stem, suffix = name.split(".")
    with new_ledger(tmp_path) as ledger:
        for length in range(215, 250):
            out = tmp_path / f"{stem:x<{length}}.{suffix}"
            try:
                make(source, out, ledger=ledger)
            except OSError as error:
                assert error.errno == errno.ENAMETOOLONG
                break
            made = len(ledger.entries())
        assert length > 215 and len(ledger.entries()) == made
    assert partials(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_words_and_reports_are_of_one_job(tmp_path, monkeypatch, overwrite):
    """Another job wants both names of a CSV right after a first took one of them.

    If nothing is replaced both have the same words, and who gives them back because
    the reports are another's would take them from these. Else each has its own.
    """
    source, out = write(tmp_path / "in.parquet", points(300)), tmp_path / "out.csv"
    step, first = "replace" if overwrite else "link", threading.get_ident()
    plain, drawn, go_on = getattr(os, step), threading.Event(), threading.Event()

    def pause(what, done, total):
        if what == "perturbing" and done:
            drawn.set()
            go_on.wait(30.0)

    def then_the_other(old, new):
        plain(old, new)
        if threading.get_ident() == first and new == sidecar(out):
            go_on.set()
            wait([other], timeout=1.0)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(make, source, out, overwrite=overwrite, progress=pause)
        assert drawn.wait(30.0)
        monkeypatch.setattr(atomic_files.os, step, then_the_other)
        with suppress(ValueError):  # the first may lose, and leaves what it found
            make(source, out, overwrite=overwrite, L=3.0 if overwrite else L)
    assert len(values(out)) == 300
    assert read_reports(out).reports.mechanism.L == L
    if overwrite:
        assert other.exception() is None
    else:
        assert "something else" in str(other.exception())


def draws_for_everything(key, *_, **__):
    key._may_draw = True
    return key


def changed(table: pa.Table, how: str) -> pa.Table:
    if how == "longer":
        return pa.concat_tables([table, table.slice(0, 1).set_column(
            0, "id", pa.array([2**40], pa.uint64()))])  # fmt: skip
    if how == "shorter":
        return table.slice(0, len(table) - 1)
    if how == "swapped":
        return table.take([1, 0, *range(2, len(table))])
    scores = table["score"].to_numpy().copy()
    scores[-1] = -scores[-1]
    return table.set_column(2, "score", pa.array(scores))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["longer", "shorter", "swapped", "last value"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_changes_between_the_passes_is_refused(
    tmp_path, monkeypatch, how, kind
):
    monkeypatch.setattr(point_tables, "_MOST_ROWS", 300)
    source = write(tmp_path / f"in.{kind}", points())
    out = tmp_path / "out.parquet"

    def change(what, done, total):
        if (what, done) == ("perturbing", 0):
            write(source, changed(points(), how))

    asked = {"idempotency_key": "job", "progress": change}
    with new_ledger(tmp_path) as ledger:
        with pytest.raises(InputChanged, match="stays spent"):
            make(source, out, ledger=ledger, **asked)
        assert not out.exists() and partials(tmp_path) == []
        # The changed file cannot take over the entry; the first file can.
        with pytest.raises(IdempotencyConflict):
            make(source, out, ledger=ledger, idempotency_key="job")
        write(source, points())
        make(source, out, ledger=ledger, idempotency_key="job")
        assert len(ledger.entries()) == 1
    # A job that compares neither batches nor the whole writes the changed file.
    monkeypatch.setattr(NoiseKey, "authorise", draws_for_everything)
    with pytest.raises(InputChanged):
        make(source, tmp_path / "twin.parquet", progress=change)
    write(source, points())
    monkeypatch.setattr(checked_points.FileDigest, "text", lambda self: "any")
    if how in ("swapped", "last value"):
        make(source, tmp_path / "twin.parquet", progress=change)
        assert (tmp_path / "twin.parquet").exists()


def test_a_file_cut_between_two_batches_is_refused(tmp_path, monkeypatch):
    """Every batch that is left is the very one of the first pass."""
    monkeypatch.setattr(point_tables, "_MOST_ROWS", 250)
    source = write(tmp_path / "in.parquet", points())

    def cut(what, done, total):
        if (what, done) == ("perturbing", 0):
            write(source, points().slice(0, 750))

    with pytest.raises(InputChanged):
        make(source, tmp_path / "out.parquet", progress=cut)
    assert not (tmp_path / "out.parquet").exists()


def test_an_id_in_two_batches_is_refused(tmp_path, monkeypatch):
    """Each batch is in order and without repeats; the file is not."""
    monkeypatch.setattr(point_tables, "_MOST_ROWS", 500)
    ids = pa.array([*range(500), *range(499, 999)], pa.uint64())
    source = write(tmp_path / "in.parquet", points().set_column(0, "id", ids))
    with pytest.raises(ValueError, match="must not hold an id twice"):
        make(source, tmp_path / "out.parquet")
    assert os.listdir(tmp_path) == ["in.parquet"]


def test_other_ids_under_one_key_are_other_data(tmp_path, monkeypatch):
    """The same points under other names would get other noise, paid once."""
    source = write(tmp_path / "in.parquet", points(50))
    with new_ledger(tmp_path) as ledger:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(report_files.ReportWriter, "finish", dies)
            make(source, tmp_path / "o.csv", ledger=ledger, idempotency_key="job")
        other = pa.array(np.arange(50, dtype=np.uint64))
        write(source, points(50).set_column(0, "id", other))
        with pytest.raises(IdempotencyConflict):
            make(source, tmp_path / "o.csv", ledger=ledger, idempotency_key="job")


def test_the_entry_is_charged_in_the_space_that_was_named(tmp_path):
    source = write(tmp_path / "in.parquet", points(50))
    unit = Ball(0.1, space="towns")
    ledger = Ledger(Budget(1.0), unit=unit, filter="pure")
    make(source, tmp_path / "a.csv", ledger=ledger, space="towns")
    assert ledger.epsilon() == pytest.approx(EPSILON * 0.1)
    # In another space a radius of towns says nothing: the price of any replacement.
    with pytest.raises(BudgetExceeded, match=r"to 2\.4(01)? of 1"):
        make(source, tmp_path / "b.csv", ledger=ledger)


def test_new_words_never_lie_beside_old_reports(tmp_path, monkeypatch):
    """A job that dies between its two files leaves no pair that lies."""
    source = write(tmp_path / "in.parquet", points(50))
    out = tmp_path / "out.csv"
    make(source, out)
    plain = os.replace

    def replace(old, new):
        if str(new).endswith(".csv"):
            raise Killed
        plain(old, new)

    monkeypatch.setattr(report_files.os, "replace", replace)
    with pytest.raises(Killed):
        make(source, out, L=0.25, overwrite=True)
    assert not out.exists() and partials(tmp_path) == []


def test_ids_read_again_must_be_those_that_were_checked(tmp_path, monkeypatch):
    """Duplicates that hide during the check of ids do not get past it."""
    twice = points().set_column(0, "id", pa.array([7, 7, *range(100, 1098)]))
    source = write(tmp_path / "in.parquet", twice)
    plain = checked_points._check_ids

    def hide(table, rows, batches):
        write(source, points())
        try:
            plain(table, rows, batches)
        finally:
            write(source, twice)

    monkeypatch.setattr(checked_points, "_check_ids", hide)
    with pytest.raises(InputChanged, match="Nothing was spent"):
        make(source, tmp_path / "out.parquet")


JOB = """
import json, os, sys, time, traceback
from demur.core.adjacency import ReplaceOne
from demur.ledger import Budget, Ledger
from demur.cluster import PointTable, make_reports
from demur.cluster.files import point_tables
def job(ledger, source, out, key, rows, pause=0.0):
    point_tables._MOST_ROWS = int(rows)
    ledger = Ledger.open(ledger, dataset="d", budgets={ReplaceOne(): Budget(1e6)},
        filter="pure")
    make_reports(PointTable(source, low=0.0, high=1.0), out, epsilon=4.0, L=0.5,
        ledger=ledger, idempotency_key=key, progress=lambda *_: time.sleep(pause))
    return ledger
"""
# Jobs in processes of their own, side by side: one list of them after the other.
LAUNCHER = """
import numpy
from demur.mechanisms import BPM
BPM(4.0, 0.5, 2).privatize(numpy.full((2, 2), 0.5), ledger=None)  # loads what draws
for line in sys.stdin:
    pids = []
    for asked in json.loads(line):
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                job(*asked)
                os._exit(0)
            except BaseException as error:
                with open(asked[2] + ".error", "w") as file:
                    traceback.print_exc(file=file)
                    print(type(error).__mro__, file=file)
            os._exit(1)
    print(json.dumps(pids), flush=True)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(ends), flush=True)
"""


class Jobs:
    def __init__(self):
        self.process = subprocess.Popen(
            [*python(), "-c", JOB + LAUNCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder, *jobs) -> list[int]:
        """Their process ids; a job is its output, its key, batch size and pause."""
        places = str(folder / "ledger.db"), str(folder / "in.parquet")
        asked = [(*places, str(folder / out), *rest) for out, *rest in jobs]
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ends(self) -> list[int]:
        """The exit codes, when all have ended."""
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def jobs():
    """One launcher for all: it takes seconds to start."""
    if not hasattr(os, "fork"):
        pytest.skip("machine: no fork")
    found = Jobs()
    yield found
    found.close()


@pytest.mark.slow
def test_a_job_killed_half_way_is_taken_up(jobs, tmp_path):
    """SIGKILL while it writes: what it had written are the first of the final rows."""
    n = 50_000
    rng = np.random.default_rng(0)
    write(tmp_path / "in.parquet", pa.table({"a": rng.random(n), "b": rng.random(n)}))
    # Tiny batches and a pause after each: slow enough to hit.
    (pid,) = jobs.start(tmp_path, ("out.csv", "job", 50, 0.001))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = [tmp_path / name for name in partials(tmp_path)]
        if left and left[0].stat().st_size > 20_000:
            break
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    assert jobs.ends() == [-signal.SIGKILL]
    (rest,) = [tmp_path / name for name in partials(tmp_path)]
    assert not (tmp_path / "out.csv").exists()
    jobs.start(tmp_path, ("out.csv", "job", 2**16))
    assert jobs.ends() == [0]
    begun = rest.read_text().splitlines()[1:-1]  # the last line may be cut
    whole = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert len(whole) == n and 500 < len(begun) < n
    assert begun == whole[: len(begun)]
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert len(ledger.entries()) == 1


@pytest.mark.slow
def test_two_at_once_under_one_key_never_draw_twice(jobs, tmp_path):
    rng = np.random.default_rng(0)
    write(tmp_path / "in.parquet", pa.table({"a": rng.random(5000)}))
    with new_ledger(tmp_path):
        pass
    outputs = [tmp_path / f"out{i}.parquet" for i in range(3)]
    jobs.start(tmp_path, *((out.name, "job", 100) for out in outputs))
    ends = jobs.ends()
    done = [out for out, end in zip(outputs, ends, strict=True) if end == 0]
    assert done
    for out in outputs:
        if out not in done:
            said = out.with_name(f"{out.name}.error").read_text()
            assert "NoiseReuse" in said, said
    found = [values(out) for out in done]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    with new_ledger(tmp_path) as ledger:
        assert len(ledger.entries()) == 1


# -- refusals ------------------------------------------------------------------------


def replaced(name: str, column) -> pa.Table:
    table = points(len(column))
    return table.set_column(table.column_names.index(name), name, column)


def with_last(value, n: int = 700) -> pa.Array:
    return pa.array([1.0] * (n - 1) + [value], pa.float64())


BAD_TABLES = {
    "outside": (replaced("score", with_last(SECRET)), "column 'score' has values"),
    "below": (replaced("score", with_last(-SECRET)), "column 'score' has values"),
    "NaN": (replaced("score", with_last(math.nan)), "column 'score' must be finite"),
    "inf": (replaced("score", with_last(math.inf)), "column 'score' must be finite"),
    "null": (replaced("score", with_last(None)), "'score' has missing values"),
    "empty": (points(0), "holds no rows"),
    "negative id": (replaced("id", pa.array([-1, 2, 3])), "id"),
    "id twice": (replaced("id", pa.array([4, 9, 4])), "must not hold an id twice"),
    "null id": (replaced("id", pa.array([4, None, 5])), "must hold whole numbers"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("fault", list(BAD_TABLES))
def test_bad_rows_are_refused_by_column_and_cost_nothing(tmp_path, fault, kind):
    table, words = BAD_TABLES[fault]
    if kind == "csv" and fault == "negative id":
        words = "column number 1"  # the parser's own refusal, without its value
    if kind == "csv" and fault == "NaN":
        words = "missing values"  # which is what "nan" means in a CSV
    source = write(tmp_path / f"in.{kind}", table)
    with new_ledger(tmp_path) as ledger:
        with pytest.raises(ValueError, match=words) as caught:
            make(source, tmp_path / "out.parquet", ledger=ledger)
        assert ledger.entries() == [] and ledger.epsilon() == 0.0
    assert str(SECRET) not in str(caught.value)
    assert not (tmp_path / "out.parquet").exists() and partials(tmp_path) == []


def test_the_text_of_a_cell_is_not_in_the_error(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("a,b\n" + "1,1\n" * 5 + f"1,patient {SECRET}\n")
    with pytest.raises(ValueError, match="column number 2") as caught:
        table = PointTable(source, low=0, high=2)
        make_reports(table, tmp_path / "o.csv", epsilon=1.0, L=1.0)
    shown = str(caught.value) + repr(caught.value.__cause__)
    assert str(SECRET) not in shown and "patient" not in shown
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("first", ["61.62636465,3.5", "somebody,61.62636465"])
def test_a_record_is_not_taken_for_the_names_of_columns(tmp_path, first):
    """Names are public: they go into the output, and into errors."""
    source = tmp_path / "in.csv"
    source.write_text(first + "\n1,2\n3,4\n")
    bounds = {"low": 0.0, "high": 100.0}
    for more in ({}, {"columns": ["age"]}):
        with pytest.raises(ValueError, match="first line") as caught:
            PointTable(source, **bounds, **more)
        assert str(SECRET) not in str(caught.value)
        assert "somebody" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in.csv"]
    # Numbers may be names, if somebody says so.
    source.write_text("0,1\n1,2\n3,4\n")
    table = PointTable(source, columns=["0", "1"], **bounds)
    made = make_reports(table, tmp_path / "o.csv", epsilon=1.0, L=1.0)
    assert made.metadata.columns == ("0", "1")


def test_a_writer_that_cannot_begin_leaves_nothing(tmp_path, monkeypatch):
    source = write(tmp_path / "in.parquet", points(50))

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(pyarrow.csv, "CSVWriter", full)
    with new_ledger(tmp_path) as ledger:
        with pytest.raises(OSError, match="no space"):
            make(source, tmp_path / "out.csv", ledger=ledger)
        assert ledger.entries() == []
    assert partials(tmp_path) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"columns": ["age", "size"]}, "no column 'size'"),
        ({"columns": ["age", "age"]}, "occurs twice"),
        ({"columns": ["id", "age"]}, "occurs twice"),
        ({"columns": ["age", "name"]}, "'name' must hold numbers"),
        ({"columns": []}, "no columns"),
        ({"id_column": "no"}, "no column 'no'"),
        ({"low": [0.0, 1.0, 2.0]}, "low must be one number or one for each"),
        ({"low": [0.0, 9.0]}, "high must exceed low"),
        ({"low": [0.0, math.nan]}, "low must be finite"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": math.nan}, "epsilon must be positive"),
        ({"L": -1.0}, "L must be at least 0"),
        ({"L": "best"}, "L must be a number"),
        ({"idempotency_key": "k"}, "needs a ledger that lasts"),
        ({"label": "\n"}, "label must be"),
        ({"space": ""}, "space must be"),
        ({"ledger": "ledger.db"}, "ledger must be a Ledger"),
    ],
)
def test_bad_arguments_write_nothing(tmp_path, more, words):
    source = write(tmp_path / "in.parquet", points(50))
    with pytest.raises((ValueError, TypeError), match=words):
        make(source, tmp_path / "out.parquet", **more)
    assert os.listdir(tmp_path) == ["in.parquet"]


def test_outputs_that_must_not_be_written(tmp_path):
    source = write(tmp_path / "in.parquet", points(50))
    with pytest.raises(TypeError, match=r"must be a PointTable.*Nothing was spent"):
        make_reports(source, tmp_path / "out.csv", epsilon=EPSILON, L=L)
    other = write(tmp_path / "there.parquet", points(5))
    for output, words in (
        (source, "must not be the input"),
        (other, "exists already"),
        (tmp_path / "out.txt", "must be .parquet or .csv"),
        (tmp_path / "none" / "out.csv", "there is no folder"),
        (tmp_path, "must be .parquet or .csv"),
    ):
        with pytest.raises(ValueError, match=words):
            make(source, output)
    assert pyarrow.parquet.read_table(source) == points(50)
    make(source, other, overwrite=True)
    assert len(values(other)) == 50
    (tmp_path / "out.csv.json").write_text("mine")
    with pytest.raises(ValueError, match=r"out.csv.json exists already"):
        make(source, tmp_path / "out.csv")
    make(source, tmp_path / "out.csv", overwrite=True, L=0.25)
    make(source, tmp_path / "out.csv", overwrite=True)
    assert read_reports(tmp_path / "out.csv").reports.mechanism.L == L


def test_names_with_dots_and_commas(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {"a.b": rng.random(20), 'c,"d"': rng.random(20), "a": rng.random(20)}
    )
    for kind in ("csv", "parquet"):
        source = write(tmp_path / f"in.{kind}", table)
        columns = PointTable(source, low=0.0, high=1.0, columns=["a.b", 'c,"d"'])
        made = make_reports(columns, tmp_path / f"out.{kind}", epsilon=1.0, L=1.0)
        assert read_reports(made.path).metadata.columns == ("a.b", 'c,"d"')


def test_a_ledger_that_is_full_declines_and_nothing_is_drawn(tmp_path):
    source = write(tmp_path / "in.parquet", points(50))
    with new_ledger(tmp_path, epsilon=1.9) as ledger:
        with pytest.raises(BudgetExceeded):
            make(source, tmp_path / "out.parquet", ledger=ledger)
        assert ledger.entries() == []
    assert not (tmp_path / "out.parquet").exists() and partials(tmp_path) == []


def test_a_place_that_cannot_be_written_to_costs_nothing(tmp_path, monkeypatch):
    source = write(tmp_path / "in.parquet", points(50))

    def refuse(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(report_files.ReportWriter, "__enter__", refuse)
    with new_ledger(tmp_path) as ledger:
        with pytest.raises(PermissionError):
            make(source, tmp_path / "out.parquet", ledger=ledger)
        assert ledger.entries() == []


def test_clipping_is_at_the_client_and_said(tmp_path):
    table = replaced("score", with_last(SECRET))
    source = write(tmp_path / "in.parquet", table)
    made = make(source, tmp_path / "out.parquet", clip=True)
    assert made.metadata.clipped and read_reports(made.path).metadata.clipped
    (batch,) = PointTable(
        source, low=[0, -5], high=[100, 5], columns=["age", "score"], clip=True
    ).batches()
    assert batch.points[-1, 1] == 1.0 and batch.points.max() <= 1.0


# -- reading back --------------------------------------------------------------------


def test_reports_that_do_not_say_need_to_be_told(tmp_path):
    source = write(tmp_path / "in.csv", points(50))
    made = make(source, tmp_path / "out.csv", id_column=None)
    sidecar(made.path).unlink()
    with pytest.raises(ValueError, match="give --epsilon and --L"):
        read_reports(made.path)
    with pytest.raises(ValueError, match="give --epsilon and --L"):
        read_reports(made.path, epsilon=EPSILON)
    told = read_reports(made.path, epsilon=EPSILON, L=L)
    assert told.reports.mechanism == BPM(EPSILON, L, 2) and told.metadata.low is None
    with pytest.raises(ValueError, match="these are not"):
        read_reports(made.path, epsilon=EPSILON, L=0.01)


def test_columns_of_one_name_are_a_clear_error(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("a,a,b\n0.1,0.2,0.3\n")
    with pytest.raises(ValueError, match="columns must all differ"):
        read_reports(path, epsilon=EPSILON, L=L)
    sidecar(path).write_text(ReportMetadata(BPM(EPSILON, L, 2), ("a", "b")).to_text())
    with pytest.raises(ValueError, match="'a' occurs twice"):
        read_reports(path)


def test_reports_that_say_cannot_be_told_otherwise(tmp_path):
    made = make(write(tmp_path / "in.csv", points(50)), tmp_path / "out.parquet")
    assert read_reports(made.path, epsilon=EPSILON, L=L)
    with pytest.raises(ValueError, match="was made with epsilon 4 and L 0.5"):
        read_reports(made.path, epsilon=2.0)


@pytest.mark.parametrize("threshold", [0.0, 0.25, 2.0**-30, math.inf])
def test_metadata_come_back_exactly(threshold):
    kept = ReportMetadata(
        BPM(0.1 + 0.2, threshold, 2),
        ("a, b", 'say "x"'),
        (0.1, -1e300),
        (0.3, 1e-300),
        True,
        "né",
        "cube of towns",
    )
    assert ReportMetadata.from_text(kept.to_text()) == kept
    mapped = kept.in_original_units([[0.0, 1.0]])
    np.testing.assert_allclose(mapped, [[0.1, 0.0]], atol=1e284)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "demur reports 9"},
        {"mechanism": "laplace"},
        {"epsilon": -1.0},
        {"epsilon": "4"},
        {"L": "auto?"},
        {"columns": [1, 2]},
        {"columns": []},
        {"columns": ["a"]},
        {"columns": "ab"},
        {"columns": ["a", "a"]},
        {"id_column": 7},
        {"low": [0.0]},
        {"low": None},
        {"low": [0.0, "x"]},
        {"high": [0.0, 0.0]},
        {"space": ""},
        {"more": 1},
    ],
)
def test_damaged_metadata_are_a_clear_error(change):
    kept = ReportMetadata(BPM(4.0, 0.5, 2), ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    data = json.loads(kept.to_text()) | change
    with pytest.raises(ValueError, match="metadata"):
        ReportMetadata.from_text(json.dumps(data))
    for text in ("", "[]", "{", "[" * 100_000, kept.to_text()[:-1]):
        with pytest.raises(ValueError, match="metadata"):
            ReportMetadata.from_text(text)


def hostile(tmp_path, kind, **metadata):
    """A file of 300 reports, one of which no mechanism can have drawn."""
    mechanism = BPM(4.0, math.inf, 2)
    given = {"mechanism": mechanism, "columns": ("age", "score")} | metadata
    kept = ReportMetadata(**given).to_text()
    table = pa.table({"age": np.full(300, 0.5), "score": np.full(300, 0.25)})
    scores = table["score"].to_numpy().copy()
    scores[123] = 1e160
    table = table.set_column(1, "score", pa.array(scores))
    path = write(
        tmp_path / f"hostile.{kind}",
        table.replace_schema_metadata({b"demur.reports": kept.encode()}),
    )
    if kind == "csv":
        sidecar(path).write_text(kept)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_report_that_cannot_be_is_found_in_its_file(tmp_path, kind):
    with pytest.raises(ValueError, match=r"hostile.*\[.*\].*position 123 "):
        read_reports(hostile(tmp_path, kind))


# Arrow's own allocator keeps what was freed, 25 MB more or less from run to run.
PLAIN_MALLOC = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# What a job takes beyond what its process holds already: programs, caches, libraries.
PEAK = """
import pyarrow.csv
def held(what):
    return int(open("/proc/self/status").read().split(what)[1].split()[0]) // 1024
def peak(output):
    open("/proc/self/clear_refs", "w").write("5")  # the peak so far is forgotten
    before = held("VmRSS:")
    make_reports(PointTable(sys.argv[6], low=0.0, high=1.0), output, epsilon=4.0,
        L=0.5, ledger=ledger, idempotency_key=output)
    print(held("VmHWM:") - before)
ledger = job(*sys.argv[1:6])
peak(sys.argv[7])
# The twin: batches as large as the file. It may use again what the first has freed.
point_tables._MOST_ROWS = 2**22
point_tables._csv_reading = lambda width: pyarrow.csv.ReadOptions(
    use_threads=False, block_size=2**30)
peak(sys.argv[8])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows", "most"),
    thinned([("parquet", 500_000, 42), ("csv", 400_000, 80)], 2),
)
def test_memory_holds_a_batch_and_not_the_file(tmp_path, kind, rows, most):
    """25 MB of Parquet took 3 to 20 MB, and 58 to 78 as one batch; 46 MB of CSV took
    34 to 46, and 135 to 197."""
    if not os.path.exists("/proc/self/clear_refs"):
        pytest.skip("machine: no /proc to read a process's peak memory from")
    rng = np.random.default_rng(0)
    files = []
    for n in (100_000, rows):
        table = pa.table({f"c{j}": rng.random(n) for j in range(6)})
        files.append(write(tmp_path / f"in{n}.{kind}", table))
        del table

    small, large, whole = (tmp_path / f"{name}.parquet" for name in "abc")
    asked = [tmp_path / "ledger.db", files[0], small, "job", 2**14, files[1]]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            JOB + PEAK,
            *map(str, [*asked, large, whole]),
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | PLAIN_MALLOC,
    )
    in_batches, at_once = map(int, done.stdout.split())
    assert in_batches < most < at_once, (in_batches, at_once)


# -- L at a price ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_L_at_a_price_follows_from_the_number_of_reports(tmp_path, monkeypatch, name):
    """The rows of the file, in either format, or the number that is given."""
    source = write(tmp_path / name, points(700))
    table = PointTable(source, **BOUNDS, columns=["age", "score"])
    asked = []

    def for_unit(unit, *, price, dimension, n, space):
        asked.append((price, dimension, n))
        return BPM(price, 1.0, dimension)

    monkeypatch.setattr(BPM, "for_unit", for_unit)
    mechanism_for_job(table, None, "auto", 4.0)
    mechanism_for_job(table, None, "auto", 4.0, people=12)
    assert asked == [(4.0, 2, 700), (4.0, 2, 12)]
    with pytest.raises(ValueError, match="number of people decides L at a price alone"):
        mechanism_for_job(table, 4.0, "auto", None, people=12)
