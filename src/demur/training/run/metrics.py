"""What a run tells about itself on the way.

A report holds public numbers alone. Loss, accuracy, gradient norms and even the size of
a sampled batch are exact functions of the data; they travel as `Exact`, which prints
nothing and is opened by a visible act.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from demur.core.accounting import renyi
from demur.core.accounting.events import Event, atoms

T = TypeVar("T")
_ORDERS = (*range(2, 33), *range(36, 129, 4), 160, 192, 256, 384, 512, 1024)


class Exact(Generic[T]):
    """A value that is not private: nothing prints it, saves it or compares it."""

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """The exact value. Publishing it is outside the guarantee of the run."""
        return self._value

    def __repr__(self) -> str:
        return "Exact(<not private>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an exact value is not saved or sent anywhere")


@dataclass(frozen=True)
class StepReport:
    """Where a run is: public numbers, and the parameters, which are private-safe.

    `epsilon` bounds what the steps so far cost (the ledger has paid for all of them).
    `params()` copies the parameters to the host, while the callback runs: the next step
    writes over them. `exact` is None unless the run was
    asked for exact metrics.
    """

    step: int
    iterations: int
    epsilon: float
    delta: float
    steps_per_second: float
    params: Callable[[], Any]
    exact: Exact[dict[str, Any]] | None = None


def spent_so_far(
    event: Event, draws: int, delta: float, whole: float
) -> Callable[[int], float]:
    """draws made -> an upper bound on their epsilon: Renyi, and never above `whole`.

    Renyi divergences of equal draws add up, so one table serves every step. An event
    without them (a truncated sample) shows the price of the whole run throughout.
    """
    per_order: list[tuple[int, float]] = []
    for order in _ORDERS:
        total = 0.0
        for atom, count in atoms(event).items():
            found = renyi.divergence(atom, order)
            total += math.inf if found is None else found * count
        if math.isfinite(total):
            per_order.append((order, total / draws))

    def spent(made: int) -> float:
        if made <= 0:
            return 0.0
        found = [renyi.to_epsilon(cost * made, a, delta) for a, cost in per_order]
        return min([whole, *found])

    return spent
