"""Contracts of declined charges: ledger and subject stay unchanged."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from demur.core.errors import DemurError
from demur.testing.errors import ContractBroken
from demur.testing.ledgers import TIGHT, check_order, declined, unchanged
from demur.testing.result import require
from demur.testing.subject import Subject


def declining_leaves_no_trace(subject: Subject) -> None:
    """A declined release changes neither the ledger nor the object that asked."""
    if subject.costs_nothing:
        return  # no ledger is too small for it
    ledger, spender = subject.ledger(TIGHT), subject.make()
    before = state(spender)
    with unchanged(ledger, "a declined release"):
        error = _refusal(subject, ledger, spender)
    require(
        "othing was" in str(error),
        f"the refusal does not say that nothing was spent: {error}",
    )
    if subject.keeps_data:
        return  # a live model has learned, which was not declined
    changed = sorted(_changes(before, state(spender)))
    require(not changed, f"a declined release changed {', '.join(changed)}")
    require(not _fitted(spender), "after a declined release it counts as fitted")


def a_declined_release_can_be_made_in_a_larger_ledger(subject: Subject) -> None:
    """The same object, declined once, can release from a larger ledger."""
    if subject.costs_nothing:
        return
    spender = subject.make()
    _refusal(subject, subject.ledger(TIGHT), spender)
    ledger = subject.ledger()
    subject.run(ledger, spender=spender)
    require(len(ledger.entries()) >= 1, "the release in a larger ledger wrote no entry")


def the_charge_comes_before_the_noise(subject: Subject) -> None:
    """Charge, key, commit, in this order, for every entry."""
    ledger = subject.sample.ledger
    require(ledger.log, "nothing was charged")
    check_order(ledger)
    taken = {entry for step, entry in ledger.log if step == "key"}
    if not subject.keeps_data:
        done = {entry for step, entry in ledger.log if step == "commit"}
        require(taken <= done, "an entry whose noise was drawn was never committed")
    require(ledger.verify().ok, "the ledger does not verify")


CONTRACTS = (
    declining_leaves_no_trace,
    a_declined_release_can_be_made_in_a_larger_ledger,
    the_charge_comes_before_the_noise,
)


def state(spender: Any) -> dict[str, Any]:
    """The attributes of an object, without the ledger and cached properties."""
    cached = {
        name
        for cls in type(spender).__mro__
        for name, value in vars(cls).items()
        if isinstance(value, cached_property)
    }
    left_out = cached | {"ledger", "source"}
    attributes = getattr(spender, "__dict__", {})
    return {name: value for name, value in attributes.items() if name not in left_out}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        name
        for name in before.keys() | after.keys()
        if before.get(name, before) is not after.get(name, before)
    ]


def _fitted(spender: Any) -> bool:
    is_fitted = getattr(spender, "__sklearn_is_fitted__", None)
    if callable(is_fitted):
        return bool(is_fitted())
    if not hasattr(spender, "get_params"):
        return False
    return any(name.endswith("_") and name[0] != "_" for name in vars(spender))


def _refusal(subject: Subject, ledger: Any, spender: Any) -> DemurError:
    try:
        subject.run(ledger, spender=spender)
    except DemurError as error:
        require(declined(error), f"not a refusal: {error!r}")
        return error
    raise ContractBroken(
        f"a ledger with epsilon {TIGHT:g} did not decline: the release was not charged"
    )
