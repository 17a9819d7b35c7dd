"""`ledger=` means one thing everywhere: a Ledger, or None for one in memory.

Anything else is the same TypeError in every public function, with nothing spent.
"""

import importlib
import inspect
import pathlib

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demur import AddOrRemoveOne, Ball, Budget, Ledger, Promise, ReplaceOne
from demur.audit import audit
from demur.cluster import (
    CentralKMeans,
    PointTable,
    PrivateGMM,
    PrivateKMeans,
    PrivateTMM,
    make_reports,
)
from demur.compat import ball_dp, memory_pair
from demur.compat.bpm import clustering
from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    Fit,
    HeadForm,
    private_radius,
    release_head,
)
from demur.core.errors import NotPrivate
from demur.ledger import LedgerLeftBehind
from demur.mechanisms import BPM, Gaussian, GaussianReports, LaplaceReports
from demur.training import dp_sgd, fit
from demur.unlearning import (
    PrivacyOdometer,
    UnlearnableClassifier,
    UnlearnableRegressor,
    UnlearningService,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
Y = np.arange(60) % 2
POINTS = RNG.random((60, 2))
HEAD = {"epsilon": 1.0, "delta": 1e-5, "radius": 0.3, "norm_bound": 1.0, "lam": 0.1}
WRONG = ["x.db", pathlib.Path("x.db"), Budget(1.0, 1e-6), 7, Ledger, 0, "", False, []]


def plan():
    return dp_sgd(
        iterations=2,
        sampling_prob=0.5,
        noise_multiplier=2.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
    ).make()


def train(ledger, **more):
    data = {"x": X.astype("f4"), "y": Y.astype("f4")}
    return fit(
        plan(),
        lambda params, batch: jnp.mean((batch["x"] @ params - batch["y"]) ** 2),
        jnp.zeros(3),
        data,
        optimizer=optax.sgd(0.1),
        delta=1e-6,
        ledger=ledger,
        **more,
    )


def reports(ledger, **more):
    folder = pathlib.Path(".")
    table = folder / "points.csv"
    np.savetxt(table, POINTS, delimiter=",", header="a,b", comments="")
    table = PointTable(table, low=0.0, high=1.0)
    return make_reports(
        table, folder / "reports.csv", epsilon=4.0, L="auto", ledger=ledger, **more
    )


def fitted(estimator, *data, **named):
    known = inspect.signature(estimator).parameters
    options = {name: value for name, value in named.items() if name in known}
    return lambda ledger: estimator(ledger=ledger, **options).fit(*data)


FORM, UNIT = HeadForm("logistic", lam=0.01, norm_bound=1.0), ReplaceOne()
CLUSTERS = {"n_clusters": 2, "n_components": 2, "epsilon": 8.0, "L": "auto"}
CALLS = {
    "Gaussian.release": lambda ledger: Gaussian(20.0, {UNIT: 1.0}).release(
        [1.0], ledger=ledger
    ),
    "release_head": lambda ledger: release_head(
        [0.1, 0.2, 0.3],
        FORM,
        Promise(Ball(0.3, space="records"), epsilon=1.0, delta=1e-6),
        Fit(n=5000, gradient_norm=1e-10),
        ledger=ledger,
    ),
    "private_radius": lambda ledger: private_radius(
        X, Y, epsilon=1.0, norm_bound=1.0, ledger=ledger
    ),
    "make_reports": reports,
    "make_reports, again": lambda ledger: reports(ledger, idempotency_key="k"),
    "PrivacyOdometer": lambda ledger: PrivacyOdometer(1.0, 1e-5, 0.1, ledger=ledger),
    "its original": lambda ledger: memory_pair.PrivacyOdometer(
        1.0, 1e-5, 0.1, ledger=ledger
    ),
    "UnlearningService": lambda ledger: UnlearningService.open(
        "s.db", mode="ogd", dimension=3, lam=0.1, epsilon=1.0, delta=1e-5, ledger=ledger
    ),
    "plan.paid": lambda ledger: plan().paid(ledger, label="x"),
    "fit": train,
    "fit, resumed": lambda ledger: train(ledger, checkpoint="checkpoint"),
    "audit": lambda ledger: audit(
        lambda *_: None, (X, X), (1.0, 1e-6), ledger=ledger, runs=1
    ),
    "the original of bpm": fitted(clustering.PrivateKMeans, POINTS, **CLUSTERS),
    "the original of ball_dp": lambda ledger: ball_dp.add_gaussian_noise(
        np.zeros(3), 1.0, sensitivity={UNIT: 1.0}, ledger=ledger
    ),
} | {
    kind.__name__: call
    for kind, call in [
        *(
            (type(m), lambda ledger, m=m: m.privatize(POINTS, ledger=ledger))
            for m in (BPM(4.0, 2.0, 2), LaplaceReports(4.0, 2), GaussianReports(4.0, 2))
        ),
        *(
            (head, fitted(head, X, Y, classes=[0, 1], **HEAD))
            for head in (
                BallLogisticRegression,
                BallSVC,
                BallSoftmaxClassifier,
                BallPrototypeClassifier,
                BallDiscriminantClassifier,
            )
        ),
        *(
            (kind, fitted(kind, POINTS, **CLUSTERS))
            for kind in (PrivateKMeans, PrivateGMM, PrivateTMM)
        ),
        (
            CentralKMeans,
            fitted(
                CentralKMeans,
                POINTS,
                n_clusters=2,
                epsilon=4.0,
                delta=1e-5,
                unit=AddOrRemoveOne(),
            ),
        ),
        *(
            (kind, lambda ledger, kind=kind: kind(ledger=ledger).partial_fit(X, Y))
            for kind in (UnlearnableRegressor, UnlearnableClassifier)
        ),
    ]
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_anything_but_a_ledger_is_the_same_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in WRONG:
        with pytest.raises(TypeError) as refused:
            CALLS[name](wrong)
        assert str(refused.value) == (
            f"ledger must be a Ledger or None; got {type(wrong).__name__}."
            " Nothing was spent."
        )


@pytest.mark.parametrize("name", CALLS)
def test_a_ledger_that_was_left_behind_is_not_replaced_by_another(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPrivate, match=r"stayed behind.*Nothing was spent"):
        CALLS[name](LedgerLeftBehind("d"))


def public():
    """What the engines offer."""
    for engine in ("mechanisms", "convex", "cluster", "unlearning", "training"):
        package = importlib.import_module(f"demur.{engine}")
        yield from (getattr(package, name) for name in package.__all__)


def test_every_public_function_with_a_ledger_is_here():
    """Found by their signatures, so that a new one has to be added."""
    taking = set()
    for thing in public():
        if not callable(thing) or not thing.__module__.startswith("demur."):
            continue
        try:
            parameter = inspect.signature(thing).parameters.get("ledger")
        except (TypeError, ValueError):
            continue
        if parameter is not None and "Ledger" in str(parameter.annotation):
            assert parameter.default is None, thing
            assert parameter.kind is parameter.KEYWORD_ONLY, thing
            taking.add(thing.__name__)
    assert taking >= {"fit", "release_head", "PrivateKMeans", "PrivacyOdometer"}
    assert taking <= set(CALLS) | {"descend"}, taking - set(CALLS)
