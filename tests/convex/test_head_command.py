"""`demur head`: tables in, one safe file out."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from demur.convex import load_head
from demur.convex.rows.parquet import ParquetSource
from tests.commands import run
from tests.convex.kit import blobs

NEW = ["--create", "--budget", "ball,radius=0.2,space=records:8:1e-6"]


@pytest.fixture
def tables(tmp_path):
    X, y = blobs(600, 3, 3, spread=0.2)
    names = np.array(["red", "green", "blue"])[y]
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "kind": names})
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    lists = pa.table({"embedding": list(X), "kind": names})
    pyarrow.parquet.write_table(lists, tmp_path / "lists.parquet")
    np.savez(tmp_path / "t.npz", X=X, kind=names)
    return tmp_path


def fit(folder, data, *more):
    common = ["--label", "kind", "--epsilon", "8", "--radius", "0.2"]
    out = ["-o", str(folder / "head.npz")]
    return run("head", "fit", str(folder / data), *common, *out, *more)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["t.csv", "t.parquet", "lists.parquet", "t.npz"])
@pytest.mark.parametrize("head", ["prototypes", "softmax"])
def test_fit_and_predict(tables, data, head):
    made = fit(tables, data, "--head", head)
    assert made.exit_code == 0, made.output
    assert "Not recorded" in " ".join(made.output.split())
    text = run("head", "predict", str(tables / "head.npz"), str(tables / data))
    assert text.exit_code == 0, text.output
    found = text.output.split()
    assert found[0] == "prediction" and len(found) == 601
    truth = np.load(tables / "t.npz")["kind"]
    assert np.mean(np.array(found[1:]) == truth) > 0.8
    assert load_head(tables / "head.npz").privacy_.epsilon_at(0.2) <= 8.0


@pytest.mark.slow
def test_parquet_is_streamed_when_asked_and_when_it_is_large(tables, monkeypatch):
    made = fit(tables, "lists.parquet", "--head", "softmax", "--stream")
    assert made.exit_code == 0, made.output
    data = str(tables / "lists.parquet")
    found = run("head", "predict", str(tables / "head.npz"), data).output.split()
    truth = np.load(tables / "t.npz")["kind"]
    assert np.mean(np.array(found[1:]) == truth) > 0.8
    seen = []
    real = ParquetSource.totals

    def totals(self, task):
        seen.append(self.columns)
        return real(self, task)

    monkeypatch.setattr(ParquetSource, "totals", totals)
    assert fit(tables, "t.parquet", "--classes", "red,green,blue").exit_code == 0
    assert not seen
    monkeypatch.setattr("demur.cli.head._LARGE", 1000)
    assert fit(tables, "t.parquet", "--classes", "red,green,blue").exit_code == 0
    assert seen == [["a", "b", "c"]]
    folder = tables / "folder"
    folder.mkdir()
    (tables / "t.parquet").rename(folder / "t.parquet")
    made = fit(tables, "folder", "--ledger", str(tables / "b.db"), *NEW)
    assert made.exit_code == 0, made.output
    assert len(seen) == 2
    refused = fit(tables, "t.csv", "--stream")
    assert refused.exit_code == 1 and "--stream needs Parquet" in refused.output


@pytest.mark.slow
def test_a_ledger_is_made_charged_and_declines(tables):
    ledger = ["--ledger", str(tables / "ledger.db"), *NEW]
    first = fit(tables, "t.csv", *ledger)
    assert first.exit_code == 0 and "Recorded as entry 1" in " ".join(
        first.output.split()
    )
    assert "a new ledger" in first.stderr and "epsilon 8 at delta 1e-06" in first.stderr
    (tables / "head.npz").unlink()
    again = fit(tables, "t.csv", *ledger)
    assert again.exit_code == 3 and "Declined" in again.output
    assert "a new ledger" not in again.stderr
    assert not (tables / "head.npz").exists()


@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        ("t.csv", ["--label", "size"], "is not a column"),
        ("none.csv", [], "there is no file"),
        ("t.csv", ["--classes", "red,green"], "outside classes"),
        ("t.csv", ["--head", "logistic"], "Only binary"),
        ("t.csv", ["--label", "a"], "must hold numbers"),
        ("t.csv", ["--epsilon", "0"], "epsilon must be"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(tables, data, more, words):
    found = fit(tables, data, *more)
    assert found.exit_code == 1 and words in " ".join(found.output.split())
    assert not (tables / "head.npz").exists()


def test_other_files_are_refused(tables):
    (tables / "t.txt").write_text("a,b\n1,2\n")
    assert "must be .parquet, .csv or .npz" in fit(tables, "t.txt").output
    holes = pa.table({"a": [1.0, None], "kind": ["x", "y"]})
    pyarrow.parquet.write_table(holes, tables / "holes.parquet")
    assert "missing values" in fit(tables, "holes.parquet").output
