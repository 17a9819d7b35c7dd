"""Declarations: name, cost and conditions of a mechanism, as the ledger stores them.

The ledger stores a declaration as data and never calls an engine. All it asks of an
engine is a `Mechanism`: something that has a declaration.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np

from demur.core import validate
from demur.core.bounds import Bound
from demur.core.cost import Cost
from demur.core.digest import bytes_of_array

# An assumption that says what a record is: statements then speak of a person.
PER_PERSON = "a record is one person, with all of their examples"


@dataclass(frozen=True)
class Declaration:
    """A mechanism's name, cost, bounds and conditions.

    - `sampler_distance`: statistical distance eta between the sampler and the ideal
      distribution that the cost is stated for; a reading at epsilon adds
      (1 + e^epsilon) * eta to delta.
    - `bounds`: what the sensitivity rests on, with the source of each bound.
    - `unprotected`: what the unit leaves open (labels, class counts, n, ...).
    - `assumptions`: anything else a reader must believe.
    - `fingerprint`: a digest of the mechanism that draws: its kind and every parameter
      (`fingerprint_of`). Two mechanisms of equal cost may have different fingerprints;
      one entry does not pay for both, and its key draws for the declared one alone. If
      left empty, it is a digest of all the other fields.
    - `draws`: how often one run draws. More than once means on values that follow from
      the input and from earlier noise, so that the key cannot be bound to one value.
      None: the mechanism counts its draws itself.
    """

    name: str
    cost: Cost
    sampler_distance: float = 0.0
    bounds: tuple[Bound, ...] = ()
    unprotected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    fingerprint: str = ""
    draws: int | None = 1

    def __post_init__(self) -> None:
        validate.name(name=self.name)
        if not isinstance(self.cost, Cost):
            raise TypeError(
                "cost must be a Cost of terms, such as Cost((Fixed(unit, event),));"
                f" got {validate.shorten(self.cost)}"
            )
        validate.probability(sampler_distance=self.sampler_distance)
        object.__setattr__(self, "sampler_distance", float(self.sampler_distance))
        for field_name in ("bounds", "unprotected", "assumptions"):
            values = getattr(self, field_name)
            if isinstance(values, str):
                raise TypeError(f"{field_name} must be a list; got {values!r:.80}")
            object.__setattr__(self, field_name, tuple(values))
        if not isinstance(self.fingerprint, str) or len(self.fingerprint) > 200:
            raise TypeError("fingerprint must be a string of at most 200 characters")
        if self.draws is not None:
            validate.count(draws=self.draws)
        for line in self.unprotected:
            validate.text(unprotected=line)
        for line in self.assumptions:
            validate.text(assumptions=line)
        if not self.fingerprint:
            rest = self.to_json() | {"fingerprint": ""}
            object.__setattr__(self, "fingerprint", fingerprint_of("declared", rest))

    @property
    def per_person(self) -> bool:
        """Whether its records are persons, each with all of their examples."""
        return PER_PERSON in self.assumptions

    def declaration(self) -> Declaration:
        """This declaration, so that it can be charged like a mechanism."""
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
            "draws": self.draws,
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
                draws=data["draws"],
            )
        except TypeError as error:
            raise ValueError(f"not a declaration: {str(error)[:200]}") from error


def fingerprint_of(kind: str, *parameters: Any) -> str:
    """A digest of a mechanism's kind and parameters: numbers, text, arrays, plain data.

    Floats are compared to their last bit.

    >>> fingerprint_of("gaussian", 1.0, 3) == fingerprint_of("gaussian", 1.0, 3)
    True
    >>> fingerprint_of("gaussian", 1.0, 3) == fingerprint_of("gaussian", 1 + 2**-52, 3)
    False
    """
    whole = hashlib.sha256(f"demur {kind}\x00".encode())
    for value in parameters:
        if isinstance(value, np.ndarray):
            whole.update(bytes_of_array(value))
        else:
            plain = json.dumps(value, sort_keys=True, separators=(",", ":"))
            whole.update(f"{plain}\x00".encode())
    return whole.hexdigest()


class Rebuilt:
    """Mixin for frozen dataclasses: copies and pickles run the constructor again.

    So nothing that was computed from the fields (a fingerprint, a grid) travels with a
    copy whose arrays could be changed.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        own: Any = self
        names = [each.name for each in fields(own) if each.init]
        return _rebuild, (type(self), {name: getattr(self, name) for name in names})


def _rebuild(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**values)


@runtime_checkable
class Mechanism(Protocol):
    """Anything that has a declaration, and so can be paid for."""

    def declaration(self) -> Declaration:
        """What the ledger has to know before noise is drawn."""
        ...


def declaration_of(mechanism: Mechanism) -> Declaration:
    """The declaration of a mechanism; anything else is a TypeError."""
    declaration = getattr(mechanism, "declaration", None)
    declared = declaration() if callable(declaration) else None
    if not isinstance(declared, Declaration):
        raise TypeError(
            "mechanism must have a declaration() that returns a Declaration; got"
            f" {validate.shorten(mechanism)}. Nothing was spent."
        )
    return declared
