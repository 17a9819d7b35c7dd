"""The part of the reports that is looked at closely: random, and a matter of ids."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from demur.cluster import PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.decoding import posterior, search
from demur.cluster.decoding.lloyd import lloyd
from demur.cluster.estimators import gmm
from demur.cluster.rows import exact_sums
from demur.cluster.rows import ranked_rows as source
from demur.cluster.rows.ranked_rows import (
    LAST_RANK,
    RowsInMemory,
    in_order,
    new_key,
    ranks,
    subsample,
)
from demur.core.entropy import Seeded
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.reports import Reports

KEY = bytes(range(32))


def rows_of(ids):
    ids = np.asarray(ids, dtype=np.uint64)
    return RowsInMemory(ids.astype(np.float64)[:, None], ids)


class Parts:
    """Rows in several places."""

    def __init__(self, ids, cuts):
        self.parts = [rows_of(part) for part in np.split(ids, sorted(cuts))]
        self.shape = len(ids), 1

    def ranked_up_to(self, key, last):
        found = [part.ranked_up_to(key, last) for part in self.parts]
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))


IDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300, unique=True)


@settings(max_examples=100, deadline=None)
@given(IDS, st.binary(min_size=32, max_size=32), st.integers(1, 80), st.data())
def test_a_subsample_is_a_function_of_the_ids(ids, key, count, data):
    ids = np.array(ids, dtype=np.uint64)
    turned = ids[data.draw(st.permutations(range(len(ids))))]
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=4))
    one = subsample(rows_of(ids), key, count)
    other = subsample(Parts(turned, cuts), key, count)
    assert one.row_ids.tolist() == other.row_ids.tolist()
    assert one.values.tolist() == other.values.tolist()
    assert len(one.row_ids) == min(count, len(ids))
    # Spelled out: the smallest ranks, in their order.
    by_rank = sorted(zip(ranks(key, ids).tolist(), ids.tolist(), strict=True))
    assert one.row_ids.tolist() == [i for _, i in by_rank[:count]]
    fewer = subsample(rows_of(ids), key, max(1, count // 2)).row_ids
    assert one.row_ids[: len(fewer)].tolist() == fewer.tolist()


@pytest.mark.slow
def test_every_set_and_every_order_is_equally_likely():
    """Chi-square over the 60 ordered triples of 5 ids, 24,000 keys.

    The twin takes the smallest of id x odd multiplier + key: uniform for each id, and
    not jointly. It is rejected with p < 1e-12, and so is one that prefers an id by 10%.
    """
    rng = np.random.default_rng(0)
    ids = np.array([3, 4, 5, 1000, 2**63], dtype=np.uint64)
    triples = list(permutations(range(5), 3))

    def p_value(rank):
        counts = dict.fromkeys(triples, 0)
        for _ in range(24_000):
            counts[tuple(np.argsort(rank())[:3].tolist())] += 1
        return stats.chisquare(list(counts.values())).pvalue

    assert p_value(lambda: ranks(new_key(rng), ids)) > 1e-4
    odd = np.uint64(0x9E3779B97F4A7C15)
    assert p_value(lambda: ids * odd + rng.integers(2**63, dtype=np.uint64)) < 1e-12
    bias = np.array([1.0, 1.0, 1.0, 1.0, 1.1])
    assert p_value(lambda: rng.exponential(size=5) / bias) < 1e-4


def test_ids_of_any_pattern_are_chosen_alike():
    """Of ids in a row, in steps and in blocks, each half gives half of the sample."""
    rng = np.random.default_rng(1)
    for ids in (
        np.arange(20_000),
        np.arange(20_000) << 40,
        np.arange(20_000) * 4096 + 7,
        np.concatenate([np.arange(10_000), 2**62 + np.arange(10_000)]),
    ):
        chosen = subsample(rows_of(ids), new_key(rng), 4000).row_ids
        share = (chosen < np.uint64(ids[10_000])).mean()
        deviation = math.sqrt(0.25 / 4000 * 0.8)  # without replacement
        assert abs(share - 0.5) < 5 * deviation


def test_few_ranks_too_low_are_asked_for_again(monkeypatch):
    asked = []

    class Counted(RowsInMemory):
        def ranked_up_to(self, key, last):
            asked.append(last)
            return super().ranked_up_to(key, last)

    rows = rows_of(range(5000))
    rows = Counted(rows.values, rows.row_ids)
    usual = subsample(rows, KEY, 100).row_ids
    assert len(asked) == 1
    monkeypatch.setattr(source, "_enough", lambda size, count: LAST_RANK // 10_000)
    again = subsample(rows, KEY, 100).row_ids
    assert len(asked) > 3 and again.tolist() == usual.tolist()


def test_rows_that_went_away_are_missed():
    class Fewer(RowsInMemory):
        def ranked_up_to(self, key, last):
            return self.row_ids[:10], self.values[:10]

    rows = rows_of(range(50))
    with pytest.raises(RuntimeError, match="10 of 50 reports"):
        subsample(Fewer(rows.values, rows.row_ids), KEY, 20)


def test_all_of_them_in_the_order_of_ids():
    found = in_order(rows_of([5, 2**64 - 1, 0, 7]))
    assert found.row_ids.tolist() == [0, 5, 7, 2**64 - 1]
    assert found.values[1] == 5.0


# -- a fit does not depend on the order of its reports --------------------------------

MODELS = {
    "kmeans": PrivateKMeans(3, random_state=0, n_init=3, max_iter=20),
    "gmm": PrivateGMM(3, random_state=0, n_init=3, max_iter=5),
    "tmm": PrivateTMM(3, random_state=0, n_init=3, max_iter=20),
}


def made_by(mechanism, n, seed=0):
    rng = np.random.default_rng(seed)
    centers = np.array([[0.2, 0.2], [0.8, 0.4], [0.4, 0.8]])
    X = centers[rng.integers(3, size=n)] + 0.05 * rng.normal(size=(n, 2))
    ids = rng.choice(10**9, size=n, replace=False).astype(np.uint64)
    released = mechanism.privatize(
        np.clip(X, 0, 1), ledger=None, row_ids=ids, source=Seeded(seed)
    )
    return released.value


def learned(fitted):
    """Every number of a fit, to the last bit, but those of single reports."""
    names = ("cluster_centers_", "means_", "weights_", "covariances_", "width_")
    arrays = [getattr(fitted, name) for name in names if hasattr(fitted, name)]
    return [np.asarray(one).tobytes() for one in (*arrays, fitted.inertia_)]


def turned(reports, seed=5):
    order = np.random.default_rng(seed).permutation(len(reports))
    return order, Reports(
        reports.values[order], reports.row_ids[order], reports.mechanism
    )


@pytest.fixture
def small_search(monkeypatch):
    """The stages of many reports, for few."""
    monkeypatch.setattr(search, "_SCREENED", 300)
    monkeypatch.setattr(search, "_SHORTLISTED", 900)
    monkeypatch.setattr(search, "_AVERAGED", 0)
    monkeypatch.setattr(gmm, "_EM_REPORTS", 900)
    monkeypatch.setattr(posterior, "_MOST", 24)
    monkeypatch.setattr(posterior, "_FEWEST", 24)
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mechanism", "averaged"),
    [
        ("kmeans", BPM(8.0, "auto", 2), False),
        ("kmeans", BPM(8.0, "auto", 2), True),
        ("kmeans", LaplaceReports(2.0, 2), False),
        ("kmeans", LaplaceReports(2.0, 2), True),
        ("gmm", BPM(8.0, "auto", 2), True),
        ("gmm", GaussianReports(30.0, 2), False),
        ("tmm", BPM(8.0, "auto", 2), False),
        ("tmm", GaussianReports(30.0, 2), True),
    ],
)
def test_the_order_of_reports_does_not_matter(name, mechanism, averaged, small_search):
    small_search.setattr(search, "_AVERAGED", averaged * 10**6)
    reports = made_by(mechanism, 1300)
    order, other = turned(reports)
    one = clone(MODELS[name]).fit_reports(reports)
    two = clone(MODELS[name]).fit_reports(other)
    assert learned(one) == learned(two)
    assert np.array_equal(one.labels_[order], two.labels_)
    assert np.array_equal(one.report_labels(reports.values), one.labels_)
    # Other ids are another subsample, and nothing where all rows follow their values.
    three = clone(MODELS[name]).fit_reports(reports.values, mechanism)
    assert (learned(three) == learned(one)) is (averaged and name != "gmm")


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["clip", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_the_order_does_not_matter_to_the_baselines_either(name, decoder):
    reports = made_by(BPM(8.0, "auto", 2), 250)
    order, other = turned(reports)
    one, two = (
        clone(MODELS[name]).set_params(decoder=decoder).fit_reports(given)
        for given in (reports, other)
    )
    assert learned(one) == learned(two)
    assert np.array_equal(one.labels_[order], two.labels_)


@pytest.mark.slow
def test_plain_sums_would_make_it_matter(small_search):
    """The twin: anchors of 0 cut nothing, and reports are added up as they come."""
    reports = made_by(BPM(8.0, "auto", 2), 1300)
    _, other = turned(reports)

    def agree():
        fits = [clone(MODELS["kmeans"]).fit_reports(one) for one in (reports, other)]
        return learned(fits[0]) == learned(fits[1])

    assert agree()
    small_search.setattr(exact_sums, "anchors", lambda count, b: np.zeros((2, len(b))))
    assert not agree()


def test_threads_do_not_matter_to_the_starts():
    """Whichever way scikit-learn is told to use them."""
    rows = np.random.default_rng(0).random((20_000, 3))
    found = set()
    for threads in (1, 3, 4, 4, 4):
        with threadpool_limits(threads):
            model = lloyd(rows, 6, start=rows[:6], max_iter=50)
        found.add(model.cluster_centers_.tobytes())
    assert len(found) == 1


# -- reports that lie elsewhere --------------------------------------------------------


class Elsewhere:
    """Reports in three batches, none of which may be asked for as a whole."""

    def __init__(self, reports):
        self.mechanism = reports.mechanism
        cuts = [len(reports) // 7, len(reports) // 2]
        self._parts = [
            RowsInMemory(values, ids)
            for values, ids in zip(
                np.split(reports.values, cuts),
                np.split(reports.row_ids, cuts),
                strict=True,
            )
        ]
        self.shape = reports.values.shape
        self.brought = 0

    def over(self, work):
        found = [part.over(work) for part in self._parts]
        return found[2] + (found[0] + found[1])

    def ranked_up_to(self, key, last):
        found = [part.ranked_up_to(key, last) for part in self._parts]
        ids, values = (np.concatenate(one) for one in zip(*found, strict=True))
        self.brought = max(self.brought, len(ids))
        return ids, values


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_reports_elsewhere_give_the_clusters_they_would_give_here(name, small_search):
    reports = made_by(BPM(8.0, "auto", 2), 2500)
    here = clone(MODELS[name]).fit_reports(reports)
    there = Elsewhere(reports)
    fitted = clone(MODELS[name]).fit_reports(there)
    assert learned(here) == learned(fitted) and there.brought < 1200
    assert here.summary() == fitted.summary() and fitted.n_reports_ == 2500
    assert np.array_equal(fitted.labelling()(reports.values), here.labels_)
    for one in ("labels_", "reports_"):
        assert not hasattr(fitted, one)
        with pytest.raises(AttributeError, match="stored elsewhere"):
            getattr(fitted, one)
    with pytest.raises(AttributeError) as caught:
        _ = fitted.lables_
    assert "elsewhere" not in str(caught.value)
    # A fit here after one there has both, and the other way round none.
    assert np.array_equal(fitted.fit_reports(reports).labels_, here.labels_)
    assert not hasattr(fitted.fit_reports(there), "labels_")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_few_reports_elsewhere_are_weighed_as_here(name):
    reports = made_by(BPM(2.0, "auto", 2), 120)
    here = clone(MODELS[name]).fit_reports(reports)
    fitted = clone(MODELS[name]).fit_reports(Elsewhere(reports))
    assert "clipped reports" in fitted.decoder_reason_
    assert learned(here) == learned(fitted)


def test_elsewhere_the_baselines_are_refused():
    reports = made_by(BPM(8.0, "auto", 2), 60)
    for decoder in ("clip", "plain"):
        model = PrivateKMeans(3, decoder=decoder)
        with pytest.raises(ValueError, match="not on this machine"):
            model.fit_reports(Elsewhere(reports))
        assert not hasattr(model, "cluster_centers_")
    with pytest.raises(ValueError, match="the reports' own"):
        PrivateKMeans(3).fit_reports(Elsewhere(reports), BPM(7.0, "auto", 2))
    with pytest.raises(ValueError, match="more than the 60 rows"):
        PrivateKMeans(61).fit_reports(Elsewhere(reports))
