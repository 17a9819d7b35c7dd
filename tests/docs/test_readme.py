"""The README's programs run as they are when copied into a new file."""

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of, check_output, run_alone
from tests.docs.blocks import with_expected as paired

README = ROOT / "README.md"
PROGRAMS = [pair for pair in paired(blocks_of(README)) if pair[0].language == "python"]
LONGEST = 12
MOST_WORDS = 760  # half of what it had before 2026-11-18


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda pair: str(pair[0]))
def test_a_copied_program_runs_and_prints_what_the_page_says(program, tmp_path):
    block, expected = program
    check_output(block, expected, run_alone(block, tmp_path))


def test_there_are_four_short_ones_each_with_its_output():
    assert len(PROGRAMS) == 4
    for block, expected in PROGRAMS:
        assert len(block.text.splitlines()) <= LONGEST, f"{block} is too long"
        assert expected is not None, f"{block} does not say what it prints"
        assert not block.is_doctest, f"{block} cannot be copied with its prompts"


def test_it_is_short_and_says_what_it_is_first():
    text = README.read_text()
    assert len(text.split()) <= MOST_WORDS
    first = text.split("\n\n")[1]
    assert "**differential privacy**" in first.split(":")[0]
    for page in ("index.md", "concepts.md"):
        opening = (ROOT / "docs" / page).read_text()[:1200]
        assert "ifferential privacy" in opening, page


def test_a_program_that_needs_the_one_before_is_caught(tmp_path):
    """Sabotaged twins: a name of another block, a wrong output, a warning."""
    for text in ("print(ledger)\n", "import warnings; warnings.warn('old')\n"):
        with pytest.raises(AssertionError, match="failed"):
            run_alone(Block("twin.md", 1, "python", text), tmp_path)
    block = Block("twin.md", 1, "python", "print('epsilon 1.7')\n")
    printed = run_alone(block, tmp_path)
    check_output(block, Block("twin.md", 4, "text", "epsilon 1...\n"), printed)
    check_output(block, Block("twin.md", 4, "output", "epsilon 1.65\n"), printed)
    for wrong in (
        Block("twin.md", 4, "text", "epsilon 1.6\n"),
        Block("twin.md", 4, "output", "epsilon 2.1\n"),
        Block("twin.md", 4, "output", "delta 1.7\n"),
    ):
        with pytest.raises(AssertionError, match=r"twin\.md:4 says"):
            check_output(block, wrong, printed)
