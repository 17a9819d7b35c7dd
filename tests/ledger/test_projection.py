"""Forecasts and projections, against charges that are really made."""

from datetime import UTC, datetime, timedelta

import pytest

from demur import Budget, Ledger
from demur.core.accounting.events import GaussianEvent
from demur.durable import clock
from demur.errors import BudgetExceeded
from demur.ledger import forecast, project
from tests.ledger.kit import UNIT, says

COUNT = says(GaussianEvent(5.0))
HUGE = says(GaussianEvent(0.1))


def test_a_projection_is_what_charging_gives():
    """Oracle: the same charges, made."""
    with Ledger(Budget(2.0, 1e-6), UNIT) as ledger:
        ledger.charge(COUNT, label="before")
        asked, before = project(ledger, COUNT, 50), ledger.tip()
        assert ledger.tip() == before, "nothing was written"
        made = []
        with pytest.raises(BudgetExceeded):
            for _ in range(50):
                ledger.charge(COUNT, label="next")
                made.append((ledger.status()[0].spent_epsilon,))
        assert asked.steps == tuple(made) and 0 < len(made) < 50
        assert asked.tight == (ledger.epsilon(),)
        assert project(ledger, HUGE, 3).steps == ()
    with pytest.raises(ValueError, match="times"):
        project(ledger, COUNT, 10**6)


def test_a_forecast_ends_when_the_budget_does(monkeypatch):
    """A charge a day for ten days: it ends when as many more fit as charges say."""
    start = datetime.now(UTC) - timedelta(days=10)
    with Ledger(Budget(2.0, 1e-6), UNIT) as ledger:
        (idle,) = forecast(ledger)
        assert idle.days_left is None and idle.spent_lately == 0.0
        for day in range(4):
            moment = start + timedelta(days=2.5 * day)
            text = moment.isoformat(timespec="milliseconds")
            monkeypatch.setattr(clock, "now", lambda text=text: text)
            ledger.charge(COUNT, label="x")
        (told,) = forecast(ledger)
        fits = len(project(ledger, COUNT, 100).steps)
        assert told.days == pytest.approx(10, abs=0.1)
        # Four in ten days: those that fit take 2.5 days each, the last not quite.
        assert 2.5 * fits <= told.days_left <= 2.5 * (fits + 1)
        assert (
            told.spent_epsilon == told.spent_lately == ledger.status()[0].spent_epsilon
        )
        (late,) = forecast(ledger, days=1.0)
        assert late.days_left is None, "nothing was spent in the last day"


def test_a_full_budget_has_nothing_left():
    with Ledger(Budget(2.0, 1e-6), UNIT) as ledger:
        with pytest.raises(BudgetExceeded):
            for _ in range(100):
                ledger.charge(COUNT, label="x")
        (told,) = forecast(ledger)
        assert told.days_left is not None and told.days_left < 1.0
