"""How many deletions a budget pays for, and what their noise costs in regret."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from demur.core.accounting.gaussian import gaussian_delta
from demur.unlearning.models.ogd import OGD
from demur.unlearning.pricing import capacity as cap
from demur.unlearning.pricing import regret

VECTORS = Path(__file__).parent.parent / "vectors" / "capacity.json"
ROWS = json.loads(VECTORS.read_text())["rows"]
budgets = st.tuples(st.floats(0.05, 8.0), st.sampled_from([1e-8, 1e-6, 1e-5, 1e-3]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_gaussian_capacity_matches_the_vectors(row):
    z, epsilon, delta = (
        float(row[k]) for k in ("sigma_over_delta", "epsilon", "delta")
    )
    assert cap.capacity(z, epsilon, delta, "gdp") == row["gdp_capacity"]


@pytest.mark.parametrize(
    ("accounting", "expected"),
    [
        ("basic", [2, 3, 9, 18, 36, 172]),
        ("zcdp", [6, 24, 152, 611, 2444, 61105]),
        ("gdp", [7, 28, 179, 718, 2874, 71851]),
    ],
)
def test_capacity_at_the_same_noise(accounting, expected):
    found = [
        cap.capacity(z, 1.0, 1e-5, accounting) for z in (10, 20, 50, 100, 200, 1000)
    ]
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("z", [10.0, 50.0])
def test_gaussian_capacity_against_privacy_loss_distributions(z):
    m = cap.capacity(z, 1.0, 1e-5)

    def epsilon(count):
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        accountant.compose(dp_event.GaussianDpEvent(z), count)
        return accountant.get_epsilon(1e-5)

    assert epsilon(m) <= 1.0 + 1e-3  # the distribution is rounded up
    assert epsilon(m + 1) > 1.0


def _best_order(rho: float, delta: float, a) -> float:
    """min over orders of the conversion of zCDP, as an oracle."""
    return float(np.min(a * rho + np.log1p(-1.0 / a) - np.log(delta * a) / (a - 1.0)))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("z", [30.0, 200.0])
def test_renyi_capacity_is_the_largest_of_a_filters_orders(epsilon, z):
    m = cap.capacity(z, epsilon, 1e-5, "zcdp")
    whole = np.arange(2.0, 1025.0)
    assert _best_order(m / (2 * z * z), 1e-5, whole) <= epsilon
    assert _best_order((m + 1) / (2 * z * z), 1e-5, whole) > epsilon
    assert cap.capacity(z, epsilon, 1e-5, "rdp") == m
    # The best real order allows a little more, which no filter enforces.
    real = 1.0 + np.geomspace(1e-3, 1e5, 400_000)
    assert _best_order(1.02 * (m + 1) / (2 * z * z), 1e-5, real) > epsilon


@pytest.mark.slow
@pytest.mark.parametrize("accounting", cap.ACCOUNTINGS)
@settings(max_examples=40, deadline=None)
@given(budget=budgets, z=st.floats(1.0, 500.0))
def test_what_fits_is_private(accounting, budget, z):
    """The composition is one Gaussian with mu = sqrt(m) / z: its delta is known."""
    epsilon, delta = budget
    m = cap.capacity(z, epsilon, delta, accounting)
    if m:
        assert gaussian_delta(math.sqrt(m) / z, epsilon) <= delta * (1 + 1e-9)


def test_one_more_than_fits_is_not_private():
    for z, epsilon, delta in [(10.0, 1.0, 1e-5), (100.0, 0.5, 1e-6)]:
        m = cap.capacity(z, epsilon, delta) + 1
        assert gaussian_delta(math.sqrt(m) / z, epsilon) > delta


@pytest.mark.slow
@pytest.mark.parametrize("accounting", cap.ACCOUNTINGS)
@settings(max_examples=20, deadline=None)
@given(budget=budgets, m=st.integers(1, 3000))
def test_multiplier_is_the_inverse(accounting, budget, m):
    z = cap.multiplier(m, budget[0], budget[1], accounting)
    assert cap.capacity(z, budget[0], budget[1], accounting) >= m
    assert cap.capacity(z * (1 - 1e-6), budget[0], budget[1], accounting) < m


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0, 12.0, 20.0])
@pytest.mark.parametrize("m", [1, 3])
def test_basic_composition_gives_each_deletion_its_part(epsilon, m):
    z = cap.multiplier(m, epsilon, 1e-5, "basic")
    assert gaussian_delta(1.0 / z, epsilon / m) <= 1e-5 / m


def test_the_classic_formula_alone_would_not():
    epsilon, delta = 20.0, 1e-5
    classic = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert gaussian_delta(1.0 / classic, epsilon) > 100 * delta
    assert cap.multiplier(1, epsilon, delta, "basic") > classic


def test_total_epsilon_reads_back_what_was_sized():
    for accounting in ("gdp", "zcdp", "rdp"):
        z = cap.multiplier(50, 1.0, 1e-5, accounting)
        assert cap.total_epsilon(50, z, 1e-5, accounting) <= 1.0 + 1e-9
        assert cap.total_epsilon(51, z, 1e-5, accounting) > 1.0
        assert cap.total_epsilon(0, z, 1e-5, accounting) == 0.0
    with pytest.raises(ValueError, match="basic"):
        cap.total_epsilon(5, 10.0, 1e-5, "basic")


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 1.0, 1e-5),
        (math.nan, 1.0, 1e-5),
        (10.0, -1.0, 1e-5),
        (10.0, 1.0, 0.0),
        (10.0, 1.0, 1.0),
        (10.0, math.inf, 1e-5),
    ],
)
@pytest.mark.parametrize("accounting", cap.ACCOUNTINGS)
def test_bad_arguments(arguments, accounting):
    with pytest.raises(ValueError, match="must be"):
        cap.capacity(*arguments, accounting=accounting)


def test_unknown_accounting():
    with pytest.raises(ValueError, match="accounting must be one of"):
        cap.capacity(10.0, 1.0, 1e-5, "moments")


# -- regret ------------------------------------------------------------------------


def _disturbances(m, z, G, D, shift, dimension, trials, rng):
    """What m deletions add to the sum of the proof, w - u at its worst each time.

    <w - u, xi> is N(0, (D z shift)^2) whatever the direction; |xi|^2 includes that
    coordinate.
    """
    along = rng.normal(size=(trials, m))
    rest = rng.chisquare(dimension - 1, size=(trials, m))
    sigma = z * shift
    terms = 2.0 * D * sigma * along + sigma**2 * (along**2 + rest)
    return (G / (2.0 * shift) * terms).sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "z", "D", "shift", "dimension"),
    [(1, 3.7, 2.0, 0.05, 20), (40, 3.7, 0.1, 0.5, 300), (200, 10.0, 20.0, 1e-3, 5)],
)
def test_deletion_regret_holds_with_its_probability(m, z, D, shift, dimension):
    rng = np.random.default_rng(5)
    trials, delta_B = 20_000, 0.05
    found = _disturbances(m, z, 1.0, D, shift, dimension, trials, rng)
    bound = regret.deletion_regret(
        m, z, G=1.0, D=D, shift=shift, dimension=dimension, delta_B=delta_B
    )
    # 0.05 plus five standard errors
    assert np.mean(found > bound) <= delta_B + 5 * math.sqrt(delta_B / trials)
    assert bound < 12 * np.quantile(found, 0.95), "and it is not vacuous"


def test_the_seeds_form_of_deletion_regret_does_not():
    """It drops sqrt(d): in 300 dimensions the same check rejects it."""
    m, z, D, shift, dimension = 40, 3.7, 0.1, 0.5, 300
    found = _disturbances(
        m, z, 1.0, D, shift, dimension, 2000, np.random.default_rng(5)
    )
    without = regret.deletion_regret(
        m, z, G=1.0, D=D, shift=shift, dimension=1, delta_B=0.05
    )
    assert np.mean(found > without) > 0.99


def _regret_of_ogd(mode, X, Y, u):
    """sum f_t(w_t) - f_t(u), the regulariser in; Huber loss."""
    total = 0.0
    for x, y in zip(X, Y, strict=True):
        w = mode.published()
        for point, sign in ((w, 1.0), (u, -1.0)):
            gap = abs(float(point @ x) - y)
            loss = gap * gap / 2 if gap <= mode.kappa else mode.kappa * (gap - 0.5)
            total += sign * (loss + mode.lam / 2 * float(point @ point))
        mode.insert(x, float(y))
    return total


def _bound_of(mode, T):
    return regret.strongly_convex_regret(
        mode.gradient_bound,
        2 * mode.radius,
        T,
        lam=mode.lam,
        radius=mode.radius,
        t0=mode.t0,
    )


def test_insertion_regret_of_the_real_learner():
    rng = np.random.default_rng(2)
    for radius in (0.5, 2.0):
        mode = OGD(5, lam=0.1, radius=radius)
        X = rng.normal(size=(400, 5))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        Y = X @ rng.normal(size=5) * 3.0
        u = rng.normal(size=5)
        u *= radius / np.linalg.norm(u)
        assert _regret_of_ogd(mode, X, Y, u) <= _bound_of(mode, 400)


def test_the_start_of_the_clock_is_part_of_the_bound():
    """Without lambda t0 D^2 / 2 the bound fails in the first round."""
    mode = OGD(1, lam=0.1, radius=1.0)
    regret = _regret_of_ogd(mode, np.ones((1, 1)), np.array([10.0]), np.ones(1))
    start = mode.lam * mode.t0 * (2 * mode.radius) ** 2 / 2
    assert regret <= _bound_of(mode, 1)
    assert regret > _bound_of(mode, 1) - start


def test_output_regret_is_a_tail_of_the_noise():
    rng = np.random.default_rng(3)
    m, z, shift, dimension = 30, 5.0, 0.01, 40
    worst = np.linalg.norm(
        rng.normal(size=(3000, m, dimension)) * z * shift, axis=2
    ).max(axis=1)
    bound = regret.output_regret(
        m, z, G=1.0, shift=shift, dimension=dimension, T=1, delta_B=0.05
    )
    assert np.mean(worst > bound) <= 0.05
    assert np.mean(worst > 0.6 * bound) > 0.9


def test_largest_finds_the_edge():
    for edge in (0, 1, 2, 7, 1023, 1024, 10**6):
        assert cap.largest_count(lambda m, edge=edge: m <= edge) == edge
    assert cap.largest_count(lambda m: True, most=37) == 37
