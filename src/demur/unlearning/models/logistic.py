"""Mode `logistic`: logistic regression whose distance to a refit is certified.

    F_S(w) = sum over the live records S of log(1 + exp(-+ w.x)) + (Lambda/2) |w|^2

with |x| <= B and a fixed Lambda, so that a deletion does not change the regulariser.
An event, S to S', takes one Newton step with the Hessian at an *anchor* w0, kept up to
date by rank one: H = Lambda I + sum s'(w0.x) x x', P = H^-1, s the logistic function.

**Theorem newton-residual.** Let r >= |grad F_S(w)| before the event. The event learns
(+) or forgets (-) a record with gradient g at w: step = -+ P' g, w' = w + step. Then

    r' = r + M B L (|w - w0| + |step|/2) |step| + |H' step +- g|  >=  |grad F_S'(w')|,

M = sup |s''| = 1/(6 sqrt 3) and L >= lambda_max(sum over S' of x x').

*Proof.* grad F_S'(w') = grad F_S(w) +- g + H' step + D step, where D is the integral of
Hess F_S'(w + t step) - H' over t in [0, 1]. Record by record the integrand is
(s'(x.v) - s'(x.w0)) x x', with |s'(x.v) - s'(x.w0)| <= M B |v - w0| and
|v - w0| <= |w - w0| + t |step|, so |D| <= M B L (|w - w0| + |step|/2). []

**Classes.** With `classes=K` the loss is that of softmax, w a matrix W with a row for
each class, laid end to end, and P and H have K d rows. The theorem holds with
M = sqrt(6) / 9, and gradients of a record have norm at most sqrt(2) B.
*Proof.* `classes` has the bounds of softmax. Record by record the integrand now is the
Kronecker product of E = Hess l(V x) - Hess l(W0 x) and x x', where
|E| <= M |(V - W0) x| <= M B |V - W0| =: m. From -m <= E <= m the sum over the records
lies between -m and m times that of I (x) x x', which has the top eigenvalue of the
d x d Gram matrix. The rest is as above. []

F_S is Lambda-strongly convex: w is within |grad F_S(w)| / Lambda <= r / Lambda of its
minimiser: that is `certificate()`. L is measured on the Gram matrix now and then and
grows by |x|^2 with each insertion in between; deletions only lower the true value.

**The promise.** A deletion is refused unless r' / Lambda <= `tolerance`. The replay
without the record obeys the same rule and has the same minimiser, so the two inner
points are at most Delta = 2 tolerance apart (tolerance, against an exact refit). Delta
is a declared constant: noise sized by r itself would depend on the data.
Published is w + N(0, sigma^2 I), the inner point never. The next published copy has an
inner point of its own, so costs add up over *publications*, for one subject too; the
inner points do not depend on the noise, so k copies are one Gaussian mechanism of
sensitivity sqrt(k) Delta. All deleted records are covered at once (the minimiser is
the survivors'), so scopes "subject" and "joint" cost the same.

Until the first deletion the published copy is w itself; from then on it changes with
`delete` and `publish` alone, and predictions are made from it.

**Renewal.** With the live records at hand, `measure` computes the gradient (one pass)
and sets r to its norm; `renew` takes Newton steps until r is at rounding level and
moves the anchor to w. Either makes room for more deletions at no privacy cost: the
inner point is secret, and the promise is about what is published. A deletion that
one step cannot certify even then is `renew(survivors, forgotten=k)` and `publish`.

**In floating point** (u = 2^-53) an event adds to r: the drift of H off its definition
(4 u trace H for an update, u (d + 16)(1 + |w0| B) B^2 for the rounded curvature) times
|step|; (d + 16) u trace H |step| for the miss |H' step +- g|, which is measured, part
of r, so that P may be off without harm; u B (16 + (d + 16) |w| B) for g; u (L + Lambda)
|w| for rounding w'. After E events the Gram matrix is off by at most 4 u E^2 B^2, its
trace having been at most E B^2. (Over classes: K d for d in the miss, 6 u trace H for
an update, u (d + 6 K + 48)(1 + |w0| B) B^2 for the curvature, 2 K + 32 for 16 in g.)
Batches: see `newton_fit`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.rounding import up
from demur.unlearning.errors import CertificateExceeded
from demur.unlearning.models import kernels, newton_kernels
from demur.unlearning.models.base import NEVER_COVERED, Array, Mode, State, Theorem
from demur.unlearning.models.classes import (
    SOFTMAX_SLOPE,
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
    rows,
    sum_with,
    to_forget,
    vector,
    with_noise,
)
from demur.unlearning.models.newton_fit import (
    LogisticObjective,
    LogLossObjective,
    Minimum,
    SoftmaxObjective,
)

_U = 2.0**-53
# scalars: see newton_kernels.event
_RECORDS, _RESIDUAL, _TOP, _DRIFT, _SINCE, _APART, _EVENTS = range(7)


class Logistic(Mode):
    """Certified Newton for logistic regression: forgetting in O(d^2), no data kept.

    `Lambda` is the whole regulariser, not a share of the number of records. `fit` takes
    a batch; `insert` and `delete` follow it with one Newton step each. `tolerance`
    is the largest certified distance to the minimiser at which a copy is published
    after a deletion; past it `delete` raises `CertificateExceeded`, and `renew`
    with the live records makes room. Predictions are probabilities of class 1. With
    `classes=K` y is a class from 0 to K - 1 and an event takes O(K^3 d^2).

    >>> mode = Logistic(1, Lambda=1.0, tolerance=0.05)
    >>> mode.fit([[1.0], [-1.0], [0.5]], [1, 0, 1])
    >>> mode.certificate() < 1e-12, mode.shift_bound()
    (True, 0.1)
    >>> mode.delete([0.5], 1, noise=np.zeros(1))
    >>> 0.0 < mode.certificate() <= 0.05
    True
    """

    name = "logistic"
    needs_record = True
    exact = False
    publishes = "output"
    losses = ("logistic",)
    loss = "logistic"
    regulariser = "Lambda"
    multiclass = True
    theorem = Theorem(
        id="newton-residual",
        statement=(
            "A copy published after the deletion can be told apart from one of a model"
            " that never learned the record no better than two Gaussians whose means"
            " are shift / sigma apart; each published copy costs that once."
        ),
        scopes=("subject", "joint"),
        not_covered=(
            *NEVER_COVERED,
            "the inner state is secret and not covered: only published copies are",
            "that a deletion was refused until the model was renewed is not hidden",
        ),
        composes=(("subject", "publications"), ("joint", "publications")),
    )

    def __init__(
        self,
        dimension: int,
        *,
        norm_bound: float = 1.0,
        Lambda: float = 1.0,
        tolerance: float = 1e-3,
        classes: int | None = None,
    ) -> None:
        validate.count(dimension=dimension)
        check_norm_bound(norm_bound)
        check_classes(classes)
        parameters = dimension * (1 if classes is None else classes)
        check_size(parameters, 3 * parameters**2)
        validate.positive(Lambda=Lambda, tolerance=tolerance)
        if not tolerance * norm_bound < 1e200:  # scores stay finite, noise included
            raise ValueError("norm_bound and tolerance are too large together")
        if not Lambda >= 1e-9 * norm_bound**2:
            raise ValueError(
                "Lambda must be at least 1e-9 norm_bound^2, or Newton steps drown in"
                f" rounding; got Lambda={Lambda!r}, norm_bound={norm_bound!r}"
            )
        self.dimension, self.norm_bound = int(dimension), float(norm_bound)
        self.Lambda, self.tolerance = float(Lambda), float(tolerance)
        self.classes = None if classes is None else int(classes)
        self._kind = kernels.LOGISTIC if classes is None else float(classes)
        self.gradient_bound = self.norm_bound
        if self.classes is not None:
            self.gradient_bound = up(SOFTMAX_SLOPE * self.norm_bound)
        # |x| may exceed the bound by 1e-12 of it; the recursion uses the looser one.
        self._bound = longest(self.norm_bound, self.dimension)
        most = self.Lambda * self.tolerance * (1.0 - 1e-12)
        self._constants = np.array(
            [
                self.norm_bound,
                self.Lambda,
                most,
                self._bound,
                0 if self.classes is None else self.classes,
            ]
        )
        self._matrices = np.zeros((3, self.size, self.size))
        self._vectors = np.zeros((6, self.size))
        self._scalars = np.zeros(7)
        np.fill_diagonal(self._matrices[0], self.Lambda)
        np.fill_diagonal(self._matrices[1], 1.0 / self.Lambda)

    @property
    def records(self) -> int:
        """How many records are live."""
        return int(self._scalars[_RECORDS])

    def certificate(self) -> float:
        """An upper bound on the distance of the inner point to the minimiser.

        It depends on the data and must stay secret.
        """
        return up(float(self._scalars[_RESIDUAL]) / self.Lambda, 2)

    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """The record as it will be learned; y as 0 or 1, or the number of a class."""
        row = clipped(vector(x, self.dimension), self.norm_bound)
        if self.classes is not None:
            return row, class_number(y, self.classes)
        return row, label(y)

    def predict(self, x: ArrayLike) -> float:
        """Probability of class 1, or the most probable class; as published."""
        row = clipped(vector(x, self.dimension), self.norm_bound)
        return float(kernels.predict(self._shown(), row, self.norm_bound, self._kind))

    def probabilities(self, x: ArrayLike) -> Array:
        """The softmax of the scores, from the published copy."""
        if self.classes is None:
            return super().probabilities(x)
        row = clipped(vector(x, self.dimension), self.norm_bound)
        return class_probabilities(self._shown(), row, self.classes)

    def _shown(self) -> Array:
        return self._vectors[2 if self._scalars[_APART] else 0]

    def _gram(self) -> Array:
        return self._matrices[2, : self.dimension, : self.dimension]

    def insert(self, x: ArrayLike, y: float) -> float:
        """One Newton step; the prediction from before."""
        if (
            type(x) is not np.ndarray
            or x.dtype is not FLOAT64
            or x.shape != (self.dimension,)
            or not isinstance(y, float)
        ):
            x, y = self.check(x, y)
        predicted = self._event(x, y, 1.0)
        if predicted != predicted:
            predicted = self._event(*self.check(x, y), 1.0)
        if newton_kernels.measurement_due(self._scalars):
            self._measure_top()
        return predicted

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """All rows in order, one Newton step each."""
        matrix, targets = self._rows(X, Y)
        out, at = np.empty(len(matrix)), 0
        run = newton_kernels.softmax_run if self.classes else newton_kernels.run
        while at < len(matrix):
            at += run(
                self._matrices,
                self._vectors,
                self._scalars,
                matrix[at:],
                targets[at:],
                self._constants,
                out[at:],
            )
            if newton_kernels.measurement_due(self._scalars):
                self._measure_top()
        return out

    def _event(self, x: Array, y: float, sign: float) -> float:
        steps = newton_kernels
        event = steps.softmax_event if self.classes else steps.event
        parts = self._matrices, self._vectors, self._scalars
        return event(*parts, x, y, sign, self._constants)

    def _rows(self, X: ArrayLike, Y: ArrayLike) -> tuple[Array, Array]:
        matrix, targets = rows(X, Y, self.dimension)
        if kernels.first_unusable(matrix, targets, self._kind) < len(matrix):
            checked = [self.check(*r) for r in zip(matrix, targets, strict=True)]
            matrix = np.array([row for row, _ in checked])
            targets = np.array([target for _, target in checked])
        return matrix, targets

    def _measure_top(self) -> None:
        """Lower the bound on the top eigenvalue to that of the Gram matrix."""
        top = float(np.linalg.eigvalsh(self._gram())[-1])
        # Eigenvalues move by at most the norm of the Gram's rounding errors.
        events = float(self._scalars[_EVENTS]) + self.dimension + 16.0
        loose = 4.0 * _U * (events * self._bound) ** 2
        self._scalars[_TOP] = min(self._scalars[_TOP], top * (1.0 + 1e-9) + loose)
        self._scalars[_SINCE] = 0.0

    def fit(self, X: ArrayLike, Y: ArrayLike) -> None:
        """Learn a batch from nothing, to rounding level."""
        if self.records or self._scalars[_APART]:
            raise ValueError("fit begins with an empty mode; use fresh() or renew()")
        objective = self._objective(X, Y)
        self._take(objective.minimum(self._vectors[0]), len(objective.X))

    def renew(self, X: ArrayLike, Y: ArrayLike, *, forgotten: int = 0) -> None:
        """Newton steps over the live records, until the residual is at rounding level.

        X and Y must be exactly the live records, in any order. With `forgotten`, they
        are the live ones without so many that are forgotten hereby: a deletion for
        which one Newton step would not do, to be followed by `publish`.
        """
        if isinstance(forgotten, bool) or not isinstance(forgotten, int):
            raise TypeError(f"forgotten must be a whole number; got {forgotten!r}")
        objective = self._objective(X, Y)
        if forgotten < 0 or len(objective.X) + forgotten != self.records:
            raise ValueError(
                f"{len(objective.X)} records were handed in and {forgotten} are to be"
                f" forgotten, but {self.records} are live; nothing has changed"
            )
        self._take(objective.minimum(self._vectors[0]), len(objective.X))

    def measure(self, X: ArrayLike, Y: ArrayLike) -> float:
        """Set the residual to the gradient's norm over the live records: one pass."""
        objective = self._objective(X, Y)
        if len(objective.X) != self.records:
            raise ValueError(
                f"{len(objective.X)} records were handed in, but {self.records} are"
                " live; nothing has changed"
            )
        residual = objective.gradient(self._vectors[0]).bound
        self._scalars[_RESIDUAL] = min(residual, float(self._scalars[_RESIDUAL]))
        return self.certificate()

    def _objective(self, X: ArrayLike, Y: ArrayLike) -> LogLossObjective:
        matrix, targets = self._rows(X, Y)
        matrix = kernels.clip_rows(matrix, self.norm_bound)
        targets = np.maximum(targets, 0.0)
        given = (matrix, targets, self.Lambda, self._bound)
        if self.classes is None:
            return LogisticObjective(*given)
        return SoftmaxObjective(*given, self.classes)

    def _take(self, minimum: Minimum, records: int) -> None:
        """Begin again from a minimum: point, anchor and sums are new."""
        self._matrices[:2] = minimum.H, minimum.P
        self._gram()[:] = minimum.gram
        self._vectors[:2] = minimum.w
        self._scalars[_RECORDS] = self._scalars[_EVENTS] = records
        self._scalars[_RESIDUAL] = minimum.residual
        self._scalars[_DRIFT] = minimum.drift
        self._scalars[_TOP] = math.inf
        self._measure_top()

    def shift_bound(self, records: int = 1) -> float:
        """2 tolerance, of the published copies' inner points, for any number."""
        validate.count(records=records)
        return 2.0 * self.tolerance

    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        noise: Array | None = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        """A Newton step for each record, then a published copy with the noise."""
        matrix, targets = to_forget(self, x, y, records, self._rows)
        # Refused before anything changes; a step is at most sqrt(2) B / Lambda long.
        reach = np.abs(self._vectors[0]) + 2.0 * records * self._bound / self.Lambda
        sum_with(reach, noise, grid, self.size)
        before = self._copy() if records > 1 else None
        for row, target in zip(matrix, targets, strict=True):
            certified = self._event(row, target, -1.0) != -1.0
            if not certified and before is not None:
                self._matrices, self._vectors, self._scalars = before
            self._vectors[3:] = 0.0  # work space that still held the record
            if not certified:
                self._refuse()
        self.publish(noise, grid=grid)

    def _copy(self) -> tuple[Array, Array, Array]:
        return self._matrices.copy(), self._vectors.copy(), self._scalars.copy()

    def _refuse(self) -> NoReturn:
        raise CertificateExceeded(
            "the model could not be proved to lie within its tolerance of"
            f" {self.tolerance:g} after this; call renew() with the live records, or"
            " declare a larger tolerance. Nothing has changed."
        )

    def publish(self, noise: Array | None = None, *, grid: float | None = None) -> None:
        """A new published copy: the inner point with noise."""
        if not self._scalars[_RESIDUAL] <= self._constants[2]:
            self._refuse()
        copy = with_noise(self._vectors[0], noise, grid, self.size)
        self._vectors[2] = copy
        self._scalars[_APART] = 1.0

    def published(self) -> Array:
        """The published copy; the inner point itself before the first deletion."""
        return self._shown().copy()

    def state(self) -> State:
        """The inner state, which is secret."""
        return {
            "H": self._matrices[0].copy(),
            "P": self._matrices[1].copy(),
            "gram": self._gram().copy(),
            "w": self._vectors[0].copy(),
            "anchor": self._vectors[1].copy(),
            "published": self._vectors[2].copy(),
            "scalars": self._scalars.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        places = (self._matrices[0], self._matrices[1], self._gram())
        matrices = [
            np.asarray(state[key], dtype=np.float64) for key in ("H", "P", "gram")
        ]
        vectors = [
            vector(state[key], self.size, f"the state's {key}")
            for key in ("w", "anchor", "published")
        ]
        scalars = vector(state["scalars"], 7, "the state's scalars")
        for place, matrix in zip(places, matrices, strict=True):
            if matrix.shape != place.shape or not np.isfinite(matrix).all():
                raise ValueError("this is not a state of a logistic mode of this size")
        for place, matrix in zip(places, matrices, strict=True):
            place[:] = matrix
        self._vectors[:3] = vectors
        self._vectors[3:] = 0.0  # work space that may hold a record
        self._scalars[:] = scalars

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        classes = {} if self.classes is None else {"classes": self.classes}
        return classes | {
            "norm_bound": self.norm_bound,
            "Lambda": self.Lambda,
            "tolerance": self.tolerance,
        }
