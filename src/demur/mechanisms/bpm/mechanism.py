"""The Bounded Perturbation Mechanism (BPM): local reports of points of the unit cube.

A report x of a point v of the unit cube has the density

    f_v(x) = lambda_L exp(-epsilon min(|x - v|, L))    on [-L, 1 + L]^d.

**The guarantee.** |x - v| and |x - v'| differ by at most |v - v'|, and the exponent is
cut off at L: the log-likelihood ratio never exceeds epsilon min(|v - v'|, L). This is
epsilon-d_E (metric) privacy, and because two points of the cube are at most sqrt(d)
apart, pure epsilon min(L, sqrt(d)) local privacy as well. Rows are drawn from
independent streams and a report depends on its own point alone, so n reports cost one
person no more than one: the entry is charged once, at the unit of one record.

**Finite precision.** The law that is drawn is the continuous one of `table`, whose loss
is at most epsilon min(|v - v'|, L) by a proof about the numbers that are in the table,
at the exact v, rounded to a power-of-two grid afterwards. Float64 computes intervals
alone, and what they leave open is decided in integers (`sampler`, `exact`), so the
sampler has no statistical distance to declare: a ledger with delta = 0 takes it. As
everywhere, ChaCha20's bits stand for ideal ones.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.accounting import events
from demur.core.accounting.events import Pure
from demur.core.adjacency import ReplaceOne, Unit
from demur.core.cost import Fixed, PureOverBalls, Term
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration, Rebuilt, fingerprint_of
from demur.core.entropy import NoiseKey, Source
from demur.core.errors import NotPrivate
from demur.core.release import Release
from demur.core.rounding import down, product_up, up
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.bpm import constants
from demur.mechanisms.bpm.sampler import draw, grid_of, reach_of
from demur.mechanisms.bpm.table import make_table
from demur.mechanisms.bpm.thresholds import USUAL_COUNT, threshold_at_price
from demur.mechanisms.bpm.two_stage import two_stage
from demur.mechanisms.reports import (
    Digest,
    Reports,
    RowIds,
    Values,
    apply_rows,
    check_points,
    coordinates,
    declared,
    digest_of_points,
    paid_row_key,
    privatize_rows,
)
from demur.mechanisms.sampling.row_streams import RowStreams

_STREAM = "bpm rows"
# For `for_unit`: beyond these, numbers of its search have no float64.
_LEAST_PRICE, _MOST_PRICE, _MOST_RATE = 1e-9, 1e9, 1e100


@dataclass(frozen=True, init=False)
class BPM(Rebuilt):
    """Reports within [-L, 1 + L]^d that are epsilon min(distance, L)-private.

    `L="auto"` takes the smallest L at which the informative part has at least 99% of
    the mass (`alpha >= 0.99`): the best at a given epsilon. At a given *price* of a
    unit a smaller L may be better: `BPM.for_unit`. The paper advises the L that
    minimises the squared distance E|x - v|^2 instead; that criterion is degenerate:
    for epsilon^2 below about 6 (d + 1) it is smallest at L = 0, where reports are
    uniform and independent of their points, because the cube is then small. By the
    error that is left after removing the bias, larger L is better (for d >= 2 up to
    infinity), and from alpha = 0.99 on hardly so.

    `L=math.inf` is the multivariate Laplace mechanism. Its reports still lie on the
    grid, and one beyond `reach`, which has a probability below e^-600, is cut to that.

    >>> bpm = BPM(epsilon=2.0, L=0.3, dimension=2)
    >>> round(bpm.p_L, 4), round(bpm.alpha, 4)
    (0.1329, 0.0252)
    >>> round(BPM(4.0, "auto", 2).L, 2)
    2.23
    """

    epsilon: float
    L: float
    dimension: int

    def __init__(self, epsilon: float, L: float | str, dimension: int) -> None:
        """Check the parameters and choose L if asked to."""
        validate.positive(epsilon=epsilon)
        validate.count(dimension=dimension)
        if isinstance(L, str):
            if L != "auto":
                raise ValueError(f"L must be a number from 0 or 'auto'; got {L!r:.40}")
            L = constants.threshold_for(
                float(epsilon), int(dimension), constants.ALPHA_OF_AUTO
            )
        elif not isinstance(L, numbers.Real) or L != math.inf:
            validate.non_negative(L=L)
        object.__setattr__(self, "epsilon", float(epsilon))
        object.__setattr__(self, "L", float(L))
        object.__setattr__(self, "dimension", int(dimension))

    @classmethod
    def for_unit(
        cls,
        unit: Unit,
        *,
        price: float,
        dimension: int,
        n: int | None = None,
        space: str = "cube",
    ) -> BPM:
        """The rate and L whose reports tell most about clusters, at a price for `unit`.

        BPM costs epsilon min(R, L) where `unit` moves a point by at most R. In few
        dimensions a small L with a large epsilon is better by factors than L = "auto"
        at the same price, in many it is not (`thresholds`, which says how it is
        computed: from public numbers alone). `n` is about how many reports there will
        be (default: 10,000). A larger epsilon is a larger price at *smaller* units: the
        promise is the one for `unit`.

        >>> bpm = BPM.for_unit(ReplaceOne(), price=4.0, dimension=2)
        >>> bpm.event(ReplaceOne()).epsilon <= 4.0, bpm.L < 0.5 < 8.0 < bpm.epsilon
        (True, True)
        """
        validate.positive(price=price)
        validate.count(dimension=dimension)
        count = USUAL_COUNT if n is None else n
        validate.count(n=count)
        # At rate 1 the price of a unit is how far it moves its records together.
        moved = cls(1.0, math.inf, dimension).event(unit, space)
        assert isinstance(moved, Pure)
        records = unit.records_per_person
        each = float(price) / records
        if not _LEAST_PRICE <= each <= _MOST_PRICE:
            raise ValueError(
                f"price must lie between {_LEAST_PRICE:g} and {_MOST_PRICE:g} for each"
                f" record of a person; got {each:g}. Nothing was spent."
            )
        if not each <= _MOST_RATE * moved.epsilon / records:
            raise ValueError(
                f"the unit {unit} is too small for the price {price:g}: the rate would"
                f" be above {_MOST_RATE:g}. Nothing was spent."
            )
        epsilon, L = threshold_at_price(
            each, moved.epsilon / records, int(dimension), int(count)
        )
        mechanism = cls(epsilon, L, dimension)
        while not _within(mechanism.event(unit, space), price):
            mechanism = cls(down(mechanism.epsilon), L, dimension)
        return mechanism

    # -- closed forms, all public ------------------------------------------------

    @property
    def _constants(self) -> constants.Constants:
        return constants.constants(self.epsilon, self.L, self.dimension)

    @property
    def log_lambda_L(self) -> float:
        """log of the density at v itself."""
        return -self._constants.log_mu

    @property
    def lambda_L(self) -> float:
        """The density at v itself; 0 or infinity where it has no float64."""
        return constants.exp(self.log_lambda_L)

    @property
    def log_mu_L(self) -> float:
        """log of the integral of exp(-epsilon min(|x - v|, L)) over the cube."""
        return self._constants.log_mu

    @property
    def mu_L(self) -> float:
        """1 / lambda_L; 0 or infinity where it has no float64."""
        return constants.exp(self.log_mu_L)

    @property
    def log_p_L(self) -> float:
        """log of p_L."""
        return self._constants.log_p

    @property
    def p_L(self) -> float:
        """The probability that a report lies within L of its point."""
        return math.exp(self.log_p_L)

    @property
    def log_alpha(self) -> float:
        """log of alpha."""
        return self._constants.log_alpha

    @property
    def alpha(self) -> float:
        """The mass above the uniform floor: how much of a report is about its point."""
        return math.exp(self.log_alpha)

    @property
    def uniform_weight(self) -> float:
        """1 - alpha, without cancellation: the mass of the uniform part."""
        return math.exp(self._constants.log_w)

    @property
    def excess_square(self) -> float:
        """E|x - v|^2 of the part of a report that is about its point."""
        return self._constants.excess_square

    @property
    def reach(self) -> float:
        """How far outside [0, 1] a coordinate of a report can lie.

        It is L, unless that is huge: then it is where reports are cut, once in 10^260,
        as at L = infinity.
        """
        return reach_of(self.epsilon, self.L, self.dimension)

    @property
    def grid(self) -> float:
        """The power of two of which every coordinate of a report is a multiple."""
        return grid_of(self.epsilon, self.L, self.dimension)

    def log_density(self, v: ArrayLike, x: ArrayLike) -> Values:
        """log f_v(x), -infinity outside the cube; the last axis has the coordinates."""
        at, to = self._coordinates("v", v), self._coordinates("x", x)
        distance = np.linalg.norm(to - at, axis=-1)
        inside = ((to >= -self.L) & (to <= 1.0 + self.L)).all(axis=-1)
        log_f = self.log_lambda_L - self.epsilon * np.minimum(distance, self.L)
        return np.where(inside, log_f, -np.inf)

    def density(self, v: ArrayLike, x: ArrayLike) -> Values:
        """f_v(x) = lambda_L exp(-epsilon min(|x - v|, L)) on the cube."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_density(v, x))

    def mean(self, v: ArrayLike) -> Values:
        """E[x] = alpha v + (1 - alpha) c, with c the centre of the cube."""
        return self.alpha * self._coordinates("v", v) + self.uniform_weight * 0.5

    def mse(self, v: ArrayLike) -> Values:
        """E|x - v|^2."""
        return self._spread(v, self.uniform_weight)

    def unbiased(self, x: ArrayLike) -> Values:
        """(x - (1 - alpha) c) / alpha: its mean is v."""
        self._must_inform()
        centred = self._coordinates("x", x) - 0.5 * self.uniform_weight
        with np.errstate(over="ignore"):
            return np.asarray(centred / self.alpha)

    def unbiased_mse(self, v: ArrayLike) -> Values:
        """E|unbiased(x) - v|^2."""
        self._must_inform()
        with np.errstate(over="ignore"):
            spread = self._spread(v, self.alpha * self.uniform_weight) / self.alpha
            return np.asarray(spread / self.alpha)

    def _spread(self, v: ArrayLike, off_centre: float) -> Values:
        at = self._coordinates("v", v)
        spread = self.alpha * self._constants.excess_square if self.alpha else 0.0
        w, side = self.uniform_weight, 1.0 + 2.0 * self.L
        if w:  # a product: a power that has no float64 would be an OverflowError
            spread += w * self.dimension / 12.0 * side * side
        return spread + off_centre * ((at - 0.5) ** 2).sum(axis=-1)

    def _must_inform(self) -> None:
        if self.alpha == 0.0:
            raise ValueError(
                f"alpha is 0 at epsilon {self.epsilon:g}, L {self.L:g} in"
                f" {self.dimension} dimensions: reports say nothing about their points."
                " Choose a larger L, or 'auto'."
            )

    def _coordinates(self, name: str, values: ArrayLike) -> Values:
        return coordinates(name, values, self.dimension)

    # -- the guarantee -----------------------------------------------------------

    def declaration(self, space: str = "cube") -> Declaration:
        """Cost and fine print: over balls of `space`, and for any replacement."""
        validate.name(space=space)
        diameter = root_up(self.dimension)
        total = product_up(self.epsilon, min(self.L, diameter))
        if not math.isfinite(total):
            raise ValueError(
                f"epsilon must be smaller: {self.epsilon:g} times"
                f" {min(self.L, diameter):g} is infinite, and no guarantee."
                " Nothing was spent."
            )
        terms: list[Term] = [Fixed(ReplaceOne(), Pure(total))]
        moved = "nothing, whatever the point"
        if self.L:
            cap = self.L if math.isfinite(self.L) else None
            curve = PiecewiseLinear.linear(1.0, cap=cap)
            terms.insert(0, PureOverBalls(space, curve, self.epsilon))
            cut = f"min(r, {self.L:g})" if cap else "r"
            moved = (
                f"pure epsilon {self.epsilon:g} * {cut} for a move by r, and"
                f" {total:.4g} for any replacement"
            )
        name = (
            f"BPM(epsilon={self.epsilon:g}, L={self.L:g}) in {self.dimension}"
            f" dimensions, one report for each record ({moved})"
        )
        return declared(name, tuple(terms), self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        kind = f"bpm {type(self).__qualname__}"
        return fingerprint_of(kind, self.epsilon, self.L, self.dimension)

    def event(self, unit: Unit, space: str = "cube") -> events.Event:
        """The event at `unit`: pure epsilon min(r, L), or epsilon min(L, sqrt d)."""
        return self.declaration(space).cost.at(unit)

    # -- reports -----------------------------------------------------------------

    check = check_points
    """The points as a float64 matrix in the unit cube, or a clear error."""
    digest = digest_of_points
    """What an entry that pays for these rows is bound to, whatever their order."""

    def apply(
        self,
        points: ArrayLike,
        key: NoiseKey,
        row_ids: ArrayLike | None = None,
        *,
        space: str = "cube",
    ) -> Values:
        """One report for each row, a function of (entry key, row id, point) alone.

        `key` is that of the payment: one that was paid for other parameters or
        for other rows is refused. Any part of the rows, in any order, in any thread or
        process, gives the same reports under `key.part(bpm.digest(points, ids))`.
        Prefer `privatize`, which charges first.
        """
        return apply_rows(self, points, key, row_ids, space=space)

    def row_key(self, key: NoiseKey, digest: Digest = None) -> bytes:
        """The key of the rows' streams, which a worker gets, not the entry's key."""
        return paid_row_key(self, key, digest, _STREAM)

    def draw_rows(self, matrix: Values, ids: RowIds, streams: RowStreams) -> Values:
        """Reports of checked points from given streams; nothing is charged here."""
        table = make_table(self.epsilon, self.L, self.dimension)
        reports = draw(matrix, ids, table, self.grid, streams).astype(np.float64)
        reports *= self.grid
        return reports

    def apply_two_stage(self, points: ArrayLike, key: NoiseKey) -> Values:
        """The paper's Algorithms 2 to 4 in floating point, to compare with.

        Only under a seeded key, whose results are stamped NOT PRIVATE.
        """
        if key.private:
            raise NotPrivate(
                "floating-point reports reveal the point under them, and this sampler"
                " is for tests with a Seeded source alone. Use apply. Nothing was"
                " released."
            )
        seed = int.from_bytes(key.stream(_STREAM).read(16), "little")
        rng = np.random.default_rng(seed)
        return two_stage(self.check(points), self.epsilon, self.L, rng)

    def privatize(
        self,
        points: ArrayLike,
        *,
        ledger: Ledger | None = None,
        row_ids: ArrayLike | None = None,
        label: str = "local reports",
        space: str = "cube",
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> Release[Reports]:
        """Local reports of the points, and the entry that paid for them.

        It checks, charges, draws and commits. `row_ids` are whole numbers below 2^64,
        all different (default: the rows' positions). With an `idempotency_key` a task
        that died before its commit is repeated with the very same reports, in any order
        of rows, and pays once; the same key with other data is refused. Without a
        ledger (None) the release is recorded in a ledger of its own, in memory, and its
        statement says so.

        >>> from demur.core.adjacency import Ball
        >>> from demur.ledger import Budget, Ledger
        >>> ledger = Ledger(Budget(epsilon=2.0), unit=Ball(0.2, space="cube"),
        ...     filter="pure")
        >>> bpm = BPM(epsilon=8.0, L=0.3, dimension=2)
        >>> reports = bpm.privatize([[0.1, 0.9], [0.5, 0.5]], ledger=ledger)
        >>> reports.value.values.shape, round(ledger.epsilon(), 6)
        ((2, 2), 1.6)
        """
        return privatize_rows(
            self,
            points,
            ledger=ledger,
            row_ids=row_ids,
            label=label,
            space=space,
            idempotency_key=idempotency_key,
            source=source,
        )

    def ledger_for(self, ledger: Ledger | None, space: str = "cube") -> Ledger:
        """The ledger given, or one in memory that this release fills.

        Whatever cannot be drawn is refused here, before it is paid for.
        """
        make_table(self.epsilon, self.L, self.dimension)
        return ledger_for(ledger, self.declaration(space), unit=ReplaceOne())


def _within(event: events.Event, price: float) -> bool:
    return isinstance(event, Pure) and event.epsilon <= price


def root_up(n: int) -> float:
    """The square root, rounded up only where it has to be rounded."""
    root = math.sqrt(n)
    return root if Fraction(root) ** 2 >= n else up(root)
