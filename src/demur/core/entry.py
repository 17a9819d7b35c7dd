"""Entries of the ledger, and the privacy statement that each can make."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from demur.core import accounting, validate
from demur.core.accounting.events import Event, Pure, Repeated
from demur.core.accounting.samplers import MEANINGLESS
from demur.core.accounting.stored_profile import Profile
from demur.core.adjacency import Erasure, LipschitzMap, Unit, unit_from_json
from demur.core.bounds import BoundSource
from demur.core.declaration import Declaration
from demur.core.errors import NotCovered, NotPriced
from demur.core.promise import NO_LIMIT, Promise
from demur.core.rounding import printed_pair, printed_up

# A deletion service names its entries by itself and the operation; this one pays for
# all deletions of a person.
PAYS_PER_PERSON = "budget per person"
WEAK = 8.0  # above this epsilon a statement and the report say so


@dataclass(frozen=True)
class Entry:
    """A charge in the ledger. It is spent, whatever happens afterwards."""

    id: str
    sequence: int
    label: str
    declaration: Declaration
    count: int
    noise: str
    time: str
    dataset: str
    durable: bool
    promises: tuple[Promise, ...]
    maps: tuple[LipschitzMap, ...] = ()
    actor: str = ""  # who charged it
    unsafe: tuple[str, ...] = ()  # settings of the server that could lose it

    @property
    def private(self) -> bool:
        """Whether its noise came from the operating system."""
        return self.noise == "os"

    def epsilon(self, unit: Unit, delta: float) -> float:
        """The cost of this entry alone at `unit`, the sampler's distance included."""
        event = self.declaration.cost.at(unit, self.maps)
        if self.count > 1:
            event = Repeated(event, self.count)
        return epsilon_alone(
            event, delta, self.declaration.sampler_distance * self.count
        )

    def covered(self, unit: Unit) -> bool:
        """Whether it draws noise at `unit` that another entry has paid for.

        So a deletion under the budget per person: its own cost is none, and what holds
        for it is what that entry states.
        """
        declared = self.declaration
        if not isinstance(unit, Erasure) or not declared.cost.covers(unit):
            return False
        draws_noise = declared.sampler_distance > 0.0 or declared.draws is None
        return draws_noise and declared.cost.at(unit, self.maps) == Pure(0.0)

    def cost_alone(self, promise: Promise) -> float | None:
        """Its epsilon at the unit of a promise; None where it has none of its own."""
        if self.covered(promise.unit):
            return None
        try:
            return self.epsilon(promise.unit, promise.delta)
        except (NotCovered, NotPriced):
            return None

    def to_json(self) -> dict[str, Any]:
        """The entry as plain data; `from_json` reads it back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {
            "declaration": self.declaration.to_json(),
            "promises": [
                {"unit": p.unit.to_json(), "epsilon": p.epsilon, "delta": p.delta}
                for p in self.promises
            ],
            "maps": [asdict(m) for m in self.maps],
            "unsafe": list(self.unsafe),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Entry:
        """The entry that `to_json` wrote."""
        promises = tuple(
            Promise(unit_from_json(p["unit"]), p["epsilon"], p["delta"])
            for p in data["promises"]
        )
        return cls(
            **data
            | {
                "declaration": Declaration.from_json(data["declaration"]),
                "promises": promises,
                "maps": tuple(LipschitzMap(**m) for m in data["maps"]),
                "unsafe": tuple(data["unsafe"]),
            }
        )

    def statement(
        self, *, records: int | None = None, paid_by: Entry | None = None
    ) -> str:
        """The privacy statement: one paragraph to read and sign.

        With the public number of `records` it warns when delta is not below 1/n. Of a
        deletion that another entry of the ledger paid for, `paid_by` is that entry.
        """
        return " ".join(_sentences(self, records, paid_by))


@lru_cache(maxsize=4096)
def epsilon_alone(event: Event, delta: float, sampler_distance: float) -> float:
    """The price of one entry, cached: a ledger's entries are often equal."""
    return epsilon_with_slack(event, delta, sampler_distance)


def epsilon_with_slack(
    event: Event,
    delta: float,
    sampler_distance: float,
    profiles: dict[Event, Profile] | None = None,
) -> float:
    """The price of `event` drawn by samplers at a total statistical distance.

    (epsilon, d)-private ideal mechanisms at distance eta are
    (epsilon, d + (1 + e^epsilon) eta)-private, so epsilon must satisfy
    price(event, delta - (1 + e^epsilon) eta) <= epsilon. The price falls in its
    delta, so stepping epsilon up until that holds ends at an upper bound.
    """
    price = accounting.price(event, delta, profiles=profiles)
    if sampler_distance == 0.0 or math.isinf(price):
        return price
    for _ in range(50):
        if price > 700:
            return math.inf
        # A step up first, so that the fixed point is passed and not approached.
        epsilon = price * (1 + 1e-9) + 1e-12
        left = delta - (1.0 + math.exp(epsilon)) * sampler_distance
        if left <= 0:
            return math.inf
        if left != delta:  # a distance far below delta takes nothing away from it
            price = accounting.price(event, left, profiles=profiles)
        if price <= epsilon:
            return epsilon
    return math.inf


