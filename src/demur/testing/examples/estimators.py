"""Examples of estimators."""

from __future__ import annotations

from typing import Any

from demur.core.adjacency import Ball, Erasure, ReplaceOne
from demur.testing.builders import RADIUS, of_estimator, two_classes
from demur.testing.subject import Inputs, Subject

_DESCENT = frozenset({"steps", "momentum"})
_SOLVER = frozenset({"tau", "max_iterations"})


def heads(cls: Any) -> list[Subject]:
    """Output perturbation, and noisy gradient descent."""
    return [
        _head(cls, "", _DESCENT),
        _head(cls, "noisy gd", _SOLVER, mechanism="noisy_gd", steps=3),
    ]


def svc(cls: Any) -> list[Subject]:
    """Both losses."""
    hinge = _DESCENT | {"huber_width"}
    return [
        _head(cls, "", _DESCENT),
        _head(cls, "squared hinge", hinge, loss="squared_hinge"),
    ]


def prototypes(cls: Any) -> list[Subject]:
    """Class means."""
    return [_head(cls, "", frozenset())]


def _head(cls: Any, which: str, unused: frozenset[str], **said: Any) -> Subject:
    made = cls(radius=RADIUS, lam=0.1, **said)
    unit = Ball(RADIUS, space="records")
    return of_estimator(made, name=_named(cls, which), unit=unit, unused=unused)


def kmeans(cls: Any) -> list[Subject]:
    """Each decoder once, with different noise."""
    return _clusterers(cls, n_clusters=2)


def mixture(cls: Any) -> list[Subject]:
    """Each decoder once, with different noise."""
    return _clusterers(cls, n_components=2)


def _clusterers(cls: Any, **count: int) -> list[Subject]:
    return [
        _clusterer(cls, "", **count),
        _clusterer(cls, "clip", **count, decoder="clip", L=0.5),
        _clusterer(cls, "gaussian", **count, decoder="plain", mechanism="gaussian"),
    ]


def _clusterer(cls: Any, which: str, **said: Any) -> Subject:
    X, _ = two_classes()
    made = cls(epsilon=8.0, max_iter=5, n_init=1, random_state=0, **said)
    return of_estimator(made, X, name=_named(cls, which), aliases={"X": ("points",)})


def seed_kmeans(cls: Any) -> list[Subject]:
    """The seed's own spelling, which has no parameter for a source."""
    X, _ = two_classes()
    made = cls(2, 8.0, 0.5, max_iter=5, n_init=1, random_state=0)
    return [
        of_estimator(
            made,
            X,
            name="compat.bpm PrivateKMeans",
            unit=ReplaceOne(),
            delta=0.0,
            aliases={"X": ("points",)},
        )
    ]


# The estimators hand these on to an odometer and a mode, which have names of their own.
_ODOMETER = {
    "epsilon": ("eps_total",),
    "delta": ("delta_total",),
    "events": ("T",),
    "y": ("Y",),
}


def regressor(cls: Any) -> list[Subject]:
    """A deletion of each mode."""
    return [_forgetful(cls, "ogd"), _forgetful(cls, "ridge")]


def classifier(cls: Any) -> list[Subject]:
    """A deletion of each mode."""
    return [_forgetful(cls, "ogd"), _forgetful(cls, "logistic")]


def _forgetful(cls: Any, mode: str) -> Subject:
    X, y = two_classes()
    said = {"tolerance": 0.05, "Lambda": 2.0} if mode == "logistic" else None

    def act(made: Any, inputs: Inputs) -> Any:
        # Learning is free and a deletion is what costs: a model is learned anew.
        for name in ("model_", "features_", "n_features_in_", "_pick"):
            vars(made).pop(name, None)
        made.partial_fit(inputs["X"], inputs["y"])
        if mode == "logistic":
            made.model_.renew(inputs["X"], inputs["y"])
        return made.unfit(inputs["X"][:1], inputs["y"][:1])

    return of_estimator(
        cls(mode=mode, gamma=1e6, mode_config=said, fit_intercept=False),
        X,
        y,
        fit=act,
        unit=Erasure(),
        delta=1e-5,
        noisier={},
        aliases=_ODOMETER,
        unit_phrases=("the two worlds differ in", "Epsilon is 0"),
        keeps_data="a live model is exact: its promise is about erasure",
        name=_named(cls, mode),
    )


def _named(cls: Any, which: str) -> str:
    return f"{cls.__name__}, {which}" if which else cls.__name__
