"""Filters: when a ledger declines, and why that is a theorem.

Entries are chosen adaptively: the next mechanism may depend on what was released
before. A filter is a rule, fixed when the ledger is opened, that stops the sequence
before its promise would break, whatever the choices were.

**Meters.** Write L for the privacy loss after the entries so far and
h(x) = max(0, 1 - e^-x), so that delta at epsilon is E[h(L - epsilon)].

- `GaussianMeter`: stop before sum mu_i^2 exceeds mu*^2, where mu* is the largest mu
  of (epsilon, delta). Given the past, each entry is dominated by a Gaussian pair, so
  L is a drifted Brownian motion at the adapted time t = sum mu_i^2 <= mu*^2. Now
  Z = e^-L is a martingale and z -> max(0, 1 - e^epsilon z) is convex, so
  E[h(L - epsilon)] never falls in t: its value at the stop is at most the one at
  mu*^2, which is delta. (Koskela, Tobaben, Honkela 2023; Smith and Thakurta 2022.)
  A pure epsilon enters with the mu of `gdp.mu_of_pure`, which dominates it.
- `RenyiMeter(order)`: stop before the Renyi divergences at one fixed order add up to
  more than the conversion to (epsilon, delta) allows. (Feldman and Zrnic 2021.)
- blocks: epsilons add up and deltas add up. (Rogers, Roth, Ullman, Vadhan 2016;
  Whitehouse, Ramdas, Rogers, Wu 2023.)

**Why not the best of several.** Let two rules both promise delta. A sequence that
looks at L half-way, and then goes on under the rule that suits what it saw, collects
E[max(., .)] of the two conditional values, which exceeds the larger expectation: delta
is overdrawn. The same holds for a delta or an epsilon that is moved from one rule to
another on the way. Hence:

- several meters share delta: with k of them each is opened at delta / k, and the ledger
  stops when the last one is used up. At the stop some meter j is still good, so
  E[h] <= sum_j E[h; j good] <= k * delta / k.
- what a Gaussian or Renyi meter cannot price (a subsampled plan) enters as a block
  (eps_i, delta_i), priced in advance, and blocks have an account of their own: a
  share of epsilon and delta set aside when the ledger is opened. Blocks add up,
  and with L_blocks <= eps_b outside an event of mass delta_b,
  E[h(L + L_blocks - eps)] <= E[h(L - (eps - eps_b))] + delta_b: the two promises add.
- samplers are not ideal: a share of 2^-20 of delta is set aside for their statistical
  distances eta, at most sum eta <= share / (1 + e^epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

from demur.core import accounting, validate
from demur.core.accounting import events, gaussian, gdp, renyi
from demur.core.accounting.events import (
    ApproxDP,
    Atom,
    Event,
    Gaussian,
    PoissonGaussian,
    Pure,
)
from demur.core.errors import NotPriced
from demur.core.rounding import down, float_down, float_up, up
from demur.ledger.budget import Budget

# What an account holds: an exact sum. None is a meter that met an event it cannot
# price: used up for good.
Amount: TypeAlias = Fraction | None
Amounts: TypeAlias = dict[str, Amount]

BLOCK_EPSILON, BLOCK_DELTA, SAMPLERS = "block epsilon", "block delta", "samplers"
_DEFAULT_BLOCKS = 8  # Blocks that fit into delta when nobody says otherwise.


@dataclass(frozen=True)
class GaussianMeter:
    """The sum of mu^2."""

    @property
    def account(self) -> str:
        """The name of what it adds up."""
        return "mu squared"

    @property
    def words(self) -> str:
        """The meter in a few words."""
        return "gaussian (squares of mu add up)"

    def capacity(self, budget: Budget) -> Fraction:
        """The largest sum that keeps the budget."""
        if budget.delta <= 0.0:
            return Fraction(0)
        return Fraction(gaussian.gaussian_mu(budget.epsilon, budget.delta)) ** 2

    def amount(self, atom: Atom) -> Fraction | None:
        """What one event adds."""
        match atom:
            case Gaussian(multiplier=z):
                return accounting.inverse_square_up(z)
            case PoissonGaussian(probability=1.0):
                return accounting.inverse_square_up(atom.whole_multiplier)
            case Pure(epsilon=0.0) | PoissonGaussian(probability=0.0):
                return Fraction(0)
            case Pure(epsilon=epsilon):
                return Fraction(gdp.mu_of_pure(epsilon)) ** 2
        return None

    def epsilon(self, total: Fraction, delta: float) -> float:
        """What a sum means, as an epsilon."""
        if not total:
            return 0.0
        mu = up(math.sqrt(total), 2) if total < 10**300 else math.inf
        if delta <= 0 or math.isinf(mu):
            return math.inf
        return gaussian.gaussian_epsilon(mu, delta)


@dataclass(frozen=True)
class RenyiMeter:
    """The sum of Renyi divergences at one order."""

    order: int

    def __post_init__(self) -> None:
        validate.count(order=self.order)
        if not 2 <= self.order <= 1024:
            raise ValueError(f"order must be from 2 to 1024; got {self.order}")

    @property
    def account(self) -> str:
        """The name of what it adds up."""
        return f"renyi {self.order}"

    @property
    def words(self) -> str:
        """The meter in a few words."""
        return f"rdp (Renyi divergences of order {self.order} add up)"

    def capacity(self, budget: Budget) -> Fraction:
        """The largest sum that keeps the budget."""
        if budget.delta <= 0.0:
            return Fraction(0)
        a, delta = self.order, budget.delta
        found = budget.epsilon - math.log1p(-1.0 / a) + math.log(delta * a) / (a - 1)
        return Fraction(max(0.0, down(found - 1e-12 * (1 + abs(found)))))

    def amount(self, atom: Atom) -> Fraction | None:
        """What one event adds."""
        if atom == Pure(0.0):
            return Fraction(0)
        found = renyi.divergence(atom, self.order)
        if found is None or math.isinf(found):
            return None
        # The square of a tiny epsilon underflows; what was spent is never nothing.
        return Fraction(max(found, math.ulp(0.0)))

    def epsilon(self, total: Fraction, delta: float) -> float:
        """What a sum means, as an epsilon."""
        if not total:
            return 0.0
        if delta <= 0 or total > 10**300:
            return math.inf
        return renyi.to_epsilon(up(float(total)), self.order, delta)


Meter: TypeAlias = GaussianMeter | RenyiMeter


@dataclass(frozen=True)
class Filter:
    """The rule of a ledger: meters that share delta, and a share kept for blocks.

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
        if self.meters and not any(shares(self, budget).capacities.values()):
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
                return cls(tuple(_meter(name) for name in names), float(blocks))
        raise ValueError(f"not a filter: {validate.shorten(data)}")

    def __str__(self) -> str:
        if not self.meters:
            return "pure (epsilons and deltas add up)"
        names = " or ".join(meter.words for meter in self.meters)
        kept = f", {self.blocks:.0%} kept for blocks" if self.blocks else ""
        return f"{names}{kept}"


