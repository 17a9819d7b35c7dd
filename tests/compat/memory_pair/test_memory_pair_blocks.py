"""Each sketch is a signature to match and, where it computes, an oracle."""

from __future__ import annotations

import inspect
from enum import Enum

import numpy as np
import pytest

from demur.compat.memory_pair.src.calibrator import Calibrator
from demur.compat.memory_pair.src.lbfgs import LimitedMemoryBFGS
from demur.compat.memory_pair.src.memory_pair import MemoryPair, Phase
from demur.compat.memory_pair.src.odometer import PrivacyOdometer
from tests.compat.memory_pair import seed_blocks as blocks

DIM = 5


def run(block: str, **free):
    """The block with `memory_pair.src` renamed, and its free variables supplied."""
    changed = [
        line.replace("from memory_pair.src", "from demur.compat.memory_pair.src")
        if line.startswith(("import ", "from "))
        else line
        for line in block.splitlines()
    ]
    space = {"np": np} | free
    exec(compile("\n".join(changed), "<block>", "exec"), space)
    return space


SKETCHES = {
    Calibrator: run(blocks.CALIBRATOR)["Calibrator"],
    MemoryPair: run(blocks.MEMORY_PAIR, Phase=Phase)["MemoryPair"],
    PrivacyOdometer: run(blocks.ODOMETER)["PrivacyOdometer"],
}


@pytest.mark.parametrize("ours", SKETCHES, ids=lambda c: c.__name__)
def test_every_method_of_a_sketch_has_its_signature(ours):
    sketch = SKETCHES[ours]
    methods = [n for n, v in vars(sketch).items() if inspect.isfunction(v)]
    assert methods
    for name in methods:
        wanted = inspect.signature(getattr(sketch, name)).parameters
        found = inspect.signature(getattr(ours, name)).parameters
        assert list(found)[: len(wanted)] == list(wanted), name
        for key, parameter in wanted.items():
            if key == "quantile":  # section 6: 0.95
                assert found[key].default == 0.95
            elif (name, key) == ("finalize_calibration", "gamma"):
                assert "gamma_learn" in found  # may stand in its place
            else:
                assert found[key].default == parameter.default, (name, key)
        for key in list(found)[len(wanted) :]:
            assert found[key].default is not inspect.Parameter.empty, (name, key)
    properties = [n for n, v in vars(sketch).items() if isinstance(v, property)]
    assert all(isinstance(getattr(ours, n), property) for n in properties)


def test_phases():
    sketch = run(blocks.PHASE)["Phase"]
    assert issubclass(Phase, Enum)
    assert [(p.name, p.value) for p in sketch] == [(p.name, p.value) for p in Phase]


# -- oracles -----------------------------------------------------------------------


class Curved:
    def lbfgs_bounds(self):
        return 0.5, 3.0


@pytest.mark.parametrize("quantile", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("gamma", [0.05, 0.5, 3.0])
def test_calibrator_computes_what_the_sketch_computes(quantile, gamma):
    sketch = SKETCHES[Calibrator](quantile)
    sketch.estimate_bounds = lambda model: model.lbfgs_bounds()
    ours = Calibrator(quantile)
    rng = np.random.default_rng(3)
    theta = np.zeros(DIM)
    for _ in range(60):
        grad = rng.normal(size=DIM)
        theta = theta + 0.1 * rng.normal(size=DIM)
        sketch.observe(grad, theta)
        ours.observe(grad, theta)
    found, wanted = ours.finalize(gamma, Curved()), sketch.finalize(gamma, Curved())
    assert found == pytest.approx(wanted, rel=1e-13) and list(found) == list(wanted)
    assert found["N_star"] == wanted["N_star"]
    assert type(ours.finalize(gamma, Curved())) is dict
    assert (ours.c_hat, ours.C_hat) == (sketch.c_hat, sketch.C_hat) == (0.5, 3.0)
    np.testing.assert_array_equal(ours.thetas, sketch.thetas)
    assert ours.grad_norms == sketch.grad_norms


@pytest.mark.slow
@pytest.mark.parametrize("T", [300, 10_000, 100_000])
@pytest.mark.parametrize("gamma", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_odometer_computes_what_the_sketch_computes(T, gamma, epsilon):
    stats = {"G": 2.3, "D": 1.7, "c": 0.5, "C": 3.0, "N_star": 10}
    arguments = (epsilon, 1e-5, 0.1, 0.05, 100000, gamma)
    names = ("eps_total", "delta_total", "lambda_", "delta_B", "T", "gamma")
    sketch = SKETCHES[PrivacyOdometer](*arguments)
    vars(sketch).update(zip(names, arguments, strict=True))
    sketch.finalize_with(stats, T)
    ours = PrivacyOdometer(*arguments)
    assert ours.ready_to_delete is False
    ours.finalize_with(stats, T_estimate=T)
    for name in ("L", "D", "c", "C", "T", "deletion_capacity", "ready_to_delete"):
        assert getattr(ours, name) == getattr(sketch, name), name
    for name in ("eps_step", "delta_step", "sigma_step"):
        assert getattr(ours, name) == pytest.approx(getattr(sketch, name), rel=1e-12)
    assert ours._solve_capacity() == sketch._solve_capacity()
    assert (ours._status == "degenerate") == (sketch._solve_capacity() == 0)
    assert ours.noise_scale() == ours.sigma_step


class Silent:
    """An odometer that takes everything, for the skeleton."""

    ready_to_delete = True
    lambda_ = 0.1

    def finalize_with(self, stats, T_estimate):
        self.T = T_estimate


def test_the_skeleton_and_ours_move_through_the_phases_alike():
    skeleton = SKETCHES[MemoryPair](DIM, Silent(), Calibrator())
    skeleton.lbfgs = LimitedMemoryBFGS()
    ours = MemoryPair(DIM, PrivacyOdometer(1.0, 1e-5, 0.1), Calibrator())
    for name in ("phase", "N_star", "ready_to_predict", "events_seen", "inserts_seen"):
        assert getattr(ours, name) == getattr(skeleton, name)
    np.testing.assert_array_equal(ours.theta, skeleton.theta)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, DIM))
    Y = X[:, 0]
    for x, y in zip(X[:20], Y[:20], strict=True):
        assert skeleton.calibrate_step(x, y) == 0.0  # the skeleton never updates
        ours.calibrate_step(x, y)
    # The skeleton's own parameters stay at zero: give both what ours has seen.
    skeleton.calibrator = ours.calibrator
    skeleton.lbfgs_bounds = ours.lbfgs_bounds
    stats = ours.finalize_calibration(0.9)
    skeleton.finalize_calibration(0.9)
    assert 20 < ours.N_star == skeleton.N_star == stats["N_star"] < 400
    for x, y in zip(X[20:], Y[20:], strict=True):
        ours.insert(x, y)
        skeleton.insert(x, y)
        for name in ("phase", "ready_to_predict", "events_seen", "inserts_seen"):
            assert getattr(ours, name) == getattr(skeleton, name)
        assert ours.can_predict == skeleton.can_predict
    assert ours.phase is Phase.INTERLEAVING


def test_the_first_step_of_the_workflow_runs():
    odometer = PrivacyOdometer(1.0, 1e-5, lambda_=0.1)
    after = run(blocks.WORKFLOW, MemoryPair=MemoryPair, odometer=odometer, d=DIM)
    assert after["model"].phase is Phase.CALIBRATION
    assert (after["calibrator"].quantile, after["calibrator"].D_cap) == (0.95, 10.0)
    assert after["model"].calibrator is after["calibrator"]
