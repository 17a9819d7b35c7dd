"""docs/known_bugs.md names tests that exist, and names every test of this folder."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "known_bugs.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def names_in(path):
    """The names of a file's tests, read and not run."""
    place = ROOT / path
    if not place.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.parse(place.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def rows(text):
    """The cells of each row of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {cell[0].strip("| "): cell for cell in cells if cell[0].strip("| ") != "row"}


def check(text):
    table = rows(text)
    assert set(table) == {str(i) for i in range(1, 29)} | set("abcdefg")
    for name, cells in table.items():
        assert len(cells) == 4, name
        caught = NAMED.findall(cells[3])
        assert caught, f"row {name} names no test"
        for path, test in caught:
            assert test in names_in(path), f"row {name}: {path}::{test} is not there"


@pytest.mark.slow
def test_every_row_names_tests_that_exist():
    text = PAGE.read_text()
    check(text)
    for wrong in (
        text.replace("test_row_04_threads", "test_row_04_thread"),
        text.replace("tests/core/test_bounds.py", "tests/core/bounds.py"),
        re.sub(r"\n\| 13 .*", "", text),
        re.sub(r"(\n\| d .*? \| .*? \| .*? \|).*", r"\1 nothing |", text),
    ):
        assert wrong != text
        with pytest.raises(AssertionError):
            check(wrong)


def test_every_test_of_this_folder_is_in_the_table():
    named = set(NAMED.findall(PAGE.read_text()))
    for place in sorted(Path(__file__).parent.glob("test_*.py")):
        path = str(place.relative_to(ROOT))
        for test in names_in(path) if place != Path(__file__) else ():
            assert (path, test) in named, f"{path}::{test}"
