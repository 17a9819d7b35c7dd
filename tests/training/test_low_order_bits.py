"""The attack on the low-order bits of floating-point noise, against `fit`.

The attacker knows every record but one, the program, the deviation and every number
that the generator can give, but not the key. One step of gradient descent from zero
publishes minus the noisy sum. Near a value only some floats are sum + noise for one of
the generator's numbers (Mironov 2012), so a candidate for the sum under which a
coordinate could not have come about is ruled out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import erf

from demur.core.entropy import Seeded
from demur.training import Reporting, Resources, ShapePlan, dp_sgd, fit
from demur.training.noise.lattice import Lattice
from demur.training.noise.threefry import _ROOT_2

WIDTH, ROWS, MULTIPLIER = 64, 12, 2.0
ONE = ShapePlan((16,), None, 2, 0.0, 0.0, 0.0)


def linear(params, row):
    """Its gradient is the row itself: the sum is exact, whatever the order."""
    return jnp.sum(params * row)


def released(plan, data, seed):
    """Minus the model after one step of `fit` from zero: the noisy sum."""
    seen = []

    def stop(report):
        seen.append(np.asarray(report.params()))
        return True

    fit(
        plan,
        linear,
        jnp.zeros(WIDTH),
        data,
        optimizer=optax.sgd(1.0),
        source=Seeded(seed),
        delta=1e-5,
        resources=Resources(shapes=ONE, check_loss=False),
        reporting=Reporting(callback=stop),
    )
    return -seen[0]


@jax.jit
def numbers_at(words):
    """What the generator makes of signed words of 24 bits."""
    exact = (words.astype(jnp.float32) + 0.5) * 2.0**-23
    return _ROOT_2 * jax.lax.erf_inv(exact)


def ruled_out(values, sums, spec):
    """In how many coordinates no noise leads from the sum to the value."""
    if spec.hardened:
        # Every multiple of the grid is noise.
        grid = float(spec.lattice(WIDTH).mechanism.grid)
        index = np.rint(sums.astype(np.float64) / grid)
        noise = np.rint(values.astype(np.float64) / grid - index)
        return int(np.sum(((index + noise) * grid).astype(np.float32) != values))
    # The words around the one that is needed, and all that they may lead to.
    needed = (values.astype(np.float64) - sums) / spec.stddev
    middle = np.floor(erf(needed / np.sqrt(2)) * 2**23)
    words = np.clip(middle[:, None] + np.arange(-32, 33), -(2**23), 2**23 - 1)
    noise = np.asarray(numbers_at(jnp.asarray(words, jnp.int32)))
    deviation = np.float32(spec.stddev)
    in_two = (sums[:, None] + (deviation * noise).astype(np.float32)).astype(np.float32)
    fused = sums[:, None].astype(np.float64) + float(deviation) * noise.astype(float)
    fits = (in_two == values[:, None]) | (fused.astype(np.float32) == values[:, None])
    return int(np.sum(~fits.any(axis=1)))


def made(noise, multiplier=MULTIPLIER):
    return dp_sgd(
        iterations=2,
        sampling_prob=1.0,
        noise_multiplier=multiplier,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        noise=noise,
    ).make()


def evidence(noise, runs=4):
    """(coordinates that rule out the truth, that rule out the other) over some runs."""
    rng = np.random.default_rng(1)
    data = (rng.integers(-60, 60, size=(ROWS, WIDTH)) / 1024).astype(np.float32)
    assert np.linalg.norm(data, axis=1).max() < 1.0  # nothing is clipped
    plan = made(noise)
    spec = plan.noise_addition_transform.spec
    with_it, without = data.sum(0), data[1:].sum(0)
    found = []
    for seed in range(runs):
        for rows, truth, other in (
            (data, with_it, without),
            (data[1:], without, with_it),
        ):
            values = released(plan, rows, seed)
            found.append(
                (ruled_out(values, truth, spec), ruled_out(values, other, spec))
            )
    return np.array(found)


@pytest.mark.slow
def test_plain_noise_tells_whether_a_record_took_part():
    found = evidence("threefry")
    # A few of the attacker's numbers are off by a bit: the program's are fused.
    assert (found[:, 1] > 3 * found[:, 0] + WIDTH // 4).all()


@pytest.mark.slow
def test_hardened_noise_does_not():
    assert (evidence("lattice") == 0).all()


# -- the grid itself, visible: noise so small that floats are finer than it ------------

FINE = 2.0**-6


def beside_the_grid(runs=2):
    """For either sum: the coordinates that are no whole number of steps away from it.

    The record of which the attacker wants to know is a fraction of the grid long.
    """
    plan = made("lattice", FINE)
    grid = float(plan.noise_addition_transform.spec.lattice(WIDTH).mechanism.grid)
    rng = np.random.default_rng(2)
    steps = rng.integers(-1000, 1000, size=(2, WIDTH)) + np.array([[0.0], [0.3]])
    data = (steps * grid).astype(np.float32)
    found = {"with it": [], "without": []}
    for seed in range(runs):
        for name, rows in (("with it", data), ("without", data[:1])):
            values = released(plan, rows, seed).astype(np.float64)
            near = np.abs(values) < 2.0**21 * grid  # floats are finer than the grid
            for sums in (data.sum(0), data[0]):
                away = (values - sums)[near] / grid
                found[name].append(np.mean(np.abs(away - np.rint(away)) > 0.2))
    return found


@pytest.mark.slow
def test_a_sum_beside_the_grid_is_hidden():
    found = beside_the_grid()
    assert found["with it"] == found["without"]
    assert set(found["with it"]) == {0.0, 1.0}


@pytest.mark.slow
def test_noise_of_whole_steps_on_the_sum_itself_is_not(monkeypatch):
    """The twin does not put the sum on the grid."""

    def beside(self, step, combined, key):
        key = self.authorised(key, step)
        return combined + self.mechanism.noise(key, draw=step, paid_as=self.paid_as)

    monkeypatch.setattr(Lattice, "_noisy", beside)
    found = beside_the_grid(1)
    assert found == {"with it": [0.0, 1.0], "without": [1.0, 0.0]}
