"""The Gaussian mechanism: its promise, its bits, its refusals."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from demur.core.accounting import events
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, ZeroOut
from demur.core.curve import PiecewiseLinear
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import (
    BudgetExceeded,
    IdempotencyConflict,
    NoiseReuse,
    NotCovered,
    NotPrivate,
)
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from tests.keys import os_key
from tests.mechanisms import drawing

UNIT = AddOrRemoveOne()
EPSILON, DELTA = 1.0, 1e-6


def seeded_key(seed: int) -> NoiseKey:
    return NoiseKey(Seeded(seed).new_key(), private=False)


def calibrated(dimension: int, sensitivity: float = 1.0) -> Gaussian:
    return Gaussian.calibrated(
        epsilon=EPSILON,
        delta=DELTA,
        sensitivity={UNIT: sensitivity},
        unit=UNIT,
        dimension=dimension,
    )


# -- the attack ----------------------------------------------------------------


def reachable(released: np.ndarray, candidate: np.ndarray) -> bool:
    """Whether released = fl(candidate + n) for some float n, in every coordinate.

    The n with fl(candidate + n) = y form an interval around y - candidate; if it holds
    any float it holds the nearest one to its centre, fl(y - candidate).
    """
    noise = released - candidate
    return bool(np.all(candidate + noise == released))


def identify(released: np.ndarray, worlds: tuple[np.ndarray, np.ndarray]) -> int | None:
    """The one world that can have led to `released`, if the other cannot have."""
    possible = [reachable(released, world) for world in worlds]
    return possible.index(True) if sum(possible) == 1 else None


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [513, 7690])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_of_naive_noise_name_the_world_and_ours_do_not(
    dimension: int, dtype: type
) -> None:
    trials = 200
    rng = np.random.default_rng(dimension)
    sensitivity = 0.01
    mechanism = calibrated(dimension, sensitivity)
    sigma = float(mechanism.sigma)
    # Coordinates of the size of a trained head's weights, about twice the noise. (The
    # attack fades where a coordinate is 25 times the noise: 65% to 90% at d = 513.)
    first = (0.1 * rng.normal(size=dimension)).astype(dtype)
    step = rng.normal(size=dimension)
    second = (first + step * (0.999 * sensitivity / np.linalg.norm(step))).astype(dtype)
    worlds = (first, second)
    truth = rng.integers(0, 2, size=trials)

    named = 0
    for world in truth:
        noise = (rng.normal(size=dimension) * sigma).astype(dtype)
        named += identify(worlds[world] + noise, worlds) == world
    assert named > 0.9 * trials, "the attack has lost its power"

    # Ours: every integer is reachable from both worlds, so only the likelihood is
    # left, and the best test on it is right with probability Phi(mu / 2).
    assert isinstance(mechanism.grid, float)
    grid = mechanism.grid
    direction = (second.astype(float) - first) / np.linalg.norm(
        second.astype(float) - first
    )
    middle = direction @ ((first.astype(float) + second) / 2)
    certain = likely = 0
    for world in truth:
        released = mechanism.apply(worlds[world], os_key(mechanism))
        indices = released / grid
        assert np.array_equal(indices, np.rint(indices))
        found = identify(released, (first.astype(float), second.astype(float)))
        certain += found == world
        likely += (direction @ released > middle) == world
    most = stats.norm.cdf(gaussian_mu(EPSILON, DELTA) / 2)
    for right in (certain, likely):
        assert stats.binomtest(right, trials, most, alternative="greater").pvalue > 1e-6


def test_released_support_is_the_same_in_both_worlds() -> None:
    """A sabotaged twin that forgets the grid is told apart by its support alone."""
    mechanism = calibrated(64, 0.01)
    assert isinstance(mechanism.grid, float)
    first = np.full(64, 1 / 3)
    for world in (first, first + 1e-5):
        good = mechanism.apply(world, os_key(mechanism)) / mechanism.grid
        assert np.array_equal(good, np.rint(good))
        forgot = (
            mechanism.apply(np.zeros(64), os_key(mechanism)) + world
        ) / mechanism.grid
        assert not np.array_equal(forgot, np.rint(forgot))


# -- the distribution ------------------------------------------------------------


def noise_is_normal(noise: np.ndarray, sigma: float) -> bool:
    """Kolmogorov-Smirnov, variance, mean and sign, each at 1e-6 / 4."""
    n, alpha = noise.size, 1e-6 / 4
    scaled = noise / sigma
    chi = stats.chi2(n).cdf(float(scaled @ scaled))
    signs = stats.binomtest(int((noise > 0).sum()), int((noise != 0).sum()))
    return bool(
        stats.kstest(scaled, "norm").pvalue > alpha
        and min(chi, 1 - chi) * 2 > alpha
        and abs(scaled.mean()) * math.sqrt(n) < stats.norm.isf(alpha / 2)
        and signs.pvalue > alpha
    )


def test_the_mechanism_as_a_whole_adds_normal_noise() -> None:
    # A scale off by 5% moves sum x^2 / sigma^2 by 0.1 n, against a deviation of
    # sqrt(2 n): 20,000 coordinates put 10 deviations between the two (5.2 reject).
    n = 20_000
    mechanism = Gaussian(sigma=3.7, sensitivity={UNIT: 1.0}, dimension=n)
    value = np.linspace(-50, 50, n)
    noise = mechanism.apply(value, os_key(mechanism)) - value
    assert noise_is_normal(noise, 3.7)
    assert not noise_is_normal(noise * 1.05, 3.7)
    assert not noise_is_normal(noise * 0.95, 3.7)
    assert not noise_is_normal(noise + 0.08 * 3.7, 3.7)
    assert not noise_is_normal(np.abs(noise), 3.7)


def test_one_sigma_for_each_coordinate() -> None:
    n = 20_000
    sigma = np.geomspace(1e-3, 1e3, n)
    mechanism = Gaussian(sigma=sigma, sensitivity={UNIT: 0.2}, dimension=n)
    value = np.sin(np.arange(n)) * sigma
    noise = mechanism.apply(value, os_key(mechanism)) - value
    assert noise_is_normal(noise / sigma, 1.0)
    assert not noise_is_normal(noise / sigma * 1.05, 1.0)
    event = mechanism.event(UNIT)
    assert isinstance(event, events.GaussianEvent)
    # Here the sensitivity is mu itself, plus the grid's cost.
    assert 0.2 < 1 / event.multiplier <= 0.2 * (1 + 1.1e-4)


def test_seeded_noise_repeats_and_os_noise_does_not() -> None:
    mechanism = calibrated(8)
    value = np.zeros(8)
    same = [mechanism.apply(value, seeded_key(3)) for _ in range(2)]
    assert np.array_equal(*same)
    fresh = [mechanism.apply(value, os_key(mechanism)) for _ in range(2)]
    assert not np.array_equal(*fresh)


# -- the cost --------------------------------------------------------------------


@pytest.mark.slow
@given(
    sigma=st.floats(1e-6, 1e6),
    ratio=st.floats(1e-3, 1e3),
    dimension=st.integers(1, 10**6),
)
def test_grid_costs_little_and_is_charged(
    sigma: float, ratio: float, dimension: int
) -> None:
    sensitivity = sigma * ratio
    mechanism = Gaussian(sigma, {UNIT: sensitivity}, dimension)
    assert isinstance(mechanism.grid, float)
    assert math.frexp(mechanism.grid)[0] == 0.5, "a power of two"
    exact = Fraction(mechanism.grid) ** 2 * dimension
    assert exact <= (Fraction(1e-4) * Fraction(sensitivity)) ** 2
    event = mechanism.event(UNIT)
    assert isinstance(event, events.GaussianEvent)
    # Charged: sigma / multiplier >= sensitivity + grid sqrt(d), in exact arithmetic.
    charged = Fraction(sigma) / Fraction(event.multiplier) - Fraction(sensitivity)
    assert charged > 0 and charged**2 >= exact


def test_rounding_to_the_grid_moves_two_worlds_by_at_most_what_is_charged() -> None:
    mechanism = calibrated(100)
    grid = mechanism.grid
    half = np.full(100, 0.5) * grid
    # The worst case: every coordinate sits at a tie and is pushed across it.
    low, high = half * (1 - 1e-9), half * (1 + 1e-9)
    moved = np.rint(high / grid) - np.rint(low / grid)
    assert np.linalg.norm(moved) * grid == pytest.approx(10 * grid)
    event = mechanism.event(UNIT)
    assert isinstance(event, events.GaussianEvent)
    charged = float(mechanism.sigma) / event.multiplier - 1.0
    assert charged >= np.linalg.norm(moved) * grid


@pytest.mark.parametrize("dimension", [1, 1000, 10**6])
def test_calibrated_uses_the_budget_up_exactly(dimension: int) -> None:
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    mechanism = calibrated(dimension)
    ledger.charge(mechanism, label="all of it")
    assert 0.999999 < ledger.epsilon() <= EPSILON
    # No noise to spare: 0.01% less would not fit.
    less = Gaussian(float(mechanism.sigma) * 0.9999, {UNIT: 1.0}, dimension)
    with pytest.raises(BudgetExceeded):
        Ledger(Budget(EPSILON, DELTA), unit=UNIT).charge(less, label="too much")


def test_cost_follows_the_unit() -> None:
    mechanism = Gaussian(
        4.0,
        {
            UNIT: 1.0,
            ReplaceOne(): 2.0,
            "records": PiecewiseLinear.linear(slope=1.0, cap=2.0),
        },
    )
    near, far = (
        mechanism.event(Ball(radius, space="records")) for radius in (0.5, 50.0)
    )
    assert isinstance(near, events.GaussianEvent) and isinstance(
        far, events.GaussianEvent
    )
    assert near.multiplier == pytest.approx(8.0, rel=1e-4)
    assert far.multiplier == pytest.approx(2.0, rel=1e-4)
    assert mechanism.event(Ball(0.5, space="elsewhere")) == mechanism.event(
        ReplaceOne()
    )
    with pytest.raises(NotCovered, match="ZeroOut"):
        mechanism.event(ZeroOut())


def test_sampler_distance_reaches_the_reading() -> None:
    mechanism = calibrated(1000)
    distance = mechanism.declaration().sampler_distance
    assert 0 < distance < 1e-70
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    ledger.charge(mechanism, label="x")
    assert ledger.reading().sampler_distance >= distance


# -- refusals: nothing is spent ----------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        [math.nan, 0.0],
        [math.inf, 0.0],
        [0.0],
        [0.0, 0.0, 0.0],
        ["a", "b"],
        [1e300, 0.0],
        [2.0**52, 0.0],
    ],
)
def test_bad_values_are_refused_before_anything_is_spent(value: list) -> None:
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    with pytest.raises(ValueError, match="value"):
        calibrated(2).release(value, ledger=ledger, label="bad")
    assert ledger.entries() == []


def test_overflow_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="Centre or rescale"):
        calibrated(1).check([1e30])


def test_largest_accepted_value_is_exact() -> None:
    mechanism = Gaussian(1.0, {UNIT: 1.0})
    assert isinstance(mechanism.grid, float)
    value = mechanism.grid * (2.0**52 - 1)
    released = mechanism.apply([value], os_key(mechanism))
    index = Fraction(float(released[0])) / Fraction(mechanism.grid)
    assert index.denominator == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"sigma": math.nan},
        {"sigma": 0.0},
        {"sigma": -1.0},
        {"sigma": math.inf},
        {"sigma": np.array([1.0, math.nan])},
        {"sigma": np.array([1.0, 2.0, 3.0])},
        {"sensitivity": {}},
        {"sensitivity": {UNIT: 0.0}},
        {"sensitivity": {UNIT: math.nan}},
        {"sensitivity": 1.0},
        {"sensitivity": {"records": 1.0}},
        {"dimension": 0},
        {"dimension": True},
        {"sigma": 1e15},
    ],
)
def test_bad_parameters_are_refused(arguments: dict) -> None:
    good = {"sigma": 1.0, "sensitivity": {UNIT: 1.0}, "dimension": 2}
    with pytest.raises((ValueError, TypeError)):
        Gaussian(**(good | arguments))


def test_a_declined_release_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("noise was drawn for a declined charge")

    ledger = Ledger(Budget(0.1, DELTA), unit=UNIT)
    monkeypatch.setattr(Gaussian, "apply", never)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        calibrated(2).release([1.0, 2.0], ledger=ledger, label="too much")


def test_plain_float_noise_exists_under_a_seed_alone() -> None:
    mechanism = calibrated(2)
    with pytest.raises(NotPrivate):
        mechanism.apply_plain_float([0.0, 0.0], os_key(mechanism))
    assert mechanism.apply_plain_float([0.0, 0.0], seeded_key(1)).shape == (2,)


def test_a_seeded_release_is_stamped() -> None:
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    release = calibrated(1).release([0.0], ledger=ledger, label="t", source=Seeded(1))
    assert release.statement().startswith("NOT PRIVATE")


# -- noise is never reused ---------------------------------------------------------


def test_a_retried_task_draws_the_same_noise_and_pays_once(tmp_path) -> None:
    url = tmp_path / "ledger.db"
    budgets = {UNIT: Budget(EPSILON, DELTA)}
    mechanism, value = calibrated(5), np.arange(5.0)
    digest = mechanism.digest(value)

    def first_half() -> np.ndarray:
        """Everything up to, and without, the commit: the task dies there."""
        with Ledger.open(url, dataset="d", budgets=budgets) as ledger:
            payment = ledger.paid(
                mechanism, label="t", digest=digest, idempotency_key="task-1"
            )
            return mechanism.apply(value, payment.key)

    drawn = first_half()
    assert np.array_equal(first_half(), drawn)
    with Ledger.open(url) as ledger:
        (entry,) = ledger.entries()
        with pytest.raises(NoiseReuse, match="another input"):
            ledger._key(entry, "other")
        ledger._commit(entry, "artefact")
        with pytest.raises(NoiseReuse, match="committed"):
            ledger._key(entry, digest)


def test_mechanisms_of_equal_cost_are_not_the_same_mechanism() -> None:
    """Noise scaled by 2 on one value twice gives the value: 2 a - b."""
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    small, large = Gaussian(16.0, {UNIT: 1.0}), Gaussian(32.0, {UNIT: 2.0})
    assert small.event(UNIT) == large.event(UNIT)
    bound = {"digest": "abc", "idempotency_key": "task"}
    ledger.charge(small, label="a", **bound)
    with pytest.raises(IdempotencyConflict):
        ledger.charge(large, label="a", **bound)
    mixed = [Gaussian(np.array(s), {UNIT: 0.1}, 2) for s in ([1.0, 4.0], [4.0, 1.0])]
    assert mixed[0].declaration() != mixed[1].declaration()


def test_a_key_is_dead_after_its_commit_and_after_its_use() -> None:
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    mechanism = Gaussian(20.0, {UNIT: 1.0})
    entry = ledger.charge(mechanism, label="x")
    key = ledger._key(entry, None)
    mechanism.apply([100.0], key)
    with pytest.raises(NoiseReuse, match="twice"):
        mechanism.apply([100.0], key)
    ledger._commit(entry, "artefact")
    key._secret.used.clear()
    with pytest.raises(NoiseReuse, match="wiped"):
        mechanism.apply([100.0], key)


def test_equal_inputs_do_not_look_equal_in_the_ledger(tmp_path) -> None:
    """Else a reader who may release a guess learns whether it is the private value."""
    path = tmp_path / "ledger.db"
    with Ledger.open(
        path, dataset="d", budgets={UNIT: Budget(EPSILON, DELTA)}
    ) as ledger:
        for label in ("private", "guess"):
            Gaussian(20.0, {UNIT: 1.0}).release([1234.0], ledger=ledger, label=label)
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT body FROM demur_rows WHERE kind = 'charge'"
        ).fetchall()
    connection.close()
    kept = [json.loads(body)["input"] for (body,) in rows]
    assert len(set(kept)) == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_never_repeat_a_draw(method: str) -> None:
    context = multiprocessing.get_context(method)
    number = 3 if method == "fork" else 1  # a second each, to import everything
    draws = drawing.here_and_there(context, number, drawing.gaussian_noise)
    assert len(draws) == number + 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_of_a_key_refuses() -> None:
    """The twin shows that an unguarded stream would repeat its parent's bytes."""
    mechanism = Gaussian(1.0, {UNIT: 1.0}, 4)
    key = os_key(mechanism)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mechanism.apply(np.zeros(4), key)
            answer = b"drew"
        except NoiseReuse:
            key._process = os.getpid()  # the guard taken out
            answer = b"refused" + mechanism.apply(np.zeros(4), key).tobytes()
        except BaseException as error:
            answer = repr(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(reader, 1000)
    os.close(reader)
    os.close(writer)
    assert answer.startswith(b"refused")
    parent = mechanism.apply(np.zeros(4), key).tobytes()
    assert answer == b"refused" + parent, "without the guard the noise repeats"


@pytest.mark.slow
def test_threads_that_release_at_once_get_different_noise() -> None:
    ledger = Ledger(Budget(EPSILON, DELTA), unit=UNIT)
    mechanism = Gaussian(100.0, {UNIT: 1.0}, 16)
    with ThreadPoolExecutor(8) as pool:
        releases = list(
            pool.map(
                lambda i: mechanism.release(np.zeros(16), ledger=ledger, label=f"{i}"),
                range(32),
            )
        )
    assert len({r.value.tobytes() for r in releases}) == 32
    assert len(ledger.entries()) == 32


def test_calibration_leaves_the_samplers_share() -> None:
    assert calibrated(1).sigma >= 1 / gaussian_mu(EPSILON, ideal_delta(DELTA))
