"""Privacy filters: when a ledger declines a charge, and the theorems behind it.

Entries are chosen adaptively: the next mechanism may depend on what was released
before. A filter is a rule, fixed when the ledger is opened, that stops the sequence
before its promise would break, whatever the choices were. It adds up

- meters (`ledger.rules.meters`): sums of mu^2, or of Renyi divergences at one order;
- blocks: epsilons add up and deltas add up. (Rogers, Roth, Ullman, Vadhan 2016;
  Whitehouse, Ramdas, Rogers, Wu 2023.)

**Why not the best of several.** Let two rules both promise delta, and let L be the
privacy loss so far. A sequence that looks at L half-way, and then goes on under the
rule that suits what it saw, collects E[max(., .)] of the two conditional values, which
exceeds the larger expectation: delta is overdrawn. The same holds for a delta or an
epsilon that is moved from one rule to another on the way. With
h(x) = max(0, 1 - e^-x), so that delta at epsilon is E[h(L - epsilon)]:

- several meters share delta: with k of them each is opened at delta / k, and the ledger
  stops when the last one is used up. At the stop some meter j is still good, so
  E[h] <= sum_j E[h; j good] <= k * delta / k.
- what no meter can price (a subsampled plan) enters as a block (eps_i, delta_i),
  priced in advance, and blocks have an account of their own: a share of epsilon and
  delta set aside when the ledger is opened. Blocks add up, and with
  L_blocks <= eps_b outside an event of mass delta_b,
  E[h(L + L_blocks - eps)] <= E[h(L - (eps - eps_b))] + delta_b: the two promises add.
- samplers are not ideal: a share of 2^-20 of delta is set aside for their statistical
  distances. How much it pays for depends on what was used (`accounting.samplers`).

**Several at once.** Runs of a reservation may be drawn between other charges, by other
processes. All of a reservation is charged before its first run. A meter adds up run by
run, so the runs in the order in which they were drawn are one adaptive sequence, and
what was charged by then is never less than what was drawn. A block is priced whole, as
one interactive mechanism: such mechanisms compose concurrently as they do one after
another (Lyu 2022; Vadhan, Zhang 2023), also when each is chosen adaptively (Haney,
Shoemate, Tian, Vadhan, Vyrros, Xu, Zhang 2023).

**A larger budget never declines what a smaller one allows.** For one filter and delta
every capacity grows with epsilon, and the room for samplers does not depend on it. So
totals that fit a budget fit every larger one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

from demur.core import accounting, validate
from demur.core.accounting import events, gaussian, samplers
from demur.core.accounting.events import ApproxDP, Atom, BestOf, Event, Pure
from demur.core.errors import NotPriced
from demur.core.rounding import (
    down,
    float_down,
    float_up,
    printed_down,
    printed_up,
)
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.meters import (
    GaussianMeter,
    Meter,
    RenyiMeter,
    best_order,
    meter_named,
)

# What an account holds: an exact sum. None is a meter that could not price an event:
# it is used up for good.
Amount: TypeAlias = Fraction | None
Amounts: TypeAlias = dict[str, Amount]

BLOCK_EPSILON, BLOCK_DELTA, SAMPLERS = "block epsilon", "block delta", "samplers"
_DEFAULT_BLOCKS = 8  # Blocks that fit into delta when nobody says otherwise.


@dataclass(frozen=True)
class Filter:
    """The rule of a ledger: meters that share delta, and a share for blocks.

    With no meters the filter is basic: the whole budget is for blocks, and a pure
    epsilon is a block without delta.
    """

    meters: tuple[Meter, ...] = ()
    blocks: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "meters", tuple(self.meters))
        validate.probability(blocks=self.blocks)
        object.__setattr__(self, "blocks", float(self.blocks))
        if not self.meters and self.blocks != 1.0:
            raise ValueError(
                "blocks must be 1 for a filter without meters: nothing else spends"
            )
        if self.meters and self.blocks >= 1.0:
            raise ValueError(
                f"blocks must leave something to the meters; got {self.blocks}"
            )
        if len({meter.account for meter in self.meters}) != len(self.meters):
            raise ValueError("meters must differ from each other")

    @classmethod
    def gaussian(cls, *, blocks: float = 0.0) -> Filter:
        """For Gaussian releases; `blocks` is the share set aside for plans."""
        return cls((GaussianMeter(),), blocks)

    @classmethod
    def pure(cls) -> Filter:
        """For pure epsilons and for (epsilon, delta) blocks: both simply add up."""
        return cls()

    @classmethod
    def rdp(cls, order: int | Iterable[int], *, blocks: float = 0.0) -> Filter:
        """For many subsampled plans; several orders share delta equally."""
        orders = (order,) if isinstance(order, int) else tuple(order)
        return cls(tuple(RenyiMeter(a) for a in orders), blocks)

    @classmethod
    def named(cls, name: str, budget: Budget) -> Filter:
        """The filter called "gaussian", "pure" or "rdp" (order chosen for `budget`)."""
        if name == "rdp":
            return cls.rdp(best_order(budget))
        if name not in ("gaussian", "pure"):
            raise ValueError(
                f"filter must be 'gaussian', 'pure', 'rdp' or a Filter; got {name!r}"
            )
        return cls.gaussian() if name == "gaussian" else cls.pure()

    def check(self, budget: Budget) -> None:
        """Refuse a budget under which every meter's capacity is zero."""
        if budget.unlimited or not self.meters:
            return
        if not any(shares(self, budget).capacities.values()):
            raise ValueError(
                f"a {self} filter can spend nothing of {budget}: use filter='pure',"
                " or another order, or a larger delta"
            )

    def to_json(self) -> dict[str, Any]:
        """The filter as plain data."""
        return {
            "meters": [meter.account for meter in self.meters],
            "blocks": self.blocks,
        }

    @classmethod
    def from_json(cls, data: object) -> Filter:
        """The filter that `to_json` wrote; anything else is a ValueError."""
        match data:
            case {"meters": list(names), "blocks": float(blocks) | int(blocks)}:
                return cls(tuple(meter_named(name) for name in names), float(blocks))
        raise ValueError(f"not a filter: {validate.shorten(data)}")

    def __str__(self) -> str:
        if not self.meters:
            return "pure (epsilons and deltas add up)"
        names = " or ".join(meter.words for meter in self.meters)
        blocks = f", {self.blocks:.0%} set aside for blocks" if self.blocks else ""
        return f"{names}{blocks}"


