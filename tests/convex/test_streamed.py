"""Heads from files: the same head as from arrays, the same refusals, little memory."""

import math
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    DataChanged,
    HeadForm,
    NotConverged,
    ParquetRows,
    minimise,
    objective,
)
from demur.convex.rows import sources
from demur.convex.rows.parquet import ParquetSource
from demur.convex.rows.totals import UNIT_ROUNDOFF, Chunk, Totals, fingerprint_of
from demur.convex.solving import streamed_solver
from demur.convex.solving.derivatives import rounding
from demur.convex.solving.streamed_objective import StreamedObjective, StreamedRows
from demur.convex.solving.streamed_solver import minimise_streamed
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource, clip_rows
from demur.core.entropy import Seeded
from demur.ledger import Budget, Ledger
from tests.convex.kit import LOSSES, blobs
from tests.programs import python

UNIT = Ball(0.3, space="records")
X, Y = blobs(3000, 5, 3, seed=4)
HEADS: dict[str, Any] = {
    "prototypes": lambda **more: BallPrototypeClassifier(radius=0.3, **more),
    "logistic": lambda **more: BallLogisticRegression(radius=0.3, **more),
    "softmax": lambda **more: BallSoftmaxClassifier(radius=0.3, **more),
    "huber": lambda **more: BallSVC(radius=0.3, **more),
    "squared hinge": lambda **more: BallSVC(loss="squared_hinge", radius=0.3, **more),
    "noisy gd": lambda **more: BallSoftmaxClassifier(
        radius=0.3, mechanism="noisy_gd", steps=3, **more
    ),
}


def labels_for(name, y=Y):
    return y if name in ("prototypes", "softmax", "noisy gd") else y % 2


def write(path, rows, labels, layout="columns", **options):
    columns: dict[str, Any] = {f"x{j}": rows[:, j] for j in range(rows.shape[1])}
    if layout == "lists":
        columns = {"embedding": list(rows)}
    elif layout == "fixed":
        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        columns = {"embedding": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])}
    pq.write_table(pa.table(columns | {"y": labels}), path, **options)
    return ParquetRows(path)


def streamed(loss, path, classes, lam=1e-2, rows=X, labels=Y, **options):
    source = write(path, rows, labels, **options).row_source()
    data = StreamedRows(
        source,
        np.arange(classes),
        np.bincount(labels),
        Bound(1.0, BoundSource.ENFORCED),
        False,
        True,
    )
    return data.objective(HeadForm(loss, lam=lam, num_classes=classes))


def weights(head):
    parts = [head.prototypes_] if hasattr(head, "prototypes_") else []
    parts += [head.coef_, head.intercept_] if hasattr(head, "coef_") else []
    return np.concatenate([part.reshape(-1) for part in parts])


