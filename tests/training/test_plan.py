"""Plans: the parts fit each other, the event follows from them, the ledger is paid."""

from __future__ import annotations

import itertools
import math

import dp_accounting as dpa
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.experimental import execution_plan as peer
from scipy.stats import norm

from demur.core import accounting
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Repeated,
    TruncatedPoissonGaussian,
)
from demur.core.accounting.gaussian import ideal_delta
from demur.core.adjacency import AddOrRemoveOne, Ball, Erasure, ReplaceOne, ZeroOut
from demur.core.errors import BudgetExceeded, NotCovered, NotPriced
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms.correlated import (
    BandedToeplitz,
    Buffered,
    Participation,
    optimize_banded_toeplitz,
)
from demur.training import (
    BallsInBinsSampling,
    BandMFExecutionPlanConfig,
    BMinSepSampling,
    CyclicPoissonSampling,
    ExecutionPlanConfig,
    FixedBatchSampling,
    PartitionType,
    clipped_grad,
    dp_sgd,
)
from demur.training.accounting.accounts import (
    FixedBatchAccount,
    PoissonAccount,
    run_event,
)
from demur.training.batches.selection import STEP_DISTANCE

ADD, ZERO, REPLACE = (
    Neighbours.ADD_OR_REMOVE_ONE,
    Neighbours.ZERO_OUT,
    Neighbours.REPLACE_ONE,
)
Relation = dpa.NeighboringRelation
INDEPENDENT, EQUAL = PartitionType.INDEPENDENT, PartitionType.EQUAL_SPLIT


def loss(params, batch):
    return jnp.mean((batch - params) ** 2)


GRADIENT = clipped_grad(loss, l2_clip_norm=2.0, normalize_by=50.0)


def config(**changes):
    said = {
        "iterations": 20,
        "num_bands": 4,
        "sampling_prob": 0.2,
        "noise_multiplier": 1.5,
        "neighboring_relation": Relation.ADD_OR_REMOVE_ONE,
    }
    return BandMFExecutionPlanConfig(**(said | changes))


# -- what a plan is made of ------------------------------------------------------------


def test_the_event_follows_from_the_batches():
    plan = config(iterations=22).make(GRADIENT)
    assert plan.event() == Repeated(PoissonGaussian(0.2, 1.5, ADD), 6)
    assert plan.batch_selection_strategy == CyclicPoissonSampling(
        0.2, 22, None, 4, INDEPENDENT
    )
    assert plan.neighboring_relation is Relation.ADD_OR_REMOVE_ONE
    assert plan.dp_event == dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(0.2, dpa.GaussianDpEvent(1.5)), 6
    )
    assert (plan.draws, plan.steps_per_draw, plan.iterations) == (6, 4, 22)


@pytest.mark.parametrize("bands", [1, 4])
@pytest.mark.parametrize("cap", [None, 30])
def test_events_are_those_of_the_peer(bands, cap):
    options = {
        "iterations": 20,
        "sampling_prob": 0.2,
        "noise_multiplier": 1.5,
        "truncated_batch_size": cap,
        "num_examples": 400,
    }
    theirs = peer.BandMFExecutionPlanConfig(
        strategy=np.ones(bands), epsilon=None, delta=None, **options
    ).plan
    ours = config(
        num_bands=bands, neighboring_relation="REPLACE_SPECIAL", **options
    ).make(GRADIENT)
    assert ours.dp_event == theirs.dp_event


def test_noise_is_scaled_to_the_bound_and_the_columns():
    strategy = [0.5, 0.25, 0.1]
    plan = config(num_bands=None, strategy=strategy).make(GRADIENT)
    norm = np.linalg.norm(strategy)
    spec = plan.noise_addition_transform.spec
    assert spec.stddev == pytest.approx(1.5 * (2.0 / 50.0) * norm, rel=1e-9)
    assert spec.stddev >= 1.5 * (2.0 / 50.0) * norm


def test_normalised_columns_get_the_noise_of_their_norm():
    """The peer scales by |c| although the columns it uses have norm 1."""
    strategy = [0.5, 0.25]
    plan = config(num_bands=None, strategy=strategy, column_normalize=True).make(
        clipped_grad(loss, l2_clip_norm=1.0)
    )
    spec = plan.noise_addition_transform.spec
    columns = np.linalg.norm(spec.strategy.matrix(), axis=0)
    assert spec.stddev / columns.max() >= 1.5 * (1 - 1e-9)
    theirs = peer.BandMFExecutionPlanConfig(
        iterations=20,
        strategy=np.array(strategy),
        epsilon=None,
        delta=None,
        noise_multiplier=1.5,
        column_normalize=True,
    )
    theirs_stddev = 1.5 * np.linalg.norm(theirs.strategy)
    assert theirs_stddev / columns.max() < 1.5 * 0.6


