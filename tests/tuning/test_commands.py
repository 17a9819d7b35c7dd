"""`--tune` of `demur head fit` and `demur train`, from files to files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from demur.convex import load_head
from demur.ledger import Ledger
from tests import commands
from tests.convex.kit import blobs

CONFIG = """
[data]
train = "train.npz"
features = "x"
label = "y"
id = "who"
examples = 400
classes = 3

[model]
kind = "mlp"
hidden = []

[privacy]
epsilon = 12.0
delta = 1e-4
unit = "add_or_remove_one"

[training]
steps = 4
batch_size = 320
learning_rate = 1.0

[output]
model = "model.npz"
ledger = "ledger.db"
"""


@pytest.mark.slow
def test_a_head_is_tuned_for_one_payment(tmp_path):
    X, y = blobs(400, 2, 2, spread=0.2)
    who = [f"p{i}" for i in range(400)]
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "who": who, "kind": y})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")

    def fit(*more):
        words = ["--label", "kind", "--epsilon", "4", "--radius", "0.2"]
        words += ["--id-column", "who", "-o", str(tmp_path / "head.npz")]
        words += ["--ledger", str(tmp_path / "ledger.db")]
        return commands.run("head", "fit", str(tmp_path / "t.parquet"), *words, *more)

    new = ["--create", "--budget", "ball,radius=0.2,space=records:4:1e-6"]
    wrong = fit(*new, "--tune", "rate=1,2")
    assert wrong.exit_code == 1 and "not a setting" in wrong.output
    wrong = fit(*new, "--tune", "lam")
    assert wrong.exit_code == 1 and "lam=0.01,0.1" in wrong.output
    made = fit(*new, "--tune", "lam=0,0.1,10", "--runs", "3")
    assert made.exit_code == 0, made.output
    assert "time is not part of this statement" in " ".join(made.output.split())
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        (entry,) = ledger.entries()
    assert load_head(tmp_path / "head.npz").entry_.id == entry.id
    assert fit("--tune", "lam=0,0.1", "--runs", "3").exit_code == 3  # used up


@pytest.mark.slow
def test_what_a_search_over_training_cannot_do_is_refused_before_it_is_paid(tmp_path):
    x, y = np.eye(6, dtype=np.float32)[np.arange(60) % 6], np.arange(60) % 3
    np.savez(tmp_path / "train.npz", x=x, y=y, who=np.arange(60))

    def refused(words, text, *more):
        (tmp_path / "config.toml").write_text(text)
        new = ["--create", "--budget", "add_or_remove_one:12:1e-4"]
        done = commands.run("train", tmp_path / "config.toml", *new, *more)
        said = " ".join(done.output.split())
        assert done.exit_code == 1 and words in said and "Nothing was spent" in said
        assert not (tmp_path / "ledger.db").exists()

    rates = ["--tune", "training.learning_rate=0.1,1.0"]
    refused("would be held back", CONFIG, *rates, "--held-back", "1e-9")
    nowhere = CONFIG.replace("model.npz", "nowhere/model.npz")
    for tune in (rates, []):
        refused("folder that exists", nowhere, *tune)


@pytest.mark.deep
def test_training_is_tuned_for_one_payment_and_leaves_no_other_run(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(400) % 3
    x = (2.0 * np.eye(3, 6)[y] + 0.4 * rng.normal(size=(400, 6))).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=x, y=y, who=np.arange(400))

    def run(text, *tune):
        (tmp_path / "config.toml").write_text(text)
        new = ["--create", "--budget", "add_or_remove_one:12:1e-4"]
        return commands.run("train", tmp_path / "config.toml", *new, *tune)

    rates = ["--tune", "training.learning_rate=0.1,1.0"]
    nobody = run(CONFIG.replace('id = "who"\n', ""), *rates)
    assert nobody.exit_code == 1 and "ids" in nobody.output
    wrong = run(CONFIG, "--tune", "model.seed=1,2")
    assert wrong.exit_code == 1 and "among" in wrong.output
    done = run(CONFIG, *rates)
    assert done.exit_code == 0, done.output
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        (entry,) = ledger.entries()
        assert ledger.tip().sequence == 2  # the charge, and its commit
    assert "private search over 2 settings" in entry.declaration.name
    left = {p.name.removesuffix("-journal") for p in tmp_path.iterdir()}
    known = ["config.toml", "ledger.db", "ledger.db.keys", "model.npz", "train.npz"]
    assert sorted(left) == known
