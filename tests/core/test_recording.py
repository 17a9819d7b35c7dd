"""The hook: what a tape keeps, hands back and refuses."""

import threading
import timeit

import numpy as np
import pytest

from demur import Budget, Ledger, ReplaceOne, Seeded, Sensitivity
from demur.core import recording
from demur.core.entropy import NoiseKey, OsEntropy
from demur.core.recording import ScoredChoice, Shift, Tape, watching
from demur.errors import BudgetExceeded, NotPrivate
from demur.mechanisms import Gaussian

DECLARED = Shift(Sensitivity.of({ReplaceOne(): 1.0}), 2.0)


def mechanism(**options):
    return Gaussian(2.0, {ReplaceOne(): 1.0}, dimension=2, **options)


def key(seed=1):
    return NoiseKey(Seeded(seed).new_key(), private=False)


def new_ledger(epsilon=10.0):
    return Ledger(Budget(epsilon, 1e-6), unit=ReplaceOne())


def test_nobody_watches_in_ordinary_use():
    assert recording.active() is None
    plain = mechanism().apply([1.0, 2.0], key())
    with watching(Tape()):
        np.testing.assert_array_equal(mechanism().apply([1.0, 2.0], key()), plain)
    assert recording.active() is None


@pytest.mark.serial
def test_looking_costs_next_to_nothing():
    """Against a charge or a draw (microseconds at the least): below 1 us, measured."""
    assert min(timeit.repeat(recording.active, number=10_000)) / 10_000 < 1e-6


def test_a_tape_keeps_input_and_output_and_the_next_one_hands_the_output_back():
    first = Tape()
    with watching(first):
        released = mechanism().apply([1.0, 2.0], key())
    (use,) = first.uses
    np.testing.assert_array_equal(use.value[0], [1.0, 2.0])
    np.testing.assert_array_equal(use.released, released)
    assert isinstance(use.declared, Shift) and use.declared.sigma == 2.0
    second = Tape(first)
    with watching(second):
        replayed = mechanism().apply([5.0, -3.0], key(2))
    np.testing.assert_array_equal(replayed, released)
    np.testing.assert_array_equal(second.uses[0].value[0], [5.0, -3.0])


def test_what_an_engine_writes_into_its_copy_does_not_reach_the_tape():
    first = Tape()
    with watching(first):
        released = mechanism().apply([1.0, 2.0], key())
    before = released.copy()
    released[:] = 0.0
    second = Tape(first)
    with watching(second):
        mechanism().apply([1.0, 2.0], key())[:] = 0.0
    for tape in (first, second):
        np.testing.assert_array_equal(tape.uses[0].released, before)


@pytest.mark.parametrize(
    "name, declared, value",
    [
        ("another", DECLARED, (np.zeros(2),)),
        ("one", ScoredChoice(1.0), (np.zeros(2),)),
        ("one", DECLARED, (np.zeros(3),)),
        ("one", DECLARED, (np.zeros(2), np.zeros(2))),
    ],
)
def test_a_use_that_does_not_fit_draws_for_itself(name, declared, value):
    first = Tape()
    first.record_use("one", DECLARED, (np.zeros(2),), lambda: "recorded")
    assert Tape(first).record_use(name, declared, value, lambda: "own") == "own"
    assert (
        Tape(first).record_use("one", DECLARED, (np.ones(2),), lambda: "") == "recorded"
    )


def test_uses_beyond_the_recorded_ones_draw_for_themselves():
    second = Tape(Tape())
    assert second.record_use("one", DECLARED, (np.zeros(2),), lambda: "own") == "own"


def test_mechanisms_inside_a_mechanism_are_part_of_it():
    tape = Tape()
    with watching(tape):
        tape.record_use(
            "outer",
            DECLARED,
            (np.zeros(2),),
            lambda: mechanism().apply([0.0, 0.0], key()),
        )
        assert recording.active() is tape
    assert [use.name for use in tape.uses] == ["outer"]


