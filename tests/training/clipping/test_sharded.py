"""Eight devices give what one gives, sums and runs; the norms hold in shard_map."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import python
from tests.training.clipping.kit import AS_FLAGS


@pytest.fixture(scope="module")
def found():
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {AS_FLAGS}",
    }
    done = subprocess.run(
        [*python(), "-m", "tests.training.clipping.sharded"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(found):
    ours = {name: one for name, one in found["sums"].items() if name != "peer"}
    assert len(ours) == 6
    for name, one in ours.items():
        assert one["apart"] < 1e-6, name
        assert one["norm"] == pytest.approx(1.0, rel=1e-6), name


@pytest.mark.slow
def test_the_same_program_catches_the_peer(found):
    """Replicated parameters: JAX adds cotangents over devices before the peer clips."""
    assert found["sums"]["peer"]["apart"] > 0.01
    assert found["sums"]["peer"]["norm"] > 1.5


@pytest.mark.slow
def test_a_run_on_eight_devices_gives_the_result_of_one(found):
    assert found["run"]["devices"] == 8
    assert found["run"]["apart"] < 1e-5
    assert found["run"]["size"] > 0.01
