"""`LeastSquares`: what the exact modes `ridge` and `standardised_ridge` share.

Both keep integer sums over the live records, and weights that are a function of them.
So a deletion subtracts, takes no noise, and is refused where what would be left cannot
be a sum over records. How a record enters the sums is the mode's own.
"""

from __future__ import annotations

import abc

from numpy.typing import ArrayLike

from demur.core import validate
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.models.inputs import to_forget


class LeastSquares(Mode):
    """A mode whose sums forget exactly."""

    needs_record = True
    exact = True
    publishes = "state"
    losses = ("squared",)
    loss = "squared"
    regulariser = "Lambda"
    multiclass = True

    _w: Array  # the weights, which `_solve` renews

    @property
    @abc.abstractmethod
    def records(self) -> int:
        """How many records are live."""

    @abc.abstractmethod
    def _rows(self, X: ArrayLike, Y: ArrayLike) -> tuple[Array, Array]:
        """Rows and targets as they are learned, or a clear error."""

    @abc.abstractmethod
    def _subtract(self, X: Array, Y: Array) -> bool:
        """Take records off the sums; False, and no change, if that cannot be right."""

    @abc.abstractmethod
    def _solve(self) -> None:
        """Renew the weights, if the sums have changed."""

    def shift_bound(self, records: int = 1) -> float:
        """0.0: there is nothing to hide."""
        validate.count(records=records)
        return 0.0

    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        noise: Array | None = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        """Subtract a record, or rows of them; takes no noise."""
        if noise is not None:
            raise ValueError(f"mode {self.name!r} is exact and takes no noise")
        matrix, targets = to_forget(self, x, y, records, self._rows)
        if not self._subtract(matrix, targets):
            raise ValueError(
                "this record is not among the live ones: what is left without it cannot"
                " be a sum over records. Nothing has changed."
            )
        self._solve()

    def forget_nothing(
        self, noise: Array | None = None, *, grid: float | None = None
    ) -> None:
        """Solve, as a deletion does."""
        self.publish(noise)
        self._solve()

    def published(self) -> Array:
        """The weights, target by target."""
        self._solve()
        return self._w.copy()
