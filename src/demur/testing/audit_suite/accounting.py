"""Audits of prices: every sum of the ledger against a computation of its own.

Prices are upper bounds. Each is compared with a lower bound that shares no code with
the accountant (`audit.reference_accounting`): a price below it is refuted, and what is
left between the two is the power, the factor by which a price could be too small
without being noticed. What is admitted and declined is compared with a second, plain
ledger (`plain_ledger`) on random histories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from demur.audit import AuditResult, Level
from demur.audit import reference_accounting as reference
from demur.core import accounting
from demur.core import cost as costs
from demur.core.accounting.events import (
    AllocatedGaussian,
    BestOf,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.accounting.repetitions import default_repetitions
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit
from demur.core.cost import Cost, Fixed, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration
from demur.core.entropy import Seeded
from demur.core.errors import DemurError
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms import Gaussian
from demur.testing.audit_suite.case import Case, Size, broken
from demur.testing.audit_suite.plain_ledger import histories_differ

ENGINE = "accounting"
_DELTA = 1e-6
_ROUNDING = 1e-6
_UNIT = ReplaceOne()


class Price(NamedTuple):
    """A price of demur's, and what it cannot be smaller than."""

    what: str
    claimed: float
    least: float


def _compared(prices: Iterator[Price], subject: str) -> AuditResult:
    found = list(prices)
    wrong = [p for p in found if p.claimed < p.least * (1.0 - _ROUNDING)]
    # The price with the most room: an error below that factor might pass there.
    loosest = max(p.claimed / p.least if p.least > 0 else math.inf for p in found)
    evidence = f"{len(found)} prices are at least what they must be."
    if wrong:
        evidence = (
            f"The price of {wrong[0].what} is {wrong[0].claimed:.6g}, and it cannot be"
            f" below {wrong[0].least:.6g}."
        )
    return AuditResult(
        subject=subject,
        level=Level.ACCOUNTING,
        method="independent lower bound",
        unit="every unit that was priced",
        claimed=None,
        delta=_DELTA,
        lower_bound=None,
        runs=len(found),
        alpha=0.0,
        refuted=bool(wrong),
        evidence=evidence,
        factor=loosest,
    )


def _ledger(epsilon: float = 8.0, **options: Any) -> Ledger:
    return Ledger(Budget(epsilon, _DELTA), unit=_UNIT, **options)


def _declared(event: Any) -> Declaration:
    return Declaration("a priced event", Cost((Fixed(_UNIT, event),)))


# -- sums ------------------------------------------------------------------------------


def _sums() -> Iterator[Price]:
    """Releases one after another, read off a ledger."""
    ledger, mu2 = _ledger(), 0.0
    for number, sigma in enumerate((3.0, 5.0, 2.5)):
        mechanism = Gaussian(sigma, {_UNIT: 1.0})
        ledger.paid(mechanism, label=f"{number}", source=Seeded(number))
        mu2 += 1.0 / sigma**2
        least = reference.gaussian_epsilon(math.sqrt(mu2), _DELTA)
        yield Price(f"{number + 1} Gaussian releases", ledger.epsilon(), least)
    many = Repeated(Pure(0.1), 40)
    price = accounting.price(many, _DELTA)
    yield Price("40 pure releases", price, reference.pure_epsilon(0.1, 40, _DELTA))
    whole = accounting.price(many, 0.0)
    yield Price("40 pure releases at delta 0", whole, 4.0)


def _persons() -> Iterator[Price]:
    """A person with k records, under each kind of cost."""
    for records in (2, 5):
        unit = ReplaceOne(records_per_person=records)
        near = Ball(0.5, space="cube", records_per_person=records)
        gaussian = Gaussian(8.0, {_UNIT: 1.0}).declaration().cost.at(unit)
        yield Price(
            f"a Gaussian release, {records} records of a person",
            accounting.price(gaussian, _DELTA),
            reference.gaussian_epsilon(records / 8.0, _DELTA),
        )
        pure = Cost((Fixed(_UNIT, Pure(0.3)),)).at(unit)
        least = reference.pure_epsilon(0.3, records, 0.0)
        yield Price(
            f"a pure release, {records} records of a person",
            accounting.price(pure, 0.0),
            least,
        )
        line = PiecewiseLinear.linear(slope=1.0, cap=2.0)
        metric = Cost((PureOverBalls("cube", line, 2.0),)).at(near)
        yield Price(
            f"a report, {records} records of a person moved by 0.5",
            accounting.price(metric, 0.0),
            records * 1.0,
        )


