"""Examples of estimators."""

from __future__ import annotations

from typing import Any

from demur.core.adjacency import AddOrRemoveOne, Ball, Erasure, ReplaceOne
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
    """Class means at a ball, and sums with counts at a replacement."""
    counted = cls(unit=ReplaceOne(), classes=[0, 1])
    return [
        _head(cls, "", frozenset()),
        of_estimator(counted, name=_named(cls, "replacement"), unit=ReplaceOne()),
    ]


def discriminant(cls: Any) -> list[Subject]:
    """Class sums and second moments, at a ball."""
    unit = Ball(RADIUS, space="records")
    return [of_estimator(cls(radius=RADIUS), name=cls.__name__, unit=unit)]


def private_map(cls: Any) -> list[Subject]:
    """Moments of rows, at a ball."""
    X, _ = two_classes()
    unit = Ball(RADIUS, space="records")
    return [of_estimator(cls(radius=RADIUS), X, name=cls.__name__, unit=unit)]


def _head(cls: Any, which: str, unused: frozenset[str], **parameters: Any) -> Subject:
    estimator = cls(radius=RADIUS, lam=0.1, **parameters)
    unit = Ball(RADIUS, space="records")
    return of_estimator(estimator, name=_named(cls, which), unit=unit, unused=unused)


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


def _clusterer(cls: Any, which: str, **parameters: Any) -> Subject:
    X, _ = two_classes()
    estimator = cls(epsilon=8.0, max_iter=5, n_init=1, random_state=0, **parameters)
    return of_estimator(
        estimator,
        X,
        name=_named(cls, which),
        unit=ReplaceOne(),
        delta=1e-6 if which == "gaussian" else 0.0,
        aliases={"X": ("points",)},
    )


def central(cls: Any) -> list[Subject]:
    """Noisy Lloyd steps, at a replacement and at presence."""
    X, _ = two_classes()
    unit = AddOrRemoveOne()
    return [
        _central(cls(2, random_state=0), X, "", ReplaceOne()),
        _central(cls(2, random_state=0, unit=unit), X, "presence", unit),
    ]


def _central(estimator: Any, X: Any, which: str, unit: Any) -> Subject:
    name = _named(type(estimator), which)
    return of_estimator(estimator, X, name=name, unit=unit, aliases={"X": ("points",)})


def seed_kmeans(cls: Any) -> list[Subject]:
    """The seed's own spelling, which has no `source` parameter."""
    X, _ = two_classes()
    estimator = cls(2, 8.0, 0.5, max_iter=5, n_init=1, random_state=0)
    return [
        of_estimator(
            estimator,
            X,
            name="compat.bpm PrivateKMeans",
            unit=ReplaceOne(),
            delta=0.0,
            aliases={"X": ("points",)},
        )
    ]


# The estimators pass these on to an odometer and a model, whose names differ.
_ODOMETER = {
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
    config = {"tolerance": 0.05, "Lambda": 2.0} if mode == "logistic" else None

    def act(estimator: Any, inputs: Inputs) -> Any:
        # Only deletions cost: a new model is learned first.
        for name in ("model_", "features_", "n_features_in_", "_pick"):
            vars(estimator).pop(name, None)
        estimator.partial_fit(inputs["X"], inputs["y"])
        if mode == "logistic":
            estimator.model_.renew(inputs["X"], inputs["y"])
        return estimator.unfit(inputs["X"][:1], inputs["y"][:1])

    return of_estimator(
        cls(mode=mode, gamma=1e6, mode_config=config, fit_intercept=False),
        X,
        y,
        fit=act,
        unit=Erasure(),
        delta=1e-5,
        noisier={},
        aliases=_ODOMETER,
        unit_phrases=("one that never saw", "Epsilon is 0"),
        keeps_data="a live model is exact: its guarantee is about erasure",
        name=_named(cls, mode),
    )


def _named(cls: Any, which: str) -> str:
    return f"{cls.__name__}, {which}" if which else cls.__name__
