"""`demur head`: tables in, one safe file out."""

import inspect
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import demur.cli.head as head_command
from demur.convex import (
    BallDiscriminantClassifier,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    files,
    load_head,
    save_head,
)
from demur.convex.rows.parquet import ParquetSource
from demur.convex.rows.tables import features_of
from demur.ledger import Ledger
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
    common = ["--label", "kind", "--epsilon", "8"]
    if "--unit" not in more:
        common += ["--radius", "0.2"]
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
    monkeypatch.setattr("demur.cli.head_rows._LARGE", 1000)
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


# -- what is protected, and every option of the estimator ------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("head", ["prototypes", "softmax"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_head_at_a_replacement(tables, head, stream):
    given = ["--unit", "replace-one", "--classes", "red,green,blue", "--head", head]
    data, how = ("t.parquet", ["--stream"]) if stream else ("t.csv", [])
    made = fit(tables, data, *given, *how)
    assert made.exit_code == 0, made.output
    assert "any change to the content of one record" in " ".join(made.output.split())
    report = load_head(tables / "head.npz").privacy_
    assert report.full_replacement_epsilon is not None
    assert report.full_replacement_epsilon <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "one", "other"),
    [("1,2,x", "x", "1"), ("1,2,2.5", "2.5", "2"), ("true,no", "no", "true")],
)
def test_no_label_decides_what_the_labels_of_a_csv_are(tables, classes, one, other):
    """Without its only word a column of labels is one of numbers to pyarrow."""
    given = ["--unit", "replace-one", "--classes", classes]
    found = []
    for label in (one, other):
        rows = [f"{k % 7},{other if k else label}" for k in range(40)]
        (tables / "one.csv").write_text("\n".join(["a,kind", *rows]) + "\n")
        made = fit(tables, "one.csv", *given)
        assert made.exit_code == 0, made.output
        found.append(load_head(tables / "head.npz").classes_.tolist())
    assert found[0] == found[1] and len(found[0]) == classes.count(",") + 1
    (tables / "one.csv").write_text("a,kind\n1,1\n2,secret\n")
    out = fit(tables, "one.csv", "--unit", "replace-one", "--classes", "1,2")
    assert out.exit_code == 1 and "outside classes" in " ".join(out.output.split())
    assert "secret" not in out.output


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--unit", "replace-one"], "classes must be given"),
        (["--unit", "add-or-remove-one"], "number of records is public"),
        (["--unit", "ball,radius=0.2,space=records", "--radius", "1"], "both given"),
        (["--unit", "sphere"], "a unit is one of"),
        (["--steps", "5"], "--steps is not an option of --head prototypes"),
        (["--head", "softmax", "--prior", "uniform"], "--prior is not an option"),
        (["--exclude", "size"], "there is no column 'size'"),
        (["--columns", "a,b", "--exclude", "b"], "is in --columns and is excluded"),
        (["--lam", "-1"], "lam must be"),
        (["--weight-column", "a"], "--weight-column is not an option"),
    ],
)
def test_wrong_options_are_refused_before_a_ledger_is_made(tables, more, words):
    ledger = ["--ledger", str(tables / "ledger.db"), *NEW]
    found = fit(tables, "t.csv", *more, *ledger)
    assert found.exit_code == 1 and words in " ".join(found.output.split())
    assert not (tables / "head.npz").exists()
    if "classes" not in words and "olumn" not in words:
        assert not (tables / "ledger.db").exists()


def test_every_option_of_the_estimators_has_a_switch():
    command = inspect.signature(head_command.fit).parameters
    other = {"kind": "", "output": "", "classes": "", "ledger": "", "label": ""}
    never = {"source", "progress", "label", "copy_X"}  # a program's own
    for estimator in (
        BallPrototypeClassifier,
        BallDiscriminantClassifier,
        BallSoftmaxClassifier,
        BallSVC,
    ):
        for name in set(estimator().get_params()) - never:
            assert name in command or name in other, name