@dataclass(frozen=True)
class Shares:
    """A budget, divided once and for all among meters and blocks."""

    meter_budget: Budget | None
    capacities: Mapping[str, Fraction]
    block_epsilon: Fraction
    block_delta: Fraction


@lru_cache(maxsize=1024)
def shares(rule: Filter, budget: Budget) -> Shares:
    """How `rule` divides `budget`; every rounding is downwards."""
    ideal = gaussian.ideal_delta(budget.delta)
    blocks = Fraction(rule.blocks)
    block_epsilon = Fraction(budget.epsilon) * blocks
    block_delta = Fraction(ideal) * blocks
    if not rule.meters:
        return Shares(None, {}, block_epsilon, block_delta)
    rest = 1 - blocks
    meter_epsilon = float_down(Fraction(budget.epsilon) * rest)
    meter_delta = float_down(Fraction(ideal) * rest / len(rule.meters))
    meter_budget = Budget(meter_epsilon, meter_delta)
    capacities = {m.account: m.capacity(meter_budget) for m in rule.meters}
    return Shares(meter_budget, capacities, block_epsilon, block_delta)


def capacities(rule: Filter, budget: Budget) -> dict[str, Fraction]:
    """What each account of a budget can hold, exactly."""
    share = shares(rule, budget)
    return {
        BLOCK_EPSILON: share.block_epsilon,
        BLOCK_DELTA: share.block_delta,
        **share.capacities,
    }


def room_for_samplers(rule: Filter, delta: float, totals: Amounts) -> Fraction:
    """The most that the samplers' distances may add up to beside these totals."""
    level = _level(rule, delta, totals)
    return Fraction(0) if level is None else samplers.room(level, delta)


