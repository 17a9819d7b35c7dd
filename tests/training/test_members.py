"""Members of a `vmap` share no noise: the attack, and its refusal in every setting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import NotPrivate
from demur.mechanisms.correlated import BandedToeplitz
from demur.training import ClippedSum, clipped_grad, privatizer
from demur.training.noise import privatizer as privatizers
from tests.training.clipping.kit import QUICK_TO_COMPILE

STDDEV = 50.0
SHAPE = (3,)
MEMBERS = jnp.arange(6.0).reshape(2, *SHAPE) / 7  # the exact sums of two members
KEYS = jnp.arange(2, dtype=jnp.uint32).reshape(1, 2)
KINDS = ("threefry", "lattice")


def transform(kind="threefry", bands=1):
    strategy = BandedToeplitz(np.full(bands, bands**-0.5), 8)
    return privatizer(strategy, stddev=STDDEV, noise=kind, l2_norm_bound=1.0)


def one_step(kind, bands):
    """(sum, state, key) -> the noisy sum; None takes a state and a key of its own."""
    act = transform(kind, bands)
    state = act.init(jnp.zeros(SHAPE))
    # A key from which the lattice may draw a step again, as an array can be used again.
    seeded = NoiseKey(Seeded(1).new_key(), private=False)

    def step(total, own_state=None, key=None):
        if key is None:
            key = KEYS if kind == "threefry" else seeded
        given = state if own_state is None else own_state
        return act.update(ClippedSum(total, 1.0), given, key=key)[0]

    return step, state


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 4])
def test_without_the_check_a_difference_of_members_is_exact(monkeypatch, bands):
    """The attack: noise of 50 on each member, and none on what they differ by."""
    monkeypatch.setattr(privatizers, "one_release", lambda tree: tree)
    step, _ = one_step("threefry", bands)
    noisy = np.asarray(jax.jit(jax.vmap(step))(MEMBERS))
    assert np.abs(noisy).max() > 1.0
    exact = np.asarray(MEMBERS[0] - MEMBERS[1])
    np.testing.assert_allclose(noisy[0] - noisy[1], exact, atol=2e-5)


def on_one_device(function):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    whole = PartitionSpec()
    return jax.shard_map(function, mesh=mesh, in_specs=whole, out_specs=whole)


def repeatedly(step):
    def turn(total, _):
        return step(total), None

    return lambda total: jax.lax.scan(turn, total, None, length=2)[0]


SETTINGS = {
    "vmap": lambda step: jax.vmap(step),
    "jit outside": lambda step: jax.jit(jax.vmap(step)),
    "jit inside": lambda step: jax.vmap(jax.jit(step)),
    "nested": lambda step: lambda x: jax.vmap(jax.vmap(step))(x[:, None]),
    "nested, outer alone": lambda step: jax.vmap(
        lambda total: jax.vmap(lambda rate: rate * step(total))(jnp.ones(2))
    ),
    "spmd_axis_name": lambda step: jax.vmap(step, spmd_axis_name="d"),
    "axis_name": lambda step: jax.vmap(step, axis_name="d"),
    "last axis": lambda step: lambda x: jax.vmap(step, in_axes=1, out_axes=1)(x.T),
    "scan of vmap": lambda step: repeatedly(jax.vmap(step)),
    "vmap of scan": lambda step: jax.vmap(repeatedly(step)),
    "vmap of a loop": lambda step: jax.vmap(
        lambda total: jax.lax.fori_loop(0, 2, lambda _, t: step(t), total)
    ),
    "vmap of cond": lambda step: jax.vmap(
        lambda t: jax.lax.cond(t[0] > 0, step, lambda t: t, t)
    ),
    "vmap of checkpoint": lambda step: jax.vmap(jax.checkpoint(step)),
    "vmap of grad": lambda step: jax.vmap(
        jax.grad(lambda rate, total: jnp.sum(rate * step(total))), in_axes=(None, 0)
    ),
    "map in batches": lambda step: lambda x: jax.lax.map(step, x, batch_size=2),
    "vectorize": lambda step: jnp.vectorize(step, signature="(n)->(n)"),
}


QUICK = ("vmap", "jit inside")


def _case(setting, kind, bands):
    """Every setting with plain noise, a few with all kinds; the rest is deep."""
    marks = []
    if setting not in QUICK:
        marks.append(pytest.mark.slow)
        if (kind, bands) != ("threefry", 1) and setting != "scan of vmap":
            marks.append(pytest.mark.deep)
    return pytest.param(setting, kind, bands, marks=marks)


@pytest.mark.parametrize(
    ("setting", "kind", "bands"),
    [_case(name, kind, n) for name in SETTINGS for kind in KINDS for n in (1, 4)],
)
def test_members_are_refused(setting, kind, bands):
    step, _ = one_step(kind, bands)
    act = SETTINGS[setting](step)
    rest = (1.0,) if setting == "vmap of grad" else ()
    error, text = NotPrivate, "a payment and a key of its own"
    if (kind, setting) == ("lattice", "vmap of cond"):
        error, text = NotImplementedError, "IO effect"  # JAX itself refuses it
    with pytest.raises(error, match=text):
        act(*rest, MEMBERS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_members_inside_shard_map_are_refused(kind):
    step, _ = one_step(kind, 1)
    with pytest.raises((NotPrivate, TypeError), match="its own|outside shard_map"):
        jax.vmap(on_one_device(step))(MEMBERS)


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 4])
def test_any_batched_input_is_a_member(bands):
    """One sum under several keys or states is several releases of that sum."""
    step, state = one_step("threefry", bands)
    total = MEMBERS[0]
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    with pytest.raises(NotPrivate):
        jax.vmap(lambda key: step(total, key=key))(jnp.stack([KEYS, KEYS + 1]))
    with pytest.raises(NotPrivate):
        jax.vmap(lambda own: step(total, own))(many)
    with pytest.raises(NotPrivate):
        jax.vmap(step)(MEMBERS, many, jnp.stack([KEYS, KEYS + 1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_operating_systems_noise_is_refused_too(kind):
    act = transform(kind)
    state = act.init(jnp.zeros(SHAPE))
    with pytest.raises(NotPrivate):
        jax.vmap(lambda t: act.update(ClippedSum(t, 1.0), state)[0])(MEMBERS)


@pytest.mark.slow
def test_a_sweep_of_one_noisy_sum_is_one_release():
    """Learning rates over the same noisy sum: post-processing."""
    step, _ = one_step("threefry", 1)
    rates = jnp.array([1.0, 2.0])
    swept = jax.jit(jax.vmap(lambda rate: rate * step(MEMBERS[0])))(rates)
    np.testing.assert_array_equal(swept[1], 2 * swept[0])


@pytest.mark.slow
def test_it_survives_what_is_no_vmap_and_compiles_to_nothing(monkeypatch):
    act = transform(bands=4)
    state = act.init(jnp.zeros(SHAPE))

    def run(state, total):
        def turn(state, total):
            noisy, state = act.update(ClippedSum(total, 1.0), state, key=KEYS)
            return state, noisy

        return jax.lax.scan(jax.checkpoint(turn), state, total)

    def of_rate(rate, total):
        return jnp.sum(rate * run(state, total)[1])

    ours = jax.jit(run, donate_argnums=0)
    text = ours.lower(state, MEMBERS).as_text()
    noisy = ours(jax.tree.map(jnp.copy, state), MEMBERS)[1]
    slope = jax.grad(of_rate)(1.0, MEMBERS)
    assert float(slope) == pytest.approx(float(np.sum(noisy)), rel=1e-5)
    monkeypatch.setattr(privatizers, "one_release", lambda tree: tree)
    assert jax.jit(run, donate_argnums=0).lower(state, MEMBERS).as_text() == text


# -- clipped gradients under vmap ------------------------------------------------------


def loss(w, batch):
    return jnp.mean((batch @ w) ** 2)


ROWS = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "axes",
    [
        (0, None),
        pytest.param((None, 0), marks=pytest.mark.deep),
        pytest.param((0, 0), marks=pytest.mark.deep),
    ],
)
def test_a_stack_of_sums_is_told_from_a_sum(axes):
    """Each member is clipped by itself; the noise takes one sum at a time."""
    grad = clipped_grad(loss, l2_clip_norm=1.0, method="vmap")
    weights = WEIGHTS if axes[0] == 0 else WEIGHTS[0]
    rows = ROWS if axes[1] == 0 else ROWS[0]
    quick = {"compiler_options": QUICK_TO_COMPILE}
    stack = jax.jit(jax.vmap(grad, in_axes=axes), **quick)(weights, rows)
    grad = jax.jit(grad, **quick)
    act = transform()
    state = act.init(weights[0])
    with pytest.raises(TypeError, match=r"stack of several sums.*members"):
        act.update(stack, state, key=KEYS)
    with pytest.raises(TypeError, match="stack of several sums"):
        ClippedSum.join([stack, grad(WEIGHTS[0], ROWS[0])])
    for i, member in enumerate(stack.members()):
        alone = grad(WEIGHTS[i if axes[0] == 0 else 0], ROWS[i if axes[1] == 0 else 0])
        np.testing.assert_allclose(member.value, alone.value, rtol=1e-5, atol=1e-6)
        assert member.l2_norm_bound == 1.0
        assert act.update(member, state, key=KEYS)[0].shape == SHAPE
    with pytest.raises(ValueError, match="takes apart a stack"):
        member.members()


@pytest.mark.slow
def test_the_outputs_of_a_scan_are_a_stack():
    def turn(carry, total):
        return carry, ClippedSum(total, 1.0)

    _, stack = jax.lax.scan(turn, None, MEMBERS)
    act = transform()
    with pytest.raises(TypeError, match="stack of several sums"):
        act.update(stack, act.init(jnp.zeros(SHAPE)), key=KEYS)
    assert len(stack.members()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 4])
def test_one_array_of_keys_for_all_steps_gives_each_step_its_own_noise(bands):
    """A habit of compiled loops; equal noise would cancel between two steps."""
    act = transform(bands=bands)
    state = act.init(jnp.zeros(500))
    rows = []
    for _ in range(3):
        noisy, state = act.update(ClippedSum(jnp.zeros(500), 1.0), state, key=KEYS)
        rows.append(np.asarray(noisy))
    drawn = np.array(rows)
    if bands > 1:  # back to the independent numbers
        drawn = transform(bands=bands).spec.strategy.matrix()[:3, :3] @ drawn
    apart = np.corrcoef(drawn) - np.eye(3)
    assert np.abs(apart).max() < 6 / np.sqrt(500)
