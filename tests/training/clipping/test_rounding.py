"""No contribution is longer than the clip norm, whatever floating point does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from demur.training import clipped_grad
from demur.training.clipping import norms
from demur.training.clipping.clip_factors import Clip
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.ghost import lookups
from demur.training.clipping.norms import measure, norm_method
from demur.training.clipping.rounding import sum_of_squares, total

pytestmark = pytest.mark.serial  # compiled as a user's programs are

TINY = float(np.finfo(np.float32).tiny)


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


def contribution(rng, monkeypatch, dtype, sum_error=True):
    """The length of one clipped contribution, for a clip norm of one."""
    monkeypatch.setattr(norms, "_has_half_products", lambda: True)
    monkeypatch.setattr(norms, "_table_dtype", lambda _: jnp.dtype("float64"))
    parts = [np.asarray(part).astype(dtype) for part in cancelling(rng, 4, 32)]
    assert norm_method(4, 32, 32) == "Gram"
    found = measure(FactoredGradients(*(jnp.asarray(part) for part in parts)))
    if not sum_error:
        found = norms.MeasuredLeaf(
            found.square, found.upper, None, found.dtype, found.add_up, found.mass
        )
    clip = Clip(0.01, False, 1.0)
    (weight,), fine = clip.factors([found], [0], None)
    assert bool(fine[0])
    assert float(weight[0]) < 1.0
    return exact_contribution(parts, float(weight[0]), dtype) / 0.01


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_rounded_factors_stay_within_the_norm(monkeypatch, dtype):
    rng = np.random.default_rng(1)
    found = [contribution(rng, monkeypatch, dtype) for _ in range(20)]
    assert max(found) <= 1.0
    assert max(found) > (0.3 if dtype != np.float32 else 1 - 1e-4)


@pytest.mark.slow
def test_without_the_slack_they_do_not(monkeypatch):
    """The same check, with the rounding of the scaled factor left out of account."""
    rng = np.random.default_rng(1)
    found = [
        contribution(rng, monkeypatch, ml_dtypes.bfloat16, sum_error=False)
        for _ in range(20)
    ]
    assert max(found) > 1.01


def test_where_exact_products_are_slow_more_gradients_are_formed(monkeypatch):
    """On a GPU in float32, by the number of positions; not where products are exact."""
    shape = (197, 384, 1152)
    assert norm_method(*shape, jnp.float32) == "Gram"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert norm_method(*shape, jnp.float32) == "instantiated"
    assert norm_method(*shape) == "Gram"
    assert norm_method(*shape, jnp.bfloat16) == "Gram"
    assert norm_method(*shape, jnp.float32, jax.lax.Precision.HIGHEST) == "Gram"
    assert norm_method(64, 384, 384, jnp.float32) == "Gram"
    assert norm_method(512, 4096, 11008, jnp.float32) == "Gram"  # 4 times at most
    assert norm_method(1, 384, 384, jnp.float32) == "one position"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one position", "Gram", "instantiated"])
def test_upper_bounds_are_above_and_close(way):
    rng = np.random.default_rng(2)
    positions = {"one position": 1, "Gram": 5, "instantiated": 40}[way]
    left, right = (
        rng.normal(size=(6, 2, positions, width)).astype(np.float32)
        for width in (30, 20)
    )
    assert norm_method(positions, 30, 20) == way
    found = measure(FactoredGradients(jnp.asarray(left), jnp.asarray(right)))
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


@pytest.mark.slow
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


def flushed(clip_norm, left_over):
    """The longest contribution of two positions that cancel but for `left_over`.

    The scaled left factors lie around the smallest normal number, where a CPU makes
    one of them zero; the right ones are as large as float32 allows.
    """
    grad = jax.jit(
        clipped_grad(
            lambda p, row: jnp.sum((row[..., :4] @ p) * row[..., 4:]),
            l2_clip_norm=clip_norm,
        )
    )
    left = np.asarray([1.0, left_over - 1.0])
    longest = 0.0
    for near in (1.01, 2.0, 8.0):
        right = min(3e38, clip_norm / (2 * left_over * near * TINY)) / 2
        row = np.repeat(np.stack([left, np.full(2, right)], 1), 4, 1)
        total = grad(jnp.zeros((4, 4)), jnp.asarray(row[None], jnp.float32))
        longest = max(longest, float(np.linalg.norm(np.asarray(total.value, float))))
    return longest / clip_norm


@pytest.mark.slow
@pytest.mark.parametrize(("clip_norm", "left_over"), [(1.0, 0.25), (0.01, 0.03)])
def test_factors_that_vanish_when_scaled(monkeypatch, clip_norm, left_over):
    assert flushed(clip_norm, left_over) <= 1.0
    monkeypatch.setattr(norms, "smallest_normal", lambda _: TINY * 1e-30)
    assert flushed(clip_norm, left_over) > 3.0


def test_a_named_algorithm_is_not_trusted():
    """Its rounding may be coarser than what is accounted for."""
    plain = (None, jax.lax.Precision.DEFAULT, (jax.lax.Precision.HIGH,) * 2)
    assert [norms.known_precision(one) for one in plain] == list(plain)
    algorithm = jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    assert norms.known_precision(algorithm) == jax.lax.Precision.HIGHEST
    with jax.default_matmul_precision("BF16_BF16_F32"):
        assert norms.known_precision(None) == jax.lax.Precision.HIGHEST


@pytest.mark.slow
def test_a_narrower_result_stays_within_the_norm():
    """Rounding float64 sums to float32 is paid for as well."""
    with jax.enable_x64(True):
        rows = np.random.default_rng(3).normal(size=(64, 1, 1)) * 50 + 100
        options = {"l2_clip_norm": 0.1, "dtype": jnp.float32}
        grad = jax.jit(clipped_grad(lambda p, x: jnp.sum(p * x), **options))
        found = [grad(jnp.zeros(1), jnp.asarray(row)).value for row in rows]
        assert found[0].dtype == jnp.float32
        assert max(float(one[0]) for one in found) <= 0.1
        # The nearest float32 to the clip norm itself is above it.
        assert float(np.float32(0.1)) > 0.1


@pytest.mark.slow
def test_a_factor_too_small_for_its_dtype_is_zero():
    found = measure(
        FactoredGradients(jnp.full((1, 1, 1, 2), 3e19), jnp.full((1, 1, 1, 2), 3e19))
    )
    (weight,), fine = Clip(1.0, False, 1.0).factors([found], [0], None)
    assert bool(fine[0])
    assert float(weight[0]) == 0.0


def looked_up_twice():
    """The longest contribution of two look-ups of a row that nearly cancel."""
    rng = np.random.default_rng(4)
    first = rng.normal(size=(12, 1, 1, 5)) * 1e5
    both = np.concatenate([first, rng.normal(size=first.shape) - first], axis=2)
    numbers = jnp.zeros((1, 2), jnp.int32)
    grad = jax.jit(
        clipped_grad(
            lambda p, ids, x: jnp.sum(p[ids] * x),
            l2_clip_norm=0.37,
            batch_argnums=(1, 2),
        )
    )
    found = [
        grad(jnp.ones((9, 5)), numbers, jnp.asarray(one, jnp.float32)).value
        for one in both
    ]
    return max(float(np.linalg.norm(np.asarray(one, float))) for one in found) / 0.37


def test_look_ups_that_cancel_stay_within_the_norm(monkeypatch):
    """Both are scaled and rounded, and what is left of them is far shorter."""
    assert looked_up_twice() <= 1.0
    monkeypatch.setattr(lookups, "_rounded", lambda terms, dtype: None)
    assert looked_up_twice() > 1.00001


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8])
def test_numbers_of_rows_in_bytes(dtype):
    """A byte ends before the rows of this table do."""
    spec = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    mode = jax.lax.GatherScatterMode.FILL_OR_DROP

    def loss(p, ids):
        found = jax.lax.gather(p, ids[0], spec, (1, 2), mode=mode, fill_value=0.0)
        return jnp.sum(found)

    ids = jnp.full((1, 3, 1), 100, dtype)
    grad = clipped_grad(loss, l2_clip_norm=1e3, return_grad_norms=True)
    total, aux = grad(jnp.ones((300, 2)), ids)
    assert float(total.value[100, 0]) == 3.0
    assert float(aux.grad_norms[0]) == pytest.approx(3 * 2**0.5)


@pytest.mark.parametrize("mode", [None, "clip", "fill", "promise_in_bounds"])
def test_numbers_outside_the_table_count_as_in_the_derivative(mode):
    """-3 is the first row of three; by plain indexing -4, 3 and 9 have no gradient."""
    ids = jnp.asarray([[-4, -3, 1, 3, 9]])

    def loss(p, ids):
        return jnp.sum(p.at[ids].get(mode=mode, fill_value=0.5) ** 2)

    p = jnp.arange(1.0, 7.0).reshape(3, 2)
    grad = clipped_grad(loss, l2_clip_norm=1e3)
    wanted = jax.grad(loss)(p, ids)
    np.testing.assert_array_equal(grad(p, ids).value, wanted)
    large = jnp.concatenate([p, jnp.ones((9, 2))])  # more rows than look-ups
    np.testing.assert_array_equal(
        grad(large, ids + 9).value, jax.grad(loss)(large, ids + 9)
    )