def _level(rule: Filter, delta: float, totals: Amounts) -> float | None:
    """The first level of `samplers.LEVELS` at which these totals hold."""
    each = samplers.level_delta(delta)
    without = totals | {BLOCK_DELTA: Fraction(0)}
    splits = {rule, Filter(rule.meters, 0.0)} if rule.meters else {rule}
    if not any(totals.get(m.account, Fraction(0)) != 0 for m in rule.meters):
        splits.add(Filter.pure())
    first = bisect_left(
        samplers.LEVELS,
        True,
        key=lambda level: any(
            _within(split, Budget(level, each), without) for split in splits
        ),
    )
    return samplers.LEVELS[first] if first < len(samplers.LEVELS) else None


def payment_options(
    rule: Filter,
    budget: Budget,
    event: Event,
    sampler_distance: Fraction,
    block_delta: float | None = None,
) -> list[Amounts]:
    """The ways in which `event` may be paid for, the preferred one first.

    Which account pays may be chosen freely, even adaptively: each account keeps its
    own promise, and the promises add up to the budget's.
    """
    atoms = events.atoms(event)
    eta: Amounts = {}
    if sampler_distance:
        eta[SAMPLERS] = sampler_distance
    if budget.unlimited:
        return [eta]
    ways: list[Amounts] = []
    by_meter: Amounts = {m.account: _sum(m, atoms) for m in rule.meters}
    if any(amount is not None for amount in by_meter.values()):
        ways.append(by_meter | eta)
    if rule.blocks:
        try:
            ways.append(_block(rule, budget, event, block_delta) | eta)
        except NotPriced:
            if not ways:
                raise
    if not ways:
        names = ", ".join(sorted({type(atom).__name__ for atom in atoms}))
        renyi = _sum(RenyiMeter(2), atoms) is not None
        others = "Filter.pure() or Filter.rdp(order)" if renyi else "or Filter.pure()"
        raise NotPriced(
            f"{names} has no price under the filter {rule}, and no share was set"
            " aside for blocks: open the ledger with Filter.gaussian(blocks=0.5)"
            f"{', ' if renyi else ' '}{others}. Nothing was spent."
        )
    return ways


def _sum(meter: Meter, atoms: Mapping[Atom, int]) -> Fraction | None:
    total = Fraction(0)
    for atom, count in atoms.items():
        amount = meter.amount(atom)
        if amount is None:
            return None
        total += amount * count
    return total


def _block(
    rule: Filter, budget: Budget, event: Event, block_delta: float | None
) -> Amounts:
    """One (epsilon, delta) block; what is pure already, or a pair, keeps its own."""
    epsilon, delta = Fraction(0), Fraction(0)
    rest: dict[Atom, int] = {}
    for atom, count in events.atoms(event).items():
        match atom:
            case Pure(epsilon=e):
                epsilon += Fraction(e) * count
            case ApproxDP(epsilon=e, delta=d):
                epsilon += Fraction(e) * count
                delta += Fraction(d) * count
            case BestOf() if not shares(rule, budget).block_delta:
                alone = accounting.price(atom, 0.0)  # finite if its runs are pure
                if math.isinf(alone):
                    rest[atom] = count
                else:
                    epsilon += Fraction(alone) * count
            case _:
                rest[atom] = count
    if rest:
        share = shares(rule, budget).block_delta
        if not share:
            raise NotPriced(
                f"{events.from_atoms(rest)!r:.120} has no price at delta 0: the budget"
                " needs a delta. Nothing was spent."
            )
        if block_delta is None:
            block_delta = down(float(share / _DEFAULT_BLOCKS))
        validate.open_probability(block_delta=block_delta)
        price = _price(events.from_atoms(rest), block_delta)
        if math.isinf(price):
            raise NotPriced(
                f"{events.from_atoms(rest)!r:.120} has no finite price at delta"
                f" {block_delta:g}. Nothing was spent."
            )
        epsilon += Fraction(price)
        delta += Fraction(block_delta)
    return {BLOCK_EPSILON: epsilon, BLOCK_DELTA: delta}


@lru_cache(maxsize=256)
def _price(event: Event, delta: float) -> float:
    """A price that takes long: a job charges the same plan every night."""
    return accounting.price(event, delta)


