"""Bugs of accountants: each test is named after one, and its twin has it."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import comb
from scipy.stats import binom, norm

from demur import (
    Ball,
    Bound,
    LipschitzMap,
    Sensitivity,
    clip_rows,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_sigma,
    normalize_rows,
    price,
    to_unit_cube,
)
from demur.core.accounting import delta_of, renyi
from demur.core.accounting.calibration import calibrate
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
)
from demur.core.accounting.gaussian import gaussian_delta, ideal_delta
from demur.core.curve import PiecewiseLinear
from demur.ledger import Budget
from demur.mechanisms import BPM
from demur.mechanisms import Gaussian as GaussianMechanism
from demur.unlearning.pricing import capacity
from tests.known_bugs.kit import UNIT, sound_and_twin

ADD, REPLACE = Neighbours.ADD_OR_REMOVE_ONE, Neighbours.REPLACE_ONE

# Every door through which a number reaches a price or a deviation.
DOORS = {
    "Gaussian": GaussianEvent,
    "Pure": Pure,
    "ApproxDP epsilon": lambda x: ApproxDP(x, 0.1),
    "ApproxDP delta": lambda x: ApproxDP(1.0, x),
    "PoissonGaussian q": lambda x: PoissonGaussian(x, 1.0),
    "PoissonGaussian z": lambda x: PoissonGaussian(0.1, x),
    "Truncated q": lambda x: TruncatedPoissonGaussian(100, x, 10, 1.0),
    "Truncated z": lambda x: TruncatedPoissonGaussian(100, 0.1, 10, x),
    "price delta": lambda x: price(GaussianEvent(1.0), x),
    "delta_of epsilon": lambda x: delta_of(GaussianEvent(1.0), x),
    "Budget epsilon": Budget,
    "Budget delta": lambda x: Budget(1.0, x),
    "Ball": lambda x: Ball(x, space="s"),
    "LipschitzMap": lambda x: LipschitzMap("a", "b", x),
    "Bound": lambda x: Bound(x, "declared"),
    "curve slope": PiecewiseLinear.linear,
    "curve cap": lambda x: PiecewiseLinear.linear(1.0, x),
    "curve knot": lambda x: PiecewiseLinear(((0.0, 0.0), (1.0, x)), True),
    "Sensitivity": lambda x: Sensitivity.of({UNIT: x}),
    "gaussian_mu epsilon": lambda x: gaussian_mu(x, 1e-6),
    "gaussian_mu delta": lambda x: gaussian_mu(1.0, x),
    "gaussian_sigma sensitivity": lambda x: gaussian_sigma(1.0, 1e-6, x),
    "gaussian_epsilon mu": lambda x: gaussian_epsilon(x, 1e-6),
    "ideal_delta": ideal_delta,
    "calibrate": lambda x: calibrate(GaussianEvent, x, 1e-6),
    "mechanism sigma": lambda x: GaussianMechanism(x, {UNIT: 1.0}),
    "mechanism sigmas": lambda x: GaussianMechanism(np.array([1, x]), {UNIT: 1.0}, 2),
    "mechanism value": lambda x: GaussianMechanism(1.0, {UNIT: 1.0}).check([x]),
    "BPM epsilon": lambda x: BPM(x, 0.3, 2),
    "BPM L": lambda x: BPM(1.0, x, 2),
    "clip_rows": lambda x: clip_rows([[x]], 1.0),
    "normalize_rows": lambda x: normalize_rows([[x]]),
    "to_unit_cube": lambda x: to_unit_cube([[x]], 0.0, 1.0),
    "to_unit_cube low": lambda x: to_unit_cube([[0.5]], x, 1.0),
    "capacity z": lambda x: capacity.capacity(x, 1.0, 1e-6),
    "capacity epsilon": lambda x: capacity.capacity(10.0, x, 1e-6),
}


@pytest.mark.parametrize("door", DOORS)
def test_row_01_one_nan_erases_the_spend(door):
    def refuses_nan(act):
        try:
            act(math.nan)
        except ValueError:
            return
        raise AssertionError("NaN went in")

    def careless(z):
        """Orders of a NaN never compare, so the conversion falls through to 0."""
        epsilons = [a / (2 * z * z) + 13.8 / (a - 1) for a in range(2, 60)]
        usable = [e for e in epsilons if e == e]
        return min(usable, default=0.0)

    assert careless(0.5) > 12.0 and careless(math.nan) == 0.0
    sound_and_twin(refuses_nan, DOORS[door], careless)


@pytest.mark.parametrize("z", [0.7, 2.0, 9.0])
def test_row_02_a_replaced_record_moves_the_sum_once(z):
    """sigma = z C, and a replaced contribution moves the sum by 2 C: mu = 2 / z."""
    exact = gaussian_epsilon(2.0 / z, 1e-6)

    def agrees(answers):
        for epsilon in answers:
            assert exact * (1 - 1e-9) <= epsilon <= exact * 1.001

    whole = PoissonGaussian(1.0, z, REPLACE)
    ours = [
        price(whole, 1e-6),
        price(Composed((whole, PoissonGaussian(1e-9, 50.0, REPLACE))), 1e-6),
        price(GaussianEvent(z / 2), 1e-6),
    ]
    # Renyi alone has a slack of its own, so it is compared order by order.
    assert renyi.divergence(whole, 8) == pytest.approx(8 * (2 / z) ** 2 / 2, rel=1e-9)
    sound_and_twin(agrees, ours, [price(GaussianEvent(z), 1e-6)])


def optimal_composition(k, epsilon, delta):
    """The least total of k pure mechanisms (Kairouz, Oh and Viswanath 2015)."""
    j = np.arange(k + 1)
    loss = (2 * j - k) * epsilon
    mass = binom.pmf(j, k, 1 / (1 + math.exp(-epsilon)))

    def excess(total):
        return float(mass @ np.maximum(0.0, -np.expm1(total - loss))) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, k * epsilon)


@pytest.mark.parametrize(
    ("k", "epsilon", "delta"), [(1, 0.01, 0.1), (4, 0.05, 0.15), (30, 0.1, 1e-6)]
)
def test_row_07_an_odometer_off_its_theorem(k, epsilon, delta):
    """Theorem 3.4 of KOV has log(e + ...); one library wrote log(epsilon + ...)."""
    best = optimal_composition(k, epsilon, delta)

    def holds(total):
        assert best - 1e-12 <= total <= k * epsilon * (1 + 1e-12)

    def heuristic(constant):
        drift = k * epsilon * math.tanh(epsilon / 2)
        inside = math.log(constant + math.sqrt(k) * epsilon / delta)
        root = math.sqrt(2 * k * inside) if inside >= 0 else math.nan
        bounds = (k * epsilon, drift + epsilon * root)
        return bounds[1] if math.isnan(bounds[1]) else min(bounds)

    holds(heuristic(math.e))
    ours = price(Repeated(Pure(epsilon), k), delta)
    if delta > 0.01:
        sound_and_twin(holds, ours, heuristic(epsilon))
    else:
        holds(ours)


def true_delta(sigma, epsilon):
    """delta(epsilon) of N(0, sigma^2) against N(1, sigma^2), with digits to spare."""
    with mp.workdps(60):
        mu = 1 / mp.mpf(sigma)
        lower = mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
        return mp.ncdf(mu / 2 - epsilon / mu) - lower


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-3), (20.0, 1e-9)])
def test_row_08_the_analytic_gaussian_with_a_wrong_sign(epsilon, delta):
    def private(sigma):
        assert true_delta(sigma, epsilon) <= delta

    def wrong_sign():
        """-e^eps Phi(mu/2 - eps/mu) where the profile has Phi(-mu/2 - eps/mu)."""

        def profile(mu):
            return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
                mu / 2 - epsilon / mu
            )

        return 1 / max(mu for mu in np.geomspace(0.01, 50, 400) if profile(mu) <= delta)

    sound_and_twin(private, gaussian_sigma(epsilon, delta), wrong_sign())


@pytest.mark.slow
def test_row_12_a_search_that_returns_more_than_was_asked():
    """The gap to the target is never positive, over a random grid of targets."""
    rng = np.random.default_rng(12)
    grid = [
        (
            10 ** rng.uniform(-3, 1.5),
            10 ** rng.uniform(-12, -2),
            10 ** rng.uniform(0, 4),
        )
        for _ in range(40)
    ]

    def never_above(search):
        for epsilon, delta, count in grid:
            multiplier = search(epsilon, delta, int(count))
            event = Repeated(GaussianEvent(multiplier), int(count))
            assert price(event, delta) <= epsilon

    def ours(epsilon, delta, count):
        return calibrate(lambda z: Repeated(GaussianEvent(z), count), epsilon, delta)

    def midpoint(epsilon, delta, count):
        """Bisection that stops at a tolerance and returns the middle."""
        low, high = 0.01, 1e6
        while high > low * 1.05:
            middle = math.sqrt(low * high)
            spent = price(Repeated(GaussianEvent(middle), count), delta)
            low, high = (middle, high) if spent > epsilon else (low, middle)
        return math.sqrt(low * high)

    sound_and_twin(never_above, ours, midpoint)


def test_row_12_a_mechanism_is_calibrated_without_all_its_costs():
    """The same for a whole mechanism: its grid and its sampler's share are paid."""
    rng = np.random.default_rng(13)
    grid = [
        (10 ** rng.uniform(-2, 1.3), 10 ** rng.uniform(-12, -2), int(dimension))
        for dimension in rng.integers(1, 200, size=30)
    ]

    def fits_its_budget(make):
        for epsilon, delta, dimension in grid:
            mechanism = make(epsilon, delta, dimension)
            # Rounding to the grid moves two worlds apart by up to g sqrt(d).
            moved = 1.0 + mechanism.grid * math.sqrt(dimension)
            assert true_delta(mechanism.sigma / moved, epsilon) <= ideal_delta(delta)

    def ours(epsilon, delta, dimension):
        return GaussianMechanism.calibrated(
            epsilon=epsilon,
            delta=delta,
            sensitivity={UNIT: 1.0},
            unit=UNIT,
            dimension=dimension,
        )

    def without_its_costs(epsilon, delta, dimension):
        sigma = gaussian_sigma(epsilon, delta)
        return GaussianMechanism(sigma, {UNIT: 1.0}, dimension)

    sound_and_twin(fits_its_budget, ours, without_its_costs)


