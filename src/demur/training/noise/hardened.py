"""Lattice noise as a privatizer's functions: on the device, or on the host.

The noise is drawn where the sums are (`Lattice.advance`). A step on the host
(`Lattice.step`) has the same bits; it is taken while an audit records the run, where
one draw was paid for one input, which has to be compared, and where JAX computes on the
host anyway, outside of a program: the host's own sampler is nine times as fast there.

The key of a step is that of its stream, eight words, taken from the payment's key
outside of a program. Inside of one it is asked for when the step runs.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from demur.core import recording
from demur.core.entropy import NoiseKey, OsEntropy
from demur.mechanisms.correlated import Buffered
from demur.training.noise.chacha import KEY_WORDS
from demur.training.noise.device_integers import (
    ROW,
    drawn_again,
    open_rows,
    rows_for,
)
from demur.training.noise.lattice import Lattice
from demur.training.noise.states import Add, Init, NoiseState

if TYPE_CHECKING:
    from demur.training.noise.privatizer import NoiseSpec

STREAM = "gaussian"  # the stream of `mechanisms.gaussian`, for the same bits


def lattice_noise(spec: NoiseSpec, mesh: Mesh | None = None) -> tuple[Init, Add]:
    """The two functions of a privatizer; over `mesh` each device draws a share."""
    if isinstance(spec.strategy, Buffered):
        raise ValueError(
            "noise='lattice' needs a strategy with bands: the buffers of a Buffered"
            " one mix all past sums in floating point. Use BandedToeplitz."
        )
    if spec.l2_norm_bound is None:
        raise ValueError("l2_norm_bound must be given for noise='lattice'")
    past = spec.strategy.bands - 1
    layout = _Layout(mesh)
    lattice = spec.lattice

    def init(params: Any) -> NoiseState:
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
        lattice(size)  # refuses here what has no grid
        return layout.empty(past, size)

    @jax.jit
    def on_device(
        leaves: list[Any], state: NoiseState, key: Any, again: Any
    ) -> tuple[list[Any], NoiseState]:
        size = sum(leaf.size for leaf in leaves)
        sums = layout.filled(_flat(leaves))
        noisy, memory = lattice(size).advance(
            state.step, sums, state.memory, key, sharding=layout.rows, again=again
        )
        parts = _parts(layout.whole(noisy), leaves)
        return parts, NoiseState(state.step + 1, layout.kept(memory))

    def on_host(
        leaves: list[Any], state: NoiseState, key: NoiseKey | None, tape: Any
    ) -> tuple[list[Any], NoiseState]:
        flat, memory = _flat(leaves), layout.everywhere(state.memory)
        mechanism = lattice(flat.size)
        kept = memory[..., : flat.size]

        def run(step: Any, sums: Any, memory: Any) -> tuple[Any, Any]:
            # The key of the payment, or without one a key for this call alone.
            own = NoiseKey.free(OsEntropy()) if key is None else key
            with recording.watching(tape):  # in a thread of JAX's, under jit
                return mechanism.step(
                    int(step), np.asarray(sums), np.asarray(memory), own
                )

        if _traced(flat, state.step):
            shapes = (
                jax.ShapeDtypeStruct(flat.shape, jnp.float32),
                jax.ShapeDtypeStruct(kept.shape, jnp.float32),
            )
            noisy, kept = io_callback(run, shapes, state.step, flat, kept)
        else:
            noisy, kept = run(state.step, flat, kept)
        parts = _parts(layout.whole(jnp.asarray(noisy)), leaves)
        memory = layout.kept(layout.filled(jnp.asarray(kept)))
        return parts, NoiseState(state.step + 1, memory)

    def add(
        value: Any, bound: float, state: NoiseState, key: Any
    ) -> tuple[Any, NoiseState]:
        del bound
        if _is_key_of_step(key):
            leaves, treedef = jax.tree.flatten(value)
            # Another step's key would repeat its noise: no number, then.
            fits = key[KEY_WORDS] == state.step.astype(jnp.uint32)
            noisy, state = on_device(leaves, state, key[:KEY_WORDS], None)
            noisy = [jnp.where(fits, leaf, jnp.nan) for leaf in noisy]
            return jax.tree.unflatten(treedef, noisy), state
        if key is not None and not isinstance(key, NoiseKey):
            raise TypeError(
                "noise='lattice' is drawn from the key of a payment"
                " (key=plan.key(payment)) or without one from the operating system;"
                " arrays of step_keys are for noise='threefry'. Nothing was drawn."
            )
        leaves, treedef = jax.tree.flatten(value)
        tape = recording.active()
        outside = not _traced(state.step, *leaves)
        at_home = outside and mesh is None and jax.default_backend() == "cpu"
        if tape is not None or at_home or _is_compared(key):
            noisy, state = on_host(leaves, state, key, tape)
        else:
            mechanism = lattice(sum(leaf.size for leaf in leaves))
            words = _cipher_key(mechanism, key, state.step)
            again = None
            if mesh is not None and outside:
                again = layout.drawn_again(words, mechanism)
            noisy, state = on_device(leaves, state, words, again)
        return jax.tree.unflatten(treedef, noisy), state

    return init, add


def key_of_step(lattice: Lattice, key: NoiseKey, step: int) -> NDArray[np.uint32]:
    """The key of one step for its program: the words, and the step's number."""
    return np.append(_cipher_key(lattice, key, step), np.uint32(step))