def _meter(name: object) -> Meter:
    if name == "mu squared":
        return GaussianMeter()
    if isinstance(name, str) and name.startswith("renyi "):
        return RenyiMeter(int(name.removeprefix("renyi ")))
    raise ValueError(f"not a meter: {str(name)[:40]}")


def best_order(budget: Budget) -> int:
    """The integer order at which a Renyi filter admits most Gaussian releases."""
    if budget.delta <= 0:
        raise ValueError(f"an 'rdp' filter needs a positive delta; got {budget}")
    return max(
        range(2, 1025),
        key=lambda a: RenyiMeter(a).capacity(budget) / a,
    )


@dataclass(frozen=True)
class Shares:
    """A budget, divided once and for all among meters, blocks and samplers."""

    meter_budget: Budget | None
    capacities: Mapping[str, Fraction]
    block_epsilon: Fraction
    block_delta: Fraction
    samplers: Fraction


@lru_cache(maxsize=256)
def shares(rule: Filter, budget: Budget) -> Shares:
    """How `rule` divides `budget`; every rounding is downwards."""
    ideal = gaussian.ideal_delta(budget.delta)
    kept = Fraction(budget.delta) - Fraction(ideal)
    for_samplers = Fraction(0)
    if kept > 0 and budget.epsilon < 700:
        share = down(float(kept) / (1 + math.exp(budget.epsilon)), 4)
        for_samplers = Fraction(max(0.0, share))
    blocks = Fraction(rule.blocks)
    block_epsilon = Fraction(budget.epsilon) * blocks
    block_delta = Fraction(ideal) * blocks
    if not rule.meters:
        return Shares(None, {}, block_epsilon, block_delta, for_samplers)
    rest = 1 - blocks
    meter_epsilon = float_down(Fraction(budget.epsilon) * rest)
    meter_delta = float_down(Fraction(ideal) * rest / len(rule.meters))
    meter_budget = Budget(meter_epsilon, meter_delta)
    capacities = {m.account: m.capacity(meter_budget) for m in rule.meters}
    return Shares(meter_budget, capacities, block_epsilon, block_delta, for_samplers)


