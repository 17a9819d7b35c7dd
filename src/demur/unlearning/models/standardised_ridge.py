"""Mode `standardised_ridge`: exact least squares that standardises its own features.

"Scale first" keeps the record: after a running scaler every later row depends on it,
and so does all that is learned from them (see `docs/unlearning_theory.md`). Here no
scaled row is ever kept. Features and targets are put on a grid, k = round(x / h); a
record with one beyond its declared bound is refused. The state is

    S = sum over live records of z z',   z = (k_x, k_y, 1),   in integers.

Its last row has the sums of the features and the number n of live records; so means,
variances and the standardised normal equations are functions of S.

**Theorem standardised-exact.** After any sequence of insertions and deletions (of
records that are live), S is that of a model that saw the live records alone, in any
order. So are the means and deviations that standardise, and the weights.
*Proof.* z is a function of the record alone: bounds and grid are declared, nothing that
was learned enters it. So S is a sum over the live records of terms that depend on one
record each. A term is three integers for each product (`standardised_kernels`), integer
addition is associative and commutative and has inverses, and no part overflows, as the
number of live records is refused past 2^29. Everything else is computed from S. []

**Weights.** With m and s the means and deviations of the live records, the weights
minimise

    sum (y - b - v.(x - m)/s)^2 + Lambda |v|^2,

the intercept b is free, and a constant feature has weight 0. In raw units w = v / s:
`published` has w, then the intercept, for each target. Every live record is
standardised by the statistics of *now*, the old ones too; the answer does not depend on
units or offsets of the features, up to the grid. Where features are collinear, a Lambda
below about 1e-12 n is lost in rounding: predictions stay, but how the weights are split
among such features is arbitrary (the same in both worlds, as it follows from S).

With `classes=K` the K targets are one-hot, as in `ridge`, and `predict` is the class
with the highest score.

**The lag.** `insert` answers from weights that are solved whenever the number of live
records is a multiple of `refresh` (1 up to 32 features, as many as there are features
beyond), `predict` and `published` solve first, a deletion solves at once. The number of
live records is the same in both worlds after the deletion, so lagged weights are too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from demur.core import validate
from demur.unlearning.models import standardised_kernels as kernels
from demur.unlearning.models.base import (
    NEVER_COVERED,
    Array,
    State,
    Theorem,
    digest_of,
)
from demur.unlearning.models.classes import (
    check_classes,
    class_number,
    nearest_distribution,
)
from demur.unlearning.models.inputs import check_size, number, rows, vector
from demur.unlearning.models.least_squares import LeastSquares

_SMALL = 32  # up to here the compiled elimination beats LAPACK's call overhead
_BITS = 48
_MOST_RECORDS = 2**29
_WIDE = 2.0**24


class StandardisedRidge(LeastSquares):
    """Exact ridge regression on features that it standardises itself.

    A record with a feature beyond `feature_bound` or a target beyond `y_bound` is
    refused, not clipped: seconds since 1970 would all become the same number. Both are
    resolved to 2^-48 of their bound. At the defaults that is 1.7e7 and 6e-8: smaller or
    larger units are for the caller to choose, or the bounds.

    >>> a, b = StandardisedRidge(1), StandardisedRidge(1)
    >>> for mode in (a, b):
    ...     _ = mode.insert_many([[1e6], [1e6 + 1], [1e6 + 2]], [1.0, 2.0, 3.0])
    >>> _ = a.insert([5e6], -1.0)
    >>> a.delete([5e6], -1.0)
    >>> a.digest() == b.digest(), round(a.predict([1e6 + 1]), 6)
    (True, 2.0)
    """

    name = "standardised_ridge"
    clips = False
    theorem = Theorem(
        id="standardised-exact",
        statement=(
            "After the deletion, the sums, the means and deviations that standardise"
            " the features and the weights equal, bit for bit, those of a model that"
            " learned the other records alone, in any order."
        ),
        scopes=("subject", "joint"),
        not_covered=NEVER_COVERED,
        composes=(("subject", "nothing"), ("joint", "nothing")),
    )

    def __init__(
        self,
        dimension: int,
        *,
        feature_bound: float = _WIDE,
        y_bound: float | None = None,
        Lambda: float = 1.0,
        refresh: int | None = None,
        classes: int | None = None,
    ) -> None:
        validate.count(dimension=dimension)
        check_classes(classes)
        targets = 1 if classes is None else classes
        check_size(dimension * targets, (dimension + targets + 1) ** 2 * 4)
        if classes is not None and y_bound is not None:
            raise ValueError("y_bound is for numbers; with classes leave it out")
        validate.positive(
            feature_bound=feature_bound,
            y_bound=_WIDE if y_bound is None else y_bound,
            Lambda=Lambda,
        )
        self.dimension = int(dimension)
        self.classes = None if classes is None else int(classes)
        self.feature_bound, self.Lambda = float(feature_bound), float(Lambda)
        self.y_bound = (
            1.0 if classes is not None else float(_WIDE if y_bound is None else y_bound)
        )
        for name, bound in (
            ("feature_bound", self.feature_bound),
            ("y_bound", self.y_bound),
            ("Lambda", self.Lambda),
        ):
            if not 1e-50 <= bound <= 1e50:  # squares and ratios are finite
                raise ValueError(f"{name} must be between 1e-50 and 1e50; got {bound}")
        small = self.dimension <= _SMALL
        self.refresh = (1 if small else self.dimension) if refresh is None else refresh
        validate.count(refresh=self.refresh)
        self._given_refresh, self._given_y_bound = refresh, y_bound
        top = 2.0**_BITS
        x_step = self.feature_bound / top
        y_step = 1.0 if classes is not None else self.y_bound / top
        self._constants = np.array(
            [
                1.0 / x_step,
                1.0 / y_step,
                top,
                self.Lambda,
                targets,
                0.0 if classes is None else 1.0,
                y_step / x_step,
                x_step,
                y_step,
            ]
        )
        self._small, self._stale = small, False
        size = self.dimension + targets + 1
        self._sums: NDArray[np.int64] = np.zeros((3, size, size), dtype=np.int64)
        self._w = np.zeros(self.size)
        self._system = np.zeros((self.dimension, self.dimension + targets))
        self._spread = np.zeros(2 * self.dimension + targets)
        self._integers = np.zeros(size, dtype=np.int64)

    @property
    def size(self) -> int:
        """A weight for each feature and an intercept, for each target."""
        return (self.dimension + 1) * (1 if self.classes is None else self.classes)

    @property
    def records(self) -> int:
        """How many records are live."""
        return int(self._sums[0, -1, -1])

    def standardisation(self) -> tuple[Array, Array]:
        """Means and standard deviations of the live records' features; 0 if constant.

        They are functions of the sums, so a deleted record has left no trace in them.
        """
        d = self.dimension
        if not self.records:
            return np.zeros(d), np.zeros(d)
        spread = np.zeros_like(self._spread)
        kernels.equations(
            self._sums, np.zeros_like(self._system), spread, self._constants
        )
        step = self._constants[7]
        return spread[d : 2 * d] * step, spread[:d] * step

    def planned_gradient(self, gradient: Array) -> Array:
        """By the weights of standardised features and targets: without units."""
        means, deviations = self.standardisation()
        inverse = np.divide(
            1.0, deviations, out=np.zeros_like(means), where=deviations > 0
        )
        d, unit = self.dimension, self._target_deviation()
        blocks = gradient.reshape(-1, d + 1)
        own = (blocks[:, :d] - means * blocks[:, d:]) * inverse
        planned: Array = np.hstack([own, blocks[:, d:]]).ravel()
        return planned / unit if unit else np.zeros_like(planned)

    def planned_parameters(self) -> Array:
        """The weights of standardised features and targets; their intercept is 0."""
        _, deviations = self.standardisation()
        unit = self._target_deviation()
        weights = self.published().reshape(-1, self.dimension + 1)[:, :-1] * deviations
        planned: Array = weights.ravel()
        return planned / unit if unit else np.zeros_like(planned)

    def _target_deviation(self) -> float:
        """The standard deviation of the live records' targets; 1 for classes."""
        if self.classes is not None:
            return 1.0
        parts = self._sums[
            :, [-1, self.dimension, -1], [-1, self.dimension, self.dimension]
        ]
        n, square, first = (
            int(low) + (int(middle) << 32) + (int(high) << 64)
            for low, middle, high in parts.T
        )
        spread = math.sqrt(max(n * square - first * first, 0))  # exact, but the root
        return spread / n * float(self._constants[8]) if n else 0.0

    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """The record as it will be learned; one beyond a bound is refused."""
        row = self._row(x)
        if self.classes is not None:
            return row, class_number(y, self.classes)
        target = number(y)
        self._refuse_beyond(0, int(abs(target) > self.y_bound))
        return row, target

    def _row(self, x: ArrayLike) -> Array:
        row = vector(x, self.dimension)
        self._refuse_beyond(int((np.abs(row) > self.feature_bound).sum()), 0)
        return row

    def _refuse_beyond(self, features: int, targets: int) -> None:
        for count, what, name in (
            (features, "feature", "feature_bound"),
            (targets, "target", "y_bound"),
        ):
            if count:
                raise ValueError(
                    f"{count} {what}(s) are beyond {name} = {getattr(self, name):g}:"
                    f" use a larger unit, take off an offset, or declare a larger"
                    f" {name}. Nothing has changed."
                )

    def _scores(self, x: ArrayLike) -> Array:
        row = self._row(x)
        self._solve()
        step = self.dimension + 1
        return np.array([kernels.score(self._w, at, row) for at in self._starts(step)])

    def _starts(self, step: int) -> range:
        return range(0, self.size, step)

    def predict(self, x: ArrayLike) -> float:
        """The score of a row, or the class with the highest one."""
        scores = self._scores(x)
        return float(scores[0] if self.classes is None else np.argmax(scores))

    def probabilities(self, x: ArrayLike) -> Array:
        """The distribution over the classes that is nearest to the scores."""
        if self.classes is None:
            return super().probabilities(x)
        return nearest_distribution(self._scores(x))

    def insert(self, x: ArrayLike, y: float) -> float:
        """Add a record; the prediction from before."""
        row, target = self.check(x, y)
        self._room(1)
        return float(self._learn(row[None], np.array([target]))[0])

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """All rows in order; none if one of them is refused."""
        matrix, targets = self._rows(X, Y)
        self._room(len(matrix))
        return self._learn(matrix, targets)

    def _learn(self, X: Array, Y: Array) -> Array:
        out = np.empty(len(X))
        at = 0
        while at < len(X):
            due = self.refresh - self.records % self.refresh
            stop = len(X) if self._small else min(at + due, len(X))
            kernels.run(
                self._sums,
                self._system,
                self._spread,
                self._integers,
                self._w,
                X[at:stop],
                Y[at:stop],
                self._constants,
                self.refresh if self._small else 0,
                out[at:stop],
            )
            at, self._stale = stop, True
            if self.records % self.refresh == 0:
                self._stale = not self._small
                self._solve()
        return out

    def _rows(self, X: ArrayLike, Y: ArrayLike) -> tuple[Array, Array]:
        matrix, targets = rows(X, Y, self.dimension)
        self._refuse_beyond(int((np.abs(matrix) > self.feature_bound).sum()), 0)
        if self.classes is None:
            self._refuse_beyond(0, int((np.abs(targets) > self.y_bound).sum()))
            return matrix, targets
        return matrix, np.array([class_number(y, self.classes) for y in targets])

    def _room(self, records: int) -> None:
        if self.records + records > _MOST_RECORDS:
            raise ValueError(
                f"the sums hold {_MOST_RECORDS} live records, and {self.records} are"
                " live. Nothing was learned."
            )

    def _solve(self) -> None:
        if not self._stale:
            return
        if not self.records:  # nobody's means stay in the work space
            self._w[:], self._system[:], self._spread[:] = 0.0, 0.0, 0.0
        elif self._small:
            kernels.solve(
                self._sums, self._system, self._spread, self._w, self._constants
            )
        else:
            self._solve_large()
        self._stale = False  # a solve that was interrupted is done again

    def _solve_large(self) -> None:
        system, d = self._system, self.dimension
        kernels.equations(self._sums, system, self._spread, self._constants)
        try:
            factor = cho_factor(system[:, :d], check_finite=False)
        except LinAlgError:  # Lambda is lost in rounding; elimination keeps it
            kernels.eliminate(system, int(self._constants[4]), self.Lambda)
        else:
            system[:, d:] = cho_solve(factor, system[:, d:], check_finite=False)
        kernels.weights(system, self._spread, self._w, self._constants)

    def _subtract(self, X: Array, Y: Array) -> bool:
        self._add(X, Y, -1)
        if not kernels.possible(self._sums):
            self._add(X, Y, 1)
            return False
        self._stale = True
        return True

    def _add(self, X: Array, Y: Array, sign: int) -> None:
        for row, target in zip(X, Y, strict=True):
            kernels.whole_steps(row, target, self._constants, self._integers)
            kernels.add(self._sums, self._integers, sign)
        self._integers[:] = 0  # work space that still held a record

    def state(self) -> State:
        """The sums, and the lagged weights."""
        return {
            "sums": self._sums.copy(),
            "stale": np.array(self._stale, dtype=np.int64),
            "w": self._w.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        sums = np.asarray(state["sums"])
        w = vector(state["w"], self.size, "the state's w")
        if (
            sums.shape != self._sums.shape
            or sums.dtype != np.int64
            or not 0 <= sums[0, -1, -1] <= _MOST_RECORDS
        ):
            raise ValueError(
                f"this is not a state of a mode {self.name!r} of this configuration"
            )
        self._sums[:], self._w[:], self._stale = sums, w, bool(state["stale"])
        # Work space that may hold a record, or statistics that had it.
        self._integers[:], self._system[:], self._spread[:] = 0, 0.0, 0.0

    def digest(self) -> str:
        """SHA-256 of the sums; everything else follows from them."""
        return digest_of(self.name, self.dimension, self.config(), {"sums": self._sums})

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        classes = {} if self.classes is None else {"classes": self.classes}
        return classes | {
            "feature_bound": self.feature_bound,
            "y_bound": self._given_y_bound,
            "Lambda": self.Lambda,
            "refresh": self._given_refresh,
        }
