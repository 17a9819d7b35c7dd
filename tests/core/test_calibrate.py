"""Calibration: tight, and on the private side of the exact answer."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import mpmath as mp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from demur.core.accounting.calibration import calibrate
from demur.core.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_sigma,
)

SLACK = 4e-14  # of gaussian_mu, as its module states
VECTORS = Path(__file__).parents[1] / "vectors"
GAUSSIAN = json.loads((VECTORS / "gaussian.json").read_text())["rows"]
CAPACITY = json.loads((VECTORS / "capacity.json").read_text())["rows"]


def exact_delta(mu, epsilon):
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), with digits to spare."""
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    a = epsilon / mu - mu / 2
    spare = a * a / 2 / mp.log(10) + 2 * abs(mp.log10(mu)) + 2 * mp.log10(abs(a) + 1)
    with mp.workdps(60 + int(min(spare, 3000))):
        a = epsilon / mu - mu / 2
        upper = mp.erfc(a / mp.sqrt(2)) / 2
        return upper - mp.exp(epsilon) * mp.erfc((a + mu) / mp.sqrt(2)) / 2


def is_private(mu, epsilon, delta):
    with mp.workdps(100):
        return exact_delta(mu, epsilon) <= mp.mpf(delta)


def targets(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        exponent = rng.choice([rng.uniform(-300, 0), rng.uniform(-12, 0)])
        delta = min(10**exponent, 1 - 2**-53)
        near_one = 1 - min(max(delta, 2**-53), 0.5)
        yield 10 ** rng.uniform(-6, 4), rng.choice([delta, delta, near_one])


CORNERS = [
    (epsilon, delta)
    for epsilon in (1e-6, 0.3, 1.0, 20.0, 709.0, 710.0, 1e4)
    for delta in (1e-300, 1e-100, 1e-12, 1e-6, 0.01, 0.5, 0.500001, 0.99, 1 - 2**-53)
]


# mu, on both sides


@pytest.mark.parametrize("row", GAUSSIAN, ids=lambda r: f"{r['epsilon']}-{r['delta']}")
def test_mu_vectors(row):
    mu = gaussian_mu(float(row["epsilon"]), float(row["delta"]))
    with mp.workdps(40):
        ratio = mp.mpf(mu) / mp.mpf(row["mu"]) - 1
    assert -SLACK < ratio <= 0


@pytest.mark.slow
def test_mu_is_private_and_tight():
    for epsilon, delta in [*CORNERS, *targets(120, seed=1)]:
        mu = gaussian_mu(epsilon, delta)
        assert is_private(mu, epsilon, delta)
        assert not is_private(mu * (1 + SLACK), epsilon, delta)


def naive_mu(epsilon, delta):
    """The largest mu in steps of 0.001 by the plain reading of the profile."""

    def phi(x):
        return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))

    def accepts(mu):
        value = phi(mu / 2 - epsilon / mu)
        return value - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu) <= delta

    return max(mu for mu in (k / 1000 for k in range(1, 10_000)) if accepts(mu))


def midpoint_mu(epsilon, delta):
    """The middle of a tight bracket around the exact answer."""
    low = gaussian_mu(epsilon, delta)
    return (low + low * (1 + 1e-12)) / 2


@pytest.mark.parametrize("twin", [naive_mu, midpoint_mu])
def test_sabotaged_twins_fail_the_same_check(twin):
    for epsilon, delta in [(20.0, 1e-10), (20.0, 1e-12)]:
        assert is_private(gaussian_mu(epsilon, delta), epsilon, delta)
        assert not is_private(twin(epsilon, delta), epsilon, delta)


def test_naive_twin_is_wrong_by_orders_of_magnitude():
    """e^20 times the last bit of 1 + erf is 5e-8: below it the sign is noise."""
    assert exact_delta(naive_mu(20.0, 1e-12), 20.0) > 1000 * 1e-12


def test_capacity_vectors():
    for row in CAPACITY:
        mu = gaussian_mu(float(row["epsilon"]), float(row["delta"]))
        assert math.floor((mu * row["sigma_over_delta"]) ** 2) == row["gdp_capacity"]


# epsilon and delta


