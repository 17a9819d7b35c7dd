"""`fit`: what it computes, what it enters in the ledger, what it refuses."""

import io
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from demur.core.adjacency import AddOrRemoveOne, ReplaceOne, ZeroOut
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import BudgetExceeded, NotCovered, NotPriced
from demur.ledger import Budget, Filter, Ledger
from demur.training import (
    CyclicPoissonSampling,
    Exact,
    LossNotSeparable,
    Resources,
    ShapePlan,
    StepReport,
    UserData,
    as_data,
    clipped_grad,
    dp_sgd,
    step_keys,
)
from demur.training.noise.threefry import keys_at, normals
from demur.training.run import programs
from demur.training.run.loss_checks.separability import check_separable
from demur.training.run.prefetcher import Minibatch, Prefetcher, StepInput
from demur.training.run.progress import ProgressBar
from demur.training.run.step_reports import spent_so_far
from demur.training.sizes.defaults import may_need_several, shapes_for

from .kit import SGD, D, N, loss, make_data, make_params, make_plan, train


def new_ledger(epsilon=50.0, delta=1e-5, unit=None, rule=None):
    return Ledger(
        Budget(epsilon, delta),
        unit=unit or AddOrRemoveOne(),
        filter=rule or Filter.pure(),
    )


every_gradient = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))


@cache
def by_hand(bands, seed):
    """The run written out: same key, plain loops, per-example gradients by vmap."""
    plan, data = make_plan(bands=bands), make_data()
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    chosen = plan.batch_selection_strategy.batch_iterator(len(data["y"]), key)
    params = make_params()
    state = SGD.init(params)
    leaves, tree = jax.tree.flatten(params)
    spec = plan.noise_addition_transform.spec
    matrix = spec.strategy.matrix()
    drawn, trail = [], []
    rows = {name: column[:, None] for name, column in data.items()}
    for step, indices in enumerate(chosen):
        keys = step_keys(key.stream("step noise", step), len(leaves))
        keys = keys_at(jnp.asarray(keys), step)
        drawn.append([np.asarray(z) for z in normals(keys, leaves)])
        found = jax.tree.leaves(every_gradient(params, rows))
        each = [np.asarray(g, np.float64) for g in found]
        norms = np.sqrt(sum((g.reshape(len(g), -1) ** 2).sum(1) for g in each))
        factors = np.minimum(1.0, 1.0 / norms)[indices] / 20.0
        total = [np.tensordot(factors, g[indices], 1) for g in each]
        weights = np.linalg.inv(matrix)[step, : step + 1]
        noise = [
            spec.stddev * sum(w * z[k] for w, z in zip(weights, drawn, strict=True))
            for k in range(len(leaves))
        ]
        noisy = [jnp.asarray(t + n) for t, n in zip(total, noise, strict=True)]
        updates, state = SGD.update(jax.tree.unflatten(tree, noisy), state)
        params = optax.apply_updates(params, updates)
        trail.append(params)
    return trail


def same(a, b, tolerance=2e-4):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


