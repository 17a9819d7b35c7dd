"""Runs with sharded parameters on eight devices: results, noise, norms and memory."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.programs import python
from tests.training.clipping.kit import AS_FLAGS

pytestmark = pytest.mark.slow
# Adam divides by the root of a moment, so that the rounding of a sum is not scaled
# down: 12 steps of rate 0.1 on parameters of size 1.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def call(folder, *more):
    return subprocess.run(
        [*python(), "-m", "tests.training.sharded_run", str(folder), *more],
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {AS_FLAGS}",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    assert call(folder, "kill").returncode == -9
    done = call(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def close(some, other):
    assert some.keys() == other.keys()
    for name in some:
        np.testing.assert_allclose(some[name], other[name], err_msg=name, **CLOSE)


@pytest.mark.parametrize(
    "case, one",
    [
        ("replicated", "one"),
        ("fully sharded", "one"),
        ("fully sharded grid", "one"),
        ("in another order", "one"),
        ("on half of them", "one"),
        ("on the other half", "one"),
        ("tensor", "one"),
        ("tensor, the rest sharded", "one"),
        ("in parts", "one"),
        ("microbatches", "one"),
        ("average", "one"),
        ("lattice", "one lattice"),
    ],
)
def test_a_sharded_run_gives_the_result_of_one_device(found, case, one):
    close(found["results"][case]["params"], found["results"][one]["params"])


def test_other_noise_is_far_outside_the_tolerance(found):
    runs = found["results"]
    with pytest.raises(AssertionError):
        close(runs["one with other noise"]["params"], runs["one"]["params"])


def test_parameters_end_cut_as_they_were_asked_to_be(found):
    parts = {name: one["parts"] for name, one in found["results"].items()}
    full = {"w0": 1 / 8, "w1": 1 / 8, "w2": 1 / 8, "b": 1.0}
    for name in ("fully sharded", "fully sharded grid", "tensor, the rest sharded"):
        assert parts[name] == full
    half = {"w0": 1 / 2, "w1": 1 / 2, "w2": 1 / 2, "b": 1.0}
    assert parts["tensor"] == half
    assert set(parts["replicated"].values()) == {1.0}


def test_sharded_noise_has_the_bits_of_one_device(found):
    bits = found["noise_bits"]
    assert bits["sharded"] == bits["one"]
    assert bits["twin"] != bits["one"]


def test_the_norm_of_an_example_is_over_all_shards(found):
    one, sharded = found["norms"]["one"], found["norms"]["sharded"]
    np.testing.assert_allclose(sharded["norms"], one["norms"], rtol=1e-5)
    close(sharded["sum"], one["sum"])
    twin = np.asarray(found["norms"]["twin"]["norms"])  # of one shard alone
    assert (twin < 0.95 * np.asarray(one["norms"])).all()


def test_a_device_holds_an_eighth(found):
    """By the compiled programs' own figures; the replicated twin holds the whole."""
    ours, twin = found["memory"]["sharded"], found["memory"]["replicated"]
    whole = 8 * 256 * 256 * 4
    assert twin["params"] == whole == 8 * ours["params"]
    few = 64  # a step counter, keys
    assert abs(8 * ours["optimizer"] - twin["optimizer"]) < 8 * few
    # Spread with whole parameters too.
    assert abs(ours["noise"] - twin["noise"]) < few
    assert abs(8 * ours["noise"] - 2 * whole) < 8 * few
    assert twin["sums"] >= whole
    assert ours["sums"] < whole / 8 + 1024
    batch = 64 * 256 * 4 // 8
    state = (1 + 2 + 2) * whole // 8
    assert abs(ours["arguments"] - state - batch) < 4096
    assert abs(ours["results"] - state) < 4096
    assert twin["arguments"] > 3 * whole


def test_what_does_not_fit_together_is_refused_unpaid(found):
    said = {name: one["said"] for name, one in found["refusals"].items()}
    assert "pass their mesh" in said["no mesh"]
    assert "over another mesh" in said["another mesh"]
    assert "need Resources(mesh=...)" in said["sharded without mesh"]
    assert "must be axes of the mesh" in said["unknown axis"]
    assert "must name each axis once" in said["an axis twice"]
    assert {one["entries"] for one in found["refusals"].values()} == {0}


def test_a_killed_run_goes_on_bit_for_bit_and_nowhere_else(found):
    kept = found["taken_up"]
    for name in ("another mesh", "in another order", "whole"):
        assert "CheckpointRefused" in kept[name]["error"]
    assert kept["again"] == kept["undisturbed"]
    assert kept["again"]["entries"] == 1


def test_a_stored_program_of_one_device_runs_where_there_are_eight(
    tmp_path, monkeypatch
):
    """The second process reads it: left to JAX it would be a program of all devices."""
    monkeypatch.setenv("DEMUR_PROGRAMS", str(tmp_path))
    for _ in range(2):
        done = call(tmp_path, "stored")
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["steps"] == 2 and found["files"] > 0
