"""Examples of functions and other classes that take a ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from demur.convex import Fit, HeadForm
from demur.core.adjacency import Ball, Erasure
from demur.core.promise import Promise
from demur.testing.builders import LABEL, RADIUS, two_classes
from demur.testing.subject import Inputs, Subject

_CONSTANTS = {"G": 1.0, "D": 1.0, "c": 1.0, "C": 1.0}


def _called(function: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """make(**changes): the function with its parameters, to be called with data."""
    return lambda **changes: partial(function, **(fixed | changes))


def release_head(function: Any) -> list[Subject]:
    """A head that was trained elsewhere."""
    theta = np.random.default_rng(3).normal(size=4) / 10.0
    parameters = {
        "n": 500,
        "lam": 0.1,
        "norm_bound": 1.0,
        "radius": RADIUS,
        "epsilon": 1.0,
        "delta": 1e-6,
        "tau": 1e-6,
        "gradient_norm": 1e-8,
        "bias_scale": 1.0,
    }

    def flat(theta: Any, *, ledger: Any, label: str, source: Any, **given: Any) -> Any:
        form = {name: given[name] for name in ("lam", "norm_bound", "bias_scale")}
        unit = Ball(given["radius"], space="records")
        return function(
            theta,
            HeadForm("logistic", **form),
            Promise(unit, given["epsilon"], given["delta"]),
            Fit(given["n"], tau=given["tau"], gradient_norm=given["gradient_norm"]),
            ledger=ledger,
            label=label,
            source=source,
        )

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        return spender(inputs["theta"], ledger=ledger, label=LABEL, source=source)

    return [
        Subject(
            name=function.__name__,
            make=_called(flat, **parameters),
            spend=spend,
            inputs={"theta": theta},
            unit=Ball(RADIUS, space="records"),
            parameters=parameters,
            noisier={"epsilon": 0.5},
            aliases={"theta": ("value",)},
            # A head may have any size, and may be a matrix of two classes.
            lenient=frozenset({"twice as long"}),
        )
    ]


def private_radius(function: Any) -> list[Subject]:
    """A quantile of within-class distances."""
    X, y = two_classes()
    parameters = {"epsilon": 1.0, "norm_bound": 1.0, "quantile": 0.5}

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        return spender(
            inputs["X"], inputs["y"], ledger=ledger, label=LABEL, source=source
        )

    return [
        Subject(
            name=function.__name__,
            make=_called(function, **parameters),
            spend=spend,
            inputs={"X": X, "y": y},
            unit=Ball(2.0, space="records"),
            filter="pure",
            parameters=parameters,
            noisier={"epsilon": 0.5},
            # One of 200 public candidates: two draws may well agree.
            released=lambda result: {},
        )
    ]


def odometer(cls: Any) -> list[Subject]:
    """All deletions of a model, reserved at once."""

    def make(epsilon: float = 1.0) -> Any:
        return partial(cls, epsilon, 1e-5, lam=0.1, gamma=2.0)

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Any) -> Any:
        del inputs
        meter = spender(scope="joint", ledger=ledger, source=source)
        meter.finalize_with(_CONSTANTS, 10**4)
        return meter

    return [
        Subject(
            name=cls.__name__,
            make=make,
            spend=spend,
            inputs={},
            unit=Erasure(),
            delta=1e-5,
            parameters={"epsilon": 1.0},
            keeps_data="it holds the key of deletions to come, in memory alone",
        )
    ]