# -- what it computes ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "bands, sizes",
    [
        (1, {}),
        pytest.param(3, {"minibatch_size": 8}, marks=pytest.mark.slow),
        pytest.param(
            3, {"minibatch_size": 8, "microbatch_size": 4}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_is_what_it_would_be_by_hand(bands, sizes):
    plan, data = make_plan(bands=bands), make_data()
    done = train(plan, data, source=Seeded(5), shapes=None, **sizes)
    same(done.value, by_hand(bands, 5)[-1])
    assert done.steps == 12 and "NOT PRIVATE" in done.statement()


@pytest.mark.slow
def test_a_missed_batch_is_noticed():
    """The comparison above has power: one step less is far outside its tolerance."""
    trail = by_hand(1, 5)
    with pytest.raises(AssertionError):
        same(trail[-1], trail[-2])


@pytest.mark.slow
def test_two_runs_of_one_plan_differ_in_batches_and_noise():
    plan, data = make_plan(), make_data()
    runs = [train(plan, data) for _ in "ab"]
    assert not np.allclose(runs[0].value["w"], runs[1].value["w"], atol=1e-4)
    assert all(run.entry.private for run in runs)


@pytest.mark.slow
def test_it_learns():
    plan = make_plan(iterations=60, sampling_prob=0.5, normalize_by=100.0)
    data = make_data()
    done = train(
        plan, data, average=0.9, shapes=ShapePlan((200,), None, 60, 0.0, 0.0, 0.0)
    )
    for params in (done.value, done.average):
        found = (data["x"] @ params["w"] + params["b"]).argmax(1)
        assert (found == data["y"]).mean() > 0.85


@pytest.mark.slow
def test_the_callers_parameters_are_left_alone():
    params = make_params()
    train(make_plan(), params=params)
    assert float(jnp.abs(params["w"]).max()) == 0.0


@pytest.mark.slow
def test_empty_batches_are_ordinary_steps():
    """About a third of the batches are empty, and one dataset is as well."""
    plan = make_plan(sampling_prob=1.0 / N)
    done = train(plan)
    assert np.isfinite(np.asarray(done.value["w"])).all()
    nobody = {"x": np.zeros((0, D), np.float32), "y": np.zeros(0, np.int32)}
    done = train(make_plan(), nobody)
    assert done.steps == 12


@pytest.mark.slow
def test_an_example_that_is_not_finite_counts_for_nothing():
    data = make_data()
    data["x"][::3] = np.nan
    done = train(make_plan(), data)
    assert np.isfinite(np.asarray(done.value["w"])).all()


@pytest.mark.slow
def test_lattice_noise_for_every_step():
    plan = make_plan(noise="lattice", bands=3)
    ledger = new_ledger()
    done = train(plan, ledger=ledger)
    assert "lattice" in done.statement() and "threefry" not in done.statement()
    assert done.entry.declaration.sampler_distance > 0.0


@pytest.mark.slow
def test_lattice_noise_is_drawn_once_for_several_minibatches():
    plan = make_plan(noise="lattice", bands=3)
    runs = [
        train(plan, source=Seeded(1), shapes=None, minibatch_size=size)
        for size in (8, 64)
    ]
    same(runs[0].value, runs[1].value, 1e-4)


@pytest.mark.slow
def test_a_batch_of_people():
    """40 people with 5 examples each; a batch row is two examples of one of them."""
    data, ids = make_data(), np.repeat(np.arange(40), 5)
    plan = dp_sgd(
        iterations=5,
        sampling_prob=0.25,
        noise_multiplier=4.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(clipped_grad(loss, l2_clip_norm=1.0, keep_batch_dim=False))
    done = train(plan, UserData(data, ids, examples=2), loss=None)
    assert done.steps == 5
    with pytest.raises(ValueError, match="owner of each"):
        UserData(data, ids[:3])


@pytest.mark.slow
def test_a_loss_with_a_key_of_its_own():
    def dropout(params, batch, key):
        kept = jax.random.key_data(key)[0] % 2
        return loss(params, {"x": batch["x"] * kept, "y": batch["y"]})

    plan = dp_sgd(
        iterations=4,
        sampling_prob=0.2,
        noise_multiplier=4.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(clipped_grad(dropout, l2_clip_norm=1.0, prng_argnum=2))
    done = train(plan, loss=None)
    assert done.steps == 4


@pytest.mark.slow
def test_a_batch_in_several_arguments():
    plan = dp_sgd(
        iterations=4,
        sampling_prob=0.2,
        noise_multiplier=4.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(
        clipped_grad(
            lambda p, x, y: loss(p, {"x": x, "y": y}),
            l2_clip_norm=1.0,
            batch_argnums=(1, 2),
        )
    )
    data = make_data()
    pair = (data["x"], data["y"])
    assert train(plan, pair, loss=None).steps == 4


# -- what it enters in the ledger -----------------------------------------------------


@pytest.mark.slow
def test_one_reservation_pays_for_the_run_and_not_for_one_step_more():
    ledger, plan = new_ledger(), make_plan()
    done = train(plan, ledger=ledger)
    (entry,) = ledger.entries()
    assert entry.count == 12 and done.entry.id == entry.id
    assert ledger.epsilon() == pytest.approx(plan.price(1e-5), rel=1e-3)
    reservation = plan.paid(new_ledger(), label="once more").reservation
    for _ in range(12):
        reservation.draw()
    with pytest.raises(BudgetExceeded, match="all are used"):
        reservation.draw()


@pytest.mark.slow
def test_every_step_is_drawn_before_its_batch_is_handed_on():
    ledger, plan, seen = new_ledger(), make_plan(), []

    def watch(report):
        seen.append(ledger._drawn(ledger.entries()[0]) >= report.step)

    train(plan, ledger=ledger, callback=watch)
    assert seen == [True] * 12
    assert ledger._drawn(ledger.entries()[0]) == 12


@pytest.mark.slow
def test_rounds_of_a_banded_plan():
    ledger, plan = new_ledger(), make_plan(bands=3)
    train(plan, ledger=ledger)
    (entry,) = ledger.entries()
    assert entry.count == plan.draws == 4
    assert ledger._drawn(entry) == 4


def test_a_declined_run_draws_nothing():
    ledger = new_ledger(epsilon=0.01)
    with pytest.raises(BudgetExceeded):
        train(make_plan(), ledger=ledger)
    assert ledger.entries() == [] and ledger.epsilon() == 0.0


@pytest.mark.slow
def test_a_plan_calibrated_to_a_budget_fits_it_exactly():
    ledger = new_ledger(epsilon=2.0, delta=1e-6)
    plan = (
        dp_sgd(iterations=50, sampling_prob=0.05, l2_clip_norm=1.0)
        .calibrate(ledger)
        .make()
    )
    train(plan, ledger=ledger, delta=None)
    assert 1.98 < ledger.epsilon() <= 2.0
    with pytest.raises(BudgetExceeded):
        train(plan, ledger=ledger, delta=None)


@pytest.mark.slow
def test_the_ledger_decides_whom_a_run_is_priced_for():
    plan = make_plan(
        neighboring_relation="REPLACE_SPECIAL", truncated_batch_size=40, num_examples=N
    )
    assert isinstance(plan.unit, ZeroOut)
    ledger = new_ledger(unit=ReplaceOne())
    train(plan, ledger=ledger)
    # A replaced record moves a sum by two contributions.
    assert ledger.epsilon() > 1.5 * plan.price(1e-5)
    # Truncation is priced by the number of records, here the secret.
    ledger = new_ledger(unit=AddOrRemoveOne())
    with pytest.raises((NotCovered, NotPriced)):
        train(plan, ledger=ledger)
    assert ledger.entries() == []


@pytest.mark.slow
def test_the_ledger_is_committed_and_the_key_is_gone():
    ledger = new_ledger()
    done = train(make_plan(), ledger=ledger)
    with pytest.raises(Exception, match="committed"):
        ledger._key(done.entry, None)


def test_without_a_ledger_delta_must_come_from_somewhere():
    with pytest.raises(TypeError, match="delta must be given"):
        train(make_plan(), delta=None)
    with pytest.raises(TypeError, match="Ledger"):
        train(make_plan(), ledger="ledger.db")


@pytest.mark.slow
def test_without_a_ledger_the_plans_own_target_is_the_budget():
    plan = make_plan(noise_multiplier=None, epsilon=3.0, delta=1e-5)
    done = train(plan, delta=None)
    assert "Not recorded" in done.statement() and "epsilon 3" in done.statement()


# -- what it tells ---------------------------------------------------------------------


@pytest.mark.slow
def test_reports_hold_public_numbers():
    reports = []
    plan = make_plan()
    train(plan, callback=reports.append)
    assert [r.step for r in reports] == list(range(1, 13))
    assert all(isinstance(r, StepReport) and r.exact is None for r in reports)
    spent = [r.epsilon for r in reports]
    assert spent == sorted(spent) and spent[-1] >= plan.price(1e-5) * 0.999
    assert spent[0] < spent[-1]
    assert reports[-1].params()["w"].shape == (D, 2)


@pytest.mark.slow
def test_epsilon_so_far_bounds_the_price_of_the_steps_so_far():
    for steps in (1, 5, 12):
        plan, part = make_plan(iterations=12), make_plan(iterations=steps)
        spent = spent_so_far(plan.event(), 12, 1e-5, plan.price(1e-5) + 1e-9)
        assert spent(steps) >= part.price(1e-5)
    # One step does not pay for twelve, so the comparison can fail.
    assert spent(1) < part.price(1e-5)


@pytest.mark.slow
def test_exact_metrics_only_for_whoever_asks():
    seen = []
    train(
        make_plan(),
        callback=lambda report: seen.append(report),
        exact_metrics=True,
    )
    exact = seen[0].exact
    assert isinstance(exact, Exact)
    assert exact.reveal()["loss"] == pytest.approx(np.log(2), rel=1e-4)
    assert "0.69" not in repr(seen[0]) and "Exact(<not private>)" in repr(seen[0])
    with pytest.raises(TypeError):
        exact.__reduce__()


@pytest.mark.slow
def test_a_reports_parameters_are_those_of_its_step_or_none():
    kept = []
    train(make_plan(), callback=kept.append)
    with pytest.raises(RuntimeError, match="inside the callback"):
        kept[0].params()
    assert "Array" not in repr(kept[-1]) and "0." not in repr(kept[-1].params)


def test_a_batch_says_nothing_by_itself():
    part = Minibatch(64, 17, {"x": np.full(3, 0.5)})
    assert "17" not in repr(part) and "0.5" not in repr(StepInput(3, (part,)))


@pytest.mark.slow
def test_waste_is_exact_and_says_nothing_by_itself():
    plan = make_plan(sampling_prob=0.2)
    shapes = ShapePlan((64,), None, 12, 0.0, 0.0, 0.0)
    done = train(plan, shapes=shapes)
    assert 0.2 < done.waste.reveal() < 0.55
    assert "0." not in repr(done.waste)


# -- what it compiles ------------------------------------------------------------------


def test_a_short_run_compiles_one_program_and_a_long_one_several():
    def sizes(iterations, flops=None):
        poisson = CyclicPoissonSampling(256 / 60_000, iterations)
        found = shapes_for(
            poisson,
            60_000,
            Resources(),
            flops=lambda: flops,
        )
        assert not may_need_several(poisson, 60_000, found)
        return len(found.sizes)

    assert 1 == sizes(20) < sizes(1000) < sizes(20_000)
    # What an example costs decides as well: softmax regression, and a network.
    assert 1 == sizes(1000, 2e4) < sizes(1000, 1e7)


@pytest.mark.slow
def test_a_plan_run_again_is_not_compiled_again_unless_its_loss_has_changed():
    weight = [1.0]

    def scaled(params, batch):
        return weight[0] * loss(params, batch)

    plan = make_plan()
    first = train(plan, loss=scaled, source=Seeded(1))
    cached = list(programs._CACHE)
    train(plan, loss=scaled, source=Seeded(2))
    assert list(programs._CACHE) == cached
    weight[0] = 0.0
    other = train(plan, loss=scaled, source=Seeded(1))
    assert list(programs._CACHE) != cached
    assert not np.allclose(first.value["w"], other.value["w"], atol=1e-4)


@pytest.mark.slow
def test_a_callback_may_end_the_run():
    ledger = new_ledger()
    done = train(make_plan(), ledger=ledger, callback=lambda report: report.step == 3)
    assert done.steps == 3
    assert ledger.epsilon() == pytest.approx(make_plan().price(1e-5), rel=1e-3)


@pytest.mark.slow
def test_a_failing_callback_leaves_the_run_spent_and_no_thread_behind():
    ledger = new_ledger()

    def fail(report):
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        train(make_plan(), ledger=ledger, callback=fail)
    assert len(ledger.entries()) == 1


def test_the_bar_shows_public_numbers():
    told = io.StringIO()
    console = Console(file=told, force_terminal=True, width=100)
    with ProgressBar(100, 0, True, console) as shown:
        shown.show(7, 1.25, 33.0)
    assert "step 7/100" in told.getvalue() and "epsilon 1.25" in told.getvalue()


@pytest.mark.slow
def test_a_bar_nobody_sees_writes_nothing(capfd):
    train(make_plan(), progress=True)
    assert capfd.readouterr().out == ""


# -- what it refuses -------------------------------------------------------------------


def batch_norm(params, batch):
    """Batch normalisation, in short."""
    x = (batch["x"] - batch["x"].mean(0)) / (batch["x"].std(0) + 1e-3)
    return loss(params, {"x": x, "y": batch["y"]})


def contrastive(params, batch):
    scores = batch["x"] @ params["w"]
    return loss(params, batch) + 0.1 * jnp.sum(scores @ scores.T) / len(scores)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [batch_norm, pytest.param(contrastive, marks=pytest.mark.slow)]
)
def test_a_loss_that_is_not_separable_is_refused(wrong):
    ledger = new_ledger()
    params = jax.tree.map(lambda leaf: leaf + 0.3, make_params())
    with pytest.raises(LossNotSeparable, match="neither the mean nor the sum"):
        train(make_plan(), ledger=ledger, loss=wrong, params=params, check_loss=True)
    assert ledger.entries() == []


@pytest.mark.slow
def test_who_skips_the_check_may_train_anything():
    assert train(make_plan(), check_loss=False, loss=batch_norm).steps == 12


@pytest.mark.slow
def test_weights_of_zero_do_not_hide_an_interaction():
    """At zero weights the scores vanish, and with them the term between examples."""
    ledger = new_ledger()
    with pytest.raises(LossNotSeparable):
        train(make_plan(), ledger=ledger, loss=contrastive, check_loss=True)
    assert ledger.entries() == []


def broken(params, batch):
    return (batch["x"] @ params["w"].T).mean()


@pytest.mark.parametrize(
    "options, error, match",
    [
        (
            {"params": {"w": jnp.full((D, 2), np.nan), "b": jnp.zeros(2)}},
            ValueError,
            "fin",
        ),
        ({"loss": broken}, TypeError, "dot_general"),
        ({"shapes": None, "minibatch_size": -1}, ValueError, "minibatch_size"),
    ],
    ids=["parameters that are not finite", "a broken loss", "a size"],
)
def test_what_cannot_run_is_not_paid_for(options, error, match):
    ledger = new_ledger()
    with pytest.raises(error, match=match):
        train(make_plan(), ledger=ledger, **options)
    assert ledger.entries() == []


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1.0, np.nan]),
        [1, None],
        ["ann", float("nan")],
        np.array(["ann", None], dtype=object),
        np.array(["2026-11-15", "NaT"], dtype="datetime64[D]"),
    ],
)
def test_a_missing_owner_is_not_a_person(ids):
    with pytest.raises(TypeError, match="whole numbers or strings"):
        UserData(np.zeros(len(ids)), ids)


