"""`verify` prices again: a client that wrote down less than its cost is found."""

from fractions import Fraction

import pytest

from demur import Budget, Filter, Ledger
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Pure, Repeated
from demur.ledger import journal, verification
from demur.ledger.rules import admission
from tests.ledger.kit import UNIT, says

TERMS = {"dataset": "d", "budgets": {UNIT: Budget(1.0, 1e-6)}}
SHARP = says(GaussianEvent(1.0))


@pytest.fixture
def patched(monkeypatch):
    """A client that pays a share of what is asked, and writes that down."""

    def pays(share):
        def pay(terms, label, ways, totals):
            less = [
                way
                and [{k: v and v * share for k, v in option.items()} for option in way]
                for way in ways
            ]
            return admission.pay(terms, label, less, totals)

        monkeypatch.setattr(journal, "pay", pay)

    return pays


def test_a_client_that_paid_nothing_is_found(new_ledger, patched):
    """Fifty Gaussians for nothing: every link and total is right."""
    ledger = new_ledger(**TERMS)
    patched(Fraction(0))
    for _ in range(50):
        ledger.charge(SHARP, label="free of charge")
    (problem,) = ledger.verify(ledger.tip()).problems
    assert problem == "row 1: it costs more than was paid for it"
    assert ledger.epsilon() > 50.0


def test_without_the_prices_it_would_pass(new_ledger, patched, monkeypatch):
    """The sabotaged twin."""
    monkeypatch.setattr(verification, "is_paid", lambda *_: True)
    ledger = new_ledger(**TERMS)
    patched(Fraction(0))
    ledger.charge(SHARP, label="free of charge")
    assert ledger.verify(ledger.tip()).ok


@pytest.mark.parametrize(
    ("share", "ok"),
    [
        (Fraction(1), True),
        (1 + Fraction(1, 10**6), True),  # another accountant's price, a little higher
        (1 - Fraction(1, 10**12), True),  # or lower in its last digits
        (1 - Fraction(1, 10**6), False),
        (Fraction(1, 2), False),
    ],
)
@pytest.mark.parametrize(
    ("rule", "event"),
    [
        (Filter.gaussian(), GaussianEvent(20.0)),
        (Filter.pure(), Pure(0.01)),
        (Filter.rdp(32), Repeated(PoissonGaussian(0.01, 4.0), 5)),
        (Filter.gaussian(blocks=0.5), Repeated(PoissonGaussian(0.01, 4.0), 5)),
    ],
)
def test_what_was_paid_is_at_least_the_price(patched, rule, event, share, ok):
    with Ledger(TERMS["budgets"], filter=rule) as ledger:
        patched(share)
        ledger.charge(says(event), label="x")
        assert ledger.verify().ok is ok


def test_a_price_at_a_chosen_delta_is_computed_at_that_delta(patched):
    rule = Filter.gaussian(blocks=0.5)
    with Ledger(TERMS["budgets"], filter=rule) as ledger:
        plan = says(Repeated(PoissonGaussian(0.01, 4.0), 5))
        ledger.charge(plan, label="x", block_delta=1e-8)
        ledger.charge(plan, label="x", block_delta=1e-9)
        ledger.charge(plan, label="x")
        ledger.paid(plan, label="y", count=3)
        assert ledger.verify().ok


def test_a_budget_that_was_exceeded_is_found(monkeypatch):
    with Ledger(TERMS["budgets"]) as ledger:
        monkeypatch.setattr("demur.ledger.rules.filters.fits", lambda *_: True)
        ledger.charge(SHARP, label="too much")
        monkeypatch.undo()
        (problem,) = ledger.verify().problems
        assert "overdraw" in problem


@pytest.mark.slow
def test_many_different_plans_are_priced_when_asked(monkeypatch, patched):
    monkeypatch.setattr(verification, "_PLANS_AT_ONCE", 2)
    with Ledger(TERMS["budgets"], filter=Filter.rdp(32)) as ledger:
        for i in range(4):
            if i == 3:
                patched(Fraction(1, 2))
            event = Repeated(PoissonGaussian(0.01, 8.0 + i), 5)
            ledger.charge(says(event), label="a plan")
            ledger.charge(says(event), label="the same again")
        quick, full = ledger.verify(), ledger.verify(full=True)
        assert quick.ok and any("2 sampled plans" in u for u in quick.unknown)
        assert not full.ok and not any("sampled plans" in u for u in full.unknown)