def test_noise_that_is_added_later_is_a_use_where_it_is_added():
    tape = Tape()
    with watching(tape):
        noise = mechanism(name="drawn alone").apply([0.0, 0.0], key())
    value = np.array([3.0, 4.0])
    assert tape.record_addition(value, noise.copy(), lambda: value * 0).sum() == 0.0
    assert len(tape.uses) == 1  # a copy is nobody's noise
    tape.record_addition(value, noise, lambda: value + noise)
    assert [use.name for use in tape.uses] == ["drawn alone"] * 2
    np.testing.assert_array_equal(tape.uses[1].value[0], value)


# -- refusals --------------------------------------------------------------------------


def test_a_private_key_is_refused():
    private = NoiseKey.free(OsEntropy())
    with watching(Tape()), pytest.raises(NotPrivate, match="nothing was drawn"):
        mechanism().apply([1.0, 2.0], private)
    with watching(Tape()), pytest.raises(NotPrivate, match="nothing was drawn"):
        private.stream("anything")
    assert private.stream("anything").read(1)  # not used up by the refusal


def test_a_private_charge_is_refused_and_nothing_is_spent():
    ledger = new_ledger()
    with watching(Tape()), pytest.raises(NotPrivate, match="Nothing was spent"):
        mechanism().release([1.0, 2.0], ledger=ledger, label="x")
    assert ledger.entries() == []


# -- charges ---------------------------------------------------------------------------


def test_charges_are_kept_with_whether_they_were_paid():
    tape, source = Tape(), Seeded(1)
    with watching(tape):
        mechanism().release([1.0, 2.0], ledger=new_ledger(), label="one", source=source)
        with pytest.raises(BudgetExceeded):
            new_ledger(0.01).charge(mechanism(), label="two", source=source)
        new_ledger().reserve(mechanism(), count=3, label="three", source=source)
    told = [(charge.label, charge.count, charge.paid) for charge in tape.charges]
    assert told == [("one", 1, True), ("two", 1, False), ("three", 3, True)]
    assert tape.charges[0].declaration == mechanism().declaration()


def test_a_repeated_charge_is_paid_once(tmp_path):
    ledger = Ledger.open(
        tmp_path / "ledger.db",
        dataset="x",
        budgets={ReplaceOne(): Budget(10.0, 1e-6)},
        testing=True,
    )
    tape = Tape()
    with ledger, watching(tape):
        for _ in "ab":
            ledger.charge(mechanism(), label="x", idempotency_key="k", source=Seeded(1))
    assert [charge.paid for charge in tape.charges] == [True, False]


# -- batches ---------------------------------------------------------------------------


def batches(*rows):
    return iter([np.array(row) for row in rows])


def test_the_smaller_world_has_the_batches_of_the_larger_less_its_last_record():
    first = Tape()
    list(first.record_batches(5, batches([0, 4], [4, 1, 2]), independent=True))
    coupled = Tape(first).record_batches(4, batches([3], [3]), independent=True)
    assert [batch.tolist() for batch in coupled] == [[0], [1, 2]]


def test_equal_worlds_and_dependent_records_have_batches_of_their_own():
    first = Tape()
    list(first.record_batches(5, batches([0, 4]), independent=True))
    equal = Tape(first).record_batches(5, batches([1]), independent=True)
    dependent = Tape(first).record_batches(4, batches([3]), independent=False)
    assert [batch.tolist() for batch in equal] == [[1]]
    assert [batch.tolist() for batch in dependent] == [[3]]


def test_the_larger_world_comes_first():
    first = Tape()
    list(first.record_batches(4, batches([0]), independent=True))
    with pytest.raises(ValueError, match="larger dataset must come first"):
        Tape(first).record_batches(5, batches([0]), independent=True)


# -- threads ---------------------------------------------------------------------------


def test_a_thread_has_no_tape_until_it_is_handed_one():
    tape, seen = Tape(), []

    def work():
        seen.append(recording.active())
        with watching(tape):
            mechanism().apply([1.0, 2.0], key())

    with watching(tape):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [None] and len(tape.uses) == 1


def test_secrets_stay_out_of_reprs():
    tape = Tape()
    tape.record_use("one", DECLARED, (np.array([0.123456]),), lambda: 0)
    assert "0.123456" not in repr(tape.uses[0])
