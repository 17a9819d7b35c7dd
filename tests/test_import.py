"""`import demur` brings no framework with it."""

import subprocess
import sys

import pytest

HEAVY = [
    "jax",
    "jaxlib",
    "torch",
    "equinox",
    "optax",
    "sklearn",
    "dp_accounting",
    "matplotlib",
    "numba",
    "pyarrow",
    "pandas",
]


def loaded_after(code):
    """Which heavy packages a fresh interpreter holds after `code`."""
    script = (
        f"{code}\nimport sys\nprint(*sorted(n for n in {HEAVY} if n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import demur",
        "import demur\ndemur.__version__\ndir(demur)",
        "import demur.core.accounting",
        "import demur.core.release",
        "from demur.core import adjacency, bounds, cost, entropy, entry",
        "from demur.core.accounting import calibration",
        "import demur.errors",
        "from demur.training import CheckpointRefused, LossNotSeparable, ProcessLost",
        "from demur.unlearning import CapacityExhausted, ServiceBusy",
        "from demur.convex import NotConverged",
        "from demur.cluster import InputChanged",
        "from demur.audit import NoPower",
        "from demur.adapters import NotALinearHead",
        "from demur.core.accounting import price\n"
        "from demur.core.accounting.events import GaussianEvent\n"
        "price(GaussianEvent(1.0), 1e-6)",
    ],
)
def test_no_framework_is_imported(code):
    assert loaded_after(code) == []


def test_the_check_sees_an_import():
    """A sabotaged twin: a stub of the same name is noticed."""
    stub = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')"
    assert loaded_after(f"{stub}\nimport demur") == ["torch"]
