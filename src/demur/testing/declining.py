"""A ledger that declines leaves no trace, neither in itself nor in who asked."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from demur.core.errors import DemurError
from demur.testing.errors import ContractBroken
from demur.testing.ledgers import TIGHT, check_order, declined, untouched
from demur.testing.result import require
from demur.testing.subject import Subject


def declining_leaves_no_trace(subject: Subject) -> None:
    """No entry, no total, no tip, no key; and what asked is as it was before."""
    if subject.costs_nothing:
        return  # no ledger is too small for it
    ledger, made = subject.ledger(TIGHT), subject.make()
    before = state(made)
    with untouched(ledger, "a declined release"):
        error = _refusal(subject, ledger, made)
    require(
        "othing was" in str(error),
        f"the refusal does not say that nothing was spent: {error}",
    )
    if subject.keeps_data:
        return  # it goes on living: what it learned is not what was declined
    changed = sorted(_changes(before, state(made)))
    require(not changed, f"a declined release changed {', '.join(changed)}")
    require(
        not _fitted(made), "after a declined release it says that it has been fitted"
    )


def a_declined_release_can_be_made_in_a_larger_ledger(subject: Subject) -> None:
    """The same object, refused once, releases where there is room."""
    if subject.costs_nothing:
        return
    made = subject.make()
    _refusal(subject, subject.ledger(TIGHT), made)
    ledger = subject.ledger()
    subject.run(ledger, made=made)
    require(len(ledger.entries()) >= 1, "the release in a larger ledger wrote no entry")


def the_charge_comes_before_the_noise(subject: Subject) -> None:
    """Charge, key, commit, in this order, for every entry."""
    ledger = subject.sample.ledger
    require(ledger.log, "nothing was charged")
    check_order(ledger)
    taken = {entry for what, entry in ledger.log if what == "key"}
    if not subject.keeps_data:
        done = {entry for what, entry in ledger.log if what == "commit"}
        require(taken <= done, "an entry whose noise was drawn was never committed")
    require(ledger.verify().ok, "the ledger does not verify")


CONTRACTS = (
    declining_leaves_no_trace,
    a_declined_release_can_be_made_in_a_larger_ledger,
    the_charge_comes_before_the_noise,
)


def state(made: Any) -> dict[str, Any]:
    """The attributes of an object, without the ledger and what it may compute anew."""
    cached = {
        name
        for cls in type(made).__mro__
        for name, value in vars(cls).items()
        if isinstance(value, cached_property)
    }
    left_out = cached | {"ledger", "source"}
    held = getattr(made, "__dict__", {})
    return {name: value for name, value in held.items() if name not in left_out}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        name
        for name in before.keys() | after.keys()
        if before.get(name, before) is not after.get(name, before)
    ]


def _fitted(made: Any) -> bool:
    asked = getattr(made, "__sklearn_is_fitted__", None)
    if callable(asked):
        return bool(asked())
    if not hasattr(made, "get_params"):
        return False
    return any(name.endswith("_") and name[0] != "_" for name in vars(made))


def _refusal(subject: Subject, ledger: Any, made: Any) -> DemurError:
    try:
        subject.run(ledger, made=made)
    except DemurError as error:
        require(declined(error), f"not a refusal: {error!r}")
        return error
    raise ContractBroken(
        f"a ledger with epsilon {TIGHT:g} did not decline: the release was not charged"
    )
