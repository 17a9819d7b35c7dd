"""What happens between two steps: callback, checkpoint, next batch, in this order."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Seeded
from demur.ledger import Budget, Filter, Ledger
from demur.training import Checkpoint, Data, ProcessLost
from demur.training.devices.processes import Processes
from tests.training.kit import N, make_data, make_plan, train

GOOD = 4  # batches, before one that cannot be read


class Breaks:
    """A column whose rows can be read for so many batches."""

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape
        self.left = GOOD

    def __getitem__(self, rows):
        if not self.left:
            raise OSError("the disk is gone")
        self.left -= 1
        return self.array[rows]


def breaking():
    given = make_data()
    return Data({"x": Breaks(given["x"]), "y": given["y"]}, N)


@pytest.mark.slow
def test_a_stop_is_not_undone_by_a_batch_that_nobody_needs():
    stop = {"callback": lambda report: report.step == GOOD}
    done = train(make_plan(), breaking(), source=Seeded(3), **stop)
    assert done.steps == GOOD
    with pytest.raises(OSError, match="disk"):
        train(make_plan(), breaking(), source=Seeded(3))


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(
        tmp_path / "ledger.db",
        dataset="loop",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    ) as opened:
        yield opened


@pytest.mark.slow
def test_a_batch_that_fails_does_not_cost_the_checkpoint_before_it(ledger, tmp_path):
    """The digest of the data reads the file once more: rows fail, bytes do not."""
    kept = Checkpoint(tmp_path / "run", every=GOOD)

    class Digested(Data):
        def digest(self):
            return "of the same bytes"

    data = breaking()
    with pytest.raises(OSError, match="disk"):
        train(
            make_plan(),
            Digested(data.columns, N),
            source=Seeded(3),
            ledger=ledger,
            delta=None,
            checkpoint=kept,
        )
    assert (tmp_path / "run" / f"model-{GOOD}.npz").exists()
    assert (tmp_path / "run" / "secret" / "latest.json").exists()


def test_one_process_alone_loses_no_other():
    group = Processes(None)
    with pytest.raises(ValueError, match="peer") as found, group.collective():
        raise ValueError("a loss with a peer")
    assert not isinstance(found.value, ProcessLost)


@pytest.mark.slow
def test_an_optimiser_may_hold_a_key_on_a_mesh():
    optimizer = optax.noisy_sgd(0.1, 1e-4, 0.5, 0)
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    runs = [
        train(make_plan(), source=Seeded(3), mesh=where, optimizer=optimizer).value
        for where in (None, mesh)
    ]
    for a, b in zip(*map(jax.tree.leaves, runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_a_key_that_no_checkpoint_holds_is_refused_unpaid(ledger, tmp_path):
    with pytest.raises(TypeError, match="Nothing was spent"):
        train(
            make_plan(),
            source=Seeded(3),
            ledger=ledger,
            delta=None,
            checkpoint=tmp_path / "run",
            optimizer=optax.noisy_sgd(0.1, 1e-4, 0.5, 0),
        )
    assert not ledger.entries()
