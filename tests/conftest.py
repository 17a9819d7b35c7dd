"""What all tests share: threads, programs, files, and which worker runs what."""

from __future__ import annotations

import gc
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from xdist.scheduler import LoadFileScheduling

from tests import compilation, programs

ROOT = Path(__file__).parents[1]

# Workers share the processors. Threads of BLAS and OpenMP wait for each other by
# spinning: with two of them the tests of clustering take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Workers, and processes that they start, compile quickly. A single process, as for
# tests marked serial or deep, compiles as a user's does: tests that depend on the
# rounding of compiled programs are marked serial.
if "PYTEST_XDIST_WORKER" in os.environ:
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*compilation.QUICK, *given])

# Files of tests live in memory where there is room: what is tested is a killed process,
# for which it makes no difference, and a ledger waits for the disk at every charge.
MEMORY = Path("/dev/shm")
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free >= 4 << 30
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Processes that tests start leave no programs in the user's cache.
os.environ.setdefault("DEMUR_PROGRAMS", os.devnull)

# A worker runs a file from its beginning to its end, but for files whose tests have
# nothing in common.
APART = ("tests/docs/test_howto.py", "tests/docs/test_examples.py")
# What takes longest starts first, so that no worker is left with it at the end.
LONGEST = (
    "tests/ledger/test_hosts.py",
    "tests/cli/test_interrupt.py",
    "tests/cluster/test_estimators.py",
    "tests/testing/test_contracts.py",
    "tests/core/test_accounting.py",
    "tests/docs/",
    "tests/training/",
    "tests/ledger/test_large.py",
    "tests/cli/",
)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    programs.offer()
    workers = getattr(config.option, "tx", [])
    if workers:
        # A worker has the large packages when it starts: it is a fork of the server.
        start = f"popen//python={shlex.join(programs.python())}"
        config.option.tx = [start if each == "popen" else each for each in workers]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is collected stays, so going through it for garbage finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, Any, Any]:
    """A module without an example is not loaded to look for one."""
    found = yield
    if file_path.suffix == ".py" and ">>>" not in file_path.read_text():
        return [each for each in found if not isinstance(each, DoctestModule)]
    return found


# `make other` has no torch, whose builds for a machine are large. What needs it is left
# out by name, and only where the run says so: elsewhere a missing torch is an error.
WITHOUT_TORCH = os.environ.get("DEMUR_WITHOUT") == "torch"
NEEDS_TORCH = re.compile(r"^(?:import|from) (?:torch\b|tests\.adapters\b)", re.M)


def needs_torch(path: Path) -> bool:
    return path.suffix == ".py" and NEEDS_TORCH.search(path.read_text()) is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Of a run without torch: files that import it."""
    path = collection_path
    left_out = WITHOUT_TORCH and path.name.startswith("test_") and needs_torch(path)
    return True if left_out else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not WITHOUT_TORCH:
        return
    files = sorted(p for p in (ROOT / "tests").rglob("test_*.py") if needs_torch(p))
    names = ", ".join(str(path.relative_to(ROOT)) for path in files)
    terminalreporter.write_line(
        f"left out, because torch is not installed: tests marked torch, and {names}"
    )


def unit_of_work(nodeid: str) -> str:
    """What one worker runs without interruption: tests of one name."""
    file = nodeid.split("::", 1)[0]
    return nodeid if file in APART else file


class Scheduling(LoadFileScheduling):
    """Loads by file, as `--dist loadfile` does it, in units and an order of ours."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of_work(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # it would sort by the number of tests
    return Scheduling(config, log)


def rank(nodeid: str) -> int:
    places = (i for i, start in enumerate(LONGEST) if nodeid.startswith(start))
    return next(places, len(LONGEST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """In a worker: the order in which units are handed out."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


def keep_compiled_programs() -> None:
    """Programs that JAX compiles here are read by other workers and by the next run.

    Not by processes that tests start. A program that is read while another worker
    writes it is compiled once more; pyproject.toml lets the warning pass.
    """
    import jax  # noqa: PLC0415
    from jax.experimental.compilation_cache import (  # noqa: PLC0415
        compilation_cache,
    )

    jax.config.update("jax_compilation_cache_dir", str(ROOT / "out" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # what was compiled before has settled its use


def pytest_collection_finish() -> None:
    if "jax" in sys.modules:
        keep_compiled_programs()
    # What is loaded by now stays: the collector need not go through it again, nor come
    # as often as in a process with little memory (it takes 4% of the time then).
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _without_radii_of_others() -> Generator[None, None, None]:
    """A radius that one test read off data is no mark on another test's number."""
    module = sys.modules.get("demur.convex.sensitivity.radius_origin")
    before = set() if module is None else set(module._ESTIMATED_RADII)
    yield
    module = sys.modules.get("demur.convex.sensitivity.radius_origin")
    if module is not None:
        module._ESTIMATED_RADII.intersection_update(before)


# Of a module too, since its fixtures read radii off data before any of its tests runs.
_own_radii = pytest.fixture(autouse=True)(_without_radii_of_others)
_own_radii_of_a_module = pytest.fixture(autouse=True, scope="module")(
    _without_radii_of_others
)
