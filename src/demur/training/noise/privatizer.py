"""Privatizers: noise for a run, as optax transformations that take a `ClippedSum`.

    privatizer(strategy, stddev=...)      noise stddev C^-1 Z, streamed step by step
    gaussian_privatizer(stddev, steps)    C = 1: independent noise, DP-SGD

**Keys.** A threefry key holds 64 bits, and a plan may be run many times. No key is kept
in a plan or in a state: every step takes fresh ones, one for each leaf, either from the
caller (`update(..., key=step_keys(stream, leaves))`, the trainer reads them off the
entry's ChaCha20 stream) or, if none are given, from the operating system at the moment
the step runs, inside `jit` too. Two runs of one plan never share noise.

**Two kinds of noise.** `noise="threefry"` draws float32 normals on the device. That is
the textbook mechanism with textbook rounding: the low bits of its sums can tell two
neighbouring values apart, and the statement says "float32 threefry, not hardened".
`noise="lattice"` (`noise.hardened`) takes the hardened Gaussian for every step; it is
given the key itself and refuses one that was paid for another plan.

There is no row past the strategy's last step: outside `jit` that is an IndexError,
inside it the result is NaN, which cannot be taken for a release.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from demur.core import recording, validate
from demur.core.declaration import fingerprint_of
from demur.core.entropy import NoiseKey
from demur.core.errors import NotPrivate
from demur.core.rounding import product_up
from demur.mechanisms.correlated import (
    BandedToeplitz,
    Buffered,
    Participation,
    Strategy,
)
from demur.training.clipping.accumulation import ROW_SHARE, rounding_share
from demur.training.clipping.rounding import in_float64
from demur.training.clipping.types import ClippedSum, PyTree
from demur.training.noise.admission import check_place, check_step, check_sum
from demur.training.noise.hardened import lattice_noise
from demur.training.noise.lattice import Lattice
from demur.training.noise.layouts import ShardedLayout, WholeLayout
from demur.training.noise.members import one_release
from demur.training.noise.recorded_steps import recorded
from demur.training.noise.recursions import recursion_of
from demur.training.noise.states import Add, Init, NoiseState
from demur.training.noise.threefry import STEP_NOISE, keys_at, own_keys, step_keys

KINDS = ("threefry", "lattice")
NOT_HARDENED = "float32 threefry, not hardened"
HARDENED = "integer lattice, hardened"


@dataclass(frozen=True)
class PlanTerms:
    """What a plan's price follows from beside the noise, and how many draws it pays."""

    text: str
    draws: int


