"""Audits of `fit` over several devices and processes.

What runs there is what users call: `fit`, on devices of the host that XLA counts as
several, and in two processes that have a part of the rows each. A run is made twice
with the same seed, on rows without a gradient and with one record far away. The first
shows the noise of every step; the difference of the two is exact: how far the record
moved the sum.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from demur.audit import AuditResult, Level, NoPower, noise_test, shared_noise_test
from demur.audit.distributions import normal
from demur.core.adjacency import AddOrRemoveOne
from demur.testing.audit_suite.case import Case, Size
from demur.testing.audit_suite.layouts.children import results_of

_STEPS = 90  # times 512 numbers: as many draws as the test of noise asks for
# Of float32 parameters, in clip norms: after 900 steps a parameter is below 256, each
# of 512 numbers off by at most 2^-16, and their norm by at most 5e-4 clip norms.
_ROUNDING = 1e-3
_PARTS = 8  # of each leaf, compared with each other: at least those of the devices

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """One way to spread a run, and the names in `fit` that choose it."""

    what: str
    chosen_by: tuple[str, ...]
    devices: int = 8
    processes: int = 1


# The audited process has the arguments of each (`training_run`).
LAYOUTS = MappingProxyType(
    {
        "sharded": Layout(
            "parameters cut over eight devices", ("mesh", "shard_parameters")
        ),
        "tensor": Layout("parameters that come cut, rows in turns", ("batch_axes",)),
        "microbatches": Layout("rows of eight devices in turns", ("microbatch_size",)),
        "lattice": Layout("hardened noise over eight devices", ("lattice",)),
        "processes": Layout("two processes, own rows", ("ProcessRows",), 1, 2),
    }
)


@dataclass(frozen=True, eq=False)
class LaidOutRun:
    """The noise of each step, and how far a record moved it, over what was charged."""

    noise: Values  # in deviations, leaves behind one another
    moves: Values  # in clip norms, one number for a step


@lru_cache(maxsize=8)
def laid_out_run(name: str, steps: int, seed: int) -> LaidOutRun:
    """One run on the two worlds; kept, since several audits look at the same."""
    layout = LAYOUTS[name]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    found = results_of(
        "training_run",
        [
            [name, str(seed), str(steps), str(port), str(index)]
            for index in range(layout.processes)
        ],
        JAX_PLATFORMS="cpu",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={layout.devices}",
    )
    moves = np.linalg.norm(found["moved"] - found["near"], axis=1)
    return LaidOutRun(found["near"] / found["deviation"], moves / found["clip"])


def _steps(size: Size) -> int:
    return _STEPS * 10 if size is Size.DEEP else _STEPS


def _law(name: str, subject: str, size: Size, seed: int) -> AuditResult:
    """The noise of all steps, against what the ledger was told."""
    noise = laid_out_run(name, _steps(size), seed).noise
    return noise_test(noise.reshape(-1), normal(1.0), subject=subject)


def by_part(noise: Values) -> Values:
    """A row for each part of each leaf, its steps behind one another."""
    steps, size = noise.shape
    parts = noise.reshape(steps, 2 * _PARTS, size // (2 * _PARTS))
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(2 * _PARTS, -1)


def _parts(name: str, subject: str, size: Size, seed: int) -> AuditResult:
    """The parts of all devices, in both leaves, share no noise."""
    noise = laid_out_run(name, _steps(size), seed).noise
    return shared_noise_test(by_part(noise), normal(1.0), subject=subject)


def _between_steps(name: str, subject: str, size: Size, seed: int) -> AuditResult:
    """No two steps share noise."""
    noise = laid_out_run(name, _steps(size), seed).noise
    return shared_noise_test(noise[:_STEPS], normal(1.0), subject=subject)


def _moved(name: str, subject: str, size: Size, seed: int) -> AuditResult:
    """How far one record moves the sum of a step, against the clip norm."""
    moves = laid_out_run(name, _steps(size), seed).moves
    most, taken = float(moves.max()), int((moves > 0.5).sum())
    if most < 0.99:
        raise NoPower(
            f"a record far away moved a sum by {most:.3f} clip norms, and by 1 if it"
            " takes part: a record that is not clipped would not be noticed"
        )
    return AuditResult(
        subject=subject,
        level=Level.SENSITIVITY,
        method="one record far away",
        unit=AddOrRemoveOne().describe(),
        claimed=None,
        delta=0.0,
        lower_bound=None,
        runs=len(moves),
        alpha=0.0,
        refuted=most > 1.0 + _ROUNDING,
        evidence=f"The record moved {taken} of {len(moves)} sums, by {most:.4f} clip"
        " norms at most.",
        factor=(1.0 + _ROUNDING) / most,
    )


_AUDITS = (
    ("noise", Level.NOISE, _law),
    ("noise of parts", Level.NOISE, _parts),
    ("noise of steps", Level.NOISE, _between_steps),
    ("one record", Level.SENSITIVITY, _moved),
)


def cases(engine: str) -> tuple[Case, ...]:
    """Every layout, each audited in four ways."""
    return tuple(
        Case(
            engine,
            f"{layout.what}: {what}",
            level,
            partial(audit, name, f"{engine}: {layout.what}, {what}"),
            full=True,
        )
        for name, layout in LAYOUTS.items()
        for what, level, audit in _AUDITS
    )
