"""The Gaussian mechanism step by step, with the sampler's integers given by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest

from demur.core.adjacency import AddOrRemoveOne, ReplaceOne
from demur.core.digest import digest_of_array
from demur.core.entropy import NoiseKey, Seeded
from demur.core.recording import Shift, Tape, watching
from demur.errors import NotPaidFor, NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian, gaussian
from tests.keys import os_key

UNIT = ReplaceOne()
SIGMAS = np.array([1.0, 3.0, 0.5])


def made(sigma=2.0, dimension=3, moved=1.0, **more):
    return Gaussian(sigma, {UNIT: moved}, dimension=dimension, **more)


@pytest.fixture
def integers(monkeypatch):
    """The sampler gives 5, -7, 11, ...; what it was asked for is kept."""
    asked = []

    def drawn(count, scale, stream, refine):
        asked.append((count, np.array(scale), stream.read(8), refine(3).read(8)))
        return np.array([5, -7, 11, 2][:count])

    monkeypatch.setattr(gaussian, "rounded_gaussian", drawn)
    return asked


def seeded():
    return NoiseKey(Seeded(1).new_key(), private=False)


# -- the grid -----------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1e-6, 1.0, 3.0, 1e9])
@pytest.mark.parametrize("moved", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("dimension", [1, 3, 10_000])
def test_the_grid_is_a_power_of_two_as_coarse_as_its_costs_allow(
    sigma, moved, dimension
):
    wanted = min(2.0**-20 * moved / math.sqrt(dimension), sigma / 2.0**8)
    chosen = max(wanted, 2.0 * sigma / 2.0**44)  # so that no scale passes 2^44
    grid = 2.0 ** math.floor(math.log2(chosen))
    if grid * math.sqrt(dimension) > 1e-4 * moved:
        with pytest.raises(ValueError, match="sigma is too large for this sensitivity"):
            made(sigma, dimension, moved)
        return
    assert made(sigma, dimension, moved).grid == grid
    assert 2.0**8 <= sigma / grid <= 2.0**44


def test_each_coordinate_has_a_grid_of_its_own():
    mechanism = made(SIGMAS)
    one = made(1.0).grid
    assert mechanism.grid.tolist() == [one, 2 * one, one / 2]
    assert mechanism.sigma.tolist() == SIGMAS.tolist()
    assert np.array_equal(mechanism._scale(), SIGMAS / mechanism.grid)
    uneven = made(np.array([1.0, 1.999, 2.0]))
    assert uneven.grid.tolist() == [one, one, 2 * one]


def test_the_slack_of_the_grid_is_in_the_event():
    for sigma in (2.0, SIGMAS):
        mechanism = made(sigma)
        multiplier = Fraction(mechanism.event(UNIT).multiplier)
        if isinstance(sigma, float):
            squares = 3 * Fraction(mechanism.grid) ** 2
            charged = Fraction(sigma) / multiplier - 1
        else:
            squares = sum(
                (Fraction(float(g)) / Fraction(float(s))) ** 2
                for g, s in zip(mechanism.grid, sigma, strict=True)
            )
            charged = 1 / multiplier - 1
        assert charged > 0
        assert squares <= charged**2 <= squares * (1 + Fraction(1, 10**6))


# -- parameters ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"sigma": math.inf}, "sigma must be positive"),
        ({"sigma": np.array([1.0, 2.0])}, "one for each of 3 coordinates; got shape"),
        ({"sigma": np.array([[1.0, 2.0, 3.0]])}, "coordinates; got shape"),
        ({"sigma": np.array([1.0, 0.0, 3.0])}, "positive and finite everywhere"),
        ({"sigma": np.array([1.0, np.inf, 3.0])}, "positive and finite everywhere"),
        ({"dimension": 0}, "dimension must be at least 1"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        made(**given)


def test_a_number_of_any_kind_is_a_number():
    for number in (2, np.float32(2.0), np.float64(2.0)):
        assert type(made(number).sigma) is float and made(number).grid == made().grid
        assert made(number).fingerprint == made().fingerprint
    with pytest.raises(TypeError, match="sigma must be a number"):
        made(np.array(2.0))


def test_the_declaration_says_what_was_given():
    more = {"name": "a count", "unprotected": ("n",), "assumptions": ("a",)}
    told = made(**more).declaration()
    assert (told.name, told.unprotected, told.assumptions) == (
        "a count",
        ("n",),
        ("a",),
    )
    assert told.sampler_distance > 0.0 and told.draws == 1
    assert told.fingerprint == made().fingerprint
    three, one = made(dimension=3), made(dimension=1)
    assert three.declaration().sampler_distance > one.declaration().sampler_distance


@pytest.mark.parametrize("dimension", [1, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 4.0])
def test_calibrated_noise_fits_its_budget_and_no_smaller_one(epsilon, dimension):
    asked = {"delta": 1e-6, "sensitivity": {UNIT: 2.0}, "unit": UNIT}
    mechanism = Gaussian.calibrated(epsilon=epsilon, dimension=dimension, **asked)
    Ledger(Budget(epsilon, 1e-6), unit=UNIT).charge(mechanism, label="x")
    least = Gaussian(mechanism.sigma * (1 - 1e-9), {UNIT: 2.0}, dimension=dimension)
    exact = gaussian.gaussian_mu(epsilon, gaussian.ideal_delta(1e-6))
    assert 1.0 / least.event(UNIT).multiplier > exact
    same = Gaussian.calibrated(epsilon=500.0, dimension=dimension, **asked)
    assert same.sigma == (
        Gaussian.calibrated(epsilon=400.0, dimension=dimension, **asked).sigma
    )


# -- the draw -----------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [2.0, SIGMAS])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1)])
def test_the_value_is_rounded_and_integers_are_added(integers, sigma, shape):
    mechanism = made(sigma)
    grid = mechanism.grid * np.ones(3)
    steps = np.array([1.4, -2.6, 1000.0])
    value = (steps * grid).reshape(shape)
    noisy = mechanism.apply(value, seeded(), draw=2)
    assert noisy.shape == shape
    assert (noisy.reshape(-1) / grid).tolist() == [1 + 5, -3 - 7, 1000 + 11]
    ((count, scale, first, refined),) = integers
    assert count == 3 and np.array_equal(scale, mechanism.sigma / mechanism.grid)
    assert first == seeded().stream("gaussian", 2).read(8)
    assert refined == seeded().stream("gaussian refine 2", 3).read(8)
    alone = mechanism.noise(seeded(), draw=2)
    assert (alone / grid).tolist() == [5, -7, 11]


def test_the_first_draw_is_number_0(integers):
    made().apply(np.zeros(3), seeded())
    made().noise(seeded())
    expected = seeded().stream("gaussian", 0).read(8)
    assert [each[2] for each in integers] == [expected] * 2


def test_a_larger_mechanism_may_have_paid(integers):
    key = os_key(made(5.0), "input")
    with pytest.raises(NotPaidFor, match="another mechanism"):
        made().apply(np.zeros(3), key)
    value = np.zeros(3)
    whole = os_key(made(5.0), digest_of_array(value))
    made().apply(value, whole, paid_as=made(5.0).fingerprint)
    again = os_key(made(5.0), digest_of_array(value))
    authorised = again.authorise(made(5.0).fingerprint, digest_of_array(value))
    made().noise(authorised, paid_as=made(5.0).fingerprint)
    with pytest.raises(NotPaidFor, match="not authorised"):
        made().noise(authorised)


@pytest.mark.parametrize("sigma", [2.0, SIGMAS])
def test_values_are_counted_exactly_or_refused(sigma):
    mechanism = made(sigma)
    grid = mechanism.grid * np.ones(3)
    for at in range(3):
        value = np.zeros(3)
        value[at] = -(2.0**52 - 1) * grid[at]
        assert mechanism.check(value)[at] == value[at]
        mechanism.check_bound(value)
        value[at] = 2.0**52 * grid[at]
        for ask in (mechanism.check, mechanism.check_bound):
            with pytest.raises(ValueError, match="a coordinate exceeds 2"):
                ask(value)
    for wrong in ([1.0, 2.0], [[1.0]], np.zeros(4)):
        with pytest.raises(ValueError, match="must have 3 coordinates, as declared"):
            mechanism.check(wrong)
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="value must be finite"):
            mechanism.check([0.0, wrong, 0.0])
    assert mechanism.digest([1, 2, 3]) == digest_of_array(np.array([1.0, 2.0, 3.0]))


def test_a_recording_sees_the_value_and_the_noise(integers):
    mechanism = made(name="a count")
    first = Tape()
    with watching(first):
        noisy = mechanism.apply(np.array([1.0, 2.0, 3.0]), seeded())
        mechanism.noise(seeded())
    one, two = first.uses
    assert one.name == two.name == "a count"
    assert (
        one.value[0].tolist() == [1.0, 2.0, 3.0] and two.value[0].tolist() == [0.0] * 3
    )
    assert np.array_equal(one.released, noisy)
    assert isinstance(one.declared, Shift) and one.declared.sigma == 2.0
    assert one.declared.sensitivity == mechanism.sensitivity


def test_plain_floats_are_for_seeded_keys():
    mechanism = made()
    with pytest.raises(NotPrivate, match="Seeded source alone"):
        mechanism.apply_plain_float(np.zeros(3), os_key(mechanism, "x"))
    value = np.array([[1.0, 2.0, 3.0]])
    plain = mechanism.apply_plain_float(value, seeded())
    seed = int.from_bytes(seeded().stream("gaussian").read(16), "little")
    noise = np.random.default_rng(seed).normal(size=3) * 2.0
    np.testing.assert_array_equal(plain, value + noise)


def test_a_release_pays_for_its_value_and_commits_what_came_out():
    ledger = Ledger(Budget(8.0, 1e-6), unit=AddOrRemoveOne())
    mechanism = Gaussian(2.0, {AddOrRemoveOne(): 1.0}, dimension=3)
    asked = []
    paid = ledger.paid

    def heard(*given, **named):
        asked.append(named)
        return paid(*given, **named)

    ledger.paid = heard
    source = Seeded(1)
    result = mechanism.release(
        [1.0, 2.0, 3.0], ledger=ledger, label="x", idempotency_key="k", source=source
    )
    digest = digest_of_array(np.array([1.0, 2.0, 3.0]))
    named = {"label": "x", "digest": digest, "idempotency_key": "k", "source": source}
    assert asked == [named]
    commit = ledger.commit_of(result.entry)
    assert commit.artefact == digest_of_array(result.value)
    mechanism.release([1.0, 2.0, 3.0], ledger=ledger)
    assert asked[1] == {
        "label": "a noisy value",
        "digest": digest,
        "idempotency_key": None,
        "source": None,
    }
