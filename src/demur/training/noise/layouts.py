"""Layouts of noise over devices: whole, or a share on each device of a mesh.

Parameters are the same on every device, and left to itself a compiler draws the noise
of all of them on every device. In the sharded layout a leaf is laid out flat, padded to
equal shares, one for each device, and numbers are drawn for the share alone. A number
is a function of a key and of its element's place (`threefry`), so shards differ, and
together they are bit for bit what one device would draw. The noisy sum is then
gathered. The memory of correlated noise stays where it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demur.training.noise.recursions import Memory, Recursion
from demur.training.noise.threefry import FlatLeaf


@dataclass(frozen=True)
class WholeLayout:
    """One device, or whatever sharding the leaves come with."""

    def empty(self, recursion: Recursion, leaves: list[Any]) -> tuple[Any, Memory]:
        """Step 0 and an empty memory."""
        return jnp.zeros((), jnp.int32), recursion.empty_memory(leaves)

    def drawn_for(self, leaf: Any) -> Any:
        """The shape that numbers are drawn for."""
        return leaf

    def flat(self, leaf: Any) -> Any:
        """The leaf as noise is added to it."""
        return leaf

    def whole(self, flat: Any, leaf: Any) -> Any:
        """A noisy leaf in the shape it had."""
        del leaf
        return flat


@dataclass(frozen=True)
class ShardedLayout:
    """All devices of `mesh`, each with an equal share of every leaf."""

    mesh: Mesh

    @cached_property
    def _share(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))

    @cached_property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def _memory(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(None, self.mesh.axis_names))

    def empty(self, recursion: Recursion, leaves: list[Any]) -> tuple[Any, Memory]:
        """Step 0 and an empty memory, made where it stays."""
        flat = [self.drawn_for(leaf) for leaf in leaves]
        sharding = self._memory if recursion.by_element else self._replicated
        step = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=self._replicated)
        memory = jax.jit(lambda: recursion.empty_memory(flat), out_shardings=sharding)
        return step(), memory()

    def drawn_for(self, leaf: Any) -> FlatLeaf:
        """The leaf's shares, which numbers are drawn for."""
        size = -(-leaf.size // self.mesh.size) * self.mesh.size
        return FlatLeaf(tuple(leaf.shape), (size,), leaf.dtype, self._share)

    def flat(self, leaf: Any) -> Any:
        """The leaf in shares."""
        padding = self.drawn_for(leaf).shape[0] - leaf.size
        padded = jnp.pad(leaf.reshape(-1), (0, padding))
        return jax.lax.with_sharding_constraint(padded, self._share)

    def whole(self, flat: Any, leaf: Any) -> Any:
        """A noisy leaf in the shape it had, on every device."""
        flat = jax.lax.with_sharding_constraint(flat, self._replicated)
        return flat[: leaf.size].reshape(leaf.shape)
