"""The simulation of a busy ledger against queues that have formulas."""

import runpy

import numpy as np
import pytest

from tests.ledger.kit import HERE


@pytest.fixture(scope="module")
def simulate():
    script = HERE.parents[1] / "benchmarks" / "scale_parts" / "ledger.py"
    module = runpy.run_path(str(script))
    return module["simulate"]


SERVICE, LOAD = 0.005, 0.6


def waits(simulate, services):
    """One at a time from very many clients: arrivals at the writer are Poisson."""
    return simulate(services, LOAD / SERVICE, 30_000, 1, 200.0)


@pytest.mark.slow
def test_services_that_never_vary(simulate):
    """Pollaczek and Khinchine: M/D/1."""
    times = waits(simulate, np.full(2, SERVICE))
    expected = SERVICE * (1 + LOAD / (2 * (1 - LOAD)))
    assert times.waits.mean() == pytest.approx(expected, rel=0.04)
    assert times.utilisation == pytest.approx(LOAD, rel=0.03)
    assert abs(times.growth) < 0.2


def test_services_without_memory(simulate):
    """M/M/1; and the queue that an arrival finds."""
    draw = np.random.default_rng(1)
    times = waits(simulate, draw.exponential(SERVICE, 50_000))
    assert times.waits.mean() == pytest.approx(SERVICE / (1 - LOAD), rel=0.06)
    assert times.queue == pytest.approx(LOAD / (1 - LOAD), rel=0.08)


@pytest.mark.parametrize(("batch", "keeps_up"), [(4, False), (8, True)])
def test_a_batch_decides_whether_the_writer_keeps_up(simulate, batch, keeps_up):
    """1000 charges a second at 5 ms each need more than 5 at a time."""
    simulated = simulate(np.full(2, SERVICE), 1000.0, 20, batch, 20.0)
    left = 1000.0 - batch / SERVICE
    assert simulated.growth == pytest.approx(max(0.0, left), abs=20)
    assert (simulated.utilisation < 0.7) == keeps_up


def test_fetching_ahead_takes_the_wait_away(simulate):
    waited = [
        simulate(np.full(2, SERVICE), 1000.0, 20, 60, 20.0, ahead).waits.max()
        for ahead in (False, True)
    ]
    assert waited[0] > SERVICE > waited[1] == 0.0
