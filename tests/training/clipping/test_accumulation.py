"""The rounding of a clipped sum has a bound that hardened noise pays for."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.core.errors import NotPriced
from demur.training import clipped_grad, dp_sgd
from demur.training.clipping import accumulation, clip_factors
from demur.training.clipping.accumulation import ROW_SHARE, rounding_share
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.norms import measure

ROWS, POSITIONS, WIDTH = 48, 3, 12


def factors(rng, cancel):
    """Examples whose positions cancel but for a share `cancel`."""
    left = rng.normal(size=(ROWS, 1, POSITIONS, WIDTH))
    right = rng.normal(size=(ROWS, 1, POSITIONS, WIDTH))
    left[:, :, 1] = -left[:, :, 0] * (1 - cancel)
    right[:, :, 1], left[:, :, 2] = right[:, :, 0], 0.0
    return left.astype(np.float32), right.astype(np.float32)


def error_in_norms(cancel, dtype="float64"):
    """|sum as computed - exact sum of the same terms| over the rows' clip norms."""
    left, right = factors(np.random.default_rng(0), cancel)
    leaf = measure(FactoredGradients(jnp.asarray(left), jnp.asarray(right)))
    clip = clip_factors.Clip(1.0, False, 1.0, None, dtype)
    (weights,), _ = clip.factors([leaf], [0], None)
    found = np.asarray(leaf.add_up(weights, None)).astype(np.float64)
    scaled = (left * np.asarray(weights)[:, None, None, None]).astype(np.float32)
    squares = 0.0
    for i in range(WIDTH):
        for o in range(WIDTH):
            terms = zip(scaled[..., i].ravel(), right[..., o].ravel(), strict=True)
            exact = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in terms)
            squares += float(Fraction(float(found[0, i, o])) - exact) ** 2
    return squares**0.5 / ROWS


@pytest.mark.slow
@pytest.mark.parametrize("cancel", [1.0, 1e-3, 2.0**-22])
def test_the_rounding_is_within_the_bound(cancel):
    assert error_in_norms(cancel) <= 2.0**-24


@pytest.mark.slow
def test_a_sum_in_float32_is_not():
    """Positions that nearly cancel: the terms are far longer than the gradient."""
    assert error_in_norms(2.0**-22, "float32") > ROW_SHARE


def test_an_example_of_huge_terms_is_clipped_further(monkeypatch):
    left, right = factors(np.random.default_rng(0), 2.0**-22)
    leaf = measure(FactoredGradients(jnp.asarray(left), jnp.asarray(right)))
    clip = clip_factors.Clip(1.0, False, 1.0, None, "float64")
    (weights,), _ = clip.factors([leaf], [0], None)
    lengths = np.sqrt(np.sum(left.astype(float) ** 2, axis=3))
    lengths *= np.sqrt(np.sum(right.astype(float) ** 2, axis=3))
    terms = POSITIONS * lengths.sum(axis=(1, 2))
    within = 1.01 * ROWS * 2.0**-53 * terms * np.asarray(weights)
    assert np.all(within <= 2.0**-24)
    # Rows so many that the bound binds; without it, it does not hold.
    monkeypatch.setattr(accumulation, "_TERMS_SHARE", 2.0**-44)
    (tight,), _ = clip.factors([leaf], [0], None)
    assert np.all(1.01 * ROWS * 2.0**-53 * terms * np.asarray(tight) <= 2.0**-44)
    assert np.any(within > 2.0**-44)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"memory": "ordinary"}, {"method": "vmap"}, {"microbatch_size": 4}],
    ids=str,
)
def test_every_form_adds_up_in_float64(options):
    rng = np.random.default_rng(0)
    shapes = {"b": (6,), "e": (7, 6), "m": (6, 6), "v": (6, 2), "w": (6, 6)}
    params = {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32)
        for name, shape in shapes.items()
    }
    mask = jnp.asarray(rng.integers(0, 2, size=(6, 6)), jnp.float32)
    rows = jnp.asarray(rng.integers(0, 7, size=(9, 3)))

    def loss(params, row):
        hidden = jnp.tanh(params["e"][row] @ params["w"] + params["b"])
        hidden = jnp.tanh(hidden @ (params["m"] * mask)) @ params["e"].T
        return jnp.sum(hidden**2) + jnp.sum((params["e"][row] @ params["v"]) ** 2)

    made = {"l2_clip_norm": 0.5, **options}
    single = jax.jit(clipped_grad(loss, **made))(params, rows)
    double = jax.jit(clipped_grad(loss, accumulator="float64", **made))(params, rows)
    assert (single.row_rounding, double.row_rounding) == (None, ROW_SHARE)
    for one, two in zip(
        jax.tree.leaves(single.value), jax.tree.leaves(double.value), strict=True
    ):
        assert (one.dtype, two.dtype) == (jnp.float32, jnp.float64)
        np.testing.assert_allclose(np.asarray(two), np.asarray(one), atol=2e-5)


def plan(**options):
    return dp_sgd(
        iterations=2,
        sampling_prob=0.5,
        noise_multiplier=1.0,
        neighboring_relation="REPLACE_ONE",
        num_examples=100_000,
        l2_clip_norm=1.0,
        noise="lattice",
        **options,
    ).make()


def test_hardened_noise_pays_for_it():
    spec = plan(truncated_batch_size=1000).noise_addition_transform.spec
    assert spec.sum_rounding == rounding_share(2000)
    assert float(spec.lattice(10).mechanism.sigma) >= spec.stddev * (
        1 + spec.sum_rounding
    )
    spec.check_rows(2000)
    with pytest.raises(ValueError, match="2001 rows"):
        spec.check_rows(2001)


def test_more_than_one_percent_is_refused():
    with pytest.raises(NotPriced, match="above the limit of 1%"):
        plan(truncated_batch_size=30_000)


def test_a_sum_of_unknown_rounding_is_refused():
    made = plan(truncated_batch_size=64)
    total = clipped_grad(lambda p, x: jnp.sum(p * x), l2_clip_norm=1.0)(
        jnp.zeros(3), jnp.ones((4, 3))
    )
    noise = made.noise_addition_transform
    with pytest.raises(ValueError, match="added up in float32"):
        noise.update(total, noise.init(jnp.zeros(3)))
