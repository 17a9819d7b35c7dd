"""Labels of reports: the cluster of each, and the squared distance to its centre.

A labelling is a small value without any report in it, so that it can be sent to where
the reports are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from demur.cluster.rows.exact_sums import PartialSums, Summable, split_sums, summed

Array = NDArray[np.float64]
Labels = NDArray[np.intp]
Label: TypeAlias = Callable[[Array], Labels]


@dataclass(frozen=True, eq=False)
class NearestCenter:
    """The nearest of some centres."""

    centers: Array

    def __call__(self, rows: Array) -> Labels:
        """A label for each row."""
        return self.with_squares(rows)[0]

    def with_squares(self, rows: Array) -> tuple[Labels, Array]:
        """Labels, and the squared distances to the nearest centre."""
        # Not np.empty: rows whose squares overflow are nearer to no centre.
        labels = np.zeros(len(rows), dtype=np.intp)
        best = np.full(len(rows), np.inf)
        for j, center in enumerate(self.centers):
            squares = ((rows - center) ** 2).sum(axis=1)
            closer = squares < best
            labels[closer], best[closer] = j, squares[closer]
        return labels, best


def squared_gaps(rows: Summable, label: Label, centers: Array) -> float:
    """Squared distances of all rows to the centre of their label, summed."""
    return float(summed(rows, _SquaredGaps(label, centers))[0])


@dataclass(frozen=True, eq=False)
class _SquaredGaps:
    label: Label
    centers: Array

    @property
    def bounds(self) -> Array:
        """Rows in the cube are nearer than this; others make the pass go again."""
        return np.array([float(self.centers.shape[1])])

    def __call__(self, rows: Array, anchors: Array) -> PartialSums:
        gaps = rows - self.centers[self.label(rows)]
        return split_sums((gaps**2).sum(axis=1)[:, None], anchors[:, 0])