@pytest.mark.parametrize(
    "ids",
    [[3, 1, 3], ["b", "a", "b"], np.array(["b", "a", "b"], dtype=object), [b"x", b"y"]],
)
def test_owners_are_whole_numbers_or_strings(ids):
    assert UserData(np.zeros(len(ids)), ids).count == 2


@pytest.mark.slow
def test_means_and_sums_pass_the_check():
    structs = make_data()
    structs = {
        name: jax.ShapeDtypeStruct((2, *column.shape[1:]), column.dtype)
        for name, column in structs.items()
    }
    params = jax.tree.map(lambda leaf: leaf + 0.3, make_params())
    check_separable(loss, params, (structs,))
    check_separable(
        lambda p, b: (loss(p, b) * len(b["y"]), "aux"), params, (structs,), has_aux=True
    )


def test_other_numbers_of_examples_than_the_plan_was_priced_for():
    plan = make_plan(
        neighboring_relation="REPLACE_SPECIAL", truncated_batch_size=40, num_examples=99
    )
    with pytest.raises(ValueError, match="num_examples=99"):
        train(plan)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"minibatch_size": 0}, "minibatch_size"),
        ({"minibatch_size": 10, "microbatch_size": 4}, "multiple of 4"),
        ({"average": 1.5}, "average"),
        ({"shapes": ShapePlan((10,), 4, 1, 0, 0, 0), "microbatch_size": 4}, "multiple"),
    ],
)
def test_bad_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        train(make_plan(), **{"shapes": None} | options)