def epsilon_slack(epsilon, delta):
    return max(1e-13 * epsilon, 1e-13 * delta)


@pytest.mark.slow
def test_epsilon_is_private_and_tight():
    rng = random.Random(2)
    cases = [(mu, 1e-6) for mu in (1e-12, 1e-6, 1e-3, 1.0, 30.0, 1e3)]
    for _ in range(100):
        exponent = rng.choice([rng.uniform(-300, -0.1), rng.uniform(-30, -0.1)])
        cases.append((10 ** rng.uniform(-12, 3), 10**exponent))
    for mu, delta in cases:
        epsilon = gaussian_epsilon(mu, delta)
        assert is_private(mu, epsilon, delta)
        if epsilon > 0.0:
            tighter = epsilon - epsilon_slack(epsilon, delta)
            assert tighter <= 0.0 or not is_private(mu, tighter, delta)


@pytest.mark.parametrize("mu", [1e-12, 1e-3, 0.7, 1.5, 8.0])
def test_epsilon_close_to_the_total_variation(mu):
    variation = math.erf(mu / math.sqrt(8.0))
    assert gaussian_epsilon(mu, variation * (1 + 1e-13)) == 0.0
    for gap in (1e-3, 1e-6, 1e-9, 1e-12):
        delta = variation * (1 - gap)
        epsilon = gaussian_epsilon(mu, delta)
        assert epsilon > 0.0
        assert is_private(mu, epsilon, delta)
        tighter = epsilon - epsilon_slack(epsilon, delta)
        assert tighter <= 0.0 or not is_private(mu, tighter, delta)


def test_epsilon_without_noise_or_without_end():
    assert gaussian_epsilon(0.0, 1e-6) == 0.0
    assert gaussian_epsilon(1e200, 1e-6) == math.inf


@pytest.mark.slow
def test_delta_is_rounded_up_and_tight():
    rng = random.Random(3)
    for _ in range(100):
        mu = 10 ** rng.uniform(-12, 2)
        epsilon = min(mu * rng.uniform(0, 36) + mu * mu / 2, 1e4)
        delta, true = gaussian_delta(mu, epsilon), exact_delta(mu, epsilon)
        with mp.workdps(100):
            assert mp.mpf(delta) >= true
            assert mp.mpf(delta) <= true * (1 + mp.mpf(3e-12))
    assert gaussian_delta(0.0, 1.0) == 0.0
    assert gaussian_delta(1e-12, 1e4) == 5e-324
    assert gaussian_delta(1e3, 1.0) == 1.0


# properties

EPSILON = st.floats(-6, 4).map(lambda x: 10**x)
DELTA = st.floats(-300, -0.01).map(lambda x: 10**x)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(epsilon=EPSILON, delta=DELTA)
def test_round_trips(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-11)
    back = gaussian_epsilon(mu, delta)
    # A mu below the limit by SLACK moves epsilon by mu phi(a) SLACK / (e^eps Phi(-b)),
    # at most a small multiple of max(epsilon, delta).
    assert back == pytest.approx(epsilon, rel=1e-12, abs=1e-12 * delta)
    assert gaussian_mu(max(back, 1e-300), delta) >= mu * (1 - 2 * SLACK)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(epsilon=EPSILON, delta=DELTA, growth=st.floats(1e-9, 3.0))
def test_more_budget_allows_more(epsilon, delta, growth):
    # Steps below the slack may go either way, so it is allowed for.
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_mu(epsilon * (1 + growth), delta) >= mu * (1 - SLACK)
    more = delta * (1 + growth)
    assume(more < 1.0)
    assert gaussian_mu(epsilon, more) >= mu * (1 - SLACK)
    assert gaussian_epsilon(mu, more) <= epsilon + 2e-12 * max(epsilon, delta)
    assert gaussian_epsilon(mu * (1 + growth), delta) >= epsilon * (1 - 1e-12)


