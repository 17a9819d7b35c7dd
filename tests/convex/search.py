"""An adversary that looks for the pair of datasets that a whole `fit` tells best apart.

Both datasets go through the public `fit`, under a seeded source. A tape gives the
second run the first one's outputs, so that what is compared are the exact values that
noise is added to, in every step, over the noise that is really drawn. The sum of the
squared shifts over sigma^2 is mu^2 of the pair; the promise allows a known mu.

A second adversary looks for the pair whose exact minimisers are farthest apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demur.convex import Fit, HeadForm, minimise, objective
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.core import recording
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import Ball
from demur.core.entropy import Seeded

Array = np.ndarray
Pair = tuple[Array, Array, Array, Array]

EPSILON, DELTA, B = 1.0, 1e-6, 1.0


def into_ball(v: Array, radius: float) -> Array:
    norm = np.linalg.norm(v, axis=-1, keepdims=True)
    return np.where(norm > radius, v * (radius / np.maximum(norm, 1e-300)), v)


def told_apart(make: Callable[..., Any], pair: Pair) -> float:
    """mu of the pair over the mu that the promise allows, through both fits."""
    X, y, other, labels = pair
    tapes = [recording.Tape()]
    tapes.append(recording.Tape(tapes[0]))
    for tape, rows, classes in zip(tapes, (X, other), (y, labels), strict=True):
        with recording.watching(tape):
            make(epsilon=EPSILON, delta=DELTA, source=Seeded(1)).fit(rows, classes)
    one, two = (tape.uses for tape in tapes)
    assert len(one) == len(two) > 0
    squared = 0.0
    for a, b in zip(one, two, strict=True):
        assert isinstance(a.declared, recording.Shift)
        # Noise that followed the data would tell them apart by itself.
        np.testing.assert_array_equal(a.declared.sigma, b.declared.sigma)
        moved = (a.value[0] - b.value[0]) / a.declared.sigma
        squared += float(np.vdot(moved, moved))
    return np.sqrt(squared) / gaussian_mu(EPSILON, ideal_delta(DELTA))


def neighbours(v: Array, y: Array, labels: Array, d: int, unit: Any) -> Pair:
    """A vector as two neighbouring datasets: as many rows move as a person has."""
    n, moving = len(y), unit.records_per_person
    X = into_ball(v[: n * d].reshape(n, d), B)
    move = v[n * d :].reshape(moving, d)
    other = X.copy()
    if isinstance(unit, Ball):
        other[:moving] = into_ball(X[:moving] + into_ball(move, unit.radius), B)
        return X, y, other, y
    other[:moving] = into_ball(move, B)
    return X, y, other, np.concatenate([labels[:moving], y[moving:]])


def climbed(
    ratio: Callable[[Array], float], start: Array, steps: int, rng: np.random.Generator
) -> float:
    """The largest ratio that hill climbing from `start` finds."""
    v, here, width = start, ratio(start), 1.0
    for _ in range(steps):
        # Some coordinates at a time, at a width that follows the success.
        change = rng.normal(size=v.size) * (rng.random(v.size) < 0.4)
        tried = v + width * change
        found = ratio(tried)
        if found > here:
            v, here, width = tried, found, min(2.0, 1.5 * width)
        else:
            width = max(1e-3, 0.9 * width)
    return here


def starts(
    unit: Any, classes: int, n: int, d: int, rng: np.random.Generator
) -> tuple[Array, Callable[[Array], Pair]]:
    """A random vector, and how it is read as two neighbouring datasets."""
    moving = unit.records_per_person
    y = np.concatenate([np.arange(classes), rng.integers(classes, size=n)])
    rng.shuffle(y)
    labels = rng.integers(classes, size=len(y))
    # Rows near 0 leave the curvature to lam: there one record moves theta most.
    v = 2.0 * rng.normal(size=(len(y) + moving) * d)
    v[moving * d : -moving * d] *= rng.choice([0.01, 1.0])
    return v, lambda v: neighbours(v, y, labels, d, unit)


def largest_ratio(
    make: Callable[..., Any],
    unit: Any,
    *,
    classes: int,
    restarts: int,
    steps: int,
    n: int = 5,
    d: int = 2,
    seed: int = 0,
) -> float:
    """The largest ratio that random restarts and hill climbing find through `fit`."""
    rng, best = np.random.default_rng(seed), 0.0
    for _ in range(restarts):
        v, pair = starts(unit, classes, n, d, rng)
        here = climbed(lambda v, p=pair: told_apart(make, p(v)), v, steps, rng)
        best = max(best, here)
    return best


def largest_minimiser_ratio(
    form: HeadForm, unit: Any, *, restarts: int, steps: int, n: int = 20, d: int = 2
) -> float:
    """How far real minimisers move, at most, over what their sensitivity allows."""
    rng, best = np.random.default_rng(1), 0.0
    for _ in range(restarts):
        v, pair = starts(unit, form.num_classes, n, d, rng)

        def ratio(v: Array, pair: Callable[[Array], Pair] = pair) -> float:
            X, y, other, labels = pair(v)
            one, two = (
                minimise(objective(form, rows, classes)).theta
                for rows, classes in ((X, y), (other, labels))
            )
            allowed = erm_sensitivity(form, unit, Fit(len(y))).table.at(unit)
            return float(np.linalg.norm(one - two)) / allowed

        best = max(best, climbed(ratio, v, steps, rng))
    return best
