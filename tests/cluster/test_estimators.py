"""The estimators: what they promise, refuse, keep, and are worth."""

from __future__ import annotations

import gc
import inspect
import math
import pickle
import time
from types import FunctionType, ModuleType

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import estimator_checks

from demur.cluster import CentralKMeans, PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.decoding import posterior, search
from demur.cluster.estimators import base, gmm, tmm
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import OsEntropy, Seeded
from demur.core.errors import BudgetExceeded, NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.reports import Reports
from demur.mechanisms.sampling.row_streams import RowStreams
from demur.preprocessing import PublicScaler

UNIT = Ball(0.1, space="cube")
MODELS = {
    "kmeans": PrivateKMeans(n_clusters=3, epsilon=8.0, random_state=0, n_init=3),
    "gmm": PrivateGMM(
        n_components=3, epsilon=8.0, random_state=0, n_init=3, max_iter=10
    ),
    "tmm": PrivateTMM(n_components=3, epsilon=8.0, random_state=0, n_init=3),
}
every = pytest.mark.parametrize("name", MODELS)
briefly = pytest.mark.usefixtures("short_posterior")


@pytest.fixture
def short_posterior(monkeypatch):
    """Hardly any draws, for tests of anything but what the centres are worth."""
    monkeypatch.setattr(posterior, "_MOST", 24)
    monkeypatch.setattr(posterior, "_FEWEST", 24)


def blobs(n=300, seed=42):
    X, _ = make_blobs(n, 2, centers=3, cluster_std=0.5, random_state=seed)
    return (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))


def model(name, **parameters):
    return clone(MODELS[name]).set_params(**parameters)


def new_ledger(epsilon=10.0):
    return Ledger(Budget(epsilon), unit=UNIT, filter="pure")


def ratio(X, centers, clusters=3):
    best = KMeans(clusters, n_init=5, random_state=0).fit(X).inertia_
    squares = ((X[:, None] - np.asarray(centers)[None]) ** 2).sum(axis=2)
    return squares.min(axis=1).sum() / best


# -- what a fit gives ----------------------------------------------------------------

SEED = {  # the seed's arguments, in its order, with its defaults
    PrivateKMeans: {"n_clusters": 0, "epsilon": 0, "L": 0, "max_iter": 300,
                    "random_state": None},
    PrivateGMM: {"n_components": 0, "epsilon": 0, "L": 0, "covariance_type": "full",
                 "max_iter": 100, "random_state": None},
    PrivateTMM: {"n_components": 3, "epsilon": 1.0, "L": 0, "nu": 15.0, "alpha": 0.01,
                 "max_iter": 500, "tol": 0.1, "random_state": None},
}  # fmt: skip


