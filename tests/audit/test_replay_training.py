"""Replay of training runs, and of runs with one thing wrong each."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demur import AddOrRemoveOne, ReplaceOne, Seeded, ZeroOut
from demur.audit import Breach, replay
from demur.core.entropy import NoiseKey
from demur.core.recording import Tape, watching
from demur.errors import NotPrivate
from demur.mechanisms.correlated import BandedToeplitz
from demur.training import (
    BandMFExecutionPlanConfig,
    ClippedSum,
    CyclicPoissonSampling,
    PartitionType,
    Resources,
    ShapePlan,
    UserData,
    dp_sgd,
    fit,
    gradient_run,
    privatizer,
    step_keys,
)
from demur.training.clipping.rounding import in_float64
from demur.training.plans.plan import plan_terms

N, D, CLIP = 24, 3, 1.0
UNITS = {
    "ADD_OR_REMOVE_ONE": AddOrRemoveOne(),
    "REPLACE_ONE": ReplaceOne(),
    "REPLACE_SPECIAL": ZeroOut(),
}


def make_data(n=N):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, D)).astype(np.float32)
    return {"x": x, "y": (x @ np.arange(1, D + 1) > 0).astype(np.int32)}


def loss(params, batch):
    logits = batch["x"] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def worlds(relation):
    """The last record: of two classes and far away, gone, or blank."""
    data = make_data()
    data["x"][-1], data["y"][-1] = [40.0, -30.0, 20.0], 0
    other = {name: column.copy() for name, column in data.items()}
    if relation == "ADD_OR_REMOVE_ONE":
        other = {name: column[:-1] for name, column in data.items()}
    elif relation == "REPLACE_ONE":
        other["y"][-1] = 1
    return data, other


def make_plan(iterations=2, bands=1, relation="REPLACE_ONE", **options):
    config = {
        "sampling_prob": 0.9,
        "noise_multiplier": 1.0,
        "neighboring_relation": relation,
        "l2_clip_norm": CLIP,
        "normalize_by": 20.0,
        "noise": "lattice",  # half the compiling of threefry
    } | options
    if bands == 1:
        return dp_sgd(iterations=iterations, **config).make()
    return BandMFExecutionPlanConfig(
        iterations=iterations, num_bands=bands, **config
    ).make()


# One physical size: one program to compile.
ONE = Resources(shapes=ShapePlan((32,), None, 12, 0.0, 0.0, 0.0), check_loss=False)


def trained(make=make_plan, loss_fn=loss, resources=ONE, params=None):
    def run(data, source):
        plan = make(data) if make is not make_plan else make()
        zeros = {"w": jnp.zeros((D, 2)), "b": jnp.zeros(2)}
        done = fit(
            plan,
            loss_fn,
            zeros if params is None else params(data),
            data,
            optimizer=optax.sgd(0.5),
            resources=resources,
            delta=1e-5,
            average=0.9,
            source=source,
        )
        return {"params": done.value, "average": done.average, "entry": done.entry}

    return run


def audit(run, relation="REPLACE_ONE", pair=None):
    return replay(
        run,
        pair or worlds(relation),
        unit=UNITS[relation],
        subject=f"training at {relation}",
    )


# -- what holds ------------------------------------------------------------------------


SLOW = pytest.mark.slow
DEEP = pytest.mark.deep


@pytest.mark.slow
@pytest.mark.parametrize(
    "relation, noise",
    [
        pytest.param("REPLACE_ONE", "lattice", marks=DEEP),  # as `demur audit` does it
        pytest.param("ADD_OR_REMOVE_ONE", "lattice", marks=DEEP),
        ("ADD_OR_REMOVE_ONE", "threefry"),
    ],
)
def test_two_steps_of_dp_sgd(relation, noise):
    found = audit(
        trained(lambda _: make_plan(relation=relation, noise=noise)), relation
    )
    assert found.violations == ()
    assert (found.uses, found.charges) == (2, 1)
    # A far record's gradient is clipped: it contributes all it may, and turned around
    # (the other label) the sum moves by two such contributions.
    assert found.sensitivity_used > 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    "relation, noise",
    [
        pytest.param("REPLACE_ONE", "lattice", marks=DEEP),
        ("ADD_OR_REMOVE_ONE", "lattice"),
        ("ADD_OR_REMOVE_ONE", "threefry"),
    ],
)
def test_a_banded_run(relation, noise):
    groups = PartitionType.INDEPENDENT

    def make(_):
        return make_plan(7, 3, relation=relation, noise=noise, partition_type=groups)

    found = audit(trained(make), relation)
    assert found.violations == () and found.uses == 7 and found.sensitivity_used > 0.7


@SLOW
def test_batches_that_take_several_goes():
    several = Resources(minibatch_size=8, check_loss=False)
    run = trained(resources=several)
    found = audit(run)
    assert found.violations == () and found.uses == 2 and found.sensitivity_used > 0.99


@pytest.mark.slow
def test_people_who_come_and_go():
    relation = "ADD_OR_REMOVE_ONE"
    data, fewer = worlds(relation)
    data["x"][-2:], data["y"][-2:] = data["x"][-1], data["y"][-1]
    fewer = {name: column[:-1] for name, column in fewer.items()}

    def run(given, source):
        users = UserData(given, np.arange(len(given["y"])) // 2, examples=2)
        return trained(lambda _: make_plan(relation=relation))(users, source)

    found = audit(run, relation, (data, fewer))
    assert found.violations == () and found.sensitivity_used > 0.99


# -- what does not ---------------------------------------------------------------------


def with_gradient(change, **options):
    """A plan whose clipped gradient is not what it says."""

    def make(_):
        plan = make_plan(**options)
        right = plan.gradient(loss)

        def run(params, batch, *, is_padding_example=None, num_real=None):
            return change(right, params, batch, num_real)

        return replace(plan, clipped_grad=replace(right, run=run))

    return trained(make, loss_fn=None)


def said_to_be(total, value):
    """Another value with the bounds of a sum."""
    bound = total.l2_norm_bound
    return ClippedSum(value, bound, row_rounding=total.row_rounding)


def not_clipped(right, params, batch, real):
    """Norms are clipped without the leaf b, which is then taken as it is."""
    total = right(params, batch, num_real=real)
    rows = jax.tree.map(lambda column: column[:, None], batch)
    each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, rows)["b"]
    there = jnp.arange(len(each)) < real
    whole = jnp.where(there[:, None], each, 0.0).sum(0)
    return said_to_be(total, {"w": total.value["w"], "b": whole / 20.0})


def doubled(right, params, batch, real):
    total = right(params, batch, num_real=real)
    return said_to_be(total, jax.tree.map(lambda leaf: leaf + leaf, total.value))


def not_a_number(right, params, batch, real):
    """A far record (|x| > 30) makes its sum a NaN."""
    total = right(params, batch, num_real=real)
    far = (jnp.abs(batch["x"]).max() > 30.0) & (batch["y"].sum() % 2 == 0)
    changed = jax.tree.map(in_float64(partial(jnp.where, far, jnp.nan)), total.value)
    return said_to_be(total, changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, noise",
    [
        (doubled, "lattice"),
        (not_clipped, "lattice"),
        (not_a_number, "lattice"),
        pytest.param(not_a_number, "threefry", marks=SLOW),
    ],
)
def test_a_gradient_that_is_not_clipped_to_its_bound(change, noise):
    found = audit(with_gradient(change, noise=noise))
    assert Breach.INPUT in found.breaches()
    # The lattice takes NaN for 0, so that the sum moves by all of it.
    lost = change is not_a_number and noise == "threefry"
    assert (found.sensitivity_used == np.inf) == lost


@pytest.mark.slow
def test_the_same_wrapping_around_the_right_gradient_passes():
    found = audit(with_gradient(lambda right, p, b, r: right(p, b, num_real=r)))
    assert found.violations == ()


@pytest.mark.slow
def test_noise_and_scale_that_follow_n():
    """opacus#571: the expected batch size from len(data), n being a secret."""
    relation = "ADD_OR_REMOVE_ONE"

    def make(data):
        return make_plan(relation=relation, normalize_by=0.9 * len(data["y"]))

    found = audit(trained(make), relation)
    assert {Breach.CHARGE, Breach.NOISE} <= found.breaches()


