"""What a mechanism declares before it may run: the whole of what the ledger needs.

The ledger stores a declaration as data and never calls an engine. `Mechanism` is the
one thing an engine must be able to do for the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from demur.core import validate
from demur.core.bounds import Bound
from demur.core.cost import Cost


@dataclass(frozen=True)
class Declaration:
    """A mechanism's name, cost and fine print.

    - `sampler_distance`: statistical distance eta between the sampler and the ideal
      distribution that the cost speaks of; a reading at epsilon adds
      (1 + e^epsilon) * eta to delta.
    - `bounds`: what the sensitivity rests on, with the source of each bound.
    - `unprotected`: what the unit leaves open (labels, class counts, n, ...).
    - `assumptions`: anything else a reader must believe.
    - `fingerprint`: a digest of what else shapes the noise (its scale, its grid). Two
      mechanisms of equal cost may differ in it, and then they are not the same: one
      entry must not pay for both.
    """

    name: str
    cost: Cost
    sampler_distance: float = 0.0
    bounds: tuple[Bound, ...] = ()
    unprotected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    fingerprint: str = ""

    def __post_init__(self) -> None:
        validate.name(name=self.name)
        validate.probability(sampler_distance=self.sampler_distance)
        for field_name in ("bounds", "unprotected", "assumptions"):
            values = getattr(self, field_name)
            if isinstance(values, str):
                raise TypeError(f"{field_name} must be a list; got one string")
            object.__setattr__(self, field_name, tuple(values))
        if not isinstance(self.fingerprint, str) or len(self.fingerprint) > 200:
            raise TypeError("fingerprint must be a short string")
        for line in self.unprotected:
            validate.text(unprotected=line)
        for line in self.assumptions:
            validate.text(assumptions=line)

    def declaration(self) -> Declaration:
        """Itself: a declaration may be charged like the mechanism it came from."""
        return self

    def to_json(self) -> dict[str, Any]:
        """The declaration as plain data."""
        return {
            "name": self.name,
            "cost": self.cost.to_json(),
            "sampler_distance": self.sampler_distance,
            "bounds": [bound.to_json() for bound in self.bounds],
            "unprotected": list(self.unprotected),
            "assumptions": list(self.assumptions),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, data: object) -> Declaration:
        """The declaration that `to_json` wrote; anything else is a ValueError."""
        names = set(cls.__dataclass_fields__)
        if not isinstance(data, dict) or set(data) != names:
            raise ValueError(f"not a declaration: {validate.shorten(data)}")
        try:
            return cls(
                name=data["name"],
                cost=Cost.from_json(data["cost"]),
                sampler_distance=data["sampler_distance"],
                bounds=tuple(Bound.from_json(item) for item in data["bounds"]),
                unprotected=data["unprotected"],
                assumptions=data["assumptions"],
                fingerprint=data["fingerprint"],
            )
        except TypeError as error:
            raise ValueError(f"not a declaration: {str(error)[:200]}") from error


@runtime_checkable
class Mechanism(Protocol):
    """Anything that can declare its cost."""

    def declaration(self) -> Declaration:
        """What the ledger has to know before noise is drawn."""
        ...
