"""`demur` inside this process, as `typer.testing.CliRunner` runs it.

That runner builds the whole tree of commands for every run, which takes longer than
most of the commands do. Here it is built once, as it is in a process of a user.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import typer.main
from typer.testing import CliRunner, Result

from demur.cli import app


@cache
def tree() -> Any:
    """All commands."""
    return typer.main.get_command(app)


def run(*arguments: object, input: str | None = None) -> Result:
    """What `demur` with these arguments prints, and how it ends."""
    runner, command = CliRunner(), tree()
    code, error = 0, None
    with runner.isolation(input=input) as streams:
        try:
            command.main(
                args=[str(each) for each in arguments],
                prog_name=runner.get_default_prog_name(command),
            )
        except SystemExit as end:
            assert end.code is None or isinstance(end.code, int), end.code
            code = end.code or 0
            error = end if code else None
        except Exception as unexpected:
            code, error = 1, unexpected
        sys.stdout.flush()
        sys.stderr.flush()
        out, told, both = (stream.getvalue() for stream in streams)
    return Result(runner, out, told, both, None, code, error)
