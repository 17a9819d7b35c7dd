"""Agreement of the processes of a run on all that its price rests on.

A run is priced as one mechanism: each record is drawn with the plan's probability, its
gradient enters a sum at most once in a step, and one noise covers that sum. Each
process forms its own share of a batch, from its own copy of the rows and with its own
copy of the code. So the price holds only if these are the same in all of them:

- the rows, in order. Row 7 of process 0 and row 7 of process 1 are one record; in
  another order a record enters a step twice, in two shares, and the sum moves by twice
  the bound that the noise was made for;
- the batches that follow from a key: drawn otherwise, a record is drawn twice as often;
- what computes: demur, JAX and NumPy, and the program of a step.

All of it is compared by digest, before anything is paid, with a checkpoint or without.
Reading every row once is the price of that; a memory map is hashed where it lies.

What no program can see is stated in the entry, for whoever signs (`assumed`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import jax
import numpy as np

import demur
from demur.core.entropy import NoiseKey
from demur.training.batches.padding import Indices
from demur.training.batches.selection_key import selection_key
from demur.training.devices.placement import machine
from demur.training.devices.process_rows import ProcessRows
from demur.training.devices.processes import Processes

_PROBED = 4  # selections that a probe draws
_PROBE_SEED = 26  # public: what it draws is shown to the other processes
ROWS_APART = (
    "each record is among the rows of one process alone: rows that several processes"
    " have in part are not noticed, and would be drawn more often than is paid for"
)
REPEATED = (
    "a step that is repeated after an interruption has the same bits again on {kind}:"
    " sums whose order follows its threads would show their rounding"
)


def versions() -> dict[str, object]:
    """What computes, by name with the version that this process has."""
    libraries = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    parts: dict[str, object] = {
        f"{name} ({found} here)": found for name, found in libraries.items()
    }
    return parts | {f"demur ({demur.__version__} here)": _source()}


@cache
def _source() -> str:
    """A digest of demur's own source: a changed copy has the same version."""
    folder = Path(demur.__file__).parent
    whole = hashlib.sha256(demur.__version__.encode())
    for path in sorted(folder.rglob("*.py")):
        whole.update(f"{path.relative_to(folder)}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def probe(batches: Callable[[NoiseKey], Iterable[Indices]]) -> str:
    """A digest of the first batches that `batches` draws from a public key.

    The entry's key does not exist before the charge. A sampler is a function of the
    key, so one that draws otherwise is found under another key as well.
    """
    whole = hashlib.sha256()
    for batch in islice(batches(selection_key(_PROBE_SEED)), _PROBED):
        whole.update(f"{batch.shape}".encode())
        whole.update(np.ascontiguousarray(batch, dtype="<i8").data)
    return whole.hexdigest()


def machines(group: Processes) -> str:
    """A digest of what the rounding of each process follows, in their order.

    A resumed run repeats the steps after its last checkpoint, which may have been seen,
    with the noise they had. Were a sum rounded otherwise there, as by another processor
    or compiler, the difference of the two releases would be that of the sums, without
    noise: a function of exact gradients that nothing pays for. So a checkpoint is bound
    to the machine of every process, and each of them is compared.
    """
    own = hashlib.sha256(machine().encode()).digest()
    return group.every(np.frombuffer(own, np.uint8)).tobytes().hex()


def assumed(own: ProcessRows | None, *, resumable: bool) -> tuple[str, ...]:
    """What the price of a run assumes and no program sees, for its entry."""
    lines = [ROWS_APART] if own is not None and len(own.counts) > 1 else []
    device = jax.local_devices()[0]
    # XLA's programs for a CPU add in an order that follows the number of threads alone.
    if resumable and device.platform != "cpu":
        lines.append(REPEATED.format(kind=device.device_kind))
    return tuple(lines)
