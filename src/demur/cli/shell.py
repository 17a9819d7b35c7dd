"""What every command shares: consoles, JSON, exit codes, and errors in one line.

A command is a function registered on an `App`. Whatever it raises becomes one line on
stderr (and, with --json, one JSON object on stdout) and an exit code:

    0    done
    1    an error: bad input, a missing or damaged file, a check that does not hold
    2    wrong usage: an unknown option, a missing argument
    3    declined: a budget does not allow it; nothing was spent
    130  interrupted (Ctrl-C); the message says what is spent and how to go on
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from demur.errors import BudgetExceeded, CapacityExhausted, DemurError

if TYPE_CHECKING:
    from demur.core.entry import Entry

console = Console(soft_wrap=False)
errors = Console(stderr=True)

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables and sentences.")
]
_TRACEBACK = "DEMUR_TRACEBACK"
# What bad input leads to, here or in a library; anything else is a defect of ours.
_EXPECTED = (
    DemurError,
    ValueError,
    TypeError,
    OSError,
    ArithmeticError,
    ImportError,
    MemoryError,
)


class Code(IntEnum):
    """How a command ends."""

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
        """Run it; an exception becomes a line and an exit code."""
        as_json = bool(ctx.params.get("as_json"))
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except KeyboardInterrupt as stop:
            said = str(stop) or "Nothing was spent."
            _fail(as_json, "Interrupted", said, Code.INTERRUPTED, word="interrupted:")
        except Exception as error:
            if os.environ.get(_TRACEBACK):
                raise
            code = (
                Code.DECLINED
                if isinstance(error, (BudgetExceeded, CapacityExhausted))
                else Code.ERROR
            )
            _fail(as_json, type(error).__name__, _message(error), code)


class App(typer.Typer):
    """A group of commands, each a `Command`."""

    def command(
        self, name: str | None = None, *, cls: Any = None, **given: Any
    ) -> Callable[[Any], Any]:
        """As typer's, with errors in one line and help that any width can wrap."""

        def register(function: Any) -> Any:
            given.setdefault("help", _flowing(function.__doc__))
            made = super(App, self).command(name, cls=cls or Command, **given)
            return made(function)

        return register


class Contents(TyperGroup):
    """The first page of help, in the order of a table of contents."""

    order = ("tour", "version", "head", "reports", "unlearn", "train", "ledger",
             "report", "audit")  # fmt: skip

    def list_commands(self, ctx: Any) -> list[str]:
        """Known commands in order, then any others."""
        known = [name for name in self.order if name in self.commands]
        return known + [name for name in self.commands if name not in known]


def json_text(data: Any) -> str:
    """Data as JSON; an infinite number is the word "inf"."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json_text(data))


def written(path: object) -> None:
    """Say where a file is, in one line that can be copied."""
    console.print(f"written: {escape(str(path))}", soft_wrap=True, highlight=False)


def entry_facts(entry: Entry) -> dict[str, Any]:
    """An entry for JSON: where it is recorded, and what it promises."""
    return {
        "label": entry.label,
        "sequence": entry.sequence if entry.durable else None,
        "id": entry.id,
        "recorded": entry.durable,
        "private": entry.private,
        "statement": entry.statement(),
    }


def progress_console() -> Console:
    """Where bars are drawn: stderr, so that stdout is the answer alone."""
    return Console(stderr=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _flowing(text: str | None) -> str | None:
    """Paragraphs of one line each; a list or an indented line stays as it is."""
    if not text:
        return None
    return re.sub(r"(?<=\S)\n(?=[^\s-])", " ", inspect.cleandoc(text))


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        place = os.fspath(error.filename)
        if isinstance(error, FileNotFoundError):
            return f"there is no file {place}"
        return f"{place}: {error.strerror or type(error).__name__}"
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, _EXPECTED):
        return said
    return (
        f"unexpected {type(error).__name__}: {said[:300]} (a defect of demur;"
        f" {_TRACEBACK}=1 shows where)"
    )


def _fail(
    as_json: bool, kind: str, said: str, code: Code, *, word: str = "error:"
) -> None:
    errors.print(f"[bold red]{word}[/] {escape(said)}", highlight=False, soft_wrap=True)
    if as_json:
        print_json({"error": {"kind": kind, "message": said}, "exit_code": int(code)})
    raise typer.Exit(int(code))
