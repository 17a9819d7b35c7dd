"""The how-to pages run from top to bottom, and no page holds code that nobody runs."""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of, run_page, with_expected

DOCS = ROOT / "docs"
HOWTO = sorted((DOCS / "howto").glob("*.md"))
# Fragments that show how calls fit together, with names of the reader's own.
FRAGMENTS = {"docs/audit.md": 1}
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    if "spark" in page.stem:
        return [pytest.mark.slow, pytest.mark.spark]
    several = page.stem == "train_on_several_processes"  # as tests.training.processes
    return [pytest.mark.deep if several else pytest.mark.slow]


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    """Where a reader follows one page after the other."""
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.stem,
            marks=marks_of(page),
        )
        for page in HOWTO
    ],
)
def test_the_page_runs_and_prints_what_it_says(page, one_folder, request):
    if "DEMUR_LEDGER" in page.read_text():
        request.getfixturevalue("ledger_on_a_server")
    if "pyspark" in page.read_text():
        request.getfixturevalue("spark_here")
    run_page(with_expected(blocks_of(page)), one_folder)


def ledgers_of(text: str) -> set[str]:
    """Names of files of ledgers and services that a page makes or opens."""
    return set(re.findall(r"(?<![\w/])[\w-]+\.db\b", text))


def test_no_two_pages_share_a_ledger():
    """Two pages with one name would meet each other's terms in one folder."""
    homes: dict[str, str] = {}
    shared = []
    for page in HOWTO:
        for name in ledgers_of("".join(block.text for block in blocks_of(page))):
            if homes.setdefault(name, page.stem) != page.stem:
                shared.append(f"{name} of {page.stem} and {homes[name]}")
    assert shared == []
    assert ledgers_of("open('visits.db'), /srv/model.db") == {"visits.db"}


def is_idle(block: Block, *, copied: bool) -> bool:
    """Whether a block holds Python that no test runs."""
    if block.language == "python":
        return block.is_doctest == copied
    return block.is_doctest


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_block_of_python_is_run(page):
    """In README.md and the how-to pages as it stands, elsewhere as a doctest."""
    blocks = blocks_of(page)
    assert "```" not in re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())
    run_as_it_is = page in HOWTO or page.name == "README.md"
    idle = [str(block) for block in blocks if is_idle(block, copied=run_as_it_is)]
    allowed = FRAGMENTS.get(page.relative_to(ROOT).as_posix(), 0)
    assert len(idle) <= allowed, f"nobody runs {idle}"


def test_idle_blocks_are_found(tmp_path):
    """Sabotaged twins: a fragment, and an example in a block of another language."""
    for text in ("```python\nf(x)\n```\n", "```text\n>>> 1\n1\n```\n"):
        (tmp_path / "page.md").write_text(text)
        (block,) = blocks_of(tmp_path / "page.md")
        assert is_idle(block, copied=False)


def page_of(folder: Path, text: str) -> list[tuple[Block, Block | None]]:
    (folder / "page.md").write_text(text)
    return with_expected(blocks_of(folder / "page.md"))


def test_a_page_shares_its_session_and_its_folder(tmp_path):
    page = (
        "```python\nfrom pathlib import Path\n_ = Path('a.txt').write_text('six')\n"
        "seven = 7\n```\n"
        "```sh\ncat a.txt\n```\n```text\nsix\n```\n"
        "```python\nprint(seven)\n```\n```text\n7\n```\n"
    )
    run_page(page_of(tmp_path, page), tmp_path)


@pytest.mark.parametrize(
    ("sabotage", "caught"),
    [
        ("```python\nprint(6)\n```\n```text\n7\n```\n", "page.md:4 says"),
        ("```sh\necho six\n```\n\n```text\nseven\n```\n", "page.md:5 says"),
        ("```sh\nfalse\ntrue\n```\n", "failed"),
        ("```sh\nfalse | true\n```\n", "failed"),
    ],
)
def test_a_wrong_page_is_caught(tmp_path, sabotage, caught):
    with pytest.raises(AssertionError, match=caught):
        run_page(page_of(tmp_path, sabotage), tmp_path)


@pytest.mark.slow
def test_opacus_prices_the_run_as_the_page_says():
    """The two figures on the page about moving from Opacus."""
    accountants = pytest.importorskip("opacus.accountants", reason="machine: opacus")
    page = (DOCS / "howto" / "move_from_opacus_or_jax_privacy.md").read_text()
    told = re.search(r"answers (\S+) with its PRV .* (\S+) with the RDP", page)
    assert told is not None
    for name, figure in zip(
        ("PRVAccountant", "RDPAccountant"), told.groups(), strict=True
    ):
        accountant = getattr(accountants, name)()
        accountant.history = [(1.1, 0.01, 6000)]
        assert f"{accountant.get_epsilon(1e-5):.2f}" == figure
