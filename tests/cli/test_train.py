"""`demur train CONFIG.toml`, from a file to a file."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from demur.ledger import Ledger
from tests import commands

CONFIG = """
[data]
train = "train.npz"
test = "test.npz"
features = "x"
label = "y"
examples = 400
classes = 3

[model]
kind = "mlp"
hidden = [8]

[privacy]
epsilon = 8.0
delta = 1e-4
unit = "add_or_remove_one"

[training]
steps = 40
batch_size = 80
learning_rate = 1.0
momentum = 0.5

[output]
model = "model.npz"
ledger = "ledger.db"
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    centres = 2.0 * np.eye(3, 6)
    for name, n in (("train", 400), ("test", 120)):
        y = np.arange(n) % 3
        x = (centres[y] + 0.4 * rng.normal(size=(n, 6))).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        rows = pa.FixedSizeListArray.from_arrays(x.reshape(-1), 6)
        pa.parquet.write_table(pa.table({"x": rows, "y": y}), tmp_path / f"{name}.pq")
        (tmp_path / f"{name}.pq").rename(tmp_path / f"{name}.parquet")
    return tmp_path


def run(folder, text):
    (folder / "config.toml").write_text(text)
    new = ["--create", "--budget", "add_or_remove_one:8:1e-4"]
    return commands.run("train", folder / "config.toml", *new)


def words(result):
    """The output with line breaks taken out."""
    return " ".join(result.output.split())


@pytest.mark.slow
def test_a_model_is_trained_recorded_and_written(folder):
    result = run(folder, CONFIG)
    assert result.exit_code == 0, result.output
    assert "protects the presence or absence of one record" in words(result)
    accuracy = float(words(result).split("test file: ")[1].split()[0])
    assert accuracy > 0.9
    with np.load(folder / "model.npz") as model:
        assert {model[name].shape for name in model.files} == {
            (6, 8),
            (8,),
            (8, 3),
            (3,),
        }
    with Ledger.open(folder / "ledger.db") as ledger:
        assert 7.8 < ledger.epsilon() <= 8.0
    again = run(folder, CONFIG)
    assert again.exit_code == 3 and "Declined" in words(again)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {'"train.npz"': '"train.parquet"', '"test.npz"': '"test.parquet"'},
        pytest.param(
            {
                'kind = "mlp"\nhidden = [8]': 'kind = "transformer"\nvocabulary = 4\n'
                "width = 8\nheads = 2\nlayers = 1",
                "[data]": "[data]\ndivide_by = 1",
            },
            marks=pytest.mark.deep,
        ),
    ],
    ids=["parquet", "transformer"],
)
def test_other_files_and_models(folder, changes):
    text = CONFIG.replace("steps = 40", "steps = 5")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    if "transformer" in text:
        text = text.replace("divide_by = 1\n", "")
        for name in ("train", "test"):
            with np.load(folder / f"{name}.npz") as file:
                x, y = np.abs(file["x"]).astype(np.int32) % 4, file["y"]
            np.savez(folder / f"{name}.npz", x=x, y=y)
    result = run(folder, text)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("content", [b"x,y\n1,0\n2,1\n", b"PK\x03\x04\xff\xfe\x00"])
def test_a_file_that_is_no_toml_is_named(tmp_path, content):
    """A table of data, or one that is no text, in the place of the settings."""
    (tmp_path / "rows.csv").write_bytes(content)
    result = commands.run("train", tmp_path / "rows.csv")
    assert result.exit_code == 1 and "Traceback" not in result.output
    said = result.output.replace("\n", "").replace(" ", "")
    parts = ["rows.csv is no TOML file", "under [data] train", "Nothing was spent."]
    assert all(part.replace(" ", "") in said for part in parts), said


@pytest.mark.slow
@pytest.mark.parametrize(
    "old, new, said",
    [
        ("epsilon = 8.0", "epsilom = 8.0", "has no settings"),
        ("epsilon = 8.0\n", "", "needs the settings"),
        ("[model]", "[modle]", "not a table"),
        ('"mlp"', '"rnn"', "mlp, cnn, transformer or text"),
        ('"train.npz"', '"gone.npz"', "no file"),
        ("batch_size = 80", "batch_size = 800", "at most examples"),
        ("delta = 1e-4", "delta = 2.0", "delta"),
        ("add_or_remove_one", "add_or_remove_two", "neighboring_relation"),
    ],
)
def test_a_bad_file_is_one_clear_line(folder, old, new, said):
    assert old in CONFIG
    result = run(folder, CONFIG.replace(old, new))
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert said in words(result)
    assert not (folder / "ledger.db").exists() and not (folder / "model.npz").exists()
