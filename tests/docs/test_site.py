"""The reference keeps up with the library, and links lead somewhere."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import griffe
import pytest

from tests.docs.blocks import ROOT
from tools import parameter_tables, search_from_disk

PACKAGES = {
    "demur": "index",
    "demur.ledger": "ledger",
    "demur.mechanisms": "mechanisms",
    "demur.mechanisms.correlated": "mechanisms",
    "demur.convex": "convex",
    "demur.cluster": "cluster",
    "demur.unlearning": "unlearning",
    "demur.training": "training",
    "demur.tuning": "tuning",
    "demur.audit": "audit",
    "demur.testing": "testing",
    "demur.adapters": "adapters",
    "demur.adapters.torch": "adapters",
    "demur.adapters.huggingface": "adapters",
    "demur.adapters.equinox": "adapters",
    "demur.adapters.spark": "adapters",
    "demur.report": "adapters",
}
_NAMED = re.compile(r"(?m)^::: ([\w.]+)$")


def described(page: str) -> list[str]:
    return _NAMED.findall((ROOT / "docs" / "api" / f"{page}.md").read_text())


def offered(package: str) -> set[str]:
    """The names that a package offers: what its __init__ takes in as itself.

    That a described name exists is what the strict build looks at.
    """
    source = (ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text()
    flat = re.sub(r"import \(\s*(.*?),?\s*\)", r"import \1", source, flags=re.DOTALL)
    return {name for name, again in re.findall(r"import (\w+) as (\w+)", flat)}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_describes_every_public_name(package):
    # A name that a package above offers too is described once, there.
    above = [package[: dot.start()] for dot in re.finditer(r"\.", package)]
    shared = set().union(*map(offered, above))
    there = {name.removeprefix(f"{package}.") for name in described(PACKAGES[package])}
    assert there >= offered(package) - shared, f"add to docs/api/{PACKAGES[package]}.md"


@pytest.mark.parametrize("page", sorted(set(PACKAGES.values())))
def test_names_stand_below_the_heading_of_their_part(page):
    """Or the table of contents would show a name as a part of its own."""
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
    _, *parts = re.split(r"(?m)^## ", text)
    level = "\n    options:\n      heading_level: 3"
    named = [name for part in parts for name in re.split(r"(?m)^::: ", part)[1:]]
    assert [name for name in named if level not in name] == []


def test_the_page_of_errors_names_them_all():
    page = (ROOT / "docs" / "api" / "errors.md").read_text()
    source = (ROOT / "src" / "demur" / "errors.py").read_text()
    assert set(re.findall(r"\[`(\w+)`\]", page)) == set(
        re.findall(r"import \w+ as (\w+)", source)
    )


def test_examples_become_blocks():
    """In docstrings and on pages; there indented ones, too."""
    tool = runpy.run_path(str(ROOT / "tools" / "fence_examples.py"))
    text = "Adds.\n\n>>> 1 + (\n...     1)\n2\n\nMore.\n\n    >>> 3\n"
    shown = "Adds.\n\n```pycon\n>>> 1 + (\n...     1)\n2\n```\n\nMore.\n\n    >>> 3\n"
    assert tool["fenced"](text) == shown
    page = "```python\n>>> 4\n4\n\n```\n"
    session = "```pycon\n>>> 4\n4\n\n```\n"
    own = shown.replace("    >>> 3\n", "```pycon\n>>> 3\n```\n")
    assert tool["on_page_markdown"](text + page) == own + session
    plain = "Words.\n\n    Cost = a\n\n    >>> 5\n    5\n\n    >>> 6\n\nWords.\n"
    shown = plain.replace(
        "    >>> 5\n    5\n\n    >>> 6\n", "```pycon\n>>> 5\n5\n\n>>> 6\n```\n"
    )
    assert tool["on_page_markdown"](plain) == shown
    printed = "```text\nReleased: ...\n```\n"
    prose = "``` {.text .prose}\nReleased: ...\n```\n"
    assert tool["on_page_markdown"](printed) == prose


@pytest.mark.slow
def test_parameters_have_tables_with_units_and_what_is_private():
    pkg = griffe.load("demur.core.bounds", search_paths=[ROOT / "src"])
    table = parameter_tables.table_of(pkg["to_unit_cube"])
    assert (
        "| `X` | <code>ArrayLike</code> | required | rows | **private** where" in table
    )
    assert "| `low` |" in table and "public: not the data's own" in table
    whole = griffe.load("demur.mechanisms.gaussian", search_paths=[ROOT / "src"])
    release = parameter_tables.table_of(whole["Gaussian.release"])
    assert "| required | the exact value | **private** |" in release
    assert "<code>str &#124; None</code>" in release, "a bar would end the cell"
    stored = griffe.load("demur.core.promise", search_paths=[ROOT / "src"])
    assert "private" not in parameter_tables.table_of(stored["Promise"])[60:]
    source = "LIMIT = 7\ndef f(a: int = LIMIT, *b, c=None): 'Doc.'"
    with griffe.temporary_visited_module(source) as module:
        table = parameter_tables.table_of(module["f"])
    assert "| `a` | <code>int</code> | <code>7</code> |" in table and "`*b`" in table
    assert "what it is" not in table, "no empty columns"


def test_search_from_disk_has_its_index_and_its_worker(tmp_path):
    """As a script, which pages from disk may load; before the theme's own script."""
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text('{"docs": []}')
    search_from_disk.on_post_build(config={"site_dir": tmp_path})
    index = (tmp_path / "search" / "search_index.js").read_text()
    assert index == 'var __index = {"docs": []}'
    theme = '<script src="../assets/javascripts/bundle.1.min.js"></script>'
    page = SimpleNamespace(url="howto/x.html")
    with_it = search_from_disk.on_post_page(f"<body>{theme}</body>", page=page)
    own = '<script src="../javascripts/file_worker.js"></script>'
    assert with_it == f"<body>{own}{theme}</body>"
    assert (ROOT / "docs" / "javascripts" / "file_worker.js").exists()


FIRST = ("README.md", "docs/index.md", "docs/concepts.md", "docs/howto/*.md")


def says_what_it_is(page):
    opening, *_ = re.split(r"(?m)^#{2,} (?!Differential)|^```", page)
    return re.search("differential(ly)? priva", opening, re.IGNORECASE) is not None


def test_pages_say_differential_privacy_before_anything_else():
    pages = [page for place in FIRST for page in ROOT.glob(place)]
    assert len(pages) > 20
    assert [page.name for page in pages if not says_what_it_is(page.read_text())] == []
    assert not says_what_it_is("# Title\n\nNoise.\n\n## On\n\nDifferential privacy\n")


def dead_links(text: str, folder: Path) -> list[str]:
    """Relative links to a file or a heading that is not there."""
    dead = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        page = folder / name
        if not page.exists() or (anchor and anchor not in headings(page.read_text())):
            dead.append(target)
    return dead


def headings(text: str) -> set[str]:
    """Anchors of a page, as GitHub and mkdocs make them."""
    lines = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_outside_of_the_site_lead_somewhere(name):
    """Those inside of docs/ are what the strict build looks at."""
    assert dead_links((ROOT / name).read_text(), ROOT) == []


def test_dead_links_are_found():
    text = (
        "[a](docs/nowhere.md), [b](docs/concepts.md#the-ledger),"
        " [c](docs/concepts.md#x)"
    )
    assert dead_links(text, ROOT) == ["docs/nowhere.md", "docs/concepts.md#x"]