@pytest.mark.parametrize("kind", SEED)
def test_the_seeds_constructors(kind):
    """By place and by name. Where the seed has no default (0) ours may be any."""
    ours = inspect.signature(kind).parameters
    by_place = [n for n, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_place == list(SEED[kind])
    for name, default in SEED[kind].items():
        assert default == 0 or ours[name].default == default
    methods = {"fit", "predict", "score", "compute_sse", "fit_reports", "summary"}
    if kind is not PrivateKMeans:
        methods |= {"predict_proba", "sample", "compute_aic", "compute_bic"}
    assert all(callable(getattr(kind, name)) for name in methods)


@pytest.mark.slow
@briefly
@every
def test_a_fit_has_what_scikit_learn_users_expect(name):
    X = blobs()
    fitted = model(name).fit(X)
    centers = fitted.cluster_centers_ if name == "kmeans" else fitted.means_
    assert centers.shape == (3, 2) and (centers >= 0).all() and (centers <= 1).all()
    assert fitted.labels_.shape == (300,) and set(fitted.labels_) <= {0, 1, 2}
    assert fitted.inertia_ > 0 and fitted.n_features_in_ == 2 and fitted.n_iter_ >= 1
    assert isinstance(fitted.reports_, Reports) and len(fitted.reports_) == 300
    assert fitted.decoder_ == "noise_aware" and fitted.entry_ is not None
    assert fitted.predict(X).shape == (300,)
    squares = ((X - centers[fitted.predict(X)]) ** 2).sum()
    assert fitted.compute_sse(X) == pytest.approx(squares)
    text = fitted.summary()
    assert "BPM(epsilon=8" in text and "noise_aware" in text and "Not recorded" in text
    if name == "kmeans":
        assert fitted.score(X) == -fitted.compute_sse(X)
        assert np.array_equal(fitted.labels_, fitted.predict(fitted.reports_.values))
    else:
        assert np.allclose(fitted.predict_proba(X).sum(axis=1), 1.0)
        assert fitted.weights_.sum() == pytest.approx(1.0)
        points, labels = fitted.sample(500)
        assert points.shape == (500, 2) and labels.shape == (500,)
        assert fitted.compute_bic(X) > fitted.compute_aic(X)
        assert fitted.score(X) == pytest.approx(fitted.score_samples(X).mean())


@pytest.mark.slow
@every
def test_centres_are_near_the_truth(name):
    X = blobs(2000)
    fitted = model(name, source=Seeded(4)).fit(X)
    centers = fitted.cluster_centers_ if name == "kmeans" else fitted.means_
    assert ratio(X, centers) < 1.3


@pytest.mark.slow
@briefly
@every
def test_fit_reports_is_the_server_alone(name):
    X = blobs()
    reports = BPM(8.0, "auto", 2).privatize(X, ledger=None, source=Seeded(1)).value
    whole = model(name, source=Seeded(1)).fit(X)
    alone = model(name, epsilon=1.0).fit_reports(reports)
    again = model(name).fit_reports(reports.values, reports.mechanism)
    attribute = "cluster_centers_" if name == "kmeans" else "means_"
    for other in (alone, again):
        assert np.array_equal(getattr(whole, attribute), getattr(other, attribute))
        assert other.entry_ is None and "nothing was charged" in other.summary()


@pytest.mark.slow
@briefly
def test_random_state_seeds_the_clustering_and_never_the_noise():
    X = blobs()
    one, two = (model("kmeans").fit(X) for _ in range(2))
    assert not np.array_equal(one.reports_.values, two.reports_.values)
    again = model("kmeans").fit_reports(one.reports_)
    assert np.array_equal(one.cluster_centers_, again.cluster_centers_)


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["clip", "plain"])
@every
def test_the_baselines_are_scikit_learns_on_reports(name, decoder):
    X = blobs()
    fitted = model(name, decoder=decoder, mechanism="laplace").fit(X)
    assert fitted.decoder_ == decoder and fitted.decoder_reason_ == "asked for"
    rows = np.array(fitted.reports_)
    if decoder == "clip":
        rows = np.clip(rows, 0, 1)
    if name == "kmeans":
        direct = KMeans(3, n_init=20, random_state=1).fit(rows)
        squares = ((rows[:, None] - fitted.cluster_centers_[None]) ** 2).sum(axis=2)
        assert squares.min(axis=1).sum() <= 1.05 * direct.inertia_
    elif name == "gmm":
        direct = GaussianMixture(3, random_state=1, reg_covar=1e-5).fit(rows)
        assert fitted.score(rows) > direct.score(rows) - 0.2
    else:
        assert fitted.nu_ != 15.0 and fitted.alpha_ > 0


@pytest.mark.slow
@briefly
def test_covariances_have_scikit_learns_shapes():
    X = blobs()
    for kind, shape in (
        ("full", (3, 2, 2)),
        ("tied", (2, 2)),
        ("diag", (3, 2)),
        ("spherical", (3,)),
    ):
        fitted = model("gmm", covariance_type=kind).fit(X)
        assert fitted.covariances_.shape == shape
        ours = GaussianMixture(3, covariance_type=kind).fit(X)
        assert fitted._parameters() == ours._n_parameters()
        ours.means_, ours.weights_ = fitted.means_, fitted.weights_
        ours.covariances_ = fitted.covariances_
        matrices = fitted._matrices()
        ours.precisions_cholesky_ = {
            "full": np.linalg.inv(np.linalg.cholesky(matrices)).transpose(0, 2, 1),
            "tied": np.linalg.inv(np.linalg.cholesky(matrices[0])).T,
            "diag": 1 / np.sqrt(np.diagonal(matrices, axis1=1, axis2=2)),
            "spherical": 1 / np.sqrt(matrices[:, 0, 0]),
        }[kind]
        assert np.allclose(fitted.score_samples(X), ours.score_samples(X))
        assert np.allclose(fitted.predict_proba(X), ours.predict_proba(X))


# -- too few reports -----------------------------------------------------------------


@pytest.mark.slow
@briefly
@every
def test_few_reports_weigh_the_clipped_law_and_say_so(name):
    X = blobs(150)
    few = model(name, epsilon=1.0).fit(X)
    assert few.decoder_ == "noise_aware"
    assert "clipped reports have a share of" in few.summary()
    other = model(name, fallback=False).fit_reports(few.reports_)
    assert "clipped" not in other.summary()
    attribute = "cluster_centers_" if name == "kmeans" else "means_"
    assert not np.allclose(getattr(few, attribute), getattr(other, attribute))
    # Informative reports leave nothing to weigh: clipping is far less likely.
    assert "clipped" not in model(name, epsilon=4.0).fit(blobs(900)).summary()


