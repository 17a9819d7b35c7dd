"""A release without a ledger gets one that it fills to the brim."""

from __future__ import annotations

import pytest

from demur.core.adjacency import ReplaceOne
from demur.core.errors import BudgetExceeded
from demur.ledger import Ledger, whole_budget
from demur.mechanisms import BPM


@pytest.mark.parametrize(
    "mechanism",
    [BPM(epsilon=8.0, L=0.3, dimension=2), BPM(epsilon=0.7, L=0.9, dimension=1)],
)
def test_the_whole_budget_takes_one_release_and_no_second(mechanism: BPM) -> None:
    budget = whole_budget(mechanism.declaration(), ReplaceOne())
    assert budget.delta == 0.0
    ledger = Ledger(budget, unit=ReplaceOne(), filter="pure")
    points = [[0.5] * mechanism.dimension]
    mechanism.privatize(points, ledger=ledger)
    assert ledger.epsilon() == budget.epsilon
    with pytest.raises(BudgetExceeded):
        mechanism.privatize(points, ledger=ledger)


def test_a_release_that_says_nothing_needs_next_to_no_budget() -> None:
    budget = whole_budget(
        BPM(epsilon=8.0, L=0.0, dimension=2).declaration(), ReplaceOne()
    )
    assert budget.epsilon == 2.0**-1022  # a budget is positive
