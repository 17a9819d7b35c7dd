r"""Private standardisation and PCA: maps whose numbers are released, and paid for.

Rows are clipped to `norm_bound` = B and moments are released with Gaussian noise, once,
out of a ledger. Given the release the map is public, so that what follows it composes
with it like any other two releases on the same data.

**Standardisation** releases the column means a and, for each column, the second moment
b over B. When one record moves by r in a ball of radius B,

    |a - a'| <= r / n,    |b - b'| / B <= g(r) / (B n),

the second because n b is the diagonal of a sum of x x^T, which moves by at most g(r) in
Frobenius norm (`second_moments`). Any replacement is a move by at most 2 B.

**PCA** releases the second moments M = (1/n) sum_i x_i x_i^T, as a vector of norm
|M|_F. One record that moves by r moves it by at most g(r) / n (`second_moments`). The
projection is onto the leading eigenvectors of the noisy matrix: orthonormal rows, a
Lipschitz constant of 1.

Sums of n products in float64 are off by at most (n + 2) 2^-53 of the sum of absolute
values; twice that is charged as well.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin

from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.bounds import Bound, BoundSource, clip_rows
from demur.core.curve import PiecewiseLinear
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.promise import Promise, promise_at
from demur.ledger import (
    Budget,
    Ledger,
    LedgerLeftBehind,
    ledger_or_in_memory,
    left_behind,
)
from demur.mechanisms import Gaussian
from demur.mechanisms.estimates import positive_mean
from demur.preprocessing.checked_rows import (
    check_norm_bound,
    checked_rows,
    restored_on_error,
)
from demur.preprocessing.pipelines import Preprocessing, preprocessing_of
from demur.preprocessing.projections import projected_space
from demur.preprocessing.row_maps import UNIT_ROUNDOFF, RowMap
from demur.preprocessing.second_moments import (
    as_vector,
    from_vector,
    second_moment_bound,
)
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

_RESERVE = 1.0 + 1e-9
_UNPROTECTED = (
    "labels and the number of records",
    "hyper-parameters and the norm bound, which are public",
)
_FINITE = (
    "every record is a row of finite numbers (a fit on any other is refused, which"
    " tells that there is one)"
)
_FIXED = (
    "the norm bound and every other parameter were fixed without looking at the data"
)


class PrivateMap(RowMap, abc.ABC):
    """What the private maps share: a promise, a ledger, and one release in each fit."""

    entry_: Entry
    ledger: Ledger | LedgerLeftBehind | None

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        norm_bound: float = 1.0,
        *,
        unit: Ball | ReplaceOne | None = None,
        ledger: Ledger | None = None,
        space: str = "records",
        label: str | None = None,
        source: Source | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.norm_bound = norm_bound
        self.unit = unit
        self.ledger = ledger
        self.space = space
        self.label = label
        self.source = source

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Release the moments of these rows once; the charge comes before the noise."""
        with restored_on_error(self):
            self._promise()
            self._fit_rows(checked_rows(self, X, reset=True))
        return self

    @abc.abstractmethod
    def _fit_rows(self, rows: Array) -> None:
        """Release what the map needs of these rows, and keep it."""

    def _release(
        self,
        rows: Array,
        moments: Callable[[Array], Array],
        moved: Callable[[float], float],
    ) -> tuple[Array, float]:
        """Noisy moments of rows that are clipped here, and the noise's deviation.

        `moved(r)` is n times how far the moments move when a record moves by r.
        """
        promise = self._promise()
        before = preprocessing_of(self, promise.unit, self.space)
        bounded = clip_rows(rows, self.norm_bound)
        n, value = len(rows), moments(bounded.data)
        mechanism = Gaussian.calibrated(
            epsilon=promise.epsilon,
            delta=promise.delta,
            sensitivity=_table(promise, before, n, self.norm_bound, moved),
            unit=promise.unit,
            dimension=value.size,
            name=f"moments of rows for {type(self).__name__}",
            bounds=(Bound(float(self.norm_bound), BoundSource.ENFORCED),),
            unprotected=_UNPROTECTED,
            assumptions=(_FIXED, _FINITE, *before.assumptions),
        )
        mechanism.check_bound(self.norm_bound * max(1.0, self.norm_bound) * 2.0)
        release = mechanism.release(
            value,
            ledger=ledger_or_in_memory(
                self.ledger, Budget(promise.epsilon, promise.delta), unit=promise.unit
            ),
            label=self.label or type(self).__name__,
            source=self.source,
        )
        self.entry_ = release.entry
        assert isinstance(mechanism.sigma, float)
        return release.value, mechanism.sigma

    def _promise(self) -> Promise:
        check_norm_bound(self.norm_bound)
        return promise_at(
            self.epsilon,
            self.delta,
            unit=self.unit,
            radius=self.radius,
            space=self.space,
        )

    def conditions(self, estimator: object) -> tuple[str, ...]:
        """Where this map's own release is charged, if not beside the estimator's."""
        ledger = getattr(estimator, "ledger", None)
        kind = type(self).__name__
        if isinstance(self.ledger, Ledger) and ledger is self.ledger:
            return (
                f"the rows were mapped by {kind}, whose release is entry"
                f" {self.entry_.sequence} of the same ledger: what both tell together"
                " is the reading of the ledger",
            )
        return (
            f"the rows were mapped by {kind}, whose own release is not charged to this"
            " ledger and costs as much as its own statement says (conditional)",
        )

    def __sklearn_clone__(self) -> Self:
        # deepcopy would copy the ledger, and a copy of a ledger is a second budget.
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state["ledger"] = left_behind(self.ledger)
        return state | {"source": None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


def _table(
    promise: Promise,
    before: Preprocessing,
    n: int,
    norm_bound: float,
    moved: Callable[[float], float],
) -> dict[Unit | str, float | PiecewiseLinear]:
    """Sensitivity over balls of the rows' space and those before it, and beyond."""
    unit, end = promise.unit, 2.0 * norm_bound
    rounding = 4.0 * (n + 8) * UNIT_ROUNDOFF * max(norm_bound, norm_bound**2)

    def shift(r: float) -> float:
        return moved(min(r, end)) / n * _RESERVE + rounding

    # Concave bounds of r: a chord from the first knot on would lie below them.
    radii = [end * 2.0 ** (k / 4.0 - 12.0) for k in range(48)] + [end]
    if isinstance(unit, Ball):
        here = before.space.radius_of(unit)
        radii += [r for r in (here, here * (1.0 + 2.0**-30)) if r < end]
    curve = PiecewiseLinear.dominating(shift, sorted(set(radii)), saturates=True)
    table: dict[Unit | str, float | PiecewiseLinear] = {}
    table.update(before.space.curves(curve))
    table[ReplaceOne()] = shift(end)
    if unit.records_per_person > 1:
        r = before.space.radius_of(unit) if isinstance(unit, Ball) else end
        table[unit] = unit.records_per_person * shift(r) * _RESERVE
    return table


class PrivateStandardScaler(OneToOneFeatureMixin, PrivateMap):
    """Columns less their noisy mean, over their noisy deviation; one paid release.

    Rows are clipped to `norm_bound` first. The deviation of the noise is part of every
    variance, so that nothing is divided by a number that noise made small. Fitted:
    `mean_`, `scale_` (released numbers alone) and `entry_`.
    """

    mean_: Array
    scale_: Array

    def _fit_rows(self, rows: Array) -> None:
        B = float(self.norm_bound)

        def moments(inside: Array) -> Array:
            return np.concatenate([inside.mean(axis=0), (inside**2).mean(axis=0) / B])

        def moved(r: float) -> float:
            return math.hypot(r, second_moment_bound(r, B) / B)

        noisy, sigma = self._release(rows, moments, moved)
        mean, square = noisy[: rows.shape[1]], noisy[rows.shape[1] :] * B
        self.mean_ = mean
        variances = [positive_mean(float(v), sigma * B) for v in square - mean**2]
        self.scale_ = np.sqrt(np.array(variances) + sigma * B)

    def _map(self, rows: Array) -> Array:
        inside = clip_rows(rows, self.norm_bound).data
        mapped: Array = (inside - self.mean_) / self.scale_
        return mapped

    def space_after(self, before: RowSpace) -> RowSpace:
        """Standardised rows: distances grow by at most 1 / the smallest deviation."""
        factor = 1.0 / float(self.scale_.min()) * _RESERVE
        largest = self.norm_bound + float(np.linalg.norm(self.mean_))
        # Clipping is rounded as in `ClipRows`, and so are difference and quotient.
        each = (
            4.0 * (len(self.mean_) + 8) + 16.0 * math.sqrt(len(self.mean_))
        ) * largest
        rounding = each * UNIT_ROUNDOFF * factor
        return before.then(f"standardised {before.name}", factor, rounding=rounding)


class PrivatePCA(ClassNamePrefixFeaturesOutMixin, PrivateMap):
    """The leading directions of noisy second moments; one paid release.

    Rows are clipped to `norm_bound` first. Fitted: `components_` and `entry_`.
    """

    components_: Array

    def __init__(
        self,
        n_components: int = 2,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        radius: float | None = None,
        norm_bound: float = 1.0,
        *,
        unit: Ball | ReplaceOne | None = None,
        ledger: Ledger | None = None,
        space: str = "records",
        label: str | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(
            epsilon,
            delta,
            radius,
            norm_bound,
            unit=unit,
            ledger=ledger,
            space=space,
            label=label,
            source=source,
        )
        self.n_components = n_components

    def _fit_rows(self, rows: Array) -> None:
        validate.count(n_components=self.n_components)
        columns = rows.shape[1]
        if self.n_components > columns:
            raise ValueError(
                f"n_components must be at most {columns}, the number of columns; got"
                f" {self.n_components}. Nothing was spent."
            )

        def moments(inside: Array) -> Array:
            return as_vector(inside.T @ inside / len(inside))

        def moved(r: float) -> float:
            return second_moment_bound(r, float(self.norm_bound))

        noisy, _ = self._release(rows, moments, moved)
        square = from_vector(noisy, columns)
        self.components_ = np.linalg.eigh(square)[1][:, ::-1][:, : self.n_components].T

    def _map(self, rows: Array) -> Array:
        mapped: Array = clip_rows(rows, self.norm_bound).data @ self.components_.T
        return mapped

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def space_after(self, before: RowSpace) -> RowSpace:
        """The components: orthonormal, so that distances do not grow."""
        name = f"{self.n_components} private components of {before.name}"
        return projected_space(self.components_, name, before, self.norm_bound)
