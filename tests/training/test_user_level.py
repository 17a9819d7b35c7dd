"""Plans over persons, and clip norms by layer: their bounds, prices and statements."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demur import AddOrRemoveOne, Budget, Ledger, ReplaceOne
from demur.core.declaration import PER_PERSON, Declaration
from demur.core.errors import NotPriced
from demur.ledger import export_ledger, registry_records
from demur.report.facts import gather
from demur.training import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    CyclicPoissonSampling,
    ExecutionPlanConfig,
    FixedBatchSampling,
    MonteCarlo,
    PartitionType,
    RandomAllocationSampling,
    UserData,
    UserSelectionStrategy,
    clipped_grad,
)
from tests.training import kit

IDS = np.arange(kit.N) // 4
POISSON = CyclicPoissonSampling(0.2, 12, partition_type=PartitionType.INDEPENDENT)
ALL = {
    "amplified": POISSON,
    "participation": BallsInBinsSampling(iterations=12, cycle_length=3),
    "allocated": RandomAllocationSampling(2, 12),
}


def config(strategy, **more):
    return ExecutionPlanConfig(
        batch_selection_strategy=strategy,
        **{
            "noise_multiplier": 4.0,
            "neighboring_relation": "ADD_OR_REMOVE_ONE",
            "l2_clip_norm": 1.0,
        }
        | more,
    )


@pytest.mark.parametrize("name", ALL)
def test_the_account_of_persons_is_that_of_the_base(name):
    account = "participation" if name == "participation" else "amplified"
    base = ALL[name]
    over_persons = config(UserSelectionStrategy(base, 2), account=account).make()
    over_records = config(base, account=account).make()
    assert over_persons.event() == over_records.event()
    assert over_persons.noise_addition_transform.spec.stddev == (
        over_records.noise_addition_transform.spec.stddev
    )
    # A payment for one is none for the other.
    assert over_persons.fingerprint != over_records.fingerprint
    assert PER_PERSON in over_persons.declaration().assumptions
    assert PER_PERSON not in over_records.declaration().assumptions


def test_persons_by_monte_carlo_and_by_fixed_batches():
    sampled = MonteCarlo(8.0, 0.05, 400, failure=1e-3)
    bins = BallsInBinsSampling(iterations=4, cycle_length=2)
    assert config(UserSelectionStrategy(bins, 2), account=sampled).make().per_person
    fixed = UserSelectionStrategy(FixedBatchSampling(5, 4), 2)
    assert config(fixed, neighboring_relation="REPLACE_ONE").make().per_person


def test_a_base_of_somebodys_own_has_no_account():
    class Mine(BatchSelectionStrategy):
        iterations = 3

        def batch_iterator(self, num_examples, rng=None):  # type: ignore[override]
            assert isinstance(rng, np.random.Generator)
            yield np.array([1, 0])

    users = UserSelectionStrategy(Mine(), 2)
    (batch,) = users.batch_iterator([7, 7, 9])
    np.testing.assert_array_equal(batch, [[2, 2], [0, 1]])
    for account in ("participation", "amplified"):
        with pytest.raises(NotPriced):
            config(users, account=account).make()
    with pytest.raises(TypeError, match="batch_iterator"):
        BatchSelectionStrategy()  # type: ignore[abstract]


def test_owners_may_be_whole_numbers_in_floating_point_and_no_others():
    users = UserSelectionStrategy(CyclicPoissonSampling(1.0, 1))
    (batch,) = users.batch_iterator(np.array([3.0, 5.0, 3.0]))
    assert sorted(batch.ravel().tolist()) == [0, 1]
    for wrong in (np.nan, 0.5, np.inf, 2.0**60):
        with pytest.raises(TypeError, match="user_ids"):
            users.batch_iterator(np.array([3.0, wrong]))


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["plan", "data"])
def test_the_statement_of_a_run_over_persons_speaks_of_a_person(own):
    plan = (
        config(UserSelectionStrategy(POISSON, 2), account="amplified").make()
        if own
        else kit.make_plan()
    )
    ledger = Ledger(Budget(9.0, 1e-5), unit=AddOrRemoveOne(), filter="pure")
    data = UserData(kit.make_data(), IDS, examples=2)
    trained = kit.train(plan, data, ledger=ledger, delta=None)
    said = trained.entry.statement()
    assert "the presence or absence of one person" in said
    assert "one record" not in said
    # What that does not cover is said too.
    assert "Not protected: a change to some of a person's examples" in said


def test_what_a_person_keeps_is_covered_where_a_record_is_replaced():
    base = CyclicPoissonSampling(0.2, 12)
    plan = config(
        UserSelectionStrategy(base, 2),
        account="amplified",
        neighboring_relation="REPLACE_ONE",
    ).make()
    assert plan.declaration().unprotected == ("the number of persons",)
    both = plan.declaration([ReplaceOne()], per_person=True)
    assert both == plan.declaration([ReplaceOne()])


def test_a_person_who_keeps_some_examples_moves_the_sum_by_two_contributions():
    """The attack behind "not protected": not one clip norm, as for one who leaves."""

    def loss(w, batch):
        return jnp.sum(batch @ w)

    gradient = clipped_grad(loss, l2_clip_norm=1.0, keep_batch_dim=False)
    w = jnp.zeros(2)
    all_of_them = jnp.array([[[5.0, 0.0], [0.0, 0.0]]])
    some = jnp.array([[[-5.0, 0.0], [0.0, 0.0]]])
    moved = gradient(w, all_of_them).value - gradient(w, some).value
    assert float(jnp.linalg.norm(moved)) == pytest.approx(2.0, rel=1e-5)
    gone = gradient(w, all_of_them).value
    assert float(jnp.linalg.norm(gone)) == pytest.approx(1.0, rel=1e-5)


def mixed(relation, kinds):
    """A ledger with entries over persons ("p") and over records ("r")."""
    unit = {"ADD_OR_REMOVE_ONE": AddOrRemoveOne(), "REPLACE_ONE": ReplaceOne()}
    plan = config(POISSON, account="amplified", neighboring_relation=relation).make()
    ledger = Ledger(Budget(90.0, 1e-5), unit=unit[relation], filter="pure")
    for number, kind in enumerate(kinds):
        plan.paid(ledger, label=f"run {number}", per_person=kind == "p")
    return ledger


def check_scope(relation, kinds, words):
    ledger = mixed(relation, kinds)
    reading = ledger.reading()
    assert words in reading.protects
    assert ("not covered" in reading.protects) == (words == SINGLE)
    # Wherever the sum is read, it says the same.
    assert export_ledger(ledger)["budgets"][0]["protects"] == reading.protects
    assert gather(ledger).budgets[0].phrase == reading.protects
    if "p" in kinds:
        assert reading.protects in str(reading)
        assert "count persons" in ledger.summary()
    (record,) = registry_records(ledger, product="p", organisation="o")
    level = record["privacy_loss"]["privacy_unit"]
    levels = {"one record": "record-level", "one person": "person-level"}
    assert level == levels.get(words, f"mixed: {reading.protects}")


SINGLE = "one person with a single record"


@pytest.mark.parametrize(
    ("relation", "kinds", "words"),
    [
        ("ADD_OR_REMOVE_ONE", "r", "one record"),
        ("ADD_OR_REMOVE_ONE", "pp", "one person"),
        ("ADD_OR_REMOVE_ONE", "prr", SINGLE),
        ("REPLACE_ONE", "p", "one person"),
        ("REPLACE_ONE", "pr", "one record"),
    ],
)
def test_a_ledger_says_for_whom_its_sum_holds(relation, kinds, words):
    check_scope(relation, kinds, words)


def test_a_ledger_that_does_not_tell_persons_from_records_is_found(monkeypatch):
    monkeypatch.setattr(Declaration, "per_person", False)
    with pytest.raises(AssertionError):
        check_scope("ADD_OR_REMOVE_ONE", "prr", SINGLE)


# -- clip norms by layer ---------------------------------------------------------------


NORMS = {"w": 1.2, "b": 0.5}


def neighbours_distance(gradient, params):
    """How far the sum moves at most when one record leaves: large ones reach it."""
    batch = kit.make_data(n=3)
    batch["x"] = 1e3 * batch["x"]
    rest = {name: rows[1:] for name, rows in batch.items()}
    both = [gradient(params, some).value for some in (batch, rest)]
    moved = jax.tree.map(lambda a, b: a - b, *both)
    return math.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(moved)))


@pytest.mark.parametrize("rescale", [False, True])
def test_clip_norms_by_layer_reach_noise_and_declaration(rescale):
    plan = kit.make_plan.__wrapped__(
        l2_clip_norm=NORMS, rescale_to_unit_norm=rescale, normalize_by=2.0
    )
    bound = (math.sqrt(2.0) if rescale else 1.3) / 2.0
    assert plan.l2_norm_bound == pytest.approx(bound)
    assert plan.noise_addition_transform.spec.stddev == pytest.approx(4.0 * bound)
    (declared,) = plan.declaration().bounds
    assert declared.value == plan.l2_norm_bound
    moved = neighbours_distance(plan.gradient(kit.loss), kit.make_params())
    assert 0.95 * bound < moved <= bound * (1 + 1e-6)
    # Noise for the largest of the norms alone would be short of that.
    assert moved > 1.02 * (1.0 if rescale else max(NORMS.values())) / 2.0


def test_clip_norms_by_layer_are_checked_when_the_plan_is_made():
    for wrong in (
        {"w": -1.0},
        {"w": 0.0, "b": 1.0},
        {"w": "1"},
        {},
        {"w": [1.0, True]},
    ):
        with pytest.raises((TypeError, ValueError), match="l2_clip_norm"):
            kit.make_plan.__wrapped__(l2_clip_norm=wrong)
