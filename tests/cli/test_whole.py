"""The command line as a whole: help, JSON, exit codes, and errors in one line.

The commands are found in the tree, so that a new one is under the same rules.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from demur.cli import app
from demur.cli.shell import Code
from tests.cli.tree import (
    CONFIG,
    commands,
    is_argument,
    make_files,
    right,
    takes_float,
    words,
)
from tests.commands import run

COMMANDS = commands()
TOLD = {name: {p.name: p for p in command.params} for name, command in COMMANDS.items()}
# Commands that read no file and charge no ledger when they are given bad words.
HEAVY = {"tour", "audit", "serve"}
FLOATS = [
    (name, option.opts[-1])
    for name, params in TOLD.items()
    for option in params.values()
    if takes_float(option) and not is_argument(option)
] + [("reports make", "--low"), ("reports make", "--high"), ("reports make", "--L"),
     ("reports inspect", "--L"), ("reports sweep", "--epsilons")]  # fmt: skip
# Arguments that name no file to read: it is made, or it is a number.
NEW = {("reports make", "output"), ("ledger create", "address"),
       ("ledger backup", "file"), ("ledger entry", "number"),
       ("ledger approve", "number"), ("ledger decline", "number"),
       ("token create", "name"), ("evidence", "pack"), ("token revoke", "number"),
       ("unlearn open", "address"), ("unlearn delete", "ids"),
       ("unlearn backup", "folder")}  # fmt: skip
FILES = [
    (name, k)
    for name, params in TOLD.items()
    for k, p in enumerate(p for p in params.values() if is_argument(p))
    if (name, p.name) not in NEW
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    place = tmp_path_factory.mktemp("home")
    make_files(place)
    return place


@pytest.fixture
def args(home):
    """Right arguments for a command, and an empty folder for what it writes."""
    yield lambda name: list(right(home)[name])
    shutil.rmtree(home / "out")
    (home / "out").mkdir()


def is_one_line(result, *codes: int) -> bool:
    """The right exit code, something said, and no traceback."""
    fine = isinstance(result.exception, SystemExit | None)
    assert fine, repr(result.exception)
    assert "Traceback" not in result.output
    assert result.exit_code in codes, result.output
    return bool(result.stderr.strip())


# -- help ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["ledger", "show", "--no-such"], ["version"]]
)
def test_these_tests_run_commands_as_typers_own_runner_does(arguments) -> None:
    """And a tree that has run before does not run differently."""
    theirs = CliRunner().invoke(app, arguments)
    for ours in (run(*arguments), run(*arguments)):
        assert ours.stdout == theirs.stdout and ours.stderr == theirs.stderr
        assert ours.exit_code == theirs.exit_code
        assert type(ours.exception) is type(theirs.exception)


@pytest.mark.slow
def test_help_is_a_table_of_contents() -> None:
    text = run("--help").output
    order = ["Start here", "tour ", "Engines", "head ", "reports ", "unlearn ",
             "train ", "The ledger", "ledger ", "report ", "Exit codes"]  # fmt: skip
    order = [f" {word}" for word in order]
    at = [text.index(word) for word in order]
    assert at == sorted(at)
    bare = run()
    assert bare.exit_code == Code.USAGE and "Start here" in bare.output


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name) -> None:
    assert "as_json" in TOLD[name], f"{name} needs an option --json (shell.AsJson)"
    result = run(*name.split(), "--help")
    assert result.exit_code == 0 and "--json" in result.output
    for param in TOLD[name].values():
        if param.name != "help":
            assert getattr(param, "help", None), f"{name}: {param.name} has no help"


@pytest.mark.slow
def test_completion_knows_the_commands() -> None:
    asked = {"_DEMUR_COMPLETE": "complete_bash", "COMP_WORDS": "demur led",
             "COMP_CWORD": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from demur.cli import app; app(prog_name='demur')"],
        env=os.environ | asked, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["ledger"], done.stderr
    assert "--install-completion" in run("--help").output


# -- what a command loads ------------------------------------------------------------

FRAMEWORKS = ["jax", "sklearn", "numba", "matplotlib", "pyarrow", "torch"]
LIBRARIES = ["numpy", "scipy", "sqlalchemy", *FRAMEWORKS]


def loaded_by(arguments, names) -> list[str]:
    """Which of `names`, and which modules of engines, one run of `demur` loads."""
    script = (
        "import sys\nfrom demur.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        "engine = ('convex', 'cluster', 'unlearning', 'training', 'mechanisms')\n"
        "deep = [n for n in sys.modules if n.startswith('demur.') and n.count('.') > 1"
        " and n.split('.')[1] in engine and not n.endswith('.errors')]\n"
        f"print('LOADED', *[n for n in {names} if n in sys.modules], *deep)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split("LOADED")[1].split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "names"),
    [("--help", LIBRARIES), ("version", LIBRARIES), ("ledger show", FRAMEWORKS)],
)
def test_a_light_command_loads_no_engine(command, names, home, args) -> None:
    given = args(command) if command in right(home) else []
    assert loaded_by([*command.split(), *given], names) == []


@pytest.mark.slow
def test_the_check_of_what_is_loaded_sees_an_engine(args) -> None:
    assert loaded_by(["reports", "inspect", *args("reports inspect")], LIBRARIES)


# -- JSON ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("train", "reports sweep", "unlearn run")
        else name
        for name in COMMANDS
        if name not in HEAVY
    ],
)
def test_json_is_all_of_stdout(name, args) -> None:
    result = run(*name.split(), *args(name), "--json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict)


def test_a_written_file_is_named_in_the_json(home, args) -> None:
    result = run("head", "fit", *args("head fit"), "--json")
    told = json.loads(result.stdout)
    assert told["written"] == f"{home}/out/head.npz"
    assert told["entry"]["recorded"] and "protects a move" in told["entry"]["statement"]


# -- errors --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_wrong_usage(name) -> None:
    result = run(*name.split(), "--no-such-option")
    assert is_one_line(result, Code.USAGE)
    assert "No such option" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n, p in TOLD.items() if any(one.required for one in p.values())]
)
def test_a_missing_argument_is_wrong_usage(name) -> None:
    assert is_one_line(run(*name.split()), Code.USAGE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "position"), FILES)
@pytest.mark.parametrize("kind", ["missing", "garbage", "empty", "folder"])
def test_a_file_that_is_not_what_it_should_be(
    name, position, kind, home, args, tmp_path
) -> None:
    given = args(name) if name in right(home) else ["x"] * (position + 1)
    old = given[position]
    suffix = os.path.splitext(old)[1]
    bad = tmp_path / f"bad{suffix}"
    if kind == "garbage":
        bad.write_bytes(bytes(range(256)) * 9)
    elif kind == "empty":
        bad.write_bytes(b"")
    elif kind == "folder":
        bad.mkdir()
    given[position] = str(bad)
    before = sorted(p.name for p in tmp_path.iterdir())
    result = run(*name.split(), *given)
    assert is_one_line(result, Code.ERROR)
    assert words(result).startswith("error:"), result.output
    assert "unexpected" not in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert list((home / "out").iterdir()) == []
    asked = run(*name.split(), *given, "--json")
    told = json.loads(asked.stdout)
    assert told["exit_code"] == asked.exit_code == Code.ERROR
    assert told["error"]["message"] in words(result)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), FLOATS)
def test_not_a_number_is_refused_before_anything_is_made(
    name, option, home, args
) -> None:
    given = args(name) if name in right(home) else []
    if option in given:
        at = given.index(option)
        given[at + 1] = "nan"
    else:
        given += [option, "nan"]
    result = run(*name.split(), *given)
    assert is_one_line(result, Code.ERROR, Code.USAGE)
    assert "unexpected" not in result.stderr
    assert list((home / "out").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("table", ["epsilon = 4.0", "learning_rate = 0.5"])
def test_not_a_number_in_a_config(table, home, tmp_path) -> None:
    text = CONFIG.replace(table, f"{table.split()[0]} = nan")
    (tmp_path / "config.toml").write_text(text)
    (tmp_path / "train.npz").write_bytes((home / "train.npz").read_bytes())
    (tmp_path / "out").mkdir()
    assert is_one_line(run("train", tmp_path / "config.toml"), Code.ERROR)
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "model.npz").exists()


@pytest.mark.slow
def test_declined_is_three(args) -> None:
    given = args("reports make")
    assert run("reports", "make", *given).exit_code == Code.DONE
    again = run("reports", "make", *given, "--overwrite", "--json")
    assert is_one_line(again, Code.DECLINED)
    told = json.loads(again.stdout)
    assert told["error"]["kind"] == "BudgetExceeded" and told["exit_code"] == 3
    assert "nothing was spent" in told["error"]["message"]


def test_a_defect_of_ours_is_one_line_too(home, monkeypatch) -> None:
    def broken(*_, **__):
        raise KeyError("oops")

    monkeypatch.setattr("demur.ledger.Ledger.open", broken)
    result = run("ledger", "show", home / "ledger.db")
    assert is_one_line(result, Code.ERROR)
    assert "unexpected KeyError" in words(result)
    assert "DEMUR_TRACEBACK" in words(result)
    monkeypatch.setenv("DEMUR_TRACEBACK", "1")
    assert isinstance(run("ledger", "show", home / "ledger.db").exception, KeyError)


@pytest.mark.slow
def test_markup_in_a_label_is_text(tmp_path, home) -> None:
    given = right(home)["reports make"][:1] + [str(tmp_path / "o.parquet")]
    ledger = ["--ledger", str(tmp_path / "b.db"), "--label", "[bold]not[/bold] [/x]"]
    done = run("reports", "make", *given, *right(home)["reports make"][2:-2], *ledger)
    assert done.exit_code == 0, done.output
    assert "[bold]not[/bold] [/x]" in words(done)
    shown = run("ledger", "show", tmp_path / "b.db")
    assert shown.exit_code == 0 and "[bold]" in shown.output
