"""Start of JAX on several processes, with time-outs so that none waits for ever."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from demur.core import validate


def start(
    coordinator: str,
    processes: int,
    process: int,
    *,
    heartbeat_s: int = 30,
    shutdown_s: int = 60,
    bind: str | None = None,
) -> Mesh:
    """A mesh over all devices of `processes` processes, joined at "host:port".

    Called once in every process, before anything else of JAX. `process` counts from 0;
    process 0 listens at `bind` (default: the coordinator's own address) and holds the
    ledger. After `heartbeat_s` without a sign of a process JAX ends all others: their
    exit code is not 0. `shutdown_s` is how long the first to finish waits for the last.

    The mesh has all devices along one axis, "data". `jax.distributed.initialize` and a
    mesh of your own work with `fit` as well. Traffic between the processes is not
    encrypted, and the entry's key and exact sums are part of it: use a network that no
    one else can read.
    """
    validate.count(processes=processes, heartbeat_s=heartbeat_s, shutdown_s=shutdown_s)
    if isinstance(process, bool) or not isinstance(process, int):
        raise TypeError(f"process must be a whole number; got {process!r}")
    if not 0 <= process < processes:
        raise ValueError(f"process must be from 0 to {processes - 1}; got {process}")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"coordinator must be 'host:port'; got {coordinator!r}")
    # CPUs have no collectives across processes by default, other devices ignore this.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its preemption service takes SIGTERM and goes on: `kill` would end nothing.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        heartbeat_timeout_seconds=heartbeat_s,
        shutdown_timeout_seconds=shutdown_s,
        coordinator_bind_address=bind or coordinator,
    )
    return Mesh(np.array(jax.devices()), ("data",))


def is_first() -> bool:
    """Whether this process holds the ledger and writes the checkpoint."""
    return jax.process_index() == 0
