"""Default ledgers: in memory, for a release that was given no ledger."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import cache

from demur.core import accounting, validate
from demur.core.accounting.events import Pure
from demur.core.accounting.gaussian import ideal_delta
from demur.core.accounting.samplers import MEANINGLESS
from demur.core.adjacency import Ball, Unit
from demur.core.cost import Cost, Fixed, PureOverBalls
from demur.core.declaration import Declaration
from demur.core.errors import LedgerMismatch, NotPriced, NotPrivate
from demur.core.promise import NO_LIMIT
from demur.core.rounding import up
from demur.ledger.ledger import Ledger
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.filters import Filter

DELTA = 1e-6  # the delta of a release without a ledger, unless the engine has one
_SMALLEST = 2.0**-1022  # the smallest budget


@dataclass(frozen=True)
class Whereabouts:
    """Where a ledger in a file is, for workers of the process that has it open."""

    path: str
    keys: str | None
    ledger_id: str
    process: int


@dataclass(frozen=True)
class LedgerLeftBehind:
    """Takes the place of a ledger in a pickle, so that no release goes uncharged.

    A worker of the process that pickled it (a parallel cross-validation) opens the
    ledger again, if it is in a file and needs no signing key. Anybody else is refused.
    """

    dataset: str
    whereabouts: Whereabouts | None = field(default=None, compare=False)


def left_behind(ledger: object) -> object:
    """What a pickle holds in place of a ledger; anything else is unchanged."""
    if not isinstance(ledger, Ledger):
        return ledger
    path = ledger.file_path()
    if path is None or ledger.terms.signer is not None:
        return LedgerLeftBehind(ledger.terms.dataset)
    keys = None if ledger.keys_path() is None else str(ledger.keys_path())
    where = Whereabouts(str(path), keys, ledger.id, os.getpid())
    return LedgerLeftBehind(ledger.terms.dataset, where)


@cache
def _opened_again(where: Whereabouts) -> Ledger:
    """The ledger of the process that started this one, once in each worker."""
    ledger = Ledger.open(where.path, keys=where.keys)
    if ledger.id != where.ledger_id:
        ledger.close()
        raise LedgerMismatch(
            "another ledger is where this worker's ledger was. Nothing was spent."
        )
    return ledger


def ledger_or_in_memory(
    ledger: object,
    budget: Budget,
    *,
    unit: Unit,
    filter: Filter | str | None = None,
) -> Ledger:
    """The ledger given, or one in memory for this release alone ("not recorded").

    The latter has nothing to enforce: the release was asked for with its own noise. Its
    budget is no limit where epsilon is past any meaning, so that the release runs, and
    its statement says that it gives no meaningful protection.
    """
    known = checked_ledger(ledger)
    if known is None:
        if budget.epsilon > MEANINGLESS:
            budget = Budget(NO_LIMIT, budget.delta)
        return Ledger(budget, unit=unit, dataset="not named", filter=filter)
    return known


def checked_ledger(ledger: object) -> Ledger | None:
    """A ledger or None, as they are; anything else is refused."""
    if isinstance(ledger, LedgerLeftBehind):
        where = ledger.whereabouts
        if where is not None and where.process == os.getppid():
            return _opened_again(where)
        raise NotPrivate(
            "this object was copied to another process or loaded from a file, and its"
            f" ledger {ledger.dataset!r} stayed behind. Set ledger= to the opened"
            " ledger, or to None for a release that is not recorded. Nothing was spent."
        )
    if ledger is not None and not isinstance(ledger, Ledger):
        raise TypeError(
            f"ledger must be a Ledger or None; got {type(ledger).__name__}."
            " Nothing was spent."
        )
    return ledger


def ledger_for(
    ledger: object, declaration: Declaration, unit: Unit | None = None
) -> Ledger:
    """The ledger given, or one in memory whose budget this one declaration uses up.

    Its unit is `unit`, by default the first that the declaration is stated at.
    """
    if not isinstance(declaration, Declaration):
        raise TypeError(
            "declaration must be a Declaration, as a mechanism's declaration() returns;"
            f" got {validate.shorten(declaration)}. Nothing was spent."
        )
    if ledger is not None:
        return ledger_or_in_memory(ledger, Budget(1.0), unit=_first(declaration.cost))
    at = _first(declaration.cost) if unit is None else unit
    try:
        budget = whole_budget(declaration, at)
    except NotPriced:
        budget = Budget(NO_LIMIT, DELTA)
    filter = None if budget.delta else "pure"
    return ledger_or_in_memory(None, budget, unit=at, filter=filter)


def whole_budget(declaration: Declaration, unit: Unit) -> Budget:
    """The budget that this one declaration uses up."""
    event = declaration.cost.at(unit)
    if isinstance(event, Pure):
        return Budget(max(event.epsilon, _SMALLEST))
    epsilon = up(accounting.price(event, ideal_delta(DELTA)), 4)
    if not math.isfinite(epsilon):
        raise NotPriced(
            f"{declaration.name!r} adds too little noise for any epsilon at delta"
            f" {DELTA:g}. Add more noise. Nothing was spent."
        )
    return Budget(epsilon, DELTA)


def _first(cost: Cost) -> Unit:
    """The first unit of a cost; of a curve the ball where it saturates, or of 1."""
    term = cost.basic_terms()[0]
    if isinstance(term, Fixed):
        return term.unit
    curve = term.distance if isinstance(term, PureOverBalls) else term.sensitivity
    last = curve.knots[-1][0]
    radius = last if curve.saturates else min(1.0, last)
    return Ball(radius or 1.0, space=term.space)
