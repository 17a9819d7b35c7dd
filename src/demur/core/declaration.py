"""What a mechanism declares before it may run: the whole of what the ledger needs.

The ledger stores a declaration as data and never calls an engine. `Mechanism` is the
one thing an engine must be able to do for the ledger.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

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
    - `fingerprint`: a digest of the mechanism that draws: its kind and every parameter
      (`fingerprint_of`). Two mechanisms of equal cost may differ in it, and then they
      are not the same: one entry must not pay for both, and the key of the entry draws
      for this one alone. Left empty it is a digest of all the rest.
    - `interactive`: the mechanism draws several times, on values that follow from its
      input and from earlier noise, so that its key cannot be held to one value.
    """

    name: str
    cost: Cost
    sampler_distance: float = 0.0
    bounds: tuple[Bound, ...] = ()
    unprotected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    fingerprint: str = ""
    interactive: bool = False

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
        if not isinstance(self.interactive, bool):
            raise TypeError(f"interactive must be a bool; got {self.interactive!r:.80}")
        for line in self.unprotected:
            validate.text(unprotected=line)
        for line in self.assumptions:
            validate.text(assumptions=line)

        if not self.fingerprint:
            rest = self.to_json() | {"fingerprint": ""}
            object.__setattr__(self, "fingerprint", fingerprint_of("declared", rest))

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
            "interactive": self.interactive,
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
                interactive=data["interactive"],
            )
        except TypeError as error:
            raise ValueError(f"not a declaration: {str(error)[:200]}") from error


def fingerprint_of(kind: str, *parameters: Any) -> str:
    """A digest of a mechanism's kind and parameters: numbers, text, arrays, plain data.

    Floats count to their last bit.

    >>> fingerprint_of("gaussian", 1.0, 3) == fingerprint_of("gaussian", 1.0, 3)
    True
    >>> fingerprint_of("gaussian", 1.0, 3) == fingerprint_of("gaussian", 1.0 + 1e-16, 4)
    False
    """
    whole = hashlib.sha256(f"demur {kind}\x00".encode())
    for value in parameters:
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value)
            whole.update(f"{array.dtype.str} {array.shape}\x00".encode())
            whole.update(array.tobytes())
        else:
            plain = json.dumps(value, sort_keys=True, separators=(",", ":"))
            whole.update(f"{plain}\x00".encode())
    return whole.hexdigest()


@runtime_checkable
class Mechanism(Protocol):
    """Anything that can declare its cost."""

    def declaration(self) -> Declaration:
        """What the ledger has to know before noise is drawn."""
        ...
