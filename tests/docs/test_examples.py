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


# Those in PyTorch run where torch is loaded (tests/adapters/test_torch_modules).
HERE = [path for path in EXAMPLES if not path.stem.startswith("train_torch")]
# How a network of another library is trained is a test of its adapter, too.
LONG = {"train_equinox", "train_keras", "train_linen"}
# What these share (imports, prices) is done once.
TOGETHER = [path for path in HERE if path.stem in ("train_pytree", "train_flax")]
ONE_BY_ONE = """
import runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.deep if path.stem in LONG else ())
        for path in HERE
        if path not in TOGETHER
    ],
    ids=lambda path: path.stem,
)
def test_an_example_runs(example, tmp_path):
    run(tmp_path, example)


def test_examples_of_training_run(tmp_path):
    assert len(TOGETHER) == 2
    (tmp_path / "one_by_one.py").write_text(ONE_BY_ONE)
    run(tmp_path, "one_by_one.py", *TOGETHER)


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
