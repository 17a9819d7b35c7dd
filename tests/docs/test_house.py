"""The architecture page's table, its pictures and the rules that can be counted."""

import ast
import re
from collections import Counter

import pytest

from tests.docs.blocks import ROOT
from tools import house, house_pictures, idea_picture

MOST_MODULES, MOST_LINES = 20, 450


def crowded(files: dict[str, int]) -> list[str]:
    """Folders with too many modules and modules with too many lines."""
    per_folder = Counter(name.rpartition("/")[0] for name in files)
    return [
        *(folder for folder, count in per_folder.items() if count > MOST_MODULES),
        *(name for name, lines in files.items() if lines > MOST_LINES),
    ]


def test_the_table_on_the_page_is_that_of_the_tree():
    page = house.PAGE.read_text()
    assert house.with_table(page) == page, "run python -m tools.house --write"


def test_a_stale_table_is_noticed():
    """The twin: a module that is gone, a line that was reworded."""
    page = house.PAGE.read_text()
    name = "| `payment` |"
    assert page.count(name) == 1
    assert house.with_table(page.replace(name, "| `remittance` |")) == page


def test_every_module_says_what_is_in_it():
    silent = [name for name, path in house.modules() if not house.first_line(path)]
    assert not silent


def test_folders_and_modules_stay_small():
    files = {name: len(path.read_text().splitlines()) for name, path in house.modules()}
    assert len(files) > 400
    assert crowded(files) == []


def test_a_crowded_folder_and_a_long_module_are_noticed():
    many = {f"room/{i}.py": 10 for i in range(MOST_MODULES + 1)}
    assert crowded(many) == ["room"]
    assert crowded({"room/long.py": MOST_LINES + 1}) == ["room/long.py"]


def test_nothing_public_is_without_a_docstring():
    assert house.undocumented() == []


def test_tests_that_run_apart_are_all_named():
    """`make test` collects them by their files."""
    makefile = (ROOT / "Makefile").read_text()
    marked = {
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^(@|pytestmark.*)pytest\.mark\.serial", path.read_text(), re.M)
    }
    assert len(marked) >= 2
    for path in marked:
        assert f" {path}" in makefile or f" {path.parent} " in makefile, path


def test_signatures_are_narrow_but_for_those_the_page_explains():
    wide = {line.split(":")[1].split(" ")[0] for line in house.signatures()}
    explained = {
        "_ball",
        "clipped_grad",
        "fit",
        "private_radius",
        "Ledger.open",
        "UnlearningService.open",
        "PrivacyOdometer.__init__",
    }
    assert wide == explained


def defined_twice() -> dict[str, list[str]]:
    """Public classes that two modules define under one name."""
    homes: dict[str, list[str]] = {}
    for name, path in house.modules():
        if name.startswith("compat/"):  # the seeds' own names
            continue
        for node in house.parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    return {name: where for name, where in homes.items() if len(where) > 1}


def test_a_class_has_one_home():
    assert defined_twice() == {}


@pytest.mark.slow
def test_the_pictures_are_those_of_the_script(tmp_path):
    drawn = {path.stem: path for path in house_pictures.draw(tmp_path)}
    assert set(drawn) == {"house", "release"}
    for name, path in drawn.items():
        on_page = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
        assert path.read_text() == on_page, "run python -m tools.house --write"
        assert f"images/{name}.svg" in house.PAGE.read_text()


def test_the_pictures_of_the_idea_are_those_of_their_script():
    for name, text in idea_picture.pictures().items():
        assert (idea_picture.IMAGES / name).read_text() == text
