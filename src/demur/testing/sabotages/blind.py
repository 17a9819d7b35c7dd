"""Sabotages of the third round: written when the audits were final, in other places.

None of them was run before all were written. Those that the audits missed say so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from demur.testing.sabotages.patches import Category, Sabotage


def _keeps_more(right: Any) -> Any:
    """Words of a randomised response halved: the own cell is kept twice as often."""

    def respond(self: Any, matrix: Any, words: Any) -> Any:
        halved = np.array(words)
        halved[:, 0] //= 2
        return right(self, matrix, halved)

    return respond


class _OneChild:
    """Streams whose children are all the first one."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    def child(self, number: int) -> Any:
        return self._streams.child(0)


def _one_coordinate(right: Any) -> Any:
    def draw_rows(self: Any, matrix: Any, ids: Any, streams: Any) -> Any:
        return right(self, matrix, ids, _OneChild(streams))

    return draw_rows


def _half_of_each(right: Any) -> Any:
    def noise(promise: Any, each: float, name: str, assumptions: Any) -> Any:
        return right(promise, each / 2.0, name, assumptions)

    return noise


def _exact_score(right: Any) -> Any:
    """The score is charged and its noise drawn, and the exact one is compared."""

    def call(self: Any, outcome: Any, ledger: Any) -> float:
        right(self, outcome, ledger)
        return float(self.value(outcome))

    return call


def _first_budget_alone(right: Any) -> Any:
    def pay(terms: Any, label: str, ways: Any, totals: Any) -> Any:
        before = list(totals)
        spent = right(terms, label, ways, totals)
        totals[1:] = before[1:]
        return spent

    return pay


def _soonest(right: Any) -> Any:
    """Every record is in the first steps, as often as it takes part."""

    def steps(self: Any, n: int, key: Any, start: int) -> Any:
        for step in range(start, self.iterations):
            there = step < self.total_participations
            yield np.arange(n) if there else np.arange(0)

    return steps


def _one_more(right: Any) -> Any:
    def rows(self: Any, order: Any, owned: Any, chosen: Any, start: int) -> Any:
        more = replace(
            self, examples_per_user_per_batch=self.examples_per_user_per_batch + 1
        )
        return right(more, order, owned, chosen, start)

    return rows


def _twice_added(right: Any) -> Any:
    def add_sum(self: Any, params: Any, total: Any, *rest: Any) -> Any:
        once, _ = right(self, params, total, *rest)
        return right(self, params, once, *rest)

    return add_sum


def _live_copy(right: Any) -> Any:
    def show(self: Any, noise: Any, *, sigma: float, grid: Any = None) -> None:
        right(self, np.zeros_like(noise), sigma=sigma, grid=grid)

    return show


def _never_expires(right: Any) -> Any:
    def create(self: Any, *args: Any, **options: Any) -> Any:
        return right(self, *args, **(options | {"days": 3660.0}))

    return create


def _every_key_kept(right: Any) -> Any:
    return lambda body, declaration: True


def _steeper_ball(right: Any) -> Any:
    """A ball's promise read at half its radius."""

    def at(self: Any, unit: Any, *rest: Any) -> Any:
        radius = getattr(unit, "radius", math.inf)
        near = replace(unit, radius=radius / 2.0) if radius < math.inf else unit
        return right(self, near, *rest)

    return at


SABOTAGES = (
    Sabotage(
        "the noise of a published copy left out",
        Category.SCALE,
        "unlearning",
        ("demur.unlearning.models.published:PublishedAnswers.show",),
        _live_copy,
    ),
    Sabotage(
        "a grid response that keeps its cell twice as often",
        Category.LAW,
        "cluster",
        ("demur.mechanisms.grid_response:GridResponse.respond",),
        _keeps_more,
    ),
    Sabotage(
        "one stream for all coordinates of a Laplace report",
        Category.INDEPENDENCE,
        "cluster",
        ("demur.mechanisms.laplace_reports:LaplaceReports.draw_rows",),
        _one_coordinate,
    ),
    Sabotage(
        "a search that compares its scores without their noise",
        Category.ORDER,
        "tuning",
        ("demur.tuning.scores:NoisyScore.__call__",),
        _exact_score,
    ),
    Sabotage(
        "the first of several budgets charged alone",
        Category.ACCOUNTING,
        "accounting",
        ("demur.ledger.rules.admission:pay",),
        _first_budget_alone,
    ),
    Sabotage(
        "reports priced for half the distance they are read at",
        Category.ACCOUNTING,
        "accounting",
        ("demur.core.cost:PureOverBalls.at",),
        _steeper_ball,
    ),
    Sabotage(
        "half of what a record adds to a score",
        Category.SENSITIVITY,
        "tuning",
        ("demur.tuning.scores:_noise",),
        _half_of_each,
    ),
    Sabotage(
        "every further minibatch of a step added twice",
        Category.SENSITIVITY,
        "training",
        ("demur.training.run.steps:Steps.add_sum",),
        _twice_added,
    ),
    Sabotage(
        "an allocation of every record to the first steps",
        Category.SAMPLING,
        "training",
        ("demur.training.batches.selection:RandomAllocationSampling._steps",),
        _soonest,
    ),
    Sabotage(
        "one record more of each person in a batch",
        Category.PERSONS,
        "training",
        ("demur.training.batches.user_selection:UserSelectionStrategy._rows",),
        _one_more,
    ),
    Sabotage(
        "the noise key of every charge kept for a repeat",
        Category.STATE,
        "ledger",
        ("demur.ledger.charging:_repeatable",),
        _every_key_kept,
        quick=False,
        why_not="no release shows it: tests/ledger looks for keys that are left",
    ),
    Sabotage(
        "tokens of the service that last ten years",
        Category.SECRETS,
        "ledger",
        ("demur.serve.access:AccessStore.create",),
        _never_expires,
        quick=False,
        why_not="no release shows it: tests/serve has the days of a token",
    ),
)
