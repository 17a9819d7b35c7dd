"""Examples of mechanisms."""

from __future__ import annotations

from typing import Any

import numpy as np

from demur.cluster.noisy_lloyd import plan_lloyd, run_lloyd
from demur.convex import HeadForm, objective
from demur.convex.heads.noisy_gd import Schedule, descend, plan_descent
from demur.core.accounting.events import Pure
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.bounds import clip_rows
from demur.core.cost import Cost, Fixed
from demur.core.curve import PiecewiseLinear
from demur.core.promise import Promise
from demur.testing.builders import LABEL, RADIUS, of_mechanism, two_classes
from demur.testing.subject import Inputs, Subject

_SPACE = "records"


def gaussian(cls: Any) -> list[Subject]:
    """One sigma, a sigma for each coordinate, and a whole curve over balls."""
    unit = AddOrRemoveOne()
    one = cls.calibrated(
        epsilon=2.0, delta=1e-6, sensitivity={unit: 1.0}, unit=unit, dimension=4
    )
    each = cls(np.array([1.0, 2.0, 3.0]), {unit: 0.7}, dimension=3)
    curve = cls(0.8, {_SPACE: PiecewiseLinear.linear(0.5, cap=1.0)}, dimension=3)
    # With a sigma each, sensitivity is in units of sigma: less of it is more noise.
    more = {"sensitivity": {unit: 0.35}}
    return [
        of_mechanism(one),
        of_mechanism(each, name="Gaussian, a sigma each", noisier=more),
        of_mechanism(curve, name="Gaussian over balls"),
    ]


def declaration(cls: Any) -> list[Subject]:
    """A declaration may be charged like the mechanism it came from."""
    cost = Cost((Fixed(ReplaceOne(), Pure(0.5)), Fixed(AddOrRemoveOne(), Pure(0.25))))
    return [of_mechanism(cls("a declared release", cost))]


def bpm(cls: Any) -> list[Subject]:
    """Bounded reports, and unbounded ones (multivariate Laplace)."""
    laplace = cls(epsilon=3.0, L=np.inf, dimension=2)
    return [
        of_mechanism(cls(epsilon=3.0, L=0.4, dimension=2)),
        of_mechanism(laplace, name="BPM, L = infinity"),
    ]


def reports(cls: Any) -> list[Subject]:
    """The baselines of BPM."""
    return [of_mechanism(cls(epsilon=2.0, dimension=2))]


def grid_quantile(cls: Any) -> list[Subject]:
    """A quantile from a public grid."""
    mechanism = cls(0.5, 1.0, np.linspace(0.0, 1.0, 21), ReplaceOne())
    return [
        of_mechanism(
            mechanism,
            value=np.random.default_rng(2).uniform(size=15),
            filter="pure",
            trusts_data="only releases call it, with values they have checked",
            # One of 21 public candidates: two draws may well agree.
            released=lambda result: {},
        )
    ]


def descent(cls: Any) -> list[Subject]:
    """Noisy gradient descent as its estimators run it."""
    X, y = two_classes()
    rows = clip_rows(X, 1.0).data
    form = HeadForm("logistic", lam=0.1, norm_bound=1.0)

    def make(steps: int = 4, epsilon: float = 1.0) -> Any:
        promise = Promise(Ball(RADIUS, space=_SPACE), epsilon, 1e-6)
        dimension = rows.shape[1] + 1
        return plan_descent(
            form, promise, Schedule(steps), n=len(rows), dimension=dimension
        )

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        stated = objective(form, inputs["X"], y)
        return descend(spender, stated, ledger=ledger, label=LABEL, source=source)

    return [
        Subject(
            name=cls.__name__,
            make=make,
            spend=spend,
            inputs={"X": rows},
            unit=Ball(RADIUS, space=_SPACE),
            parameters={"steps": 4, "epsilon": 1.0},
            noisier={"epsilon": 0.5},
            trusts_data="only the estimators call it, with rows they have checked",
        )
    ]


def lloyd(cls: Any) -> list[Subject]:
    """Noisy Lloyd steps as their estimator runs them."""
    points, _ = two_classes()
    start = np.array([[0.2] * points.shape[1], [0.8] * points.shape[1]])

    def make(steps: int = 3, epsilon: float = 1.0) -> Any:
        promise = Promise(ReplaceOne(), epsilon, 1e-6)
        d = points.shape[1]
        return plan_lloyd(promise, clusters=2, dimension=d, steps=steps)

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        given = inputs["X"]
        return run_lloyd(
            spender, given, start, ledger=ledger, label=LABEL, source=source
        )

    return [
        Subject(
            name=cls.__name__,
            make=make,
            spend=spend,
            inputs={"X": points},
            unit=ReplaceOne(),
            parameters={"steps": 3, "epsilon": 1.0},
            noisier={"epsilon": 0.5},
            trusts_data="only its estimator calls it, with points it has checked",
        )
    ]
