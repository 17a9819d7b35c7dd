"""Parameters of a mechanism are plain numbers, whatever they were given as."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from demur.core.adjacency import Ball, ReplaceOne
from demur.ledger import Filter
from demur.mechanisms import (
    BPM,
    Gaussian,
    GaussianReports,
    GridResponse,
    LaplaceReports,
)
from demur.mechanisms.bpm.sampler import grid_of
from demur.mechanisms.exponential import GridQuantile

MADE = {
    "BPM": (lambda f, i: BPM(f(4.0), f(0.5), i(2))),
    "Laplace": (lambda f, i: LaplaceReports(f(4.0), i(2))),
    "Gaussian reports": (lambda f, i: GaussianReports(f(4.0), i(2))),
    "grid": (lambda f, i: GridResponse(f(4.0), i(2), i(3))),
    "Gaussian": (lambda f, i: Gaussian(f(4.0), {ReplaceOne(): f(1.0)}, dimension=i(2))),
    "quantile": (
        lambda f, i: GridQuantile(f(0.5), f(4.0), np.array([0.1]), ReplaceOne())
    ),
    "a ball": (lambda f, i: Ball(f(0.5), space="x")),
    "a filter": (lambda f, i: Filter.gaussian(blocks=f(0.25))),
    "orders": (lambda f, i: Filter.rdp(8, blocks=f(0.25))),
}


@pytest.mark.parametrize("name", MADE)
def test_numbers_of_numpy_become_pythons(name):
    given = MADE[name](np.float32, np.int64)
    plain = MADE[name](float, int)
    for field in dataclasses.fields(plain):
        mine, other = getattr(given, field.name), getattr(plain, field.name)
        assert type(mine) is type(other), field.name
        if isinstance(other, int | float | str):
            assert mine == other, field.name
    assert getattr(given, "fingerprint", 0) == getattr(plain, "fingerprint", 0)


@pytest.mark.parametrize("name", MADE)
def test_whole_numbers_are_numbers(name):
    """epsilon=4 and epsilon=4.0 are one mechanism, with one fingerprint."""

    def whole(value):
        return int(value) if value == int(value) else value

    given, plain = MADE[name](whole, int), MADE[name](float, int)
    assert getattr(given, "fingerprint", 0) == getattr(plain, "fingerprint", 0)
    for field in dataclasses.fields(plain):
        mine, other = getattr(given, field.name), getattr(plain, field.name)
        assert type(mine) is type(other), field.name


@pytest.mark.parametrize(
    ("epsilon", "L", "dimension", "exponent"),
    [
        (4.0, 0.5, 2, -18),  # noise 0.354
        (2.0, 1.0, 1, -16),  # noise 1
        (0.1, math.inf, 1, -16),  # noise 20 counts as 1
        (0.5, 5.0, 1, -16),
        (4.0, 2.0**-30, 1, -40),  # never finer than 2^-41 of the side
        (4.0, 2.0**30, 1, -9),
        (2.0**-40, math.inf, 3, 5),  # or than 2^-37 of the noise
    ],
)
def test_the_grid_of_bpm_is_a_power_of_two_near_its_noise(
    epsilon, L, dimension, exponent
):
    assert grid_of(epsilon, L, dimension) == 2.0**exponent
    noise = min((dimension + 1.0) / epsilon, L) / math.sqrt(dimension)
    assert 2.0**exponent <= max(
        min(noise, 1.0) * 2.0**-16,
        (1 + 2 * L) * 2.0**-40 if math.isfinite(L) else noise * 2.0**-36,
        2.0**-40,
    )


@pytest.mark.parametrize(("epsilon", "dimension", "bits"), [(1.0, 1, 3), (4.0, 2, 2)])
def test_the_density_of_grid_response_is_that_of_its_cells(epsilon, dimension, bits):
    mechanism = GridResponse(epsilon, dimension, bits)
    cells = 2 ** (bits * dimension)
    gain = math.exp(epsilon) - 1.0
    same = gain / (gain + cells) + 1.0 / (gain + cells)
    other = 1.0 / (gain + cells)
    point = np.full(dimension, 0.1)
    near, far = point + 0.01, np.full(dimension, 0.9)
    assert mechanism.log_density(point, near) == pytest.approx(math.log(same * cells))
    assert mechanism.log_density(point, far) == pytest.approx(math.log(other * cells))
    corner = np.ones(dimension)  # 1 lies in the last cell
    assert mechanism.log_density(corner, far) == pytest.approx(math.log(same * cells))
    assert mechanism.cells == cells and mechanism.reach == 0.0
    assert mechanism.kept == pytest.approx(gain / (gain + cells), rel=1e-12)


def test_grid_response_takes_a_word_of_cells_and_no_more():
    assert GridResponse(1.0, 8, 8).cells == 2**64
    with pytest.raises(ValueError, match="bits \\* dimension must be at most 64"):
        GridResponse(1.0, 13, 5)


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf, True, "4.0", None])
def test_a_price_is_a_positive_number(price):
    with pytest.raises((TypeError, ValueError), match="price must be"):
        BPM.for_unit(ReplaceOne(), price=price, dimension=2)


def test_rounding_to_the_grids_of_coordinates_is_charged():
    """A vector moves by up to grid / sigma more, in units of the noise."""
    sigma = np.array([1.0, 3.0, 0.5])
    mechanism = Gaussian(sigma, {ReplaceOne(): 1.0}, dimension=3)
    multiplier = Fraction(mechanism.event(ReplaceOne()).multiplier)
    squares = [
        (Fraction(float(g)) / Fraction(float(s))) ** 2
        for g, s in zip(mechanism.grid, sigma, strict=True)
    ]
    charged = 1 / multiplier - 1
    assert charged > 0 and charged**2 >= sum(squares)
    assert charged**2 <= sum(squares) * (1 + Fraction(1, 10**6))
