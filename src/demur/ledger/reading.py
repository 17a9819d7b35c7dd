"""Readings: the cost of a whole ledger at one unit.

A reading is tight: it prices the whole multiset of entries at once (closed forms,
Renyi, privacy loss distributions). It holds for entries fixed in advance; for entries
chosen adaptively the filter's figure holds, which is given beside it.

What a record is. Most entries count records of their input, some count persons, each
with all of their examples (`Declaration.per_person`). Costs add up for a change that is
one step for every entry:

- Replacing (and moving) a record of a person replaces that person, so at these units
  an entry over persons covers one record, and a ledger with both holds for one record.
- Adding, removing or blanking a record does so to a person only who has no other. Of
  one who keeps some, an entry over persons sees a replacement, which costs more; of one
  who goes with several, an entry over records sees several steps. A ledger with both
  holds for persons with a single record, and for nobody else.

So a reading counts its entries over persons, and says for whom its figure holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from demur.core.accounting import events
from demur.core.accounting.events import Event, Pure
from demur.core.accounting.stored_profile import Profile
from demur.core.adjacency import Ball, Erasure, LipschitzMap, ReplaceOne, Unit
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.entry import epsilon_with_slack
from demur.core.errors import NotCovered, NotPriced
from demur.core.rounding import printed_up, up


@dataclass(frozen=True)
class Reading:
    """The cost of a ledger at one unit.

    - `enforced_epsilon`: the filter's figure, which holds whatever choices were
      adaptive; None at a unit without a budget.
    - `left_out`: entries that are deletions in a privacy reading, or the reverse.
    - `persons`: how many of the entries count persons and not records.
    """

    unit: Unit
    epsilon: float
    delta: float
    entries: int
    left_out: int
    sampler_distance: float
    private: bool
    enforced_epsilon: float | None = None
    persons: int = 0

    @property
    def one(self) -> str:
        """Whose change the figure is about: a record, a person, or both at once."""
        if not self.persons:
            return "one record"
        if self.persons == self.entries:
            return "one person"
        if isinstance(self.unit, ReplaceOne | Ball):
            return "one record"
        return "one person with a single record"

    @property
    def protects(self) -> str:
        """What the figure bounds, in words."""
        words = self.unit.describe(self.one)
        if self.one != "one person with a single record":
            return words
        counted = "counts persons" if self.persons == 1 else "count persons"
        return (
            f"{words} ({self.persons} of the {self.entries} entries {counted}, the"
            " others records: somebody with several records is not covered)"
        )

    def __str__(self) -> str:
        stamp = "" if self.private else "NOT PRIVATE (seeded noise): "
        about = f", {self.protects}" if self.persons else ""
        return (
            f"{stamp}epsilon {printed_up(self.epsilon)} at delta {self.delta:g} for"
            f" {self.unit} over {self.entries} entries{about}"
        )


@dataclass(frozen=True)
class Group:
    """Equal declarations of a ledger, with how often they were charged."""

    declaration: Declaration
    entries: int
    count: int
    example: str
    private: bool


def read(
    groups: Iterable[Group],
    unit: Unit,
    delta: float,
    maps: tuple[LipschitzMap, ...],
    profiles: dict[Event, Profile],
    known: dict[tuple[Event, float, float], float] | None = None,
) -> Reading:
    """The reading of a whole ledger, from its groups.

    `known` keeps prices between readings with the same profiles.
    """
    known = {} if known is None else known
    counts: dict[events.Atom, int] = {}
    distance, entries, left_out, persons, private = 0.0, 0, 0, 0, True
    for group in groups:
        cost = group.declaration.cost
        erasure = isinstance(unit, Erasure)
        if not cost.covers_erasure() if erasure else cost.only_erasure():
            left_out += group.entries
            continue
        try:
            event = cost.at(unit, maps)
        except (NotCovered, NotPriced) as error:
            raise type(error)(
                f"the ledger cannot be read at {unit}, because of the entry"
                f" {group.example!r}: {error}"
            ) from error
        entries += group.entries
        persons += group.entries if group.declaration.per_person else 0
        private = private and group.private
        if group.declaration.sampler_distance:
            distance = up(
                distance + group.declaration.sampler_distance * group.count, 2
            )
        for atom, count in events.atoms(event, group.count).items():
            counts[atom] = counts.get(atom, 0) + count
    whole = events.from_atoms(counts) if counts else Pure(0.0)
    asked = (whole, delta, distance)
    if asked not in known:
        known[asked] = epsilon_with_slack(*asked, profiles)
    return Reading(
        unit=unit,
        epsilon=known[asked],
        delta=delta,
        entries=entries,
        left_out=left_out,
        sampler_distance=distance,
        private=private,
        persons=persons,
    )


@lru_cache(maxsize=4096)
def declaration_from_text(text: str) -> Declaration:
    """A declaration, parsed once per process."""
    return Declaration.from_json(json.loads(text))


def event_digest(event: Event) -> str:
    """The name under which an event's profile is stored."""
    return digest_of_text(repr(event))
