"""Heads: a private search against fixed settings and plain composition."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from convex_parts import rules
from convex_parts.solved_once import solved_once
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid
from tuning_parts.draws import Array, measured

from demur import Ball
from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
)
from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu, ideal_delta
from demur.core.promise import Promise
from demur.tuning import PrivateGridSearch, correct_answers, held_back

RADIUS, DELTA, PUBLIC = 0.42, 1e-6, 0.1


def settings_of(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """The head, and the grid that is searched."""
    lams = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
    if name == "adult":
        return BallLogisticRegression(), [{"lam": lams}]
    if name == "digits":
        return BallSoftmaxClassifier(), [
            {"lam": lams},
            {"estimator": [BallPrototypeClassifier(), BallDiscriminantClassifier()]},
        ]
    descent = BallSoftmaxClassifier(mechanism="noisy_gd", lam=0.0)
    grid = {"steps": [10, 30], "learning_rate": [5.0, 20.0]}
    return descent, [grid, {"estimator": [BallPrototypeClassifier()]}]


def heads_of(head: Any, grid: list[dict[str, Any]], epsilon: float) -> list[Any]:
    """Every setting as a head of this epsilon."""
    found = []
    for setting in ParameterGrid(grid):
        base = setting.pop("estimator", head)
        each = clone(base).set_params(**setting, radius=RADIUS, delta=DELTA)
        found.append(each.set_params(epsilon=epsilon))
    return found


def heads(name: str, draws: int, epsilons: list[float]) -> None:
    """All methods on the same divisions of a data set's training rows."""
    solved_once(64)
    load = lru_cache(getattr(rules, name))
    head, grid = settings_of(name)

    def one(draw: int, epsilon: float) -> dict[str, Any]:
        X, y, Xt, yt = load()
        public = held_back(np.arange(len(y)), PUBLIC, key=f"public {draw}")
        Xp, yp, X, y = X[public], y[public], X[~public], y[~public]
        each = heads_of(head, grid, epsilon)
        total = clone(head).set_params(epsilon=epsilon, delta=DELTA, radius=RADIUS)
        key = f"held back {draw}"
        search = PrivateGridSearch(total, grid, split_key=key)
        return {
            "fixed": [h.fit(X, y).score(Xt, yt) for h in each],
            "chosen": choose_on_public(head, grid, epsilon, (Xp, yp), len(y)),
            "paid": search.fit(X, y).score(Xt, yt),
            "composed": composed(head, grid, epsilon, key, (X, y, Xt, yt)),
        }

    measured(name, draws, epsilons, one)


def choose_on_public(
    head: Any, grid: list[dict[str, Any]], epsilon: float, public: Any, n: int
) -> int:
    """The best setting on two halves of the public rows, at the private fit's noise."""
    X, y = public
    half = held_back(np.arange(len(y)), 0.5, key="halves")
    ideal = ideal_delta(DELTA)
    alike = gaussian_epsilon(gaussian_mu(epsilon, ideal) * n / (~half).sum(), ideal)
    scores = [
        h.fit(X[~half], y[~half]).score(X[half], y[half])
        for h in heads_of(head, grid, min(alike, 300.0))
    ]
    return int(np.argmax(scores))


def composed(
    head: Any,
    grid: list[dict[str, Any]],
    epsilon: float,
    key: str,
    data: tuple[Array, Array, Array, Array],
) -> float:
    """Every setting once, with mu over the root of their number, the best released."""
    X, y, Xt, yt = data
    ideal = ideal_delta(DELTA)
    count = len(ParameterGrid(grid))
    each = gaussian_epsilon(gaussian_mu(epsilon, ideal) / math.sqrt(count), ideal)
    back = held_back(np.arange(len(y)), key=key)
    promise = Promise(Ball(RADIUS, space="records"), each, DELTA)
    score = correct_answers(X[back], y[back], promise)
    found = []
    for one in heads_of(head, grid, each):
        fitted = one.fit(X[~back], y[~back])
        noisy = score.mechanism.release([score.value(fitted)]).value[0]
        found.append((float(noisy), fitted))
    return float(max(found, key=lambda pair: pair[0])[1].score(Xt, yt))
