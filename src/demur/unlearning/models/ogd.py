"""Mode `ogd`: online gradient descent that forgets by noise alone and keeps no data.

Tick t learns a record (x, y), |x| <= B, from f(w) = l(w.x; y) + (lambda/2) |w|^2:

    w <- Project(w - eta_t (lambda w + l'(w.x; y) x)),  eta_t = 1 / (lambda (t + t0)),

onto the ball of `radius`. l is the Huber loss (|l'| <= kappa, l' 1-Lipschitz: squared
loss with its *residual* clipped) or the logistic loss (|l'| <= 1, l' 1/4-Lipschitz).
So |l' x| <= G = kappa B, or B, and f is beta-smooth, beta = lambda + B^2 (or B^2/4).

**Theorem ogd-shift.** Let t0 >= beta / lambda. Let a subject's k records be learned at
any ticks up to t, and let the replay do the regulariser's step alone in those ticks.
Given the same noise in both worlds so far, their states are at most

    Delta = k G / (lambda (t + t0))    apart, whichever the ticks were.

*Proof.* l' is non-decreasing and Lipschitz, so l'(w.x) - l'(v.x) = c x.(w - v) with
0 <= c <= beta - lambda over B^2, and a step takes w - v to
(I - eta (lambda + c x x')) (w - v). The eigenvalues lie in [1 - eta beta, 1 - eta
lambda], and 1 - eta beta >= 0 for t0 >= beta / lambda. So each tick, learning or not,
contracts by 1 - eta_s lambda = (s + t0 - 1) / (s + t0); projections and equal noise
never increase a distance. In the tick i of a record that the replay lacks, the
gradient adds at most eta_i G = G / (lambda (i + t0)), and the contractions from i + 1
to t multiply to (i + t0) / (t + t0). []

**Classes.** With `classes=K` the parameters are a matrix W with a row for each class,
and l is the softmax loss log sum_c exp(W_c.x) - W_y.x. The theorem holds as it stands,
in Frobenius norms, with G = sqrt(2) B and beta = lambda + B^2 / 2.
*Proof.* `classes` has the bounds of softmax. The gradient (p - e_y) x' has norm
|p - e_y| |x| < sqrt(2) B. The Hessian is the Kronecker product of A = diag(p) - p p'
and x x'. Above, c x x' now is the mean of these products along the segment between the
two points: symmetric, with eigenvalues between 0 and B^2 / 2. That is all that the
contraction used. []

**Scope "subject".** delete adds N(0, sigma^2 I) to the state, sigma >= z Delta, in both
worlds. They had equal noise before, so the noised states are at most as different as
N(0, 1) and N(1/z, 1), and all that follows (steps, projections, other people's noise,
predictions) is post-processing. No secret is left in the state.

**Scope "joint"** (the replay lacks *all* records deleted so far; compared is the state
after the last of these deletions, and what follows). With sigma_j >= z_j k_j Delta_j at
deletion j, of k_j records, the deletions are mu-GDP, mu^2 = sum_j 1 / z_j^2, and so
mu^2 / 2-zCDP. (A plan for m records takes z_j = z / sqrt(k_j): mu = sqrt(m) / z.)

*Proof.* Couple the worlds by shifted noise: where world 1 draws N_j, the replay takes
N_j + h_j, h_j a function of the earlier noise. While `a` learned records are still to
be deleted the worlds are at most a Delta_t apart, as above; let h_j be the share k_j/a
of their difference: |h_j| <= k_j Delta_j, and (a - k_j) Delta_t is left. After the last
deletion the worlds are equal. So world 1 is a function of N + h and the replay the same
function of N, and it remains to tell N + h from N. Let s_j be N(1/z_j, 1) in world 1
and N(0, 1) in the replay, all independent: numbers whose means are mu apart. They are
enough to make the noise of either world without knowing which it is. Draw after draw,
h_j follows from the draws made so far; with h_j = r (sigma_j / z_j) e, |e| = 1, r <= 1
and fresh standard noise Z,

    sigma_j (Z + (r s_j + sqrt(1 - r^2) e.Z - e.Z) e)

is N(h_j, sigma_j^2 I) in world 1 and N(0, sigma_j^2 I) in the replay. Post-processing
makes nothing easier to tell apart. [] (It is the composition theorem of Dong, Roth and
Su 2022 for adaptive Gaussian mechanisms. It takes multipliers that are fixed in
advance: sigma_j follows configuration, requests, clock and grids, never data or noise.)

**In floating point** (u = 2^-53) a step is followed up to a rounding error of norm
e_s <= u (c R + eta_s (B^2 R (d/4 + 8) + 16 G)): R the largest norm of w, c = 4, or
d + 20 where steps project. Over classes these are K d + 20, and (16 + 2 K) G for 16 G:
softmax is 1/2-Lipschitz in the scores, whose errors have norm u (d/4 + 5) R B, and is
itself off by at most u (2 K + 8). Both worlds are off, and errors contract like
everything else: 2 sum_s e_s (s + t0) / (t + t0) is added to Delta. The rounded factors
(s + t0 - 1) / (s + t0) are at most 1 + 6 u too large each: a factor 1 + 6 u t.
An *earlier* deletion at tick j, somebody else's, rounded both worlds to its grid g and
may have moved them apart by g sqrt(d) + 2 (d + 20) u R (K d for d over classes); it has
faded by (j + t0) / (t + t0) since, so the sum of these times (j + t0) is kept (`drift`)
and added.
The coupling stays on the grid: let the worlds be q steps of g apart, p after rounding,
|p_i - q_i| <= 1. For a share s there is a whole v_i with |p_i - v_i| <= s |q_i| + 1 and
|v_i| <= (1 - s) |q_i| + 1, as these intervals overlap by at least 1. With h = g (p - v)
rounded noises differ by h exactly, |h| is at most the share and g sqrt(d), which are
charged, and what is left is the rest and g sqrt(d), as `drift` has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.rounding import up
from demur.unlearning.models import kernels, row_kernels
from demur.unlearning.models.base import (
    NEVER_COVERED,
    Array,
    Mode,
    RowFunctions,
    State,
    Theorem,
)
from demur.unlearning.models.classes import (
    SOFTMAX_SLOPE,
    SOFTMAX_SMOOTH,
    check_classes,
    class_number,
    class_probabilities,
)
from demur.unlearning.models.inputs import (
    FLOAT64,
    check_norm_bound,
    check_size,
    clipped,
    label,
    longest,
    number,
    rows,
    vector,
    with_noise,
    without_dispatch,
)

_U = 2.0**-53
_MOST_TICKS = 2**50  # the clock is a float64


class OGD(Mode):
    """Strongly convex online gradient descent; a deletion is noise alone.

    Larger `lam` forgets faster (Delta = G / (lambda (t + t0))) and fits less.
    `radius` defaults to G / lambda, which no step leaves. The features must have norm
    at most `norm_bound`; longer rows are scaled back. Predictions are scores for
    loss="huber" and probabilities of class 1 for loss="logistic". With `classes=K` y is
    a class from 0 to K - 1 and the loss is logistic (softmax).

    >>> mode = OGD(2, lam=0.5)
    >>> mode.insert([0.6, 0.8], 1.0), round(mode.predict([0.6, 0.8]), 4)
    (0.0, 0.5)
    >>> round(mode.shift_bound(), 4)  # G / (lambda (1 + t0)) = 1 / (0.5 * 4)
    0.5
    """

    name = "ogd"
    needs_record = False
    exact = False
    publishes = "state"
    losses = ("huber", "logistic")
    regulariser = "lam"
    multiclass = True
    theorem = Theorem(
        id="ogd-shift",
        statement=(
            "After the deletion, the whole state and everything computed from it can be"
            " told apart from those of a model that never saw the record, where its"
            " place in the stream was kept and left blank, no better than two Gaussians"
            " whose means are shift / sigma apart."
        ),
        scopes=("subject", "joint"),
        not_covered=(
            *NEVER_COVERED,
            "that some record was learned at that place is not hidden",
        ),
    )

    def __init__(
        self,
        dimension: int,
        *,
        loss: Literal["huber", "logistic"] | None = None,
        norm_bound: float = 1.0,
        lam: float = 0.1,
        kappa: float = 1.0,
        radius: float | None = None,
        t0: float | None = None,
        classes: int | None = None,
    ) -> None:
        validate.count(dimension=dimension)
        check_norm_bound(norm_bound)
        check_classes(classes)
        parameters = dimension * (1 if classes is None else classes)
        check_size(parameters, parameters)
        validate.positive(lam=lam, kappa=kappa)
        if loss is None:
            loss = "huber" if classes is None else "logistic"
        if loss not in ("huber", "logistic"):
            raise ValueError(f'loss must be "huber" or "logistic"; got {loss!r}')
        if classes is not None and loss != "logistic":
            raise ValueError(f'loss must be "logistic" with classes; got {loss!r}')
        self.dimension, self.loss = int(dimension), loss
        self.classes = None if classes is None else int(classes)
        self.norm_bound, self.lam = float(norm_bound), float(lam)
        self.kappa = float(kappa)
        smooth = 1.0 if loss == "huber" else 0.25
        steepest = self.kappa if loss == "huber" else 1.0
        if self.classes is not None:
            smooth, steepest = SOFTMAX_SMOOTH, SOFTMAX_SLOPE
        longest_row = longest(self.norm_bound, self.dimension)
        self.gradient_bound = up(steepest * longest_row, 2)
        reach = up(self.gradient_bound / self.lam)
        least = up(1.0 + smooth * longest_row**2 / self.lam, 4)
        self.radius = reach if radius is None else float(radius)
        self.t0 = least if t0 is None else float(t0)
        validate.positive(radius=self.radius, t0=self.t0)
        if not reach * self.norm_bound * self.t0 < 1e300:
            raise ValueError("norm_bound, kappa and 1 / lam are too large together")
        if not self.radius * max(self.norm_bound, 1.0) < 1e300:  # scores are finite
            raise ValueError("norm_bound and radius are too large together")
        if self.t0 < least:
            raise ValueError(
                f"t0 must be at least beta / lambda = {least:.6g}, where steps begin to"
                f" contract; got {t0!r}"
            )
        self._given_radius, self._given_t0 = radius, t0
        # No step leaves the ball of radius G / lambda, so it need not be enforced.
        self._projects = self.radius < reach
        self._kind = kernels.LOGISTIC if loss == "logistic" else kernels.HUBER
        if self.classes is not None:
            self._kind = float(self.classes)
        within = self.radius if self._projects else math.inf
        self._constants = np.array(
            [self.lam, self.kappa, self.norm_bound, within, self.t0, self._kind]
        )
        self._state = np.zeros(self.size + 1)
        self._drift = 0.0  # (t + t0) times what earlier grids may have moved

    @property
    def ticks(self) -> int:
        """How many records were learned, those that are forgotten by now included."""
        return int(self._state[-1])

    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """The record as it will be learned."""
        row = clipped(vector(x, self.dimension), self.norm_bound)
        if self.classes is not None:
            return row, class_number(y, self.classes)
        return row, label(y) if self.loss == "logistic" else number(y)

    def predict(self, x: ArrayLike) -> float:
        """Score, or probability of class 1; with `classes` the most probable class."""
        if (
            type(x) is np.ndarray
            and x.dtype is FLOAT64
            and x.shape == (self.dimension,)
        ):
            predicted: float = kernels.predict(
                self._state, x, self.norm_bound, self._kind
            )
            if predicted == predicted:
                return predicted
        row = clipped(vector(x, self.dimension), self.norm_bound)
        return float(kernels.predict(self._state, row, self.norm_bound, self._kind))

    def probabilities(self, x: ArrayLike) -> Array:
        """The softmax of the scores."""
        if self.classes is None:
            return super().probabilities(x)
        row = clipped(vector(x, self.dimension), self.norm_bound)
        return class_probabilities(self._state, row, self.classes)

    def insert(self, x: ArrayLike, y: float) -> float:
        """One step; the prediction from before."""
        if (
            type(x) is np.ndarray
            and x.dtype is FLOAT64
            and x.shape == (self.dimension,)
            and isinstance(y, float)
        ):
            predicted: float = kernels.ogd_step(self._state, x, self._constants, y)
            if predicted == predicted:
                return predicted
        row, target = self.check(x, y)
        self._room(1)
        return float(kernels.ogd_step(self._state, row, self._constants, target))

    def on_row(self, row: Array, emptied: int) -> RowFunctions:
        """The compiled steps alone; the array of the state is never another one."""
        shown = (self._state, row, self.norm_bound, self._kind, emptied)
        bound = (self._state, row, self._constants, emptied)
        predict = without_dispatch(row_kernels.predict, *shown)
        insert = without_dispatch(row_kernels.ogd_step, *bound, 0.0)
        return partial(predict, *shown), partial(insert, *bound)

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """All rows in order, at full speed; the predictions from before each."""
        matrix, targets = rows(X, Y, self.dimension)
        if kernels.first_unusable(matrix, targets, self._kind) < len(matrix):
            checked = [self.check(*r) for r in zip(matrix, targets, strict=True)]
            matrix = np.array([row for row, _ in checked])
            targets = np.array([target for _, target in checked])
        self._room(len(matrix))
        out = np.empty(len(matrix))
        kernels.ogd_run(self._state, matrix, targets, self._constants, out)
        return out

    def _room(self, records: int) -> None:
        if self.ticks + records > _MOST_TICKS:
            raise ValueError(f"the clock of this mode ends at {_MOST_TICKS} ticks")

    def skip(self) -> None:
        """A tick without a record: the regulariser's step."""
        kernels.ogd_skip(self._state, self._constants)

    def shift_bound(self, records: int = 1) -> float:
        """k G / (lambda (t + t0)), and what rounding adds.

        The grid of this deletion is for the caller to add; those of earlier ones are
        in.
        """
        validate.count(records=records)
        t = self._state[-1]
        exact = self.gradient_bound / (self.lam * (t + self.t0))
        wide = 1.0 + 6.0 * _U * (t + 8.0)
        faded = self._drift / (t + self.t0) * wide
        return up(float(records * exact * wide + faded + self._rounding(t)), 4)

    def _rounding(self, t: float) -> float:
        """2 sum_s e_s (s + t0) / (t + t0), see the module's docstring."""
        each, data = self._step_error()
        mean = t * (t + 1.0 + 2.0 * self.t0) / (2.0 * (t + self.t0))
        return 2.0 * _U * (each * mean + data / self.lam)

    def _step_error(self) -> tuple[float, float]:
        """(a, b): a step's rounding error is at most u (a + eta b)."""
        R, B, d = self.radius, self.norm_bound, self.dimension
        each = (self.size + 20.0 if self._projects else 4.0) * R
        slopes = 16.0 + 2.0 * (0 if self.classes is None else self.classes)
        return each, B * B * R * (d / 4.0 + 8.0) + slopes * self.gradient_bound

    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        noise: Array | None = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        """Noise, and nothing else: the record is not needed."""
        validate.count(records=records)
        self.forget_nothing(noise, grid=grid)

    def forget_nothing(
        self, noise: Array | None = None, *, grid: float | None = None
    ) -> None:
        """The same as a deletion: noise, then the projection."""
        w = with_noise(self._state[:-1], noise, grid, self.size)
        norm = float(np.linalg.norm(w))
        if norm > self.radius:
            w *= self.radius / norm
        self._state[:-1] = w
        moved = (grid or 0.0) * math.sqrt(self.size)
        moved += 2.0 * (self.size + 20.0) * _U * self.radius
        self._drift += up(moved * (self._state[-1] + self.t0), 4)

    def published(self) -> Array:
        """The weights."""
        return self._state[:-1].copy()

    def state(self) -> State:
        """Weights, clock and the drift of earlier grids; there is nothing else."""
        return {
            "w": self.published(),
            "ticks": np.array(self.ticks, dtype=np.int64),
            "drift": np.array(self._drift),
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        w = vector(state["w"], self.size, "the state's w")
        ticks, drift = int(state["ticks"]), float(state["drift"])
        if not 0 <= ticks <= _MOST_TICKS or not 0.0 <= drift < math.inf:
            raise ValueError(f"a state with {ticks} ticks, drift {drift} is damaged")
        self._state[:-1], self._state[-1], self._drift = w, ticks, drift

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        classes = {} if self.classes is None else {"classes": self.classes}
        return classes | {
            "loss": self.loss,
            "norm_bound": self.norm_bound,
            "lam": self.lam,
            "kappa": self.kappa,
            "radius": self._given_radius,
            "t0": self._given_t0,
        }
