"""`demur doctor`, --version, -h and `python -m demur`; errors about files, in words."""

import json
import subprocess
from importlib import import_module

import pytest
from typer.testing import CliRunner

from demur import __version__
from demur.cli import app
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


def test_nearest_names_come_first():
    names = [f"column {i}" for i in range(30)] + ["churned"]
    assert validate.nearest("churn", names)[0] == "churned"
    assert len(validate.nearest("churn", names)) == 12
