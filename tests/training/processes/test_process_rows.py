"""Rows of each process's own, and cuts that differ: what one process can show."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demur.core.entropy import Seeded
from demur.training import ProcessRows, ShapePlan, UserData
from demur.training.data import as_data
from demur.training.devices.placement import Placement, shard
from demur.training.devices.processes import Processes
from demur.training.run import agreement
from demur.training.run.prefetcher import _gather
from demur.training.run.sharded_state import padding, real_rows_at
from tests.training.kit import make_data, make_plan, train


class Several(Processes):
    """Processes of which all others have what they are given."""

    def __init__(self, *others):
        super().__init__(None)
        self.count, self.others = 1 + len(others), others

    def every(self, array):
        return np.stack([array, *self.others])


def digest(number):
    return np.full(32, number, np.uint8)


def joint(*digests, counts=(3, 4, 5)):
    own = ProcessRows(np.eye(3), counts)
    return own.joint_digest(Several(*digests[1:]), digests[0].tobytes().hex())


def test_the_same_rows_in_two_processes_are_refused():
    joint(digest(1), digest(2), digest(3))
    with pytest.raises(ValueError, match="processes 1 and 2 hold the same rows"):
        joint(digest(1), digest(2), digest(2))
    # Empty parts are alike, and hold nobody twice.
    joint(digest(1), digest(2), digest(2), counts=(3, 4, 0))


def test_rows_that_overlap_in_part_are_not_seen_and_the_entry_says_so():
    """The attack of the statement: the digests differ, and one record enters twice."""
    columns = [np.arange(3), np.array([2, 3, 4])]
    digests = [
        np.frombuffer(bytes.fromhex(as_data({"x": x}).digest()), np.uint8)
        for x in columns
    ]
    joint(*digests, counts=(3, 3))
    own = ProcessRows(np.eye(3), (3, 3))
    assert agreement.assumed(own, resumable=False) == (agreement.ROWS_APART,)
    for alone in (None, ProcessRows(np.eye(3), (3,))):
        assert agreement.assumed(alone, resumable=False) == ()
    plan = make_plan()
    said = plan.declaration(assumed=agreement.assumed(own, resumable=False))
    assert agreement.ROWS_APART in said.assumptions
    assert said.fingerprint == plan.declaration().fingerprint


def test_an_accelerator_that_repeats_steps_is_named_in_the_entry(monkeypatch):
    """There the order of a sum may follow threads; on a CPU it does not."""
    assert agreement.assumed(None, resumable=True) == ()
    card = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    monkeypatch.setattr(jax, "local_devices", lambda: [card])
    (line,) = agreement.assumed(None, resumable=True)
    assert "same bits again on NVIDIA H200" in line
    assert agreement.assumed(None, resumable=False) == ()


def test_without_the_comparison_the_same_rows_pass(monkeypatch):
    """The twin: one record has two numbers, and a batch holds it twice."""
    record = {"record": np.arange(3)}
    own = ProcessRows(record, (3, 3))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    entered = []
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        mine = own.opened()
        batch = own.by_process(np.array([4, 2, 1]))[process]
        entered += mine.take(batch)["record"].tolist()
    assert sorted(entered) == [1, 1, 2]


def test_a_batch_is_cut_by_whose_rows_they_are():
    own = ProcessRows(np.eye(3), (3, 0, 4))
    parts = own.by_process(np.array([6, 0, 3, 2, 4]))
    assert [part.tolist() for part in parts] == [[0, 2], [], [6, 3, 4]]


class Everything:
    """A reader that hands on the numbers of the rows."""

    def take(self, indices):
        return indices


SHAPES = ShapePlan((6, 12), None, 1, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_of_a_batch_has_one_slot_in_its_process(seed):
    rng = np.random.default_rng(seed)
    own = ProcessRows(np.eye(9), (9, 5, 7))
    batch = rng.permutation(21)[: rng.integers(0, 22)]
    minibatches = _gather(batch, Everything(), SHAPES, lambda rows: rows, own)
    seen = []
    for part in minibatches:
        slots, each = part.batch, part.size // 3
        padded = np.asarray(padding(part.size, part.count))
        assert (padded == (slots < 0)).all()
        for device in range(6):  # two of each process
            rows = slots.reshape(6, -1)[device]
            real = int(real_rows_at(np.int32(device), 6, len(rows), part.count))
            assert (rows[:real] >= 0).all() and (rows[real:] < 0).all()
        for process in range(3):
            mine = slots[process * each : (process + 1) * each]
            first = (0, 9, 14)[process]
            mine = mine[mine >= 0]
            assert ((mine >= first) & (mine < first + own.counts[process])).all()
        seen += slots[slots >= 0].tolist()
        assert part.real == (slots >= 0).sum()
    assert sorted(seen) == sorted(batch.tolist())


def test_a_row_of_another_process_is_not_read():
    own = ProcessRows({"x": np.arange(3.0)}, (3,)).opened()
    assert own.take(np.array([2, -1]))["x"].tolist() == [2.0, 0.0]
    with pytest.raises(IndexError, match="another process"):
        own.take(np.array([3]))


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: ProcessRows(UserData(np.eye(2), [0, 1]), (2,)), "not users"),
        (lambda: ProcessRows(np.eye(2), (2.0,)), "whole numbers"),
        (lambda: ProcessRows(np.eye(2), (True,)), "whole numbers"),
        (lambda: ProcessRows(np.eye(2), (3,)).opened(), "number of rows"),
        (lambda: ProcessRows(np.eye(2), (2, 2)).opened(), "each of 1 processes"),
    ],
)
def test_counts_that_do_not_fit_are_refused(make, error):
    with pytest.raises((TypeError, ValueError), match=error):
        make()


@pytest.mark.slow
def test_one_process_with_its_own_rows_is_an_ordinary_run():
    data, plan = make_data(), make_plan(bands=3)
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    for options in ({}, {"mesh": mesh}, {"mesh": mesh, "microbatch_size": 16}):
        one = train(plan, data, source=Seeded(3), **options)
        own = ProcessRows(data, (len(data["y"]),))
        two = train(plan, own, source=Seeded(3), **options)
        for name in one.value:
            np.testing.assert_allclose(
                one.value[name], two.value[name], rtol=1e-6, atol=1e-6
            )


def test_values_and_shapes_do_not_tell_cuts_apart():
    """Cut and whole parameters are told apart; values and shapes alone are the same."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    params = {"w": np.ones((4, 2), np.float32)}
    cut = shard(params, NamedSharding(mesh, PartitionSpec("data")))
    placement = Placement(mesh)
    described = {placement.described(tree) for tree in (params, cut)}
    # One device holds the whole of either, so JAX itself sees no difference here.
    assert len(described) == 1
    others = (Placement(mesh, sharded=True), Placement(mesh, batch_axes=("data",)))
    described |= {other.described(params) for other in others}
    assert len(described) == 3
    np.testing.assert_array_equal(cut["w"], params["w"])