def test_row_13_a_negative_epsilon():
    events = [
        GaussianEvent(1e6),
        Pure(1e-9),
        Repeated(PoissonGaussian(1e-4, 20.0), 10),
        PoissonGaussian(1e-6, 5.0),
        ApproxDP(0.0, 0.3),
        Composed(()),
    ]

    def from_zero_on(answer):
        for event in events:
            for delta in (1e-12, 1e-5, 0.1, 0.5, 0.999, 1.0):
                answered = answer(event, delta)
                assert answered >= 0.0 and not math.isnan(answered)

    def unclamped(event, delta):
        """The Renyi conversion as it stands: below 0 once delta is large."""
        if not isinstance(event, GaussianEvent):
            return 0.0
        return min(
            a / (2 * event.multiplier**2)
            + math.log1p(-1 / a)
            - math.log(delta * a) / (a - 1)
            for a in range(2, 256)
        )

    sound_and_twin(from_zero_on, price, unclamped)
    for accounting in ("gdp", "zcdp", "rdp"):
        assert capacity.total_epsilon(1, 1e9, 0.5, accounting) >= 0.0


def test_row_15_small_orders_price_at_zero():
    """Divergences grow with the order and with the sampling rate, from order 2 on."""
    orders, z = np.arange(2, 65), 2.0

    def grows(divergences):
        last = np.zeros(len(orders))
        for q in (1e-9, 1e-7, 1e-5, 1e-3, 0.1):
            divergence = np.asarray(divergences(q))
            assert divergence[0] >= math.log1p(q * q * math.expm1(1 / z**2))
            assert (np.diff(divergence) >= 0.0).all()
            assert (divergence >= last).all()
            last = divergence

    def in_plain_floats(q):
        """1 + q^2 is 1: the logarithm of the moment is 0 for a small rate."""
        divergence = []
        for a in orders:
            k = np.arange(a + 1)
            terms = comb(a, k) * (1 - q) ** (a - k) * q**k
            moment = float(terms @ np.exp(k * (k - 1) / (2 * z * z)))
            divergence.append(max(0.0, math.log(moment)) / (a - 1))
        return divergence

    sound_and_twin(
        grows,
        lambda q: renyi.divergences(PoissonGaussian(q, z), orders),
        in_plain_floats,
    )


@pytest.mark.slow
def test_row_16_epsilon_jumps_near_delta_1e_18():
    deltas = [10.0**-k for k in np.arange(12, 26, 0.25)]

    def is_steady(answer):
        epsilons = [answer(delta) for delta in deltas]
        assert epsilons == sorted(epsilons)
        for before, after in zip(epsilons, epsilons[1:], strict=False):
            assert after <= 1.1 * before

    grid = np.geomspace(0.01, 50, 400)
    exact = np.array([gaussian_delta(0.05, float(e)) for e in grid])

    def by_convolution(delta):
        """A profile that a transform left with an error of 1e-17 everywhere."""
        good = np.flatnonzero(exact + 1e-17 * (1 + np.sin(1e4 * grid)) <= delta)
        return float(grid[good[0]]) if len(good) else math.inf

    sound_and_twin(is_steady, lambda d: price(GaussianEvent(20.0), d), by_convolution)
    plan = Repeated(PoissonGaussian(0.01, 2.0, ADD), 100)
    is_steady(lambda delta: price(plan, delta))