@pytest.mark.slow
def test_options_reach_the_estimator(tables):
    two = pyarrow.csv.read_csv(tables / "t.csv").to_pydict()
    keep = [i for i, kind in enumerate(two["kind"]) if kind != "blue"]
    table = pa.table({k: [v[i] for i in keep] for k, v in two.items()})
    pyarrow.csv.write_csv(table, tables / "two.csv")
    given = "--head svm --loss squared_hinge --mechanism noisy_gd --steps 7 --momentum"
    given += " 0.5 --learning-rate 0.3 --theta-radius 4 --bias-scale 0.5 --lam 0.02"
    made = fit(tables, "two.csv", *given.split(), "--no-clip", "--norm-bound", "3")
    assert made.exit_code == 0, made.output
    head = load_head(tables / "head.npz")
    asked = {
        "loss": "squared_hinge",
        "mechanism": "noisy_gd",
        "steps": 7,
        "momentum": 0.5,
        "learning_rate": 0.3,
        "theta_radius": 4.0,
        "bias_scale": 0.5,
        "lam": 0.02,
        "clip": False,
        "norm_bound": 3.0,
    }
    assert {name: head.get_params()[name] for name in asked} == asked
    made = fit(tables, "t.csv", "--prior", "1,2,1")
    assert made.exit_code == 0, made.output
    assert load_head(tables / "head.npz").class_prior_.tolist() == [0.25, 0.5, 0.25]


@pytest.mark.slow
def test_weights_of_classes_and_of_records(tables):
    given = ["--head", "softmax", "--class-weight", "red=1,green=4,blue=0.5"]
    table = pyarrow.csv.read_csv(tables / "t.csv")
    weights = pa.array(np.linspace(0.1, 3.0, table.num_rows))
    pyarrow.csv.write_csv(table.append_column("w", weights), tables / "w.csv")
    made = fit(tables, "w.csv", *given, "--weight-column", "w", "--weight-bound", "2")
    assert made.exit_code == 0, made.output
    assert "Features (3 columns): a, b, c." in made.output
    head = load_head(tables / "head.npz")
    assert head.class_weight == {"red": 1.0, "green": 4.0, "blue": 0.5}
    assert head.weight_bound == 2.0
    assert head.privacy_.sensitivity.lam == pytest.approx(0.01 / 8.0)
    refused = fit(tables, "t.parquet", *given[:2], "--weight-column", "a", "--stream")
    assert refused.exit_code == 1 and "read at once" in refused.output


# -- columns that are no features -----------------------------------------------------


@pytest.fixture
def with_ids(tables):
    table = pyarrow.csv.read_csv(tables / "t.csv")
    ids = np.arange(10**6, 10**6 + table.num_rows)
    pyarrow.csv.write_csv(table.append_column("user_id", [ids]), tables / "ids.csv")
    pyarrow.parquet.write_table(
        table.append_column("user_id", [ids]), tables / "ids.parquet"
    )
    return tables


@pytest.mark.slow
@pytest.mark.parametrize("data", ["ids.csv", "ids.parquet"])
def test_an_identifier_is_refused_until_it_is_left_out(with_ids, data):
    how = ["--stream"] if data.endswith("parquet") else []
    found = fit(with_ids, data, *how)
    assert found.exit_code == 1
    assert "'user_id' is an identifier by its name" in " ".join(found.output.split())
    truth = np.load(with_ids / "t.npz")["kind"]

    def right(*more):
        made = fit(with_ids, data, *how, *more)
        assert made.exit_code == 0, made.output
        text = run("head", "predict", str(with_ids / "head.npz"), str(with_ids / data))
        return made.output, np.mean(np.array(text.output.split()[1:]) == truth)

    for leave in (
        ["--exclude", "user_id"],
        ["--id-column", "user_id"],
        ["--columns", "a,b,c"],
    ):
        output, share = right(*leave)
        assert "Features (3 columns): a, b, c." in output and share > 0.9
    # Twin: trained on, as it was without a word, it drowns everything else.
    output, share = right("--columns", "a,b,c,user_id")
    assert "Features (4 columns): a, b, c, user_id." in output and share < 0.6