@pytest.mark.slow
@briefly
@every
def test_a_summary_says_when_reports_were_subsampled(name, monkeypatch):
    monkeypatch.setattr(search, "_SCREENED", 100)
    monkeypatch.setattr(search, "_SHORTLISTED", 250)
    reports = BPM(8.0, "auto", 2).privatize(blobs(300), ledger=None).value
    fitted = model(name).fit_reports(reports)
    seen = "tried on 100 of the 300 reports, the best 3 on 250, the last one on all"
    assert seen in fitted.summary()
    few = reports.values[:200]
    assert "100 of the 200 reports, the best 3 followed on all" in (
        fitted.fit_reports(few, reports.mechanism).summary()
    )
    assert "subsampled" not in (
        fitted.fit_reports(few[:100], reports.mechanism).summary()
    )
    fitted.fit_reports(reports).set_params(decoder="clip").fit_reports(reports)
    assert "subsampled" not in fitted.summary()
    if name == "gmm":
        monkeypatch.setattr(gmm, "_EM_REPORTS", 120)
        said = model(name).fit_reports(reports).summary()
        assert "120 of the 300 reports were fitted; of those all starts" in said


# -- the ledger ------------------------------------------------------------------------


@every
def test_every_fit_is_charged_and_declined_when_it_does_not_fit(name):
    X = blobs(50)
    ledger = new_ledger(2.0)
    fitted = model(name, ledger=ledger, label="homes", decoder="clip").fit(X)
    assert ledger.epsilon() == pytest.approx(0.8)
    assert fitted.entry_.id == ledger.entries()[0].id
    fitted.fit(X)
    assert ledger.epsilon() == pytest.approx(1.6)
    before = fitted.reports_
    with pytest.raises(BudgetExceeded):
        fitted.fit(X)
    assert fitted.reports_ is before and len(ledger.entries()) == 2
    fitted.fit_reports(before)
    assert len(ledger.entries()) == 2


@pytest.mark.slow
def test_a_clone_shares_the_ledger_and_a_pickle_leaves_it():
    ledger = new_ledger()
    kmeans = model("kmeans", ledger=ledger, decoder="clip").fit(blobs(50))
    assert clone(kmeans).ledger is ledger
    loaded = pickle.loads(pickle.dumps(kmeans))
    assert np.array_equal(loaded.cluster_centers_, kmeans.cluster_centers_)
    with pytest.raises(NotPrivate, match="stayed behind"):
        loaded.fit(blobs(50))
    assert len(ledger.entries()) == 1
    seeded = model("kmeans", source=Seeded(61626364))
    assert pickle.loads(pickle.dumps(seeded)).source is None
    assert b"Seeded" not in pickle.dumps(seeded)


@pytest.mark.slow
@briefly
@every
def test_a_fit_that_dies_after_its_charge_keeps_what_was_paid_for(name, monkeypatch):
    ledger = new_ledger()
    estimator = model(name, ledger=ledger).fit(blobs(250))

    def dies(self, reports, mechanism, decoder):
        raise MemoryError

    monkeypatch.setattr(type(estimator), "_cluster", dies)
    with pytest.raises(MemoryError):
        estimator.fit(blobs(250))
    monkeypatch.undo()
    assert estimator.entry_.id == ledger.entries()[1].id
    with pytest.raises(NotFittedError):  # nothing of the fit before is left
        estimator.predict(GOOD)
    estimator.fit_reports(estimator.reports_)
    assert len(ledger.entries()) == 2 and estimator.predict(GOOD).shape == (60,)


def test_row_ids_reach_the_reports():
    ids = np.arange(50)[::-1].copy()
    fitted = model("kmeans", decoder="clip").fit(blobs(50), row_ids=ids)
    assert np.array_equal(fitted.reports_.row_ids, ids)
    labels = model("kmeans", decoder="clip").fit_predict(blobs(50), row_ids=ids)
    assert labels.shape == (50,)


# -- bad input -----------------------------------------------------------------------

