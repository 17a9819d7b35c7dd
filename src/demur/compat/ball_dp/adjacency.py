"""Neighbouring records: those at most r apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demur.core import validate
from demur.core.adjacency import Ball


@dataclass(frozen=True)
class BallAdjacency:
    """Two records are neighbours when `dist` puts them at most `r` apart.

    The label is not compared, and every bound of this package holds between records of
    the same label only: `unit` states that, `is_neighbor_record` cannot.

    >>> from demur.compat.ball_dp.metrics import l2_dist
    >>> BallAdjacency(l2_dist, 0.5).is_neighbor_record([0.0], [0.4])
    True
    """

    dist: Callable[[Any, Any], float]
    r: float

    def __post_init__(self) -> None:
        validate.non_negative(r=self.r)

    def is_neighbor_record(self, x: Any, x_prime: Any) -> bool:
        """Whether the distance is at most r."""
        return float(self.dist(x, x_prime)) <= float(self.r)

    def unit(self, space: str = "records") -> Ball:
        """The unit of demur that this adjacency stands for."""
        return Ball(self.r, space=space)
