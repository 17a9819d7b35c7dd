"""Ctrl-C in a real process: nothing is lost that was paid for, nothing is paid twice.

Every test stops a command at a chosen place with SIGINT, looks at the ledger and the
files, and runs the same command again.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from demur import ReplaceOne
from demur.cli.shell import Code
from demur.convex import load_head
from demur.ledger import Budget, Ledger
from tests.cli.tree import make_files, right
from tests.commands import run as run_here
from tests.programs import python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("interrupted.py")


class Run:
    """`demur` in a process of its own, paused at a place."""

    def __init__(self, place: str, command: str, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [*python(), str(SCRIPT), place, *command.split(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "dumb"},
            # A test run in the background ignores SIGINT, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def until_ready(self) -> "Run":
        line = self._process.stdout.readline()
        assert line.startswith("READY "), self._process.communicate()
        self._pid = int(line.removeprefix("READY "))
        return self

    def interrupt(self) -> "Run":
        os.kill(self._pid, signal.SIGINT)
        return self

    def kill(self) -> "Run":
        os.kill(self._pid, signal.SIGKILL)
        self._process.communicate()
        return self

    def until_noted(self) -> "Run":
        line = self._process.stderr.readline()
        if line.startswith("a new ledger"):
            line = self._process.stderr.readline()
        assert "interrupt noted" in line
        return self

    def go_on(self) -> "Run":
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, and stderr without line breaks."""
        out, told = self._process.communicate(timeout=180)
        assert "Traceback" not in told, told
        return self._process.returncode, out, " ".join(told.split())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("files")
    make_files(place)
    return place


@pytest.fixture
def home(files, tmp_path):
    for path in files.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "out").mkdir()
    return tmp_path


def charged(home) -> list[str]:
    """The labels of the ledger's entries, if there is a ledger."""
    if not (home / "out" / "ledger.db").exists():
        return []
    with Ledger.open(home / "out" / "ledger.db") as ledger:
        assert ledger.verify(ledger.tip()).ok
        return [entry.label for entry in ledger.entries()]


def left(home) -> set[str]:
    """The files in `out`; the ledger's journal stays beside it and says nothing."""
    names = {path.name for path in (home / "out").iterdir() if path.is_file()}
    return names - {"ledger.db-journal"}


def again(command, home) -> int:
    """The exit code of the same command, in this process."""
    return run_here(*command.split(), *right(home)[command]).exit_code


@pytest.mark.parametrize("command", ["head fit", "unlearn run"])
def test_before_the_charge_it_stops_at_once_and_spends_nothing(home, command) -> None:
    run = Run("while_reading", command, right(home)[command])
    code, _, told = run.until_ready().interrupt().end()
    assert code == Code.INTERRUPTED
    assert "interrupted: Nothing was spent. Run the same command again." in told
    assert charged(home) == []
    assert again(command, home) == Code.DONE and len(charged(home)) >= 1


@pytest.mark.parametrize(
    ("command", "file"), [("head fit", "head.npz"), ("unlearn run", "w.npz")]
)
def test_after_the_charge_it_is_finished_first(home, command, file) -> None:
    run = Run("after_the_charge", command, right(home)[command])
    run.until_ready().interrupt().until_noted()
    for _ in range(2 if command == "unlearn run" else 1):  # the promise and the draws
        run.go_on()
    code, _, told = run.end()
    assert code == Code.INTERRUPTED
    assert "Spent: entry 1" in told and "written" in told
    assert (home / "out" / file).exists()
    if command == "head fit":
        assert charged(home) == ["head of table"]
        load_head(home / "out" / file)
    else:
        assert len(charged(home)) == 2
    before = charged(home)
    assert again(command, home) == Code.DECLINED and charged(home) == before


def test_a_second_interrupt_stops_and_says_what_is_lost(home) -> None:
    run = Run("after_the_charge", "head fit", [*right(home)["head fit"], "--json"])
    code, out, told = (
        run.until_ready().interrupt().until_noted().interrupt().end()
    )  # fmt: skip
    assert code == Code.INTERRUPTED
    assert "Its head is lost, and another fit is charged again." in told
    assert charged(home) == ["head of table"]
    assert not (home / "out" / "head.npz").exists()
    answer = json.loads(out)
    assert answer["exit_code"] == 130 and "stays spent" in answer["error"]["message"]


def test_a_charge_that_is_declined_after_an_interrupt_stops(home) -> None:
    assert again("head fit", home) == Code.DONE
    run = Run("before_the_charge", "head fit", right(home)["head fit"])
    code, _, told = run.until_ready().interrupt().until_noted().go_on().end()
    assert code == Code.INTERRUPTED and "Nothing was spent" in told
    assert charged(home) == ["head of table"]


