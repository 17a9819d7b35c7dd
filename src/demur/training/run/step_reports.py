"""Step reports of a run: public numbers after each step, and exact ones on request.

A report holds public numbers alone. Loss, accuracy, gradient norms and even the size of
a sampled batch are exact functions of the data; they are wrapped in `Exact`, which
prints nothing and has to be opened by `reveal()`.
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
    """A value that is not private, and is not printed, saved or compared."""

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
    """The state of a run after a step: public numbers, and the private parameters.

    `epsilon` bounds what the steps so far cost (the ledger has paid for all of them).
    `params()` copies the parameters to the host, and works while the callback runs: the
    next step writes over them. `exact` is None unless `Reporting` asks for it.
    """

    step: int
    iterations: int
    epsilon: float
    delta: float
    steps_per_second: float
    params: Callable[[], Any]
    exact: Exact[dict[str, Any]] | None = None


@dataclass(frozen=True, eq=False)
class Reporting:
    """What a run reports while it goes on.

    - `callback(report)` is called with a `StepReport` after every step; if it returns
      True, the run ends there (what was reserved stays spent).
    - `progress` shows a bar on stderr; None shows it on a terminal alone.
    - `exact_metrics` adds loss and batch size of each step to the reports, as `Exact`:
      they are not private. So is "aux", the mean over the batch of what a loss with
      `has_aux` returns beside its value; without `exact_metrics` it goes nowhere.
    """

    callback: Callable[[StepReport], Any] | None = None
    progress: bool | None = None
    exact_metrics: bool = False


def spent_so_far(
    event: Event, draws: int, delta: float, whole: float
) -> Callable[[int], float]:
    """The number of draws -> a bound on their epsilon: Renyi, never above `whole`.

    Renyi divergences of equal draws add up, so one table serves every step. An event
    without them (a truncated sample) shows the price of the whole run throughout.
    """
    per_order: list[tuple[int, float]] = []
    for order in _ORDERS:
        total = 0.0
        for atom, count in atoms(event).items():
            divergence = renyi.divergence(atom, order)
            total += math.inf if divergence is None else divergence * count
        if math.isfinite(total):
            per_order.append((order, total / draws))

    def spent(drawn: int) -> float:
        if drawn <= 0:
            return 0.0
        bounds = [renyi.to_epsilon(cost * drawn, a, delta) for a, cost in per_order]
        return min([whole, *bounds])

    return spent
