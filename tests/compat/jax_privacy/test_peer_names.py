"""Names outside of plans: clipped trees and functions, noise on any tree, configs."""

from __future__ import annotations

import logging
import math

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest

import demur.compat.jax_privacy as jp
from demur.core.errors import NotPrivate
from demur.mechanisms.correlated import BandedToeplitz
from demur.training import ClippedSum, clipped_grad

TREE = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([0.0, 4.0], jnp.float16)}


def test_the_package_has_its_modules_as_attributes():
    theirs = {name for name in dir(jax_privacy) if not name.startswith("_")}
    left_out = {"accounting", "auditing", "sharding_utils", "keras_api"}
    assert theirs - left_out <= set(dir(jp))
    assert jp.clipped_grad is jp.clipping.clipped_grad
    assert {"execution_plan", "clipping"} <= set(dir(jp))


# -- clipping --------------------------------------------------------------------------


def length(tree):
    """The norm in float64, of the numbers as they are."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return math.sqrt(sum(float((leaf**2).sum()) for leaf in leaves))


CLIP = jax.jit(jp.clipping.clip_pytree, static_argnums=(2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("norm", [0.0, 0.3, 5.0, 7.0, math.inf])
def test_a_clipped_tree_is_never_longer_than_its_bound(norm, rescale):
    clipped, before = CLIP(TREE, norm, rescale)
    assert float(before) == pytest.approx(5.0)
    bound = 1.0 if rescale else norm
    assert length(clipped) <= bound
    if norm == math.inf:
        assert length(clipped) == (0.0 if rescale else 5.0)
    elif norm or rescale:
        assert length(clipped) > 0.98 * min(
            bound, 5.0 / (norm or 5.0) if rescale else 5
        )
    kinds = [leaf.dtype for leaf in jax.tree.leaves(clipped)]
    assert kinds == [jnp.float32, jnp.float16]


@pytest.mark.slow
def test_rounding_alone_would_exceed_the_bound():
    """A thousand random trees, clipped here, and scaled to the bound without room."""
    rows = np.random.default_rng(1).normal(size=(1000, 7)).astype(np.float32)
    ours = jax.jit(jax.vmap(lambda row: jp.clipping.clip_pytree(row, 0.7)[0]))(rows)
    plain = rows * (np.float32(0.7) / np.linalg.norm(rows, axis=1, keepdims=True))

    def longest(clipped):
        return np.linalg.norm(np.asarray(clipped, np.float64), axis=1).max()

    bound = float(np.float32(0.7))
    assert longest(ours) <= bound < longest(plain)


@pytest.mark.slow
def test_numbers_that_are_none_count_as_zero_and_show_in_the_norm():
    bad = np.array([3.0, np.nan, np.inf, 4.0], np.float32)
    clipped, norm = CLIP(bad, 1.0)
    np.testing.assert_allclose(clipped, [0.6, 0.0, 0.0, 0.8], rtol=1e-5)
    assert not np.isfinite(norm)
    kept, _ = CLIP(bad, 1.0, False, False)
    assert np.isnan(kept).tolist() == [False, True, True, False]
    with pytest.raises(ValueError, match="clip_norm"):
        jp.clipping.clip_pytree(bad, -1.0)


@pytest.mark.slow
def test_a_huge_gradient_does_not_overflow_on_the_way():
    clipped, norm = CLIP(np.array([3e30, 0.0, 0.0, 4e30], np.float32), 1.0)
    np.testing.assert_allclose(clipped, [0.6, 0.0, 0.0, 0.8], rtol=1e-5)
    assert float(norm) == pytest.approx(5e30)


@pytest.mark.slow
def test_one_example_moves_a_clipped_sum_by_its_sensitivity_at_most():
    total = jp.clipping.clipped_fun(
        lambda row: {"a": row[:2], "b": row[2:]},
        keep_batch_dim=False,
        l2_clip_norm={"a": 3.0, "b": 4.0},
        normalize_by=2.0,
        microbatch_size=2,
        return_norms=True,
    )
    assert total.l2_norm_bound == 2.5
    assert total.sensitivity() == 2.5
    assert total.sensitivity("REPLACE_ONE") == 5.0
    rows = 100.0 * np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    add = jax.jit(lambda rows, left_out: total(rows, is_padding_example=left_out))
    whole, norms = add(rows, np.zeros(5, bool))
    rest, _ = add(rows, np.arange(5) == 4)
    moved = length(jax.tree.map(lambda a, b: a - b, whole, rest))
    assert 2.49 < moved <= 2.5 * (1 + 1e-6)
    assert norms["a"].shape == (5,)
    alone, _ = jax.jit(total)(rows[:4])
    assert length(jax.tree.map(lambda a, b: a - b, alone, rest)) < 1e-5
    # A plan takes none of it.
    plain = {"noise_multiplier": 1.0, "expected_participations": 1.0, "strategy": [1.0]}
    plan = jp.execution_plan.BandMFConfig(iterations=2, **plain).make()
    noise = plan.noise_addition_transform
    with pytest.raises(TypeError, match="ClippedSum"):
        noise.update(whole, noise.init(whole))


@pytest.mark.slow
def test_a_key_and_a_second_result():
    def noisy(key, row):
        return row + jax.random.normal(key, row.shape), row[:, 0]

    total = jp.clipping.clipped_fun(noisy, has_aux=True, batch_argnums=1, prng_argnum=0)
    value, aux = jax.jit(total)(jax.random.key(0), np.ones((3, 2), np.float32))
    assert value.shape == (1, 2)
    assert aux.shape == (3,)
    for wrong in ({"batch_argnums": ()}, {"batch_argnums": 0, "prng_argnum": 0}):
        with pytest.raises(ValueError, match="argnum"):
            jp.clipping.clipped_fun(noisy, **wrong)
    with pytest.raises(ValueError, match="l2_clip_norm"):
        jp.clipping.clipped_fun(noisy, l2_clip_norm=-1.0)


@pytest.mark.slow
def test_sums_on_a_grid_of_whole_numbers():
    rows = np.random.default_rng(0).normal(size=(6, 9))
    with jax.enable_x64(True):
        total = jp.clipping.clipped_fun(
            lambda row: 50 * row, keep_batch_dim=False, grid_scale=200, l2_clip_norm=2.0
        )
        assert total.l2_norm_bound == 200.0
        add = jax.jit(total)
        for row in rows:
            value = add(row[None])
            assert value.dtype == jnp.int64
            assert length(value) <= 200.0
        with pytest.raises(ValueError, match="too coarse"):
            jp.clipping.clip_and_round_to_grid(jnp.ones(900), 1.0, 10)
    with pytest.raises(ValueError, match="64-bit"):
        jp.clipping.clipped_grad(lambda w, x: 0.0, l2_clip_norm=1.0, grid_scale=200)


# -- noise -----------------------------------------------------------------------------


MATRICES = {
    "prefix sums": (jp.matrix_factorization.streaming_matrix.prefix_sum(), np.tri(4)),
    "momentum": (
        jp.matrix_factorization.streaming_matrix.momentum_sgd_matrix(
            0.5, np.array([1.0, 2.0])
        ),
        None,
    ),
    "inverse": (
        jp.matrix_factorization.toeplitz.inverse_as_streaming_matrix([1.0, 0.5, 0.25]),
        np.linalg.inv(BandedToeplitz([1.0, 0.5, 0.25], 4).matrix()),
    ),
    "normalised": (
        jp.matrix_factorization.toeplitz.inverse_as_streaming_matrix([1.0, 0.5], 4),
        np.linalg.inv(BandedToeplitz([1.0, 0.5], 4, column_normalize=True).matrix()),
    ),
    "buffered": (
        jp.matrix_factorization.buffered_toeplitz.BufferedToeplitz.build(
            [0.5, 0.2], [0.3, 0.1]
        ).inverse_as_streaming_matrix(),
        np.linalg.inv(
            np.eye(4)
            + sum(
                w * d ** (k - 1) * np.eye(4, k=-k)
                for d, w in ((0.5, 0.3), (0.2, 0.1))
                for k in (1, 2, 3)
            )
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRICES)
def test_streaming_matrices_are_the_matrices_they_stand_for(name):
    streaming, dense = MATRICES[name]
    if dense is None:  # two steps of SGD by hand, at rates 1, 2, 2, 2
        dense = np.array(
            [[1, 0, 0, 0], [2, 2, 0, 0], [2.5, 3, 2, 0], [2.75, 3.5, 3, 2]]
        )
    np.testing.assert_allclose(streaming.materialize(4), dense, atol=1e-5)
    doubled = 2.0 * (streaming @ jp.matrix_factorization.streaming_matrix.diagonal([3]))
    np.testing.assert_allclose(doubled.materialize(4), 6 * dense, atol=1e-4)


def noises(privatizer, steps, value):
    state = privatizer.init(value)
    out, update = [], jax.jit(privatizer.update)
    for _ in range(steps):
        noise, state = update(value, state)
        out.append(np.asarray(noise))
    return np.stack(out)


@pytest.mark.slow
def test_noise_is_the_matrix_times_independent_noise():
    matrix = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.1, 0.0, 1.0]])
    options = {"stddev": 2.0, "prng_key": 3}
    make = jp.noise_addition.matrix_factorization_privatizer
    mixed = noises(make(matrix, **options), 3, jnp.zeros(4))
    plain = noises(make(np.eye(3), **options), 3, jnp.zeros(4))
    np.testing.assert_allclose(mixed, matrix @ plain, atol=1e-5)
    beyond = noises(make(np.eye(2), **options), 3, jnp.zeros(4))
    assert np.isnan(beyond[2]).all() and np.isfinite(beyond[:2]).all()
    with pytest.raises(ValueError, match="Expected 2D"):
        make(np.ones(3), **options)


@pytest.mark.slow
@pytest.mark.parametrize("matrix", [None, np.eye(3)], ids=["streaming", "dense"])
def test_noise_without_a_key_is_fresh_and_with_one_is_said_to_be_removable(
    matrix, caplog
):
    def make(**options):
        if matrix is None:
            return jp.noise_addition.gaussian_privatizer(stddev=1.0, **options)
        return jp.noise_addition.matrix_factorization_privatizer(
            matrix, stddev=1.0, **options
        )

    fresh = make()
    first, second = (noises(fresh, 2, jnp.zeros(3)) for _ in range(2))
    assert len(set(first.ravel()) | set(second.ravel())) == 12
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        keyed = make(prng_key=5)
    assert "can take the noise off" in caplog.text
    state = keyed.init(jnp.zeros(3))
    update = jax.jit(keyed.update)
    once, again = (update(jnp.zeros(3), state)[0] for _ in range(2))
    np.testing.assert_array_equal(once, again)
    # A clipped sum may be given as it is.
    total = ClippedSum(jnp.full(3, 100.0), 1.0)
    noisy, _ = update(total, state)
    assert np.abs(np.asarray(noisy) - 100.0).max() < 10.0
    with pytest.raises(NotPrivate, match="vmap"):
        jax.vmap(lambda x: keyed.update(x, keyed.init(x))[0])(jnp.zeros((2, 3)))


CHANGES = {
    "stacked": lambda total: jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), total),
    "cut": lambda total: jax.tree.map(lambda leaf: leaf[:1], total),
}


@pytest.mark.parametrize("key", [None, 5], ids=["fresh", "keyed"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_clipped_sum_is_taken_whole(change, key):
    noise = jp.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key)
    changed = CHANGES[change](ClippedSum(jnp.zeros(3), 1.0))
    state = noise.init(jnp.zeros(3))
    with pytest.raises(TypeError, match="Nothing was drawn"):
        noise.update(changed, state)
    # Whoever opens it has plain arrays, and noise on them as in the original.
    assert noise.update(changed.value, state)[0].shape == changed.value.shape


@pytest.mark.slow
def test_a_shard_of_a_clipped_sum_gets_no_noise(monkeypatch):
    """Shards have one key: without the check their difference would be exact."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    along = jax.sharding.PartitionSpec("d")
    noise = jp.noise_addition.gaussian_privatizer(stddev=50.0, prng_key=5)
    state = noise.init(jnp.zeros(3))

    def shard(rows):
        return noise.update(ClippedSum(rows.sum(axis=0), 1.0), state)[0][None]

    run = jax.shard_map(shard, mesh=mesh, in_specs=along, out_specs=along)
    first, second = jnp.zeros((2, 3)), jnp.ones((2, 3))
    with pytest.raises(TypeError, match="outside shard_map"):
        run(first)
    monkeypatch.setattr(jp.noise_addition, "check_place", lambda *_, **__: None)
    noisy = [np.asarray(run(rows)) for rows in (first, second)]
    assert np.abs(noisy[0]).max() > 10.0
    np.testing.assert_allclose(noisy[1] - noisy[0], 2.0, atol=1e-4)


