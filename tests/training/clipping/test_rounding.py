"""No contribution is longer than the clip norm, whatever floating point does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from demur.training.bookkeeping import norms
from demur.training.bookkeeping.factors import Factors
from demur.training.bookkeeping.norms import measure, way_of
from demur.training.bookkeeping.rounding import sum_of_squares, total
from demur.training.clip_factors import Clip


def cancelling(rng, positions, width):
    """Factors whose positions nearly cancel in the gradient."""
    right = np.repeat(rng.normal(size=(1, 1, 1, width)), positions, axis=2)
    left = rng.normal(size=(1, 1, positions, width))
    left[:, :, 1::2] = -left[:, :, ::2] * (1 + rng.uniform(-0.05, 0.05))
    return left, right


def exact_contribution(factors, weight, dtype):
    """What one example adds, in float64, once the scaled factor is rounded."""
    left, right = (np.asarray(part, np.float64) for part in factors)
    scaled = (left.astype(np.float32) * np.float32(weight)).astype(dtype)
    gradient = np.einsum("bsti,bsto->sio", scaled.astype(np.float64), right)
    return float(np.linalg.norm(gradient))


def contribution(rng, monkeypatch, dtype, wobble=True):
    """The length of one clipped contribution, for a clip norm of one."""
    monkeypatch.setattr(norms, "_has_half_products", lambda: True)
    monkeypatch.setattr(norms, "_table_dtype", lambda _: jnp.dtype("float64"))
    parts = [np.asarray(part).astype(dtype) for part in cancelling(rng, 4, 32)]
    assert way_of(4, 32, 32) == "Gram"
    found = measure(Factors(*(jnp.asarray(part) for part in parts)))
    if not wobble:
        found = norms.Measured(
            found.square, found.upper, None, found.dtype, found.add_up
        )
    clip = Clip(0.01, False, 1.0)
    (weight,), fine = clip.factors([found], [0], None)
    assert bool(fine[0])
    assert float(weight[0]) < 1.0
    return exact_contribution(parts, float(weight[0]), dtype) / 0.01


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_rounded_factors_stay_within_the_norm(monkeypatch, dtype):
    rng = np.random.default_rng(1)
    found = [contribution(rng, monkeypatch, dtype) for _ in range(20)]
    assert max(found) <= 1.0
    assert max(found) > (0.3 if dtype != np.float32 else 1 - 1e-4)


def test_without_the_slack_they_do_not(monkeypatch):
    """The same check, with the rounding of the scaled factor left out of account."""
    rng = np.random.default_rng(1)
    found = [
        contribution(rng, monkeypatch, ml_dtypes.bfloat16, wobble=False)
        for _ in range(20)
    ]
    assert max(found) > 1.01


@pytest.mark.parametrize("way", ["one position", "Gram", "instantiated"])
def test_upper_bounds_are_above_and_close(way):
    rng = np.random.default_rng(2)
    positions = {"one position": 1, "Gram": 5, "instantiated": 40}[way]
    left, right = (
        rng.normal(size=(6, 2, positions, width)).astype(np.float32)
        for width in (30, 20)
    )
    assert way_of(positions, 30, 20) == way
    found = measure(Factors(jnp.asarray(left), jnp.asarray(right)))
    gradients = np.einsum(
        "bsti,bsto->bsio", left.astype(np.float64), right.astype(np.float64)
    )
    true = np.sum(gradients**2, axis=(1, 2, 3))
    upper = np.asarray(found.upper)
    assert np.all(np.asarray(found.square) == pytest.approx(true, rel=1e-6))
    assert np.all(upper < true * (1 + 1e-6))
    # An instantiated gradient is itself rounded; its own norm is what counts.
    if way != "instantiated":
        assert np.all(upper >= true)


def test_a_sum_in_single_precision_would_lose_what_ours_keeps():
    lost = jnp.full((1, 4_000_001), 2.0**-13).at[0, 0].set(1.0)
    true = 1 + 4_000_000 * 2.0**-26
    value, upper = sum_of_squares(lost, 1)
    assert float(value[0]) == pytest.approx(true, rel=1e-12)
    assert float(upper[0]) >= true
    in_order = jax.lax.scan(
        lambda so_far, one: (so_far + one * one, None), jnp.float32(0), lost[0]
    )[0]
    assert float(in_order) == 1.0


def test_sums_are_float64_whatever_the_session():
    assert jnp.zeros(1).dtype == jnp.float32
    assert total(jnp.ones((2, 3), jnp.float16), 1).dtype == jnp.float64
    assert jnp.zeros(1).dtype == jnp.float32


def test_a_factor_too_small_for_its_dtype_is_zero():
    found = measure(Factors(jnp.full((1, 1, 1, 2), 3e19), jnp.full((1, 1, 1, 2), 3e19)))
    (weight,), fine = Clip(1.0, False, 1.0).factors([found], [0], None)
    assert bool(fine[0])
    assert float(weight[0]) == 0.0
