r"""What an attacker can gain from an entry or a whole ledger, by its privacy profile.

An entry's cost at a unit is a profile: for each epsilon a delta such that, for two
datasets that the unit relates and every event S, P(S) <= e^epsilon Q(S) + delta. Three
questions about attacks are answered by it, whatever the engine and whatever the attack:

- *membership*. A test that says "the record is there" with probability x where it is
  not says so with probability at most T(x) where it is,

      T(x) = min over epsilon of  e^epsilon x + delta,  1 - e^-epsilon (1 - delta - x),

  the first from S, the second from its complement. Its advantage T(x) - x is at most
  (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) for every point, which is delta at
  epsilon 0 (the total variation distance) for the first one.
- *identification*. Candidates are drawn from a prior, the best blind guess of which
  succeeds with probability k (1/m for m equally likely ones). If every candidate's
  dataset is related to one and the same dataset, an attacker who sees the release
  succeeds with probability at most T(k). *Proof.* Let Q be the law of the release for
  that dataset, P_z for candidate z, S_z the outputs on which z is guessed. Success is
  the mean over z of P_z(S_z) <= mean of T(Q(S_z)) <= T(mean of Q(S_z)) as T is concave,
  and the mean of Q(S_z) is the success of a guess that saw nothing of the record: at
  most k. [] (Hayes, Mahloujifar and Balle 2023.)
- *reconstruction* up to an error is identification where a guess counts if it is close
  enough: k is the prior mass of the best ball of that radius, (r / R)^d for a record
  that is uniform in a ball of radius R in d dimensions.

At a ball the candidates are those within the ball; at `ReplaceOne` any record; at
`AddOrRemoveOne` the record is there or not; at `Erasure` it was learned and deleted, or
never learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from demur.core import accounting, validate
from demur.core.accounting import events
from demur.core.accounting.events import Event, Repeated
from demur.core.adjacency import Erasure, LipschitzMap, Unit
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.core.rounding import printed_up, product_up, up
from demur.ledger import Group, Ledger, Readings

_SMALLEST = 1e-9
_POINTS = 60
_DOTS = 240  # of a sampled plan's profile, which has thousands
# Mixed events are priced at these deltas: each price composes all of their parts.
_DELTAS = (1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7)
_CLOSED = events.GaussianEvent | events.Pure
FALSE_POSITIVES = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class AttackGains:
    """Upper bounds on the success of any attack; `pairs` are (epsilon, delta).

    >>> from demur.core.accounting.events import GaussianEvent
    >>> gains = attack_gains(GaussianEvent(1.0))
    >>> round(gains.membership_advantage, 3)   # 2 Phi(1/2) - 1
    0.383
    >>> 0.2 < gains.true_positives(0.05) < 0.28   # Phi(Phi^-1(0.05) + 1) = 0.26
    True
    >>> gains.identification(candidates=10) < 0.41
    True
    """

    pairs: tuple[tuple[float, float], ...]
    about: str

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError("pairs must not be empty: a profile has a point at least")

    @property
    def membership_advantage(self) -> float:
        """The largest difference of true and false positives of any test."""
        return min(1.0, *(_advantage(e, d) for e, d in self.pairs))

    def true_positives(self, false_positives: float) -> float:
        """The most true positives of a membership test with so many false ones."""
        validate.probability(false_positives=false_positives)
        bounds = [_most(false_positives, e, d) for e, d in self.pairs]
        return min(1.0, *bounds)

    def identification(
        self, *, candidates: int | None = None, blind: float | None = None
    ) -> float:
        """The most success in naming the record, of `candidates` equally likely ones.

        Or of a prior whose best guess succeeds with probability `blind`.
        """
        if (candidates is None) == (blind is None):
            raise TypeError("give either candidates or blind")
        if candidates is not None:
            validate.count(candidates=candidates)
            blind = 1.0 / candidates
        assert blind is not None
        validate.probability(blind=blind)
        return self.true_positives(blind)

    def reconstruction(self, *, within: float, of: float, dimension: int) -> float:
        """The most success in guessing a record to an error of `within`.

        The record is uniform in a ball of radius `of`, in `dimension` dimensions.
        """
        validate.positive(within=within, of=of)
        validate.count(dimension=dimension)
        share = min(1.0, within / of)
        return self.identification(blind=min(1.0, share**dimension * (1.0 + 1e-12)))

    def statement(self) -> str:
        """The bounds in three sentences, for people."""
        cases = [(round(1 / x), self.true_positives(x)) for x in FALSE_POSITIVES]
        found = [(n, printed_up(product_up(n, most))) for n, most in cases]
        (n, first), *others = found
        rest = "".join(f"; with 1 in {n:,} in at most {k} of {n:,}" for n, k in others)
        return (
            f"What any attack can learn about {self.about}: a test with 1 false alarm"
            f" in {n:,} cases is right in at most {first} of {n:,} cases in which it"
            f" should raise the alarm{rest}. The share of right alarms exceeds that of"
            f" false ones by at most {printed_up(self.membership_advantage)}. Whoever"
            " has to pick the true record among 10 equally likely ones succeeds with"
            f" probability at most {printed_up(self.identification(candidates=10))}"
            " (0.1 by guessing), among 1,000 with at most"
            f" {printed_up(self.identification(candidates=1000))} (0.001 by guessing)."
        )

    def to_json(self) -> dict[str, Any]:
        """The main numbers as plain data."""
        return {
            "about": self.about,
            "membership_advantage": self.membership_advantage,
            "true_positives": {str(x): self.true_positives(x) for x in FALSE_POSITIVES},
            "identification": {
                str(m): self.identification(candidates=m) for m in (2, 10, 100, 1000)
            },
        }


def attack_gains(what: Event | Entry | Ledger, unit: Unit | None = None) -> AttackGains:
    """What any attack on an event, an entry or a whole ledger can gain at `unit`.

    For an entry or a ledger the default unit is that of its one budget.
    """
    if isinstance(what, Ledger):
        unit = _only(what.terms.budgets, unit)
        readings = Readings(what)
        groups = [group for group in readings.groups if _read_at(unit, group)]
        pairs = _pairs_of_ledger(readings, groups, unit, what.terms.maps)
        everything = sum(group.entries for group in readings.groups)
        missing = everything - sum(group.entries for group in groups)
        return AttackGains(pairs, unit.describe() + _without(missing, unit))
    if isinstance(what, Entry):
        unit = _only([(p.unit, None) for p in what.promises], unit)
        if what.covered(unit):
            raise NotPriced(
                f"the entry {what.label!r:.80} has no cost of its own at {unit}:"
                " another entry paid for it, so ask for that one or for the whole"
                " ledger"
            )
        event = what.declaration.cost.at(unit, what.maps)
        if what.count > 1:
            event = Repeated(event, what.count)
        distance = what.declaration.sampler_distance * what.count
        return AttackGains(_profile(event, distance), unit.describe())
    if isinstance(what, Event):
        about = "the two datasets" if unit is None else unit.describe()
        return AttackGains(_profile(what, 0.0), about)
    raise TypeError(
        f"what must be an entry, a ledger or an event; got {type(what).__name__}"
    )


def gains_of_entry(entry: Entry) -> tuple[tuple[Unit, AttackGains], ...]:
    """What an attacker gains from an entry, at each unit of its ledger that it covers.

    A unit at which it states no cost, or none of its own, is left out.
    """
    found = []
    for promise in entry.promises:
        try:
            found.append((promise.unit, attack_gains(entry, promise.unit)))
        except (NotCovered, NotPriced):
            continue
    return tuple(found)


def _read_at(unit: Unit, group: Group) -> bool:
    """Whether a reading at the unit has these entries: deletions are read alone."""
    cost = group.declaration.cost
    return (
        cost.covers_erasure() if isinstance(unit, Erasure) else not cost.only_erasure()
    )


def _without(count: int, unit: Unit) -> str:
    """What the bounds leave out, as a reading does, in words."""
    if not count:
        return ""
    entries = "entry" if count == 1 else "entries"
    kind = "not of deletions" if isinstance(unit, Erasure) else "of deletions"
    return f" (but not from {count} {entries} {kind}, without a cost at this unit)"


def _pairs_of_ledger(
    readings: Readings,
    groups: Sequence[Group],
    unit: Unit,
    maps: tuple[LipschitzMap, ...],
) -> tuple[tuple[float, float], ...]:
    """Points of the profile of all entries at once, fixed in advance as in a reading.

    Gaussians and pure epsilons have one in closed form. Of anything else each point is
    a reading, which composes the profiles that are stored with the entries.
    """
    counts: dict[events.Atom, int] = {}
    distance = 0.0
    for group in groups:
        event = group.declaration.cost.at(unit, maps)
        distance = up(distance + group.declaration.sampler_distance * group.count, 2)
        for atom, count in events.atoms(event, group.count).items():
            counts[atom] = counts.get(atom, 0) + count
    if not counts:
        return ((0.0, 0.0),)
    if all(isinstance(atom, events.GaussianEvent) for atom in counts) or (
        len(counts) == 1 and sum(counts.values()) == 1
    ):
        return _profile(events.from_atoms(counts), distance)
    read = [(readings.epsilon(unit, delta), delta) for delta in _DELTAS]
    return _finite([(e, d) for e, d in read if e is not None])


def _only(budgets: Any, unit: Unit | None) -> Unit:
    units = [at for at, _ in budgets]
    if unit is not None:
        return unit
    if len(units) != 1:
        raise TypeError("unit must be given: the ledger has several units")
    only: Unit = units[0]
    return only


@lru_cache(maxsize=4096)
def _profile(event: Event, distance: float) -> tuple[tuple[float, float], ...]:
    """Points of the event's profile, the sampler's distance included."""
    curve = accounting.profile_of(event)
    if curve is not None:
        # The profile that the ledger stores with a sampled plan: its dots are bounds.
        start = max(0, -curve.first)
        last = curve.remove.size - 1
        dots = np.unique(np.linspace(min(start, last), last, _DOTS).astype(int))
        worst = np.maximum(curve.remove, curve.add)
        pairs = [
            (max(0.0, float((curve.first + i) * curve.step)), float(worst[i]))
            for i in dots
        ]
    elif all(isinstance(atom, _CLOSED) for atom in events.atoms(event)):
        end = accounting.price(event, _SMALLEST)
        grid = np.linspace(0.0, end, _POINTS)
        pairs = [(float(e), accounting.delta_of(event, float(e))) for e in grid]
        pairs.append((accounting.price(event, 0.0), 0.0))
    else:
        own = sum(
            atom.delta * count
            for atom, count in events.atoms(event).items()
            if isinstance(atom, events.ApproxDP)
        )
        deltas = [delta for delta in (*_DELTAS, own) if 0.0 < delta < 1.0]
        pairs = [(accounting.price(event, delta), delta) for delta in deltas]
        pairs.append((0.0, accounting.delta_of(event, 0.0)))
    wide = [(e, d + (1.0 + math.exp(min(e, 700.0))) * distance) for e, d in pairs]
    return _finite(wide)


def _finite(pairs: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    kept = tuple((e, min(d, 1.0)) for e, d in pairs if e < 700.0)
    return kept or ((0.0, 1.0),)


def _advantage(epsilon: float, delta: float) -> float:
    """tanh(epsilon / 2) + 2 delta / (e^epsilon + 1), rounded up."""
    return (math.tanh(epsilon / 2.0) + 2.0 * delta / (math.exp(epsilon) + 1.0)) * (
        1.0 + 1e-12
    )


def _most(x: float, epsilon: float, delta: float) -> float:
    first = math.exp(epsilon) * x + delta
    # 1 - e^-epsilon (1 - delta - x), which would cancel where it is tiny.
    second = -math.expm1(-epsilon) + math.exp(-epsilon) * (delta + x)
    return min(first, second) * (1.0 + 1e-12)
