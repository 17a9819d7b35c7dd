"""A release without a ledger gets one in memory that it uses up."""

import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Budget,
    BudgetExceeded,
    Declaration,
    Ledger,
    ReplaceOne,
)
from demur.core.accounting.events import Pure
from demur.core.cost import Cost, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.errors import NotPriced, NotPrivate
from demur.ledger import (
    LedgerLeftBehind,
    ledger_for,
    ledger_or_in_memory,
    left_behind,
    whole_budget,
)
from demur.mechanisms import Gaussian
from tests.ledger.kit import UNIT, says

LINE = PiecewiseLinear.linear(2.0)
CAPPED = PiecewiseLinear.linear(2.0, cap=3.0)
UP_TO_HALF = PiecewiseLinear(((0.0, 0.0), (0.5, 1.0)), saturates=False)


def metric(curve):
    return Declaration("a report", Cost((PureOverBalls("cube", curve, 1.0),)))


@pytest.mark.parametrize(
    ("declaration", "unit", "epsilon"),
    [
        (says(Pure(0.5)), UNIT, 0.5),
        (says(Pure(0.5), ReplaceOne()), ReplaceOne(), 0.5),
        (metric(CAPPED), Ball(1.5, space="cube"), 3.0),
        (metric(LINE), Ball(1.0, space="cube"), 2.0),
        (metric(UP_TO_HALF), Ball(0.5, space="cube"), 1.0),
    ],
    ids=["record", "replaced", "capped", "line", "up to a half"],
)
def test_the_ledger_is_for_the_first_unit_and_takes_one_release(
    declaration, unit, epsilon
):
    ledger = ledger_for(None, declaration)
    ((only, budget),) = ledger.terms.budgets
    assert (only, budget) == (unit, Budget(epsilon)) and not ledger.durable
    ledger.charge(declaration, label="x")
    with pytest.raises(BudgetExceeded):
        ledger.charge(declaration, label="y")


def test_a_sensitivity_without_a_cap_is_read_at_radius_one():
    release = Gaussian(4.0, {"records": PiecewiseLinear.linear(1.0)}).release([1.0])
    assert "by at most 1 in the space 'records'" in release.statement()
    assert "Not recorded" in release.statement()


def test_too_little_noise_for_any_epsilon_runs_without_a_limit():
    declaration = Gaussian(1e-200, {AddOrRemoveOne(): 1.0}).declaration()
    entry = ledger_for(None, declaration).charge(declaration, label="x")
    assert "NO MEANINGFUL PROTECTION" in entry.statement()
    with pytest.raises(NotPriced, match="Nothing was spent"):
        whole_budget(declaration, AddOrRemoveOne())


def test_a_ledger_that_is_given_is_used_and_anything_else_refused():
    ledger = Ledger(Budget(1.0), unit=UNIT)
    declaration = says(Pure(0.5))
    assert ledger_for(ledger, declaration) is ledger
    assert ledger_or_in_memory(ledger, Budget(9.0), unit=ReplaceOne()) is ledger
    for bad in (3, "ledger.db", object()):
        with pytest.raises(TypeError, match="must be a Ledger or None.*Nothing was sp"):
            ledger_for(bad, declaration)


def test_a_ledger_left_behind_is_not_replaced_silently():
    marker = left_behind(Ledger(Budget(1.0), unit=UNIT, dataset="people"))
    assert marker == LedgerLeftBehind("people")
    assert left_behind(None) is None
    with pytest.raises(NotPrivate, match="'people' stayed behind.*Nothing was spent"):
        ledger_for(marker, says(Pure(0.5)))