def _reservations() -> Iterator[Price]:
    """All runs of a reservation are paid for before the first is drawn."""
    for count in (4, 16):
        ledger = _ledger()
        mechanism = Gaussian(10.0, {_UNIT: 1.0})
        payment = ledger.paid(
            mechanism, count=count, label="runs", source=Seeded(count)
        )
        least = reference.gaussian_epsilon(math.sqrt(count) / 10.0, _DELTA)
        yield Price(f"{count} reserved runs", ledger.epsilon(), least)
        alone = payment.entry.epsilon(_UNIT, _DELTA)
        yield Price(f"an entry of {count} runs", alone, least)


def _filled(make: Callable[[], Ledger], event: Any, count: int) -> tuple[int, Ledger]:
    """How many charges of `count` runs a ledger admits before it declines."""
    ledger, admitted = make(), 0
    try:
        for number in range(2_000):
            declared = event if isinstance(event, Declaration) else _declared(event)
            ledger.paid(declared, count=count, label=f"{number}", source=Seeded(number))
            admitted += count
    except DemurError:
        return admitted, ledger
    return admitted, ledger


def _filters() -> Iterator[Price]:
    """Charges until the filter declines: what was admitted must fit the budget."""
    budget = 2.0
    for count in (1, 3):
        runs, _ = _filled(lambda: _ledger(budget), GaussianEvent(8.0), count)
        spent = reference.gaussian_epsilon(math.sqrt(max(runs, 1)) / 8.0, _DELTA)
        yield Price(f"a full Gaussian filter, {count} at a time", budget, spent)
    orders = Filter.rdp((8, 16))
    runs, _ = _filled(lambda: _ledger(budget, filter=orders), GaussianEvent(12.0), 1)
    spent = reference.gaussian_epsilon(math.sqrt(max(runs, 1)) / 12.0, _DELTA)
    yield Price("a full Renyi filter", budget, spent)
    runs, _ = _filled(lambda: _ledger(budget, filter="pure"), Pure(0.125), 1)
    yield Price("a full pure filter", budget, 0.125 * runs)
    several: dict[Unit, Budget] = {
        AddOrRemoveOne(): Budget(100.0),
        _UNIT: Budget(budget),
    }
    cost = Cost(tuple(Fixed(unit, Pure(0.125)) for unit in several))
    runs, _ = _filled(
        lambda: Ledger(several, filter="pure"), Declaration("a priced event", cost), 1
    )
    yield Price("the smaller of two budgets", budget, 0.125 * min(runs, 100))


def _sampled() -> Iterator[Price]:
    """Sampled steps, in both directions, alone and from a ledger's stored profile."""
    kinds: dict[Neighbours, tuple[tuple[str, ...], Unit]] = {
        Neighbours.ADD_OR_REMOVE_ONE: (("remove", "add"), AddOrRemoveOne()),
        Neighbours.REPLACE_ONE: (("replace",), ReplaceOne()),
    }
    for neighbours, (directions, unit) in kinds.items():
        for q, z, steps in ((0.1, 1.0, 60), (0.02, 0.8, 300)):
            event = PoissonGaussian(q, z, neighbours)
            least = max(
                reference.sampled_epsilon(
                    reference.SampledStep(q, z, kind), steps, _DELTA
                )
                for kind in directions
            )
            price = accounting.price(Repeated(event, steps), _DELTA)
            yield Price(f"{steps} sampled steps ({neighbours})", price, least)
        declared = Declaration("sampled steps", Cost((Fixed(unit, event),)))
        ledger = Ledger(Budget(50.0, 1e-5), unit=unit, filter=Filter.pure())
        for label in ("one", "two"):
            ledger.paid(declared, count=steps, label=label, source=Seeded(1))
        twice = max(
            reference.sampled_epsilon(
                reference.SampledStep(q, z, kind), 2 * steps, _DELTA
            )
            for kind in directions
        )
        read = ledger.reading(unit, delta=_DELTA).epsilon
        yield Price(f"two plans of {steps} sampled steps", read, twice)
    allocated = accounting.price(AllocatedGaussian(2, 2.0), _DELTA)
    least = reference.allocated_epsilon(2.0, _DELTA)
    yield Price("a record in one of two sums", allocated, least)


