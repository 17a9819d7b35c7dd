"""Random histories of a ledger against a model of a few lines."""

import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from demur import Budget, Ledger
from demur.core.accounting.events import Pure
from demur.core.rounding import float_up
from demur.errors import BudgetExceeded, DemurError, IdempotencyConflict
from tests.ledger.kit import UNIT, says

BUDGET = 1.0


class Histories(RuleBasedStateMachine):
    """Charges, declines, reservations, draws, commits and reopenings."""

    entries = Bundle("entries")
    reservations = Bundle("reservations")

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp(prefix="demur-"))
        self.path = self.folder / "ledger.db"
        self.ledger = Ledger.open(
            self.path, dataset="d", budgets={UNIT: Budget(BUDGET)}, filter="pure"
        )
        self.total, self.rows = Fraction(0), 0
        self.keys, self.drawn, self.commits, self.ids = {}, {}, {}, []
        self.tip = self.ledger.tip()

    def _fits(self, epsilon, count):
        return self.total + Fraction(epsilon) * count <= Fraction(BUDGET)

    def _recorded(self, entry, epsilon, count):
        self.total += Fraction(epsilon) * count
        self.rows += 1
        self.ids.append(entry.id)
        assert entry.sequence == self.rows

    epsilons = st.floats(0.0, 0.4) | st.sampled_from([5e-324, 0.1, 0.25, 2.0**-40])

    @rule(target=entries, epsilon=epsilons)
    def charge(self, epsilon):
        if not self._fits(epsilon, 1):
            with pytest.raises(BudgetExceeded):
                self.ledger.charge(says(Pure(epsilon)), label="x")
            self.rows += 1  # that it was declined
            return multiple()
        entry = self.ledger.charge(says(Pure(epsilon)), label="x")
        self._recorded(entry, epsilon, 1)
        return entry

    @rule(
        target=entries,
        key=st.sampled_from("abc"),
        epsilon=st.sampled_from([0.125, 0.25]),
        digest=st.sampled_from(["one", "two"]),
    )
    def charge_with_key(self, key, epsilon, digest):
        arguments = {"label": "x", "idempotency_key": key, "digest": digest}
        if key in self.keys:
            before, entry = self.keys[key]
            if before == (epsilon, digest):
                assert self.ledger.charge(says(Pure(epsilon)), **arguments) == entry
            else:
                with pytest.raises(IdempotencyConflict):
                    self.ledger.charge(says(Pure(epsilon)), **arguments)
            return multiple()
        if not self._fits(epsilon, 1):
            with pytest.raises(BudgetExceeded):
                self.ledger.charge(says(Pure(epsilon)), **arguments)
            self.rows += 1  # that it was declined
            return multiple()
        entry = self.ledger.charge(says(Pure(epsilon)), **arguments)
        self._recorded(entry, epsilon, 1)
        self.keys[key] = (epsilon, digest), entry
        return entry

    @rule(target=reservations, epsilon=epsilons, count=st.integers(1, 4))
    def reserve(self, epsilon, count):
        if not self._fits(epsilon, count):
            with pytest.raises(BudgetExceeded):
                self.ledger.reserve(says(Pure(epsilon)), count=count, label="x")
            self.rows += 1  # that it was declined
            return multiple()
        reserved = self.ledger.reserve(says(Pure(epsilon)), count=count, label="x")
        self._recorded(reserved.entry, epsilon, count)
        self.drawn[reserved.entry.id] = 0
        return reserved.entry

    @rule(entry=reservations)
    def draw(self, entry):
        index = self.drawn[entry.id]
        if index >= entry.count:
            with pytest.raises(BudgetExceeded):
                self.ledger._draw_many(entry, 1)
            return
        assert self.ledger._draw_many(entry, 1)[0].index == index
        self.drawn[entry.id] += 1
        self.rows += 1

    @rule(entry=reservations, count=st.integers(1, 3))
    def draw_many(self, entry, count):
        index = self.drawn[entry.id]
        if index + count > entry.count:
            with pytest.raises(BudgetExceeded):
                self.ledger._draw_many(entry, count)
            return
        drawn = self.ledger._draw_many(entry, count)
        assert [d.index for d in drawn] == list(range(index, index + count))
        self.drawn[entry.id] += count
        self.rows += 1

    @rule(entry=entries | reservations, artefact=st.sampled_from(["p", "q"]))
    def commit(self, entry, artefact):
        before = self.commits.get(entry.id)
        if before is not None and before != artefact:
            with pytest.raises(DemurError):
                self.ledger._commit(entry, artefact)
            return
        self.ledger._commit(entry, artefact)
        self.rows += before is None
        self.commits[entry.id] = artefact

    @rule()
    def reopen(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.path, tip=self.tip)

    @invariant()
    def agrees(self):
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.tip().sequence == self.rows
        (status,) = self.ledger.status()
        assert status.spent_epsilon == float_up(self.total)
        verification = self.ledger.verify(self.tip)
        assert verification.ok and verification.rows == self.rows
        self.tip = self.ledger.tip()
        assert [e.id for e in self.ledger.entries()] == self.ids

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)


Histories.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None
)
TestHistories = pytest.mark.slow(Histories.TestCase)


@pytest.mark.deep
class TestLongHistories(Histories.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
