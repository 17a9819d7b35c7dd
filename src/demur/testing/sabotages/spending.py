"""Sabotages of spending: order, accounting, persons."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from demur.core.accounting.events import BestOf, PoissonGaussian, Repeated
from demur.core.entropy import NoiseKey
from demur.core.errors import BudgetExceeded
from demur.testing.sabotages.patches import Category, Sabotage

_METERS = "demur.ledger.rules.meters"
_FILTERS = "demur.ledger.rules.filters"
_PRICES = "demur.core.accounting.prices"


def _noise_first(right: Any) -> Any:
    def release(self: Any, value: Any, *, source: Any = None, **options: Any) -> Any:
        if source is not None:
            self.apply(value, NoiseKey(source.new_key(), private=False))
        return right(self, value, source=source, **options)

    return release


def _released_anyway(right: Any) -> Any:
    def release(self: Any, value: Any, *, ledger: Any = None, **options: Any) -> Any:
        with suppress(BudgetExceeded):
            return right(self, value, ledger=ledger, **options)
        return right(self, value, ledger=None, **options)

    return release


def _one_run(right: Any) -> Any:
    return lambda event, count: event


def _quarter(right: Any) -> Any:
    def amount(self: Any, atom: Any) -> Any:
        found = right(self, atom)
        return None if found is None else found / 4

    return amount


def _times(factor: float) -> Any:
    return lambda right: lambda *args, **options: right(*args, **options) * factor


def _half_spent(right: Any) -> Any:
    def add(totals: Any, spend: Any) -> Any:
        halves = {k: None if v is None else v / 2 for k, v in spend.items()}
        return right(totals, halves)

    return add


def _half_the_steps(right: Any) -> Any:
    def price(event: Any, delta: float, **options: Any) -> Any:
        match event:
            case Repeated(event=PoissonGaussian() as one, count=count) if count > 1:
                event = Repeated(one, count // 2)
        return right(event, delta, **options)

    return price


def _search_as_one_run(right: Any) -> Any:
    def price(event: Any, delta: float, **options: Any) -> Any:
        if isinstance(event, BestOf):
            return max(right(each, delta, **options) for each in event.events)
        return right(event, delta, **options)

    return price


def _one_more_unit(right: Any) -> Any:
    return lambda self, budget: right(self, replace(budget, epsilon=budget.epsilon + 1))


def _price_of_one(right: Any) -> Any:
    return lambda event, records: event


def _one_record(right: Any) -> Any:
    def unit_table(unit: Any, *args: Any, **options: Any) -> Any:
        one = replace(unit, records_per_person=1)
        table, moved = right(one, *args, **options)
        if unit.records_per_person > 1:
            table = replace(table, units=(*table.units, (unit, moved)))
        return table, moved

    return unit_table


def _covers_more(right: Any) -> Any:
    def covers(self: Any, other: Any) -> bool:
        return bool(right(self, replace(other, records_per_person=1)))

    return covers


def _never_full(right: Any) -> Any:
    def draw(self: Any, entry_id: str, count: int, token: str) -> Any:
        del entry_id, count, token
        return 0

    return draw


SABOTAGES = (
    Sabotage(
        "noise before the charge",
        Category.ORDER,
        "ledger",
        ("demur.mechanisms.gaussian:Gaussian.release",),
        _noise_first,
    ),
    Sabotage(
        "a declined release is released all the same",
        Category.ORDER,
        "ledger",
        ("demur.mechanisms.gaussian:Gaussian.release",),
        _released_anyway,
    ),
    Sabotage(
        "a reservation priced as one run",
        Category.ACCOUNTING,
        "accounting",
        ("demur.ledger.rules.admission:Repeated",),
        _one_run,
        copies=False,
    ),
    Sabotage(
        "a filter that counts a quarter of mu squared",
        Category.ACCOUNTING,
        "accounting",
        (f"{_METERS}:GaussianMeter.amount",),
        _quarter,
    ),
    Sabotage(
        "half of each charge added to the totals",
        Category.ACCOUNTING,
        "accounting",
        (f"{_FILTERS}:add",),
        _half_spent,
    ),
    Sabotage(
        "0.9 of a Gaussian's epsilon",
        Category.ACCOUNTING,
        "accounting",
        ("demur.core.accounting.gaussian:gaussian_epsilon",),
        _times(0.9),
    ),
    Sabotage(
        "a budget that holds a tenth more mu",
        Category.ACCOUNTING,
        "accounting",
        ("demur.core.accounting.gaussian:gaussian_mu",),
        _times(1.1),
    ),
    Sabotage(
        "half of a pure release's mu",
        Category.ACCOUNTING,
        "accounting",
        ("demur.core.accounting.gdp:mu_of_pure",),
        _times(0.5),
    ),
    Sabotage(
        "sampled steps priced at half their number",
        Category.ACCOUNTING,
        "accounting",
        (f"{_PRICES}:price",),
        _half_the_steps,
    ),
    Sabotage(
        "a search priced as one run",
        Category.ACCOUNTING,
        "accounting",
        (f"{_PRICES}:price",),
        _search_as_one_run,
    ),
    Sabotage(
        "a Renyi filter that holds one epsilon more",
        Category.ACCOUNTING,
        "accounting",
        (f"{_METERS}:RenyiMeter.capacity",),
        _one_more_unit,
    ),
    Sabotage(
        "a reservation that never ends",
        Category.ACCOUNTING,
        "accounting",
        ("demur.ledger.journal:Journal.draw",),
        _never_full,
    ),
    Sabotage(
        "k records of a person at the price of one",
        Category.PERSONS,
        "accounting",
        ("demur.core.accounting.events:for_group",),
        _price_of_one,
    ),
    Sabotage(
        "a unit of one record that covers persons of several",
        Category.PERSONS,
        "accounting",
        ("demur.core.adjacency:_Unit.covers",),
        _covers_more,
    ),
    Sabotage(
        "a head's sensitivity for one record, where a person has several",
        Category.PERSONS,
        "convex",
        ("demur.convex.sensitivity.curves:unit_table",),
        _one_record,
    ),
)