@pytest.mark.slow
def test_the_noise_has_its_deviation():
    drawn = noises(
        jp.noise_addition.gaussian_privatizer(stddev=3.0), 2, jnp.zeros(4000)
    )
    assert drawn.std() == pytest.approx(3.0, rel=0.05)
    chained = optax.chain(
        jp.noise_addition.gaussian_privatizer(stddev=1.0), optax.sgd(0.1)
    )
    params = jnp.zeros(3, jnp.bfloat16)
    updates, _ = jax.jit(chained.update)(params, chained.init(params), params)
    assert updates.dtype == jnp.bfloat16


# -- configs of the newest sources -----------------------------------------------------


def test_band_mf_config_is_the_plan_of_training():
    options = {
        "iterations": 20,
        "expected_participations": 2.0,
        "strategy": [1.0, 0.5],
        "noise_multiplier": 2.0,
        "l2_clip_norm": {"w": 3.0, "b": 4.0},
        "rescale_to_unit_norm": False,
    }
    plan = jp.execution_plan.BandMFConfig(**options).make(
        jp.execution_plan.PerformanceFlags(microbatch_size=4, keep_batch_dim=False)
    )
    assert plan.neighboring_relation.name == "ADD_OR_REMOVE_ONE"
    assert plan.batch_selection_strategy.sampling_prob == pytest.approx(0.2)
    assert plan.l2_norm_bound == pytest.approx(5.0)
    gradient = plan.gradient(lambda params, example: 0.0)
    assert gradient.arguments["microbatch_size"] == 4
    public = jp.execution_plan.BandMFConfig(**options, num_examples=50).make()
    assert public.neighboring_relation.name == "REPLACE_SPECIAL"
    assert plan.noise_addition_transform.spec.stddev == pytest.approx(
        2.0 * 5.0 * math.hypot(1.0, 0.5)
    )