def _is_key_of_step(key: Any) -> bool:
    return isinstance(key, jax.core.Tracer) and key.shape == (KEY_WORDS + 1,)


def drawn_in_program(key: NoiseKey, mesh: Mesh | None) -> bool:
    """Whether a run's steps take the `key_of_step` into their programs.

    Then no step waits for the one before. Otherwise the noise is added between two
    programs: on the host (see above), or over a mesh, where open rows come first.
    """
    if mesh is not None or recording.active() is not None or _is_compared(key):
        return False
    return jax.default_backend() != "cpu"


def _is_compared(key: NoiseKey | None) -> bool:
    """Whether the key was paid for one input, whose digest the host takes."""
    return key is not None and key.binding is not None and key.binding.total == 1


def _cipher_key(lattice: Lattice, key: NoiseKey | None, step: Any) -> Any:
    """The eight words of a step's key, for the draw that was paid for."""

    def draw(step: Any) -> NDArray[np.uint32]:
        own = NoiseKey.free(OsEntropy()) if key is None else key
        own = lattice.authorised(own, int(step))
        return np.frombuffer(own.stream_key(STREAM, int(step)), "<u4").astype(np.uint32)

    if not _traced(step):
        return draw(step)
    return io_callback(draw, jax.ShapeDtypeStruct((KEY_WORDS,), jnp.uint32), step)


def _traced(*values: Any) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)


def _flat(leaves: list[Any]) -> Any:
    return jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in leaves])


def _parts(flat: Any, leaves: list[Any]) -> list[Any]:
    ends = np.cumsum([leaf.size for leaf in leaves])
    return [
        flat[end - leaf.size : end].reshape(leaf.shape)
        for end, leaf in zip(ends, leaves, strict=True)
    ]


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _open_rows(key: Any, rows: int, scale: float, own: Any, everywhere: Any) -> Any:
    opened = open_rows(key, rows, scale, own)
    return jax.lax.with_sharding_constraint(opened, everywhere)


class _Layout:
    """All coordinates behind one another; over a mesh in equal, filled-up shares."""

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self._shares = 1 if mesh is None else mesh.size

    def _sharding(self, *axes: Any) -> Any:
        if self._mesh is None:
            return None
        return NamedSharding(self._mesh, PartitionSpec(*axes))

    @property
    def _names(self) -> Any:
        return None if self._mesh is None else self._mesh.axis_names

    @property
    def rows(self) -> Any:
        """How rows of coordinates lie on the devices."""
        return self._sharding(self._names)

    def _length(self, size: int) -> int:
        return size if self._mesh is None else rows_for(size, self._shares) * ROW

    def drawn_again(self, key: Any, lattice: Lattice) -> Any:
        """The rows over the mesh that are left to the host, as it draws them."""
        rows = rows_for(lattice.dimension, self._shares)
        opened = _open_rows(key, rows, lattice.scale, self.rows, self._sharding())
        return drawn_again(key, np.asarray(opened), lattice.scale)

    def empty(self, past: int, size: int) -> NoiseState:
        """Step 0 and an empty memory."""
        shape = (2, past, self._length(size))
        if self._mesh is None:
            return NoiseState(jnp.zeros((), jnp.int32), jnp.zeros(shape, jnp.float32))
        made = jax.jit(
            lambda: NoiseState(jnp.zeros((), jnp.int32), jnp.zeros(shape, jnp.float32)),
            out_shardings=NoiseState(
                self._sharding(), self._sharding(None, None, self._names)
            ),
        )
        return made()

    def _constrained(self, array: Any, *axes: Any) -> Any:
        if self._mesh is None:
            return array
        return jax.lax.with_sharding_constraint(array, self._sharding(*axes))

    def filled(self, array: Any) -> Any:
        """Coordinates along the last axis, in shares."""
        if self._mesh is None:
            return array
        spare = self._length(array.shape[-1]) - array.shape[-1]
        array = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, spare)])
        return self._constrained(array, *[None] * (array.ndim - 1), self._names)

    def kept(self, memory: Any) -> Any:
        """The memory where it stays."""
        return self._constrained(memory, None, None, self._names)

    def whole(self, flat: Any) -> Any:
        """Noisy coordinates on every device."""
        return self._constrained(flat)

    def everywhere(self, memory: Any) -> Any:
        """The memory on every device, for a step on the host."""
        return self._constrained(memory)
