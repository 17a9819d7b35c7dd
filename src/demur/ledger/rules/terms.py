"""The terms of a ledger: what is fixed when it is opened for the first time.

They are the genesis of its hash chain, so none of them can change later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from demur.core import validate
from demur.core.adjacency import (
    AnyUnit,
    Erasure,
    LipschitzMap,
    Unit,
    unit_from_json,
)
from demur.core.declaration import Declaration
from demur.core.errors import LedgerMismatch
from demur.durable.chain import canonical
from demur.ledger.rules.approval import ApprovalRule
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import Filter


@dataclass(frozen=True)
class Terms:
    """Dataset, budgets by unit, filter, declared maps, signer, purpose, approvals."""

    dataset: str
    budgets: tuple[tuple[Unit, Budget], ...]
    filter: Filter
    maps: tuple[LipschitzMap, ...] = ()
    signer: str | None = None
    testing: bool = False
    approval: ApprovalRule | None = None

    def __post_init__(self) -> None:
        validate.name(dataset=self.dataset)
        if self.signer is not None and not re.fullmatch("[0-9a-f]{64}", self.signer):
            raise ValueError("signer must be a public key, 64 hexadecimal digits")
        if not isinstance(self.testing, bool):
            raise TypeError(f"testing must be True or False; got {self.testing!r:.40}")
        if self.approval is not None and not isinstance(self.approval, ApprovalRule):
            raise TypeError(
                f"approval must be an ApprovalRule or None; got {self.approval!r:.80}"
            )
        if not self.budgets:
            raise ValueError("budgets must name at least one unit")
        units = [unit for unit, _ in self.budgets]
        if len(set(units)) != len(units):
            raise ValueError(f"budgets name a unit twice: {units}")
        for _, budget in self.budgets:
            self.filter.check(budget)

    @classmethod
    def make(
        cls,
        *,
        dataset: str,
        budgets: Mapping[AnyUnit, Budget],
        filter: Filter | str | None = None,
        maps: Iterable[LipschitzMap] = (),
        signer: str | None = None,
        testing: bool = False,
        approval: ApprovalRule | None = None,
    ) -> Terms:
        """Terms from a caller's arguments; the default filter follows from delta.

        It is the pure one where some delta is 0, the Gaussian one otherwise.
        """
        if not isinstance(budgets, Mapping) or not budgets:
            raise ValueError(
                "budgets must map at least one unit to its Budget, as in"
                " {AddOrRemoveOne(): Budget(epsilon=1.0, delta=1e-6)}"
            )
        for unit, budget in budgets.items():
            if not isinstance(unit, Unit) or not isinstance(budget, Budget):
                raise TypeError(
                    f"budgets must map units to Budgets; got {unit!r}: {budget!r}"
                )
        private = [b for u, b in budgets.items() if not isinstance(u, Erasure)]
        first = (private or list(budgets.values()))[0]
        if filter is None:
            filter = "gaussian" if all(b.delta for b in budgets.values()) else "pure"
        if isinstance(filter, str):
            filter = Filter.named(filter, first)
        rows = cast(tuple[tuple[Unit, Budget], ...], tuple(budgets.items()))
        return cls(dataset, rows, filter, tuple(maps), signer, testing, approval)

    def to_text(self) -> str:
        """The terms as canonical text: the genesis of the chain."""
        data: dict[str, Any] = {
            "dataset": self.dataset,
            "budgets": [
                {"at": unit.to_json(), "is": budget.to_json()}
                for unit, budget in self.budgets
            ],
            "filter": self.filter.to_json(),
            "maps": [asdict(m) for m in self.maps],
            "signer": self.signer,
            "testing": self.testing,
        }
        if self.approval is not None:  # Ledgers without a rule have texts without one.
            data["approval"] = self.approval.to_json()
        return canonical(data)

    @classmethod
    def from_text(cls, text: str) -> Terms:
        """The terms that `to_text` wrote; anything else is a ValueError."""
        try:
            data: Any = json.loads(text)
            return cls(
                data["dataset"],
                tuple(
                    (unit_from_json(row["at"]), Budget(**row["is"]))
                    for row in data["budgets"]
                ),
                Filter.from_json(data["filter"]),
                tuple(LipschitzMap(**row) for row in data["maps"]),
                data["signer"],
                data["testing"],
                ApprovalRule.from_json(data.get("approval")),
            )
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"not the terms of a ledger: {str(error)[:200]}"
            ) from error

    def needs_approval(self, declaration: Declaration, count: int = 1) -> bool:
        """Whether a charge has to wait for somebody's decision."""
        return self.approval is not None and self.approval.concerns(
            self.budgets, self.maps, declaration, count
        )

    def must_equal(self, asked: Terms) -> None:
        """Refuse to open a ledger under other terms than its own; show both."""
        for name, own, wanted in (
            ("dataset", self.dataset, asked.dataset),
            ("budgets", dict(self.budgets), dict(asked.budgets)),
            ("filter", self.filter, asked.filter),
            ("maps", set(self.maps), set(asked.maps)),
            ("testing", self.testing, asked.testing),
            ("approval", self.approval, asked.approval),
        ):
            if own != wanted:
                raise LedgerMismatch(
                    f"this ledger was opened with {name} {_show(own)}; asked for now:"
                    f" {_show(wanted)}. The terms of a ledger never change: open"
                    " another ledger, or ask for these terms. Nothing was spent."
                )


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
    if isinstance(value, set):
        return str(sorted(value, key=str)) if value else "none"
    return repr(value) if isinstance(value, str | bool) else str(value)