def test_a_replaced_record_moves_two_contributions_in_the_event_alone():
    """The accountant doubles; noise scaled to twice the bound would pay twice."""
    plan = config(neighboring_relation="REPLACE_ONE").make(GRADIENT)
    other = config().make(GRADIENT)
    assert plan.event() == Repeated(PoissonGaussian(0.2, 1.5, REPLACE), 5)
    assert (
        plan.noise_addition_transform.spec.stddev
        == other.noise_addition_transform.spec.stddev
    )


@pytest.mark.slow
def test_a_plan_runs_a_step():
    plan = config(l2_clip_norm=1.0, normalize_by=50.0).make()
    gradient = plan.gradient(loss)
    params = jnp.zeros(3)
    state = plan.noise_addition_transform.init(params)
    batches = plan.batch_selection_strategy.batch_iterator(200)
    batch = np.ones((200, 3), np.float32)[next(batches)]
    noisy, state = plan.noise_addition_transform.update(gradient(params, batch), state)
    assert noisy.shape == (3,) and bool(jnp.isfinite(noisy).all())
    with pytest.raises(TypeError, match="loss_fn"):
        plan.gradient()
    bound = config().make(GRADIENT)
    assert bound.gradient() is GRADIENT


def test_dp_sgd_is_one_band():
    plan = dp_sgd(
        iterations=10,
        sampling_prob=0.1,
        noise_multiplier=1.0,
        neighboring_relation=ZeroOut(),
    ).make(GRADIENT)
    assert plan.event() == Repeated(PoissonGaussian(0.1, 1.0, ZERO), 10)


# -- why the event is true -------------------------------------------------------------


def banded_delta(coefs, cycle, epsilon, samples=400_000):
    """delta of a run of 6 steps for a record of a known group, by sampling.

    Contributions are equal, the worst case for coefficients that are not negative.
    """
    q, z, steps = 0.3, 1.0, 6
    matrix = BandedToeplitz(coefs, steps).matrix()
    moved = matrix[:, ::cycle] / np.linalg.norm(coefs) / z
    turns = moved.shape[1]
    patterns = np.array(np.meshgrid(*[[0, 1]] * turns)).reshape(turns, -1).T
    chances = q ** patterns.sum(1) * (1 - q) ** (turns - patterns.sum(1))
    rng = np.random.default_rng(3)
    centres = patterns @ moved.T
    drawn = centres[rng.choice(len(patterns), p=chances, size=samples)]
    y = drawn + rng.standard_normal((samples, steps))
    scores = y @ centres.T - (centres**2).sum(1) / 2
    losses = np.log(np.exp(scores) @ chances)
    sticks = np.maximum(0.0, 1.0 - np.exp(epsilon - losses))
    event = run_event(
        PoissonAccount(CyclicPoissonSampling(q, steps, cycle_length=cycle), 1), z, ZERO
    )
    return sticks.mean(), sticks.std() / math.sqrt(samples), event


@pytest.mark.slow
def test_the_price_of_banded_noise_is_that_of_its_blocks():
    mean, error, event = banded_delta([1.0, 0.6], cycle=2, epsilon=0.7)
    priced = accounting.delta_of(event, 0.7)
    # The last column of the run is cut off and shorter: a little below the price.
    assert mean <= priced + 5 * error
    assert mean >= 0.95 * priced


@pytest.mark.slow
def test_more_bands_than_the_cycle_would_cost_more_than_that_and_are_refused():
    mean, error, event = banded_delta([1.0, 0.9, 0.8, 0.7], cycle=2, epsilon=0.7)
    assert mean - 5 * error > accounting.delta_of(event, 0.7)
    with pytest.raises(NotPriced, match="cycle"):
        PoissonAccount(CyclicPoissonSampling(0.3, 6, cycle_length=2), 4)


AXIS = np.linspace(-30.0, 30.0, 30_001)


def density(masses, deviation):
    return sum(w * norm.pdf(AXIS, at, deviation) for at, w in masses.items())


