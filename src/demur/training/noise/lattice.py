"""Lattice noise: the hardened Gaussian for every step of a run, correlated or not.

Floating-point noise on the sums would leak (see `mechanisms.gaussian`). Here step t
releases, exactly in float64,

    h_t = lattice(u_t) + integers,     u_t = sum_(j<b) C[t, t-j] g_(t-j),

the hardened mechanism on row t of C G, and returns

    y_t = (h_t - sum_(0<j<b) C[t, t-j] y_(t-j)) / C[t, t],

which is a function of released values alone: C^-1 applied to h, that is G plus noise
stddev C^-1 Z. Its rounding is post-processing.

**What the grid costs.** The sums are float32 and clamped to [-R, R] coordinate by
coordinate (a clamp moves no two values apart). u_t is then computed in float64 with an
error below (b + 2) 2^-53 |c|_1 R in each coordinate, |c|_1 the largest absolute row sum
of C, and R is chosen to make that a quarter of the grid g. Rounding to the grid moves
a coordinate by half of it. So h and its neighbour are at a distance of at most

    D + 2 (1/4 + 1/2) g sqrt(d n)   <=   D + 2 g sqrt(d n)

over all n steps and d parameters, D being the distance of C G itself. Every statement
a plan makes is about a D of at least the largest column norm times the clip bound
(one participation), so noise of deviation stddev (1 + rho),

    rho = 2 g sqrt(d n) / (largest column norm * clip bound),

pays for the grid under every accounting: movement and noise grow by one factor. The
grid is the finest at which rho is about 2^-20. Where more than `_MOST_OPEN` coordinates
of a step would be left to integer arithmetic at that (`open_fraction` grows with
the scale), it is coarser, up to a rho of 2^-10: 0.1% more noise.

**What the rounding of the sums costs.** Two sums that share all examples but one are at
a distance of at most (1 + r) times the clip bound, r = `sum_rounding`: a step in which
the example takes no part has equal sums. So D grows by 1 + r, and noise of deviation
stddev (1 + rho + r) pays for both.

**Where it is computed.** `advance` runs in JAX where the sums are, with integers from
`device_integers`, large networks in parts; `step` runs on the host. Both take the same
bits of the same key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from demur.core import recording, validate
from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import NoiseKey
from demur.core.rounding import product_up, quotient_up, sum_up
from demur.mechanisms.correlated import BandedToeplitz, Participation, Strategy
from demur.mechanisms.gaussian import Gaussian
from demur.mechanisms.sampling.rounded_gaussian import (
    open_fraction,
    sampler_distance,
)
from demur.training.clipping.rounding import in_float64
from demur.training.noise import device_integers

Values = NDArray[np.float64]
Floats = NDArray[np.float32]

_MOST_OPEN = 16.0
_LARGEST_RHO = 2.0**-10
_ROWS_OF_A_PART = 4096  # 2^22 coordinates: 32 MiB of cipher, about what a cache holds


@dataclass(frozen=True, eq=False)
class Lattice:
    """Hardened noise of deviation `stddev` under C, for `dimension` parameters.

    `paid_as` is the fingerprint of the plan that these steps belong to, and `runs` how
    many draws pay for it: a key that was paid for anything else is refused.
    `sum_rounding` is what the rounding of the sums adds to a movement, as a share of it
    (`clipping.accumulation`): the noise is larger by that share too.
    """

    strategy: Strategy
    stddev: float
    l2_norm_bound: float
    dimension: int
    participation: Participation | None = None
    paid_as: str | None = None
    runs: int | None = None
    sum_rounding: float = 0.0
    mechanism: Gaussian = field(init=False)
    reach: float = field(init=False)

    def __post_init__(self) -> None:
        validate.positive(stddev=self.stddev, l2_norm_bound=self.l2_norm_bound)
        validate.count(dimension=self.dimension)
        bands, steps = self.strategy.bands, self.strategy.iterations
        column = self.strategy.sensitivity(Participation(max_participations=1)).value
        moved = column / (1 + 1e-9) * self.l2_norm_bound
        # The grid's cost over the run is 2 g sqrt(d n): as much finer for each step.
        share = moved / (2.0 * math.sqrt(steps))
        mechanism, rho = self._paid_for(share, moved)
        while rho < _LARGEST_RHO / 2 and self._open(mechanism) > _MOST_OPEN:
            share *= 2.0
            mechanism, rho = self._paid_for(share, moved)
        object.__setattr__(self, "mechanism", mechanism)
        reach = (
            float(mechanism.grid) * 2.0**51 / ((bands + 2) * self._largest_row_sum())
        )
        # A power of two, so that it is a float32 too.
        object.__setattr__(self, "reach", math.ldexp(1.0, math.frexp(reach)[1] - 1))

    def _paid_for(self, share: float, moved: float) -> tuple[Gaussian, float]:
        """The mechanism whose noise pays for the grid of this `share`, and rho."""
        sigma = self.stddev
        while True:
            mechanism = Gaussian(
                sigma, {AddOrRemoveOne(): share}, dimension=self.dimension
            )
            root = math.sqrt(self.dimension) * math.sqrt(self.strategy.iterations)
            rho = quotient_up(2.0 * float(mechanism.grid) * root, moved) * (1 + 1e-9)
            needed = product_up(
                self.stddev, sum_up(1.0, sum_up(rho, self.sum_rounding))
            )
            # The grid follows sigma by powers of two at most: this settles at once.
            if needed <= sigma:
                return mechanism, rho
            sigma = needed

    def _open(self, mechanism: Gaussian) -> float:
        """How many coordinates of a step are left to integer arithmetic, about."""
        return self.dimension * open_fraction(
            float(mechanism.sigma) / float(mechanism.grid)
        )

    @property
    def scale(self) -> float:
        """The deviation of the noise in steps of the grid."""
        return float(self.mechanism.sigma / self.mechanism.grid)

    def _largest_row_sum(self) -> float:
        if isinstance(self.strategy, BandedToeplitz):
            coefs = np.abs(np.asarray(self.strategy.coefs))
            return float(coefs.sum() / self.strategy.output_scales().min())
        return float(np.abs(self.strategy.matrix()).sum(axis=1).max())

    @property
    def sampler_distance(self) -> float:
        """The statistical distance of one step's sampler to the ideal law."""
        sigma, grid = self.mechanism.sigma, self.mechanism.grid
        return float(sampler_distance(self.dimension, sigma / grid))

    def row(self, step: int) -> Values:
        """C[t, t], C[t, t-1], ...: as many as there are steps and bands."""
        reached = min(self.strategy.bands, step + 1)
        if isinstance(self.strategy, BandedToeplitz):
            columns = step - np.arange(reached)
            coefs = np.asarray(self.strategy.coefs)[:reached]
            return coefs / self.strategy.output_scales()[columns]
        return np.asarray(self.strategy.matrix()[step, step::-1][:reached])

    @cached_property
    def _rows(self) -> Values:
        """C[t, t-j] for every step t and band j that has one; zero elsewhere."""
        rows = np.zeros((self.strategy.iterations, self.strategy.bands))
        for step in range(len(rows)):
            row = self.row(step)
            rows[step, : len(row)] = row
        return rows

    def row_at(self, step: Any) -> Any:
        """C[t, t], C[t, t-1], ... in JAX, float64; NaN for a step past the last."""
        with jax.enable_x64(True):
            steps = self.strategy.iterations
            if self._is_toeplitz:
                # All later rows are the same.
                rows = jnp.asarray(self._rows[: self.strategy.bands])
            else:
                rows = jnp.asarray(self._rows)
            row = rows[jnp.minimum(step, len(rows) - 1)]
            return jnp.where(step < steps, row, jnp.nan)

    @property
    def _is_toeplitz(self) -> bool:
        strategy = self.strategy
        return isinstance(strategy, BandedToeplitz) and not strategy.column_normalize

    @in_float64
    def advance(
        self,
        step: Any,
        sums: Any,
        memory: Any,
        key: Any,
        *,
        sharding: Any = None,
        again: Any = None,
    ) -> tuple[Any, Any]:
        """`step` in JAX: noisy sums and memory, from the key's eight words.

        `sums` are flat and may be longer than `dimension`: rows of 1,024, filled up
        with zeros. With a `sharding` of their axis, each device draws its own part.
        `again` are rows that the host drew (`device_integers`).
        """
        row, past = self.row_at(step), memory.shape[1]
        grid = float(self.mechanism.grid)
        bounded = jnp.nan_to_num(sums, nan=0.0, posinf=jnp.inf, neginf=-jnp.inf)
        limit = np.float32(self.reach)
        bounded = jnp.clip(bounded, -limit, limit).astype(jnp.float32)
        rows = device_integers.rows_for(len(sums))
        alone = past == 0 and sharding is None and again is None
        if alone and rows > _ROWS_OF_A_PART:
            return self._in_parts(row[0], bounded, key), memory
        combined = row[0] * bounded.astype(jnp.float64)
        for j in range(1, past + 1):
            before = memory[0, jnp.mod(step - j, past)]
            combined = combined + row[j] * before.astype(jnp.float64)
        drawn = device_integers.integers(key, rows, self.scale, sharding, again)
        noise = drawn.reshape(-1)[: len(sums)]
        released = (jnp.rint(combined * (1.0 / grid)) + noise) * grid
        for j in range(1, past + 1):
            before = memory[1, jnp.mod(step - j, past)]
            released = released - row[j] * before.astype(jnp.float64)
        noisy = (released / row[0]).astype(jnp.float32)
        if past:
            slot = jnp.mod(step, past)
            memory = memory.at[0, slot].set(bounded).at[1, slot].set(noisy)
        return noisy, memory

    def _in_parts(self, first: Any, bounded: Any, key: Any) -> Any:
        """Noisy sums without bands, so many rows at a time.

        Cipher, quantile and sums of a part stay near the processor, and nothing is held
        in float64 for all coordinates. Open rows are put right at the end.
        """
        size, width = len(bounded), device_integers.ROW
        rows, part = device_integers.rows_for(size), _ROWS_OF_A_PART
        device_integers.check_rows(rows)
        grid = float(self.mechanism.grid)

        def noisy_of(sums: Any, integers: Any) -> Any:
            combined = first * sums.astype(jnp.float64)
            released = (jnp.rint(combined * (1.0 / grid)) + integers) * grid
            return (released / first).astype(jnp.float32)

        def add(state: tuple[Any, Any], start: Any, length: int) -> tuple[Any, Any]:
            """The coordinates of the rows from `start` on, so many."""
            count = device_integers.rows_for(length)
            numbers = jnp.asarray(start, jnp.uint32) + jax.lax.iota(jnp.uint32, count)
            integers, undecided = device_integers.rounded_rows(key, numbers, self.scale)
            sums = jax.lax.dynamic_slice(bounded, (start * width,), (length,))
            noisy = noisy_of(sums, integers.reshape(-1)[:length])
            update = jax.lax.dynamic_update_slice
            return (
                update(state[0], noisy, (start * width,)),
                update(state[1], jnp.any(undecided, axis=1), (start,)),
            )

        whole, rest = divmod(size, part * width)
        state = jnp.zeros(size, jnp.float32), jnp.zeros(rows, bool)
        state = jax.lax.fori_loop(
            0, whole, lambda i, state: add(state, i * part, part * width), state
        )
        if rest:
            state = add(state, whole * part, rest)

        def replaced(noisy: Any, some: Any, integers: Any) -> Any:
            place = some.astype(jnp.int64)[:, None] * width + jnp.arange(width)
            sums = bounded.at[place].get(mode="fill", fill_value=0)
            return noisy.at[place].set(noisy_of(sums, integers), mode="drop")

        noisy, opened = state
        return device_integers.settle_rows(key, noisy, opened, self.scale, replaced)

    def _released(self, step: int, combined: Values, key: NoiseKey) -> Values:
        tape = recording.active()
        if tape is None:
            return self._noisy(step, combined, key)
        declared = recording.Step(
            step=step,
            strategy=self.strategy,
            stddev=float(self.mechanism.sigma),
            bound=self.l2_norm_bound,
            participation=self.participation,
            mixed=True,
        )
        return tape.record_use(
            "a step with lattice noise",
            declared,
            (combined,),
            lambda: self._noisy(step, combined, key),
            key=key,
        )

    def authorised(
        self, key: NoiseKey, step: int, digest: Callable[[], str] | None = None
    ) -> NoiseKey:
        """The key of one step, if it was paid for; `digest` is that of the input."""
        if key.binding is None:
            return key
        paid_as = self.paid_as or self.mechanism.fingerprint
        return key.authorise(paid_as, digest, draw=step, runs=self.runs)

    def _noisy(self, step: int, combined: Values, key: NoiseKey) -> Values:
        """`combined` on the grid plus the step's noise, exact in float64."""
        key = self.authorised(key, step, lambda: self.mechanism.digest(combined))
        paid_as = self.paid_as or self.mechanism.fingerprint
        grid = self.mechanism.grid
        on_grid = np.rint(self.mechanism.check(combined) / grid) * grid
        return on_grid + self.mechanism.noise(key, draw=step, paid_as=paid_as)

    def step(
        self, step: int, sums: Floats, memory: Floats, key: NoiseKey
    ) -> tuple[Floats, Floats]:
        """The noisy sums of one step, and the memory for the next one.

        `memory[0]` holds the last exact sums (secret), `memory[1]` the last releases.
        """
        row = self.row(step)
        past = memory.shape[1]
        bounded = np.nan_to_num(sums, nan=0.0, posinf=np.inf, neginf=-np.inf)
        bounded = np.clip(bounded, -self.reach, self.reach).astype(np.float32)
        combined = row[0] * bounded.astype(np.float64)
        for j in range(1, len(row)):
            combined += row[j] * memory[0, (step - j) % past].astype(np.float64)
        released = self._released(step, combined, key)
        for j in range(1, len(row)):
            released -= row[j] * memory[1, (step - j) % past].astype(np.float64)
        released /= row[0]
        noisy = released.astype(np.float32)
        if past:
            memory = memory.copy()
            memory[0, step % past] = bounded
            memory[1, step % past] = noisy
        return noisy, memory
