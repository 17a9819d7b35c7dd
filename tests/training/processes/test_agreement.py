"""What one process can show about several: errors that travel, keys, layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import BudgetExceeded, DemurError, NoiseReuse
from demur.ledger import Budget, Filter, Ledger
from demur.training import (
    Checkpoint,
    ProcessesDisagree,
    ProcessFailed,
    ProcessLost,
    as_data,
)
from demur.training.devices import processes
from demur.training.devices.placement import Placement, ShardedData
from demur.training.noise.threefry import flat_normal, standard_normal
from demur.training.run.charges import PaymentTerms
from demur.training.run.checkpoints.checkpoint import CheckpointFolder
from demur.training.run.paid_run import PaidRun
from demur.training.run.sharded_state import TrainState
from tests.training.kit import make_params, make_plan


class WantsMore(DemurError):
    """An error that cannot be made from a message alone."""

    def __init__(self, message, reason):
        super().__init__(message, reason)


def told_again(error):
    """The error that another process raises for `error` of process 2."""
    message = processes._message(error, False)
    assert message[0] == 1 and len(message) == len(processes._message(None, True))
    with pytest.raises(BaseException) as caught:
        processes._raise_again(2, bytes(message[2:]))
    return caught.value


@pytest.mark.parametrize(
    "error, kind",
    [
        (BudgetExceeded("declined: é"), BudgetExceeded),
        (ValueError("no"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError("the disk is gone"), ProcessFailed),
        (WantsMore("a", "b"), ProcessFailed),
        (ProcessesDisagree("in data"), ProcessesDisagree),
    ],
)
def test_an_error_is_told_by_its_name(error, kind):
    found = told_again(error)
    assert type(found) is kind and str(found).startswith("process 2: ")
    assert str(error) in str(found) or kind is KeyboardInterrupt


def test_a_long_message_is_cut_and_still_told():
    found = told_again(RuntimeError("é" * 5000))
    assert type(found) is RuntimeError and 400 < len(str(found)) < 1100


@pytest.mark.parametrize(
    "error, lost",
    [
        (ValueError("UNKNOWN: Gloo AllReduce failed: Connection reset by peer"), True),
        (ValueError("batch arguments must have one batch size"), False),
        (TypeError("gloo"), False),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: task 1 heartbeat timeout"), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), False),
    ],
)
def test_a_broken_connection_has_a_name(error, lost):
    found = processes.as_process_lost(error)
    assert isinstance(found, ProcessLost) if lost else found is error


def test_one_process_alone_agrees_with_itself():
    group = processes.Processes(None)
    assert group.count == 1 and group.first
    group.check_same({"data": 1})
    assert group.from_first(lambda: 7) == 7
    with group.stage() as stage:
        stage.stop = True
    assert stage.stop
    with pytest.raises(KeyError, match="mine"), group.stage():
        raise KeyError("mine")


class Pair(processes.Processes):
    """Two processes, of which the other one is always fine."""

    def __init__(self):
        super().__init__(None)
        self.count, self.messages = 2, []

    def _all_gather(self, array):
        self.messages.append(array)
        return np.stack([array, np.zeros_like(array)])

    def _broadcast(self, array):
        return array


def test_what_cannot_be_sent_is_told_before_the_others_wait_for_it():
    group = Pair()
    assert group.from_first(lambda: {"step": 7}) == {"step": 7}
    with pytest.raises(TypeError, match="JSON"):
        group.from_first(lambda: lambda: 7)
    assert [int(message[0]) for message in group.messages] == [0, 1]


class LaterInterrupted(processes.Processes):
    """Another process fails while this one pays."""

    def from_first(self, make):
        make()
        raise KeyboardInterrupt("process 1")


def test_a_run_that_fails_when_it_is_paid_lets_go_of_its_folder(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run")
    plan, params = make_plan(), make_params()
    with Ledger.open(
        tmp_path / "ledger.db",
        dataset="agreement",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    ) as ledger:
        with pytest.raises(KeyboardInterrupt) as held:
            PaidRun(
                LaterInterrupted(None),
                plan,
                PaymentTerms(ledger, 1e-5, "run", "of the input", Seeded(1)),
                TrainState(params, None, None, 0, None),
                checkpoint,
            )
        assert len(ledger.entries()) == 1
        CheckpointFolder(checkpoint).close()  # as a notebook, which holds the error
        del held


def test_a_key_is_handed_on_until_it_is_wiped():
    key = NoiseKey(Seeded(1).new_key(), private=False)
    other = NoiseKey(key.handed_on(), private=False)
    assert other.stream("x").read(16) == key.stream("x").read(16)
    key.wipe()
    with pytest.raises(NoiseReuse, match="wiped"):
        key.handed_on()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (5,), (7, 3), (2, 3, 4)])
def test_flat_noise_is_the_same_noise(shape):
    key = jnp.array([3, 4], jnp.uint32)
    whole = np.asarray(standard_normal(key, shape)).reshape(-1)
    flat = np.asarray(flat_normal(key, shape, whole.size + 3))
    np.testing.assert_array_equal(flat[: whole.size], whole)
    assert len(np.unique(flat)) == flat.size  # padding repeats nothing either


def test_a_leaf_that_counters_cannot_tell_apart_is_refused():
    with pytest.raises(ValueError, match="split it"):
        jax.eval_shape(lambda k: flat_normal(k, (2**31, 4), 2**33), jnp.zeros(2, "u4"))


def test_a_share_has_the_rows_of_the_batch():
    rows = as_data({"x": np.arange(12.0, dtype=np.float32).reshape(6, 2)})
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    indices = np.array([4, 0, -1, 5])
    found = ShardedData(rows, Placement(mesh).row_sharding).take(indices)
    np.testing.assert_array_equal(found["x"], rows.take(indices)["x"])
    people = np.array([[4, 0], [-1, 5]])
    found = ShardedData(rows, Placement(mesh).row_sharding).take(people)
    np.testing.assert_array_equal(found["x"], rows.take(people)["x"])


def test_a_layout_is_named_by_axes_and_owners():
    devices = np.array(jax.devices()[:1])
    digests = {Placement(Mesh(devices, (name,))).digest() for name in "ab"}
    assert len(digests | {Placement(None).digest()}) == 3
