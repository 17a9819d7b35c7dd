"""Layouts of noise over devices: whole, or a share on each device of a mesh.

Parameters are the same on every device, and left to itself a compiler draws the noise
of all of them on every device. In the sharded layout a leaf is laid out flat, padded to
equal shares, one for each device, and numbers are drawn for the share alone. A number
is a function of a key and of its element's place (`threefry`), so shards differ, and
together they are bit for bit what one device would draw. The noisy sum is then
gathered. The memory of correlated noise stays where it was drawn.

Parameters that are cut themselves (`devices.shardings`) keep their shape: numbers are
drawn for each device's part of the leaf, cut along the free axes of the mesh too where
they divide, and the noisy sum lies as its parameter does. No device has the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demur.training.devices.shardings import covers_mesh, spread
from demur.training.noise.recursions import Memory, Recursion
from demur.training.noise.threefry import FlatLeaf, PlacedLeaf


@dataclass(frozen=True)
class WholeLayout:
    """One device, or whatever sharding the leaves come with."""

    def empty(self, recursion: Recursion, leaves: list[Any]) -> tuple[Any, Memory]:
        """Step 0 and an empty memory."""
        return jnp.zeros((), jnp.int32), recursion.empty_memory(leaves)

    def drawn_for(self, leaves: list[Any]) -> list[Any]:
        """The shapes that numbers are drawn for."""
        return leaves

    def shares(self, leaves: list[Any]) -> list[Any]:
        """The leaves as noise is added to them."""
        return leaves

    def whole(self, noisy: list[Any], leaves: list[Any]) -> list[Any]:
        """Noisy leaves in the shapes they had."""
        del leaves
        return noisy


@dataclass(frozen=True)
class ShardedLayout:
    """All devices of `mesh`, each with an equal share of every leaf.

    `shardings` are those of the parameters, leaf by leaf, where they are cut; None
    where all are whole on every device.
    """

    mesh: Mesh
    shardings: tuple[NamedSharding, ...] | None = None

    @cached_property
    def _share(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))

    @cached_property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def empty(self, recursion: Recursion, leaves: list[Any]) -> tuple[Any, Memory]:
        """Step 0 and an empty memory, made where it stays."""
        drawn = self.drawn_for(leaves)
        sharding: Any = self._replicated
        if recursion.by_element:  # behind one leading axis
            sharding = [
                NamedSharding(self.mesh, PartitionSpec(None, *leaf.sharding.spec))
                for leaf in drawn
            ]
        step = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=self._replicated)
        memory = jax.jit(lambda: recursion.empty_memory(drawn), out_shardings=sharding)
        return step(), memory()

    def drawn_for(self, leaves: list[Any]) -> list[FlatLeaf | PlacedLeaf]:
        """The leaves' shares, which numbers are drawn for."""
        return [self._share_of(i, leaf) for i, leaf in enumerate(leaves)]

    def _share_of(self, i: int, leaf: Any) -> FlatLeaf | PlacedLeaf:
        shape = tuple(leaf.shape)
        if self.shardings is not None:
            own = self.shardings[i]
            cut = spread(own, shape)
            # A leaf that is whole everywhere and does not divide is drawn flat, padded.
            if covers_mesh(cut) or not own.is_fully_replicated:
                return PlacedLeaf(shape, leaf.dtype, cut)
        size = -(-leaf.size // self.mesh.size) * self.mesh.size
        return FlatLeaf(shape, (size,), leaf.dtype, self._share)

    def shares(self, leaves: list[Any]) -> list[Any]:
        """The leaves in shares."""
        found = []
        for leaf, share in zip(leaves, self.drawn_for(leaves), strict=True):
            if isinstance(share, FlatLeaf):
                leaf = jnp.pad(leaf.reshape(-1), (0, share.shape[0] - leaf.size))
            found.append(jax.lax.with_sharding_constraint(leaf, share.sharding))
        return found

    def whole(self, noisy: list[Any], leaves: list[Any]) -> list[Any]:
        """Noisy leaves in the shapes they had, lying as their parameters do."""
        found = []
        for i, (share, leaf) in enumerate(zip(noisy, leaves, strict=True)):
            if share.shape == leaf.shape and self.shardings is not None:
                own = self.shardings[i]
                found.append(jax.lax.with_sharding_constraint(share, own))
                continue
            flat = jax.lax.with_sharding_constraint(share, self._replicated)
            found.append(flat.reshape(-1)[: leaf.size].reshape(leaf.shape))
        return found
