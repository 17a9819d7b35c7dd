"""Random programs over every primitive of JAX: "auto" equals "vmap", or raises.

A rule that overlooks a use of a parameter makes its gradient vanish in silence. So
programs are drawn from all that JAX can differentiate: public functions as they are
found, and by hand what none of them reaches. In double precision, where rounding is far
below any term that could be lost.
"""

from __future__ import annotations

import inspect
import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.interpreters import ad

from demur.training.clipping.ghost import inlining
from tests.training.clipping.kit import Draw, Network, both_methods, distance, ways

# Values stay near one, so the condition of a program is a few thousand at most.
EXACT = 1e-9
SHAPE = (3, 3)
KIND = jax.ShapeDtypeStruct(SHAPE, jnp.float64)


# -- programs --------------------------------------------------------------------------


@jax.custom_vjp
def own_backward(a, b):
    return jnp.sin(a) * b


own_backward.defvjp(
    lambda a, b: (own_backward(a, b), (a, b)),
    lambda saved, g: (3 * g * saved[1], g * jnp.sin(saved[0])),
)


@jax.custom_jvp
def own_forward(a, b):
    return jnp.sin(a) * b


own_forward.defjvp(
    lambda p, t: (own_forward(*p), 2 * t[0] * p[1] + t[1] * jnp.sin(p[0]))
)


@jax.custom_batching.custom_vmap
def own_batching(a):
    return jnp.sin(a)


@own_batching.def_vmap
def _(size, batched, a):
    return jnp.sin(a), batched[0]


def written(a, b):
    ref = jax.new_ref(a)
    jax.ref.addupdate(ref, ..., a * b)
    ref[0] = ref[1] * 2
    jax.ref.swap(ref, 2, b[0])
    return jax.freeze(ref)


def written_in_a_scan(a, b):
    ref = jax.new_ref(jnp.zeros_like(a))

    def turn(carry, row):
        jax.ref.addupdate(ref, ..., a * row)
        return carry, None

    jax.lax.scan(turn, None, b)
    return ref[...]


def written_in_a_loop(a, b):
    ref = jax.new_ref(b)

    def turn(i, carry):
        ref[i] = ref[i] + a[i]
        return carry

    jax.lax.fori_loop(0, 3, turn, 0)
    return ref[...]


def written_by_a_call(a, b):
    ref = jax.new_ref(jnp.zeros_like(a))
    jax.jit(lambda ref, value: jax.ref.addupdate(ref, ..., value))(ref, a * b)
    return ref[...]


def read_alone(a, b):
    ref = jax.new_ref(a)
    return jax.lax.scan(lambda c, row: (c + row * ref[...], None), b, b)[0]


