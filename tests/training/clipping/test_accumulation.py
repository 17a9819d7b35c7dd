"""The rounding of a clipped sum has a bound that hardened noise pays for."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur.core.adjacency import AddOrRemoveOne
from demur.core.errors import NotPriced
from demur.ledger import Budget, Filter, Ledger
from demur.training import ClippedSum, ShapePlan, clipped_grad, dp_sgd
from demur.training.clipping import accumulation, clip_factors
from demur.training.clipping.accumulation import ROW_SHARE, rounding_share
from demur.training.clipping.factored_gradients import FactoredGradients
from demur.training.clipping.norms import measure
from demur.training.noise.privatizer import _single
from tests.training.kit import make_data, train

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


# -- whole programs, against rational arithmetic ---------------------------------------

BATCH, PLACES, INPUTS, OUTPUTS, WORDS = 20, 3, 4, 5, 6
UNCLIPPED = {"l2_clip_norm": 1e4, "batch_argnums": (1, 2, 3), "keep_batch_dim": False}


def whole_problem():
    """A loss that is linear in every parameter, data whose sums take 48 bits, and sums.

    No example is clipped, so a factor is 1 and every gradient a sum of products of the
    data: exact in float64 in any order, and in float32 in none.
    """
    rng = np.random.default_rng(0)
    scale = 2.0 ** (-9 * (np.arange(BATCH) % 5)).reshape(BATCH, 1, 1)
    x = rng.integers(-3, 4, size=(BATCH, PLACES, INPUTS)).astype(np.float32)
    y = (rng.integers(-3, 4, size=(BATCH, PLACES, OUTPUTS)) * scale).astype(np.float32)
    ids = rng.integers(0, WORDS, size=(BATCH, PLACES))
    mask = rng.integers(0, 2, size=(INPUTS, OUTPUTS)).astype(np.float32)
    first = np.eye(INPUTS, 2, dtype=np.float32)
    second = 2 * np.eye(2, OUTPUTS, dtype=np.float32)

    def loss(p, x, y, ids):
        def layer(carry, weight):
            return carry, jnp.sum(y * (x @ weight))

        outputs = [x @ p["plain"], x @ (p["masked"] * mask)]
        outputs.append(x @ (p["base"] + p["first"] @ p["second"]))
        parts = [x @ part for part in jnp.split(p["split"], [2], axis=1)]
        outputs.append(jnp.concatenate(parts, axis=-1) + p["bias"])
        value = sum(jnp.sum(y * output) for output in outputs)
        scanned = jax.lax.scan(jax.checkpoint(layer), 0.0, p["layers"])[1]
        # A table that is looked up and multiplied; its first columns meet x.
        tied = y * p["table"][ids] + y * (x @ p["table"][:INPUTS])
        return value + jnp.sum(scanned) + jnp.sum(tied)

    shapes: dict[str, tuple[int, ...]] = {
        "plain": (INPUTS, OUTPUTS),
        "masked": (INPUTS, OUTPUTS),
        "base": (INPUTS, OUTPUTS),
        "split": (INPUTS, OUTPUTS),
    }
    shapes |= {
        "bias": (OUTPUTS,),
        "layers": (2, INPUTS, OUTPUTS),
        "table": (WORDS, OUTPUTS),
    }
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    params |= {"first": jnp.asarray(first), "second": jnp.asarray(second)}
    fractions = np.vectorize(lambda number: Fraction(float(number)))
    xs, ys = (fractions(part).reshape(BATCH * PLACES, -1) for part in (x, y))
    product = xs.T.dot(ys)
    table = np.zeros((WORDS, OUTPUTS), object)
    for row, word in zip(ys, ids.reshape(-1), strict=True):
        table[word] += row
    table[:INPUTS] += product
    exact = dict.fromkeys(["plain", "base", "split"], product)
    exact |= {"masked": product * mask.astype(int), "bias": ys.sum(axis=0)}
    exact |= {"layers": np.stack([product] * 2), "table": table}
    exact |= {"first": product.dot(second.T.astype(int))}
    exact |= {"second": first.T.astype(int).dot(product)}
    return loss, params, (x, y, ids), exact


def inexact(total, exact):
    """The parameters of which an entry is not the exact sum."""
    found = set()
    for name, wanted in exact.items():
        values = np.asarray(total.value[name]).astype(np.float64)
        pairs = zip(values.ravel(), wanted.ravel(), strict=True)
        if any(Fraction(float(value)) != one for value, one in pairs):
            found.add(name)
    return found


FORMS = [
    {},
    {"memory": "ordinary"},
    {"method": "vmap", "dtype": jnp.float32},
    {"microbatch_size": 8},
    pytest.param(
        {"microbatch_size": 8, "memory": "ordinary"}, marks=[pytest.mark.deep]
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_every_form_adds_up_in_float64(options):
    loss, params, batch, exact = whole_problem()
    grad = clipped_grad(loss, accumulator="float64", **UNCLIPPED, **options)

    @jax.jit
    def both(*args):
        """The sum, and the same as float32 in one program with it."""
        total = grad(*args)
        return total, jax.tree.map(_single, total.value)

    total, rounded = both(params, *batch)
    assert total.row_rounding == ROW_SHARE
    assert inexact(total, exact) == set()
    for name, wanted in exact.items():
        once = [np.float32(float(number)) for number in wanted.ravel()]
        np.testing.assert_array_equal(np.asarray(rounded[name]).ravel(), once)


@pytest.mark.slow
def test_a_whole_program_in_float32_does_not():
    loss, params, batch, exact = whole_problem()
    total = jax.jit(clipped_grad(loss, **UNCLIPPED))(params, *batch)
    assert total.row_rounding is None
    assert inexact(total, exact) == set(exact)


@pytest.mark.slow
def test_parts_of_a_batch_are_joined_in_float64():
    loss, params, batch, exact = whole_problem()
    grad = jax.jit(clipped_grad(loss, accumulator="float64", **UNCLIPPED))
    halves = [
        grad(params, *(part[half] for part in batch))
        for half in (slice(None, 10), slice(10, None))
    ]
    joined = ClippedSum.join(halves)
    assert joined.row_rounding == ROW_SHARE
    assert inexact(joined, exact) == set()
    # One part of unknown rounding makes that of all unknown.
    plain = ClippedSum(halves[1].value, halves[1].l2_norm_bound)
    assert ClippedSum.join([halves[0], plain]).row_rounding is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulator": "float16"}, "accumulator must be one of"),
        ({"accumulator": "float64", "l2_clip_norm": 1e-19}, "at least 2\\^-60"),
        ({"accumulator": "float64", "normalize_by": 1e20}, "at least 2\\^-60"),
    ],
    ids=str,
)
def test_what_has_no_bound_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        clipped_grad(lambda p, x: jnp.sum(p * x), **{"l2_clip_norm": 1.0} | options)


def test_a_device_without_float64_is_refused(monkeypatch):
    grad = clipped_grad(
        lambda p, x: jnp.sum(p * x), l2_clip_norm=1.0, accumulator="float64"
    )
    monkeypatch.setattr(accumulation.jax, "default_backend", lambda: "tpu")
    with pytest.raises(ValueError, match="on 'tpu' float64 has fewer bits"):
        grad(jnp.zeros(3), jnp.ones((4, 3)))


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


def test_a_run_whose_steps_may_have_more_rows_is_refused_unpaid():
    """By its padded sizes, and by the law of its batches."""
    ledger = Ledger(Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter=Filter.pure())
    poisson = dp_sgd(
        iterations=2,
        sampling_prob=0.5,
        noise_multiplier=4.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        noise="lattice",
    ).make()
    assert poisson.noise_addition_transform.spec.most_rows == 16_384
    wide = ShapePlan((20_000,), None, 2, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="may have 20000 rows"):
        train(poisson, shapes=wide, ledger=ledger)
    with pytest.raises(ValueError, match="pays for the rounding of 16384"):
        train(poisson, data=make_data(n=40_000), shapes=None, ledger=ledger)
    assert not ledger.entries()


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