GOOD = blobs(60)
NAN = np.where(np.arange(60)[:, None] == 7, np.nan, GOOD)
BAD = {
    "nan": (NAN, {}, "NaN"),
    "infinity": (np.where(np.isnan(NAN), np.inf, GOOD), {}, "infinity"),
    "outside the cube": (GOOD * 1.01, {}, "unit cube"),
    "below the cube": (GOOD - 0.01, {}, "unit cube"),
    "empty": (GOOD[:0], {}, "at least one row"),
    "no columns": (GOOD[:, :0], {}, "at least one row"),
    "a vector": (GOOD[:, 0], {}, "matrix"),
    "ragged": ([[0.1, 0.2], [0.3]], {}, "matrix"),
    "words": ([["a", "b"]] * 9, {}, "matrix"),
    "complex": (GOOD + 1j, {}, "complex"),
    "more clusters than rows": (GOOD[:2], {}, "more than the 2 rows"),
    "epsilon 0": (GOOD, {"epsilon": 0.0}, "epsilon must be"),
    "epsilon negative": (GOOD, {"epsilon": -1.0}, "epsilon must be"),
    "epsilon nan": (GOOD, {"epsilon": math.nan}, "epsilon must be"),
    "L negative": (GOOD, {"L": -0.1}, "L must be"),
    "L a word": (GOOD, {"L": "large"}, "L must be"),
    "L 0": (GOOD, {"L": 0.0}, "say nothing"),
    "decoder": (GOOD, {"decoder": "best"}, "decoder must be"),
    "mechanism": (GOOD, {"mechanism": "blm"}, "mechanism must be"),
    "mechanism of 3 columns": (GOOD, {"mechanism": BPM(8.0, 1.0, 3)}, "3 columns"),
    "random_state": (GOOD, {"random_state": "now"}, "random_state"),
    "max_iter": (GOOD, {"max_iter": 0}, "max_iter"),
    "n_init": (GOOD, {"n_init": 0}, "n_init"),
    "ledger": (GOOD, {"ledger": "ledger.db"}, "ledger must be"),
    "space": (GOOD, {"space": ""}, "space"),
    "fallback": (GOOD, {"fallback": "no"}, "fallback must be"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
@every
def test_bad_input_is_a_clear_error_and_charges_nothing(name, bad):
    X, parameters, words = BAD[bad]
    ledger = new_ledger()
    estimator = model(name, **({"ledger": ledger} | parameters))
    with pytest.raises((ValueError, TypeError), match=words):
        estimator.fit(X)
    assert ledger.epsilon() == 0.0 and not ledger.entries()
    assert not hasattr(estimator, "reports_") and not hasattr(estimator, "labels_")


def test_bad_numbers_of_clusters_and_shapes():
    for bad in (0, -1, 2.5, True, "3"):
        with pytest.raises((ValueError, TypeError), match="n_clusters"):
            model("kmeans", n_clusters=bad).fit(GOOD)
    with pytest.raises(ValueError, match="covariance_type"):
        model("gmm", covariance_type="round").fit(GOOD)
    for bad in ({"nu": 0.0}, {"alpha": -1.0}, {"tol": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            model("tmm", **bad).fit(GOOD)
    ledger = new_ledger()
    aware = model("gmm", mechanism="laplace_per_dimension", ledger=ledger)
    with pytest.raises(ValueError, match="by coordinate"):
        aware.fit(GOOD)
    assert not ledger.entries()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon", "L"),
    [
        pytest.param("gmm", 1e4, 1.0, marks=pytest.mark.deep),
        ("kmeans", 1e4, 1.0),
        ("gmm", 8.0, 1e-9),
    ],
)
def test_extreme_noise_is_decoded_like_any_other(name, epsilon, L):
    """The density of a report is finite, and quick to compute, everywhere."""
    begun = time.process_time()
    fitted = model(name, epsilon=epsilon, L=L).fit(blobs(200))
    assert fitted.decoder_ == "noise_aware"
    centers = fitted.cluster_centers_ if name == "kmeans" else fitted.means_
    assert (centers >= 0).all() and (centers <= 1).all()
    if epsilon == 1e4:
        assert ratio(blobs(200), centers) < 1.1
        assert time.process_time() - begun < 20.0  # it took minutes by quadrature


@pytest.mark.slow
@briefly
@pytest.mark.parametrize(
    "nu", [0.01, 299.0, pytest.param(1e3, marks=pytest.mark.deep), 1e300]
)
def test_any_degrees_of_freedom_can_be_asked_for(nu):
    fitted = model("tmm", nu=nu, epsilon=30.0).fit(blobs(200))
    assert np.isfinite(fitted.means_).all() and fitted.nu_ == nu


@every
def test_a_decoder_that_cannot_be_prepared_costs_nothing(name, monkeypatch):
    def dies(*_):
        raise MemoryError

    monkeypatch.setattr(base, "radial_table", dies)
    monkeypatch.setattr(tmm, "radial_table", dies)
    ledger = new_ledger()
    with pytest.raises(MemoryError):
        model(name, ledger=ledger).fit(GOOD)
    assert not ledger.entries()


@every
def test_an_error_does_not_quote_a_cell(name):
    rows = [[0.1, 0.2]] * 5 + [[0.3, "patient 61.62"]]
    with pytest.raises(ValueError, match=r"[a-z]\. Nothing was spent\.$") as caught:
        model(name).fit(rows)
    error = caught.value
    while error is not None:
        assert "patient" not in str(error)
        error = error.__cause__


def test_rows_too_far_for_a_square_get_a_label_and_not_old_memory():
    fitted = model("kmeans", decoder="clip").fit(GOOD)
    with np.errstate(over="ignore"):
        assert (fitted.predict(np.full((20_000, 2), 1e200)) == 0).all()


@pytest.mark.slow
@briefly
@every
def test_reports_of_another_mechanism_are_refused(name):
    own = BPM(8.0, "auto", 2)
    reports = own.privatize(GOOD, ledger=None).value
    estimator = model(name)
    with pytest.raises(ValueError, match="the reports' own"):
        estimator.fit_reports(reports, BPM(8.0, 0.9, 2))
    with pytest.raises(ValueError, match="not this mechanism's"):
        estimator.fit_reports(np.full((60, 2), 1.6), BPM(8.0, 0.5, 2))
    with pytest.raises(ValueError, match="3 columns"):
        estimator.fit_reports(reports.values, BPM(8.0, 1.0, 3))
    with pytest.raises(TypeError, match="needs its mechanism"):
        estimator.fit_reports(reports.values)
    for bad in (GOOD[:0], np.full((60, 2), np.nan)):
        with pytest.raises(ValueError, match="reports"):
            estimator.fit_reports(bad, own)
    assert not hasattr(estimator, "reports_")
    assert estimator.fit_reports(reports, own).entry_ is None


UNBOUNDED = [BPM(8.0, math.inf, 2), LaplaceReports(8.0, 2), GaussianReports(30, 2)]


@pytest.mark.parametrize("decoder", ["noise_aware", "clip", "plain"])
@pytest.mark.parametrize("mechanism", UNBOUNDED, ids=lambda m: type(m).__name__)
@every
def test_a_report_that_no_client_can_have_drawn_is_named(name, mechanism, decoder):
    """A client may send what it likes; 1e160 has no square in float64."""
    values = blobs(250)
    values[77, 1] = 1e160
    estimator = model(name, decoder=decoder)
    with pytest.raises(ValueError, match="position 77 ") as caught:
        estimator.fit_reports(values, mechanism)
    assert f"{mechanism.reach:g}"[:4] in str(caught.value)
    assert not hasattr(estimator, "reports_")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("kmeans", BPM(8.0, math.inf, 2)),
        pytest.param("kmeans", BPM(8.0, "auto", 2), marks=pytest.mark.deep),
        pytest.param("kmeans", LaplaceReports(8.0, 2), marks=pytest.mark.deep),
        pytest.param("gmm", BPM(8.0, math.inf, 2), marks=pytest.mark.deep),
        pytest.param("gmm", BPM(8.0, 1e4, 2), marks=pytest.mark.deep),
        ("tmm", BPM(8.0, math.inf, 2)),
    ],
)
def test_the_farthest_report_that_there_can_be_moves_no_centre_far(name, mechanism):
    """Far out the log-likelihood is flat or straight: the pull of one is bounded.

    Plain k-means and Gaussian mixtures give it a cluster of its own: the twin.
    """

    def centers(values, decoder):
        fitted = model(name, decoder=decoder).fit_reports(values, mechanism)
        assert np.isfinite(fitted.inertia_)
        return fitted.cluster_centers_ if name == "kmeans" else fitted.means_

    def moved(one, two):
        gaps = np.linalg.norm(one[:, None] - two[None], axis=2)
        return gaps.min(axis=1).max()

    honest = mechanism.privatize(blobs(600), ledger=None, source=Seeded(2)).value.values
    hostile = honest.copy()
    hostile[77, 1] = mechanism.reach
    assert moved(*(centers(v, "noise_aware") for v in (honest, hostile))) < 0.02
    if name != "tmm" and mechanism.reach > 10:  # a t lets an outlier go
        assert moved(*(centers(v, "plain") for v in (honest, hostile))) > 0.2


@pytest.mark.parametrize("decoder", ["noise_aware", "clip", "plain"])
@pytest.mark.parametrize("more", [{"L": math.inf}, {"mechanism": "laplace"}])
@every
def test_noise_wider_than_any_number_is_refused_unpaid(name, decoder, more):
    ledger = new_ledger()
    wide = model(name, epsilon=1e-150, decoder=decoder, ledger=ledger, **more)
    with pytest.raises(ValueError, match="Nothing was spent"):
        wide.fit(GOOD)
    assert not ledger.entries()


@pytest.mark.deep
@pytest.mark.parametrize(("name", "L"), [("kmeans", "auto"), ("gmm", math.inf)])
def test_noise_a_billion_times_wider_than_the_cube_is_decoded(name, L):
    fitted = model(name, epsilon=2e-9, L=L).fit(blobs(210))
    centers = fitted.cluster_centers_ if name == "kmeans" else fitted.means_
    assert fitted.decoder_ == "noise_aware" and np.isfinite(centers).all()


@pytest.mark.parametrize("L", ["auto", math.inf])
@every
def test_noise_wider_than_that_is_refused_unpaid(name, L):
    """Tables for it would take minutes or fail, and there is nothing to be seen."""
    ledger = new_ledger()
    with pytest.raises(ValueError, match="say nothing about their points"):
        model(name, epsilon=1e-20, L=L, ledger=ledger).fit(blobs(210))
    assert not ledger.entries()


def test_a_mechanism_that_nobody_can_draw_from_is_no_way_in():
    """A file of reports names its mechanism itself; this one allows any number."""
    values = blobs(250)
    values[77, 1] = 1e160
    with pytest.raises(ValueError, match="cannot be clustered"):
        model("kmeans").fit_reports(values, BPM(4.0, 1e300, 2))


@pytest.mark.slow
@briefly
def test_what_privatize_returned_can_be_fitted():
    release = BPM(8.0, "auto", 2).privatize(blobs(), ledger=None)
    one, two = (
        model("kmeans").fit_reports(given) for given in (release, release.value)
    )
    assert np.array_equal(one.cluster_centers_, two.cluster_centers_)
    with pytest.raises(ValueError, match="the reports' own"):
        model("kmeans").fit_reports(release, BPM(8.0, 0.9, 2))


@pytest.mark.slow
@briefly
@every
def test_one_report_and_equal_reports(name):
    mechanism = BPM(8.0, "auto", 2)
    one = model(name).fit_reports(np.array([[0.4, 0.6]] * 3), mechanism)
    centers = one.cluster_centers_ if name == "kmeans" else one.means_
    assert np.isfinite(centers).all()
    parameter = "n_clusters" if name == "kmeans" else "n_components"
    single = model(name, **{parameter: 1}, decoder="noise_aware")
    single.fit_reports(np.array([[0.4, 0.6]]), mechanism)
    with pytest.raises(ValueError, match="more than the 1 rows"):
        model(name).fit_reports(np.array([[0.4, 0.6]]), mechanism)


@every
def test_predict_needs_a_fit_and_the_right_columns(name):
    with pytest.raises(NotFittedError):
        model(name).predict(GOOD)
    fitted = model(name, decoder="clip").fit(GOOD)
    with pytest.raises(ValueError, match="features"):
        fitted.predict(GOOD[:, :1])
    with pytest.raises(ValueError, match="NaN"):
        fitted.compute_sse(NAN)


# -- secrets -------------------------------------------------------------------------


def everything(thing, seen):
    """Every array and number that hangs on an object, by value."""
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, np.ndarray) and thing.dtype.kind == "f":
        yield from thing.ravel()
    elif isinstance(thing, float | np.floating):
        yield float(thing)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from everything(value, seen)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from everything(value, seen)
    elif hasattr(thing, "__dict__"):
        yield from everything(vars(thing), seen)