def deletion_key(service: str, operation: str) -> str:
    """The idempotency key under which a deletion service records an operation."""
    return f"unlearning {service} {operation}"


def _sentences(
    entry: Entry, records: int | None, payer: Entry | None = None
) -> list[str]:
    declaration = entry.declaration
    lines: list[str] = []
    if not entry.private:
        lines.append("NOT PRIVATE: the noise came from a seeded source, for tests.")
    lines.append(f'Released: {_named(entry)}, dataset "{entry.dataset}".')
    lines += [_protection(entry, promise, payer) for promise in entry.promises]
    if declaration.unprotected:
        lines.append(f"Not protected: {', '.join(declaration.unprotected)}.")
    lines += _conditions(declaration)
    if entry.private:
        lines.append("The noise came from the operating system's entropy.")
    if entry.unsafe:
        lines.append(
            "The ledger's server could lose what it had acknowledged:"
            f" {', '.join(entry.unsafe)}."
        )
    if records is not None:
        lines += _warnings(entry, records)
    lines.append(
        f"Recorded as entry {entry.sequence} ({entry.id[:8]}) on {entry.time[:10]}."
        if entry.durable
        else "Not recorded: the ledger was in memory only."
    )
    return lines


def _named(entry: Entry) -> str:
    """What was paid for: a number of runs, or of draws of one run."""
    name, label = entry.declaration.name, f'("{entry.label}")'
    if entry.count == 1:
        return f"{name} {label}"
    if entry.declaration.draws is None:
        return f"{name} {label}, {entry.count:,} draws of noise"
    return f"{entry.count:,} runs of {name} {label}"


def _protection(entry: Entry, promise: Promise, payer: Entry | None) -> str:
    """What the entry costs at one unit of its ledger, in words."""
    unit = promise.unit
    if payer is not None and (
        not entry.covered(unit)
        or payer.covered(unit)
        or not payer.declaration.cost.covers(unit)
    ):
        payer = None
    try:
        epsilon = (payer or entry).epsilon(unit, promise.delta)
    except (NotCovered, NotPriced):
        declared = ", ".join(entry.declaration.cost.stated_units())
        return (
            f"This entry states no cost at unit {unit}: it was declared for {declared}"
            " only."
        )
    one = "one person" if entry.declaration.per_person else "one record"
    protected = unit.describe(one)
    at = f"at delta {printed_up(promise.delta)}"
    if epsilon > MEANINGLESS:
        shown = (
            f"epsilon is {printed_up(epsilon)} {at}"
            if epsilon < math.inf
            else f"no epsilon is proven {at}"
        )
        return f"NO MEANINGFUL PROTECTION ({protected}): {shown}."
    limited = promise.epsilon < NO_LIMIT
    above, budget = printed_pair(epsilon, promise.epsilon)
    if entry.covered(unit) and payer is None:
        within = f", within the budget {budget} {at}" if limited else ""
        return (
            f"After the deletion nobody can tell {unit.describe()}, up to the epsilon"
            " that an earlier entry of this ledger states. That entry paid for it: this"
            f" deletion has no cost of its own{within}."
        )
    cost = f"epsilon {above} {at}"
    if limited:
        cost += f" (budget {budget})"
    weak = f" This is a weak guarantee: epsilon is above {WEAK:g}."
    weak = weak if epsilon > WEAK else ""
    if isinstance(unit, Erasure):
        nobody = f"After the deletion nobody can tell {unit.describe()}"
        if payer is not None:
            cost += f", paid by entry {payer.sequence}: this deletion has no cost of"
            cost += " its own"
        return f"{nobody}, up to {cost}.{weak}"
    return f"It protects {protected}, with {cost}.{weak}"


def _conditions(declaration: Declaration) -> list[str]:
    """What a reader has to believe: bounds that were not enforced, assumptions."""
    lines = []
    for source, words in (
        (BoundSource.DECLARED, "It rests on declared bounds"),
        (BoundSource.ESTIMATED, "CONDITIONAL on bounds estimated from the data"),
    ):
        bounds = [bound for bound in declaration.bounds if bound.source is source]
        if bounds:
            shown = ", ".join(f"{b.what} <= {printed_up(b.value)}" for b in bounds)
            lines.append(f"{words}: {shown}.")
    return lines + [f"It assumes that {line}." for line in declaration.assumptions]


def _warnings(entry: Entry, records: int) -> list[str]:
    """A warning where delta is so large that it allows publishing a record."""
    validate.count(records=records)
    deltas = [p.delta for p in entry.promises if not isinstance(p.unit, Erasure)]
    largest = max(deltas, default=0.0)
    if largest < 1.0 / records:
        return []
    return [
        f"WARNING: delta {printed_up(largest)} is not below 1/n = {1 / records:g}; it"
        " would allow publishing somebody's record outright."
    ]