def test_reports_are_taken_up_and_paid_for_once(home) -> None:
    command = "reports make"
    run = Run("in_the_second_batch", command, right(home)[command])
    code, _, told = run.until_ready().interrupt().end()
    assert code == Code.INTERRUPTED
    assert "entry 1 ('local reports of rows')" in told and "pays nothing more" in told
    assert charged(home) == ["local reports of rows"]
    assert left(home) == {"ledger.db", ".reports.parquet.job"}
    # Other data under the same job must not meet its noise, and is told what to do.
    other = [f"{home}/table.parquet", "--columns", "b,a", *right(home)[command][1:]]
    refused = run_here(*command.split(), *other)
    assert refused.exit_code == Code.ERROR
    assert ".reports.parquet.job" in "".join(refused.output.split())
    assert again(command, home) == Code.DONE
    assert charged(home) == ["local reports of rows"]
    assert left(home) == {"ledger.db", "reports.parquet"}


@pytest.mark.parametrize("name", ["reports.parquet", "reports.csv"])
@pytest.mark.parametrize("keyed", [False, True])
def test_reports_killed_before_their_commit_are_finished(home, name, keyed) -> None:
    """SIGKILL when OUT has its name and its entry is not yet committed."""
    source, _, *rest = right(home)["reports make"]
    out = home / "out" / name
    arguments = [source, str(out), *rest]
    arguments += ["--idempotency-key", "monday"] if keyed else []
    Run("before_the_commit", "reports make", arguments).until_ready().kill()
    written = out.read_bytes()
    assert len(charged(home)) == 1
    # Whatever lies there by then stays as it is, unless it is this very file.
    for other in (b"somebody's", written + b"\n"):
        out.write_bytes(other)
        refused = run_here("reports", "make", *arguments)
        assert refused.exit_code == Code.ERROR
        assert "something else than this job's" in " ".join(refused.output.split())
        assert out.read_bytes() == other
    out.write_bytes(written)
    finished = run_here("reports", "make", *arguments)
    assert finished.exit_code == Code.DONE and "Recorded as entry 1" in finished.output
    assert out.read_bytes() == written and len(charged(home)) == 1
    assert left(home) == {"ledger.db", *(p.name for p in out.parent.glob(f"{name}*"))}
    keys = {p.name for p in (home / "out").glob("*keys/*")}
    assert keys == {"input-digests.key"}
    # Once it is finished, another run is another job.
    again = run_here("reports", "make", *arguments)
    assert again.exit_code == Code.ERROR and len(charged(home)) == 1
    assert out.read_bytes() == written


def test_reports_killed_after_their_commit_say_that_they_are_there(home) -> None:
    arguments = right(home)["reports make"]
    Run("after_the_commit", "reports make", arguments).until_ready().kill()
    out = home / "out" / "reports.parquet"
    written = out.read_bytes()
    told = run_here("reports", "make", *arguments)
    text = "".join(told.output.split())
    assert told.exit_code == Code.ERROR and "reports.parquetisthere" in text
    assert ".reports.parquet.job" in text and "finished" in text
    assert out.read_bytes() == written and len(charged(home)) == 1


def test_two_at_once_are_one_job(home) -> None:
    """Both begin before either is paid for, and there is budget for both."""
    Ledger.open(
        home / "out" / "ledger.db",
        dataset="rows",
        budgets={ReplaceOne(): Budget(100.0)},
        filter="pure",
    ).close()
    arguments = right(home)["reports make"]
    at = arguments.index("--create")
    del arguments[at : at + 3]
    runs = [Run("before_the_charge", "reports make", arguments) for _ in range(2)]
    for run in runs:
        run.until_ready()
    codes = [run.go_on().end()[0] for run in runs]
    assert Code.DONE in codes and len(charged(home)) == 1


def test_training_is_taken_up_and_paid_for_once(home) -> None:
    text = (home / "config.toml").read_text().replace("steps = 6", "steps = 30")
    (home / "config.toml").write_text(text)
    run = Run("after_ten_steps", "train", right(home)["train"])
    code, _, told = run.until_ready().interrupt().end()
    assert code == Code.INTERRUPTED
    assert "entry 1 ('training of model')" in told and "pays nothing more" in told
    assert charged(home) == ["training of model"]
    assert (home / "model.npz.run").is_dir() and not (home / "model.npz").exists()
    assert again("train", home) == Code.DONE
    assert charged(home) == ["training of model"]
    assert not (home / "model.npz.run").exists()
    with np.load(home / "model.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model.files)
    assert again("train", home) == Code.DECLINED
    assert not (home / "model.npz.run").exists()


def test_a_report_is_whole_or_not_there(home) -> None:
    run = Run("while_drawing", "report", right(home)["report"])
    code, _, told = run.until_ready().interrupt().end()
    assert code == Code.INTERRUPTED and "Nothing was spent" in told
    assert list((home / "out").iterdir()) == []
