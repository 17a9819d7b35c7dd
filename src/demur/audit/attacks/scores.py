"""Scores of membership attacks: the claimed log-likelihood ratio, up to a scale.

By Neyman and Pearson no other score finds a record more often at the same share of
false positives, if the claim is true and the attacker knows all other records.

- *Heads, sums of a plan, deleted models*: exact values plus Gaussian noise of one
  deviation in each coordinate. The ratio grows with the inner product of the release
  and the difference of the two exact values: `direction_scores`. Canaries of a run have
  a direction of their own each (`demur.audit.Canaries.scores`).
- *Reports*: the difference of the mechanism's log densities: `report_scores`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class HasDensity(Protocol):
    """A mechanism of reports that states its density."""

    def log_density(self, v: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """log of the density of the reports x at the point v."""
        ...


def direction_scores(
    releases: ArrayLike, with_record: ArrayLike, without: ArrayLike
) -> NDArray[np.float64]:
    """How far each release lies towards the exact value with the record.

    >>> direction_scores([[1.0, 0.0], [0.0, 2.0]], [2.0, 0.0], [0.0, 0.0])
    array([2., 0.])
    """
    there, absent = (np.asarray(v, np.float64) for v in (with_record, without))
    if there.shape != absent.shape or np.array_equal(there, absent):
        raise ValueError(
            "with_record and without must be two different values of one shape; got"
            f" {there.shape} and {absent.shape}"
        )
    seen = np.asarray(releases, np.float64).reshape(-1, there.size)
    return np.asarray(seen @ (there - absent).reshape(-1))


def report_scores(
    reports: ArrayLike, mechanism: HasDensity, point: Any, other: Any
) -> NDArray[np.float64]:
    """How much likelier each report is at the point than at the other one.

    >>> from demur.mechanisms import BPM
    >>> scores = report_scores([[0.1], [0.9]], BPM(4.0, 0.3, 1), [0.1], [0.9])
    >>> bool(scores[0] > 0 > scores[1])
    True
    """
    seen = np.asarray(reports, np.float64)
    near, far = (mechanism.log_density(at, seen) for at in (point, other))
    return np.asarray(near - far)