# -- the same answers ------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_sums_of_a_file_are_those_of_an_array(loss, classes, tmp_path, monkeypatch):
    rows, y = blobs(1000, 4, classes, seed=1)
    inside = clip_rows(rows, 1.0).data
    form = HeadForm(loss, lam=0.01, num_classes=classes)
    whole = objective(form, inside, y)
    theta = np.random.default_rng(0).normal(size=whole.shape)
    monkeypatch.setattr(sources, "CHUNK", 64)
    parts = streamed(loss, tmp_path / "x.parquet", classes, rows=rows, labels=y)
    answer = parts.answer(theta, hessian=True)
    value, gradient = whole.value_and_gradient(theta)
    assert answer.value == pytest.approx(value, rel=1e-14)
    assert np.allclose(answer.gradient, gradient, rtol=0, atol=1e-15)
    product = whole.curvature(theta).product
    size = theta.size
    exact = [product(e.reshape(theta.shape)).reshape(-1) for e in np.eye(size)]
    assert answer.hessian is not None
    assert np.allclose(answer.hessian, exact, atol=1e-6)
    # lam = 1e-6 is below what float32 can show: there the Hessian is in float64.
    fine = streamed(loss, tmp_path / "x.parquet", classes, 1e-6, rows=rows, labels=y)
    bent = fine.answer(theta, hessian=True).hessian
    assert bent is not None
    shift = (0.01 - 1e-6) * np.eye(size)
    assert np.allclose(bent + shift, exact, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_a_head_from_a_file_is_the_head_from_an_array(name, tmp_path):
    labels = labels_for(name)
    rows = write(tmp_path / "x.parquet", X.astype(np.float32), labels)
    whole = HEADS[name](source=Seeded(3)).fit(X.astype(np.float32), labels)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    part = HEADS[name](source=Seeded(3), ledger=ledger).fit(rows)
    assert np.allclose(weights(part), weights(whole), rtol=0, atol=2e-7)
    assert np.array_equal(part.classes_, whole.classes_)
    assert part.n_features_in_ == 5 and len(ledger.entries()) == 1
    one, two = (h.privacy_.to_json() for h in (whole, part))
    for report in (one, two):
        report.pop("entry", None)
    assert one["assumptions"] == two["assumptions"]
    assert one["unprotected"] == two["unprotected"]
    assert np.allclose(part.privacy_.sigma, whole.privacy_.sigma, rtol=1e-6)
    assert part.privacy_.epsilon_at(0.3) <= 1.0
    if whole.privacy_.sensitivity is not None and name != "noisy gd":
        assert part.privacy_.sensitivity == whole.privacy_.sensitivity
    # Another seed is another noise: the comparison can fail.
    other = HEADS[name](source=Seeded(4)).fit(rows)
    assert not np.allclose(weights(other), weights(whole), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("newton", [True, False])
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_the_minimiser_of_a_file(loss, classes, newton, tmp_path, monkeypatch):
    """Whatever the steps, and however small the sample they start from."""
    rows, y = blobs(4000, 4, classes, seed=2, spread=0.8)
    monkeypatch.setattr(streamed_solver, "_MOST_SAMPLE", 512)
    monkeypatch.setattr(streamed_solver, "MOST_NEWTON", 2048 if newton else 0)
    stated = streamed(loss, tmp_path / "x.parquet", classes, 1e-3, rows, y)
    seen: list[float] = []
    found = minimise_streamed(stated, progress=lambda i, share: seen.append(share))
    inside = clip_rows(rows, 1.0).data
    form = HeadForm(loss, lam=1e-3, norm_bound=1.0, num_classes=classes)
    whole = objective(form, inside, y)
    exact = minimise(whole).theta
    assert np.linalg.norm(whole.value_and_gradient(found.theta)[1]) <= 1e-9
    # Both are within tau / lam of the one minimiser.
    assert np.linalg.norm(found.theta - exact) <= 2e-9 / 1e-3
    assert 2 <= stated.passes <= (8 if newton else 20)
    assert seen[-1] == 1.0
    # Twin: the sample's own minimiser, where the search began, is not certified.
    start = minimise(stated.sampled(512)).theta
    assert np.linalg.norm(whole.value_and_gradient(start)[1]) > 1e-5


@pytest.mark.slow
def test_layouts_and_row_groups_change_no_bit(tmp_path):
    found = set()
    for layout in ("columns", "lists", "fixed"):
        for size in (64, 997, 4096):
            place = tmp_path / f"{layout}{size}.parquet"
            rows = write(place, X, Y % 2, layout, row_group_size=size)
            # The rows of one class lie together: a sample must not be fooled.
            head = BallLogisticRegression(radius=0.3, source=Seeded(1)).fit(rows)
            found.add(weights(head).tobytes())
    half = tmp_path / "folder"
    half.mkdir()
    write(half / "a.parquet", X[:1234], Y[:1234] % 2, "lists")
    write(half / "b.parquet", X[1234:], Y[1234:] % 2, "lists")
    (half / "_SUCCESS").write_text("")
    for rows in (
        ParquetRows(half),
        ParquetRows([half / "a.parquet", half / "b.parquet"]),
    ):
        head = BallLogisticRegression(radius=0.3, source=Seeded(1)).fit(rows)
        found.add(weights(head).tobytes())
    assert len(found) == 1


def test_labels_of_other_types_and_chosen_columns(tmp_path):
    names = np.array(["no", "yes"])[Y % 2]
    table = pa.table(
        {
            "b": X[:, 1].astype(np.float16),
            "kind": pa.array(names).dictionary_encode(),
            "a": X[:, 0].astype(np.float32),
            "n": (X[:, 2] > 0),
            "note": names,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    rows = ParquetRows(tmp_path / "t.parquet", label="kind", columns=["a", "b", "n"])
    array = np.column_stack(
        [X[:, 0].astype(np.float32), X[:, 1].astype(np.float16), X[:, 2] > 0]
    )
    classes = ["yes", "no"]
    one = BallLogisticRegression(radius=0.3, source=Seeded(1), classes=classes).fit(
        rows
    )
    two = BallLogisticRegression(radius=0.3, source=Seeded(1), classes=classes)
    two.fit(array.astype(np.float64), names)
    assert np.allclose(weights(one), weights(two), atol=2e-7)
    assert one.predict(array[:9]).tolist() == two.predict(array[:9]).tolist()
    assert one.privacy_.full_replacement_epsilon is not None


def test_many_classes_are_no_regression_problem(tmp_path):
    """scikit-learn warns of labels that occur once each; warnings are errors here."""
    y = np.arange(len(X)) % 30
    rows = write(tmp_path / "x.parquet", X, y)
    head = BallPrototypeClassifier(radius=0.3).fit(rows)
    assert head.classes_.tolist() == list(range(30))


def test_names_of_an_earlier_fit_are_forgotten(tmp_path):
    """As scikit-learn forgets them when it sees a matrix without names."""
    frame = pd.DataFrame(X, columns=list("abcde"))
    head = BallLogisticRegression(radius=0.3).fit(frame, Y % 2)
    assert head.feature_names_in_.tolist() == list("abcde")
    head.fit(write(tmp_path / "x.parquet", X[:, :2], Y % 2))
    assert not hasattr(head, "feature_names_in_") and head.n_features_in_ == 2
    assert head.predict(X[:3, :2]).shape == (3,)


def test_a_table_with_a_column_of_that_name_is_no_source():
    frame = pd.DataFrame(X, columns=["row_source", *"bcde"])
    head = BallLogisticRegression(radius=0.3).fit(frame, Y % 2)
    assert head.n_features_in_ == 5


def test_rows_sorted_by_class_are_sampled_all_over(tmp_path):
    """The leading rows of a sorted file are one class; every k-th row is not."""
    order = np.argsort(Y % 2, kind="stable")
    place = tmp_path / "x.parquet"
    write(place, X[order], (Y % 2)[order], row_group_size=3000)
    source = ParquetRows(place).row_source()
    task = sources.Task(np.arange(2), 1.0, True, lambda rows, y: ())
    seen = source.sample(task, 300)
    assert len(seen.rows) == 300
    share = np.bincount(seen.y) / 300
    assert np.allclose(share, np.bincount(Y % 2) / 3000, atol=0.02)


# -- sums ------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 7])
def test_sums_over_chunks_are_within_their_bound(groups):
    parts = np.random.default_rng(0).uniform(size=(6000, 3))
    zero = np.zeros(1, dtype=np.intp)
    chunks = [Chunk(part[None, :], zero) for part in parts]
    merged = Totals(1)
    for group in range(groups):
        one = Totals.over(chunks[group::groups], 1, lambda rows, y: (rows[0],))
        merged.merge(Totals.from_bytes(one.to_bytes()))
    (found,) = merged.results()
    exact = np.array([math.fsum(parts[:, j]) for j in range(3)])
    absolute = np.abs(parts).sum(axis=0)
    k = len(parts)
    limit = (UNIT_ROUNDOFF + (2 * k * UNIT_ROUNDOFF) ** 2) * absolute
    assert (np.abs(found - exact) <= limit).all()
    # Twin: one float64 after the other is not.
    plain = np.zeros(3)
    for part in parts:
        plain += part
    assert (np.abs(plain - exact) > limit).any()
    assert merged.counts.tolist() == [k]


def test_a_streamed_gradient_is_within_its_rounding_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK", 16)
    stated = streamed("softmax", tmp_path / "x.parquet", 3, 0.1)
    theta = np.random.default_rng(1).normal(size=stated.shape)
    inside = clip_rows(X, 1.0).data
    wide = np.hstack([inside, np.ones((len(X), 1))]).astype(np.longdouble)
    scores = wide @ theta.T.astype(np.longdouble)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(Y)), Y] -= 1
    exact = p.T @ wide / len(X) + np.longdouble(0.1) * theta
    off = float(np.linalg.norm(exact - stated.answer(theta).gradient))
    assert off <= stated.rounding(float(np.linalg.norm(theta))) <= 1e-12


def test_ten_million_records_can_be_certified(tmp_path):
    """The bound does not grow with the number of chunks; a plain sum's would."""
    stated = streamed("logistic", tmp_path / "x.parquet", 2, labels=Y % 2)
    form = stated.form
    bound = {
        n: rounding(form, 6.0, features=384, additions=sources.additions(n))
        for n in (10**4, 10**7, 10**9)
    }
    assert bound[10**4] == pytest.approx(bound[10**7], rel=1e-3)
    assert bound[10**7] < 1e-11 and bound[10**9] < 1e-10
    plain = rounding(form, 6.0, features=384, additions=10**9)
    assert plain > 1e-7


def test_a_fingerprint_sees_a_bit_and_not_the_order():
    y = Y.astype(np.intp)
    whole = fingerprint_of(Chunk(X, y))
    order = np.random.default_rng(0).permutation(len(X))
    assert fingerprint_of(Chunk(X[order], y[order])) == whole
    moved = X.copy()
    moved[17, 2] = np.nextafter(moved[17, 2], 1.0)
    assert fingerprint_of(Chunk(moved, y)) != whole
    swapped = X.copy()
    swapped[17, [1, 2]] = swapped[17, [2, 1]]
    assert fingerprint_of(Chunk(swapped, y)) != whole
    other = y.copy()
    other[[0, 1]] = other[[1, 0]]
    assert y[0] != y[1] and fingerprint_of(Chunk(X, other)) != whole


def test_a_fingerprint_sees_whole_numbers():
    """Zeros and ones end in 52 bits of zeros, where an odd multiplier keeps 12."""
    width = 48
    rows = np.vstack([np.eye(width), 3.0 * np.eye(width)])
    pairs = np.vstack([rows[i] + rows[j] for i in range(width) for j in range(i)])
    seen = {
        fingerprint_of(Chunk(row[None], np.zeros(1, dtype=np.intp)))
        for row in np.vstack([rows, pairs])
    }
    assert len(seen) == len(rows) + len(pairs)


# -- refusals --------------------------------------------------------------------------


def bad_files(folder):
    nan = X.copy()
    nan[-1, 2] = np.nan
    yield "a NaN in the last row", write(folder / "nan.parquet", nan, Y % 2), "NaN"
    holes = pa.table({"a": [0.1, None, 0.2], "y": [0, 1, 0]})
    pq.write_table(holes, folder / "holes.parquet")
    yield "a missing value", ParquetRows(folder / "holes.parquet"), "missing values"
    labels = pa.table({"a": [0.1, 0.3, 0.2], "y": [0, 1, None]})
    pq.write_table(labels, folder / "labels.parquet")
    yield "a missing label", ParquetRows(folder / "labels.parquet"), "missing labels"
    ragged = pa.table({"e": [[0.1, 0.2], [0.1], [0.1, 0.2, 0.3]], "y": [0, 1, 0]})
    pq.write_table(ragged, folder / "ragged.parquet")
    yield "ragged lists", ParquetRows(folder / "ragged.parquet"), "different lengths"
    inner = pa.table({"e": [[0.1, 0.2], [0.1, None]], "y": [0, 1]})
    pq.write_table(inner, folder / "inner.parquet")
    yield "a hole in a list", ParquetRows(folder / "inner.parquet"), "missing values"
    words = pa.table({"a": ["x", "y"], "y": [0, 1]})
    pq.write_table(words, folder / "words.parquet")
    yield "words", ParquetRows(folder / "words.parquet"), "must hold numbers"
    dates = pa.table({"a": [0.1, 0.2], "y": pa.array([1, 2], pa.date32())})
    pq.write_table(dates, folder / "dates.parquet")
    yield "dates as labels", ParquetRows(folder / "dates.parquet"), "one word or number"
    one = pa.table({"a": [0.1, 0.2], "y": [1, 1]})
    pq.write_table(one, folder / "one.parquet")
    yield "one class", ParquetRows(folder / "one.parquet"), "one class"
    none = pa.table({"a": pa.array([], pa.float64()), "y": pa.array([], pa.int8())})
    pq.write_table(none, folder / "none.parquet")
    yield "no rows", ParquetRows(folder / "none.parquet"), "no rows"
    real = pa.table({"a": [0.1, 0.2, 0.3], "y": [0.5, 0.1, 0.3]})
    pq.write_table(real, folder / "real.parquet")
    yield "continuous labels", ParquetRows(folder / "real.parquet"), "label type"
    (folder / "text.parquet").write_text("no table at all")
    yield "no Parquet", ParquetRows(folder / "text.parquet"), "cannot be read"
    yield "no file", ParquetRows(folder / "nowhere.parquet"), "there is no file"
    (folder / "empty").mkdir()
    yield "an empty folder", ParquetRows(folder / "empty"), "no Parquet files"
    yield "no label", ParquetRows(folder / "one.parquet", label="z"), "no column 'z'"
    columns = ParquetRows(folder / "one.parquet", columns=["y"])
    yield "the label as a feature", columns, "used twice"
    other = [folder / "nan.parquet", folder / "one.parquet"]
    yield "two schemas", ParquetRows(other), "no column"
    yield "one file twice", ParquetRows([folder / "one.parquet"] * 2), "named twice"
    hollow = {"e": pa.array([[]] * 4, pa.list_(pa.float64())), "y": [0, 1] * 2}
    pq.write_table(pa.table(hollow), folder / "hollow.parquet")
    yield "empty lists", ParquetRows(folder / "hollow.parquet"), "are empty"
    word = ParquetRows(folder / "one.parquet", columns="a")
    yield "a word for columns", word, "must be a list"
    wide = write(folder / "three.parquet", X, Y)
    yield "three classes", wide, "Only binary"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["output", "noisy_gd"])
def test_bad_files_are_refused_and_nothing_is_charged(tmp_path, mechanism):
    names = set()
    for name, rows, words in bad_files(tmp_path):
        ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
        head = BallLogisticRegression(
            radius=0.3, ledger=ledger, mechanism=mechanism, steps=2
        )
        with pytest.raises((ValueError, TypeError), match=words) as raised:
            head.fit(rows)
        assert "othing was" in str(raised.value), name
        assert not ledger.entries() and not hasattr(head, "n_features_in_"), name
        names.add(name)
    assert len(names) == 20


def test_prototypes_refuse_what_only_a_pass_sees(tmp_path):
    nan = X.copy()
    nan[-1, 2] = np.inf
    rows = write(tmp_path / "x.parquet", nan, Y)
    long = write(tmp_path / "long.parquet", 9 * X, Y)
    for head, given, words in (
        (BallPrototypeClassifier(radius=0.3), rows, "infinity"),
        (BallPrototypeClassifier(radius=0.3, clip=False), long, "longer than"),
        (BallSoftmaxClassifier(radius=0.3, clip=False), long, "longer than"),
    ):
        ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
        with pytest.raises(ValueError, match=words) as raised:
            head.set_params(ledger=ledger).fit(given)
        assert "othing was charged" in str(raised.value)
        assert not ledger.entries()


def test_labels_are_given_once(tmp_path):
    rows = write(tmp_path / "x.parquet", X, Y)
    with pytest.raises(TypeError, match="y must be left out"):
        BallPrototypeClassifier(radius=0.3).fit(rows, Y)
    with pytest.raises(ValueError, match="requires y to be passed"):
        BallPrototypeClassifier(radius=0.3).fit(X)


def test_tau_below_rounding_is_refused_before_the_first_pass(tmp_path, monkeypatch):
    stated = streamed("logistic", tmp_path / "x.parquet", 2, labels=Y % 2)
    with pytest.raises(NotConverged, match="below what float64 can certify"):
        minimise_streamed(stated, tau=1e-14)
    assert stated.passes == 0
    monkeypatch.setattr(streamed_solver, "_MOST_SAMPLE", 512)
    with pytest.raises(NotConverged, match="nothing was charged"):
        minimise_streamed(stated, tau=1e-9, max_iter=1)


# -- a file that changes ---------------------------------------------------------------


def meddled(monkeypatch, place, at, how):
    """Change the file before its `at`-th pass."""
    passes = [0]
    plain = ParquetSource.totals

    def totals(self, task):
        passes[0] += 1
        if passes[0] == at:
            how(place)
        return plain(self, task)

    monkeypatch.setattr(ParquetSource, "totals", totals)
    return passes


def rewritten(place):
    other = X.copy()
    other[5] *= 0.5
    write(place, other, Y % 2)


def quietly_rewritten(place):
    """The same size, time and place: only what is inside differs."""
    before = place.stat()
    other = np.array(X)
    other[[5, 7], 1] = other[[5, 7], 1] * 0.5
    write(place, other, Y % 2, compression="none", use_dictionary=False)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert place.stat().st_size == before.st_size


@pytest.mark.slow
@pytest.mark.parametrize("how", [rewritten, quietly_rewritten, os.unlink])
@pytest.mark.parametrize("head", ["logistic", "noisy gd"])
def test_a_file_that_changes_between_passes_is_refused(
    how, head, tmp_path, monkeypatch
):
    place = tmp_path / "x.parquet"
    rows = write(place, X, Y % 2, compression="none", use_dictionary=False)
    # A small sample, so that there is a second pass.
    monkeypatch.setattr(streamed_solver, "_MOST_SAMPLE", 512)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    passes = meddled(monkeypatch, place, 2, how)
    with pytest.raises(DataChanged) as raised:
        HEADS[head](ledger=ledger, lam=1e-3).fit(rows)
    assert passes[0] == 2
    # A descent has paid before its steps; a minimiser is found before it is paid for.
    paid = 1 if head == "noisy gd" else 0
    assert len(ledger.entries()) == paid
    said = "It stays spent" if paid else "nothing was charged"
    assert said in str(raised.value)


@pytest.mark.slow
def test_a_fit_killed_in_a_pass_has_charged_nothing(tmp_path):
    """The charge follows the minimiser: who dies before it leaves no entry."""
    write(tmp_path / "x.parquet", X, Y % 2)
    script = f"""
import os
from demur.convex import BallLogisticRegression, ParquetRows
from demur.convex.solving.streamed_objective import StreamedObjective
from demur.core.adjacency import Ball
from demur.ledger import Budget, Ledger
plain = StreamedObjective.answer
def answer(self, theta, *, hessian=False):
    plain(self, theta, hessian=hessian)
    os._exit(9)
StreamedObjective.answer = answer
ledger = Ledger.open({str(tmp_path / "ledger.db")!r}, dataset="x",
    budgets={{Ball(0.3, space="records"): Budget(1.0, 1e-6)}})
head = BallLogisticRegression(radius=0.3, ledger=ledger)
head.fit(ParquetRows({str(tmp_path / "x.parquet")!r}))
"""
    assert subprocess.run([*python(), "-c", script]).returncode == 9
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert not ledger.entries()
        HEADS["logistic"](ledger=ledger).fit(ParquetRows(tmp_path / "x.parquet"))
        assert len(ledger.entries()) == 1


# -- secrets ---------------------------------------------------------------------------


def test_no_exact_parameter_leaves_a_streamed_fit(tmp_path):
    rows = write(tmp_path / "x.parquet", X, Y % 2)
    head = BallLogisticRegression(radius=0.3).fit(rows)
    fitted = {key for key in vars(head) if key.endswith("_")}
    expected = {"coef_", "intercept_", "classes_", "n_features_in_", "privacy_"}
    assert fitted == expected
    assert set(vars(head)) - fitted == set(head.get_params())
    stated = streamed("logistic", tmp_path / "z.parquet", 2, labels=Y % 2)
    exact = minimise_streamed(stated).theta
    kept = pickle.dumps(head)
    for value in exact:
        assert value.tobytes() not in kept
    assert head.coef_[0, 0].tobytes() in kept


# -- memory ----------------------------------------------------------------------------

# Not getrusage: its peak outlives exec, so it would be that of the tests' process.
GROWTH = """
import sys
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 2**10
import pyarrow.parquet
from demur.convex import BallLogisticRegression, ParquetRows
from demur.convex.rows.tables import read_rows
path = sys.argv[1]
BallLogisticRegression(radius=0.3).fit([[0.1], [0.2]] * 5, [0, 1] * 5)
before = peak()
BallLogisticRegression(radius=0.3, lam=1.0).fit(ParquetRows(path))  # few passes
print(peak() - before)
read_rows(path, label="y")
print(peak() - before)
"""


@pytest.mark.deep
def test_memory_does_not_grow_with_the_file(tmp_path):
    """A file of 80 MiB (160 as float64), and less than 130 MiB to fit it.

    It took 50, as for 190 MiB, and 560 read whole.
    """
    if not os.path.exists("/proc/self/status"):
        pytest.skip("machine: no /proc to read a process's peak memory from")
    place, d = tmp_path / "big.parquet", 64
    rng = np.random.default_rng(0)
    schema = pa.schema({"e": pa.list_(pa.float32(), d), "y": pa.int8()})
    block = rng.normal(size=(65536, d)).astype(np.float32) / 10
    y = (block[:, 0] > 0).astype(np.int8)
    with pq.ParquetWriter(place, schema, use_dictionary=["y"]) as file:
        for _ in range(5):
            lists = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), d)
            file.write_table(pa.table([lists, pa.array(y)], schema=schema))
    assert place.stat().st_size > 77 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, place],
        capture_output=True,
        text=True,
        check=True,
        # Arrow's own allocator keeps what was freed, more or less of it.
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    streamed_rows, whole = map(float, done.stdout.split())
    assert streamed_rows < 130
    # Twin: the same rows read whole do not fit into that.
    assert whole > 300


def test_an_answer_is_kept_and_a_theta_of_another_shape_refused(tmp_path):
    stated = streamed("softmax", tmp_path / "x.parquet", 3)
    assert isinstance(stated, StreamedObjective)
    theta = np.zeros(stated.shape)
    stated.answer(theta)
    stated.answer(theta)
    assert stated.passes == 1
    stated.answer(theta, hessian=True)
    assert stated.passes == 2
    with pytest.raises(ValueError, match="theta must have shape"):
        stated.answer(np.zeros(3))