def exact_delta(one, other, deviation, epsilon):
    """delta between two mixtures of normals on the line, the worse direction."""
    p, q = density(one, deviation), density(other, deviation)
    ways = (p - math.exp(epsilon) * q, q - math.exp(epsilon) * p)
    step = AXIS[1] - AXIS[0]
    return max(float(np.maximum(way, 0.0).sum() * step) for way in ways)


def truncated_sums(mine, others, n, q, cap):
    """The law of one step's sum, by every sample and every way to cut it."""
    values, law = [mine] + [others] * (n - 1), {}
    for size in range(n + 1):
        for sample in itertools.combinations(range(n), size):
            cuts = list(itertools.combinations(sample, min(size, cap)))
            for cut in cuts:
                at = sum(values[i] for i in cut)
                chance = q**size * (1 - q) ** (n - size) / len(cuts)
                law[at] = law.get(at, 0.0) + chance
    return law


@pytest.mark.slow
@pytest.mark.parametrize(("who", "instead"), [(ZERO, 0.0), (REPLACE, -1.0)])
def test_a_truncated_step_costs_no_more_than_its_price(who, instead):
    n, q, cap, z, epsilon = 5, 0.5, 2, 2.0, 1.0
    exact = max(
        exact_delta(
            truncated_sums(1.0, others, n, q, cap),
            truncated_sums(instead, others, n, q, cap),
            z,
            epsilon,
        )
        for others in (-1.0, 1.0)
    )
    event = TruncatedPoissonGaussian(n, q, cap, z, who)
    assert exact <= accounting.delta_of(event, epsilon)
    # The displaced record shows: the price without a cap would be too low.
    assert exact > accounting.delta_of(PoissonGaussian(q, z, who), epsilon)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "z"), [(1, 2.0), (2, 1.0), (20, 1.0)])
def test_a_fixed_batch_costs_no_more_than_its_price(n, z):
    """One of n is drawn; the record is 1 or -1, the others are all one value."""
    delta = 1e-3

    def drawn(mine, others):
        if mine == others:
            return {others: 1.0}
        return {others: (n - 1) / n, mine: 1 / n}

    def exact(epsilon):
        return max(
            exact_delta(drawn(1.0, others), drawn(-1.0, others), z, epsilon)
            for others in (-1.0, 0.0, 1.0)
        )

    priced = FixedBatchAccount(FixedBatchSampling(1, 1), n, delta)
    event = priced.draw_event(z, REPLACE)
    assert isinstance(event, ApproxDP)
    assert exact(event.epsilon) <= delta
    # dp_accounting's RDP counts one contribution where two move.
    theirs = dpa.rdp.RdpAccountant(neighboring_relation=Relation.REPLACE_ONE)
    theirs.compose(dpa.SampledWithoutReplacementDpEvent(n, 1, dpa.GaussianDpEvent(z)))
    assert exact(theirs.get_epsilon(delta)) > 5 * delta


# -- combinations that have no account -------------------------------------------------

REFUSED = [
    ({"truncated_batch_size": 30, "num_examples": 99}, "truncated_batch_size"),
    ({"partition_type": EQUAL}, "INDEPENDENT"),
    ({"partition_type": EQUAL, "num_bands": 1}, "INDEPENDENT"),
    (
        {"neighboring_relation": "REPLACE_SPECIAL", "truncated_batch_size": 30},
        "num_examples",
    ),
    (
        {
            "neighboring_relation": "REPLACE_SPECIAL",
            "truncated_batch_size": 30,
            "num_examples": 99,
            "partition_type": INDEPENDENT,
        },
        "EQUAL_SPLIT",
    ),
    (
        {
            "neighboring_relation": "REPLACE_ONE",
            "truncated_batch_size": 30,
            "num_examples": 3,
        },
        "cycle_length",
    ),
    ({"neighboring_relation": "SOMETHING"}, "neighboring_relation"),
    ({"accountant": dpa.pld.PLDAccountant(Relation.REPLACE_ONE)}, "accountant"),
    ({"accountant": "pld"}, "accountant"),
    ({"epsilon": 1.0}, "together"),
    ({"epsilon": 1.0, "delta": 1e-6}, "either"),
    ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ({"noise_multiplier": math.nan}, "noise_multiplier"),
    ({"num_bands": None}, "num_bands"),
    ({"num_bands": 21}, "num_bands"),
    ({"num_bands": 2, "strategy": [1.0]}, "bands"),
    ({"strategy": [1.0, math.nan]}, "finite"),
    ({"num_bands": None, "strategy": np.ones((2, 2))}, "coefs"),
    ({"sampling_prob": 1.2}, "sampling_prob"),
    ({"iterations": 0}, "iterations"),
    ({"num_bands": None, "strategy": Buffered([0.5], [0.3], 20)}, None),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_impossible_plans_are_refused_with_the_reason(changes, message):
    if message is None:  # a strategy without an end of bands: one turn of the cycle
        assert config(**changes).make(GRADIENT).draws == 1
        return
    with pytest.raises((ValueError, TypeError, NotPriced), match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighboring_relation": None}, "neighboring_relation must be given"),
        ({"noise_multiplier": None}, "epsilon, delta"),
        ({"l2_clip_norm": 1.0}, "give it once"),
    ],
)
def test_incomplete_plans_are_not_made(changes, message):
    with pytest.raises(TypeError, match=message):
        config(**changes).make(GRADIENT)