REFERENCES = {
    "written": written,
    "in a scan": written_in_a_scan,
    "in a loop": written_in_a_loop,
    "by a call": written_by_a_call,
    "read alone": read_alone,
}
windows = jax.lax.reduce_window
PATCH = ((2, 2), (1, 1), "VALID")
ROW = (jnp.array([[0], [2]]), jax.lax.ScatterDimensionNumbers((1,), (0,), (0,)))
BY_HAND = REFERENCES | {
    "scan over rows": lambda a, b: jax.lax.scan(
        lambda c, row: (jnp.tanh(c @ a + row), c), b, b
    )[0],
    "scan over layers": lambda a, b: jax.lax.scan(
        lambda c, w: (jnp.sin(c @ w), None), b, jnp.stack([a, a.T])
    )[0],
    "cond": lambda a, b: jax.lax.cond(b[0, 0] > 0, jnp.sin, jnp.cos, a),
    "remat": jax.checkpoint(lambda a, b: jnp.sin(a @ b)),
    "named": lambda a, b: checkpoint_name(a * b, "product"),
    "jit": jax.jit(lambda a, b: jnp.sin(a) @ b),
    "own backward": own_backward,
    "own forward": own_forward,
    "own batching": lambda a, b: own_batching(a) * b,
    "barrier": lambda a, b: jax.lax.optimization_barrier(a) * b,
    "stopped": lambda a, b: jax.lax.stop_gradient(a) * b,
    "dead": lambda a, b: (jnp.sin(a), b)[1],
    "convolution": lambda a, b: jax.lax.conv(
        b[None, None], a[None, None], (1, 1), "SAME"
    ),
    "update": lambda a, b: jax.lax.dynamic_update_slice(a, b[:1], (1, 0)),
    "pad": lambda a, b: jax.lax.pad(a, b[0, 0], [(0, 0, 0), (1, -1, 0)]),
    "qr": lambda a, b: jnp.linalg.qr(a + 3 * jnp.eye(3))[1] @ b,
    "top_k": lambda a, b: jax.lax.top_k(a * b, 2)[0],
    "approx_max_k": lambda a, b: jax.lax.approx_max_k(a * b, 2)[0],
    "tridiagonal": lambda a, b: jax.lax.linalg.tridiagonal_solve(
        a[0].at[0].set(0), a[1] + 4, a[2].at[2].set(0), b
    ),
    "window max": lambda a, b: windows(a, -jnp.inf, jax.lax.max, *PATCH),
    "window min": lambda a, b: windows(a, jnp.inf, jax.lax.min, *PATCH),
    "window sum": lambda a, b: windows(a, 0.0, jax.lax.add, *PATCH),
    "scatter max": lambda a, b: a.at[ROW[0][:, 0]].max(b[:2]),
    "scatter min": lambda a, b: a.at[ROW[0][:, 0]].min(b[:2]),
    "scatter mul": lambda a, b: jax.lax.scatter_mul(
        a, ROW[0], b[:2], ROW[1], unique_indices=True
    ),
    "scatter sub": lambda a, b: a.at[0].subtract(b[1]),
    "reshape": lambda a, b: jax.lax.reshape(a, SHAPE, (1, 0)) @ b,
    "split": lambda a, b: jax.lax.split(a, (1, 2))[1] @ b,
    "tile": lambda a, b: jnp.tile(a, (2, 1)) @ b,
    "unstack": lambda a, b: jnp.unstack(a)[1] * b,
    "ragged": lambda a, b: jax.lax.ragged_dot(b, a[None], jnp.array([3], jnp.int32)),
    "precision": lambda a, b: jax.lax.reduce_precision(a, 11, 40) * b,
    "beta": lambda a, b: jax.lax.betainc(
        jnp.full_like(a, 2), jnp.full_like(a, 3), jax.nn.sigmoid(a * b)
    ),
    "gamma": lambda a, b: jax.random.gamma(jax.random.key(0), jnp.exp(a)) * b,
    "device": lambda a, b: jax.device_put(a) * b,
    "reduce": lambda a, b: jax.lax.reduce(a * b, 0.1, jnp.logaddexp, (1,)),
    "window": lambda a, b: windows(a * b, 0.1, jnp.logaddexp, *PATCH),
    "vmap": lambda a, b: jax.vmap(jnp.dot, in_axes=(None, 0))(a, b),
    "linear": lambda a, b: jax.custom_derivatives.linear_call(
        lambda _, x: 2 * x, lambda _, x: 2 * x, (), a
    ),
    "tied": lambda a, b: jnp.tanh(b @ a) @ a.T,
    "look-up": lambda a, b: a[jnp.argmax(b, axis=0)],
    "argmin": lambda a, b: jnp.take_along_axis(a, jnp.argmin(b, 1)[:, None], 1),
    "low rank": lambda a, b: b @ (a + a[:, :1] @ a[:1]),
}

# JAX's other primitives with a derivative, and why no program here has them.
LEFT_OUT = {
    "over the shards of a mesh (test_sharded)": (
        "all_gather all_gather_invariant all_gather_reduced all_to_all pbroadcast"
        " ppermute preduced psum psum_invariant pvary ragged_all_to_all reduce_scatter"
        " reduced_vary_cast_p unreduced_psum unreduced_reduce_scatter"
        " vary_unreduced_cast_p reshard sharding_constraint layout_constraint"
        " inspect_sharding tie"
    ),
    # JAX has these once something has imported its multihost_utils.
    "between processes": (
        "global_array_to_host_local_array host_local_array_to_global_array"
    ),
    "made by transformations, not by programs": (
        "add_any accum_grad_in_ref eval_jaxpr run_state remat_opt dce_sink stage"
        " select_and_gather_add select_and_scatter_add eq_to le_to lt_to"
        " custom_linear_solve empty_ref free_ref check"
    ),
    "without a derivative": (
        "debug_callback debug_print io_callback pure_callback ffi_call random_bits"
        " random_fold_in random_seed random_split random_unwrap random_wrap mulhi"
        " shift_left shift_right_logical xor from_edtype to_edtype"
    ),
    "experimental": (
        "box_get box_set new_box call_hi_primitive composite log_extend log_read"
        " new_log"
    ),
    "ours, of the noise": "one_release",
}


