"""What a process leaves behind when it is aborted: no key, and no row."""

import os
import subprocess
import sys

import pytest

# A key, and a row that no other memory has; written where the test can find them.
HOLDS = """
import os, pathlib
key, row = os.urandom(32), os.urandom(32)
pathlib.Path("secrets").write_bytes(key + row)
"""
TWIN = """
from demur.core import memory_dumps
memory_dumps.switch_off = lambda: None
"""
KEY = """
from demur.core.entropy import NoiseKey
held = NoiseKey(key, private=True)
"""
PROCESSES = {
    "key": KEY,
    "ledger client": """
import demur as dm
ledger = dm.Ledger.open("l.db", dataset="d", budgets={dm.ReplaceOne(): dm.Budget(1, 0)})
""",
    "unlearning service": """
from demur.unlearning import UnlearningService
service = UnlearningService.open("s.db", mode="ridge", dimension=2, epsilon=1.0)
""",
    "spark task": """
from demur.mechanisms.sampling.row_streams import RowStreams
held = RowStreams(key)
""",
    "training before the charge": """
import numpy as np, optax
from demur.training import dp_sgd, fit
def loss(params, batch):
    state()
    os.abort()
plan = dp_sgd(iterations=2, sampling_prob=0.5, l2_clip_norm=1.0, normalize_by=2.0,
    noise_multiplier=2.0, neighboring_relation="ADD_OR_REMOVE_ONE").make()
rows = np.frombuffer(row, np.uint8).reshape(2, 16).astype(np.float32)
params = {"w": np.zeros(16, np.float32)}
fit(plan, loss, params, rows, optimizer=optax.sgd(0.1), delta=1e-5)
""",
}
STATE = """
import ctypes, resource
def state():
    limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    print("limit", limit, "dumpable", dumpable, flush=True)
"""


def aborted(folder, *parts, environment=None):
    """A program that may dump its memory, to its end; what it said."""
    program = "".join((HOLDS, STATE, *parts, "\nstate()\nos.abort()\n"))
    done = subprocess.run(
        ["sh", "-c", 'ulimit -c unlimited; exec "$0" "$@"', sys.executable, "-c"]
        + [program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -6, done.stderr[-2000:]
    return done.stdout


def left_behind(folder):
    """Which of the secrets lie in files that were not there to hold them."""
    content = (folder / "secrets").read_bytes()
    files = [path.read_bytes() for path in folder.glob("core*")]
    return [name for name, part in (("key", content[:32]), ("row", content[32:]))
            if any(part in file for file in files)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_an_aborted_process_leaves_no_memory_behind(tmp_path, name):
    assert "limit 0 dumpable 0" in aborted(tmp_path, PROCESSES[name])
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_the_twin_without_the_switch_leaves_its_key_and_its_row(tmp_path):
    said = aborted(tmp_path, TWIN, KEY)
    if "dumpable 1" not in said or not list(tmp_path.glob("core*")):
        pytest.skip("machine: this system writes no core dumps into the folder")
    assert left_behind(tmp_path) == ["key", "row"]


@pytest.mark.slow
def test_the_owner_may_allow_dumps(tmp_path):
    allowed = os.environ | {"DEMUR_CORE_DUMPS": "allow"}
    assert "limit 0" not in aborted(tmp_path, KEY, environment=allowed)
