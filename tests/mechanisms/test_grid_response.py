"""Randomised response: its law in exact numbers, and broken twins of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest

from demur.cluster import PrivateKMeans
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.entropy import Seeded
from demur.core.errors import NotCovered
from demur.mechanisms import GridResponse

SETTINGS = [(1e-3, 1, 1), (1.0, 2, 3), (4.0, 2, 3), (8.0, 5, 2), (40.0, 3, 4)]


def ratio(mechanism):
    """The largest likelihood ratio, in fractions: that of the own cell."""
    s = Fraction(mechanism.threshold, 2**64)
    return 1 + mechanism.cells * s / (1 - s)


def power(epsilon):
    getcontext().prec = 60
    return Fraction(Decimal(epsilon).exp())


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_ratio_is_below_the_claim_and_a_threshold_more_is_not(setting):
    mechanism = GridResponse(*setting)
    claimed = power(setting[0])
    assert ratio(mechanism) <= claimed
    # Nothing much is given away, and the twin that rounds up breaks the claim.
    assert math.log(ratio(mechanism)) > setting[0] * (1 - 1e-6)

    @dataclass(frozen=True)
    class RoundedUp(GridResponse):
        @property
        def threshold(self):
            gain = power(self.epsilon) - 1
            return math.ceil(gain / (gain + self.cells) * 2**64)

    assert ratio(RoundedUp(*setting)) > claimed


def test_every_word_leads_where_it_should():
    mechanism = GridResponse(2.0, 2, 1)
    points = np.array([[0.1, 0.9], [1.0, 0.5]])
    T = mechanism.threshold
    words = np.array([[T - 1, 3], [T, 1]], dtype=np.uint64)
    found = mechanism.respond(points, words)
    assert found.tolist() == [[0.25, 0.75], [0.75, 0.25]]
    # All cells by the second word, each as often: uniform.
    second = np.arange(8, dtype=np.uint64)
    many = mechanism.respond(
        np.full((8, 2), 0.5),
        np.column_stack([np.full(8, 2**64 - 1, np.uint64), second]),
    )
    assert len(np.unique(many, axis=0)) == 4


@pytest.mark.slow
def test_reports_follow_the_law():
    mechanism = GridResponse(2.0, 2, 2)
    points = np.tile([[0.3, 0.9]], (40_000, 1))
    reports = mechanism.privatize(points, source=Seeded(1)).value.values
    cells, counts = np.unique(reports, axis=0, return_counts=True)
    expected = np.exp(mechanism.log_density(points[0], cells)) / mechanism.cells
    assert len(cells) == 16 and expected.sum() == pytest.approx(1.0)
    chi2 = ((counts - 40_000 * expected) ** 2 / (40_000 * expected)).sum()
    assert chi2 < 50.0  # 15 degrees of freedom: 1e-5
    wrong = np.exp(GridResponse(2.2, 2, 2).log_density(points[0], cells)) / 16
    assert ((counts - 40_000 * wrong) ** 2 / (40_000 * wrong)).sum() > 100.0


def test_prices_and_refusals():
    mechanism = GridResponse(2.0, 2)
    cost = mechanism.declaration().cost
    assert cost.at(ReplaceOne()).epsilon == cost.at(Ball(0.1, space="cube")).epsilon
    with pytest.raises(NotCovered):
        cost.at(AddOrRemoveOne())
    for wrong in ((41.0, 2, 3), (1.0, 30, 3), (1.0, 2, 0), (0.0, 2, 3)):
        with pytest.raises(ValueError):
            GridResponse(*wrong)
    X = np.random.default_rng(0).random((50, 2))
    with pytest.raises(TypeError, match="decoder='clip'"):
        PrivateKMeans(2, mechanism=mechanism).fit(X)
    fitted = PrivateKMeans(2, mechanism=mechanism, decoder="plain").fit(X)
    assert fitted.cluster_centers_.shape == (2, 2)
