"""Bugs of budgets and ledgers: each test is named after one, and its twin has it."""

import functools
import math
import operator
from fractions import Fraction

import pytest

from demur import AddOrRemoveOne, Declaration, ReplaceOne, Seeded
from demur.core.accounting.events import GaussianEvent, Pure, Repeated
from demur.core.cost import Cost, Fixed
from demur.errors import BudgetExceeded, DemurError, NoiseReuse
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms import Gaussian as GaussianMechanism
from tests.known_bugs.kit import UNIT, says, sound_and_twin


class Ours:
    """Ours, with the few words that the twins below speak as well."""

    def __init__(self, epsilon=1.0, delta=1e-6, filter=None):
        self.ledger = Ledger(Budget(epsilon, delta), unit=UNIT, filter=filter)

    def spend(self, *events):
        cost = Cost(tuple(Fixed(UNIT, event) for event in events))
        self.ledger.charge(Declaration("work", cost), label="work")

    def spent(self):
        return self.ledger.epsilon()

    def state(self):
        """Everything that a later reader could see."""
        whole = self.ledger.verify(self.ledger.tip())
        assert whole.ok
        return self.ledger.entries(), self.ledger.status(), self.ledger.summary()


def test_row_03_a_failed_charge_stays_half_applied():
    class AppendsFirst:
        """Writes the events down, and then finds out that it cannot price them."""

        def __init__(self):
            self.rows, self.total = [], 0.0

        def spend(self, *events):
            self.rows += events
            for event in events:
                self.total += event.epsilon
                if self.total > 1.0:
                    raise BudgetExceeded("over")

        def state(self):
            return tuple(self.rows), self.total

    def leaves_no_trace(ledger):
        ledger.spend(Pure(0.5))
        before = ledger.state()
        with pytest.raises(DemurError):
            ledger.spend(Pure(0.75))
        assert ledger.state() == before
        ledger.spend(Pure(0.25))
        assert ledger.state() != before

    sound_and_twin(leaves_no_trace, Ours(1.0, 0.0, "pure"), AppendsFirst())


@pytest.mark.parametrize("rule", [None, "pure"])
def test_row_03_two_budgets_are_charged_by_halves(rule):
    """The first budget has room and the second has not: neither moves."""
    budgets = {ReplaceOne(): Budget(9.0, 1e-6), UNIT: Budget(0.5, 1e-6)}
    ledger = Ledger(budgets, filter=rule)
    cost = Cost((Fixed(ReplaceOne(), Pure(1.0)), Fixed(UNIT, Pure(1.0))))
    before = ledger.status()
    with pytest.raises(BudgetExceeded):
        ledger.charge(Declaration("work", cost), label="work")
    assert ledger.status() == before
    assert not ledger.entries() and ledger.verify(ledger.tip()).ok


def test_row_11_reading_takes_something_away():
    class PopsItsHistory:
        """Merges equal steps while it answers, and drops the last of them."""

        def __init__(self):
            self.history = [0.25, 0.25, 0.25]

        def read(self):
            return sum(self.history), self.history.pop()

    class Ours:
        def __init__(self):
            self.ledger = Ledger(Budget(3.0, 1e-6), unit=UNIT)
            for _ in range(3):
                self.ledger.charge(says(GaussianEvent(6.0)), label="a count")
            self.ledger.reserve(says(GaussianEvent(50.0)), count=7, label="a plan")

        def read(self):
            ledger = self.ledger
            units = (UNIT, AddOrRemoveOne(records_per_person=2))
            epsilons = [
                ledger.epsilon(unit=unit, delta=d) for unit in units for d in (0.1,)
            ]
            entry = ledger.entries()[0]
            texts = (ledger.summary(), repr(ledger), entry.statement(records=100))
            whole = ledger.verify(ledger.tip())
            return (
                epsilons,
                ledger.epsilon(),
                ledger.reading(),
                texts,
                ledger.status(),
                whole.ok,
            )

    def is_read_only(ledger):
        first = ledger.read()
        assert ledger.read() == first
        assert ledger.read() == first

    sound_and_twin(is_read_only, Ours(), PopsItsHistory())


def test_row_24_a_subnormal_spend_is_lost_once_the_budget_is_full():
    """A float total swallows what is small beside it: the ledger goes on for ever."""
    grain = math.ulp(0.0)

    class FloatTotal:
        def __init__(self, epsilon):
            self.room, self.total = epsilon, 0.0

        def spend(self, event):
            if self.total + event.epsilon > self.room:
                raise BudgetExceeded("over")
            self.total += event.epsilon

    def stops(make):
        ledger = make(1.0)
        ledger.spend(Pure(1.0))
        for spend in (grain, 1e-310, 2.0**-60):
            try:
                ledger.spend(Pure(spend))
            except BudgetExceeded:
                continue
            raise AssertionError("spent beyond the budget")

    sound_and_twin(stops, lambda epsilon: Ours(epsilon, 0.0, "pure"), FloatTotal)


@pytest.mark.parametrize("rule", ["pure", "gaussian", "rdp"])
def test_row_24_every_filter_counts_grains(rule):
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT, filter=rule)
    event = Repeated(GaussianEvent(1e9), 1) if rule != "pure" else Pure(2.0**-70)
    accounts = []
    for _ in range(3):
        ledger.charge(says(event), label="a grain")
        accounts.append(ledger.status()[0].accounts)
    assert accounts[0] != accounts[1] != accounts[2]


def test_row_27_one_charge_pays_for_two_releases():
    """The same entry must not draw twice, and a second release must pay again."""
    mechanism = GaussianMechanism(9.0, {UNIT: 1.0}, 3)

    class PaysOnce:
        """Remembers that it was charged, and draws as often as it is asked."""

        def __init__(self):
            self.spent, self.rng = 0.0, Seeded(1)

        def release(self):
            self.spent = max(self.spent, 0.5)
            return self.rng.new_key()

    class Ours:
        def __init__(self):
            self.ledger = Ledger(Budget(9.0, 1e-6), unit=UNIT)

        @property
        def spent(self):
            return self.ledger.epsilon()

        def release(self):
            return mechanism.release(
                [1.0, 2.0, 3.0], ledger=self.ledger, label="again"
            ).value

    def pays_each_time(engine):
        engine.release()
        once = engine.spent
        engine.release()
        assert engine.spent > once > 0.0

    sound_and_twin(pays_each_time, Ours(), PaysOnce())
    ledger = Ledger(Budget(9.0, 1e-6), unit=UNIT)
    entry = ledger.charge(mechanism, label="once")
    key = ledger._key(entry, None)
    mechanism.apply([1.0, 2.0, 3.0], key)
    with pytest.raises(NoiseReuse):
        mechanism.apply([1.5, 2.0, 3.0], key)
    with pytest.raises(NoiseReuse):
        ledger._key(entry, None)


def test_row_24_rounding_makes_room_for_one_more():
    """0.1 ten times is more than 1 in exact arithmetic and less in floats."""
    # `sum` of Python 3.12 and later carries the rounding along.
    assert functools.reduce(operator.add, [0.1] * 10) < 1.0 < 10 * Fraction(0.1)
    ledger = Ledger(Budget(1.0), unit=UNIT, filter=Filter.pure())
    for _ in range(9):
        ledger.charge(says(Pure(0.1)), label="a tenth")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(Pure(0.1)), label="the tenth tenth")