def test_a_gradient_from_elsewhere_is_refused():
    with pytest.raises(TypeError, match="clipped_grad must come from"):
        config().make(lambda params, batch: params)
    with pytest.raises(TypeError, match="make needs a clipped_grad"):
        config().make()


# -- units -----------------------------------------------------------------------------


def test_a_plan_speaks_of_every_unit_its_batches_allow():
    plan = config().make(GRADIENT)
    for unit, who in [
        (AddOrRemoveOne(), ADD),
        (ZeroOut(), ZERO),
        (ReplaceOne(), REPLACE),
        (Ball(0.1, "pixels"), REPLACE),
    ]:
        assert plan.event(unit) == Repeated(PoissonGaussian(0.2, 1.5, who), 5)
    split = config(neighboring_relation="REPLACE_SPECIAL").make(GRADIENT)
    with pytest.raises(NotPriced, match="INDEPENDENT"):
        split.event(AddOrRemoveOne())
    with pytest.raises(NotCovered, match="persons"):
        plan.event(AddOrRemoveOne(records_per_person=2))
    with pytest.raises(NotCovered, match="deleted"):
        plan.event(Erasure())


def test_truncated_batches_are_priced_by_their_group():
    plan = config(
        neighboring_relation="REPLACE_SPECIAL",
        truncated_batch_size=30,
        num_examples=403,
    ).make(GRADIENT)
    assert plan.event() == Repeated(
        TruncatedPoissonGaussian(100, 0.2, 30, 1.5, ZERO), 5
    )


# -- targets and the ledger
# --------------------------------------------------------------


@pytest.mark.slow
def test_a_calibrated_plan_fits_its_budget_exactly_once():
    budget = Budget(epsilon=1.0, delta=1e-5)
    ledger = Ledger(budget, unit=AddOrRemoveOne(), filter=Filter.pure())
    plan = (
        config(noise_multiplier=None, neighboring_relation=None)
        .calibrate(ledger)
        .make(GRADIENT)
    )
    assert plan.neighbours is ADD
    run = plan.paid(ledger, label="first run").reservation
    assert run.count == 5
    assert 0.99 < ledger.epsilon() <= 1.0
    assert "float32 threefry, not hardened" in run.entry.statement()
    with pytest.raises(BudgetExceeded, match="Declined"):
        plan.paid(ledger, label="second run")
    for index in range(5):
        assert run.draw().index == index
    with pytest.raises(BudgetExceeded, match="all are used"):
        run.draw()


