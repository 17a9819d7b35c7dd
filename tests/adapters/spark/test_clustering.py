"""Clustering on Spark: the clusters of one machine, however the reports are cut."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from demur.adapters.spark import assign, clustering, fit_reports
from demur.cluster import PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.decoding import posterior, search
from demur.cluster.estimators import gmm
from demur.cluster.rows import exact_sums
from demur.cluster.rows.ranked_rows import LAST_RANK, RemoteReports, RowsInMemory
from demur.core.entropy import Seeded
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports

pytestmark = pytest.mark.slow

COLUMNS = ["x", "the `y.1`"]
# Grid points far from each other beside their noise: few steps to the peak.
GRID = np.array([[a, b] for a in (0.1, 0.4, 0.7, 0.95) for b in (0.1, 0.5, 0.9)])


def made_by(mechanism, n, clusters=3, seed=0):
    rng = np.random.default_rng(seed)
    X = GRID[rng.integers(clusters, size=n)] + 0.03 * rng.normal(size=(n, 2))
    ids = rng.choice(10**12, size=n, replace=False).astype(np.uint64)
    released = mechanism.privatize(
        np.clip(X, 0, 1), ledger=None, row_ids=ids, source=Seeded(seed)
    )
    return released.value


def table_of(reports, ids=None):
    ids = reports.row_ids.astype(np.int64) if ids is None else ids
    columns = dict(zip(COLUMNS, reports.values.T, strict=True))
    return pa.table({"id": ids, **columns, "a.colour": ["red"] * len(reports)})


def fit(estimator, df, mechanism):
    return fit_reports(clone(estimator), df, mechanism, COLUMNS, "id")


def learned(fitted):
    """Every number of a fit but those of single reports."""
    names = ("cluster_centers_", "means_", "weights_", "covariances_", "width_")
    arrays = [getattr(fitted, name) for name in names if hasattr(fitted, name)]
    return np.concatenate([np.ravel(one) for one in (*arrays, fitted.inertia_)])


def labels_in_order(df, reports):
    """The column `cluster`, in the order of the reports."""
    table = df.select("id", "cluster").toArrow()
    ids, clusters = (table.column(name).to_numpy() for name in ("id", "cluster"))
    places = np.argsort(ids)
    return clusters[places[np.searchsorted(ids[places], reports.row_ids.astype(int))]]


# -- equal to one machine --------------------------------------------------------------


def test_many_reports_give_the_clusters_of_one_machine(spark):
    """No constant of the search is touched: 84,000 reports, 12 clusters, all stages."""
    mechanism = BPM(60.0, "auto", 2)
    reports = made_by(mechanism, 84_000, clusters=12)
    model = PrivateKMeans(12, random_state=0, n_init=2, max_iter=4)
    here = clone(model).fit_reports(reports)
    df = spark.createDataFrame(table_of(reports)).repartition(3)
    passes = []
    with clustering.ReportBlocks(df, mechanism, COLUMNS, "id") as blocks:
        sound = blocks.over

        def counted(work):
            passes.append(work)
            return sound(work)

        blocks.over = counted
        there = clone(model).fit_reports(blocks)
    assert len(passes) > 4 and not there.averaged_
    assert np.array_equal(learned(here), learned(there))  # 1e-9 is asked for
    assert here.n_iter_ == there.n_iter_ and here.summary() == there.summary()
    assigned = assign(there, df, COLUMNS)
    assert assigned.columns == ["id", *COLUMNS, "a.colour", "cluster"]
    assert np.array_equal(labels_in_order(assigned, reports), here.labels_)


@pytest.fixture
def small_search(monkeypatch):
    """The stages of many reports, for few."""
    monkeypatch.setattr(search, "_SCREENED", 400)
    monkeypatch.setattr(search, "_SHORTLISTED", 1500)
    monkeypatch.setattr(search, "_AVERAGED", 0)
    monkeypatch.setattr(gmm, "_EM_REPORTS", 2000)
    return monkeypatch


MODELS = {
    "kmeans": PrivateKMeans(3, random_state=1, n_init=2, max_iter=2),
    "gmm": PrivateGMM(3, random_state=1, n_init=2, max_iter=3),
    "tmm": PrivateTMM(3, random_state=1, n_init=2, max_iter=2),
}


@pytest.mark.usefixtures("small_search")
@pytest.mark.parametrize(
    ("name", "mechanism", "partitions"),
    [
        ("kmeans", LaplaceReports(20.0, 2), 4),
        ("kmeans", GaussianReports(80.0, 2), 1),
        ("gmm", BPM(20.0, "auto", 2), 3),
        ("tmm", BPM(20.0, "auto", 2), 2),
    ],
    ids=["kmeans by coordinate", "kmeans gaussian", "gmm bpm", "tmm bpm"],
)
def test_every_model_and_noise_at_any_partitions(spark, name, mechanism, partitions):
    reports = made_by(mechanism, 3000)
    here = clone(MODELS[name]).fit_reports(reports)
    whole = spark.createDataFrame(table_of(reports))
    there = fit(MODELS[name], whole.repartition(partitions), mechanism)
    assert np.array_equal(learned(here), learned(there))
    labels = labels_in_order(assign(there, whole, COLUMNS), reports)
    assert np.array_equal(labels, here.labels_)


@pytest.mark.usefixtures("small_search")
def test_the_size_of_arrow_batches_does_not_matter(spark):
    mechanism = BPM(20.0, "auto", 2)
    reports = made_by(mechanism, 2500)
    here = clone(MODELS["kmeans"]).fit_reports(reports)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "97")
    try:
        df = spark.createDataFrame(table_of(reports)).repartition(2)
        there = fit(MODELS["kmeans"], df, mechanism)
    finally:
        spark.conf.set(name, before)
    assert np.array_equal(learned(here), learned(there))


def test_plain_sums_would_depend_on_the_partitions(spark, small_search):
    """The twin: anchors of 0 cut nothing, and partial sums are added up as they are."""
    mechanism = BPM(20.0, "auto", 2)
    reports = made_by(mechanism, 2500)
    small_search.setattr(exact_sums, "anchors", lambda count, b: np.zeros((2, len(b))))
    here = clone(MODELS["kmeans"]).fit_reports(reports)
    df = spark.createDataFrame(table_of(reports)).repartition(3)
    there = fit(MODELS["kmeans"], df, mechanism)
    gap = np.abs(here.cluster_centers_ - there.cluster_centers_).max()
    assert 0.0 < gap < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_few_reports_are_those_of_one_machine_too(spark, name, monkeypatch):
    """Where the posterior is averaged, and where reports are too few for it."""
    monkeypatch.setattr(posterior, "_MOST", 24)
    monkeypatch.setattr(posterior, "_FEWEST", 24)
    for mechanism, n in ((BPM(20.0, "auto", 2), 300), (BPM(2.0, "auto", 2), 90)):
        reports = made_by(mechanism, n)
        here = clone(MODELS[name]).fit_reports(reports)
        df = spark.createDataFrame(table_of(reports)).repartition(2)
        there = fit(MODELS[name], df, mechanism)
        assert here.summary() == there.summary()
        assert np.array_equal(learned(here), learned(there))


# -- what comes to the driver, what stays ----------------------------------------------


def test_blocks_are_a_source_and_are_forgotten(spark):
    mechanism = BPM(20.0, "auto", 2)
    reports = made_by(mechanism, 5000)
    held = RowsInMemory(reports.values, reports.row_ids)
    df = spark.createDataFrame(table_of(reports)).repartition(2)
    cached = spark.sparkContext._jsc.getPersistentRDDs
    before = len(cached())
    with clustering.ReportBlocks(df, mechanism, COLUMNS, "id") as blocks:
        assert isinstance(blocks, RemoteReports) and blocks.shape == (5000, 2)
        assert len(cached()) == before + 1
        for last in (LAST_RANK, LAST_RANK // 10, 0):
            found = blocks.ranked_up_to(bytes(32), last)
            wanted = held.ranked_up_to(bytes(32), last)
            mine, other = np.argsort(found[0]), np.argsort(wanted[0])
            assert np.array_equal(found[0][mine], wanted[0][other])
            assert np.array_equal(found[1][mine], wanted[1][other])
            assert found[1].shape[1] == 2
    assert len(cached()) == before


def test_a_fit_leaves_what_needs_every_report_where_it_is(spark):
    mechanism = BPM(20.0, "auto", 2)
    df = spark.createDataFrame(table_of(made_by(mechanism, 300)))
    model = clone(MODELS["kmeans"])
    assert fit_reports(model, df, mechanism, COLUMNS, "id") is model
    for name in ("labels_", "reports_"):
        with pytest.raises(AttributeError, match=r"spark\.assign"):
            getattr(model, name)
    assert model.entry_ is None and "nothing was charged" in model.summary()
    assert model.predict(GRID).shape == (12,) and model.n_reports_ == 300


def test_rows_that_change_while_they_are_read_are_noticed(spark):
    mechanism = BPM(20.0, "auto", 2)
    df = spark.createDataFrame(table_of(made_by(mechanism, 300)))
    with clustering.ReportBlocks(df, mechanism, COLUMNS, "id") as blocks:
        blocks.shape = (301, 2)
        with pytest.raises(RuntimeError, match="other rows"):
            blocks.over(lambda rows: nothing)


nothing = exact_sums.PartialSums(np.zeros(1), np.zeros(1), np.zeros(1))


# -- bad input -------------------------------------------------------------------------

GOOD = BPM(20.0, 0.5, 2)
SECRET = 1.6180339


def bad(column, value):
    def spoil(table):
        place = table.schema.get_field_index(column)
        values = table.column(column).to_pylist()
        values[3] = value
        kind = table.schema.field(column).type
        return table.set_column(place, column, pa.array(values, kind))

    return spoil


BAD_ROWS = {
    "null": (bad("x", None), "1 rows have no value"),
    "null id": (bad("id", None), "1 rows have no value"),
    "nan": (bad("x", math.nan), "1 rows are not finite"),
    "infinity": (bad("the `y.1`", math.inf), "1 rows are not finite"),
    "outside": (bad("x", SECRET), "1 rows are not finite or outside"),
    "negative id": (bad("id", -5), "negative id"),
    "empty": (lambda table: table.slice(0, 0), "no reports"),
    "twice": (lambda table: pa.concat_tables([table, table]), "250 of them occur"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_no_reports_are_refused_without_their_values(spark, case):
    spoil, words = BAD_ROWS[case]
    df = spark.createDataFrame(spoil(table_of(made_by(GOOD, 250))))
    model = clone(MODELS["kmeans"])
    before = len(spark.sparkContext._jsc.getPersistentRDDs())
    with pytest.raises(ValueError, match=words) as caught:
        fit_reports(model, df, GOOD, COLUMNS, "id")
    assert str(SECRET)[:6] not in str(caught.value)
    assert not hasattr(model, "cluster_centers_")
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == before


def test_arguments_that_do_not_fit_are_refused(spark):
    df = spark.createDataFrame(table_of(made_by(GOOD, 250)))
    model = PrivateKMeans(3, random_state=0)
    for arguments, error, words in (
        ((model, df, GOOD, ["x"], "id"), ValueError, "2 different columns"),
        ((model, df, GOOD, ["x", "x"], "id"), ValueError, "2 different columns"),
        ((model, df, GOOD, ["x", "id"], "id"), ValueError, "2 different columns"),
        ((model, df, GOOD, "xy", "id"), TypeError, "list of names"),
        ((model, df, GOOD, ["x", "z"], "id"), ValueError, "one column 'z'"),
        ((model, df, GOOD, ["x", "a.colour"], "id"), ValueError, "got string"),
        ((model, df, GOOD, COLUMNS, "a.colour"), ValueError, "got string"),
        ((model, df, GOOD, COLUMNS, None), (TypeError, ValueError), "column"),
        ((model, df.toPandas(), GOOD, COLUMNS, "id"), TypeError, "Spark DataFrame"),
        ((model, df, "bpm", COLUMNS, "id"), TypeError, "the one that drew"),
        ((GOOD, df, GOOD, COLUMNS, "id"), TypeError, "estimator must be"),
        ((PrivateKMeans(251), df, GOOD, COLUMNS, "id"), ValueError, "250 rows"),
    ):
        with pytest.raises(error, match=words):
            fit_reports(*arguments)
    for decoder in ("clip", "plain"):
        with pytest.raises(ValueError, match="not on this machine"):
            fit_reports(PrivateKMeans(3, decoder=decoder), df, GOOD, COLUMNS, "id")
    assert not hasattr(model, "cluster_centers_")


def test_assign_refuses_what_it_cannot_label(spark):
    reports = made_by(GOOD, 250)
    df = spark.createDataFrame(table_of(reports))
    model = clone(MODELS["kmeans"]).set_params(decoder="clip").fit_reports(reports)
    labels = labels_in_order(assign(model, df, COLUMNS), reports)
    assert np.array_equal(labels, model.labels_)
    with pytest.raises(NotFittedError):
        assign(PrivateKMeans(3), df, COLUMNS)
    with pytest.raises(ValueError, match="2 different columns"):
        assign(model, df, ["x"])
    with pytest.raises(ValueError, match="already has a column"):
        assign(model, df, COLUMNS, name="a.colour")
    wrong = spark.createDataFrame(bad("x", SECRET)(table_of(reports)))
    with pytest.raises(Exception, match="1 rows are not finite or outside") as caught:
        assign(model, wrong, COLUMNS).collect()
    assert str(SECRET)[:6] not in str(caught.value)
