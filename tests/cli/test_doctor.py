"""`demur doctor`, --version, -h and `python -m demur`; errors about files, in words."""

import errno
import json
import os
import re
import subprocess
from importlib import import_module

import pytest
from typer.testing import CliRunner

from demur import __version__
from demur.cli import app, shell
from demur.core import validate
from demur.core.entropy import OsEntropy
from tests.programs import python

RUN = CliRunner()
LOOKED = import_module("demur.cli.doctor.findings")


def test_it_says_what_is_here_and_that_it_works():
    done = RUN.invoke(app, ["doctor", "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and told["ok"] is True
    states = {each["subject"]: each for each in told["findings"]}
    assert states["demur"]["state"] == __version__
    assert states["entropy"]["ok"] is True and "numpy" in states["packages"]["state"]
    assert "cpu" in states["devices of JAX"]["state"]
    assert "good" in RUN.invoke(app, ["doctor"]).stdout


def test_what_is_broken_is_found(monkeypatch, tmp_path):
    """Sabotaged machines: no entropy, the same bytes twice, no place for keys."""

    def none(_):
        raise OSError("no device")

    with monkeypatch.context() as patched:
        patched.setattr(OsEntropy, "new_key", none)
        assert LOOKED._entropy().ok is False
        patched.setattr(OsEntropy, "new_key", lambda _: bytes(32))
        assert LOOKED._entropy().ok is False
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEMUR_KEYS", str(tmp_path / "file" / "keys"))
    assert RUN.invoke(app, ["doctor"]).exit_code == 1
    assert LOOKED._extra("demur", ("no-such-package",)).ok is False
    assert "pip install 'demur[x]'" in LOOKED._extra("x", ("no-such-package",)).state


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version(words):
    done = RUN.invoke(app, words)
    assert done.exit_code == 0 and done.stdout == f"demur {__version__}\n"


@pytest.mark.parametrize("words", [["-h"], ["ledger", "-h"], ["head", "fit", "-h"]])
def test_short_help(words):
    done = RUN.invoke(app, words)
    assert done.exit_code == 0 and "Usage: " in done.stdout


def test_the_package_is_a_command(tmp_path):
    words = [*python(), "-m", "demur", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"demur {__version__}\n", done.stderr


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    ledger = tmp_path / "l.db"
    terms = ["--dataset", "d", "--budget", "add-or-remove-one:1:1e-6"]
    assert RUN.invoke(app, ["ledger", "create", str(ledger), *terms]).exit_code == 0
    done = RUN.invoke(app, ["report", str(ledger), "-o", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path} is a folder: name a file in it" in done.stderr.replace("\n", "")


WRONG = {
    "ledger show none.db": "at 'none.db'. `demur ledger create` makes one",
    "ledger show folder": "'folder' is a folder: name a file in it",
    "ledger create n.db --dataset d --budget foo:1": "erasure or ball, .* got 'foo'$",
    "ledger verify l.db --tip x": "as `demur ledger export --tip` prints it; got 'x'",
    "report l.db -o none/r.html": "there is no folder none. Nothing was written",
    "report l.db -o /proc/r.html": "/proc/r.html may not be read or written by you",
    "evidence l.db -o folder": "error: folder is a folder: name a file in it",
    "evidence l.db -o /proc/e.zip": "no file can be made at /proc/e.zip",
    "head fit t.csv --label y --epsilon 0 --radius 1 -o h": r"got 0.0\. Nothing was",
    "head fit t.csv --label y --epsilon 1 --radius 1 -o folder": "is a folder: name a",
    "head predict t.csv t.csv": "Give the .npz file that save_head or `demur head fit`",
    "reports sweep --dataset irs --epsilons 1": "iris, wine, digits, .* got 'irs'",
    "serve none.db": "`demur ledger create` makes one. Nothing was served",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_commands_are_answered_in_words(command, tmp_path, monkeypatch):
    """What was wrong and what to do; no name of Python's, no hidden file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "t.csv").write_text("x,y\n1,0\n2,1\n")
    terms = ["--dataset", "d", "--budget", "add-or-remove-one:1:1e-6"]
    assert RUN.invoke(app, ["ledger", "create", "l.db", *terms]).exit_code == 0
    done = RUN.invoke(app, command.split())
    said = " ".join(done.stderr.split())
    assert done.exit_code == 1 and re.search(WRONG[command], said), said
    assert not re.search(r"Ledger\.open|Error\(|\.part|pickle|\{'", said), said


@pytest.mark.parametrize(
    "name", ["x.html", ".x.html.f542e5f0.part", ".x.html.26232.2eeeae10.partial"]
)
def test_a_folder_that_may_not_be_written_is_named(name, monkeypatch):
    """Not the hidden name under which a file is written before it is moved."""
    monkeypatch.setattr(os, "access", lambda place, how: place != "ro")
    monkeypatch.setattr(os.path, "isdir", lambda place: True)
    refused = PermissionError(errno.EACCES, "no", f"ro/{name}")
    assert shell._message(refused).startswith("you may not write into the folder ro:")
    own = PermissionError(errno.EACCES, "no", __file__)
    assert shell._message(own).startswith(f"{__file__} may not be read or written")


def test_a_backup_into_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    terms = ["--dataset", "d", "--budget", "add-or-remove-one:1:1e-6"]
    ledger = str(tmp_path / "l.db")
    assert RUN.invoke(app, ["ledger", "create", ledger, *terms]).exit_code == 0
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, how: p != tmp_path and allowed(p, how))
    done = RUN.invoke(app, ["ledger", "backup", ledger, str(tmp_path / "b.db")])
    assert done.exit_code == 1 and "a defect of demur" not in done.stderr
    assert [p.name for p in tmp_path.glob("*b.db*")] == []


def test_nearest_names_come_first():
    names = [f"column {i}" for i in range(30)] + ["churned"]
    assert validate.nearest("churn", names)[0] == "churned"
    assert len(validate.nearest("churn", names)) == 12