def add(totals: Amounts, spend: Amounts) -> Amounts:
    """The exact totals after one more spend; a used-up meter stays used up."""
    after = dict(totals)
    for account, amount in spend.items():
        before = after.get(account, Fraction(0))
        after[account] = None if before is None or amount is None else before + amount
    return after


def fits(rule: Filter, budget: Budget, totals: Amounts) -> bool:
    """Whether the ledger keeps its promise with these totals."""
    return budget.unlimited or (
        _within(rule, budget, totals) and _enough_for_samplers(rule, budget, totals)
    )


def _within(rule: Filter, budget: Budget, totals: Amounts) -> bool:
    """Whether blocks and meters keep their promises, with ideal samplers."""
    share = shares(rule, budget)

    def within(account: str, capacity: Fraction) -> bool:
        total = totals.get(account, Fraction(0))
        return total is not None and total <= capacity

    return (
        within(BLOCK_EPSILON, share.block_epsilon)
        and within(BLOCK_DELTA, share.block_delta)
        and (
            not rule.meters
            or any(within(account, c) for account, c in share.capacities.items())
        )
    )


def _enough_for_samplers(rule: Filter, budget: Budget, totals: Amounts) -> bool:
    needed = totals.get(SAMPLERS) or Fraction(0)
    return not needed or needed <= room_for_samplers(rule, budget.delta, totals)


def spent_epsilon(rule: Filter, budget: Budget, totals: Amounts) -> float:
    """What the totals mean as one epsilon at the budget's delta (for messages)."""
    if budget.unlimited:
        return math.inf if totals else 0.0
    share = shares(rule, budget)
    blocks = totals.get(BLOCK_EPSILON) or Fraction(0)
    by_meter = [0.0]
    if rule.meters and share.meter_budget is not None:
        delta = share.meter_budget.delta
        by_meter = [
            math.inf if total is None else meter.epsilon(total, delta)
            for meter in rule.meters
            for total in [totals.get(meter.account, Fraction(0))]
        ]
    return min(by_meter) + float_up(blocks)


def too_little_for_samplers(
    rule: Filter, budget: Budget, totals: Amounts
) -> str | None:
    """Why the samplers' distances are too large beside these totals; None if not."""
    if not _within(rule, budget, totals) or _enough_for_samplers(rule, budget, totals):
        return None
    needed = totals[SAMPLERS]
    assert needed is not None
    if needed > samplers.room(samplers.LEVELS[0], budget.delta):
        return (
            f"there is too little of delta {budget.delta:g} for rounding in the noise"
            " sampler. Open the ledger with a larger delta"
        )
    spent = printed_up(spent_epsilon(rule, budget, totals))
    return (
        f"rounding in the noise sampler cannot be paid from delta {budget.delta:g} once"
        f" epsilon {spent} is spent, which protects nobody. Use more noise"
    )


def overdraft_words(rule: Filter, budget: Budget, totals: Amounts) -> str:
    """Which account of blocks or meters these totals overdraw, in words."""
    share = shares(rule, budget)
    zero = Fraction(0)
    delta = totals.get(BLOCK_DELTA) or zero
    if delta > share.block_delta:
        return f"bring delta to {_show(delta, share.block_delta)}"
    blocks = totals.get(BLOCK_EPSILON) or zero
    if blocks > share.block_epsilon:
        aside = " set aside for blocks" if rule.meters else ""
        return f"bring epsilon to {_show(blocks, share.block_epsilon)}{aside}"
    assert share.meter_budget is not None
    without = totals | {BLOCK_EPSILON: zero}
    epsilon = spent_epsilon(rule, budget, without)
    room = share.meter_budget.epsilon
    aside = (
        f" ({printed_down(budget.epsilon)} less the share for blocks)"
        if rule.blocks
        else ""
    )
    return f"bring epsilon to {_show(epsilon, room)}{aside}"


def _show(spent: float | Fraction, room: float | Fraction) -> str:
    """ "spent of room", rounded up and down, so that the two never look equal."""
    spent = float_up(Fraction(spent)) if spent < math.inf else math.inf
    return f"{printed_up(spent)} of {printed_down(float_down(Fraction(room)))}"