@pytest.mark.slow
def test_one_step_past_the_last_is_declined():
    plan = dp_sgd(
        iterations=3,
        sampling_prob=0.1,
        noise_multiplier=2.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(GRADIENT)
    ledger = Ledger(Budget(5.0, 1e-5), unit=AddOrRemoveOne(), filter="rdp")
    run = plan.paid(ledger, label="run").reservation
    assert [run.draw().index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BudgetExceeded):
        run.draw()


@pytest.mark.slow
def test_the_ledger_reads_a_run_as_tightly_as_it_was_priced():
    """Not as a thousand stored steps, each rounded up."""
    plan = dp_sgd(
        iterations=1000,
        sampling_prob=128 / 60_000,
        noise_multiplier=0.7,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(GRADIENT)
    ledger = Ledger(Budget(5.0, 1e-6), unit=AddOrRemoveOne(), filter=Filter.pure())
    plan.paid(ledger, label="run", block_delta=9e-7)
    assert ledger.epsilon() == pytest.approx(plan.price(1e-6), rel=1e-3)


@pytest.mark.slow
def test_a_ledger_with_meters_takes_the_plan_as_a_block():
    plan = dp_sgd(
        iterations=3,
        sampling_prob=0.1,
        noise_multiplier=4.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(GRADIENT)
    rule = Filter.gaussian(blocks=0.5)
    ledger = Ledger(Budget(4.0, 1e-5), unit=AddOrRemoveOne(), filter=rule)
    assert plan.paid(ledger, label="run").reservation.count == 3
    strict = Ledger(Budget(4.0, 1e-5), unit=AddOrRemoveOne())
    with pytest.raises(NotPriced, match="blocks"):
        plan.paid(strict, label="run")
    assert strict.entries() == []


@pytest.mark.slow
def test_a_ledger_with_two_budgets_is_paid_at_both():
    plan = config().make(GRADIENT)
    budgets = {AddOrRemoveOne(): Budget(3.0, 1e-5), Ball(0.1, "x"): Budget(9.0, 1e-5)}
    ledger = Ledger(budgets, filter=Filter.pure())
    entry = plan.paid(ledger, label="run").entry
    assert "the number of records" in entry.declaration.unprotected
    at_one = entry.epsilon(AddOrRemoveOne(), 1e-5)
    assert entry.epsilon(ReplaceOne(), 1e-5) > at_one


def test_plans_of_one_price_and_different_noise_differ_in_fingerprint():
    one = config().make(GRADIENT)
    other = config(num_bands=None, strategy=[1.0, 0.1, 0.1, 0.1]).make(GRADIENT)
    assert one.event() == other.event()
    assert one.declaration().fingerprint != other.declaration().fingerprint
    assert one.declaration().fingerprint == config().make(GRADIENT).fingerprint


def test_hardened_noise_states_its_sampler():
    plan = config(noise="lattice").make(GRADIENT)
    with pytest.raises(TypeError, match="dimension"):
        plan.declaration()
    said = plan.declaration(dimension=1000)
    assert 0.0 < said.sampler_distance < 1e-30
    assert not any("not hardened" in line for line in said.assumptions)


def test_the_distance_of_the_batches_is_declared():
    """One table a step, a turn of the cycle to a draw."""
    said = config().make(GRADIENT).declaration()
    assert said.sampler_distance == 4 * STEP_DISTANCE > 0.0
    seen = general(BallsInBinsSampling(20, 5)).make(GRADIENT)
    assert seen.declaration().sampler_distance == 0.0


@pytest.mark.parametrize("target", [3.0, "budget"])
def test_bad_targets(target):
    with pytest.raises(TypeError, match="Budget or a Ledger"):
        config(noise_multiplier=None).calibrate(target)


# -- other batches ---------------------------------------------------------------------


def general(selection, **changes):
    said = {
        "batch_selection_strategy": selection,
        "noise_multiplier": 1.5,
        "neighboring_relation": "ADD_OR_REMOVE_ONE",
    }
    return ExecutionPlanConfig(**(said | changes))


@pytest.mark.parametrize(
    ("selection", "apart"),
    [
        (BallsInBinsSampling(20, 5), 5),
        (BMinSepSampling(0.3, 20, 5), 5),
        (CyclicPoissonSampling(0.3, 20, None, 5, INDEPENDENT), 5),
    ],
)
def test_without_amplification_a_run_is_one_gaussian(selection, apart):
    strategy = optimize_banded_toeplitz(20, 8)  # more bands than the separation
    plan = general(selection, strategy=strategy).make(GRADIENT)
    moved = strategy.sensitivity(Participation(apart, 4)).value
    assert plan.event() == Repeated(GaussianEvent(math.nextafter(1.5, 0)), 1)
    stddev = plan.noise_addition_transform.spec.stddev
    assert stddev == pytest.approx(1.5 * 0.04 * moved, rel=1e-9)
    # No pattern of steps moves C G by more than the noise was made for.
    matrix = strategy.matrix()
    for first in range(apart):
        assert np.linalg.norm(matrix[:, first::apart].sum(axis=1)) <= moved
    assert plan.event(ReplaceOne()) == Repeated(
        GaussianEvent(math.nextafter(0.75, 0)), 1
    )
    assert plan.steps_per_draw == 20


def test_unamplified_plans_are_calibrated():
    found = general(
        BallsInBinsSampling(20, 5), noise_multiplier=None, epsilon=1.0, delta=1e-6
    )
    assert 0.9999 < found.make(GRADIENT).price() <= 1.0
    # What a ledger sets aside for samplers is not there for noise.
    assert found.calibration.delta == ideal_delta(1e-6) < 1e-6


@pytest.mark.slow
def test_fixed_batches_where_an_accountant_supports_them():
    fixed = FixedBatchSampling(20, 50)
    said = {
        "neighboring_relation": "REPLACE_ONE",
        "account": "amplified",
        "num_examples": 1000,
        "noise_multiplier": None,
        "epsilon": 2.0,
        "delta": 1e-5,
    }
    plan = general(fixed, **said).make(GRADIENT)
    theirs = dpa.rdp.RdpAccountant(neighboring_relation=Relation.REPLACE_ONE)
    # sigma / (2C): the sum moves by two contributions.
    theirs.compose(
        dpa.SampledWithoutReplacementDpEvent(
            1000, 20, dpa.GaussianDpEvent(plan.noise_multiplier / 2)
        ),
        50,
    )
    assert 1.95 < theirs.get_epsilon(1e-5) <= 2.0
    assert isinstance(plan.event().event, ApproxDP)
    again = dpa.rdp.RdpAccountant(neighboring_relation=Relation.REPLACE_ONE)
    again.compose(plan.dp_event)
    assert again.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
    later = {"epsilon": None, "delta": None}
    found = general(fixed, **(said | later)).calibrate(epsilon=2.0, delta=1e-5)
    assert found.calibration.noise_multiplier == plan.noise_multiplier
    for changes, message in [
        ({"neighboring_relation": "REPLACE_SPECIAL"}, "REPLACE_ONE"),
        ({"neighboring_relation": "ADD_OR_REMOVE_ONE"}, "REPLACE_ONE"),
        ({"strategy": optimize_banded_toeplitz(50, 4)}, "independent noise"),
        ({"num_examples": None}, "num_examples"),
    ]:
        with pytest.raises((NotPriced, TypeError), match=message):
            general(fixed, **(said | changes)).make(GRADIENT)


@pytest.mark.parametrize(
    ("selection", "changes", "message"),
    [
        (FixedBatchSampling(5, 20), {}, "ADD_OR_REMOVE_ONE"),
        (FixedBatchSampling(5, 20, True), {}, "replacement"),
        (BMinSepSampling(0.3, 20, 5, True, 9), {}, "truncated"),
        (BallsInBinsSampling(20, 5), {"account": "amplified"}, "MonteCarlo"),
        (BallsInBinsSampling(20, 5), {"account": "magic"}, "account must be"),
        (CyclicPoissonSampling(0.3, 20, None, 5), {}, "INDEPENDENT"),
        (BallsInBinsSampling(0, 5), {}, "iterations"),
        (
            BallsInBinsSampling(20, 5),
            {"strategy": BandedToeplitz([1.0], 19)},
            "19 steps",
        ),
    ],
)
def test_other_batches_without_an_account(selection, changes, message):
    with pytest.raises((NotPriced, ValueError, TypeError), match=message):
        general(selection, **changes).make(GRADIENT)


class Everybody(CyclicPoissonSampling):
    def _steps(self, n, key, start):
        for _ in range(start, self.iterations):
            yield np.arange(n)


@pytest.mark.parametrize("account", ["participation", "amplified"])
def test_a_subclass_that_draws_other_batches_has_no_account(account):
    """Its fields say q = 0.01, and everybody takes part."""
    with pytest.raises(NotPriced, match="Everybody"):
        general(
            Everybody(0.01, 20), account=account, neighboring_relation="REPLACE_SPECIAL"
        ).make(GRADIENT)


def test_an_account_is_for_its_own_bands():
    account = PoissonAccount(CyclicPoissonSampling(0.3, 6, cycle_length=2), 2)
    assert account.scale(BandedToeplitz([1.0, 0.5], 6)) > 1.1
    with pytest.raises(NotPriced, match="the strategy has 3"):
        account.scale(BandedToeplitz([1.0, 0.5, 0.2], 6))


@pytest.mark.slow
def test_a_price_that_rests_on_the_number_of_records_says_so():
    plan = general(
        FixedBatchSampling(2, 3),
        neighboring_relation="REPLACE_ONE",
        account="amplified",
        num_examples=77,
        noise_multiplier=None,
        epsilon=2.0,
        delta=1e-5,
    ).make(GRADIENT)
    assert any("77 records" in line for line in plan.declaration().assumptions)
