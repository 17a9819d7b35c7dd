"""Mode `seed`: the seed's online L-BFGS and deletion step, verbatim. No guarantee.

insert:  g = (w.x - y) x;  d = -H g (two-loop);  w+ = w + step d;  s = w+ - w;
         keep (s, gradient at w+ minus g) in the memory of pairs
delete:  g at the *current* w;  d = -H g;  w <- w - d + noise

Why there is no theorem. Noise hides the difference between two means, so what has to be
bounded is the distance between w - d and the model that never saw the record. Nothing
relates the two: for an old record the remaining influence is near zero and the step
moves the model *away* (`verify_against_retrain` measures it). And for squared loss the
stored pairs are (x . s) x: the deleted features stay in memory up to scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.bounds import real_array
from demur.unlearning.models.base import Array, Mode, State, Theorem
from demur.unlearning.models.inputs import vector, with_noise
from demur.unlearning.models.lbfgs import LimitedMemoryBFGS

_THEOREM = Theorem(
    id="seed-heuristic",
    statement="no guarantee: the seed's deletion step, kept for reproduction",
    scopes=(),
    joint_accounting=(),
    composes=(),
)


class Seed(Mode):
    """Online L-BFGS for squared loss, as the seed writes it.

    `shift_bound` is the distance L / lam that the seed assumes; nobody has proved it.
    """

    name = "seed"
    theorem = _THEOREM
    needs_record = True
    exact = False
    publishes = "state"
    losses = ("squared",)
    loss = "squared"
    regulariser = "lam"
    clips = False
    formula = "seed"

    def __init__(
        self,
        dimension: int,
        *,
        step: float = 0.5,
        m_max: int = 10,
        L: float = 1.0,
        lam: float = 1.0,
    ) -> None:
        validate.count(dimension=dimension)
        validate.positive(step=step, L=L, lam=lam)
        self.dimension = int(dimension)
        self.step = float(step)
        self.L = float(L)
        self.lam = float(lam)
        self.lbfgs = LimitedMemoryBFGS(m_max)
        self.theta: Array = np.zeros(self.dimension)

    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """The record as it is; the seed enforces no bound."""
        features = vector(x, self.dimension)
        try:
            target = float(y)
        except (TypeError, ValueError, OverflowError):
            target = math.nan
        if not math.isfinite(target):
            raise ValueError("y must be a finite number; nothing has changed")
        return features, target

    def predict(self, x: ArrayLike) -> float:
        """w.x"""
        features, _ = self.check(x, 0.0)
        return float(self.theta @ features)

    def insert(self, x: ArrayLike, y: float) -> float:
        """One step of online L-BFGS; the prediction from before it."""
        features, target = self.check(x, y)
        prediction = float(self.theta @ features)
        grad_old = (prediction - target) * features
        theta = self.theta + self.step * self.lbfgs.direction(grad_old)
        if not np.isfinite(theta).all():
            raise ValueError(
                "the step diverges: scale the features down, or take a smaller step."
                " Nothing has changed."
            )
        s = theta - self.theta
        grad_new = (float(theta @ features) - target) * features
        self.theta = theta
        self.lbfgs.add_pair(s, grad_new - grad_old)
        return prediction

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """`insert` in a loop, all rows or none."""
        rows, targets = real_array("X", X, "a matrix"), real_array("Y", Y)
        if rows.ndim != 2 or targets.shape != (len(rows),):
            raise ValueError(
                "X must have shape (n, dimension) and Y shape (n,); got"
                f" {rows.shape} and {targets.shape}. Nothing has changed."
            )
        before = self.state()
        try:
            return np.array(
                [self.insert(x, y) for x, y in zip(rows, targets, strict=True)]
            )
        except ValueError:
            self.restore(before)
            raise

    def shift_bound(self, records: int = 1) -> float:
        """What the seed claims, L / lam for each record; not proved."""
        validate.count(records=records)
        return records * self.L / self.lam

    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        noise: Array | None = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        """w <- w - d + noise, d the direction of the gradient at the current w."""
        if x is None or y is None:
            raise ValueError("mode 'seed' needs x and y to delete; nothing has changed")
        rows = np.atleast_2d(real_array("x", x))
        targets = np.atleast_1d(real_array("y", y))
        if len(rows) != records or len(targets) != records:
            raise ValueError(
                f"records={records}, but x has {len(rows)} rows and y {len(targets)}"
                " values; nothing has changed"
            )
        theta = self.theta
        for row, target in zip(rows, targets, strict=True):
            features, value = self.check(row, target)
            grad = (float(theta @ features) - value) * features
            theta = theta - self.lbfgs.direction(grad)
        if noise is not None:
            theta = with_noise(theta, noise, grid, self.dimension)
        if not np.isfinite(theta).all():
            raise ValueError("the deletion step diverges; nothing has changed")
        self.theta = theta

    def forget_nothing(
        self, noise: Array | None = None, *, grid: float | None = None
    ) -> None:
        """The noise alone."""
        if noise is not None:
            self.theta = with_noise(self.theta, noise, grid, self.dimension)

    def published(self) -> Array:
        """The weights."""
        return self.theta.copy()

    def lbfgs_bounds(self) -> tuple[float, float]:
        """(c, C) of the stored curvature; (1, 1) without pairs."""
        return self.lbfgs.bounds() or (1.0, 1.0)

    def state(self) -> State:
        """Weights and pairs."""
        pairs = (len(self.lbfgs), self.dimension)
        return {
            "theta": self.theta.copy(),
            "S": np.array(self.lbfgs.S, dtype=np.float64).reshape(pairs),
            "Y": np.array(self.lbfgs.Y, dtype=np.float64).reshape(pairs),
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        memory = LimitedMemoryBFGS(self.lbfgs.m_max)
        for s, y in zip(state["S"], state["Y"], strict=True):
            memory.add_pair(s, y)
        self.theta = np.array(state["theta"], dtype=np.float64)
        self.lbfgs = memory

    def config(self) -> dict[str, Any]:
        """Step, memory and the claimed constants."""
        return {
            "step": self.step,
            "m_max": self.lbfgs.m_max,
            "L": self.L,
            "lam": self.lam,
        }
