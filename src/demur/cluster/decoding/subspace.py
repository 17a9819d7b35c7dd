"""Centres in a subspace: what reports in many dimensions can show.

In d = 64 and noise of a deviation of 2 on each coordinate hardly any direction shows
its variance. Centres are kept in m + span(B), with m the mean of the points and B the
directions in which reports show any variance (`moments`), at most 24; all other
coordinates are those of m.

**Where that is right.** B comes from the reports themselves, and the fit takes it for
given. Along the first eigenvectors of n reports, noise alone looks wider than it is, by
a factor of up to (1 + sqrt(d / n))^2, and the clusters would explain that by centres
far apart. From 50 reports a dimension on the factor is below 1.3. With fewer, centres
are free in all dimensions, where their prior and the average over the posterior hold
them; that costs d instead of r + 1 per report, and is taken wherever it is affordable.

Nothing else changes there. The density of a report depends on its distance to the
centre,

    |x - m - B a|^2 = |B'(x - m) - a|^2 + |rest|^2,

so that a report is B'(x - m) and one more coordinate, |rest|, at which every centre has
0: r + 1 numbers instead of d, without any approximation.

**What is not known outside the subspace.** Along B a centre has the posterior of the
fit. In every other direction u the centre that is released has the coordinate of the
estimated mean, and its error is (c - m)'u plus the error of the mean. The second has
the variance of reports along u over n alpha^2 (`Moments.mean_errors`), the same for all
clusters. For the first the prior is the one that centres have along B, N(0, V) with V
the variance of points along u; a cluster with the share w of the points cannot be
further away than V = sum of w_j ((c_j - m)'u)^2 + ... >= w / (1 - w) ((c - m)'u)^2
allows (the cluster against all others), so that its variance is V min(1, (1 - w) / w):
nothing for a single cluster, whose centre is the mean. `scattered` adds both to a draw.
V counts the variance within clusters as well, which no report tells from the other
here: the intervals are wide rather than short.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.cluster.decoding.likelihood import Clusters
from demur.cluster.decoding.moments import Moments
from demur.cluster.decoding.priors import CentrePrior
from demur.cluster.rows.ranked_rows import RowsInMemory

Array = NDArray[np.float64]

MOST = 24
WHOLE = 12  # dimensions up to which centres are free in all of them
# Reports per dimension from which on eigenvectors of the reports are those of points,
# and what may be spent on fewer: reports times clusters times dimensions.
_ENOUGH = 50
_CHEAP, _DEAREST = 4_000_000, 40_000_000


@dataclass(frozen=True, eq=False)
class Subspace:
    """m + span(B), and how reports and centres are written in it."""

    middle: Array
    basis: Array  # columns
    deviations: Array  # of points along them
    outside: Array  # columns: the other directions
    variances: Array  # of points along those
    mean_errors: Array  # variance of `middle` along those

    @property
    def box(self) -> tuple[Array, Array]:
        """The range of a centre's coordinates over the cube; the last is always 0."""
        up = np.maximum(self.basis, 0.0).T @ (1.0 - self.middle)
        down = np.maximum(-self.basis, 0.0).T @ self.middle
        back = np.maximum(self.basis, 0.0).T @ self.middle
        forth = np.maximum(-self.basis, 0.0).T @ (1.0 - self.middle)
        return np.append(-(back + forth), 0.0), np.append(up + down, 0.0)

    @property
    def prior(self) -> CentrePrior:
        """Centres around m, as far away as points are."""
        r = len(self.deviations)
        root = np.vstack([np.diag(1.0 / self.deviations), np.zeros(r)])
        return CentrePrior(np.zeros(r + 1), root)

    def reduced(self, rows: RowsInMemory) -> RowsInMemory:
        """Reports as r + 1 numbers."""
        gaps = rows.values - self.middle
        along = gaps @ self.basis
        rest = (gaps**2).sum(axis=1) - (along**2).sum(axis=1)
        values = np.column_stack([along, np.sqrt(np.maximum(rest, 0.0))])
        return RowsInMemory(values, rows.row_ids)

    def lifted(self, centers: Array) -> Array:
        """Centres in all dimensions, inside the cube."""
        return np.clip(self.middle + centers[:, :-1] @ self.basis.T, 0.0, 1.0)

    def scattered(self, drawn: Clusters, rng: np.random.Generator) -> Clusters:
        """Draws in all dimensions, with what is not known outside the subspace."""
        (many, count), size = drawn.weights.shape, len(self.variances)
        w = np.maximum(drawn.weights[:, :, None], 1e-9)
        spread = np.sqrt(self.variances * np.minimum(1.0, (1.0 - w) / w))
        errors = np.sqrt(self.mean_errors) * rng.normal(size=(many, 1, size))
        off = errors + spread * rng.normal(size=(many, count, size))
        inside = self.middle + drawn.centers[:, :, :-1] @ self.basis.T
        places = np.clip(inside + off @ self.outside.T, 0.0, 1.0)
        return Clusters(places, drawn.weights, drawn.widths)


def in_whole_space(count: int, clusters: int, dimension: int) -> bool:
    """Whether centres are free in all dimensions, where only their prior holds them."""
    work = count * clusters * dimension
    few = count < _ENOUGH * dimension
    return work <= (_DEAREST if few else _CHEAP)


def directions_for(known: Moments, clusters: int) -> int:
    """The number of directions in which reports show any variance.

    K centres span K - 1 dimensions; fewer than that are not worth saving.
    """
    d = len(known.mean)
    return d if d <= WHOLE else min(max(known.visible, min(clusters, d)), MOST)


def subspace_for(known: Moments, clusters: int) -> Subspace | None:
    """The subspace in which centres are looked for; None where it would be all."""
    size = directions_for(known, clusters)
    if size == len(known.mean):
        return None
    return Subspace(
        known.mean,
        known.directions[:, :size],
        np.sqrt(known.variances[:size]),
        known.directions[:, size:],
        known.variances[size:],
        known.mean_errors[size:],
    )
