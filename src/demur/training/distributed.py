"""Start of JAX on several processes: with time-outs, on a network that one owns."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from demur.core import memory_dumps, validate
from demur.training.devices import aborted_processes, joining, network
from demur.training.devices.joining import SocketAddress
from demur.training.errors import StartRefused


def start(
    coordinator: str,
    processes: int,
    process: int,
    *,
    join_s: int = 120,
    heartbeat_s: int = 30,
    shutdown_s: int = 60,
    bind: str | None = None,
    own_network: bool = False,
) -> Mesh:
    """A mesh over all devices of `processes` processes, joined at "host:port".

    Called once in every process, before anything else of JAX. `process` counts from 0;
    process 0 listens at `bind` (default: the coordinator's own address) and holds the
    ledger. The processes wait `join_s` seconds for each other; a port that is taken and
    processes that do not come are named (`StartRefused`). After `heartbeat_s` without a
    sign of a process all others end, with `ProcessLost` and exit code 75 where JAX ends
    them. `shutdown_s` is how long the first to finish waits for the last.

    Traffic between the processes is neither encrypted nor authenticated, and the
    entry's key and exact sums are part of it. So any address but the loopback's is
    refused, unless `own_network=True` says that no one else can read or reach it.

    The mesh has all devices along one axis, "data". `jax.distributed.initialize` and a
    mesh of your own work with `fit` as well, after `own_network()`.
    """
    validate.count(
        processes=processes,
        join_s=join_s,
        heartbeat_s=heartbeat_s,
        shutdown_s=shutdown_s,
    )
    if isinstance(process, bool) or not isinstance(process, int):
        raise TypeError(f"process must be a whole number; got {process!r}")
    if not 0 <= process < processes:
        raise ValueError(f"process must be from 0 to {processes - 1}; got {process}")
    place = SocketAddress.parse("coordinator", coordinator)
    listening = place if bind is None else SocketAddress.parse("bind", bind)
    _check_network(place, listening, own_network)
    memory_dumps.switch_off()
    if process == 0:
        joining.gather(joining.listen(listening), place, processes, join_s)
    else:
        joining.call(place, processes, process, join_s)
    # CPUs have no collectives across processes by default, other devices ignore this.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its preemption service takes SIGTERM and goes on: `kill` would end nothing.
    jax.config.update("jax_enable_preemption_service", False)
    aborted_processes.name_them()
    jax.distributed.initialize(
        str(place),
        processes,
        process,
        initialization_timeout=join_s,
        heartbeat_timeout_seconds=heartbeat_s,
        shutdown_timeout_seconds=shutdown_s,
        coordinator_bind_address=str(listening),
    )
    network.trust()
    return Mesh(np.array(jax.devices()), ("data",))


def own_network() -> None:
    """Say that no one else can read or reach the network between the processes.

    For processes that were joined by `jax.distributed.initialize`, in each of them.
    """
    network.trust()


def _check_network(place: SocketAddress, listening: SocketAddress, own: bool) -> None:
    """Refuse addresses that others may reach, unless the owner answers for them."""
    if own:
        return
    for address in (place, listening):
        if not network.is_loopback(address.host):
            raise StartRefused(
                f"{address} is not this machine alone, and the entry's key and exact"
                " sums would travel there unencrypted. If no one else can read or reach"
                " that network (a private one, or one that is encrypted below), pass"
                " own_network=True. Nothing was spent."
            )


def is_first() -> bool:
    """Whether this process holds the ledger and writes the checkpoint."""
    return jax.process_index() == 0
