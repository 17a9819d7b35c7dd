"""The key of a run draws for the plan, the processes and the data it was paid for.

Each refusal has a twin without the comparison, which the test tells from it.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Binding, NoiseKey, Seeded
from demur.core.errors import NoiseReuse, NotPaidFor
from demur.ledger import Budget, Filter, Ledger
from demur.training import (
    Checkpoint,
    CheckpointRefused,
    ClippedSum,
    CyclicPoissonSampling,
    DPExecutionPlan,
    step_keys,
)
from demur.training.clipping.accumulation import ROW_SHARE
from demur.training.devices.processes import Processes
from demur.training.run import paid_run, trainer
from demur.training.run.charges import PaymentTerms
from demur.training.run.paid_run import PaidRun, _Broadcast
from demur.training.run.sharded_state import TrainState
from tests.training.crash import open_ledger

from .kit import make_data, make_params, make_plan, train

OTHERS = {
    "other examples": {"num_examples": 1000},
    "less noise": {"noise_multiplier": 2.0},
    "larger batches": {"sampling_prob": 0.9},
    "more steps": {"iterations": 24},
    "correlated noise": {"bands": 3},
    "another generator": {"noise": "lattice"},
}


def new_ledger():
    return Ledger(Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter=Filter.pure())


def accepted(act):
    try:
        act()
    except NotPaidFor:
        return False
    return True


# -- another plan ----------------------------------------------------------------------


def unbound_key(plan, payment):
    """The twin: the key is compared with its own payment, and so with nothing."""
    bound = payment.key.binding
    return payment.key.authorise(bound.fingerprint, runs=bound.runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "take, bound", [(DPExecutionPlan.key, True), (unbound_key, False)]
)
@pytest.mark.parametrize("other", OTHERS)
def test_a_key_that_was_paid_for_one_plan_is_refused_by_another(take, bound, other):
    payment = make_plan().paid(new_ledger(), label="the first plan", dimension=10)
    other_plan = make_plan(**OTHERS[other])
    assert accepted(lambda: take(other_plan, payment)) is not bound
    assert accepted(lambda: take(make_plan(), payment))


def test_a_payment_for_one_draw_is_no_payment_for_the_run():
    """`ledger.paid(plan)` pays for one of the plan's events; `plan.paid` for all."""
    plan, ledger = make_plan(), new_ledger()
    assert plan.draws > 1
    payment = ledger.paid(plan, label="one draw")
    with pytest.raises(NotPaidFor, match="paid for 1 run"):
        plan.key(payment)
    assert accepted(lambda: unbound_key(plan, payment))
    assert ledger.epsilon() < plan.price(1e-5) / 2


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 100.0},
        {"batch_selection_strategy": CyclicPoissonSampling(1.0, 12)},
        {"num_examples": 10**6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_part_of_a_plan_is_not_replaced(change):
    """Its price would follow the new part, and its noise and batches the old one."""
    with pytest.raises(ValueError, match="make the plan anew"):
        replace(make_plan(), **change)


def threefry_step(plan, key):
    params = make_params()
    add_noise = plan.noise_addition_transform
    total = ClippedSum(params, plan.l2_norm_bound, row_rounding=ROW_SHARE)
    return add_noise.update(total, add_noise.init(params), key=key)[0]


@pytest.mark.slow
def test_threefry_noise_takes_the_key_of_its_own_plan_and_draws_once():
    plan, other = make_plan(), make_plan(noise_multiplier=2.0)
    key = plan.key(plan.paid(new_ledger(), label="run"))
    assert not accepted(lambda: threefry_step(other, key))
    noisy = threefry_step(plan, key)
    with pytest.raises(NoiseReuse, match="already taken"):
        threefry_step(plan, key)
    # What the trainer draws for this step, from arrays that can enter jit.
    seeded = (NoiseKey(bytes(32), private=False) for _ in range(2))
    leaves = len(jax.tree.leaves(make_params()))
    by_array = threefry_step(plan, step_keys(next(seeded).stream("step noise"), leaves))
    by_key = threefry_step(plan, next(seeded))
    assert jax.tree.all(jax.tree.map(np.array_equal, by_array, by_key))
    assert not jax.tree.all(jax.tree.map(np.array_equal, noisy, by_key))


def test_the_key_of_a_payment_does_not_enter_jit():
    plan = make_plan()
    key = plan.key(plan.paid(new_ledger(), label="run"))
    add_noise, params = plan.noise_addition_transform, make_params()
    total = ClippedSum(params, plan.l2_norm_bound)
    step = jax.jit(lambda state: add_noise.update(total, state, key=key)[0])
    with pytest.raises(TypeError, match="cannot enter jit"):
        step(add_noise.init(params))


def test_a_key_draws_nothing_before_it_is_compared():
    payment = make_plan().paid(new_ledger(), label="run")
    with pytest.raises(NotPaidFor, match="authorise"):
        payment.key.stream("step noise")
    make_plan().key(payment).stream("step noise")


def lattice_step(plan, key):
    params = make_params()
    add_noise = plan.noise_addition_transform
    total = ClippedSum(params, plan.l2_norm_bound, row_rounding=ROW_SHARE)
    return add_noise.update(total, add_noise.init(params), key=key)[0]


def test_lattice_noise_refuses_the_key_of_another_plan():
    """Even one that its own plan has compared; the twin is a key without a payment."""
    first, other = (make_plan(noise="lattice", noise_multiplier=m) for m in (4.0, 2.0))
    payment = first.paid(new_ledger(), label="run", dimension=10)
    key = first.key(payment)
    assert not accepted(lambda: lattice_step(other, key))
    assert accepted(lambda: lattice_step(first, key))
    unbound = NoiseKey(key.handed_on(), private=False)
    assert accepted(lambda: lattice_step(other, unbound))


# -- another process -------------------------------------------------------------------


class First(Processes):
    """Process 0 of two; what it sends is kept."""

    def __init__(self):
        super().__init__(None)
        self.count, self.sent = 2, None

    def from_first(self, make):
        self.sent = super().from_first(make)
        return self.sent

    def _all_gather(self, array):
        return np.stack([array, np.zeros_like(array)])

    def _broadcast(self, array):
        return array


class Second(First):
    """Process 1, which receives what process 0 has sent."""

    def __init__(self, first):
        super().__init__()
        self.index, self.sent = 1, first.sent

    def from_first(self, make):
        return self.sent


def paid_in(group, plan, ledger=None):
    delta = None if ledger is None else 1e-5
    terms = PaymentTerms(ledger, delta, "run", source=Seeded(1))
    return PaidRun(
        group, plan, terms, TrainState(make_params(), None, None, 0, None), None
    )


def without_binding(shared, plan):
    """The twin: the key travels, and what it was paid for does not."""
    key = NoiseKey(shared.key, private=shared.entry.private)
    return key.authorise(plan.fingerprint)


@pytest.mark.parametrize("received, bound", [(None, True), (without_binding, False)])
def test_a_process_that_receives_the_key_of_another_plan_refuses(
    monkeypatch, received, bound
):
    if received is not None:
        monkeypatch.setattr(paid_run, "_received_key", received)
    first = First()
    paid = paid_in(first, make_plan(), new_ledger())
    same = paid_in(Second(first), make_plan())
    assert same.key.stream("batch").read(16) == paid.key.stream("batch").read(16)
    other = make_plan(noise_multiplier=2.0)
    assert accepted(lambda: paid_in(Second(first), other)) is not bound


def test_a_key_that_a_process_received_draws_nothing_before_it_is_compared():
    first = First()
    with_os_noise = PaymentTerms(new_ledger(), 1e-5, "run")
    state = TrainState(make_params(), None, None, 0, None)
    PaidRun(first, make_plan(), with_os_noise, state, None)
    assert first.sent is not None
    secret, binding = bytes.fromhex(first.sent["key"]), first.sent["binding"]
    key = NoiseKey(secret, private=True, binding=Binding(**binding))
    with pytest.raises(NotPaidFor, match="authorise"):
        key.stream("batch")
    assert repr(_Broadcast.from_json(first.sent)) == "_Broadcast(<secret>)"


# -- a resumed run ---------------------------------------------------------------------


class Stop(Exception):
    pass


def stopped(folder, **options):
    def stop(report):
        if report.step == 6:
            raise Stop

    with pytest.raises(Stop):
        resumed(folder, callback=stop, **options)


def resumed(folder, plan=None, data=None, **options):
    with open_ledger(str(folder)) as ledger:
        return train(
            plan or make_plan(bands=3),
            data,
            ledger=ledger,
            delta=None,
            checkpoint=Checkpoint(folder / "run", every=5),
            **options,
        )


CHANGES = {
    "data": {"data": make_data(seed=1)},
    # Of the same cost: only the fingerprint tells the two plans apart.
    "plan": {"plan": make_plan(bands=3, column_normalize=True)},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_not_resumed_with_another_input(tmp_path, change):
    stopped(tmp_path)
    with pytest.raises(CheckpointRefused, match="Nothing was spent"):
        resumed(tmp_path, **CHANGES[change])


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_without_digest_and_fingerprint_it_would_be(tmp_path, change, monkeypatch):
    """The twin: the noise of step 6 is drawn a second time, on another sum."""
    assert make_plan(bands=3).event() == CHANGES["plan"]["plan"].event()
    monkeypatch.setattr(trainer, "digest_of_parts", lambda *parts: "of anything")
    same = property(lambda plan: "of any plan")
    monkeypatch.setattr(DPExecutionPlan, "fingerprint", same)
    stopped(tmp_path)
    done = resumed(tmp_path, **CHANGES[change])
    assert done.steps == 12 and np.isfinite(jax.tree.leaves(done.value)[0]).all()
