"""Approval rules: which charges wait for somebody's decision before they are paid.

A rule is one of the ledger's terms, fixed with its budgets, so that nobody can lift it
later and `verify` can check that it was kept. What a charge costs is computed here from
its declaration, whatever its client says. A name is what the client says: `mechanisms`
is for clients that name things honestly, `above` holds for all.

A cost that is split into parts below `above` waits for nobody; the budget bounds the
sum. `above=0` lets every charge wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from demur.core import validate
from demur.core.accounting.events import Repeated
from demur.core.adjacency import LipschitzMap, Unit
from demur.core.declaration import Declaration
from demur.core.entry import epsilon_alone
from demur.core.errors import NotCovered, NotPriced
from demur.ledger.rules.budget import Budget

# Another version of the accountant may differ in its last digits.
_SAME = 1 + 1e-9


@dataclass(frozen=True)
class ApprovalRule:
    """Charges that wait: above an epsilon at any budget, or of named mechanisms.

    - `above`: a charge waits if it alone costs more than this epsilon at the unit and
      delta of a budget; 0 is every charge.
    - `mechanisms`: patterns of names, as in "DP-SGD*".
    """

    above: float | None = None
    mechanisms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.above is not None:
            validate.non_negative(above=self.above)
            object.__setattr__(self, "above", float(self.above))
        if isinstance(self.mechanisms, str):
            raise TypeError(f"mechanisms must be a list; got {self.mechanisms!r:.80}")
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        for pattern in self.mechanisms:
            validate.name(mechanisms=pattern)
        if self.above is None and not self.mechanisms:
            raise ValueError("an ApprovalRule names above=, mechanisms= or both")

    def concerns(
        self,
        budgets: tuple[tuple[Unit, Budget], ...],
        maps: tuple[LipschitzMap, ...],
        declaration: Declaration,
        count: int,
    ) -> bool:
        """Whether a charge has to wait."""
        if any(fnmatchcase(declaration.name, p) for p in self.mechanisms):
            return True
        if self.above is None:
            return False
        most = self.above * _SAME
        costs = costs_alone(budgets, maps, declaration, count)
        return any(cost is not None and cost > most for cost in costs) or (
            self.above == 0.0
        )

    def to_json(self) -> dict[str, Any]:
        """The rule as plain data."""
        return {"above": self.above, "mechanisms": list(self.mechanisms)}

    @classmethod
    def from_json(cls, data: object) -> ApprovalRule | None:
        """The rule that `to_json` wrote, or None; anything else is a ValueError."""
        if data is None:
            return None
        if not isinstance(data, dict) or set(data) != {"above", "mechanisms"}:
            raise ValueError(f"not an approval rule: {validate.shorten(data)}")
        return cls(data["above"], tuple(data["mechanisms"]))

    def __str__(self) -> str:
        parts = []
        if self.above == 0.0:
            parts.append("for every charge")
        elif self.above is not None:
            parts.append(f"above epsilon {self.above:g}")
        if self.mechanisms:
            parts.append(f"for {', '.join(self.mechanisms)}")
        return "approval " + " and ".join(parts)


def costs_alone(
    budgets: tuple[tuple[Unit, Budget], ...],
    maps: tuple[LipschitzMap, ...],
    declaration: Declaration,
    count: int,
) -> tuple[float | None, ...]:
    """The epsilon of one charge alone at each budget; None where it has no cost."""
    return tuple(
        _cost_alone(unit, budget.delta, maps, declaration, count)
        for unit, budget in budgets
    )


def _cost_alone(
    unit: Unit,
    delta: float,
    maps: tuple[LipschitzMap, ...],
    declaration: Declaration,
    count: int,
) -> float | None:
    try:
        event = declaration.cost.at(unit, maps)
        whole = Repeated(event, count) if count > 1 else event
        return epsilon_alone(whole, delta, declaration.sampler_distance * count)
    except NotCovered:
        return None
    except NotPriced:
        return math.inf
