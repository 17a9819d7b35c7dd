"""A service that is killed at every step of a charge: paid once, and drawn for once."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from demur import Ledger
from demur.errors import ApprovalPending
from demur.mechanisms import Gaussian
from demur.serve.access import AccessStore
from tests.ledger.kit import subprocess_environment
from tests.serve.kit import LOUD, QUIET, TERMS, UNIT

pytestmark = pytest.mark.slow
STEPS = ("before", "row", "commit", "answer")
COUNT = Gaussian(20.0, {UNIT: 1.0})


@contextmanager
def doomed(url, folder, mode="honest"):
    """A service that is killed and comes back; arms the next step, and opens it."""
    with Ledger.open(url, **TERMS):
        pass
    store = AccessStore(folder / "access" / "access.db")
    tokens = {
        role: store.create(name, role)[0]
        for name, role in (("ada", "analyst"), ("grace", "officer"))
    }
    store.close()
    script = Path(__file__).with_name("killed.py")
    process = subprocess.Popen(
        [sys.executable, str(script), url, str(folder / "access"), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=subprocess_environment(
            PYTHONPATH=f"{Path(__file__).parents[2] / 'src'}", OMP_NUM_THREADS=1
        ),
    )
    port = int(process.stdout.readline())

    def arm(step, role="analyst"):
        process.stdin.write(f"{step}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "armed\n"
        url = f"http://127.0.0.1:{port}/ledgers/visits"
        return Ledger.open(url, token=tokens[role])

    try:
        yield arm
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait(60) == 0


def test_killed_at_every_step_it_is_paid_once(ledger_url, tmp_path):
    with doomed(ledger_url, tmp_path) as arm:
        for step in STEPS:
            with arm(step) as ledger:
                release = COUNT.release([1.0], ledger=ledger, label=step)
                assert np.isfinite(release.value).all()
        for step in STEPS[:1] + STEPS[-1:]:
            with arm(step) as ledger:
                ledger.charge(QUIET, label=f"named {step}", idempotency_key=step)
                ledger.charge(QUIET, label=f"named {step}", idempotency_key=step)
        with Ledger.open(ledger_url) as own:
            labels = [entry.label for entry in own.entries()]
            assert labels == [*STEPS, "named before", "named answer"]
            assert own.verify().ok and len(own.unfinished()) == 2


def test_the_forgetful_twin_pays_twice(tmp_path):
    path = str(tmp_path / "visits.db")
    with doomed(path, tmp_path, "forgetful") as arm:
        with arm("answer") as ledger:
            ledger.charge(QUIET, label="x")
        with Ledger.open(path) as own:
            assert len(own.entries()) == 2


@pytest.mark.deep
def test_killed_at_every_step_of_a_request_and_a_decision(ledger_url, tmp_path):
    """One request, one decision, one charge, whichever of them was cut off."""
    with doomed(ledger_url, tmp_path) as arm:
        for step in STEPS[1:]:
            call = {"label": step, "idempotency_key": step}
            with arm(step) as ledger, pytest.raises(ApprovalPending) as caught:
                ledger.charge(LOUD, **call)
            with arm(step, "officer") as officer:
                officer.approve(caught.value.number, reason="yes")
            with arm(step) as ledger:
                ledger.charge(LOUD, **call)
    with Ledger.open(ledger_url) as own:
        assert [r.state for r in own.requests()] == ["charged"] * 3
        assert own.tip().sequence == 9 and own.verify().ok
