"""Mode `seed`: the seed's online L-BFGS and deletion step. No guarantee.

insert:  g = (w.x - y) x;  d = -H g (two-loop);  w+ = w + step d;  s = w+ - w;
         keep (s, gradient at w+ minus g) in the memory of pairs
delete:  g at the *current* w;  d = -H g;  w <- w - d + noise

**Why that insert diverges.** For squared loss the change of gradient is (x . s) x, so
the two-loop recursion starts from I / |z|^2, z the record before. The step multiplies
the residual of its own record by 1 - step x'Hx, which is near 1 - |x|^2 / |z|^2: a
record more than sqrt 2 times as long as the last one is overshot (x'Hx > 2). That is
about a third of Gaussian rows with 3 features and a sixteenth with 20; with 3 the
overshoots win, and the weights grow without end. Where they do not, a step that never
shrinks follows the noise of every target.

**The safeguard** (on by default). N* is the round at which a regret bound of the form
G D sqrt(T) falls to gamma T. It has three conditions, and the safeguard meets each:

1. Steps shrink: eta_t = step / sqrt(t). Under a constant step average regret tends to a
   constant, and no N* exists.
2. Steps are *implicit* (Kulis and Bartlett 2010): w+ minimises the record's loss plus
   |w+ - w|^2 / (2 eta_t) in the norm of H^-1. For squared loss that is
   w + a d, a = eta_t / (1 + eta_t x'Hx): the residual is multiplied by
   1 / (1 + eta_t x'Hx), between 0 and 1 for every H, and R_T needs no bound on H x.
3. Weights stay in the ball of radius D_cap (`radius`), so that D is at most its
   diameter, and G at most (|x| D_cap + |y|) |x|.

For a fixed H this is a bound C D^2 sqrt(T) / (2 step) + step G^2 sqrt(T) / c (with the
projection in the norm of H^-1). L-BFGS changes H, so it stays a plan and is no theorem.

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
from demur.unlearning.models.inputs import check_size, vector, with_noise
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

    `step` and `m_max` (pairs; as many as features unless said) are the original's.
    `safeguard=False` takes its insert step as it is, which diverges on ordinary data.
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
        step: float = 1.0,
        m_max: int | None = None,
        L: float = 1.0,
        lam: float = 1.0,
        safeguard: bool = True,
        radius: float = 10.0,
    ) -> None:
        validate.count(dimension=dimension)
        check_size(dimension, dimension)
        validate.positive(step=step, L=L, lam=lam, radius=radius)
        if not isinstance(safeguard, bool):
            raise TypeError(f"safeguard must be True or False; got {safeguard!r}")
        self.dimension = int(dimension)
        self.step = float(step)
        self.L = float(L)
        self.lam = float(lam)
        self.safeguard = safeguard
        self.radius = float(radius)
        self.lbfgs = LimitedMemoryBFGS(self.dimension if m_max is None else m_max)
        self.theta: Array = np.zeros(self.dimension)
        self.t = 0  # inserts, for the step

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
        direction = self.lbfgs.direction(grad_old)
        if self.safeguard:
            theta = self._implicit_step(direction, prediction - target, features)
        else:
            theta = self.theta + self.step * direction
        if not np.isfinite(theta).all():
            raise ValueError(
                "the step diverges: scale the features down, or take a smaller step."
                " Nothing has changed."
            )
        s = theta - self.theta
        grad_new = (float(theta @ features) - target) * features
        self.theta = theta
        self.t += 1
        self.lbfgs.add_pair(s, grad_new - grad_old)
        return prediction

    def _implicit_step(self, direction: Array, residual: float, x: Array) -> Array:
        """The weights after a safeguarded step; not finite where x'Hx is not."""
        if residual == 0.0:
            return self.theta.copy()
        eta = self.step / math.sqrt(self.t + 1)
        curvature = -float(direction @ x) / residual  # x'Hx
        if curvature < 0.0:  # rounding took the sign of H: plain descent
            direction, curvature = -residual * x, float(x @ x)
        if not math.isfinite(curvature):
            return np.full(self.dimension, math.nan)
        theta: Array = self.theta + eta / (1.0 + eta * curvature) * direction
        norm = float(np.linalg.norm(theta))
        return theta * (self.radius / norm) if norm > self.radius else theta

    def skip(self) -> None:
        """The clock alone."""
        self.t += 1

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
        """Weights, pairs and clock."""
        pairs = (len(self.lbfgs), self.dimension)
        return {
            "theta": self.theta.copy(),
            "S": np.array(self.lbfgs.S, dtype=np.float64).reshape(pairs),
            "Y": np.array(self.lbfgs.Y, dtype=np.float64).reshape(pairs),
            "t": np.array(self.t, dtype=np.int64),
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        memory = LimitedMemoryBFGS(self.lbfgs.m_max)
        for s, y in zip(state["S"], state["Y"], strict=True):
            memory.add_pair(s, y)
        self.theta = np.array(state["theta"], dtype=np.float64)
        self.t = int(state["t"])
        self.lbfgs = memory

    def config(self) -> dict[str, Any]:
        """Step, memory, safeguard and the claimed constants."""
        return {
            "step": self.step,
            "m_max": self.lbfgs.m_max,
            "L": self.L,
            "lam": self.lam,
            "safeguard": self.safeguard,
            "radius": self.radius,
        }
