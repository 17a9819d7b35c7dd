"""Placement of batches and state over the devices of a mesh.

A batch is cut into as many equal runs of rows as there are devices, in the order of the
mesh. Every process knows the indices of the whole batch (they follow from the entry's
key and the step) and reads the rows of its own devices alone. Parameters and optimiser
are the same on every device, unless parameters are given cut or `sharded` asks for it
(`shardings`); the memory of correlated noise is sharded (`noise.layouts`).
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from demur.training.data import Data
from demur.training.devices.process_rows import ProcessRows
from demur.training.devices.shardings import own_sharding, spread

# Read by XLA and by the libraries that it calls, when a program is compiled or runs.
_SETTINGS = (
    "XLA_FLAGS",
    "NPROC",
    "LIBTPU_INIT_ARGS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
)


@dataclass(frozen=True)
class Placement:
    """The shardings of a run on `mesh`; None is one device, and places nothing."""

    mesh: Mesh | None
    sharded: bool = False
    batch_axes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        axes = () if self.mesh is None else self.mesh.axis_names
        if self.mesh is None and (self.sharded or self.batch_axes is not None):
            raise ValueError(
                "shard_parameters and batch_axes need Resources(mesh=...). Nothing was"
                " spent."
            )
        if self.batch_axes is not None and not set(self.batch_axes) <= set(axes):
            raise ValueError(
                f"batch_axes must be axes of the mesh, {axes}; got {self.batch_axes}."
                " Nothing was spent."
            )
        if self.batch_axes and len(set(self.batch_axes)) < len(self.batch_axes):
            raise ValueError(
                f"batch_axes must name each axis once; got {self.batch_axes}. Nothing"
                " was spent."
            )
        # The compiler places what is computed. Axes of another type would ask the loss
        # to say the sharding of every value it makes.
        if self.mesh is not None:
            plain = Mesh(self.mesh.devices, self.mesh.axis_names)
            object.__setattr__(self, "mesh", plain)

    @property
    def row_sharding(self) -> NamedSharding | None:
        """A share of the rows on each device."""
        if self.mesh is None:
            return None
        axes = self.mesh.axis_names if self.batch_axes is None else self.batch_axes
        return NamedSharding(self.mesh, PartitionSpec(axes))

    def shardings(self, tree: Any) -> Any:
        """How each leaf of `tree` is cut over the mesh; None if no leaf is."""
        own = jax.tree.map(lambda leaf: own_sharding(leaf, self.mesh), tree)
        if self.mesh is None or not (self.sharded or jax.tree.leaves(own)):
            return None
        whole = NamedSharding(self.mesh, PartitionSpec())

        def cut(leaf: Any) -> NamedSharding:
            sharding = own_sharding(leaf, self.mesh) or whole
            return spread(sharding, np.shape(leaf)) if self.sharded else sharding

        return jax.tree.map(cut, tree)

    def described(self, tree: Any) -> str:
        """Structure, shapes and how the leaves are cut, in words: no value is read."""
        leaves, treedef = jax.tree.flatten(tree)
        own = [own_sharding(leaf, self.mesh) for leaf in leaves]
        cuts = [None if sharding is None else str(sharding.spec) for sharding in own]
        shapes = [np.shape(leaf) for leaf in leaves]
        return f"{treedef} {shapes} {cuts} {self.sharded} {self.batch_axes}"

    @property
    def replicated(self) -> NamedSharding | None:
        """The whole on each device."""
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, PartitionSpec())

    def replicate(self, tree: Any) -> Any:
        """`tree` on every device; each process brings the same arrays."""
        sharding = self.replicated
        return tree if sharding is None else shard(tree, sharding)

    def like(self, tree: Any, placed: Any) -> Any:
        """Whole arrays of the host, laid out as the leaves of `placed` are."""

        def place(value: Any, leaf: Any) -> Any:
            if self.mesh is None:
                return jax.device_put(value, leaf.sharding)
            return shard(value, leaf.sharding)

        return jax.tree.map(place, tree, placed)

    def digest(self) -> str | None:
        """A digest of what a sum's rounding depends on: axes, devices, their owners.

        The order of the devices counts, as their sums are added in it. None for one
        CPU.
        """
        if self.mesh is None:
            kind = jax.local_devices()[0].device_kind
            return None if kind == "cpu" else str(kind)
        owners = [device.process_index for device in self.mesh.devices.flat]
        kinds = sorted({device.device_kind for device in self.mesh.devices.flat})
        order = [device.id for device in self.mesh.devices.flat]
        text = f"{dict(self.mesh.shape)} {owners} {order} {kinds}"
        return hashlib.sha256(text.encode()).hexdigest()


def machine() -> str:
    """What else a sum's rounding may follow: the device, its compiler and its flags.

    On a CPU the compiler and its libraries look at the processor and at how many cores
    they may use. (One without FMA, say, rounds each product before it is added, and a
    sum over rows is made of as many parts as there are threads.)
    """
    device = jax.local_devices()[0]
    about = [device.device_kind, version("jaxlib"), device.client.platform_version]
    about += [f"{name}={_setting(name)}" for name in _SETTINGS]
    if device.platform == "cpu":
        linux = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count()
        about += [platform.machine(), str(cores), _processor()]
    return " ".join(about)


def _setting(name: str) -> str:
    """The value of a setting; XLA_FLAGS may name a file that has the flags."""
    value = os.environ.get(name, "")
    if name != "XLA_FLAGS" or not value or value.lstrip().startswith("--"):
        return value
    try:
        return f"{value}: {Path(value).read_text()}"
    except OSError:
        return value


def _processor() -> str:
    """The model of the CPU as Linux names it, or what Python knows of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return named[0].strip() if named else platform.processor()


def shard(tree: Any, sharding: NamedSharding) -> Any:
    """Whole arrays of the host as one array over `sharding`, each process its parts."""

    def place(leaf: Any) -> Any:
        if jnp.issubdtype(jax.dtypes.result_type(leaf), jax.dtypes.prng_key):
            placed = place(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf))
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(
            whole.shape, sharding, lambda index: whole[index]
        )

    return jax.tree.map(place, tree)


@dataclass(frozen=True, eq=False, repr=False)
class ShardedData:
    """Data of which each process reads the rows of its own devices."""

    data: Data | ProcessRows
    sharding: NamedSharding

    def take(self, indices: NDArray[Any]) -> Any:
        """The rows at `indices` as one array over all devices."""
        own = self.sharding.addressable_devices_indices_map(indices.shape)
        # Devices along an axis that does not cut the batch have the same rows.
        read: dict[str, Any] = {}
        for index in own.values():
            if str(index) not in read:
                read[str(index)] = self.data.take(indices[index])
        parts = {device: read[str(index)] for device, index in own.items()}

        def join(*leaves: Any) -> Any:
            placed = [
                jax.device_put(leaf, device)
                for device, leaf in zip(parts, leaves, strict=True)
            ]
            shape = (*indices.shape, *placed[0].shape[indices.ndim :])
            return jax.make_array_from_single_device_arrays(
                shape, self.sharding, placed
            )

        return jax.tree.map(join, *parts.values())