def test_an_error_in_the_prefetcher_comes_out_in_the_loop():
    def broken():
        yield np.arange(3)
        raise RuntimeError("disk gone")

    shapes = ShapePlan((4,), None, 5, 0.0, 0.0, 0.0)
    with Prefetcher(
        broken(),
        as_data(make_data()),
        start=0,
        shapes=shapes,
        place=lambda rows: rows,
        pay=lambda step: None,
    ) as feed:
        inputs = iter(feed)
        assert next(inputs).minibatches[0].real == 3
        with pytest.raises(RuntimeError, match="disk gone"):
            next(inputs)


@pytest.mark.parametrize(
    ("multiplier", "noise"), [(1e-3, "threefry"), (1e-3, "lattice"), (1e-9, "lattice")]
)
def test_a_nearly_noiseless_run_without_a_ledger_runs_and_says_so(multiplier, noise):
    plan = make_plan(noise_multiplier=multiplier, noise=noise)
    statement = train(plan, ledger=None, delta=1e-5).entry.statement()
    assert "NO MEANINGFUL PROTECTION" in statement and "Not recorded" in statement
    ledger = new_ledger(epsilon=1e4)
    with pytest.raises((BudgetExceeded, NotPriced), match="othing was spent"):
        train(plan, ledger=ledger)
    assert not ledger.entries()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optax.adam(0.1), optax.sgd(0.1, momentum=0.9)])
def test_narrow_parameters_keep_their_moments(optimizer):
    """The moments of bfloat16 parameters are float32 after a step, and before it."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), make_params())
    done = train(make_plan(iterations=3), params=params, optimizer=optimizer)
    assert done.steps == 3 and done.value["w"].dtype == jnp.bfloat16