@cache
def found():
    """Functions of JAX that take one or two matrices and return real numbers."""
    result = {}
    modules = (jax.lax, jnp, jax.nn, jax.scipy.special, jnp.linalg, jnp.fft)
    for module in modules:
        for name, function in inspect.getmembers(module, callable):
            own = str(getattr(function, "__module__", "")).startswith("jax")
            if inspect.isclass(function) or name[0] == "_" or not own:
                continue
            for count in (1, 2):
                if _returns_numbers(function, count):
                    result[f"{module.__name__}.{name}/{count}"] = _binary(
                        function, count
                    )
    return result


def _binary(function, count):
    return function if count == 2 else lambda a, b: function(a)


def _returns_numbers(function, count):
    try:
        with jax.enable_x64(True):
            made = jax.eval_shape(function, *[KIND] * count)
        return jnp.issubdtype(made.dtype, jnp.inexact) and made.size > 0
    except Exception:
        return False


def differentiable(operation):
    """Whether JAX itself differentiates and batches it."""

    def total(a, b):
        return jnp.sum(jnp.real(operation(a, b)))

    batched = jax.ShapeDtypeStruct((2, *SHAPE), KIND.dtype)
    try:
        with jax.enable_x64(True):
            jax.eval_shape(jax.vmap(jax.grad(total), in_axes=(None, 0)), KIND, batched)
    except Exception:
        return False
    return True


def program(seed, operations):
    """Each operation on two values drawn from parameters, data and what was made."""
    draw = Draw(seed, jnp.float64)

    def array(*shape):  # in the domain of logarithms, roots and inverse sines
        return jnp.asarray(draw.rng.uniform(0.2, 0.8, shape))

    params = {name: array(*SHAPE) for name in ("u", "v", "w")}
    unused = {"unused": array(2)}
    choices = draw.rng.integers(0, 2**30, (len(operations), 2))

    def loss(p, x):
        values = [p["u"], p["v"], p["w"], x[0], 0.5 + 0.3 * jnp.sin(x[0] @ p["u"])]
        for operation, (i, j) in zip(operations, choices, strict=True):
            made = operation(values[i % len(values)], values[j % len(values)])
            made = jnp.real(made) + jnp.imag(made)
            made = jnp.resize(made, SHAPE) if made.shape != SHAPE else made
            values.append(0.5 + 0.3 * jnp.tanh(made) + 0.1 * values[-1])
        return sum(jnp.mean(value * values[-1]) for value in values[5:])

    return Network(params | unused, loss, (array(2, *SHAPE),))


def assert_agree(network, form=None):
    # Nothing is clipped, so that the slack of two passes does not show.
    (auto, auto_aux), (plain, plain_aux) = both_methods(network, form, l2_clip_norm=1e3)
    assert distance(auto.value, plain.value) < EXACT
    ours, theirs = np.asarray(auto_aux.grad_norms), np.asarray(plain_aux.grad_norms)
    # An operation outside its domain makes an example not finite, for both.
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    assert distance(np.nan_to_num(ours), np.nan_to_num(theirs)) < EXACT


def run(seed, operations, form=None):
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_agree(program(seed, operations), form)


def run_or_refuse(seed, operations):
    """Equal, or an error of JAX's own, of what it has no rule for."""
    try:
        run(seed, operations)
    except AssertionError:
        raise
    except Exception:
        return False
    return True


# -- tests -----------------------------------------------------------------------------


@pytest.mark.slow
def test_random_programs_agree():
    """A few operations; `make deep` takes all of them."""
    rng = np.random.default_rng(0)
    names = rng.permutation(sorted(set(BY_HAND) - set(REFERENCES)))[:6]
    kept = [BY_HAND[name] for name in names if differentiable(BY_HAND[name])]
    assert len(kept) > 4
    run(0, [*kept, jnp.dot])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fast", "ordinary"])
