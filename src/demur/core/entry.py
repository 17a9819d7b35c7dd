"""One line of the ledger, as data: what was declared, and where it was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from demur.core import accounting, validate
from demur.core.accounting.events import Event, Repeated
from demur.core.accounting.profile import Profile
from demur.core.adjacency import Erasure, LipschitzMap, Unit
from demur.core.bounds import BoundSource
from demur.core.declaration import Declaration
from demur.core.errors import NotCovered, NotPriced
from demur.core.promise import Promise
from demur.core.rounding import printed_up


@dataclass(frozen=True)
class Entry:
    """A charge that has been written down. It is spent, whatever happens next."""

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

    @property
    def private(self) -> bool:
        """Whether its noise came from the operating system."""
        return self.noise == "os"

    def epsilon(self, unit: Unit, delta: float) -> float:
        """The cost of this entry alone at `unit`, the sampler's distance included."""
        event = self.declaration.cost.at(unit, self.maps)
        if self.count > 1:
            event = Repeated(event, self.count)
        return _alone(event, delta, self.declaration.sampler_distance * self.count)

    def statement(self, *, records: int | None = None) -> str:
        """One paragraph for the person who signs; `records` is the public n, if any."""
        return " ".join(_sentences(self, records))


@lru_cache(maxsize=4096)
def _alone(event: Event, delta: float, sampler_distance: float) -> float:
    """The price of one entry; a ledger's entries are often equal."""
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
    found = accounting.price(event, delta, profiles=profiles)
    if sampler_distance == 0.0 or math.isinf(found):
        return found
    for _ in range(50):
        if found > 700:
            return math.inf
        # A step up first, so that the fixed point is passed and not approached.
        epsilon = found * (1 + 1e-9) + 1e-12
        left = delta - (1.0 + math.exp(epsilon)) * sampler_distance
        if left <= 0:
            return math.inf
        found = accounting.price(event, left, profiles=profiles)
        if found <= epsilon:
            return epsilon
    return math.inf


def _sentences(entry: Entry, records: int | None) -> list[str]:
    declaration = entry.declaration
    lines: list[str] = []
    if not entry.private:
        lines.append("NOT PRIVATE: the noise came from a seeded source, for tests.")
    times = f", {entry.count} times" if entry.count > 1 else ""
    lines.append(
        f"{entry.label!r} released the result of {declaration.name}{times} on the"
        f" dataset {entry.dataset!r}."
    )
    deltas = []
    for promise in entry.promises:
        lines.append(_promise(entry, promise))
        if not isinstance(promise.unit, Erasure):
            deltas.append(promise.delta)
    if declaration.unprotected:
        lines.append(f"Not protected: {', '.join(declaration.unprotected)}.")
    for source in (BoundSource.DECLARED, BoundSource.ESTIMATED):
        weak = [b for b in declaration.bounds if b.source is source]
        if weak:
            shown = ", ".join(f"{b.what} <= {b.value:g}" for b in weak)
            lines.append(
                f"It rests on declared bounds: {shown}."
                if source is BoundSource.DECLARED
                else f"CONDITIONAL on bounds estimated from the data: {shown}."
            )
    for assumption in declaration.assumptions:
        lines.append(f"It assumes that {assumption}.")
    if entry.private:
        lines.append("The noise came from the operating system's entropy.")
    if records is not None:
        validate.count(records=records)
        worst = max(deltas, default=0.0)
        if worst >= 1.0 / records:
            lines.append(
                f"WARNING: delta {worst:g} is not below 1/n = {1 / records:g}; it would"
                " allow publishing somebody's record outright."
            )
    lines.append(
        f"Recorded as entry {entry.sequence} ({entry.id[:8]}) on {entry.time[:10]}."
        if entry.durable
        else "Not recorded: the ledger was in memory only."
    )
    return lines


def _promise(entry: Entry, promise: Promise) -> str:
    what = promise.unit.describe()
    try:
        epsilon = entry.epsilon(promise.unit, promise.delta)
    except (NotCovered, NotPriced):
        return f"It says nothing about {what}."
    kind = "hides" if isinstance(promise.unit, Erasure) else "protects"
    return (
        f"It {kind} {what}, with epsilon {printed_up(epsilon)} at delta"
        f" {printed_up(promise.delta)}"
        f" (budget {promise.epsilon:g})."
    )