@dataclass(frozen=True, eq=False)
class NoiseSpec:
    """What a privatizer adds: public, and enough for a declaration.

    A plan sets the last three. `participation` are the patterns of steps that one
    record can take part in, which an audit compares with the run; `plan` are the terms
    of the plan that pays. `most_rows` is for how many rows of a step, padding included,
    the rounding of the sums is paid for; None: for none.
    """

    strategy: Strategy
    stddev: float
    noise: str
    l2_norm_bound: float | None
    participation: Participation | None = None
    plan: PlanTerms | None = None
    most_rows: int | None = None

    @property
    def sum_rounding(self) -> float:
        """What is paid for the rounding of sums, as a share of the deviation."""
        return 0.0 if self.most_rows is None else rounding_share(self.most_rows)

    def check_rows(self, rows: int) -> None:
        """Refuse a step of more rows than the rounding of its sum was paid for.

        `fit` asks before it pays, for its largest step.
        """
        if self.most_rows is not None and rows > self.most_rows:
            raise ValueError(
                f"a step may have {rows} rows, padding included, and the hardened noise"
                f" pays for the rounding of {self.most_rows}: give the plan a"
                " truncated_batch_size, `resources` smaller shapes, or take"
                " noise='threefry'. Nothing was drawn."
            )

    @property
    def hardened(self) -> bool:
        """Whether every step takes the lattice."""
        return self.noise == "lattice"

    @property
    def statement(self) -> str:
        """How the noise is drawn, for the privacy statement."""
        return HARDENED if self.hardened else NOT_HARDENED

    def sampler_distance(self, dimension: int) -> float:
        """Statistical distance of one step's sampler to the ideal law.

        For the lattice it is proven. The floats of threefry have no such bound: the
        declaration states that as an assumption, and nothing is charged for it.
        """
        if not self.hardened or self.l2_norm_bound is None:
            return 0.0
        return self.lattice(dimension).sampler_distance

    def lattice(self, dimension: int) -> Lattice:
        """The hardened mechanism for so many parameters."""
        if self.l2_norm_bound is None:
            raise ValueError("l2_norm_bound must be given for noise='lattice'")
        if dimension not in self._lattices:
            self._lattices[dimension] = self._lattice(dimension, self.l2_norm_bound)
        return self._lattices[dimension]

    @cached_property
    def _lattices(self) -> dict[int, Lattice]:
        return {}

    def _lattice(self, dimension: int, bound: float) -> Lattice:
        return Lattice(
            self.strategy,
            self.stddev,
            bound,
            dimension,
            self.participation,
            self.paid_as,
            None if self.plan is None else self.plan.draws,
            self.sum_rounding,
        )

    @cached_property
    def paid_as(self) -> str | None:
        """The fingerprint of the plan that pays for this noise, if there is one."""
        return None if self.plan is None else self.plan_fingerprint(self.plan)

    def plan_fingerprint(self, terms: PlanTerms) -> str:
        """The fingerprint of a plan with this noise and these terms."""
        return fingerprint_of(
            "training plan", terms.text, terms.draws, self.fingerprint
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that shapes the noise."""
        if isinstance(self.strategy, Buffered):
            values = np.append(self.strategy.decays, self.strategy.scales)
        elif isinstance(self.strategy, BandedToeplitz):
            values = np.asarray(self.strategy.coefs)
        else:
            values = self.strategy.matrix()
        head = (
            f"{type(self.strategy).__name__} {self.strategy.iterations}"
            f" {getattr(self.strategy, 'column_normalize', False)} {self.noise}"
            f" {self.stddev!r} {self.l2_norm_bound!r}"
        )
        if self.most_rows is not None:
            head += f" {self.most_rows}"
        data = head.encode() + np.ascontiguousarray(values).tobytes()
        return hashlib.sha256(data).hexdigest()


Shardings = tuple[NamedSharding, ...] | None
_OverMesh = Callable[[Mesh, Shardings], "Privatizer"]


class Privatizer(optax.GradientTransformationExtraArgs):
    """An optax transformation whose `update` turns a `ClippedSum` into a pytree."""

    spec: NoiseSpec
    _over_mesh: _OverMesh | None

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        spec: NoiseSpec,
        over_mesh: _OverMesh | None = None,
    ) -> Privatizer:
        """The two functions, what they add, and the same over a mesh."""
        transformation = super().__new__(cls, init, update)
        transformation.spec = spec
        transformation._over_mesh = over_mesh
        return transformation

    def on(self, mesh: Mesh, shardings: Shardings = None) -> Privatizer:
        """The same noise, each device of `mesh` drawing a share of it.

        The memory of correlated noise is sharded likewise: a device holds its share.
        `shardings` are those of the parameters, leaf by leaf, where they are cut.
        """
        return self if self._over_mesh is None else self._over_mesh(mesh, shardings)


def noise_stddev(
    strategy: Strategy, *, noise_multiplier: float, sensitivity: float
) -> float:
    """multiplier * sensitivity of the sums * largest column norm of C, rounded up.

    The columns are those of the matrix that is used: 1 after column normalisation.
    """
    validate.positive(noise_multiplier=noise_multiplier, sensitivity=sensitivity)
    column = strategy.sensitivity(Participation(max_participations=1)).value
    return product_up(product_up(noise_multiplier, sensitivity), column)


def gaussian_privatizer(stddev: float, iterations: int, **options: Any) -> Privatizer:
    """Independent noise at every step: DP-SGD."""
    return privatizer(BandedToeplitz([1.0], iterations), stddev=stddev, **options)


def privatizer(
    strategy: Strategy,
    *,
    stddev: float,
    noise: str = "threefry",
    l2_norm_bound: float | None = None,
    participation: Participation | None = None,
    plan: PlanTerms | None = None,
    most_rows: int | None = None,
) -> Privatizer:
    """The transformation that adds stddev C^-1 Z to the sums of a run.

    `stddev` is the deviation of Z (see `noise_stddev`). With `l2_norm_bound`, a sum
    clipped to a larger bound than the noise was made for is refused; the lattice needs
    it. `participation`, `plan` and `most_rows` are a plan's (`NoiseSpec`).
    `update(sum, state, params=None, *, key=None)` returns the noisy tree and the next
    state. `key` is that
    of the payment (`plan.key(payment)`), which is compared; inside `jit` it is an array
    of `step_keys`, which cannot be. Without a key the noise comes from the operating
    system and nothing is charged: the accounting is yours.

    >>> from demur.mechanisms.correlated import optimize_banded_toeplitz
    >>> from demur.training.clipping.types import ClippedSum
    >>> strategy = optimize_banded_toeplitz(iterations=100, bands=8)
    >>> add_noise = privatizer(strategy, stddev=1.5)
    >>> params = {"w": jnp.zeros(3)}
    >>> state = add_noise.init(params)
    >>> noisy, state = add_noise.update(ClippedSum(params, l2_norm_bound=1.0), state)
    >>> noisy["w"].shape, int(state.step)
    ((3,), 1)
    """
    validate.positive(stddev=stddev)
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy must be a Strategy; got {type(strategy).__name__}")
    if noise not in KINDS:
        raise ValueError(f"noise must be one of {KINDS}; got {noise!r}")
    if l2_norm_bound is not None:
        validate.positive(l2_norm_bound=l2_norm_bound)
    spec = NoiseSpec(
        strategy,
        float(stddev),
        noise,
        l2_norm_bound,
        participation,
        plan,
        most_rows if noise == "lattice" else None,
    )
    if noise == "lattice":
        return _transformation(
            spec,
            *lattice_noise(spec),
            # All coordinates in one row, however the parameters are cut.
            lambda mesh, _: _transformation(spec, *lattice_noise(spec, mesh)),
        )
    return _transformation(
        spec,
        *_threefry(spec, WholeLayout()),
        lambda mesh, shardings: _transformation(
            spec, *_threefry(spec, ShardedLayout(mesh, shardings))
        ),
    )


def _transformation(
    spec: NoiseSpec,
    init: Init,
    add: Add,
    over_mesh: _OverMesh | None = None,
) -> Privatizer:
    def update(
        updates: ClippedSum,
        state: NoiseState,
        params: PyTree | None = None,
        *,
        key: Any = None,
        **_: Any,
    ) -> tuple[PyTree, NoiseState]:
        del params
        paid = None if spec.most_rows is None else ROW_SHARE
        check_sum(updates, spec.l2_norm_bound, paid)
        given = key is not None and not isinstance(key, NoiseKey)
        keys = jnp.asarray(key) if given else None
        value = updates.value
        if spec.hardened:
            value = jax.tree.map(_single, value)
        value, state, keys = one_release((value, state, keys))
        check_place((value, state, keys), has_keys=given)
        check_step(state.step, spec.strategy.iterations)
        return add(value, updates.l2_norm_bound, state, keys if given else key)

    return Privatizer(init, update, spec, over_mesh)


@in_float64
def _single(leaf: Any) -> Any:
    """As float32, which `accumulation` counts."""
    return leaf.astype(jnp.float32)


# -- threefry --------------------------------------------------------------------------


def _threefry(spec: NoiseSpec, layout: WholeLayout | ShardedLayout) -> tuple[Init, Add]:
    strategy = spec.strategy
    recursion = recursion_of(strategy)

    def init(params: PyTree) -> NoiseState:
        step, memory = layout.empty(recursion, jax.tree.leaves(params))
        return NoiseState(step, memory)

    def add(
        value: PyTree, bound: float, state: NoiseState, key: Any
    ) -> tuple[PyTree, NoiseState]:
        leaves, treedef = jax.tree.flatten(value)
        tape = recording.active()
        if tape is not None and key is None:
            raise NotPrivate(
                "a recorded step takes keys of a seeded stream: without any, they come"
                " from the operating system, and are private. Nothing was drawn."
            )
        if isinstance(key, NoiseKey):
            key = _paid_keys(spec, key, state.step, len(leaves))
        keys = own_keys(len(leaves)) if key is None else jnp.asarray(key)
        if keys.shape != (len(leaves), 2) or keys.dtype != jnp.uint32:
            raise TypeError(
                f"key must be uint32 of shape ({len(leaves)}, 2), as step_keys makes"
                f" it; got {keys.dtype} of shape {keys.shape}"
            )
        noise, memory = recursion.advance(
            state.step,
            state.memory,
            keys_at(keys, state.step),
            layout.drawn_for(leaves),
        )
        # A step beyond the last has no row: NaN, not the last row again.
        scale = jnp.where(state.step < strategy.iterations, spec.stddev, math.nan)
        added = [
            share.astype(drawn.dtype) + (scale * drawn).astype(drawn.dtype)
            for share, drawn in zip(layout.shares(leaves), noise, strict=True)
        ]
        noisy = layout.whole(added, leaves)
        if tape is not None:
            noisy = recorded(tape, spec, bound, state.step, leaves, noisy)
        return jax.tree.unflatten(treedef, noisy), NoiseState(state.step + 1, memory)

    return init, add


def _paid_keys(spec: NoiseSpec, key: NoiseKey, step: Any, leaves: int) -> Any:
    """The keys of one step, from the key of a payment for this very plan."""
    if isinstance(step, jax.core.Tracer):
        raise TypeError(
            "the key of a payment cannot enter jit: take step_keys(key.stream("
            "'step noise', step), leaves) outside and pass the array. Nothing was"
            " drawn."
        )
    step = int(step)
    if spec.plan is not None:
        assert spec.paid_as is not None
        key = key.authorise(spec.paid_as, draw=step, runs=spec.plan.draws)
    return step_keys(key.stream(STEP_NOISE, step), leaves)
