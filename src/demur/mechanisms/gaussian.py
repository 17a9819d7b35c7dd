"""The Gaussian mechanism, with noise on a grid, so that its bits leak nothing.

Added in floating point, Gaussian noise reveals the value under it: near x only some
floats are of the form fl(x + n), and an observer who knows two candidates rules the
wrong one out almost always. Here the value is rounded to a grid and integers are added:

    x -> k = round(x / g),  R = round(sigma N / g),  release g (k + R),

g a power of two, all of it exact in float64.

**Why the accounting holds.** k is an integer, so k + round(y) = round(k + y) for every
real y (away from ties, which have probability 0). Hence the release is
g round((g k + sigma N) / g): a function of g k + sigma N, the continuous Gaussian
mechanism on the rounded value. Post-processing costs nothing, so the release is exactly
as private as that mechanism, at every unit and under every accountant. Rounding moves
each coordinate by at most g/2, so two values at distance D are at distance at most
D + g sqrt(d) after it: that is the sensitivity which is charged.

**What is left.** The integers come from `rounded_gaussian`, whose statistical distance
eta to the ideal law is below d 2^-908; the declaration carries it, and every reading
adds (1 + e^epsilon) eta to delta.

**Timing.** The fast path has no branch that depends on value or noise; coordinates
whose rounding 64 bits leave open (about 5e-10 of them at scale 2^26) take integers.
Which ones those are is a function of the noise bits alone, drawn independently of the
value, so the time of a release can tell something about its noise's last bits and
nothing about the value. Only whole vectors are released.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import accounting, recording, validate
from demur.core.accounting import events
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.accounting.samplers import LARGEST_CALIBRATED
from demur.core.adjacency import Unit
from demur.core.bounds import Bound, real_array
from demur.core.declaration import Declaration, Rebuilt, fingerprint_of
from demur.core.digest import digest_of_array, unchangeable
from demur.core.entropy import NoiseKey, Source
from demur.core.errors import NotPrivate
from demur.core.release import Release
from demur.core.rounding import quotient_up, sum_up, up
from demur.core.sensitivity import Sensitivity, Table
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.sampling.rounded_gaussian import (
    LARGEST_SCALE,
    rounded_gaussian,
    sampler_distance,
)

Values: TypeAlias = NDArray[np.float64]

# The grid aims at a cost of 2^-20 of the sensitivity and never exceeds 1e-4 of it.
_AIMED_COST = 2.0**-20
_LARGEST_COST = 1e-4
_COARSEST_SCALE = 2.0**8  # sigma / grid is at least this, whatever the sensitivity
_LARGEST_INDEX = 2.0**52  # |k| + |R| < 2^52 + 2^50 < 2^53 is exact in float64


@dataclass(frozen=True, eq=False)
class Gaussian(Rebuilt):
    """Gaussian noise of deviation `sigma` on a vector of `dimension` coordinates.

    `sensitivity` says how far the vector moves at each unit (see `Sensitivity`). With
    one sigma for each coordinate, it is measured in units of sigma, coordinate by
    coordinate: the largest norm of (x - x') / sigma, which is mu itself.

    >>> from demur.core.adjacency import AddOrRemoveOne
    >>> from demur.ledger import Budget, Ledger
    >>> ledger = Ledger(Budget(epsilon=1.0, delta=1e-6), unit=AddOrRemoveOne())
    >>> mechanism = Gaussian.calibrated(
    ...     epsilon=1.0, delta=1e-6, sensitivity={AddOrRemoveOne(): 1.0},
    ...     unit=AddOrRemoveOne(), dimension=3)
    >>> round(mechanism.sigma, 3)
    4.225
    >>> private = mechanism.release([10.0, 20.0, 30.0], ledger=ledger, label="counts")
    >>> private.value.shape
    (3,)
    """

    sigma: float | Values
    sensitivity: Sensitivity | Table
    dimension: int = 1
    name: str = "a Gaussian mechanism"
    bounds: tuple[Bound, ...] = ()
    unprotected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    grid: float | Values = field(init=False)

    def __post_init__(self) -> None:
        validate.count(dimension=self.dimension)
        object.__setattr__(self, "dimension", int(self.dimension))
        table = self.sensitivity
        if not isinstance(table, Sensitivity):
            table = Sensitivity.of(table)
        object.__setattr__(self, "sensitivity", table)
        if isinstance(self.sigma, np.ndarray) and self.sigma.ndim:
            sigma = np.array(self.sigma, dtype=np.float64)
            if sigma.shape != (self.dimension,):
                raise ValueError(
                    f"sigma must be one number or one for each of {self.dimension}"
                    f" coordinates; got shape {sigma.shape}"
                )
            if not (np.isfinite(sigma).all() and (sigma > 0).all()):
                raise ValueError("sigma must be positive and finite everywhere")
            relative = _grid(1.0, table.smallest(), self.dimension)
            # Powers of two, each at most relative * sigma.
            grids = relative * _power_of_two_below(sigma)
            grid: float | Values = unchangeable(grids)
            object.__setattr__(self, "sigma", unchangeable(sigma))
        else:
            validate.positive(sigma=self.sigma)
            object.__setattr__(self, "sigma", float(self.sigma))
            grid = _grid(float(self.sigma), table.smallest(), self.dimension)
        object.__setattr__(self, "grid", grid)

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        sensitivity: Sensitivity | Table,
        unit: Unit,
        dimension: int = 1,
        name: str = "a Gaussian mechanism",
        bounds: tuple[Bound, ...] = (),
        unprotected: tuple[str, ...] = (),
        assumptions: tuple[str, ...] = (),
    ) -> Gaussian:
        """The least noise that is (epsilon, delta)-private at `unit`, all costs in.

        The grid's cost and the sampler's share of delta are included, so that one such
        release fits a budget of exactly (epsilon, delta). An epsilon above 400 gets the
        noise of 400, which is private at every larger epsilon too: its sampler can be
        paid for, and neither protects anybody.
        """
        validate.count(dimension=dimension)
        table = (
            sensitivity
            if isinstance(sensitivity, Sensitivity)
            else Sensitivity.of(sensitivity)
        )
        validate.positive(epsilon=epsilon)
        mu = gaussian_mu(min(epsilon, LARGEST_CALIBRATED), ideal_delta(delta))
        moved = table.at(unit)
        sigma = quotient_up(moved, mu)
        # The grid depends on sigma by a power of two alone: one more round settles it.
        for _ in range(2):
            slack = _slack(_grid(sigma, table.smallest(), dimension), dimension)
            sigma = quotient_up(sum_up(moved, slack), mu)
        # What is declared is rounded on its own: an ulp or two more, until it fits.
        while True:
            mechanism = cls(
                sigma, table, dimension, name, bounds, unprotected, assumptions
            )
            event = mechanism.event(unit)
            assert isinstance(event, events.GaussianEvent)
            if accounting.inverse_square_up(event.multiplier) <= Fraction(mu) ** 2:
                return mechanism
            sigma = up(sigma)

    def event(self, unit: Unit) -> events.Event:
        """The event at `unit`: Gaussian(sigma / sensitivity), the grid's cost in."""
        return self.declaration().cost.at(unit)

    def declaration(self) -> Declaration:
        """Cost, sampler distance and fine print, for the ledger."""
        assert isinstance(self.sensitivity, Sensitivity)
        if isinstance(self.sigma, np.ndarray):
            slack = up(float(np.linalg.norm(self.grid / self.sigma)) * (1 + 1e-12))
            sigma = 1.0
        else:
            slack, sigma = _slack(float(self.grid), self.dimension), self.sigma
        cost = self.sensitivity.plus(slack).cost(sigma)
        return Declaration(
            name=self.name,
            cost=cost,
            sampler_distance=sampler_distance(self.dimension, self._scale()),
            bounds=self.bounds,
            unprotected=self.unprotected,
            assumptions=self.assumptions,
            fingerprint=fingerprint_of(
                f"gaussian {type(self).__qualname__}",
                np.append(self.sigma, self.grid),
                self.dimension,
                cost.to_json(),
            ),
        )

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        return self.declaration().fingerprint

    def digest(self, value: ArrayLike) -> str:
        """What an entry that pays for `value` is bound to."""
        return digest_of_array(self.check(value))

    def check(self, value: ArrayLike) -> Values:
        """The value as a float64 vector that can be released, or a clear error.

        `release` asks before it charges, so that nothing is spent when it raises.
        """
        vector = real_array("value", value)
        if vector.size != self.dimension:
            raise ValueError(
                f"value must have {self.dimension} coordinates, as declared; got"
                f" {vector.size}. Nothing was drawn."
            )
        if not np.isfinite(vector).all():
            raise ValueError("value must be finite; it holds NaN or infinity")
        self._refuse_large(np.abs(vector.reshape(-1)))
        return vector

    def check_bound(self, largest: float | Values) -> None:
        """Refuse where coordinates of size `largest`, a public bound, are too large.

        An engine asks before it charges for values that do not exist yet: no value
        inside the bound is then refused, so that a refusal tells nothing about them.
        """
        self._refuse_large(np.abs(real_array("largest", largest)).reshape(-1))

    def _refuse_large(self, sizes: Values) -> None:
        with np.errstate(over="ignore"):
            largest = float(np.max(sizes / self.grid))
        if not largest < _LARGEST_INDEX:
            raise ValueError(
                "value is too large for its noise: a coordinate exceeds 2^52 grid"
                f" steps (grid {np.max(self.grid):g}), where float64 stops being exact."
                " Centre or rescale it, or bound it where it is computed. Nothing was"
                " drawn."
            )

    def apply(
        self,
        value: ArrayLike,
        key: NoiseKey,
        *,
        draw: int = 0,
        paid_as: str | None = None,
    ) -> Values:
        """The noisy value: `value` on the grid plus integer noise, exact in float64.

        `key` is that of the payment (`ledger.paid(...)`); one that was paid for another
        mechanism, other parameters or another value is refused. `draw` is the number of
        the draw where one entry pays for several: equal numbers are equal noise.
        `paid_as` is the fingerprint of a larger mechanism that was paid for and that
        draws by this one. Prefer `release`, which charges first.
        """

        def drawn() -> Values:
            vector = self.check(value)
            authorised = key.authorise(
                paid_as or self.fingerprint,
                lambda: digest_of_array(vector),
                draw=draw,
            )
            return self._noisy(vector, authorised, draw)

        return self._watched(value, key, drawn)

    def noise(
        self, key: NoiseKey, *, draw: int = 0, paid_as: str | None = None
    ) -> Values:
        """The noise alone, for an engine that has paid for a family of mechanisms.

        `key` is what `authorise` gave for that family (`paid_as`) and this draw.
        """
        key.check_authorised(paid_as or self.fingerprint, draw)
        zeros = np.zeros(self.dimension)
        return self._watched(zeros, key, lambda: self._noisy(zeros, key, draw))

    def _watched(
        self, value: ArrayLike, key: NoiseKey, drawn: Callable[[], Values]
    ) -> Values:
        tape = recording.active()
        if tape is None:
            return drawn()
        assert isinstance(self.sensitivity, Sensitivity)
        return tape.record_use(
            self.name,
            recording.Shift(self.sensitivity, self.sigma),
            (np.asarray(value, dtype=np.float64),),
            drawn,
            key=key,
        )

    def _noisy(self, vector: Values, key: NoiseKey, draw: int) -> Values:
        index = np.rint(vector.reshape(-1) / self.grid).astype(np.int64)
        noise = rounded_gaussian(
            self.dimension,
            self._scale(),
            key.stream("gaussian", draw),
            lambda i: key.stream(f"gaussian refine {draw}", i),
        )
        released: Values = (index + noise).astype(np.float64) * self.grid
        return released.reshape(vector.shape)

    def apply_plain_float(self, value: ArrayLike, key: NoiseKey) -> Values:
        """Textbook floating-point noise, for tests that show what is wrong with it.

        Only under a seeded key, whose results are stamped NOT PRIVATE.
        """
        if key.private:
            raise NotPrivate(
                "floating-point noise reveals the value under it and is for tests with"
                " a Seeded source alone. Use apply. Nothing was released."
            )
        vector = self.check(value)
        seed = int.from_bytes(key.stream("gaussian").read(16), "little")
        noise = np.random.default_rng(seed).normal(size=self.dimension) * self.sigma
        plain: Values = vector + noise.reshape(vector.shape)
        return plain

    def release(
        self,
        value: ArrayLike,
        *,
        ledger: Ledger | None = None,
        label: str = "a noisy value",
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> Release[Values]:
        """The noisy value and the entry that paid: check, charge, draw, commit.

        A declined charge draws nothing. With an `idempotency_key` a task that died
        before its commit is repeated with the very same noise, and pays once. Without
        a ledger (None) the release is recorded in memory only, and its statement says
        so.
        """
        vector = self.check(value)
        with ledger_for(ledger, self.declaration()).paid(
            self,
            label=label,
            digest=digest_of_array(vector),
            idempotency_key=idempotency_key,
            source=source,
        ) as payment:
            released = self.apply(vector, payment.key)
            payment.released(digest_of_array(released))
        return Release(released, payment.entry)

    def _scale(self) -> float | Values:
        """sigma / grid; exact, the grid being a power of two."""
        return self.sigma / self.grid


def _slack(grid: float, dimension: int) -> float:
    """What rounding to the grid adds to any distance: grid * sqrt(dimension)."""
    return up(grid * math.sqrt(dimension), 2)


def _power_of_two_below(values: Values) -> Values:
    """The largest power of two that is at most each value."""
    _, exponent = np.frexp(values)
    return np.ldexp(1.0, exponent - 1)


def _grid(sigma: float, sensitivity: float, dimension: int) -> float:
    """A power of two that costs little and keeps everything exact.

    As fine as costs 2^-20 of the sensitivity, unless the noise is so large that
    sigma / grid would pass 2^44; then as fine as that allows, up to a cost of 1e-4.
    """
    root = math.sqrt(dimension)
    wanted = min(_AIMED_COST * sensitivity / root, sigma / _COARSEST_SCALE)
    # One binade above sigma / 2^44, so that the scale stays inside after rounding.
    floor = 2.0 * sigma / LARGEST_SCALE
    chosen = max(wanted, floor)
    grid = math.ldexp(1.0, math.frexp(chosen)[1] - 1)
    if not 0.0 < grid < math.inf or grid * root > _LARGEST_COST * sensitivity:
        raise ValueError(
            f"sigma is too large for this sensitivity: sigma / sensitivity ="
            f" {sigma / sensitivity:.3g} in {dimension} dimensions leaves no grid that"
            " costs at most 1e-4 of the sensitivity. Use less noise, or release fewer"
            " coordinates at once."
        )
    return grid
