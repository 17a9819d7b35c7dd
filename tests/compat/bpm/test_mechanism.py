"""The seed's constants under the seed's names: right, in any dimension."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import integrate

from demur import mechanisms
from demur.compat import bpm
from demur.compat.bpm import mechanism

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "bpm.json").read_text())


def seed_B_L(d: int, L: float, k: float) -> float:
    """The seed's formula, from its description: no factor e^(-kL)."""
    series = sum((k * L) ** i / math.factorial(i) for i in range(d))
    angles = math.prod(mechanism.compute_S3_integral(j) for j in range(1, d - 1))
    whole = math.factorial(d - 1) / k**d
    return 2 * math.pi * whole * (math.exp(k * L) - series) * angles


def ball_mass(d: int, L: float, k: float) -> float:
    """The same integral by quadrature."""
    surface = float(
        2 * mpmath.pi ** (mpmath.mpf(d) / 2) / mpmath.gamma(mpmath.mpf(d) / 2)
    )
    radial = integrate.quad(lambda r: r ** (d - 1) * math.exp(-k * r), 0, L)[0]
    return surface * radial


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize(("L", "k"), [(0.3, 2.0), (0.5, 4.0), (1.0, 8.0)])
def test_constants_against_quadrature(d, L, k):
    B = ball_mass(d, L, k)
    V = mechanism.compute_ball_volume(d, L)
    mu = B + math.exp(-k * L) * ((1 + 2 * L) ** d - V)
    assert mechanism.compute_B_L_integral(d, L, k) == pytest.approx(B, rel=1e-9)
    assert mechanism.compute_mu_L(d, L, k) == pytest.approx(mu, rel=1e-9)
    assert mechanism.compute_lambda_L(d, L, k) == pytest.approx(1 / mu, rel=1e-9)
    assert mechanism.compute_p_L(d, L, k) == pytest.approx(B / mu, rel=1e-9)
    radial = integrate.quad(lambda r: r ** (d - 1) * math.exp(-k * r), 0, L)[0]
    assert mechanism.compute_lambda_2r(d, L, k) == pytest.approx(1 / radial, rel=1e-9)
    # The seed's own number is e^(kL) times too large, and this test would see it.
    if d >= 2:
        assert seed_B_L(d, L, k) == pytest.approx(B * math.exp(k * L), rel=1e-6)


@pytest.mark.parametrize(
    ("d", "L", "k", "p"),
    [(2, 0.3, 2.0, 0.1329), (2, 0.5, 4.0, 0.349), (7, 1.0, 8.0, 0.0105)],
)
def test_known_probabilities(d, L, k, p):
    assert mechanism.compute_p_L(d, L, k) == pytest.approx(p, abs=5e-5)
    assert bpm.compute_p_L is mechanism.compute_p_L


@pytest.mark.parametrize("d", [1, 2, 3, 5, 50, 101, 343])
def test_ball_volume(d):
    right = mpmath.pi ** (mpmath.mpf(d) / 2) / mpmath.gamma(mpmath.mpf(d) / 2 + 1)
    right *= mpmath.mpf("0.7") ** d
    found = mechanism.compute_ball_volume(d, 0.7)
    assert found == pytest.approx(float(right), rel=1e-9) and found > 0
    assert mechanism.compute_ball_volume(d, 0.0) == 0.0


@pytest.mark.parametrize("j", [0, 1, 2, 3, 8, 60])
def test_sine_integrals(j):
    right = integrate.quad(lambda x: math.sin(x) ** j, 0, math.pi)[0]
    assert mechanism.compute_S3_integral(j) == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize("d", [1, 18, 64, 172, 784, 10_000])
def test_where_the_seed_fails(d):
    """Its p_L is -0.0, negative, 1.0 or NaN there; lambda_2r negative or an error."""
    one = bpm.BPM(epsilon=2.0, L=0.5, dimension=d)
    right = mechanisms.BPM(2.0, 0.5, d)
    assert (one.lambda_L, one.p_L) == (right.lambda_L, right.p_L)
    assert 0.0 <= one.p_L <= 1.0 and one.lambda_2r > 0.0
    assert not math.isnan(one.lambda_L)


# Beyond d = 20 the vectors' quadrature has fewer digits than the closed forms.
@pytest.mark.parametrize(
    "row", [r for r in VECTORS["rows"] if r["d"] <= 20], ids=lambda r: f"d{r['d']}"
)
def test_vectors(row):
    d, L, k = row["d"], float(row["L"]), float(row["epsilon"])
    found = mechanism.compute_p_L(d, L, k)
    assert found == pytest.approx(math.exp(float(row["log_p_L"])), rel=1e-9, abs=0)


def test_the_class_has_the_seeds_attributes():
    one = bpm.BPM(epsilon=1.0, L=1.0, dimension=2)
    assert (one.epsilon, one.L, one.d, one.k) == (1.0, 1.0, 2, 1.0)
    assert repr(one) == "BPM(ε=1.0, L=1.0, d=2)"
    v = np.array([0.5, 0.5])
    for x, distance in (([0.5, 0.5], 0.0), ([0.7, 0.5], 0.2), ([1.9, 0.5], 1.0)):
        expected = one.lambda_L * math.exp(-distance)
        assert float(one.density(v, np.array(x))) == pytest.approx(expected, rel=1e-9)
    assert (
        float(one.density(v, np.array([2.1, 0.5]))) == 0.0
    )  # outside the report space


def test_the_density_integrates_to_one():
    one = bpm.BPM(epsilon=4.0, L=0.5, dimension=2)
    side = np.linspace(-0.5, 1.5, 801)
    middle = (side[1:] + side[:-1]) / 2
    grid = np.stack(np.meshgrid(middle, middle), axis=-1)
    total = one.density(np.array([0.3, 0.6]), grid).sum() * (side[1] - side[0]) ** 2
    assert total == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mechanism.compute_p_L(0, 0.5, 1.0),
        lambda: mechanism.compute_p_L(2, -0.5, 1.0),
        lambda: mechanism.compute_p_L(2, 0.5, 0.0),
        lambda: mechanism.compute_mu_L(2, math.nan, 1.0),
        lambda: mechanism.compute_lambda_2r(2, 0.5, -1.0),
        lambda: mechanism.compute_ball_volume(2, -1.0),
        lambda: mechanism.compute_S3_integral(-1),
        lambda: bpm.BPM(1.0, "best", 2),
    ],
)
def test_bad_parameters(call):
    with pytest.raises(ValueError, match="must be"):
        call()
