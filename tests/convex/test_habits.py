"""Habits of users: sparse rows, embeddings in a column, star imports, NaN."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import demur.convex
from demur.convex import BallLogisticRegression, BallPrototypeClassifier
from demur.core.entropy import Seeded
from demur.preprocessing import ClipRows, checked_rows
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

X, Y = blobs(200, 4, 2)


def head(**more):
    return BallPrototypeClassifier(radius=0.3, epsilon=4.0, source=Seeded(1), **more)


def embeddings(kind):
    pandas = pytest.importorskip("pandas")
    match kind:
        case "a list of arrays in an object array":
            cells = np.empty(200, dtype=object)
            cells[:] = list(X)
            return cells
        case "a series":
            return pandas.Series(list(X))
        case "a table":
            return pandas.DataFrame({"embedding": [row.tolist() for row in X]})
        case "a table with a number":
            return pandas.DataFrame({"a": X[:, 0], "rest": list(X[:, 1:])})
    return scipy.sparse.csr_array(X) if kind == "sparse" else scipy.sparse.coo_matrix(X)


KINDS = [
    "a list of arrays in an object array",
    "a series",
    "a table",
    "a table with a number",
    "sparse",
    "another sparse format",
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_in_another_dress_are_the_same_head(kind):
    rows = embeddings(kind)
    plain, other = head().fit(X, Y), head().fit(rows, Y)
    assert np.array_equal(plain.prototypes_, other.prototypes_)
    assert np.array_equal(plain.predict(X), other.predict(rows))
    assert np.array_equal(ClipRows().fit_transform(rows), ClipRows().fit_transform(X))


def test_arrays_of_different_lengths_are_refused_without_a_quote():
    cells = np.empty(200, dtype=object)
    cells[:] = list(X)
    cells[7] = np.array([0.123456, 1.0])
    with pytest.raises(ValueError, match="different lengths") as refused:
        head().fit(cells, Y)
    assert "0.123456" not in str(refused.value) and "othing was" in str(refused.value)


def test_a_table_of_sparse_columns_is_a_table():
    table = pd.DataFrame(X, columns=[f"c{k}" for k in range(X.shape[1])])
    sparse = table.astype(pd.SparseDtype(float, 0.0))
    fitted = head().fit(sparse, Y)
    np.testing.assert_array_equal(fitted.predict(sparse), fitted.predict(table))
    assert list(fitted.feature_names_in_) == list(table.columns)


def test_sparse_rows_that_are_too_large_dense_are_refused(monkeypatch):
    monkeypatch.setattr(checked_rows, "_MOST_BYTES", 1000)
    table = pd.DataFrame(X).astype(pd.SparseDtype(float, 0.0))
    for rows in (scipy.sparse.csr_array(X), table):
        with pytest.raises(ValueError, match="RandomProjection"):
            head().fit(rows, Y)


def test_nan_is_refused_in_words_of_our_own():
    rows = np.where(np.arange(200)[:, None] == 3, np.nan, X)
    for estimator in (head(), BallLogisticRegression(radius=0.3)):
        with pytest.raises(ValueError, match="some rows hold NaN") as refused:
            estimator.fit(rows, Y)
        message = str(refused.value)
        assert "mput" not in message and "HistGradient" not in message
    fitted = head().fit(X, Y)
    with pytest.raises(ValueError, match="some rows hold NaN"):
        fitted.predict(rows)


def test_a_star_import_gives_every_name():
    namespace: dict[str, object] = {}
    exec("from demur.convex import *", namespace)
    assert set(demur.convex.__all__) <= set(namespace)
