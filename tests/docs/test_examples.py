"""Every example runs from its beginning to its end, as a program of its own."""

import re
import subprocess

import pytest

from tests.docs.blocks import ROOT
from tests.programs import python

pytestmark = pytest.mark.slow
PICTURE = ROOT / "examples" / "epsilon_by_distance.py"
EXAMPLES = sorted({*(ROOT / "examples").glob("[a-z]*.py")} - {PICTURE})


def run(folder, *words):
    done = subprocess.run(
        [*python(), *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# How a network of another library is trained is a test of its adapter, too.
LONG = {"train_flax", "train_equinox"}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.deep if path.stem in LONG else ())
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_an_example_runs(example, tmp_path):
    run(tmp_path, example)


def numbers_in(picture: str) -> str:
    found = re.search(r"epsilon [\d.]+ at distance [\d.]+, [\d.]+ anywhere", picture)
    assert found is not None
    return found[0]


def test_the_picture_of_the_pages_is_what_its_example_draws(tmp_path):
    run(tmp_path, "-W", "error", PICTURE, "x.svg")
    fresh = (tmp_path / "x.svg").read_text()
    kept = (ROOT / "docs" / "images" / "epsilon_by_distance.svg").read_text()
    assert numbers_in(fresh) == numbers_in(kept)
    assert "text/css" in fresh and fresh.count("<path") == kept.count("<path")


def test_an_example_that_fails_is_caught(tmp_path):
    """A sabotaged twin."""
    (tmp_path / "twin.py").write_text("print(undefined)\n")
    with pytest.raises(AssertionError, match="NameError"):
        run(tmp_path, "twin.py")