@pytest.mark.slow
@briefly
@pytest.mark.parametrize("decoder", ["noise_aware", "clip", "plain"])
@every
def test_nothing_fitted_holds_the_points(name, decoder):
    X = np.random.default_rng(9).random((220, 2))
    fitted = model(name, decoder=decoder).fit(X)
    found = np.array(list(everything(fitted, {})))
    assert len(found) > 440  # the reports at least
    # The points, and what an exact clustering would say about them.
    exact = KMeans(3, n_init=3, random_state=0).fit(X)
    secrets = np.concatenate(
        [X.ravel(), X.mean(axis=0), exact.cluster_centers_.ravel()]
    )
    assert not np.isin(secrets, found).any()
    assert np.isin(fitted.reports_.values.ravel(), found).all()
    stored = pickle.dumps(fitted)
    assert not any(value.tobytes() in stored for value in X.ravel()[:40])
    assert fitted.reports_.values.ravel()[0].tobytes() in stored


def reachable(thing):
    """Every object that can be reached from one, but for code and modules."""
    seen, left = {}, [thing]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen[id(one)] = one
        left += gc.get_referents(one)
        left += [one.obj] if isinstance(one, memoryview) else []
    return seen.values()


@every
def test_no_key_is_left_in_a_fitted_model_or_its_ledger(name, monkeypatch):
    """Neither the entry's nor that of the rows, as bytes or in an array."""
    keys = []
    new_key, row_key = OsEntropy.new_key, BPM.row_key

    def kept(key):
        keys.append(key)
        return key

    def found(thing):
        held = [one for one in reachable(thing) if isinstance(one, bytes | np.ndarray)]
        assert len(held) >= 4  # reports, ids, labels, centres
        return [one for one in held if bytes(one) in keys]

    monkeypatch.setattr(OsEntropy, "new_key", lambda self: kept(new_key(self)))
    monkeypatch.setattr(BPM, "row_key", lambda *asked: kept(row_key(*asked)))
    fitted = model(name, ledger=new_ledger(), decoder="clip").fit(GOOD)
    assert len(keys) == 2 and all(len(key) == 32 for key in keys)
    assert found(fitted) == []
    assert all(key not in pickle.dumps(fitted) for key in keys)
    # Two twins: one keeps the entry's key, one what draws the rows.
    for twin in ({"deep": [keys[0]]}, RowStreams(keys[1])):
        fitted.ledger.twin = twin
        assert len(found(fitted)) == 1


