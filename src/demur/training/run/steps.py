"""Training steps, compiled for each physical batch size and for no other.

    whole_step                    one minibatch holds the global batch: one program
    first_sum, add_sum, finish    several do: sums are joined, then one draw

The state is donated, so parameters, optimiser and noise memory are updated in place.
Programs are compiled ahead of time, in the background (`programs`), for public sizes
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from demur.core.entropy import NoiseKey
from demur.training.clipping.frozen_losses import frozen_of, gradient_at
from demur.training.clipping.rounding import wide
from demur.training.clipping.types import ClippedGrad, ClippedSum, PyTree
from demur.training.devices.placement import Placement
from demur.training.noise.hardened import drawn_in_program, key_of_step
from demur.training.noise.privatizer import Privatizer
from demur.training.noise.threefry import STEP_NOISE, step_keys
from demur.training.run import program_files, sharded_state
from demur.training.run.arguments import call_arguments
from demur.training.run.charges import program_digest
from demur.training.run.prefetcher import StepInput
from demur.training.run.programs import Programs
from demur.training.run.sharded_state import TrainState, copied, placed, structs
from demur.training.sizes.shapes import ShapePlan

_DROPOUT = "dropout"
_ONE_DEVICE = Placement(None)


class Steps:
    """The steps of one run: `run(state, input, key)` gives the next state."""

    def __init__(
        self,
        clipped: ClippedGrad,
        privatizer: Privatizer,
        optimizer: optax.GradientTransformation,
        *,
        average: float | None,
        exact: bool,
        placement: Placement = _ONE_DEVICE,
        stored: bool = False,
        shares: int = 0,
    ) -> None:
        # A number of real rows, or one for each process that has rows of its own.
        self._count = jax.ShapeDtypeStruct((shares,) if shares else (), jnp.int32)
        self._clipped, self._stored = clipped, stored
        self._public: list[Any] | None = None  # arrays that may be stored in a program
        self._given = self._privatizer = privatizer
        self._placement = placement
        self._shardings: Any = None  # of the parameters, where they are cut
        self._optimizer = optimizer
        self._average = average
        self._exact = exact
        # Their arguments in every program, last of all; None where nothing is frozen.
        frozen = jax.tree.map(jnp.asarray, frozen_of(clipped.arguments["fun"]))
        cut = placement.shardings(frozen)
        self._frozen_is_cut = cut is not None
        self.frozen = placed(frozen, cut) if cut else placement.replicate(frozen)
        self._random = clipped.arguments["prng_argnum"] is not None
        self._hardened = privatizer.spec.hardened
        self._leaves = self._dimension = 0
        self._waiting: list[tuple[Any, ShapePlan, Callable[[int], Any]]] = []
        self._ahead: dict[Any, Programs] = {}
        self._open = ExitStack()

    def init(self, params: PyTree) -> TrainState:
        """The state before the first step; the caller's arrays stay."""
        mesh, cut = self._placement.mesh, self._placement.shardings(params)
        self._shardings = cut
        if mesh is not None:
            leaves = None if cut is None else tuple(jax.tree.leaves(cut))
            self._privatizer = self._given.on(mesh, leaves)
        noise_is_sharded = self._privatizer is not self._given
        own = copied(params) if cut is None else placed(params, cut)
        self._leaves = len(jax.tree.leaves(own))
        self._dimension = sum(leaf.size for leaf in jax.tree.leaves(own))
        place, empty = self._placement.replicate, self._privatizer.init
        first = partial(sharded_state.first_state, self._optimizer)
        noise = empty(own) if noise_is_sharded else jax.jit(empty)(own)
        if cut is not None:
            optimizer = sharded_state.cut_state(first, own, cut)
            average = None if self._average is None else placed(own, cut)
            steps = place(jnp.zeros((), jnp.int32))
            return TrainState(own, optimizer, average, steps, noise)
        return TrainState(
            params=place(own),
            # A state that holds the parameters themselves could not be donated.
            optimizer=place(copied(first(own))),
            average=None if self._average is None else place(copied(own)),
            steps=place(jnp.zeros((), jnp.int32)),
            noise=noise if noise_is_sharded else place(noise),
        )

    # -- what is compiled --------------------------------------------------------------

    def first_sum(
        self,
        params: PyTree,
        batch: Any,
        real: Any,
        loss_key: Any,
        frozen: PyTree = None,
    ) -> Any:
        """The clipped sum of a minibatch, and sums of loss and aux if asked for."""
        micro = self._clipped.arguments["microbatch_size"]
        mesh = self._placement.mesh
        if self._is_cut and micro is not None and not self._random:
            whole = gradient_at(self._clipped.with_(microbatch_size=None), frozen)
            return sharded_state.sum_in_turns(
                lambda some, padding: self._sum(
                    whole, params, some, None, None, is_padding_example=padding
                ),
                batch,
                real,
                micro,
                self._placement.row_sharding,
            )
        if mesh is None or micro is None or self._random:
            clipped = gradient_at(self._clipped, frozen)
            return self._sum(clipped, params, batch, real, loss_key)
        return self._sum_by_device(mesh, micro, params, batch, real, frozen)

    @property
    def _is_cut(self) -> bool:
        """Whether the compiler, not `shard_map`, spreads the work over the devices."""
        cut = self._shardings is not None or self._frozen_is_cut
        return cut or self._placement.batch_axes is not None

    def _sum(
        self,
        clipped: ClippedGrad,
        params: PyTree,
        batch: Any,
        real: Any,
        loss_key: Any,
        **options: Any,
    ) -> Any:
        arguments = call_arguments(clipped, params, batch, loss_key)
        if real is not None and real.ndim:  # of each process
            size = jax.tree.leaves(batch)[0].shape[0]
            options["is_padding_example"] = sharded_state.padding(size, real)
            real = None
        result = clipped(*arguments, num_real=real, **options)
        total, aux = result if clipped.has_aux else (result, None)
        if aux is None or not self._exact:
            return total, None
        # Sums over the examples, of the loss and of what else the loss returned.
        return total, (aux.values.sum(), jax.tree.map(_sum_of_rows, aux.aux))

    def _sum_by_device(
        self,
        mesh: Mesh,
        micro: int,
        params: PyTree,
        batch: Any,
        real: Any,
        frozen: PyTree,
    ) -> Any:
        """Each device takes its own rows, a few at a time, and the sums are added.

        A loop over microbatches of the whole batch would gather the rows of each one,
        and every device would compute all of them. A loss with a key is left to that
        loop: its keys are given out by row of the whole batch.
        """
        axes, whole = mesh.axis_names, PartitionSpec()
        rows = jax.tree.leaves(batch)[0].shape[0] // mesh.size
        local = self._clipped.with_(microbatch_size=max(1, micro // mesh.size))

        def share(params: PyTree, batch: Any, real: Any, frozen: PyTree) -> Any:
            place = jax.lax.axis_index(axes)
            own = sharded_state.real_rows_at(place, mesh.size, rows, real)
            clipped = gradient_at(local, frozen)
            total, value = self._sum(clipped, params, batch, own, None)
            return total.psum(axes), jax.lax.psum(value, axes)

        by_device = jax.shard_map(
            share,
            mesh=mesh,
            in_specs=(whole, PartitionSpec(axes), whole, whole),
            out_specs=whole,
        )
        return by_device(params, batch, real, frozen)

    def add_sum(
        self,
        params: PyTree,
        total: ClippedSum,
        batch: Any,
        real: Any,
        loss_key: Any,
        frozen: PyTree,
    ) -> tuple[ClippedSum, Any]:
        """One more minibatch of the same global batch."""
        added, value = self.first_sum(params, batch, real, loss_key, frozen)
        return ClippedSum.join([total, added]), value

    def finish(
        self, state: TrainState, total: ClippedSum, key: Any
    ) -> tuple[TrainState, Any]:
        """Noise and update, the sum being complete."""
        noisy, noise = self._privatizer.update(total, state.noise, key=key)
        return self.apply(state, noisy, noise)

    def apply(
        self, state: TrainState, noisy: PyTree, noise: Any
    ) -> tuple[TrainState, Any]:
        """The optimiser's update, and a number that is there when it is done."""
        updates, optimizer = self._optimizer.update(
            noisy, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        average = state.average
        if average is not None:
            assert self._average is not None
            # Young averages forget faster: the first parameters carry no information.
            t = state.steps.astype(jnp.float32)
            decay = jnp.minimum(self._average, (1.0 + t) / (10.0 + t))
            average = jax.tree.map(
                lambda a, p: (decay * a + (1 - decay) * p).astype(a.dtype),
                average,
                params,
            )
        steps = state.steps + 1
        # The state is donated to the next step; this copy is not, and can be awaited.
        return TrainState(params, optimizer, average, steps, noise), steps + 0

    def whole_step(
        self,
        state: TrainState,
        key: Any,
        batch: Any,
        real: Any,
        loss_key: Any,
        frozen: PyTree,
    ) -> tuple[TrainState, Any, Any]:
        """A step whose global batch is one minibatch."""
        total, value = self.first_sum(state.params, batch, real, loss_key, frozen)
        return *self.finish(state, total, key), value

    # -- compiling ---------------------------------------------------------------------

    def prepare(
        self,
        state: TrainState,
        shapes: ShapePlan,
        batch: Callable[[int], Any],
        *,
        several: bool,
    ) -> None:
        """Trace for each physical size; `batch(size)` has its shapes."""
        like, key = structs(state), self._key_struct()
        if self._stored and self._placement.mesh is None and program_files.is_used():
            self._public = self._noise_constants(like, key)
        loss_key, frozen = self._loss_key_struct(), structs(self.frozen)
        some = batch(shapes.sizes[0])
        total, _ = jax.eval_shape(
            self.first_sum, like.params, some, self._count, loss_key, frozen
        )

        def ahead(function: Any, arguments: Callable[[int], Any]) -> None:
            # Traced here: an error in a loss is raised before anything is paid.
            function.trace(*arguments(shapes.sizes[-1]))
            self._waiting.append((function, shapes, arguments))

        # A state keeps its sharding from step to step; a compiler may choose another.
        shardings: Any = (None, None, None)
        if self._placement.mesh is not None:
            where = jax.tree.map(lambda leaf: leaf.sharding, state)
            shardings = (where, None, self._placement.replicated)
        sums: Any = None
        if self._shardings is not None:  # a sum lies as its parameters do
            cut = jax.tree.leaves(self._shardings)
            in_all = self._placement.replicated  # what is told of them
            sums = jax.tree.unflatten(jax.tree.structure(total), cut), in_all
            total = jax.tree.map(
                lambda leaf, where: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype, sharding=where
                ),
                total,
                sums[0],
            )
        self._jitted = {
            "whole_step": jax.jit(
                self.whole_step, donate_argnums=0, out_shardings=shardings
            ),
            "first_sum": jax.jit(self.first_sum, out_shardings=sums),
            "add_sum": jax.jit(self.add_sum, donate_argnums=1, out_shardings=sums),
            "finish": jax.jit(
                self.finish, donate_argnums=0, out_shardings=shardings[:2]
            ),
            "apply": jax.jit(self.apply, donate_argnums=0, out_shardings=shardings[:2]),
        }
        if not self._hardened:
            ahead(
                self._jitted["whole_step"],
                lambda size: (like, key, batch(size), self._count, loss_key, frozen),
            )
        if several or self._hardened:
            ahead(
                self._jitted["first_sum"],
                lambda size: (like.params, batch(size), self._count, loss_key, frozen),
            )
        if several:
            ahead(
                self._jitted["add_sum"],
                lambda size: (
                    like.params,
                    total,
                    batch(size),
                    self._count,
                    loss_key,
                    frozen,
                ),
            )

    def _noise_constants(self, like: TrainState, key: Any) -> list[Any]:
        """The arrays that the noise refers to: they follow from the plan alone."""
        if self._hardened:  # a program of its own
            return []

        def noise(state: TrainState, key: Any) -> Any:
            sums = jax.tree.map(lambda p: p.astype(wide(p.dtype)), state.params)
            total = ClippedSum(sums, self._clipped.l2_norm_bound)
            return self._privatizer.update(total, state.noise, key=key)

        return list(program_files.constants(jax.make_jaxpr(noise)(like, key)))

    def compile(self) -> None:
        """Start compiling what is prepared, in the background."""
        while self._waiting:
            function, shapes, arguments = self._waiting.pop(0)
            programs = Programs(function, shapes, arguments, public=self._public)
            self._ahead[function] = self._open.enter_context(programs)

    def wait(self) -> None:
        """Wait until all is compiled: what cannot be, fails here and not in a step."""
        for programs in self._ahead.values():
            for size in programs.sizes:
                programs[size]

    def _program(self, name: str, size: int | None = None) -> Callable[..., Any]:
        jitted = self._jitted[name]
        if size is None or jitted not in self._ahead:
            return jitted
        return self._ahead[jitted][size]

    def _key_struct(self) -> Any:
        return jax.ShapeDtypeStruct((self._leaves, 2), jnp.uint32)

    def _loss_key_struct(self) -> Any:
        return jax.ShapeDtypeStruct((2,), jnp.uint32) if self._random else None

    def digest(self, state: TrainState, batch: Any) -> str:
        """A digest of what a step computes; after `prepare`."""
        like = structs(state)
        rest = batch, self._count, self._loss_key_struct(), structs(self.frozen)
        if not self._hardened:
            whole = self._jitted["whole_step"]
            return program_digest(whole.lower(like, self._key_struct(), *rest))
        # The noise is a program of its own: it is part of the plan's fingerprint.
        return program_digest(
            self._jitted["first_sum"].lower(like.params, *rest),
            self._jitted["apply"].lower(like, like.params, like.noise),
        )

    def digest_of_any_layout(self, state: TrainState, batch: Any) -> str:
        """A digest of what a step computes, the same on any mesh and for any sizes."""
        like, frozen = structs((state, self.frozen), placed=False)
        clipped = self._clipped.with_(microbatch_size=None, memory="fast")

        def total(params: PyTree, batch: Any, key: Any, frozen: PyTree) -> Any:
            return self._sum(gradient_at(clipped, frozen), params, batch, None, key)

        key = self._loss_key_struct()
        return program_digest(
            jax.jit(total).lower(like.params, batch, key, frozen),
            jax.jit(self.apply).lower(like._replace(noise=None), like.params, None),
        )

    # -- running -----------------------------------------------------------------------

    def noise_after(self, state: TrainState, key: NoiseKey, steps: int) -> Any:
        """The noise state after so many steps, from the first one: no sum is needed.

        Not for lattice noise with bands, which remembers sums.
        """
        if self._hardened:
            place = self._placement.replicate
            return state.noise._replace(step=place(jnp.asarray(steps, jnp.int32)))
        return sharded_state.noise_of_zeros(
            lambda total, noise, keys: self._privatizer.update(total, noise, key=keys),
            self._clipped.l2_norm_bound,
            state,
            (step_keys(key.stream(STEP_NOISE, i), self._leaves) for i in range(steps)),
        )

    def run(
        self, state: TrainState, step_input: StepInput, key: NoiseKey
    ) -> tuple[TrainState, Any, Any]:
        """The next state, something to wait for, and what `first_sum` adds up."""
        step, parts = step_input.step, step_input.minibatches
        self._privatizer.spec.check_rows(sum(part.size for part in parts))
        keys: Any = [None] * len(parts)
        if self._random:
            keys = step_keys(key.stream(_DROPOUT, step), len(parts))
        if len(parts) == 1 and not self._hardened:
            (part,) = parts
            fresh = step_keys(key.stream(STEP_NOISE, step), self._leaves)
            return self._program("whole_step", part.size)(
                state, fresh, part.batch, part.count, keys[0], self.frozen
            )
        total, value = self._program("first_sum", parts[0].size)(
            state.params, parts[0].batch, parts[0].count, keys[0], self.frozen
        )
        for part, own in zip(parts[1:], keys[1:], strict=True):
            total, added = self._program("add_sum", part.size)(
                state.params, total, part.batch, part.count, own, self.frozen
            )
            value = jax.tree.map(jnp.add, value, added)
        if self._hardened and drawn_in_program(key, self._placement.mesh):
            lattice = self._privatizer.spec.lattice(self._dimension)
            fresh = key_of_step(lattice, key, step)
            return *self._program("finish")(state, total, fresh), value
        if self._hardened:
            noisy, noise = self._privatizer.update(total, state.noise, key=key)
            return *self._program("apply")(state, noisy, noise), value
        fresh = step_keys(key.stream(STEP_NOISE, step), self._leaves)
        return *self._program("finish")(state, total, fresh), value

    def close(self) -> None:
        """Drop programs that are not compiled yet."""
        self._open.close()


def _sum_of_rows(leaf: Any) -> Any:
    return leaf.astype(wide(leaf.dtype)).sum(axis=0)