IDENTIFIERS = (
    "id user_id UserId userID index a.uuid UUID Index UID PATIENTID PatientID pid ids"
    " identifier id_ id1 user_id_2 row_number ssn SSN patient_no customer_number"
    " account_number kunden_nr rownum __index_level_0__ level_0 _id"
).split()
FEATURES = (
    "paid grid humid key valid COVID avoid smoker_no number nose score code a1 X"
    " rapid_test number_of_visits income"
).split()


def test_names_of_identifiers():
    for given in (*IDENTIFIERS, "Unnamed: 0", "User ID", "Row ID"):
        with pytest.raises(ValueError, match="identifier by its name"):
            features_of(["a", given, "y"], label="y")
    assert features_of([*FEATURES, "y"], label="y") == FEATURES


@pytest.mark.slow
def test_the_index_of_a_table_is_an_identifier(tables):
    table = pyarrow.parquet.read_table(tables / "t.parquet")
    meta = {b"pandas": b'{"index_columns": ["a", {"kind": "range"}]}'}
    path = tables / "indexed.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata(meta), path)
    for how in ([], ["--stream"]):
        found = fit(tables, "indexed.parquet", *how)
        assert found.exit_code == 1 and "'a' is an identifier" in found.output
        assert fit(tables, "indexed.parquet", *how, "--exclude", "a").exit_code == 0


# -- what was paid for is not lost -----------------------------------------------------


@pytest.fixture
def numbered(tables):
    """Labels 0 and 1, dates, and missing values in a column that nobody needs."""
    X, y = blobs(60, 2, 2)
    holes = [None, *map(float, range(59))]
    days = np.arange(60).astype("datetime64[D]").astype("datetime64[ns]")
    table = pa.table(
        {
            "a": X[:, 0],
            "b": X[:, 1],
            "kind": y,
            "holes": holes,
            "day": days,
            "zip": ["007"] * 60,
        }
    )
    pyarrow.parquet.write_table(table, tables / "n.parquet")
    return tables


WEIGHTED = ["--head", "logistic", "--columns", "a,b", "--class-weight", "0=2,1=1"]


def test_weights_of_numbered_classes_are_written(numbered):
    ledger = ["--ledger", str(numbered / "ledger.db"), *NEW]
    made = fit(numbered, "n.parquet", *WEIGHTED, *ledger)
    assert made.exit_code == 0, made.output
    assert load_head(numbered / "head.npz").class_weight == {0: 2.0, 1: 1.0}


@pytest.mark.slow
def test_what_cannot_be_written_is_found_before_the_charge(numbered, monkeypatch):
    ledger = ["--ledger", str(numbered / "ledger.db")]
    weights = {0: Fraction(2), 1: Fraction(1)}  # a head takes them, a file does not
    monkeypatch.setattr(head_command, "_class_weight", lambda *_: weights)
    (numbered / "head.npz").write_bytes(b"precious")

    def entries():
        with Ledger.open(numbered / "ledger.db") as opened:
            return len(opened.entries())

    found = fit(numbered, "n.parquet", *WEIGHTED, *ledger, *NEW)
    assert found.exit_code == 1 and "class_weight of the head cannot" in found.output
    assert entries() == 0
    # Twin: found by `save_head` alone, the head is paid for and lost.
    real, asked = files.saved_parameters, []

    def late(head):
        asked.append(head)
        return real(head) if len(asked) > 1 else {}

    monkeypatch.setattr(files, "saved_parameters", late)
    assert fit(numbered, "n.parquet", *WEIGHTED, *ledger).exit_code == 1
    assert entries() == 1
    assert (numbered / "head.npz").read_bytes() == b"precious"
    assert not list(numbered.glob(".head*"))
    refused = fit(numbered, "n.parquet", *WEIGHTED, "-o", str(numbered))
    assert refused.exit_code == 1 and "no file can be written" in refused.output


