"""Row maps: transformers that change one row at a time, by a rule fixed in advance.

Every one of them says which space its rows lie in and by how much it can stretch a
distance (`RowMap.space_after`). Nothing is read off the rows that they are fitted on,
so that fitting costs nothing.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from demur.core.bounds import (
    clip_rows,
    normalize_rows,
    to_unit_cube,
)
from demur.preprocessing.checked_rows import check_norm_bound, checked_rows
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

UNIT_ROUNDOFF = 2.0**-53


class RowMap(TransformerMixin, BaseEstimator):
    """A transformer of single rows; its subclasses are the maps of this package.

    In a pipeline before a head, the head's radius may be measured in the space of the
    pipeline's input ("records"): the constants of the maps carry it to the head.
    """

    n_features_in_: int

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Check the map's own parameters and the number of columns, nothing else."""
        rows = checked_rows(self, X, reset=True)
        self._check(rows.shape[1])
        return self

    def transform(self, X: ArrayLike) -> Array:
        """The rows, each mapped on its own."""
        check_is_fitted(self)
        return self._map(checked_rows(self, X, reset=False))

    def space_after(self, before: RowSpace) -> RowSpace:
        """The space of the mapped rows, with the constants that lead into it."""
        raise NotImplementedError

    def conditions(self, estimator: object) -> tuple[str, ...]:
        """What a statement of an estimator behind this map rests on."""
        return ()

    def _check(self, columns: int) -> None:
        """Refuse parameters that are wrong for rows of this many columns."""

    def _map(self, rows: Array) -> Array:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.requires_fit = True
        return tags


class ClipRows(OneToOneFeatureMixin, RowMap):
    """Rows projected onto the ball of radius `norm_bound`: 1-Lipschitz.

    >>> ClipRows(1.0).fit_transform([[3.0, 4.0], [0.3, 0.4]]).round(6)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """

    def __init__(self, norm_bound: float = 1.0) -> None:
        self.norm_bound = norm_bound

    def _check(self, columns: int) -> None:
        check_norm_bound(self.norm_bound)

    def _map(self, rows: Array) -> Array:
        return clip_rows(rows, self.norm_bound).data

    def space_after(self, before: RowSpace) -> RowSpace:
        """Clipped rows: a projection stretches no distance, but it is rounded.

        The norm of d numbers is off by a relative (d / 2 + 3) 2^-53 at most, and the
        quotients and the product add less than five roundings, of numbers of norm at
        most the bound. Both versions of a record are rounded.
        """
        each = (self.n_features_in_ + 8) * UNIT_ROUNDOFF
        rounding = 4.0 * each * float(self.norm_bound)
        return before.then(f"clipped {before.name}", 1.0, rounding=rounding)


class NormalizeRows(OneToOneFeatureMixin, RowMap):
    """Rows divided by their norm. This has no Lipschitz constant.

    Two short rows that are near may end up at opposite poles. A radius must then be
    measured after the map, in the space "normalized records".
    """

    def _map(self, rows: Array) -> Array:
        return normalize_rows(rows).data

    def space_after(self, before: RowSpace) -> RowSpace:
        """A space of its own, which no constant leads into."""
        return before.then(f"normalized {before.name}", None)


class PublicScaler(OneToOneFeatureMixin, RowMap):
    """Columns scaled from the public range [low, high] to [0, 1], and clipped to it.

    `low` and `high` are one number, or one for each column. They must be public: the
    smallest and the largest value of private data are somebody's records.

    >>> PublicScaler(low=[0, 0], high=[10, 4]).fit_transform([[5.0, 1.0], [20.0, 4.0]])
    array([[0.5 , 0.25],
           [1.  , 1.  ]])
    """

    def __init__(self, low: ArrayLike = 0.0, high: ArrayLike = 1.0) -> None:
        self.low = low
        self.high = high

    def _check(self, columns: int) -> None:
        to_unit_cube(np.zeros((1, columns)), self.low, self.high)

    def _map(self, rows: Array) -> Array:
        return to_unit_cube(rows, self.low, self.high).data

    def space_after(self, before: RowSpace) -> RowSpace:
        """The cube: distances grow by at most 1 / the narrowest side."""
        one = np.zeros((1, self.n_features_in_))
        cube = to_unit_cube(one, self.low, self.high, space=before.name).space
        assert cube.from_source is not None
        # Clipped values are subtracted and divided: a few roundings of at most 1.
        rounding = 16.0 * UNIT_ROUNDOFF * math.sqrt(self.n_features_in_)
        return before.then(cube.name, cube.from_source.constant, rounding=rounding)