@pytest.mark.slow
def test_first_parameters_that_come_from_the_data():
    def params(data):
        return {"w": jnp.zeros((D, 2)), "b": jnp.full(2, data["y"].mean())}

    found = audit(trained(lambda _: make_plan(), params=params))
    assert Breach.RESULT in found.breaches()


def changed_noise(plan, *, factor=1.0, terms=None):
    """The plan's noise, less of it, or paid for under other terms."""
    spec = plan.noise_addition_transform.spec
    return privatizer(
        spec.strategy,
        stddev=spec.stddev * factor,
        noise=spec.noise,
        l2_norm_bound=spec.l2_norm_bound,
        participation=spec.participation,
        plan=spec.plan if terms is None else terms,
    )


def with_batches(plan, selection):
    """The plan with other batches than its price is for."""
    terms = plan_terms(selection, plan.account, plan.noise_multiplier, None)
    return replace(
        plan,
        batch_selection_strategy=selection,
        noise_addition_transform=changed_noise(plan, terms=terms),
        num_examples=None,
    )


@pytest.mark.slow
def test_half_the_noise_for_the_whole_price():
    def make(_):
        plan = make_plan()
        return replace(plan, noise_addition_transform=changed_noise(plan, factor=0.5))

    assert audit(trained(make)).breaches() == {Breach.PRICE}


