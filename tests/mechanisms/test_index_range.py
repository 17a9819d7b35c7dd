"""Which grid points lie in the cube of reports."""

from fractions import Fraction

import pytest

from demur.mechanisms.bpm.sampler import index_range


@pytest.mark.parametrize("grid", [0.125, 2.0**-10])
@pytest.mark.parametrize("L", [0.0, 0.3, 0.5, 2.2335, 162.25])
def test_the_ends_lie_in_the_cube_and_their_neighbours_do_not(L, grid):
    low, high = index_range(L, grid)
    inside = [Fraction(grid) * index for index in (low, high)]
    beyond = [Fraction(grid) * index for index in (low - 1, high + 1)]
    assert inside[0] >= -Fraction(L) > beyond[0]
    assert inside[1] <= 1 + Fraction(L) < beyond[1]
