"""`demur train` on texts: from a table and a local encoder to a model folder."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

from demur import AddOrRemoveOne
from demur.adapters import huggingface
from demur.ledger import Ledger
from tests import commands

pytestmark = pytest.mark.slow

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "the"]
CONFIG = """
[data]
train = "train.csv"
test = "test.parquet"
text = "review"
label = "verdict"
examples = 200
classes = ["bad", "good"]

[model]
kind = "text"
encoder = "encoder"
rank = 2
length = 6

[privacy]
epsilon = 8.0
delta = 1e-3
unit = "add_or_remove_one"

[training]
steps = 40
batch_size = 100
learning_rate = 0.05
optimizer = "adam"
minibatch_size = 128

[output]
model = "model"
ledger = "ledger.db"
"""


@pytest.fixture
def transformers():
    """Here, since it takes seconds that no other worker should spend."""
    return pytest.importorskip("transformers", reason="machine: an extra")


def make_encoder(folder, transformers):
    folder.mkdir()
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    transformers.BertModel(shape).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    kind = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


@pytest.fixture
def folder(tmp_path, transformers):
    make_encoder(tmp_path / "encoder", transformers)
    rng = np.random.default_rng(0)
    for name, n in (("train", 200), ("test", 100)):
        labels = rng.integers(0, 2, n)
        texts = [" ".join(["good" if y else "bad"] * 4) for y in labels]
        words = ["good" if y else "bad" for y in labels]
        table = pa.table({"review": texts, "verdict": words})
        if name == "train":
            rows = [f'"{t}",{w}' for t, w in zip(texts, words, strict=True)]
            (tmp_path / "train.csv").write_text("\n".join(["review,verdict", *rows]))
        else:
            pa.parquet.write_table(table, tmp_path / "test.parquet")
    return tmp_path


def run(folder, text=CONFIG):
    (folder / "job.toml").write_text(text)
    new = ["--create", "--budget", "add-or-remove-one:8:1e-3"]
    return commands.run("train", folder / "job.toml", *new)


def words(result):
    return " ".join(result.output.split())


def test_a_table_of_texts_becomes_a_private_model(folder, transformers):
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert float(words(result).split("test file: ")[1].split()[0]) > 0.9
    card = (folder / "model" / "README.md").read_text()
    with Ledger.open(folder / "ledger.db") as ledger:
        assert 7.8 < ledger.epsilon() <= 8.0
        (entry,) = ledger.entries()
        assert entry.statement() in card
        assert ledger.reading(AddOrRemoveOne()).epsilon <= 8.0
    # Nothing but transformers is needed from here on, and no name of this machine
    # is in the folder.
    module = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "model", local_files_only=True
    )
    tokens = transformers.AutoTokenizer.from_pretrained(
        folder / "model", local_files_only=True
    )
    batch = tokens(["good good good good", "bad bad bad bad"], return_tensors="pt")
    found = module.eval()(**batch).logits.argmax(-1).tolist()
    assert [module.config.id2label[i] for i in found] == ["good", "bad"]
    for path in (folder / "model").iterdir():
        assert str(folder).encode() not in path.read_bytes(), path.name
    # The rows of LoRA are in the matrices, and what it did not touch is as it was.
    before = transformers.BertModel.from_pretrained(folder / "encoder").state_dict()
    after = module.bert.state_dict()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {
        f"encoder.layer.0.attention.{place}.weight"
        for place in ("self.query", "self.key", "self.value", "output.dense")
    }
    # The same again finds a folder in its place, and spends nothing.
    again = run(folder)
    assert again.exit_code == 1 and "is there already" in words(again)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('encoder = "encoder"', 'encoder = "gone"', "put config.json, model.safete"),
        ('encoder = "encoder"', 'encoder = "."', "lacks config.json, model.safet"),
        ('"review"', '"rewiev"', "has no column 'rewiev'"),
        ('["bad", "good"]', '["bad"]', "at least two"),
        ("rank = 2", 'targets = "*.kernel"', "selects no matrix"),
        ("rank = 2", "rnak = 2", "has no settings"),
        ('"train.csv"', '"torn.csv"', "as many fields in each row"),
        ('"train.csv"', '"twice.csv"', "several columns 'verdict'"),
        ('"review"', '"verdict"', "are one column"),
        ("length = 6", "length = 600", "length = 600 tokens (it has 16 positions)"),
    ],
)
def test_a_bad_job_spends_nothing_and_quotes_no_row(folder, old, new, told):
    (folder / "torn.csv").write_text("review,verdict\nsecret,good,secret\n")
    (folder / "twice.csv").write_text("review,verdict,verdict\nsecret,good,bad\n")
    assert old in CONFIG
    result = run(folder, CONFIG.replace(old, new))
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert told in words(result) and "secret" not in words(result)
    assert not (folder / "ledger.db").exists() and not (folder / "model").exists()


def narrower(encoder):
    """The configuration of another encoder."""
    path = encoder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 8}))


def renamed(encoder):
    """The weights of another encoder."""
    path = encoder / "model.safetensors"
    weights = load_file(path)
    save_file({f"other.{name}": w for name, w in weights.items()}, path)


def torn(encoder):
    """Half a file."""
    path = encoder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def longer(encoder):
    """The tokeniser of another encoder: its words have no row."""
    (encoder / "vocab.txt").write_text("\n".join([*WORDS, "more", "words"]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (narrower, "not those of its config.json: they lack bert.embeddings"),
        (renamed, "not those of its config.json: they lack bert.embeddings"),
        (torn, "holds no encoder that transformers"),
        (longer, "knows 11 words, and the encoder has a row for 9"),
    ],
)
def test_files_of_two_encoders_are_told_before_they_cost(folder, change, told):
    """Random weights were trained, and paid for."""
    change(folder / "encoder")
    result = run(folder)
    assert result.exit_code == 1 and told in words(result)
    assert words(result).lower().endswith("nothing was spent.")
    assert not (folder / "ledger.db").exists() and not (folder / "model").exists()


def test_what_becomes_of_a_row_depends_on_that_row_alone(folder):
    path = folder / "odd.csv"
    path.write_text('review,verdict\n"a\nb",good\n,\nc,unheard\nd, bad\n')
    texts, labels = huggingface.read_texts(path, "review", "verdict", ["bad", "good"])
    assert texts == ["a\nb", "", "c", "d"] and labels.tolist() == [1, 0, 0, 0]
    encoder = huggingface.load_encoder(folder / "encoder", ["bad", "good"])
    alone = [encoder.tokens([text], 6)["input_ids"][0] for text in texts]
    np.testing.assert_array_equal(encoder.tokens(texts, 6)["input_ids"], alone)