def _searches() -> Iterator[Price]:
    """The best of a secret number of runs, the law that a search takes by default."""
    for settings in (3, 20):
        law = default_repetitions(settings)
        for epsilon in (0.2, 1.0):
            price = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
            least = reference.best_of_epsilon(epsilon, law.weights)
            yield Price(f"the best of {settings} settings", price, least)


def _histories(size: Size, seed: int) -> AuditResult:
    """Random histories, put to the ledger and to the plain one."""
    asks, differing = size.of(40), []
    kinds = (("gaussian", 1), ("gaussian", 3), ("pure", 1), ("pure", 2))
    for filter, records in kinds:
        differing += histories_differ(filter, records, asks, seed)
    evidence = f"{len(kinds)} histories of {asks} charges agree with a plain ledger."
    if differing:
        evidence = f"Where a plain ledger differs: {differing[0]}."
    return AuditResult(
        subject="ledger: random histories",
        level=Level.ACCOUNTING,
        method="second implementation",
        unit=_UNIT.describe(),
        claimed=None,
        delta=_DELTA,
        lower_bound=None,
        runs=len(kinds) * asks,
        alpha=0.0,
        refuted=bool(differing),
        evidence=evidence,
    )


_AUDITS: tuple[tuple[str, Callable[[], Iterator[Price]]], ...] = (
    ("sums of releases", _sums),
    ("persons with several records", _persons),
    ("reservations", _reservations),
    ("full filters", _filters),
    ("sampled steps", _sampled),
    ("searches", _searches),
)


def _audited(prices: Callable[[], Iterator[Price]], name: str) -> AuditResult:
    return _compared(prices(), f"accounting: {name}")


def _priced(
    prices: Callable[[], Iterator[Price]], name: str, size: Size, seed: int
) -> AuditResult:
    del size, seed  # nothing is drawn
    return _audited(prices, name)


# -- twins (of places inside the ledger) ----------------------------------------------


def _one_run_paid(size: Size, seed: int) -> AuditResult:
    admission = import_module("demur.ledger.rules.admission")
    with broken(admission, "Repeated", lambda event, count: event):
        return _audited(_filters, "full filters")


def _quarter_of_mu(size: Size, seed: int) -> AuditResult:
    meter = import_module("demur.ledger.rules.meters").GaussianMeter
    right = meter.amount

    def wrong(self: Any, atom: Any) -> Any:
        amount = right(self, atom)
        return None if amount is None else amount / 4

    with broken(meter, "amount", wrong):
        return _histories(size, seed)


def _price_of_one(size: Size, seed: int) -> AuditResult:
    with broken(costs, "for_group", lambda event, records: event):
        return _audited(_persons, "persons")


def cases() -> tuple[Case, ...]:
    """Prices and histories, then twins."""
    correct = tuple(
        Case(ENGINE, name, Level.ACCOUNTING, partial(_priced, prices, name))
        for name, prices in _AUDITS
    )
    twins = (
        ("a reservation priced as one run", _one_run_paid),
        ("a quarter of the squares of mu", _quarter_of_mu),
        ("k records of a person at the price of one", _price_of_one),
    )
    return (
        *correct,
        Case(ENGINE, "random histories", Level.ACCOUNTING, _histories),
        *(Case(ENGINE, "prices", Level.ACCOUNTING, run, what) for what, run in twins),
    )
