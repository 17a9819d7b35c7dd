"""The notebooks run, and what is stored in them is what they show."""

import pytest

from tests.docs.blocks import Block, check_output
from tools import notebooks

NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def shown(outputs: list[dict]) -> str:
    """The text of a cell's outputs: printed lines, and the message of an error."""
    parts = []
    for output in outputs:
        if output["output_type"] == "stream":
            parts.append("".join(output["text"]))
        elif output["output_type"] == "error":
            parts.append("\n".join(output["traceback"]) + "\n")
        else:
            kinds = " ".join(sorted(output["data"]))
            parts.append(f"{kinds}\n")
    return "".join(parts)


def differences(stored: list[list[dict]], fresh: list[list[dict]]) -> None:
    """Raise AssertionError if a cell shows other words, or figures far from these."""
    for number, (kept, now) in enumerate(zip(stored, fresh, strict=True)):
        cell = Block(f"cell {number}", 0, "python", "")
        wanted = Block(f"cell {number}", 0, "output", _steady(shown(kept)))
        check_output(cell, wanted, _steady(shown(now)))


def _steady(text: str) -> str:
    """Without ids, hashes and dates, which are new each time."""
    lines = [line for line in text.splitlines() if not _is_new(line)]
    return "\n".join(lines) + "\n"


def _is_new(line: str) -> bool:
    return any(word in line for word in ("Recorded as entry", "tip ", "of service"))


def test_there_is_one_for_each_engine_and_one_for_officers():
    assert [path.stem for path in NOTEBOOKS] == [
        "cluster_local_reports",
        "delete_a_person",
        "for_privacy_officers",
        "publish_a_classifier",
        "train_a_network",
    ]


# The README has this fit too, and it takes three seconds.
LONG = {"cluster_local_reports"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.deep if path.stem in LONG else ())
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_shows_what_is_stored(path, tmp_path):
    stored = notebooks.outputs_of(path)
    assert any(stored), "run python -m tools.notebooks"
    differences(stored, notebooks.run(notebooks.cells_of(path), tmp_path))


def test_a_decline_takes_three_lines_in_every_notebook():
    errors = [
        output["traceback"]
        for path in NOTEBOOKS
        for outputs in notebooks.outputs_of(path)
        for output in outputs
        if output["output_type"] == "error"
    ]
    assert len(errors) == 2 and all(len(lines) <= 3 for lines in errors)


def test_wrong_notebooks_are_caught(tmp_path):
    """Sabotaged twins: other words, a cell that fails, one that was to fail."""
    cells = [notebooks.Cell("code", "print('epsilon 1.5')")]
    fresh = notebooks.run(cells, tmp_path)
    differences(fresh, fresh)
    other = [notebooks.Cell("code", "print('delta 1.5')")]
    with pytest.raises(AssertionError, match="says"):
        differences(notebooks.run(other, tmp_path), fresh)
    with pytest.raises(NameError):
        notebooks.run([notebooks.Cell("code", "missing")], tmp_path)
    with pytest.raises(AssertionError, match="was to fail"):
        notebooks.run([notebooks.Cell("code", "1", raises=True)], tmp_path)
