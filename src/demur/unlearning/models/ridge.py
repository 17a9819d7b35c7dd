"""Mode `ridge`: least squares whose sums are integers, so that forgetting is exact.

A record is clipped (|x| <= B, |y| <= Y) and put on a grid, z = (k_x, k_y) with
k_x = round(2^bits x / B), k_y = round(2^bits y / Y); the state is

    S = sum over live records of z z'    and their number n,  in integers.

**Theorem ridge-exact.** After any sequence of insertions and deletions (of records that
are live), S and n are those of a model that saw the live records alone, in any order.
*Proof.* Integer addition is associative, commutative and has inverses, and no sum
overflows: a limb's partial sums over n live records are at most n 2^(2 bits) (one limb)
or n 2^32 (two limbs: z_i z_j = high 2^32 + low is summed part by part, |high| <=
2^(2 bits - 32) and 0 <= low < 2^32), and n is refused past the head-room. []

Weights are a function of S alone:

    w = (Y / B) (S_xx + (Lambda 4^bits / B^2) I)^-1 S_xy,

the ridge solution for the records on the grid (each coordinate moved by at most
B 2^-(bits + 1)). So the whole state is as if the record had never been learned:
epsilon 0, no noise, any number of deletions.

**Classes.** With `classes=K` the target is one-hot: K targets that are 0 or 1, so their
bound Y is 1, no target is clipped, and 2^bits stands for 1 exactly. z = (k_x, one-hot)
has d + K entries of at most 2^bits, so the theorem, its proof and the head-room are
those above. All classes share S_xx: one factorisation, K right-hand sides, and row c
of the weights is the ridge regression of "is it class c". `predict` is the class with
the highest score.

**The lag.** Solving costs d^3 / 3, an insertion d^2 / 2. The prediction that `insert`
returns uses weights that are solved every `refresh` ticks (1 up to 32 features, as many
as there are features beyond); `predict` and `published` always solve first. A deletion
solves at once, and `skip` counts as a tick, so the lagged weights too are equal in both
worlds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from demur.core import validate
from demur.unlearning.models import kernels
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
    class_scores,
    nearest_distribution,
)
from demur.unlearning.models.inputs import (
    FLOAT64,
    check_norm_bound,
    check_size,
    clipped,
    number,
    rows,
    vector,
)
from demur.unlearning.models.least_squares import LeastSquares

_SMALL = 32  # up to here the compiled Cholesky beats LAPACK's call overhead


class Ridge(LeastSquares):
    """Exact ridge regression: deleting a record leaves no trace of it, bit for bit.

    `bits` is the resolution of a feature (2^-bits of the bound); up to 21 bits one
    64-bit limb holds 2^(63 - 2 bits) - 1 live records (2,097,151 at 21), more bits or
    `limbs=2` hold 2^31 - 1. With `classes=K` targets are the classes 0 to K - 1.

    >>> a, b = Ridge(2), Ridge(2)
    >>> for mode in (a, b):
    ...     _ = mode.insert([0.6, 0.0], 0.5)
    >>> _ = a.insert([0.1, 0.9], -1.0)
    >>> a.delete([0.1, 0.9], -1.0)
    >>> a.digest() == b.digest(), a.shift_bound()
    (True, 0.0)
    """

    name = "ridge"
    theorem = Theorem(
        id="ridge-exact",
        statement=(
            "After the deletion, the sums and the weights solved from them equal, bit"
            " for bit, those of a model that learned the other records alone, in any"
            " order."
        ),
        scopes=("subject", "joint"),
        not_covered=(
            *NEVER_COVERED,
            "how many records were ever learned (the solver's clock) is not hidden",
        ),
        composes=(("subject", "nothing"), ("joint", "nothing")),
    )

    def __init__(
        self,
        dimension: int,
        *,
        norm_bound: float = 1.0,
        y_bound: float = 1.0,
        Lambda: float = 1.0,
        bits: int = 21,
        limbs: int | None = None,
        refresh: int | None = None,
        classes: int | None = None,
    ) -> None:
        validate.count(dimension=dimension, bits=bits)
        check_norm_bound(norm_bound)
        check_classes(classes)
        kept = (
            dimension + (1 if classes is None else classes)
        ) ** 2 * 2  # the sums, and room to solve
        check_size(dimension * (1 if classes is None else classes), kept)
        validate.positive(y_bound=y_bound, Lambda=Lambda)
        if classes is not None and y_bound != 1.0:
            raise ValueError(
                "y_bound must be 1 with classes: one-hot targets are 0 or 1; got"
                f" {y_bound!r}"
            )
        if bits > 30:
            raise ValueError(f"bits must be at most 30; got {bits}")
        if limbs is None:
            limbs = 1 if bits <= 21 else 2
        if limbs not in (1, 2):
            raise ValueError(f"limbs must be 1 or 2; got {limbs!r}")
        self.dimension, self.bits, self.limbs = int(dimension), int(bits), int(limbs)
        self.norm_bound, self.y_bound = float(norm_bound), float(y_bound)
        self.Lambda = float(Lambda)
        self.classes = None if classes is None else int(classes)
        self.refresh = (
            (1 if dimension <= _SMALL else self.dimension)
            if refresh is None
            else refresh
        )
        validate.count(refresh=self.refresh)
        self._given_refresh = refresh
        self.max_records = 2 ** (63 - 2 * bits) - 1 if limbs == 1 else 2**31 - 1
        steps = 2.0**bits / self.norm_bound
        ridge = self.Lambda * steps * steps
        weight = self.y_bound / self.norm_bound
        validate.positive(Lambda_in_squared_steps=ridge, y_bound_over_norm_bound=weight)
        # |w| <= records * y_bound * norm_bound / Lambda: weights and scores are finite.
        longest_weight = 2.0**63 * self.y_bound * self.norm_bound / self.Lambda
        if not longest_weight * max(self.norm_bound, 1.0) < 1e300:
            raise ValueError(
                "norm_bound, y_bound and 1 / Lambda are too large together"
            )
        self._constants = np.array(
            [
                self.norm_bound,
                self.y_bound,
                2.0**bits,
                ridge,
                weight,
                1 if self.classes is None else self.classes,
            ]
        )
        self._kind = kernels.HUBER if self.classes is None else float(self.classes)
        size = self.dimension + (1 if self.classes is None else self.classes)
        self._sums: NDArray[np.int64] = np.zeros((limbs, size, size), dtype=np.int64)
        self._w = np.zeros(self.size)
        self._small = self.dimension <= _SMALL
        # records, ticks, period of the compiled solver (0: solved here), stale
        period = self.refresh if self._small else 0
        self._clock = np.array([0, 0, period, 0], dtype=np.int64)
        self._system = np.zeros((size, size))
        self._integers = np.zeros(size, dtype=np.int64)

    @property
    def records(self) -> int:
        """How many records are live."""
        return int(self._clock[0])

    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """The record as it will be learned, both bounds enforced."""
        row = clipped(vector(x, self.dimension), self.norm_bound)
        if self.classes is not None:
            return row, class_number(y, self.classes)
        return row, min(max(number(y), -self.y_bound), self.y_bound)

    def predict(self, x: ArrayLike) -> float:
        """The score of a row, from weights that are solved first if need be."""
        row = clipped(vector(x, self.dimension), self.norm_bound)
        self._solve()
        return float(kernels.predict(self._w, row, self.norm_bound, self._kind))

    def probabilities(self, x: ArrayLike) -> Array:
        """The distribution over the classes that is nearest to the scores."""
        if self.classes is None:
            return super().probabilities(x)
        row = clipped(vector(x, self.dimension), self.norm_bound)
        self._solve()
        return nearest_distribution(class_scores(self._w, row, self.classes))

    def insert(self, x: ArrayLike, y: float) -> float:
        """Add a record; the prediction from before."""
        self._room(1)
        if (
            type(x) is not np.ndarray
            or x.dtype is not FLOAT64
            or x.shape != (self.dimension,)
            or not isinstance(y, float)
        ):
            x, y = self.check(x, y)
        predicted = self._insert(x, y)
        if predicted != predicted:
            predicted = self._insert(*self.check(x, y))
        if not self._small and self._clock[1] % self.refresh == 0:
            self._solve()
        return predicted

    def _insert(self, x: Array, y: float) -> float:
        return kernels.ridge_insert(
            self._sums,
            self._w,
            self._system,
            self._integers,
            self._clock,
            x,
            y,
            self._constants,
        )

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """All rows in order; whole blocks at once between two solutions."""
        matrix, targets = self._rows(X, Y)
        self._room(len(matrix))
        out = np.empty(len(matrix))
        # Sums of at most 2^(53 - 2 bits) products are exact in float64, in any order:
        # a block goes through BLAS and gives the very integers of the single events.
        block = 2 ** max(53 - 2 * self.bits, 0) if self.limbs == 1 else 0
        if self._small or block < 16:
            at = 0
            while at < len(matrix):
                stop = len(matrix) if self._small else at + self._until_due()
                self._run(matrix[at:stop], targets[at:stop], out[at:stop])
                at = stop
            return out
        at = 0
        while at < len(matrix):
            stop = min(at + self._until_due(), at + block, len(matrix))
            self._add_block(matrix[at:stop], targets[at:stop], out[at:stop])
            at = stop
        return out

    def _until_due(self) -> int:
        return int(self.refresh - self._clock[1] % self.refresh)

    def _run(self, X: Array, Y: Array, out: Array) -> None:
        kernels.ridge_run(
            self._sums,
            self._w,
            self._system,
            self._integers,
            self._clock,
            X,
            Y,
            self._constants,
            out,
        )
        if not self._small and self._clock[1] % self.refresh == 0:
            self._solve()

    def _add_block(self, X: Array, Y: Array, out: Array) -> None:
        K = np.empty((len(X), len(self._integers)))
        kernels.ridge_block_rows(self._w, X, Y, self._constants, self._integers, K, out)
        self._sums[0] += np.tril(K.T @ K).astype(np.int64)
        self._clock[:2] += len(X)
        self._clock[3] = 1
        if self._clock[1] % self.refresh == 0:
            self._solve()

    def _rows(self, X: ArrayLike, Y: ArrayLike) -> tuple[Array, Array]:
        matrix, targets = rows(X, Y, self.dimension)
        if kernels.first_unusable(matrix, targets, self._kind) < len(matrix):
            checked = [self.check(*r) for r in zip(matrix, targets, strict=True)]
            matrix = np.array([row for row, _ in checked])
        return matrix, targets

    def _room(self, records: int) -> None:
        if self._clock[0] + records > self.max_records:
            raise ValueError(
                f"the sums hold {self.max_records} live records of {self.bits} bits in"
                f" {self.limbs} limb(s), and {self.records} are live; use limbs=2 or"
                " fewer bits. Nothing was learned."
            )

    def _solve(self) -> None:
        if not self._clock[3]:
            return
        if self._small:
            kernels.ridge_solve(self._sums, self._w, self._system, self._constants)
        else:
            system, d = self._system, self.dimension
            kernels.ridge_floats(self._sums, system, self._constants)
            try:
                factor = cho_factor(system[:d, :d], check_finite=False)
            except LinAlgError:  # Lambda is lost in rounding; elimination keeps it
                kernels.ridge_solve(self._sums, self._w, system, self._constants)
            else:
                solved = cho_solve(factor, system[:d, d:], check_finite=False)
                self._w[:] = solved.T.ravel() * self._constants[4]
        self._clock[3] = 0

    def skip(self) -> None:
        """A tick of the solver's clock."""
        self._clock[1] += 1
        if self._clock[1] % self.refresh == 0:
            self._solve()

    def _subtract(self, X: Array, Y: Array) -> bool:
        for row, target in zip(X, Y, strict=True):
            self._add(row, target, -1)
        possible = kernels.ridge_possible(self._sums, self.records - len(X))
        if possible:
            self._clock[0] -= len(X)
            self._clock[3] = 1
        else:
            for row, target in zip(X, Y, strict=True):
                self._add(row, target, 1)
        self._integers[:] = 0  # work space that still held the record
        return bool(possible)

    def _add(self, row: Array, target: float, sign: int) -> None:
        kernels.ridge_integers(row, target, self._constants, self._integers)
        kernels.ridge_add(self._sums, self._integers, sign)

    def state(self) -> State:
        """The sums, and the lagged weights with their clock."""
        return {
            "sums": self._sums.copy(),
            "clock": self._clock.copy(),
            "w": self._w.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        sums, clock = np.asarray(state["sums"]), np.asarray(state["clock"])
        w = vector(state["w"], self.size, "the state's w")
        if (
            sums.shape != self._sums.shape
            or sums.dtype != np.int64
            or clock.shape != (4,)
            or clock.dtype != np.int64
            or clock[2] != self._clock[2]
            or not 0 <= clock[0] <= self.max_records
        ):
            raise ValueError(
                "this is not a state of a ridge mode of this configuration"
            )
        self._sums[:], self._clock[:], self._w[:] = sums, clock, w
        self._integers[:], self._system[:] = 0, 0.0  # work space that may hold a record

    def digest(self) -> str:
        """SHA-256 of the sums and the number of records; the weights follow from them.

        Ticks are left out: a model trained on the survivors alone had fewer.
        """
        exact = {"sums": self._sums, "records": self._clock[0]}
        return digest_of(self.name, self.dimension, self.config(), exact)

    def config(self) -> dict[str, Any]:
        """What the constructor takes."""
        classes = {} if self.classes is None else {"classes": self.classes}
        return classes | {
            "norm_bound": self.norm_bound,
            "y_bound": self.y_bound,
            "Lambda": self.Lambda,
            "bits": self.bits,
            "limbs": self.limbs,
            "refresh": self._given_refresh,
        }