@pytest.mark.slow
def test_a_record_in_more_steps_than_its_pattern_allows():
    """Three bands, and batches that know nothing of the cycle."""

    def make(_):
        plan = make_plan(6, 3)
        everyone = CyclicPoissonSampling(sampling_prob=1.0, iterations=6)
        return with_batches(plan, everyone)

    found = audit(trained(make))
    assert Breach.INPUT in found.breaches()
    assert any("too close" in violation.message for violation in found.violations)


@pytest.mark.slow
def test_batches_that_depend_on_how_many_there_are():
    """A cut sample has no account at add-or-remove; taken all the same, it shows."""
    relation = "ADD_OR_REMOVE_ONE"

    def make(_):
        plan = make_plan(relation=relation)
        cut = CyclicPoissonSampling(
            sampling_prob=0.9, iterations=2, truncated_batch_size=5
        )
        return with_batches(plan, cut)

    found = audit(trained(make), relation)
    assert {Breach.BATCHES, Breach.INPUT} <= found.breaches()


# -- loops of one's own ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "jit, noise",
    [
        (False, "lattice"),
        (True, "threefry"),
        pytest.param(False, "threefry", marks=DEEP),
        pytest.param(True, "lattice", marks=DEEP),
    ],
)
def test_a_loop_of_ones_own(jit, noise):
    """The tape is found when a step is traced, and in JAX's own threads."""
    transform = privatizer(
        BandedToeplitz([0.8, 0.6], 4), stddev=2.0, noise=noise, l2_norm_bound=1.0
    )
    step = transform.update
    tapes = [Tape()]
    tapes.append(Tape(tapes[0]))
    released = []
    for tape, value in zip(tapes, (0.0, 0.5), strict=True):
        key = NoiseKey(bytes(32), private=False)
        tree = {"a": jnp.full(3, value), "b": jnp.full((2, 2), value)}
        with watching(tape):
            state, rows = transform.init(tree), []
            for t in range(3):
                keys = (
                    key
                    if noise == "lattice"
                    else step_keys(key.stream("noise", t), len(tree))
                )
                once = (
                    jax.jit(lambda u, s, k=keys: step(u, s, key=k))
                    if jit
                    else (lambda u, s, k=keys: step(u, s, key=k))
                )
                noisy, state = once(ClippedSum(tree, 1.0), state)
                rows.append(jax.device_get(noisy))
        released.append(rows)
    assert [p.declared.step for p in tapes[1].uses] == [0, 1, 2]
    for one, two in zip(*released, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, two)
    row = 0.6 if noise == "lattice" else 0.0  # lattice tells rows of C G
    seen = tapes[1].uses[1].value[0]
    np.testing.assert_allclose(seen, 0.5 * (0.8 + row if row else 1.0), rtol=1e-6)


@pytest.mark.slow
def test_a_step_without_a_tape_has_no_callback_in_it():
    transform = privatizer(BandedToeplitz([1.0], 4), stddev=2.0)
    tree = {"a": jnp.zeros(3)}

    def step(total, state, key):
        return transform.update(total, state, key=key)

    arguments = (
        ClippedSum(tree, 1.0),
        transform.init(tree),
        jnp.zeros((1, 2), "uint32"),
    )
    assert "callback" not in jax.jit(step).lower(*arguments).as_text()
    with watching(Tape()):
        # A new function: a program that was traced without a tape stays without it.
        watched = jax.jit(lambda *given: step(*given)).lower(*arguments)
    assert "callback" in watched.as_text()


@pytest.mark.slow
def test_private_runs_are_refused():
    with pytest.raises(NotPrivate, match="Nothing was spent"):
        audit(lambda data, source: trained(lambda _: make_plan())(data, None))
    transform = privatizer(BandedToeplitz([1.0], 4), stddev=2.0)
    tree = {"a": jnp.zeros(3)}
    with watching(Tape()), pytest.raises(NotPrivate, match="Nothing was drawn"):
        transform.update(ClippedSum(tree, 1.0), transform.init(tree))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["threefry", "lattice"])
def test_canaries_are_traced_anew_for_every_world(noise):
    """Shapes are equal in both worlds: what was traced under one tape would be kept."""
    plan = make_plan(noise=noise, sampling_prob=1.0)
    run = gradient_run(plan, {"w": jnp.zeros(4)})
    rows = np.eye(4)[:3]
    other = rows * [[1], [1], [-1]]
    before = run(rows, Seeded(0))
    for _ in range(2):
        found = replay(run, (rows, other), unit=UNITS["REPLACE_ONE"], subject="rows")
        # Canaries are the auditor's: nothing is charged, all else holds.
        assert found.breaches() == {Breach.PRICE} and found.uses == 2
    assert run(rows).shape == before.shape  # from the operating system, unwatched


@pytest.mark.slow
def test_a_pair_in_the_wrong_order_is_the_callers_mistake():
    relation = "ADD_OR_REMOVE_ONE"
    larger, smaller = worlds(relation)
    run = trained(lambda _: make_plan(relation=relation))
    with pytest.raises(ValueError, match="larger dataset must come first"):
        audit(run, relation, pair=(smaller, larger))
