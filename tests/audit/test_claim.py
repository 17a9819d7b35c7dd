"""Claims: what is read off entries, mechanisms, events and pairs."""

import math

import numpy as np
import pytest

from demur import AddOrRemoveOne, Ball, ReplaceOne
from demur.audit import Claim, Shape
from demur.audit.claim import THE_PAIR
from demur.core import accounting
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM
from tests.audit.twins import UNIT, gaussian


def test_gaussian_events_compose_to_one_mu():
    claim = Claim.of(Composed((GaussianEvent(2.0), Repeated(GaussianEvent(4.0), 12))))
    assert claim.shape is Shape.GAUSSIAN
    assert claim.mu == pytest.approx(1.0)
    assert claim.epsilon == accounting.price(GaussianEvent(1.0), 1e-6)
    assert claim.unit == THE_PAIR


@pytest.mark.slow
def test_steps_that_take_everybody_are_gaussian():
    claim = Claim.of(Repeated(PoissonGaussian(1.0, 2.0), 4))
    assert claim.shape is Shape.GAUSSIAN and claim.mu == pytest.approx(1.0)
    replaced = PoissonGaussian(1.0, 2.0, "replace_one")
    assert Claim.of(replaced).mu == pytest.approx(1.0)  # 2C / (2C)
    sampled = Claim.of(PoissonGaussian(0.5, 2.0), delta=1e-5)
    assert sampled.shape is Shape.APPROXIMATE and sampled.delta == 1e-5


def test_pure_and_approximate_claims():
    assert Claim.of(Repeated(Pure(0.5), 4)) == Claim(2.0)
    assert Claim.of((1.0, 0.0)).shape is Shape.PURE
    loose = Claim.of((1.0, 1e-5))
    assert (loose.shape, loose.delta) == (Shape.APPROXIMATE, 1e-5)
    assert Claim.of(ApproxDP(1.0, 1e-6), delta=1e-5).delta == 1e-5
    with pytest.raises(ValueError, match="at least the claim's"):
        Claim.of((1.0, 1e-5), delta=1e-6)
    mixed = Claim.of(Composed((Pure(0.5), GaussianEvent(3.0))), delta=1e-6)
    assert mixed.shape is Shape.APPROXIMATE


def test_an_entry_claims_what_its_ledger_says():
    with Ledger(Budget(epsilon=9.0, delta=1e-5), unit=UNIT) as ledger:
        entry = gaussian().release(np.zeros(3), ledger=ledger, label="x").entry
        claim = Claim.of(entry)
        assert claim.unit == str(UNIT) and claim.delta == 1e-5
        assert claim.epsilon == entry.epsilon(UNIT, 1e-5)
        assert claim.mu == pytest.approx(0.5, rel=1e-5)
        assert Claim.of(entry, delta=1e-3).epsilon < claim.epsilon
        assert claim.entry is entry and Claim.of(gaussian(), unit=UNIT).entry is None


def test_mechanisms_need_the_unit_of_the_pair():
    bpm = BPM(4.0, 0.5, 2)
    with pytest.raises(TypeError, match="unit"):
        Claim.of(bpm)
    assert Claim.of(bpm, unit=Ball(0.1, space="cube")).epsilon == pytest.approx(0.4)
    assert Claim.of(bpm, unit=ReplaceOne()).epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("claim", [1.0, None, (1.0,), "eps", {"epsilon": 1.0}])
def test_other_things_claim_nothing(claim):
    with pytest.raises(TypeError, match="claim must be"):
        Claim.of(claim, unit=AddOrRemoveOne())


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": 1.0, "delta": 0.1},
        {"epsilon": 1.0, "delta": 2.0, "shape": "approximate"},
        {"epsilon": 1.0, "mu": 1.0},
        {"epsilon": 1.0, "delta": 0.0, "shape": "gaussian", "mu": 1.0},
        {"epsilon": 1.0, "delta": 0.1, "shape": "gaussian", "mu": -1.0},
        {"epsilon": 1.0, "shape": "odd"},
        {"epsilon": 1.0, "threshold": math.inf},
        {"epsilon": 1.0, "counted": "yes"},
    ],
)
def test_nonsense_is_refused(arguments):
    with pytest.raises((ValueError, TypeError)):
        Claim(**arguments)


def test_score_and_counting_are_part_of_the_claim():
    claim = Claim.of(Pure(1.0), score=float, threshold=0.5, counted=True)
    assert (claim.score, claim.threshold, claim.counted) == (float, 0.5, True)
    again = Claim.of(claim)
    assert (again.score, again.threshold, again.counted) == (float, 0.5, True)
    assert Claim.of(claim, score=abs).score is abs
    with pytest.raises(TypeError, match="threshold is about a score"):
        Claim.of(Pure(1.0), threshold=0.5)


def test_scores_are_functions_or_directions():
    claim = Claim(1.0)
    assert claim.scored_by(lambda x: x + 1).score_of(2) == 3.0
    assert claim.scored_by([1.0, -1.0]).score_of([[5.0], [2.0]]) == 3.0
    with pytest.raises(TypeError, match="no score"):
        claim.score_of(1.0)
    with pytest.raises(TypeError, match="must be numbers"):
        claim.scored_by([1.0]).score_of("text")
