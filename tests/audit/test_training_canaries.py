"""Canaries and noise tests on the real parts of a training plan."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from demur import Seeded
from demur.audit import (
    Canaries,
    Claim,
    audit,
    audit_canaries,
    draws_needed,
    flip_coins,
    independence_test,
    noise_test,
)
from demur.audit.distributions import normal
from demur.training import (
    BandMFExecutionPlanConfig,
    ClippedSum,
    dp_sgd,
    gradient_run,
    privatizer,
    step_weights,
)

pytestmark = pytest.mark.slow

PARAMS = {"w": jnp.zeros((32, 31)), "b": jnp.zeros(32)}
SIZE = 1024
COMMON = {
    "neighboring_relation": "ADD_OR_REMOVE_ONE",
    "l2_clip_norm": 1.0,
    "sampling_prob": 1.0,
}


def make_plan(iterations=1, multiplier=1.0, **options):
    config = COMMON | options
    if "num_bands" in config:
        return BandMFExecutionPlanConfig(
            iterations=iterations, noise_multiplier=multiplier, **config
        ).make()
    return dp_sgd(iterations=iterations, noise_multiplier=multiplier, **config).make()


def with_noise(plan, factor):
    """The same plan whose noise is `factor` times what it should be."""
    spec = plan.noise_addition_transform.spec
    wrong = privatizer(
        spec.strategy,
        stddev=spec.stddev * factor,
        noise=spec.noise,
        l2_norm_bound=spec.l2_norm_bound,
    )
    return replace(plan, noise_addition_transform=wrong)


def unclipped(plan):
    """The same plan with a clip norm four times too large, which it does not say."""

    def loose(loss):
        made = plan.clipped_grad(loss)
        wide = made.with_(l2_clip_norm=4.0)
        return replace(wide, l2_norm_bound=made.l2_norm_bound, run=_as_bound(wide, 1.0))

    return replace(plan, clipped_grad=loose)


def _as_bound(clipped, bound):
    def run(*args, **kwargs):
        total = clipped.run(*args, **kwargs)
        return ClippedSum(total.value, bound, row_rounding=total.row_rounding)

    return run


def audit_plan(plan, claimed=None, *, seed=3, count=1000):
    canaries = Canaries.draw(count, SIZE, clip_norm=1.0)
    coins = flip_coins(count, random_state=seed)
    releases = gradient_run(plan, PARAMS)(canaries.rows(coins), Seeded(seed))
    scores = canaries.scores(releases, step_weights(plan))
    said = claimed or plan
    claim = Claim.of(said.event(), unit=said.unit, delta=1e-5)
    return audit_canaries(scores, coins, claim)


PLANS = {
    "one step": {"multiplier": 0.5},
    "eight steps": {"iterations": 8, "multiplier": 1.5},
    "one step on the lattice": {"multiplier": 0.5, "noise": "lattice"},
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_not_refuted_and_their_twins_are(name):
    plan = make_plan(**PLANS[name])
    sound = audit_plan(plan)
    assert not any(result.refuted for result in sound)
    assert sound[2].lower_bound > 0.5 * sound[2].claimed
    for twin in (with_noise(plan, 0.5), unclipped(plan)):
        assert any(result.refuted for result in audit_plan(twin, plan))


def test_banded_noise_is_whitened():
    """Weights C^T C 1 see almost all of the loss that the plan claims."""
    plan = make_plan(iterations=6, num_bands=3, multiplier=0.7)
    assert step_weights(plan).shape == (6,)
    sound = audit_plan(plan)
    assert not any(result.refuted for result in sound)
    assert sum(r.refuted for r in audit_plan(with_noise(plan, 0.3), plan)) > 0


def test_a_sampled_run_is_counted():
    plan = make_plan(iterations=10, sampling_prob=0.3)
    found = audit_plan(plan)
    assert len(found) == 2 and not any(result.refuted for result in found)


def test_one_step_by_many_runs():
    """mu of the inner product with one canary; the clip is what bounds it."""
    plan = make_plan(multiplier=0.5)
    canary = Canaries.draw(1, SIZE, clip_norm=1.0)
    rows = canary.rows()
    pair = rows, np.zeros_like(rows)
    claim = Claim.of(plan.event(), unit=plan.unit, delta=1e-5, score=rows[0])
    for twin, refuted in ((plan, False), (with_noise(plan, 0.5), True)):
        result = audit(gradient_run(twin, PARAMS), pair, claim, runs=250)
        assert result.refuted is refuted


@pytest.mark.parametrize("noise", ["threefry", "lattice"])
def test_training_noise_follows_its_law_and_leaves_are_independent(noise):
    plan = make_plan(iterations=64, noise=noise)
    releases = gradient_run(plan, PARAMS)(np.zeros((1, SIZE)), Seeded(5))
    spec = plan.noise_addition_transform.spec
    if noise == "lattice":
        mechanism = spec.lattice(SIZE).mechanism
        law = normal(mechanism.sigma)  # float32 after the lattice: no step is left
    else:
        law = normal(spec.stddev)
    draws = releases.reshape(-1)
    assert draws.size > draws_needed(law)
    assert not noise_test(draws, law).refuted
    assert noise_test(draws * 0.95, law).refuted
    columns = draws.reshape(-1, 2)
    assert not independence_test(columns, law).refuted
    halves = np.column_stack([releases[:, 512:].ravel(), releases[:, :512].ravel()])
    assert not independence_test(halves, law).refuted
    assert independence_test(halves[:, [0, 0]], law).refuted


def test_rows_are_their_own_gradients_in_the_order_of_the_leaves():
    plan = make_plan(multiplier=1e-6)
    rows = np.zeros((3, SIZE))
    rows[0, 5], rows[1, 40], rows[2, 1000] = 0.5, -0.25, 3.0  # the last is clipped to 1
    (release,) = gradient_run(plan, PARAMS)(rows, Seeded(0))
    expected = rows.sum(axis=0)
    expected[1000] = 1.0
    assert release == pytest.approx(expected, abs=1e-4)


def test_bad_rows_are_refused():
    run = gradient_run(make_plan(), PARAMS)
    with pytest.raises(ValueError, match="1024 parameters"):
        run(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="finite"):
        run(np.full((2, SIZE), np.nan))
