"""Every `demur ...` line of the pages names a command and options that exist."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from demur.cli import app
from tests.docs.blocks import ROOT

PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
]
COMMANDS = get_command(app)
# A line of a code block, fenced or indented, with its continuations.
_COMMAND = re.compile(r"^ *(demur (?:.*\\\n)*.*)$", re.MULTILINE)


def commands_in(text: str) -> list[list[str]]:
    """The words of each command line; remarks are left out."""
    found = []
    for match in _COMMAND.finditer(text):
        line = match[1].replace("\\\n", " ")
        if re.match(r"demur [a-z]", line) and _in_code(text, match.start()):
            found.append(shlex.split(line, comments=True))
    return found


def _in_code(text: str, at: int) -> bool:
    inside_fence = len(re.findall(r"(?m)^ *```", text[:at])) % 2 == 1
    return inside_fence or text[at : at + 4] == "    "


def problem(words: list[str]) -> str | None:
    """What is wrong with a command line, if anything is."""
    command: Any = COMMANDS
    rest = words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"there is no command {' '.join(words)!r}"
        command = command.commands[rest.pop(0)]
    known = {name for param in command.params for name in param.opts}
    known |= {name for param in command.params for name in param.secondary_opts}
    for word in rest:
        if re.match(r"--?[A-Za-z]", word) and word.split("=")[0] not in known:
            return f"{' '.join(words)!r} has no option {word}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_exist(page):
    problems = [problem(words) for words in commands_in(page.read_text())]
    assert [p for p in problems if p is not None] == []


def test_commands_are_found_at_all():
    lines = [words for page in PAGES for words in commands_in(page.read_text())]
    assert len(lines) > 20
    assert {words[1] for words in lines} >= {"head", "ledger", "report", "reports"}


def test_wrong_lines_are_caught():
    """Sabotaged twins: a command and an option that do not exist."""
    text = (
        "    demur ledger shwo ledger.db\n"
        "```sh\ndemur report ledger.db \\\n  --colour red\n```\n"
        "demur is a library\n"
        "    demur ledger show ledger.db   # --json for programs\n"
    )
    first, second, third = (problem(words) for words in commands_in(text))
    assert first is not None and "no command" in first
    assert second is not None and "--colour" in second
    assert third is None