# sigma


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    epsilon=EPSILON,
    delta=DELTA,
    sensitivity=st.floats(1e-100, 1e100),
    power=st.integers(-300, 300),
)
def test_sigma_scales_exactly(epsilon, delta, sensitivity, power):
    mu = gaussian_mu(epsilon, delta)
    sigma = gaussian_sigma(epsilon, delta, sensitivity)
    assert Fraction(sensitivity) / Fraction(sigma) <= Fraction(mu)
    below = math.nextafter(sigma, 0.0)
    assert Fraction(sensitivity) / Fraction(below) > Fraction(mu)
    scaled = gaussian_sigma(epsilon, delta, sensitivity * 2.0**power)
    assert scaled == sigma * 2.0**power


@pytest.mark.parametrize("method", ["analytic", "classic"])
def test_sigma_of_nothing_is_nothing(method):
    assert gaussian_sigma(1.0, 1e-6, 0.0, method=method) == 0.0


@pytest.mark.slow
def test_classic_is_the_textledger_formula_within_its_theorem():
    for epsilon in (1e-6, 0.1, 0.5, 1.0):
        for delta in (1e-300, 1e-12, 1e-6, 1e-3, 0.1, 0.4, 0.9):
            sigma = gaussian_sigma(epsilon, delta, 3.0, method="classic")
            formula = 3.0 * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
            assert sigma == pytest.approx(formula, rel=4e-15)
            assert is_private(3.0 / sigma, epsilon, delta)
            assert sigma >= gaussian_sigma(epsilon, delta, 3.0)


def test_classic_refuses_where_it_would_break_its_promise():
    with pytest.raises(ValueError, match=r"epsilon <= 1 only.*epsilon=20\.0"):
        gaussian_sigma(20.0, 1e-6, method="classic")
    with pytest.raises(ValueError, match="epsilon=1.0000"):
        gaussian_sigma(math.nextafter(1.0, 2.0), 1e-6, method="classic")
    formula = math.sqrt(2.0 * math.log(1.25 / 1e-6)) / 20.0
    assert exact_delta(1.0 / formula, 20.0) > 150 * 1e-6
    assert not is_private(1.0 / formula, 20.0, 1e-6)
    assert is_private(1.0 / gaussian_sigma(20.0, 1e-6), 20.0, 1e-6)


def test_sigma_that_overflows_is_refused():
    with pytest.raises(ValueError, match="sensitivity is too large"):
        gaussian_sigma(1e-6, 1e-6, 1e308)


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match="'laplace'"):
        gaussian_sigma(1.0, 1e-6, method="laplace")


# arguments

CALLS = {
    "epsilon": [
        lambda x: gaussian_mu(x, 1e-6),
        lambda x: gaussian_sigma(x, 1e-6),
        lambda x: gaussian_delta(1.0, x),
        lambda x: calibrate(float, x, 1e-6, price=lambda e, d: 1.0),
    ],
    "delta": [
        lambda x: gaussian_mu(1.0, x),
        lambda x: gaussian_sigma(1.0, x),
        lambda x: gaussian_epsilon(1.0, x),
        lambda x: calibrate(float, 1.0, x, price=lambda e, d: 1.0),
    ],
    "mu": [lambda x: gaussian_epsilon(x, 1e-6), lambda x: gaussian_delta(x, 1.0)],
    "sensitivity": [lambda x: gaussian_sigma(1.0, 1e-6, x)],
    "rtol": [lambda x: calibrate(float, 1.0, 0.1, price=lambda e, d: 1.0, rtol=x)],
}


@pytest.mark.parametrize("argument", CALLS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, True, "1", None])
def test_bad_arguments_are_named_and_shown(argument, bad):
    number = isinstance(bad, float)
    error = ValueError if number else TypeError
    for call in CALLS[argument]:
        with pytest.raises(error, match=f"{argument} must be .*got {bad!r}"):
            call(bad)


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_delta_is_strictly_inside(delta):
    with pytest.raises(ValueError, match="delta"):
        gaussian_mu(1.0, delta)
    with pytest.raises(ValueError, match="delta"):
        gaussian_epsilon(1.0, delta)


# the generic search


class Priced:
    """A price function that keeps what it was asked and what it said."""

    def __init__(self, cost):
        self.cost = cost
        self.seen = {}

    def __call__(self, event, delta):
        self.seen[event] = self.cost(event)
        return self.seen[event]


def step(at, *, low=0.5, high=2.0):
    """Misses the target of 1 up to `at`, meets it from there on."""
    return lambda z: high if z < at else low


