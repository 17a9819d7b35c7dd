"""Privacy budgets: how much a ledger may spend at one unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from demur.core import validate
from demur.core.promise import NO_LIMIT


@dataclass(frozen=True)
class Budget:
    """At most `epsilon` at `delta`, over everything the ledger will ever hold."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.probability(delta=self.delta)
        if self.delta >= 1.0:
            raise ValueError(f"delta must be below 1; got {self.delta!r}")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def unlimited(self) -> bool:
        """Whether nothing is enforced."""
        return self.epsilon >= NO_LIMIT

    def to_json(self) -> dict[str, Any]:
        """The budget as plain data."""
        return {"epsilon": self.epsilon, "delta": self.delta}

    def __str__(self) -> str:
        if self.unlimited:
            return "no limit"
        return f"epsilon {self.epsilon:g}, delta {self.delta:g}"