# -- scikit-learn's contract ---------------------------------------------------------

CHECKS = [
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_estimators_unfitted,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
    estimator_checks.check_mixin_order,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@every
def test_the_part_of_scikit_learns_contract_that_needs_no_data(name, check):
    check(type(MODELS[name]).__name__, clone(MODELS[name]))


# -- what it is worth ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("draws", [3, pytest.param(9, marks=pytest.mark.deep)])
def test_the_decoder_beats_the_baselines_on_the_same_reports(draws):
    """Median SSE over non-private SSE, a few draws of the noise.

    Measured: 2.5 noise-aware over 200 draws, 5.6 clipped and 15 plain over 20. One that
    is no better than clipping has a ratio of 1 to it, on the very same reports.
    """
    X = blobs()
    found = {decoder: [] for decoder in ("noise_aware", "clip", "plain")}
    for seed in range(draws):
        reports = (
            BPM(4.0, "auto", 2).privatize(X, ledger=None, source=Seeded(seed)).value
        )
        for decoder, ratios in found.items():
            fitted = PrivateKMeans(3, decoder=decoder, random_state=seed)
            ratios.append(ratio(X, fitted.fit_reports(reports).cluster_centers_))
    aware, clip, plain = (float(np.median(found[name])) for name in found)
    assert aware < 3.2 and aware < 0.7 * clip and aware < 0.5 * plain


@pytest.mark.slow
def test_more_reports_help_the_decoder_and_not_plain_k_means():
    found = {}
    for n in (300, 5000):
        X = blobs(n)
        reports = BPM(4.0, "auto", 2).privatize(X, ledger=None, source=Seeded(0)).value
        for decoder in ("noise_aware", "plain"):
            fitted = PrivateKMeans(3, decoder=decoder, random_state=0)
            found[decoder, n] = ratio(X, fitted.fit_reports(reports).cluster_centers_)
    assert found["noise_aware", 5000] < 1.2 < found["noise_aware", 300]
    assert found["plain", 5000] > 4.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [
        ("gaussian", "GaussianReports"),
        (GaussianReports(30.0, 2, delta=1e-4), "GaussianReports"),
        ("laplace_per_dimension", "LaplaceReports"),
        ("bpm", "BPM"),
        ("laplace", "BPM"),
    ],
)
def test_every_mechanism_decodes(mechanism, kind):
    # Over 6 and more draws: Gaussian noise 1.09 to 1.20, BPM 1.04 to 1.27, Laplace by
    # coordinate 1.00 to 1.03.
    n, epsilon, most = {
        "GaussianReports": (2000, 30.0, 1.4),
        "LaplaceReports": (800, 30.0, 1.1),
        "BPM": (2000, 8.0, 1.3),
    }[kind]
    X = blobs(n)
    fitted = model("kmeans", mechanism=mechanism, epsilon=epsilon, source=Seeded(1))
    fitted.fit(X)
    assert type(fitted.reports_.mechanism).__name__ == kind
    assert ratio(X, fitted.cluster_centers_) < most
    if mechanism == "laplace":
        assert fitted.reports_.mechanism.L == math.inf


