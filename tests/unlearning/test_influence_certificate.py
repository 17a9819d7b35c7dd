"""Certificates derived from a private release: their bound, and what they refuse."""

import dataclasses
import math

import numpy as np
import pytest

from demur import AddOrRemoveOne, Budget, Filter, Ledger, ReplaceOne, Seeded
from demur.audit import Claim, audit
from demur.core.accounting import events
from demur.core.accounting.gaussian import gaussian_epsilon
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.mechanisms import Gaussian
from demur.unlearning import (
    InfluenceCertificate,
    influence_certificate,
    verify_influence,
)
from demur.unlearning.records.influence_certificate import influence_bound

UNIT, DELTA, SIGMA = AddOrRemoveOne(), 1e-5, 6.0


def make_ledger(unit=UNIT):
    return Ledger(Budget(20.0, DELTA), unit=unit, filter=Filter.pure(), dataset="d")


def released(ledger, unit=UNIT, source=None):
    """The entry of a finished release."""
    noisy = Gaussian(sigma=SIGMA, sensitivity={unit: 1.0})
    return noisy.release([1.0], ledger=ledger, label="a model", source=source).entry


def declared(event):
    """An entry of a mechanism with this event for one record."""
    cost = Cost((Fixed(UNIT, event),))
    ledger = make_ledger()
    with ledger.paid(Declaration("a mechanism", cost), label="it") as payment:
        pass
    return payment.entry


@pytest.mark.parametrize("records", [1, 3])
def test_the_bound_is_that_of_the_entry(records):
    """Exact for Gaussians: m records move the sum m times as far."""
    ledger = make_ledger()
    entry = released(ledger)
    found = influence_certificate(ledger, entry, records=records)
    exact = gaussian_epsilon(records / SIGMA, DELTA)
    assert exact <= found.epsilon <= exact * 1.001
    assert found.epsilon_in_all == pytest.approx(found.epsilon, rel=1e-3)
    assert InfluenceCertificate.from_json(found.to_json()) == found
    assert verify_influence(found, ledger) == []


def test_an_attack_meets_the_bound_and_refutes_the_price_of_one_for_three():
    """Present or never there, told apart by the best test there is."""

    def model(present, source, count):
        draws = np.random.default_rng(source.seed).normal(size=count)
        return 3.0 * present + SIGMA * draws

    claims = {m: Claim.of(events.GaussianEvent(SIGMA / m), unit=UNIT) for m in (1, 3)}
    found = {
        m: audit(model, (1.0, 0.0), claim, many=True, runs=4000).refuted
        for m, claim in claims.items()
    }
    assert found == {3: False, 1: True}


def test_groups_of_any_mechanism():
    """(e, d) for one is (m e, d (1 + e^e + ...)) for m, and nothing below that."""
    entry = declared(events.ApproxDP(0.5, 1e-7))
    wide = influence_bound(entry, UNIT, 3, DELTA)
    assert 1.5 <= wide <= 1.5 * (1 + 1e-9)
    tight = 1e-7 * (1 + math.exp(0.5) + math.exp(1.0))
    assert influence_bound(entry, UNIT, 3, tight * (1 + 1e-5)) < 1.6
    assert influence_bound(entry, UNIT, 3, tight * (1 - 1e-6)) == math.inf


def test_the_bound_for_any_mechanism_is_above_the_exact_one(monkeypatch):
    entry = released(make_ledger())
    exact = {m: influence_bound(entry, UNIT, m, DELTA) for m in (2, 4)}
    alone = Entry.epsilon

    def without_groups(entry, unit, delta):
        if unit.records_per_person > 1:
            raise NotPriced("no closed form")
        return alone(entry, unit, delta)

    monkeypatch.setattr(Entry, "epsilon", without_groups)
    for records, least in exact.items():
        assert least < influence_bound(entry, UNIT, records, DELTA) < 2 * least


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.1},
        {"records": 2},
        {"scope": "joint"},
        {"delta": 1e-3},
        {"not_covered": ()},
        {"statement": "The record was removed."},
        {"artefact": "0" * 64},
        {"epsilon_in_all": 9.0},
        {"entry": "0" * 32},
        {"ledger": "0" * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_certificate_that_says_more_than_its_ledger_is_found(change):
    """Twins: each of them is better than the truth in one field."""
    ledger = make_ledger()
    found = influence_certificate(ledger, released(ledger))
    assert verify_influence(dataclasses.replace(found, **change), ledger)


def test_the_entry_is_that_of_the_ledger():
    """A twin: an object that says it cost less than the ledger has."""
    ledger = make_ledger()
    entry = released(ledger)
    cheap = dataclasses.replace(
        entry, declaration=declared(events.Pure(0.1)).declaration
    )
    assert cheap.epsilon(UNIT, DELTA) < 0.11
    found = influence_certificate(ledger, cheap)
    assert found == influence_certificate(ledger, entry) and found.epsilon > 0.5


def test_another_model_than_the_one_that_was_released_is_found():
    ledger = make_ledger()
    found = influence_certificate(ledger, released(ledger))
    assert verify_influence(found, ledger, artefact=found.artefact) == []
    assert verify_influence(found, ledger, artefact="1" * 64)


def test_what_says_nothing_about_absence_is_refused():
    ledger = make_ledger(ReplaceOne())
    entry = released(ledger, ReplaceOne())
    with pytest.raises(NotCovered, match="not when it is absent"):
        influence_certificate(ledger, entry)


def test_a_bound_that_means_nothing_is_refused():
    ledger = make_ledger()
    entry = released(ledger)
    with pytest.raises(NotCovered, match="train anew without them"):
        influence_certificate(ledger, entry, records=10_000)


def test_an_unfinished_run_has_no_certificate():
    ledger = make_ledger()
    noisy = Gaussian(sigma=SIGMA, sensitivity={UNIT: 1.0})
    with pytest.raises(KeyboardInterrupt):
        with ledger.paid(noisy, label="cut short"):
            raise KeyboardInterrupt
    with pytest.raises(ValueError, match="is not committed"):
        influence_certificate(ledger, ledger.entries()[0])


def test_seeded_noise_is_stamped():
    ledger = make_ledger()
    entry = released(ledger, source=Seeded(0))
    found = influence_certificate(ledger, entry)
    assert found.statement.startswith("NOT PRIVATE")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "nul"])
def test_what_is_no_certificate_is_refused(text):
    with pytest.raises(ValueError, match="not a certificate"):
        InfluenceCertificate.from_json(text)
