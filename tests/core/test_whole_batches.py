"""Sampling that takes every record costs the Gaussian mechanism, per relation."""

import pytest

from demur import price
from demur.core.accounting import delta_of, renyi
from demur.core.accounting.events import (
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Repeated,
)

# How far the sum moves, in contributions of one record.
MOVES = {
    Neighbours.ADD_OR_REMOVE_ONE: 1,
    Neighbours.ZERO_OUT: 1,
    Neighbours.REPLACE_ONE: 2,
}


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("multiplier", [0.8, 3.0])
def test_a_sample_of_everyone_is_a_gaussian_at_its_sensitivity(neighbours, multiplier):
    sample = PoissonGaussian(1.0, multiplier, neighbours)
    alone = GaussianEvent(multiplier / MOVES[neighbours])
    assert sample.whole_multiplier == alone.multiplier
    assert price(Repeated(sample, 7), 1e-6) == price(Repeated(alone, 7), 1e-6)
    assert delta_of(sample, 1.0) == delta_of(alone, 1.0)
    assert renyi.divergence(sample, 8) == renyi.divergence(alone, 8)
    # Sabotaged twin: one contribution more.
    assert price(sample, 1e-6) < price(
        GaussianEvent(multiplier / (MOVES[neighbours] + 1)), 1e-6
    )