@pytest.mark.slow
def test_a_wrong_noise_decodes_worse():
    """The twin is told that the reports have twice their epsilon and no floor."""
    X = blobs(600)
    bpm = BPM(4.0, 1.0, 2)
    values = bpm.privatize(X, ledger=None, source=Seeded(0)).value.values
    right, wrong = (
        ratio(
            X,
            PrivateKMeans(3, random_state=0).fit_reports(values, told).cluster_centers_,
        )
        for told in (bpm, BPM(8.0, math.inf, 2))
    )
    assert right < 3.0 and right < 0.6 * wrong  # over 5 draws 2.2 to 4.4, 12 to 30


@pytest.mark.slow
def test_iris_is_decoded_better_than_clipped():
    X = load_iris().data
    X = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))  # public data
    aware, clip = [], []
    for seed in range(3):
        reports = (
            BPM(4.0, "auto", 4).privatize(X, ledger=None, source=Seeded(seed)).value
        )
        for decoder, ratios in (("noise_aware", aware), ("clip", clip)):
            fitted = PrivateKMeans(3, decoder=decoder, random_state=seed)
            ratios.append(ratio(X, fitted.fit_reports(reports).cluster_centers_))
    assert np.median(aware) < 2.2 and np.median(aware) < 0.8 * np.median(clip)