NUMPY_WEIGHTS: Any = {np.int64(0): np.float32(3)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        BallSoftmaxClassifier(radius=0.2, class_weight={0: 3.0}),
        BallSoftmaxClassifier(radius=0.2, class_weight=NUMPY_WEIGHTS),
        BallPrototypeClassifier(radius=0.2, prior=np.array([1.0, 2.0])),
        BallPrototypeClassifier(radius=0.2, epsilon=np.float32(1.0)),
        BallSVC(radius=0.2, mechanism="noisy_gd", steps=np.int64(3)),
    ],
)
def test_numbers_of_numpy_are_written_and_a_file_is_whole_or_old(
    tmp_path, head, monkeypatch
):
    X, y = blobs(60, 2, 2)
    save_head(head.fit(X, y), tmp_path / "h.npz")
    loaded = load_head(tmp_path / "h.npz")
    assert np.array_equal(loaded.predict(X), head.predict(X))
    if "class_weight" in head.get_params() and head.class_weight:
        assert loaded.class_weight == {0: 3.0}
    whole = (tmp_path / "h.npz").read_bytes()

    def stopped(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("demur.convex.files.np.savez", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_head(head, tmp_path / "h.npz")
    assert (tmp_path / "h.npz").read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == ["h.npz"]


# -- options that would be ignored, columns that would be used twice -------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--columns", "a,kind"], "'kind' would be used twice"),
        (["--columns", "a,a"], "'a' would be used twice"),
        (["--columns", "a,size"], "there is no column 'size'"),
        (["--columns", "a,day"], "column 'day' must hold numbers"),
        (["--columns", "a", "--id-column", "who"], "there is no column 'who'"),
        (["--columns", "a", "--exclude", "who"], "there is no column 'who'"),
        (
            ["--head", "svm", "--columns", "a,b", "--weight-column", "b"],
            "'b' is in --columns and is excluded",
        ),
        (["--columns", "a,zip"], "column 'zip' must hold numbers"),
        (["--exclude", "a,b,holes,day,zip"], "there are no feature columns"),
        (["--exclude", "day,zip"], "column 'holes' has missing values:"),
        (["--head", "svm", "--steps", "5"], "--steps is an option of --mechanism"),
        (
            ["--head", "svm", "--mechanism", "noisy_gd", "--tau", "1e-6"],
            "--tau is an option of --mechanism output",
        ),
        (["--lam", "auto"], "lam must be a number"),
        (["--lam", "much"], "--lam must be numbers; got 'much'"),
        (
            ["--head", "svm", "--columns", "a", "--class-weight", "zero=2"],
            "--class-weight must name labels as they are in the data, which are whole",
        ),
        (
            ["--head", "svm", "--columns", "a", "--class-weight", "7=2"],
            "class_weight names 7, which is no class",
        ),
    ],
)
def test_nothing_is_ignored_and_nothing_used_twice(numbered, more, words):
    found = fit(numbered, "n.parquet", *more)
    assert found.exit_code == 1 and words in " ".join(found.output.split())
    assert not (numbered / "head.npz").exists()


@pytest.mark.slow
def test_a_column_that_is_not_used_does_not_matter(numbered):
    assert fit(numbered, "n.parquet", "--columns", "a,b").exit_code == 0
    assert fit(numbered, "n.parquet", "--exclude", "holes,day,zip").exit_code == 0
    made = fit(
        numbered, "n.parquet", "--head", "svm", "--columns", "a", "--lam", "auto"
    )
    assert made.exit_code == 0, made.output


@pytest.mark.slow
def test_errors_of_a_table_quote_no_cell(tables):
    """pyarrow's own messages do: of the two rows below, and of a word among numbers."""
    (tables / "bad.csv").write_text("a,kind\n1,x\nAlice Smith,2,3\n")
    found = fit(tables, "bad.csv")
    assert found.exit_code == 1 and "cannot be read" in found.output
    (tables / "twice.csv").write_text("a,a,kind\n1,2,x\n3,4,y\n")
    twice = fit(tables, "twice.csv")
    assert twice.exit_code == 1 and "'a' would be used twice" in twice.output
    (tables / "text.csv").write_text("a,kind\n1,x\nAlice Smith,y\n")
    text = fit(tables, "text.csv")
    assert text.exit_code == 1 and "'a' must hold numbers" in text.output
    assert "Alice" not in found.output + text.output