SHAPES = {
    "smooth": lambda z: 1.7 / z,
    "steep": lambda z: (3.0 / z) ** 40,
    "flat": lambda z: 1.0 + 1e-3 * (1.0 - z / 5.0),
    "touching": lambda z: max(1.0, 4.0 / z),
    "step": step(3.3),
    "step to zero": step(3.3, low=0.0),
    "step from infinity": step(3.3, high=math.inf),
    "step by one bit": step(3.3, low=1.0, high=math.nextafter(1.0, 2.0)),
    "stairs": lambda z: math.floor(40.0 / z) / 10.0,
    "gaussian": lambda z: gaussian_epsilon(1.0 / z, 1e-6),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bracket", [(0.5, 2.0), (1e-3, 1e-2), (100.0, 1e4)])
def test_calibrate_meets_the_target_and_is_tight(shape, bracket):
    price = Priced(SHAPES[shape])
    answer = calibrate(lambda z: z, 1.0, 1e-6, price=price, bracket=bracket)
    assert price.seen[answer] <= 1.0  # priced itself, not a neighbour
    missed = max(z for z, cost in price.seen.items() if cost > 1.0)
    assert missed < answer <= missed * (1 + 1.000001e-6)
    assert len(price.seen) < 50


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(at=st.floats(1e-6, 1e6), low=st.floats(0.0, 1.0), high=st.floats(1.0, 1e300))
def test_calibrate_never_exceeds_at_a_step(at, low, high):
    assume(high > 1.0)
    price = Priced(step(at, low=low, high=high))
    answer = calibrate(lambda z: z, 1.0, 1e-6, price=price)
    assert price.seen[answer] <= 1.0
    assert at <= answer <= at * (1 + 1.000001e-6)


def test_calibrate_never_exceeds_even_if_the_price_is_not_monotone():
    price = Priced(lambda z: 1.0 + math.sin(37.0 * z) / z)
    answer = calibrate(lambda z: z, 1.0, 1e-6, price=price)
    assert price.seen[answer] <= 1.0


def test_a_midpoint_would_exceed():
    """The twin that returns the middle of the last bracket misses at a step."""
    price = Priced(step(3.3))
    answer = calibrate(lambda z: z, 1.0, 1e-6, price=price)
    # A step at the answer itself looks the same to the search at all it has seen.
    worst = Priced(step(answer))
    assert calibrate(lambda z: z, 1.0, 1e-6, price=worst) == answer
    assert worst.seen == price.seen
    missed = max(z for z, cost in worst.seen.items() if cost > 1.0)
    assert worst((missed + answer) / 2, 1e-6) > 1.0


def test_calibrate_asks_for_few_prices():
    price = Priced(SHAPES["gaussian"])
    answer = calibrate(lambda z: z, 1.0, 1e-6, price=price)
    assert answer == pytest.approx(gaussian_sigma(1.0, 1e-6), rel=1e-6)
    assert len(price.seen) <= 12


def test_calibrate_passes_the_event_and_delta():
    def price(event, delta):
        kind, z = event
        assert (kind, delta) == ("gaussian", 1e-6)
        return 1.0 / z

    assert calibrate(lambda z: ("gaussian", z), 0.5, 1e-6, price=price) >= 2.0


def test_calibrate_says_when_the_target_is_unattainable():
    with pytest.raises(ValueError, match=r"no parameter up to .*epsilon=0\.5.*1e-06"):
        calibrate(lambda z: z, 0.5, 1e-6, price=lambda z, delta: 0.51 + 1.0 / z)


def test_calibrate_stops_where_the_target_does_not_bind():
    price = Priced(lambda z: 0.0)
    answer = calibrate(lambda z: z, 1.0, 0.5, price=price)
    assert answer == min(price.seen)


def test_calibrate_refuses_nan_and_an_empty_bracket():
    with pytest.raises(ValueError, match="NaN at parameter=2"):
        calibrate(lambda z: z, 1.0, 1e-6, price=lambda z, delta: math.nan)
    for bracket in ((2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="bracket"):
            calibrate(
                lambda z: z, 1.0, 1e-6, price=lambda z, delta: 1.0, bracket=bracket
            )