# -- habits of scikit-learn's users ---------------------------------------------------


def test_columns_have_names_and_an_order():
    table = pd.DataFrame(blobs(60), columns=["age", "size"])
    fitted = PrivateKMeans(2, epsilon=8.0, decoder="clip", random_state=0).fit(table)
    assert list(fitted.feature_names_in_) == ["age", "size"]
    assert fitted.transform(table).shape == (60, 2)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(table[["size", "age"]])
    assert not hasattr(fitted.fit_reports(fitted.reports_), "feature_names_in_")


def test_sparse_rows_are_refused_in_words():
    ledger = Ledger(Budget(100.0), unit=ReplaceOne(), filter="pure")
    with pytest.raises(TypeError, match="sparse matrix.*Nothing was spent"):
        PrivateKMeans(2, ledger=ledger).fit(csr_matrix(blobs(20)))
    assert not ledger.entries()


def test_a_scaler_that_was_fitted_on_the_private_rows_is_found():
    ledger = Ledger(Budget(100.0), unit=ReplaceOne(), filter="pure")
    model = PrivateKMeans(2, epsilon=8.0, decoder="clip", ledger=ledger)
    X = 10.0 * blobs(60)
    with pytest.raises(NotPrivate, match="PublicScaler"):
        make_pipeline(MinMaxScaler(), model).fit(X)
    assert not ledger.entries()
    make_pipeline(PublicScaler(0.0, 10.0), model).fit(X)
    assert len(ledger.entries()) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("central", [False, True], ids=["local", "central"])
def test_distances_are_features_as_those_of_scikit_learn(central):
    """fit_transform, names, set_output, clones of it; and no warning about names."""
    table = pd.DataFrame(GOOD, columns=["age", "size"])
    new = CentralKMeans(2) if central else PrivateKMeans(2, decoder="clip")
    ledger = Ledger(Budget(99.0, 1e-5), unit=ReplaceOne()) if central else new_ledger()
    new.set_params(epsilon=8.0, random_state=0, ledger=ledger)
    named = clone(new.set_output(transform="pandas"))
    found = named.fit_transform(table)
    kind = type(new).__name__.lower()
    assert list(found.columns) == [f"{kind}0", f"{kind}1"] and len(found) == len(GOOD)
    gaps = table.to_numpy()[:, None] - named.cluster_centers_[None]
    assert np.allclose(found, np.linalg.norm(gaps, axis=2))
    assert len(new.ledger.entries()) == 1  # paid once
    if not central:
        values = named.reports_.values  # reports are arrays, whatever was fitted
        assert np.array_equal(named.report_labels(values), named.labels_)
        assert len(pickle.loads(pickle.dumps(named)).transform(table)) == len(GOOD)


def test_a_search_is_told_that_reports_may_be_drawn_once():
    ledger = new_ledger(1000.0)
    model = PrivateKMeans(2, epsilon=8.0, decoder="clip", ledger=ledger)
    search = GridSearchCV(model, {"n_clusters": [2, 3]}, cv=2)
    with pytest.warns(UserWarning, match="each of its 4 fits") as told:
        search.fit(GOOD)
    assert len([w for w in told if "draws new reports" in str(w.message)]) == 1
    assert len(ledger.entries()) == 5  # four and the last one
