"""Linear projections whose matrix does not depend on private rows.

|A x - A x'| <= |A| |x - x'| with the spectral norm |A|. It is computed from all
singular values and rounded up by far more than their error. Rows are clipped to
`norm_bound` first, which bounds the rounding of a product: d + 2 operations on a row of
norm b are off by at most (d + 2) 2^-53 |A|_F b, and so are both versions of a record.
Clipping is off by at most (d / 2 + 8) 2^-53 b, which A stretches like any other move.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin

from demur.core import validate
from demur.core.bounds import clip_rows, finite_matrix, real_array
from demur.preprocessing.checked_rows import check_norm_bound
from demur.preprocessing.row_maps import UNIT_ROUNDOFF, RowMap
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

_ROUND_UP = 1.0 + 1e-9  # backward error of singular values: about columns * 2^-52


LARGEST_ROW = 1e3


def projected_space(
    matrix: Array, name: str, before: RowSpace, largest: float
) -> RowSpace:
    """The space after a product with `matrix` on rows of norm at most `largest`."""
    factor = float(np.linalg.norm(matrix, 2)) * _ROUND_UP
    each = (matrix.shape[1] + 8) * UNIT_ROUNDOFF * float(np.linalg.norm(matrix))
    return before.then(name, factor, rounding=4.0 * each * largest)


class PublicProjection(ClassNamePrefixFeaturesOutMixin, RowMap):
    """(x - centre) A^T for a public matrix A, one row for each component.

    `PublicProjection.pca(public_rows, k)` finds the k principal directions of *public*
    rows, whose matrix has norm 1.

    >>> rows = np.diag([3.0, 2.0, 1.0])
    >>> PublicProjection.pca(rows, 2).fit_transform(rows).shape
    (3, 2)
    """

    def __init__(
        self,
        components: ArrayLike,
        centre: ArrayLike = 0.0,
        norm_bound: float = LARGEST_ROW,
    ) -> None:
        self.components = components
        self.centre = centre
        self.norm_bound = norm_bound

    @classmethod
    def pca(cls, public_rows: ArrayLike, n_components: int) -> Self:
        """The principal directions of public rows; private ones need `PrivatePCA`."""
        rows = finite_matrix("public_rows", public_rows)
        validate.count(n_components=n_components)
        if n_components > min(rows.shape):
            raise ValueError(
                f"n_components must be at most {min(rows.shape)}, the smaller side of"
                f" public_rows; got {n_components}"
            )
        centre = rows.mean(axis=0)
        directions = np.linalg.svd(rows - centre, full_matrices=False)[2]
        return cls(directions[:n_components], centre)

    def _check(self, columns: int) -> None:
        matrix = finite_matrix("components", self.components)
        centre = real_array("centre", self.centre)
        if matrix.shape[1] != columns or centre.size not in (1, columns):
            raise ValueError(
                f"components and centre must be for {columns} columns; got shapes"
                f" {matrix.shape} and {centre.shape}"
            )
        check_norm_bound(self.norm_bound)
        validate.positive(norm_of_components=np.linalg.norm(matrix))

    def _map(self, rows: Array) -> Array:
        matrix = finite_matrix("components", self.components)
        inside = clip_rows(rows, self.norm_bound).data
        projected: Array = (inside - real_array("centre", self.centre)) @ matrix.T
        return projected

    @property
    def _n_features_out(self) -> int:
        return len(finite_matrix("components", self.components))

    def space_after(self, before: RowSpace) -> RowSpace:
        """The components, with the spectral norm of their matrix."""
        matrix = finite_matrix("components", self.components)
        name = f"{len(matrix)} components of {before.name}"
        centre = np.broadcast_to(real_array("centre", self.centre), matrix.shape[1])
        largest = self.norm_bound + float(np.linalg.norm(centre))
        return projected_space(matrix, name, before, largest)


class RandomProjection(ClassNamePrefixFeaturesOutMixin, RowMap):
    """A Gaussian projection to `n_components`, from a public seed.

    The matrix depends on the seed and the number of columns alone. Distances are kept
    on average; the constant is that of the drawn matrix.
    """

    matrix_: Array

    def __init__(
        self, n_components: int = 64, seed: int = 0, norm_bound: float = LARGEST_ROW
    ) -> None:
        self.n_components = n_components
        self.seed = seed
        self.norm_bound = norm_bound

    def _check(self, columns: int) -> None:
        validate.count(n_components=self.n_components)
        check_norm_bound(self.norm_bound)
        rng = np.random.default_rng(self.seed)
        drawn = rng.normal(size=(self.n_components, columns))
        self.matrix_ = drawn / np.sqrt(self.n_components)

    def _map(self, rows: Array) -> Array:
        projected: Array = clip_rows(rows, self.norm_bound).data @ self.matrix_.T
        return projected

    @property
    def _n_features_out(self) -> int:
        return len(self.matrix_)

    def space_after(self, before: RowSpace) -> RowSpace:
        """The projection, with the spectral norm of the drawn matrix."""
        name = f"{self.n_components} random components of {before.name}"
        return projected_space(self.matrix_, name, before, self.norm_bound)