def spends(
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
        raise NotPriced(
            f"{names} has no price under the filter {rule}, and no share was set"
            " aside for blocks: open the ledger with Filter.gaussian(blocks=0.5),"
            " Filter.pure() or Filter.rdp(order). Nothing was spent."
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
        price = accounting.price(events.from_atoms(rest), block_delta)
        if math.isinf(price):
            raise NotPriced(
                f"{events.from_atoms(rest)!r:.120} has no finite price at delta"
                f" {block_delta:g}. Nothing was spent."
            )
        epsilon += Fraction(price)
        delta += Fraction(block_delta)
    return {BLOCK_EPSILON: epsilon, BLOCK_DELTA: delta}


def add(totals: Amounts, spend: Amounts) -> Amounts:
    """The totals after one more spend; exact, and a used-up meter stays used up."""
    after = dict(totals)
    for account, amount in spend.items():
        before = after.get(account, Fraction(0))
        after[account] = None if before is None or amount is None else before + amount
    return after


def fits(rule: Filter, budget: Budget, totals: Amounts) -> bool:
    """Whether the ledger keeps its promise with these totals."""
    share = shares(rule, budget)

    def within(account: str, capacity: Fraction) -> bool:
        total = totals.get(account, Fraction(0))
        return total is not None and total <= capacity

    return (
        within(SAMPLERS, share.samplers)
        and within(BLOCK_EPSILON, share.block_epsilon)
        and within(BLOCK_DELTA, share.block_delta)
        and (
            not rule.meters
            or any(within(account, c) for account, c in share.capacities.items())
        )
    )


def spent_epsilon(rule: Filter, budget: Budget, totals: Amounts) -> float:
    """What the totals mean as one epsilon at the budget's delta (for messages)."""
    share = shares(rule, budget)
    blocks = totals.get(BLOCK_EPSILON) or Fraction(0)
    found = [0.0]
    if rule.meters and share.meter_budget is not None:
        delta = share.meter_budget.delta
        found = [
            math.inf if total is None else meter.epsilon(total, delta)
            for meter in rule.meters
            for total in [totals.get(meter.account, Fraction(0))]
        ]
    return min(found) + float_up(blocks)


def over(rule: Filter, budget: Budget, totals: Amounts) -> str:
    """Which account these totals overdraw, in words."""
    share = shares(rule, budget)
    zero = Fraction(0)
    samplers = totals.get(SAMPLERS) or zero
    if samplers > share.samplers:
        return (
            f"bring the samplers' statistical distances to {float(samplers):.3g} of"
            f" {float(share.samplers):.3g}, which delta alone can pay for"
        )
    delta = totals.get(BLOCK_DELTA) or zero
    if delta > share.block_delta:
        return f"bring delta to {_show(delta, share.block_delta)}"
    blocks = totals.get(BLOCK_EPSILON) or zero
    if blocks > share.block_epsilon:
        kept = " set aside for blocks" if rule.meters else ""
        return f"bring epsilon to {_show(blocks, share.block_epsilon)}{kept}"
    assert share.meter_budget is not None
    without = totals | {BLOCK_EPSILON: zero}
    epsilon = spent_epsilon(rule, budget, without)
    room = share.meter_budget.epsilon
    kept = f" ({budget.epsilon:g} less what is kept for blocks)" if rule.blocks else ""
    return f"bring epsilon to {_show(epsilon, room)}{kept}"


def _show(spent: float | Fraction, room: float | Fraction) -> str:
    """ "spent of room", with enough digits that the two do not look equal."""
    spent, room = float_up(Fraction(spent)) if spent < math.inf else spent, float(room)
    if not math.isfinite(spent):
        return f"infinity of {room:.6g}"
    for digits in (4, 6, 10):
        if f"{spent:.{digits}g}" != f"{room:.{digits}g}":
            return f"{spent:.{digits}g} of {room:.6g}"
    return f"{spent!r} of {room!r}"