def test_band_mf_config_refuses_what_does_not_fit():
    good = {"iterations": 20, "expected_participations": 2.0, "strategy": [1.0, 0.5]}
    config = jp.execution_plan.BandMFConfig
    for wrong, match in (
        ({"strategy": []}, "strategy"),
        ({"expected_participations": 11.0}, "at most iterations"),
        ({"truncated_batch_size": 5}, "num_examples"),
        ({"expected_participations": -1.0}, "expected_participations"),
    ):
        with pytest.raises(ValueError, match=match):
            config(**good | wrong)
    for ask in (lambda c: c.make(), lambda c: c.rmse):
        with pytest.raises(ValueError, match="noise_multiplier is not set"):
            ask(config(**good))


@pytest.mark.slow
def test_band_mf_config_is_calibrated():
    config = jp.execution_plan.BandMFConfig.default(
        num_bands=2, iterations=16, expected_participations=4.0
    )
    calibrated = config.calibrate(epsilon=1.0, delta=1e-6)
    assert 0.99 < calibrated.make().price(1e-6) <= 1.0
    assert calibrated.rmse > 0


def test_padding_takes_a_microbatch():
    padded = jp.batch_selection.pad_to_multiple_of(np.arange(5), 6, microbatch_size=4)
    assert padded.tolist() == [0, 1, 2, 3, 4, *[-1] * 7]


def test_a_clipped_gradient_is_a_function_of_bounded_sensitivity():
    made = jp.clipped_grad(lambda w, x: jnp.sum(w * x), l2_clip_norm=1.0)
    assert isinstance(made, jp.clipping.BoundedSensitivityCallable)
    ours: object = clipped_grad(lambda w, x: 0.0, l2_clip_norm=1.0)
    assert type(made) is type(ours)
