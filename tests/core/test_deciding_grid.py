"""Which grid decides a price: that of repeated equal sampled steps, and no other."""

import pytest

from demur import price
from demur.core.accounting import deciding_grid
from demur.core.accounting.events import (
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
    compose,
)
from demur.core.accounting.totals import total_of
from demur.core.accounting.upper_bounds import closed_form, renyi_epsilon

STEP = PoissonGaussian(0.01, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "exponent"),
    [
        (STEP, 13),
        (Repeated(STEP, 1000), 13),
        # A whole epsilon below 1/2 is measured more finely, one above 8 more coarsely.
        (Repeated(PoissonGaussian(0.001, 4.0), 100), 17),
        (Repeated(STEP, 60_000), 11),
    ],
)
def test_repeated_equal_sampled_steps_are_decided_by_their_own_grid(event, exponent):
    assert deciding_grid(event, 1e-6) == 2.0**-exponent
    others = closed_form(total_of(event), 1e-6), renyi_epsilon(total_of(event), 1e-6)
    assert price(event, 1e-6) < min(others)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(1.0),
        Repeated(Pure(0.1), 50),
        PoissonGaussian(1.0, 1.0),
        PoissonGaussian(0.0, 1.0),
        compose([STEP, GaussianEvent(1.0)]),
        compose([STEP, PoissonGaussian(0.02, 1.0)]),
    ],
)
def test_no_grid_of_one_event_decides_other_prices(event):
    assert deciding_grid(event, 1e-6) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (STEP, 9e-12),  # below what the tails of a grid can say
        (STEP, 0.3),  # more than the sampling probability: epsilon is 0 without a grid
        (Repeated(STEP, 10**8), 1e-6),  # a grid would take minutes
    ],
)
def test_no_grid_decides_where_another_bound_is_the_price(event, delta):
    assert deciding_grid(event, delta) is None


def test_a_grid_decides_from_the_smallest_delta_it_can_say():
    assert deciding_grid(STEP, 1e-11) == 2.0**-13
