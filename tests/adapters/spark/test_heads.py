"""Heads of rows in Spark: those of the same rows in memory, and no secret written."""

import base64
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from demur.adapters.spark import SparkRows
from demur.adapters.spark import heads as spark_heads
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    DataChanged,
    ParquetRows,
)
from demur.convex.solving import streamed_solver
from demur.core.adjacency import Ball
from demur.core.entropy import Seeded
from demur.ledger import Budget, Ledger
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

UNIT = Ball(0.3, space="records")
X, Y = blobs(3000, 5, 3, seed=4)
X = X.astype(np.float32)
NAMES = np.array(["no", "yes", "maybe"])[Y]
MAKE: dict[str, Any] = {"radius": 0.3, "lam": 1e-3, "classes": [0, 1]}


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    """Embeddings in a column of lists, in three partitions of different lengths."""
    rows = pa.table({"embedding": list(X), "kind": NAMES, "two": Y % 2})
    return spark.createDataFrame(rows).repartition(3).cache()


class Fitted(NamedTuple):
    head: BallLogisticRegression
    ledger: Ledger
    thetas: list[np.ndarray]  # every theta that was sent to tasks


@pytest.fixture(scope="module")
def fitted(table):
    thetas: list[np.ndarray] = []
    plain = spark_heads.SparkSource.totals

    def totals(self, task):
        thetas.append(task.work.theta.copy())
        return plain(self, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_heads.SparkSource, "totals", totals)
        # A small sample leaves something to do; sums are merged on executors first.
        patch.setattr(streamed_solver, "_MOST_SAMPLE", 512)
        patch.setattr(spark_heads, "_LARGE", 0)
        patch.setattr(spark_heads, "_FEW", 2)
        ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
        rows = SparkRows(table, label="two", columns=["embedding"])
        head = BallLogisticRegression(source=Seeded(1), ledger=ledger, **MAKE)
        return Fitted(head.fit(rows), ledger, thetas)


def test_a_logistic_head_is_that_of_the_array(fitted):
    head, ledger, thetas = fitted
    whole = BallLogisticRegression(source=Seeded(1), **MAKE).fit(X, Y % 2)
    assert np.allclose(head.coef_, whole.coef_, rtol=0, atol=1e-6)
    assert np.allclose(head.intercept_, whole.intercept_, rtol=0, atol=1e-6)
    assert head.privacy_.sensitivity == whole.privacy_.sensitivity
    assert head.privacy_.sigma == whole.privacy_.sigma
    assert len(ledger.entries()) == 1
    assert 2 <= len(thetas) <= 6
    # The last theta is the exact minimiser; the released head is far from it.
    assert np.abs(head.coef_[0] - thetas[-1][:5]).max() > 1e-4


def test_an_exact_iterate_is_in_no_log_and_no_file(fitted, spark, spark_files):
    """Twin: a theta put into a job's description is found by the same search."""
    assert not found_in(spark_files, fitted.thetas)
    context = spark.sparkContext
    try:
        context.setJobDescription(repr(float(fitted.thetas[-1][0])))
        spark.range(2).count()
    finally:
        context.setJobDescription(None)
    assert found_in(spark_files, fitted.thetas)


def found_in(folder, thetas):
    """Whether a number of a theta stands in a file: as text, as bytes, in base64."""
    searched = 0
    wanted: set[bytes] = set()
    for theta in thetas:
        raw = np.ascontiguousarray(theta).tobytes()
        wanted |= {base64.b64encode(raw[i:])[4:-8] for i in range(3)}
        for value in theta.reshape(-1):
            wanted |= {value.tobytes(), repr(float(value)).encode()}
    for path in folder.rglob("*"):
        # The links of its home lead to Spark itself.
        if path.is_file() and "home" not in path.relative_to(folder).parts:
            content = path.read_bytes()
            searched += len(content)
            if any(word in content for word in wanted):
                return True
    assert searched > 10_000
    return False


def test_prototypes_are_equal_to_the_bit_and_labels_may_be_names(table, tmp_path):
    rows = SparkRows(table, label="kind", columns=["embedding"])
    head = BallPrototypeClassifier(radius=0.3, source=Seeded(2)).fit(rows)
    whole = BallPrototypeClassifier(radius=0.3, source=Seeded(2)).fit(X, NAMES)
    assert np.array_equal(head.prototypes_, whole.prototypes_)
    assert head.classes_.tolist() == whole.classes_.tolist()
    table.select("embedding", "kind").write.parquet(str(tmp_path / "rows"))
    file = ParquetRows(tmp_path / "rows", label="kind")
    again = BallPrototypeClassifier(radius=0.3, source=Seeded(2)).fit(file)
    assert np.array_equal(again.prototypes_, whole.prototypes_)


def test_other_columns_may_hold_what_arrow_cannot_name(table):
    """A time needs a zone in Arrow's schema; a backtick needs another in Spark's."""
    odd = table.limit(50).select(
        F.col("embedding").alias("an `odd` one"),
        F.col("two").alias("a.`label`"),
        F.current_timestamp().alias("when"),
        F.expr("make_interval(1, 2)").alias("how long"),
    )
    rows = SparkRows(odd, label="a.`label`", columns=["an `odd` one"])
    head = BallPrototypeClassifier(radius=0.3).fit(rows)
    assert head.n_features_in_ == 5
    for name in ("when", "how long"):
        wrong = SparkRows(odd, label="a.`label`", columns=[name])
        with pytest.raises(ValueError, match=f"column '{name}' must hold numbers"):
            BallPrototypeClassifier(radius=0.3).fit(wrong)


def test_noisy_descent_is_that_of_the_array(table):
    make = {"radius": 0.3, "mechanism": "noisy_gd", "steps": 2, "source": Seeded(5)}
    rows = SparkRows(table, label="kind", columns=["embedding"])
    head = BallSoftmaxClassifier(**make).fit(rows)
    whole = BallSoftmaxClassifier(**(make | {"source": Seeded(5)})).fit(X, NAMES)
    assert np.allclose(head.coef_, whole.coef_, rtol=0, atol=1e-6)


def test_rows_that_differ_between_passes_are_refused(table):
    """A DataFrame is computed anew for each job; this one never twice alike."""
    now = F.expr("unix_micros(current_timestamp()) % 1000000 / 1e7")
    moving = table.withColumn("noise", now)
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    rows = SparkRows(moving, label="two", columns=["embedding", "noise"])
    with pytest.raises(DataChanged, match="nothing was charged"):
        BallLogisticRegression(radius=0.3, lam=1e-3, ledger=ledger).fit(rows)
    assert not ledger.entries()


def test_bad_rows_are_refused_in_plain_words(spark, table):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)

    def refused(df, words, label="two", columns=("embedding",)):
        head = BallLogisticRegression(radius=0.3, ledger=ledger)
        with pytest.raises((ValueError, TypeError), match=words) as raised:
            head.fit(SparkRows(df, label=label, columns=columns))
        assert "othing was" in str(raised.value)
        assert "Traceback" not in str(raised.value)
        assert not ledger.entries()

    nan = table.withColumn("bad", F.lit(float("nan")))
    refused(nan, "NaN", columns=("embedding", "bad"))
    refused(table, "no column", label="none")
    refused(table, "must hold numbers", columns=("kind",))
    refused(table, "Only binary", label="kind")
    refused(table.limit(0), "no rows")
    with pytest.raises(TypeError, match="must be a Spark DataFrame"):
        BallLogisticRegression(radius=0.3).fit(SparkRows(X))