def test_habits_in_a_loss_agree(form):
    names = ("remat", "own backward", "own forward", "jit", "scan over rows")
    names += ("scan over layers", "cond", "reshape")
    run(7, [BY_HAND[name] for name in names], form)


@pytest.mark.deep
@pytest.mark.parametrize("part", range(40))
def test_every_operation_agrees(part):
    everything = found() | BY_HAND
    names = np.random.default_rng(0).permutation(sorted(everything))[part::40]
    usable = [
        operation
        for operation in map(everything.get, names)
        if differentiable(operation) and run_or_refuse(part, [operation])
    ]
    assert len(usable) > 0.6 * len(names)
    for form in ("fast", "ordinary"):
        run(part, usable, form)


@pytest.mark.deep
def test_every_primitive_has_a_program():
    """A primitive that is new in JAX has to be placed."""
    seen = set()
    for operation in (found() | BY_HAND).values():
        try:
            with jax.enable_x64(True):
                closed = jax.make_jaxpr(operation)(KIND, KIND)
        except Exception:
            continue
        seen |= {eqn.primitive.name for eqn in inlining.every_equation(closed)}
    excused = {name for names in LEFT_OUT.values() for name in names.split()}
    assert {primitive.name for primitive in ad.primitive_jvps} - seen <= excused


# -- references ------------------------------------------------------------------------


def with_references(name):
    with jax.enable_x64(True):
        return program(3, [REFERENCES[name]])


IN_LOOPS = ("in a scan", "in a loop")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == IN_LOOPS[0] else pytest.mark.deep)
        for name in REFERENCES
    ],
)
def test_references_agree(name):
    with jax.enable_x64(True):
        assert_agree(program(3, [REFERENCES[name], jnp.dot]))


@pytest.mark.slow
def test_references_are_named():
    methods = set(ways(with_references("in a scan")).values())
    assert methods == {"per example"}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_LOOPS)
def test_a_rule_that_overlooks_references_is_noticed(monkeypatch, name):
    """The twin: what is written to a reference leads nowhere, its gradient is zero."""
    monkeypatch.setattr(inlining, "uses_references", lambda closed: False)

    def loss(p, x):
        return jnp.sum(REFERENCES[name](p["w"], x[0]) ** 2)

    draw = Draw(4)
    network = Network({"w": draw.array(*SHAPE)}, loss, (draw.array(2, *SHAPE),))
    assert ways(network) == {"w": "zero"}
    with pytest.raises(AssertionError):
        assert_agree(network)


@pytest.mark.slow
def test_what_jax_does_not_batch_is_refused():
    """A write to a reference of the caller, and one in a branch."""
    outer = jax.new_ref(jnp.zeros(SHAPE))

    def stores(p, x):
        outer[...] = p["w"] * x[0]
        return jnp.sum(p["w"] * x[0])

    def branches(p, x):
        ref = jax.new_ref(p["w"])
        jax.lax.cond(
            x[0, 0, 0] > 0, lambda: jax.ref.addupdate(ref, ..., x[0]), lambda: None
        )
        return jnp.sum(ref[...])

    draw = Draw(5)
    for loss in (stores, branches):
        network = Network({"w": draw.array(*SHAPE)}, loss, (draw.array(2, *SHAPE),))
        with pytest.raises(Exception, match=r"unbatched|not supported"):
            both_methods(network)
    assert not np.asarray(outer[...]).any()


@pytest.mark.slow
def test_dead_code_is_no_use():
    """A parameter whose product is thrown away costs no per-example gradient."""

    def loss(p, x):
        jnp.sin(p["dead"]) @ x[0]
        return jnp.sum(x[0] @ p["w"])

    draw = Draw(6)
    params = {"dead": draw.array(*SHAPE), "w": draw.array(*SHAPE)}
    network = Network(params, loss, (draw.array(2, *SHAPE),))
    assert ways(network)["dead"] == "zero"
    assert_agree_in_single(network)


def assert_agree_in_single(network):
    (auto, _), (plain, _) = both_methods(network)
    assert distance(auto.value, plain.value) < 1e-6
