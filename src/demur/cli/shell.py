"""Base of all commands: consoles, JSON, exit codes, errors in one line.

A command is a function registered on an `App`. Whatever it raises becomes one line on
stderr (and, with --json, one JSON object on stdout) and an exit code:

    0    done
    1    an error: bad input, a missing or damaged file, a check that failed
    2    wrong usage: an unknown option, a missing argument
    3    declined by a budget, a deletion capacity or an officer, or waiting for
         approval; nothing was spent
    130  interrupted (Ctrl-C); the message says what is spent and how to go on
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from demur.errors import (
    ApprovalDeclined,
    ApprovalPending,
    BudgetExceeded,
    CapacityExhausted,
    DemurError,
)
from demur.report.text import json_data

if TYPE_CHECKING:
    from demur.core.entry import Entry

console = Console(soft_wrap=False)
errors = Console(stderr=True)

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables and sentences.")
]
_TRACEBACK = "DEMUR_TRACEBACK"
# Errors that bad input causes, here or in a library; others are defects of demur.
_EXPECTED = (
    DemurError,
    ValueError,
    TypeError,
    OSError,
    ArithmeticError,
    ImportError,
    MemoryError,
)


_HIDDEN = re.compile(r"^\.(.+?)(\.\d+)?\.[0-9a-f]{8}\.part(ial)?$")
_DECLINED = (BudgetExceeded, CapacityExhausted, ApprovalPending, ApprovalDeclined)


class Code(IntEnum):
    """Exit codes."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    DECLINED = 3
    INTERRUPTED = 130


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what is spent and how to go on."""


class Command(TyperCommand):
    """A command that never ends in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an exception becomes one line and an exit code."""
        as_json = bool(ctx.params.get("as_json"))
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except KeyboardInterrupt as stop:
            message = str(stop) or "Nothing was spent."
            _fail(
                as_json, "Interrupted", message, Code.INTERRUPTED, word="interrupted:"
            )
        except Exception as error:
            if os.environ.get(_TRACEBACK):
                raise
            code = Code.DECLINED if isinstance(error, _DECLINED) else Code.ERROR
            message = _in_options(_message(error), self)
            _fail(as_json, type(error).__name__, message, code)


class App(typer.Typer):
    """A group of commands, each a `Command`."""

    def command(
        self, name: str | None = None, *, cls: Any = None, **given: Any
    ) -> Callable[[Any], Any]:
        """Typer's decorator, with one-line errors and help that wraps at any width."""

        def register(function: Any) -> Any:
            given.setdefault("help", _flowing(function.__doc__))
            decorate = super(App, self).command(name, cls=cls or Command, **given)
            return decorate(function)

        return register


class Contents(TyperGroup):
    """The main group: its help lists commands in a fixed order."""

    order = ("tour", "doctor", "version", "head", "reports", "unlearn", "train",
             "ledger", "report", "evidence", "serve", "token", "audit")  # fmt: skip

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands of `order`, then any others."""
        known = [name for name in self.order if name in self.commands]
        return known + [name for name in self.commands if name not in known]


def json_text(data: Any) -> str:
    """Data as JSON text; an infinite number is the word "inf"."""
    return json.dumps(json_data(data), indent=2, allow_nan=False)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json_text(data))


def written(path: object) -> None:
    """Print where a file was written, in one line that can be copied."""
    console.print(f"written: {escape(str(path))}", soft_wrap=True, highlight=False)


def entry_facts(entry: Entry) -> dict[str, Any]:
    """An entry as JSON data, with its statement."""
    return {
        "label": entry.label,
        "sequence": entry.sequence if entry.durable else None,
        "id": entry.id,
        "recorded": entry.durable,
        "private": entry.private,
        "statement": entry.statement(),
    }


def progress_console() -> Console:
    """The console for progress bars: stderr, so that stdout holds only the result."""
    return Console(stderr=True)


def _flowing(text: str | None) -> str | None:
    """Each paragraph in one line; lists and indented lines are unchanged."""
    if not text:
        return None
    return re.sub(r"(?<=\S)\n(?=[^\s-])", " ", inspect.cleandoc(text))


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        given = os.fspath(error.filename2 or error.filename)
        # A file has a hidden name until it is whole and moved to its place.
        folder, name = os.path.split(given)
        place = os.path.join(folder, _HIDDEN.sub(r"\1", name))
        if isinstance(error, FileNotFoundError):
            what = "there is no file" if place == given else "no file can be made at"
            return f"{what} {place}"
        if isinstance(error, IsADirectoryError):
            return f"{place} is a folder: name a file in it"
        if isinstance(error, NotADirectoryError):
            return f"{place}: a part of this path is a file, not a folder"
        if isinstance(error, PermissionError):
            if place != given or not (os.path.exists(given) or _writable(folder)):
                return (
                    f"you may not write into the folder {folder or '.'}: choose another"
                    " place, or ask its owner"
                )
            return (
                f"{place} may not be read or written by you: choose another place, or"
                " ask its owner"
            )
        notes = "".join(f". {note}" for note in getattr(error, "__notes__", ()))
        return f"{place}: {error.strerror or type(error).__name__}{notes}"
    said = (str(error), *getattr(error, "__notes__", ()))
    # A line that ends without a stop is a sentence, if another one follows.
    text = re.sub(r"(?<=[\w)\]'\"])\n+(?=[A-Z])", ". ", " ".join(said))
    message = " ".join(text.split()) or type(error).__name__
    if isinstance(error, _EXPECTED):
        return message
    return (
        f"unexpected {type(error).__name__}: {message[:300]} (a defect of demur;"
        f" {_TRACEBACK}=1 shows the traceback)"
    )


def _writable(folder: str) -> bool:
    return os.access(folder or ".", os.W_OK) or not os.path.isdir(folder or ".")


def _in_options(message: str, command: Any) -> str:
    """A message of the library, with this command's options for its keywords.

    A keyword stands as `memory_key=` or `on_exhausted='queue'`, or at the beginning, as
    in "epsilon must be positive".
    """
    options = {
        option.lstrip("-").replace("-", "_"): option
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }

    def as_option(keyword: re.Match[str]) -> str:
        name, value = keyword.groups(default="")
        if name == "limits":
            found = [o for o in options.values() if o.startswith("--limit-")]
            return ", ".join(found) or keyword[0]
        return f"{options[name]} {value}".strip() if name in options else keyword[0]

    def named(first: re.Match[str]) -> str:
        return re.sub("[a-z_]+", lambda m: options.get(m[0], m[0]), first[0])

    message = re.sub(r"^[a-z_]+(?: and [a-z_]+)?(?= must be )", named, message)
    return re.sub(r"(?<![\w/.-])([a-z_]+)=(?:'([a-z]+)')?(?![\w/])", as_option, message)


def _fail(
    as_json: bool, kind: str, message: str, code: Code, *, word: str = "error:"
) -> None:
    line = f"[bold red]{word}[/] {escape(message)}"
    errors.print(line, highlight=False, soft_wrap=True)
    if as_json:
        error = {"kind": kind, "message": message}
        print_json({"error": error, "exit_code": int(code)})
    raise typer.Exit(int(code))


@contextmanager
def fitting_bar(visible: bool = True) -> Iterator[Callable[[int, float], None]]:
    """A progress bar that follows the gradient norm, or the steps; or no bar."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = progress_console()
    with Progress(
        *columns, console=console, transient=True, disable=not visible
    ) as progress:
        task = progress.add_task("fitting", total=1.0)

        def show(step: int, share: float) -> None:
            progress.update(task, completed=share, description=f"fitting, step {step}")

        yield show
