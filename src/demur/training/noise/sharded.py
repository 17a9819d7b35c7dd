"""Noise over the devices of a mesh: each draws a share, none draws twice.

Parameters are the same on every device, and left to itself a compiler draws the noise
of all of them on every device. Here a leaf is laid out flat, padded to equal shares,
one for each device, and numbers are drawn for the share alone. A number is a function
of a key and of its element's place (`noise_streams`), so shares differ, and together
they are bit for bit what one device would draw. The noisy sum is then gathered. What
correlated noise remembers stays where it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demur.training.noise.streams import Flat, Memory, Streamed


@dataclass(frozen=True)
class Here:
    """One device, or whatever sharding the leaves come with."""

    def empty(self, streams: Streamed, leaves: list[Any]) -> tuple[Any, Memory]:
        """Step 0 and an empty memory."""
        return jnp.zeros((), jnp.int32), streams.remember(leaves)

    def kind(self, leaf: Any) -> Any:
        """What a stream draws for."""
        return leaf

    def flat(self, leaf: Any) -> Any:
        """The leaf as noise is added to it."""
        return leaf

    def whole(self, flat: Any, leaf: Any) -> Any:
        """A noisy leaf in the shape it had."""
        del leaf
        return flat


@dataclass(frozen=True)
class Spread:
    """All devices of `mesh`, each with an equal share of every leaf."""

    mesh: Mesh

    @cached_property
    def _share(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))

    @cached_property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def _memory(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(None, self.mesh.axis_names))

    def empty(self, streams: Streamed, leaves: list[Any]) -> tuple[Any, Memory]:
        """Step 0 and an empty memory, made where it stays."""
        kinds = [self.kind(leaf) for leaf in leaves]
        place = self._memory if streams.by_element else self._everywhere
        step = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=self._everywhere)
        memory = jax.jit(lambda: streams.remember(kinds), out_shardings=place)
        return step(), memory()

    def kind(self, leaf: Any) -> Flat:
        """The leaf's shares: what a stream draws for."""
        size = -(-leaf.size // self.mesh.size) * self.mesh.size
        return Flat(tuple(leaf.shape), (size,), leaf.dtype, self._share)

    def flat(self, leaf: Any) -> Any:
        """The leaf in shares."""
        padding = self.kind(leaf).shape[0] - leaf.size
        laid = jnp.pad(leaf.reshape(-1), (0, padding))
        return jax.lax.with_sharding_constraint(laid, self._share)

    def whole(self, flat: Any, leaf: Any) -> Any:
        """A noisy leaf in the shape it had, on every device."""
        flat = jax.lax.with_sharding_constraint(flat, self._everywhere)
        return flat[: leaf.size].reshape(leaf.shape)
