"""A search for the worst pair: what it refutes, and when it has no power."""

import numpy as np
import pytest

from demur.audit import Level, NoPower, search_sensitivity
from demur.core.adjacency import ReplaceOne
from demur.mechanisms import Gaussian

UNIT = ReplaceOne()


def run_with(declared):
    def run(data, source):
        mechanism = Gaussian(2.0, {UNIT: declared})
        return mechanism.release([np.clip(data, -1, 1).sum()], source=source).value

    return run


def pair(start):
    return np.array([0.1, start]), np.array([0.1, -start])


def searched(declared, **more):
    return search_sensitivity(
        run_with(declared),
        (0.2,),
        pair,
        unit=UNIT,
        subject="a clipped sum",
        moved=lambda start, rng: start + abs(rng.normal()),
        **more,
    )


def test_the_search_climbs_to_the_worst_pair():
    result = searched(2.0, rounds=20, least=0.9)
    assert not result.refuted and result.level is Level.SENSITIVITY
    assert result.power == pytest.approx(1.0, abs=1e-6)


def test_a_declaration_that_is_too_small_is_refuted():
    assert searched(1.8, rounds=20).refuted
    assert not searched(1.8).refuted  # the first pair alone does not show it


def test_a_search_without_power_says_so():
    with pytest.raises(NoPower, match=r"0\.200"):
        searched(2.0, least=0.9)
    with pytest.raises(ValueError, match="starts"):
        search_sensitivity(run_with(2.0), (), pair, unit=UNIT, subject="x")
