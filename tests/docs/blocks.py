"""The fenced blocks of a page, and running them as a reader would."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.programs import commands, python

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\s*?$",
    re.MULTILINE | re.DOTALL,
)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
# What noise may move a printed figure by: absolutely, and relative to its size. Figures
# of the pages are accuracies and places in a cube, with deviations below 0.02.
_ABSOLUTE, _RELATIVE = 0.1, 0.1


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the line it begins at."""

    page: str
    line: int
    language: str
    text: str

    @property
    def is_doctest(self) -> bool:
        """Whether pytest runs it where it stands."""
        return ">>> " in self.text

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found["language"], found[3])
        for found in _FENCE.finditer(text)
    ]


def with_expected(blocks: list[Block]) -> list[tuple[Block, Block | None]]:
    """Each block that can be run, and what it prints: the `text` or `output` behind it.

    `text` is exact up to white space and `...`; the numbers of `output` are those of
    one run, and another draw of the noise gives others near them.
    """
    pairs: list[tuple[Block, Block | None]] = []
    for block in blocks:
        if block.language in ("text", "output") and pairs and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], block)
        else:
            pairs.append((block, None))
    return [pair for pair in pairs if pair[0].language in ("python", "sh")]


def check_output(block: Block, expected: Block | None, printed: str) -> None:
    """Raise AssertionError if the page promises another output; `...` is anything."""
    if expected is None:
        return
    wanted, got, near = expected.text, printed, True
    if expected.language == "output":
        mine, theirs = (_NUMBER.findall(text) for text in (wanted, got))
        near = len(mine) == len(theirs) and all(map(_near, mine, theirs))
        wanted, got = (_words(text) for text in (wanted, got))
    same = doctest.OutputChecker().check_output(wanted, got, _FLAGS)
    assert same and near, f"{expected} says\n{expected.text}\n{block} prints\n{printed}"


def _near(wanted: str, got: str) -> bool:
    gap = abs(float(got) - float(wanted))
    return gap <= max(_ABSOLUTE, _RELATIVE * abs(float(wanted)))


def _words(text: str) -> str:
    """A text without its figures."""
    return _NUMBER.sub("0", text)


def run_alone(block: Block, folder: Path) -> str:
    """What the block prints as a program of its own, in an empty folder."""
    script = folder / "copied.py"
    script.write_text(block.text)
    done = subprocess.run(
        [*python(), "-W", "error", script],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{block} failed:\n{done.stderr}"
    return done.stdout


def run_page(pairs: list[tuple[Block, Block | None]], folder: Path) -> None:
    """Run a page from top to bottom: one Python session and one shell, one folder."""
    session: dict[str, object] = {"__name__": "__main__"}
    place, installed = folder / ".commands", Path(sys.executable).parent
    tools = place if place.exists() else commands(place)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(tools), str(installed), os.environ["PATH"]]),
        "PYTHONWARNINGS": "error",
        "COLUMNS": "100",
    }
    with contextlib.chdir(folder):
        for block, expected in pairs:
            if block.language == "python":
                printed = _executed(block, session)
            else:
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", block.text],
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, f"{block} failed:\n{done.stderr}"
                printed = done.stdout
            check_output(block, expected, printed)


def _executed(block: Block, session: dict[str, object]) -> str:
    # Line numbers of a traceback are those of the page.
    code = compile("\n" * block.line + block.text, block.page, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, session)
    return printed.getvalue()
