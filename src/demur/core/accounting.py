"""Prices: how much an event costs. The one door to dp_accounting.

`price(event, delta)` is an upper bound on the smallest epsilon for which the event is
(epsilon, delta)-indistinguishable; `delta_of(event, epsilon)` the other way round.
Several upper bounds are computed and the smallest is returned (each is true of the
same fixed event, so taking the least is free; an *adaptive* filter may not do that,
see `demur.ledger.filters`):

1. closed form: Gaussians compose to one Gaussian with mu^2 = sum 1/z^2 (exactly);
   pure epsilons add up; (epsilon, delta) pairs add up in both.
2. Renyi: D_a of everything at integer orders, then the conversion of Canonne, Kamath
   and Steinke 2020 (Prop. 12): eps = D_a + log1p(-1/a) - log(a delta) / (a - 1).
3. privacy loss distributions (dp_accounting's, pessimistic connect-the-dots).

Traps of dp_accounting 0.6.0 that this module keeps out, each with a test:

- a NaN event or delta prices at 0 in RDP: our events refuse NaN when they are made;
- `compose(event, count)` ignores `count` for randomised response: not used here,
  pure events enter as `from_privacy_parameters(...).self_compose(count)`;
- under REPLACE_ONE the PLD halves a Gaussian's multiplier and the RDP does not: plain
  Gaussians are always handed over under ADD_OR_REMOVE_ONE, the pair N(0,z^2), N(1,z^2);
- a failed compose is half applied: every call builds a fresh distribution;
- `from_named_tuple` imports what the data names: never used;
- PLD tails are cut at mass 1e-15, so a delta near that is answered by 1 and 2 alone;
- a PLD grid for a large epsilon takes minutes: above 100 it is not built.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from demur.core import events, gaussian, renyi, sampled_gaussian, validate
from demur.core.errors import NotPriced
from demur.core.events import (
    ApproxDP,
    Atom,
    Composed,
    Event,
    Gaussian,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    Sampled,
    TruncatedPoissonGaussian,
)
from demur.core.profile import Profile
from demur.core.rounding import (
    down,
    float_down,
    float_up,
    quotient_up,
    sum_up,
    up,
)

if TYPE_CHECKING:
    import dp_accounting

_GRID_EXPONENT = 13  # Privacy losses on a grid of 2^-13, about 1e-4.
_ROUGH_POINTS = 2**16  # Points of a rough distribution, at the least.
_KEPT_DOTS = 2**14  # Dots of a profile that is kept with an entry.
_MOST_POINTS = 2**17  # Points of the grid of a whole book's distribution.
_MOST_BLOCKS = 2**18  # Equal pure events that are still composed on a grid.
_MOST_STEPS = 2**26  # Equal sampled steps, likewise.
_SMALLEST_SAMPLE = 1e-12  # Rarer samples are priced without a grid.
# The FFT of a composition leaves about 6e-17 in delta for each step, to either side.
_FFT_ERROR = 2e-16
PLD_SMALLEST_DELTA = 1e-11  # PLD tails are cut at 1e-15; stay far above.
PLD_LARGEST_EPSILON = 100.0  # Above, a grid takes minutes and nobody is protected.


@dataclass(frozen=True)
class _Total:
    """A multiset of atoms, sorted by what is known about each kind."""

    mu_squared: float
    pure: Mapping[float, int]
    approx: Mapping[tuple[float, float], int]
    sampled: Mapping[Sampled, int]

    @property
    def block_epsilon(self) -> Fraction:
        return sum((Fraction(e) * n for (e, _), n in self.approx.items()), Fraction(0))

    @property
    def epsilon_sum(self) -> Fraction:
        pure = (Fraction(e) * n for e, n in self.pure.items())
        return sum(pure, self.block_epsilon)

    @property
    def delta_sum(self) -> Fraction:
        return sum((Fraction(d) * n for (_, d), n in self.approx.items()), Fraction(0))


def inverse_square_up(multiplier: float) -> Fraction:
    """mu^2 = 1 / multiplier^2 as a dyadic fraction that is not below it."""
    mu = quotient_up(1.0, multiplier)
    return Fraction(2) ** 4096 if math.isinf(mu) else Fraction(mu) ** 2


def _total(event: Event) -> _Total:
    mu_squared = Fraction(0)
    pure: dict[float, int] = {}
    approx: dict[tuple[float, float], int] = {}
    sampled: dict[Sampled, int] = {}
    for atom, count in events.atoms(event).items():
        match atom:
            case Gaussian(multiplier=z):
                mu_squared += inverse_square_up(z) * count
            case Pure(epsilon=0.0):
                pass
            case Pure(epsilon=eps):
                pure[eps] = pure.get(eps, 0) + count
            case ApproxDP(epsilon=eps, delta=0.0):
                pure[eps] = pure.get(eps, 0) + count
            case ApproxDP(epsilon=eps, delta=d):
                approx[eps, d] = approx.get((eps, d), 0) + count
            case PoissonGaussian(probability=0.0):
                pass
            case TruncatedPoissonGaussian(probability=0.0):
                pass
            case PoissonGaussian(probability=1.0):
                mu_squared += inverse_square_up(atom.whole_multiplier) * count
            case PoissonGaussian() | TruncatedPoissonGaussian():
                sampled[atom] = sampled.get(atom, 0) + count
    return _Total(float_up(mu_squared), pure, approx, sampled)


def _as_event(work: Event | Iterable[Event]) -> Event:
    if isinstance(work, Iterable):
        return events.compose(work)
    return work


def price(
    work: Event | Iterable[Event],
    delta: float,
    *,
    profiles: Mapping[Event, Profile] | None = None,
) -> float:
    """The smallest epsilon, rounded up, at which `work` is (epsilon, delta)-private.

    `profiles` may hold privacy profiles of sampled events computed before (an entry of
    the book keeps its own), so that a reading needs no new distribution.

    >>> round(price(Gaussian(1.0), delta=1e-6), 4)
    4.8866
    >>> price([Pure(0.5), Pure(0.25)], delta=0.0)
    0.75
    """
    validate.probability(delta=delta)
    if delta >= 1.0:
        return 0.0
    total = _total(_as_event(work))
    simple = _closed_form(total, delta)
    if not total.sampled and (not total.mu_squared or not (total.pure or total.approx)):
        many = sum(total.pure.values()) + sum(total.approx.values())
        if many <= 1 or delta == 0.0:
            return simple
    best = min(simple, _renyi_epsilon(total, delta))
    if delta < PLD_SMALLEST_DELTA or _too_wide(total, delta):
        return best
    return min(best, _Mix(total, profiles or {}).epsilon(delta))


def delta_of(
    work: Event | Iterable[Event],
    epsilon: float,
    *,
    profiles: Mapping[Event, Profile] | None = None,
) -> float:
    """The smallest delta, rounded up, at which `work` is (epsilon, delta)-private.

    >>> delta_of(Pure(0.5), epsilon=0.5)
    0.0
    """
    validate.non_negative(epsilon=epsilon)
    total = _total(_as_event(work))
    simple = _closed_form_delta(total, epsilon)
    if not total.sampled and not (total.pure or total.approx):
        return simple
    if simple == 0.0:
        return simple
    best = min(simple, _renyi_delta(total, epsilon))
    if best < PLD_SMALLEST_DELTA or _too_wide(total, 1e-6):
        return best
    found = _Mix(total, profiles or {}).delta(epsilon)
    return min(best, found)


def _too_wide(total: _Total, delta: float) -> bool:
    """Whether no grid is built: epsilon above 100 (about), or nothing a grid can hold.

    Events without a Renyi divergence are judged by their zero-out twin: a record that
    contributes nothing is one of those a record may be replaced by, so the twin costs
    no more.
    """
    blocks = [*total.pure.values(), *total.approx.values()]
    if max(blocks, default=0) > _MOST_BLOCKS or any(
        not (_SMALLEST_SAMPLE <= event.probability and 1e-3 <= event.multiplier <= 1e6)
        or count > _MOST_STEPS
        for event, count in total.sampled.items()
    ):
        return True
    twins: dict[Sampled, int] = {}
    for event, count in total.sampled.items():
        twin = PoissonGaussian(event.probability, event.multiplier)
        twins[twin] = twins.get(twin, 0) + count
    rough = _renyi_epsilon(replace(total, sampled=twins), delta)
    return rough > PLD_LARGEST_EPSILON


def _closed_form(total: _Total, delta: float) -> float:
    left = Fraction(delta) - total.delta_sum
    mu_squared = total.mu_squared + _unamplified(total)
    if left < 0 or (left == 0 and mu_squared) or math.isinf(mu_squared):
        return math.inf
    if not mu_squared:
        return float_up(total.epsilon_sum)
    if not 0.0 < float_down(left):
        return math.inf
    alone = gaussian.gaussian_epsilon(up(math.sqrt(mu_squared)), float_down(left))
    return sum_up(alone, float_up(total.epsilon_sum))


def _closed_form_delta(total: _Total, epsilon: float) -> float:
    left = Fraction(epsilon) - total.epsilon_sum
    mu_squared = total.mu_squared + _unamplified(total)
    if left < 0 or math.isinf(mu_squared):
        return 1.0
    if not mu_squared:
        return min(1.0, float_up(total.delta_sum))
    alone = gaussian.gaussian_delta(up(math.sqrt(mu_squared)), float_down(left))
    return min(1.0, sum_up(alone, float_up(total.delta_sum)))


def _unamplified(total: _Total) -> float:
    """mu^2 of the sampled events as if every record took part: always a bound.

    Given which other records are drawn, a sampled step is a mixture of Gaussian pairs
    whose shift is at most the sensitivity of the whole sum: C for a record that
    appears or vanishes, 2C for one that is replaced, and 2C where a full batch lets
    the record push another one out.
    """
    mu_squared = Fraction(0)
    for event, count in total.sampled.items():
        whole = (
            isinstance(event, PoissonGaussian)
            and event.neighbours is not Neighbours.REPLACE_ONE
        )
        z = event.multiplier if whole else down(event.multiplier / 2)
        mu_squared += inverse_square_up(z) * count
    return float_up(mu_squared)


def _renyi_of_total(total: _Total) -> NDArray[np.float64] | None:
    with np.errstate(over="ignore", invalid="ignore"):
        divergence = renyi.ORDERS / 2.0 * total.mu_squared * (1 + 1e-12)
        rest: dict[Atom, int] = {Pure(eps): n for eps, n in total.pure.items() if eps}
        for event, count in [*rest.items(), *total.sampled.items()]:
            one = renyi.divergences(event, renyi.ORDERS)
            if one is None:
                return None
            divergence = divergence + one * float_up(Fraction(count))
    return np.nan_to_num(divergence, nan=math.inf, posinf=math.inf)


def _renyi_epsilon(total: _Total, delta: float) -> float:
    left = float_down(max(Fraction(delta) - total.delta_sum, Fraction(0)))
    divergence = _renyi_of_total(total)
    if left <= 0 or divergence is None:
        return math.inf
    found = min(
        (
            renyi.to_epsilon(float(d), int(a), left)
            for d, a in zip(divergence, renyi.ORDERS, strict=True)
            if math.isfinite(d)
        ),
        default=math.inf,
    )
    return found if math.isinf(found) else sum_up(found, float_up(total.block_epsilon))


def _renyi_delta(total: _Total, epsilon: float) -> float:
    left = float_down(max(Fraction(epsilon) - total.block_epsilon, Fraction(0)))
    divergence = _renyi_of_total(total)
    if divergence is None or Fraction(epsilon) < total.block_epsilon:
        return 1.0
    a = renyi.ORDERS.astype(np.float64)
    with np.errstate(over="ignore"):
        logs = (a - 1) * (divergence - left + np.log1p(-1 / a)) - np.log(a)
    smallest = float(np.min(logs))
    if smallest >= 0:
        return 1.0
    found = math.exp(smallest) * (1 + 1e-9)
    return min(1.0, sum_up(up(found), float_up(total.delta_sum)))


def rough_price(event: Sampled, count: int, delta: float) -> float:
    """About the price of `count` sampled steps, in a hundredth of the time.

    It guides a search for a parameter. Nothing may rest on it: what the search finds
    has to be priced by `price`.
    """
    validate.open_probability(delta=delta)
    total = _Total(0.0, {}, {}, {event: count})
    simple = min(_closed_form(total, delta), _renyi_epsilon(total, delta))
    if delta < PLD_SMALLEST_DELTA or _too_wide(total, delta):
        return simple
    exponent = _grid_exponent(event, count) - 3
    # Noise beyond this has a thousandth of what delta leaves to one step.
    reach = -float(ndtri(1e-3 * delta / count))
    found = [
        _rough_epsilon(event, count, delta, exponent, reach, vanishes)
        for vanishes in (True, False)
    ]
    return min(max(found), simple)


def _rough_epsilon(
    event: Sampled,
    count: int,
    delta: float,
    exponent: int,
    reach: float,
    vanishes: bool,
) -> float:
    """Epsilon in one direction, by one cyclic convolution on a coarse grid."""
    from dp_accounting.pld import pld_pmf

    step = math.ldexp(1.0, -exponent)
    low, high = sampled_gaussian.losses(event, reach, vanishes)
    dots = np.arange(math.floor(low / step), math.ceil(high / step) + 2)
    curve = sampled_gaussian.stick(event, dots * step, vanishes)
    falling = np.minimum.accumulate(np.clip(curve, 0.0, 1.0))
    one = pld_pmf.create_pmf_pessimistic_connect_dots(
        step, dots, falling
    ).to_dense_pmf()
    size = max(_ROUGH_POINTS, 2 ** math.ceil(math.log2(4 * len(dots))))
    masses = np.zeros(size)
    masses[(one._lower_loss + np.arange(one.size)) % size] = one._probs
    whole = np.fft.irfft(np.fft.rfft(masses) ** count, size)
    # Losses from -size/4 to 3/4 size steps; what wraps round has no mass to speak of.
    losses = np.arange(-(size // 4), size - size // 4) * step
    whole = np.maximum(whole[np.arange(-(size // 4), size - size // 4) % size], 0.0)
    infinite = -math.expm1(count * math.log1p(-min(one._infinity_mass, 1 - 1e-16)))
    above = np.cumsum(whole[::-1])[::-1]
    discounted = np.cumsum((whole * np.exp(-losses))[::-1])[::-1]
    at = infinite + above - np.exp(losses) * discounted
    inside = np.flatnonzero(at > delta)
    if not len(inside):
        return 0.0
    last = int(inside[-1])
    if last + 1 == size:
        return math.inf
    share = (at[last] - delta) / max(at[last] - at[last + 1], 1e-300)
    return max(0.0, float(losses[last] + share * step))


def profile_of(event: Event) -> Profile | None:
    """The profile to keep with an entry: of a repeated sampled event, else None."""
    counts = events.atoms(event)
    if len(counts) != 1:
        return None
    ((atom, count),) = counts.items()
    if not isinstance(atom, Sampled) or atom.probability in (0.0, 1.0):
        return None
    if _too_wide(_total(event), 1e-6):
        return None
    return _sampled_profile(atom, count)


@lru_cache(maxsize=64)
def _sampled_profile(event: Sampled, count: int) -> Profile:
    """The profile of `count` sampled steps, from a privacy loss distribution."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = math.ldexp(1.0, -_grid_exponent(event, count))
    relation = _relation(event.neighbours)
    if isinstance(event, PoissonGaussian):
        one = pld.from_gaussian_mechanism(
            event.multiplier,
            sampling_prob=event.probability,
            value_discretization_interval=step,
            neighboring_relation=relation,
        )
    else:
        one = pld.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=event.dataset_size,
            sampling_probability=event.probability,
            truncated_batch_size=event.batch_size,
            noise_multiplier=event.multiplier,
            value_discretization_interval=step,
            neighboring_relation=relation,
        )
    whole = one.self_compose(count) if count > 1 else one
    pmfs = [whole._pmf_remove.to_dense_pmf(), whole._pmf_add.to_dense_pmf()]
    first = min(pmf._lower_loss for pmf in pmfs)
    last = max(pmf._lower_loss + pmf.size for pmf in pmfs)
    error = _FFT_ERROR * (count + 50)
    curves = [_hockey_stick(pmf, first, last, step, error) for pmf in pmfs]
    profile = Profile(_grid_exponent(event, count), first, *curves)
    surplus = max(0, math.ceil(math.log2(curves[0].size / _KEPT_DOTS)))
    return profile.coarser(profile.exponent - surplus)


def _grid_exponent(event: Sampled, count: int) -> int:
    """A step of about 1e-4; finer for a small whole epsilon, coarser for a large."""
    twin = PoissonGaussian(event.probability, event.multiplier)
    rough = _renyi_epsilon(_Total(0.0, {}, {}, {twin: count}), 1e-6)
    if rough < 0.5:
        return _GRID_EXPONENT + math.ceil(math.log2(0.5 / max(rough, 1e-3)))
    return _GRID_EXPONENT - max(0, math.ceil(math.log2(rough / 8)))


def _hockey_stick(
    pmf: Any, first: int, last: int, step: float, error: float
) -> NDArray[np.float64]:
    """delta at each grid point from first to last, from point masses on the grid.

    With A_j = sum of p_i over i > j and B_j = sum of p_i e^-(i - j) step over i > j,
    delta_j = infinity + A_j - B_j, and B_j = e^-step (p_j+1 + B_j+1): one linear
    filter from the right. The result is moved up by more than its rounding and by the
    `error` of the masses.
    """
    from scipy.signal import lfilter  # 0.7 s to import, and rarely needed

    masses = np.zeros(last - first + 2)
    start = pmf._lower_loss - first
    masses[start : start + pmf.size] = pmf._probs
    from_right = masses[::-1]
    above = np.cumsum(from_right) - from_right
    shrink = math.exp(-step)
    discounted = lfilter([0.0, shrink], [1.0, -shrink], from_right)
    delta = pmf._infinity_mass + np.maximum(above - discounted, 0.0)
    delta = delta * (1.0 + 1e-9) + error
    return np.minimum(np.maximum.accumulate(delta)[::-1], 1.0)


class _Mix:
    """Distributions of several parts on one grid, composed."""

    def __init__(self, total: _Total, profiles: Mapping[Event, Profile]) -> None:
        stored = _stored(total, profiles)
        self._exponent = _common_exponent(stored, total)
        self._parts = [
            (self._from_profile(profile), times) for profile, times in stored
        ]
        if total.mu_squared:
            self._parts.append((self._gaussian(total.mu_squared), 1))
        for eps, count in total.pure.items():
            if eps:
                self._parts.append((self._block(eps, 0.0), count))
        for (eps, delta), count in total.approx.items():
            self._parts.append((self._block(eps, delta), count))
        self._whole = self._compose()

    @property
    def _error(self) -> float:
        return _FFT_ERROR * (50 + sum(10 + times for _, times in self._parts))

    def epsilon(self, delta: float) -> float:
        left = delta - self._error
        if left <= 0:
            return math.inf
        return up(float(self._whole.get_epsilon_for_delta(left)), 2)

    def delta(self, epsilon: float) -> float:
        found = float(self._whole.get_delta_for_epsilon(epsilon))
        return min(1.0, up(found + self._error, 2))

    def _compose(self) -> Any:
        whole = None
        for part, times in self._parts:
            more = part.self_compose(times) if times > 1 else part
            whole = more if whole is None else whole.compose(more)
        return whole

    def _from_profile(self, profile: Profile) -> Any:
        coarse = profile.coarser(self._exponent)
        stride = 2 ** (self._exponent - coarse.exponent)
        dots = (coarse.first + np.arange(coarse.remove.size)) * stride
        return self._dots(dots, coarse.remove, coarse.add)

    def _gaussian(self, mu_squared: float) -> Any:
        """Dots of the Gaussian's own profile, as far as 9.5 deviations of its loss.

        The two terms of delta are each good to 1e-13 of the first, which is added.
        """
        mu = up(math.sqrt(mu_squared))
        step = math.ldexp(1.0, -self._exponent)
        ends = (mu / 2 - 9.5) * mu / step, (mu / 2 + 9.5) * mu / step
        dots = np.arange(math.floor(ends[0]), math.ceil(ends[1]) + 2)
        at = dots * step
        first = np.exp(log_ndtr(mu / 2 - at / mu))
        second = np.exp(at + log_ndtr(-mu / 2 - at / mu))
        delta = np.clip(first - second + 1e-13 * first, 0.0, 1.0)
        curve = np.minimum.accumulate(delta)
        return self._dots(dots, curve, curve)

    def _block(self, epsilon: float, delta: float) -> Any:
        """The dominating pair of (epsilon, delta), by the dots around +-epsilon.

        Its hockey stick is straight in e^epsilon between the two, so four dots lose
        nothing but the rounding of epsilon to the grid.
        """
        step = math.ldexp(1.0, -self._exponent)
        far = math.ceil(epsilon / step)
        dots = np.unique([-far, -far + 1, far - 1, far])
        at = dots * step
        # (e^eps - e^at) / (1 + e^eps) for |at| <= eps, and 1 - e^at left of it.
        inside = -np.expm1(np.minimum(at - epsilon, 0.0)) / (1.0 + math.exp(-epsilon))
        pure = np.maximum(inside, -np.expm1(np.minimum(at, 0.0)))
        curve = np.minimum(delta + (1.0 - delta) * np.maximum(pure, 0.0), 1.0)
        return self._dots(dots, curve, curve)

    def _dots(self, dots: NDArray[Any], remove: NDArray[Any], add: NDArray[Any]) -> Any:
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld import privacy_loss_distribution as pld

        step = math.ldexp(1.0, -self._exponent)
        return pld.PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots(step, dots, remove),
            pld_pmf.create_pmf_pessimistic_connect_dots(step, dots, add),
        )


def _stored(
    total: _Total, profiles: Mapping[Event, Profile]
) -> list[tuple[Profile, int]]:
    """Profiles that make up the sampled events: kept ones first, the rest built."""
    kept: dict[Atom, list[tuple[int, Profile]]] = {}
    for event, profile in profiles.items():
        counts = events.atoms(event)
        if len(counts) == 1:
            ((atom, count),) = counts.items()
            kept.setdefault(atom, []).append((count, profile))
    found: list[tuple[Profile, int]] = []
    for atom, left in total.sampled.items():
        for count, profile in sorted(kept.get(atom, []), key=lambda k: -k[0]):
            times, left = divmod(left, count)
            if times:
                found.append((profile, times))
        if left:
            found.append((_sampled_profile(atom, left), 1))
    return found


def _common_exponent(stored: list[tuple[Profile, int]], total: _Total) -> int:
    """The finest grid on which the whole range is still a sane number of points."""
    finest = max((p.exponent for p, _ in stored), default=_GRID_EXPONENT)
    smallest_pure = min((e for e in total.pure if e), default=1.0)
    finest = max(finest, math.ceil(-math.log2(smallest_pure)) + 3)
    range_of_loss = sum(p.width * math.sqrt(n) for p, n in stored)
    mu = math.sqrt(total.mu_squared)
    range_of_loss += 20.0 * mu + mu * mu
    for eps, n in [
        *total.pure.items(),
        *((e, n) for (e, _), n in total.approx.items()),
    ]:
        range_of_loss += min(n * eps, 20.0 * eps * math.sqrt(n) + n * eps * eps) * 2
    affordable = math.floor(math.log2(_MOST_POINTS / max(range_of_loss, 1e-9)))
    return max(-10, min(finest, affordable, 30))


def _relation(neighbours: Neighbours) -> Any:
    from dp_accounting import NeighboringRelation as Relation

    return {
        Neighbours.ADD_OR_REMOVE_ONE: Relation.ADD_OR_REMOVE_ONE,
        Neighbours.REPLACE_ONE: Relation.REPLACE_ONE,
        Neighbours.ZERO_OUT: Relation.REPLACE_SPECIAL,
    }[neighbours]


def to_dp_event(event: Event) -> dp_accounting.DpEvent:
    """The event in dp_accounting's words, for tools that speak them.

    A subsampled event loses its relation: the accountant it is given to must be made
    for it. (epsilon, delta) pairs have no word in dp_accounting 0.6.0.
    """
    import dp_accounting as dpa

    match event:
        case Gaussian(multiplier=z):
            return dpa.GaussianDpEvent(z)
        case PoissonGaussian(probability=q, multiplier=z):
            return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z))
        case TruncatedPoissonGaussian():
            return dpa.dp_event.TruncatedSubsampledGaussianDpEvent(
                dataset_size=event.dataset_size,
                sampling_probability=event.probability,
                truncated_batch_size=event.batch_size,
                noise_multiplier=event.multiplier,
            )
        case Repeated(event=inner, count=count):
            return dpa.SelfComposedDpEvent(to_dp_event(inner), count)
        case Composed(events=inners):
            return dpa.ComposedDpEvent([to_dp_event(inner) for inner in inners])
        case Pure(epsilon=0.0) | ApproxDP(epsilon=0.0, delta=0.0):
            return dpa.NoOpDpEvent()
    raise NotPriced(
        f"{type(event).__name__} has no counterpart in dp_accounting"
        f" {dpa.__version__ if hasattr(dpa, '__version__') else '0.6'}."
    )


def from_dp_event(
    event: dp_accounting.DpEvent,
    neighbours: Neighbours = Neighbours.ADD_OR_REMOVE_ONE,
) -> Event:
    """The event of dp_accounting in our words; what has none is refused.

    `neighbours` is the relation its accountant was made for. A plain Gaussian's
    multiplier is read as sigma / (largest norm of a record), dp_accounting's own
    definition: under REPLACE_ONE the sum moves by twice that.
    """
    import dp_accounting as dpa

    match event:
        case dpa.NoOpDpEvent():
            return Pure(0.0)
        case dpa.GaussianDpEvent(noise_multiplier=z):
            twice = neighbours is Neighbours.REPLACE_ONE
            return Gaussian(down(z / 2) if twice else z)
        case dpa.PoissonSampledDpEvent(
            sampling_probability=q, event=dpa.GaussianDpEvent(noise_multiplier=z)
        ):
            return PoissonGaussian(q, z, neighbours)
        case dpa.dp_event.TruncatedSubsampledGaussianDpEvent():
            return TruncatedPoissonGaussian(
                event.dataset_size,
                event.sampling_probability,
                event.truncated_batch_size,
                event.noise_multiplier,
                neighbours,
            )
        case dpa.SelfComposedDpEvent(event=inner, count=count):
            return Repeated(from_dp_event(inner, neighbours), count)
        case dpa.ComposedDpEvent(events=inners):
            return Composed(tuple(from_dp_event(e, neighbours) for e in inners))
    raise NotPriced(f"{event!r:.200} has no counterpart here; nothing was spent.")


def unsupported_dp_event() -> dp_accounting.DpEvent:
    """The event by which dp_accounting says that it has no word for a thing."""
    import dp_accounting as dpa

    return dpa.UnsupportedDpEvent()


def to_relation(neighbours: Neighbours) -> dp_accounting.NeighboringRelation:
    """The relation in dp_accounting's words."""
    return _relation(neighbours)


def relation_of_accountant(accountant: dp_accounting.PrivacyAccountant) -> Neighbours:
    """The relation that an accountant of dp_accounting was made for."""
    import dp_accounting as dpa

    if not isinstance(accountant, dpa.PrivacyAccountant):
        raise TypeError(
            "accountant must be one of dp_accounting's PrivacyAccountant; got"
            f" {type(accountant).__name__}"
        )
    for neighbours in Neighbours:
        if _relation(neighbours) is accountant.neighboring_relation:
            return neighbours
    raise NotPriced(
        f"an accountant for {accountant.neighboring_relation} has no counterpart here;"
        " nothing was spent."
    )


def grid_of_accountant(accountant: dp_accounting.PrivacyAccountant) -> float | None:
    """The step of the losses in a new PLD accountant; None for any other kind."""
    from dp_accounting import NoOpDpEvent
    from dp_accounting.pld import PLDAccountant

    if type(accountant) is not PLDAccountant:
        return None
    new = isinstance(accountant.ledger, NoOpDpEvent)
    return float(accountant._value_discretization_interval) if new else None


def check_accountant(accountant: dp_accounting.PrivacyAccountant, event: Event) -> None:
    """Refuse an accountant that is not new or has no price for such an event.

    One that holds events already would give the epsilon of something else.
    """
    import dp_accounting as dpa

    relation_of_accountant(accountant)
    if not isinstance(accountant.ledger, dpa.NoOpDpEvent):
        raise ValueError(
            "accountant must be new; this one has composed events already, and their"
            " cost would be taken for the plan's"
        )
    if not accountant.supports(to_dp_event(event)):
        kinds = sorted({type(atom).__name__ for atom in events.atoms(event)})
        raise NotPriced(
            f"{type(accountant).__name__} has no price for {', '.join(kinds)} under"
            f" {accountant.neighboring_relation.name}. Nothing was spent."
        )


def accountant_epsilon(
    accountant: dp_accounting.PrivacyAccountant, event: Event, delta: float
) -> float:
    """What a copy of a new accountant says of `event` alone."""
    check_accountant(accountant, event)
    alone = copy.deepcopy(accountant)
    alone.compose(to_dp_event(event))
    return float(alone.get_epsilon(delta))


def fixed_batch_epsilon(
    dataset_size: int, batch_size: int, multiplier: float, count: int, delta: float
) -> float:
    """Epsilon of `count` uniform batches without replacement, one record replaced.

    `multiplier` = sigma / the largest norm of one record's contribution. The bound is
    the Renyi one of Wang, Balle and Kasiviswanathan 2019, as dp_accounting computes
    it; it counts noise per sensitivity of the whole sum, which moves by two
    contributions.
    """
    import dp_accounting as dpa

    validate.count(dataset_size=dataset_size, batch_size=batch_size, count=count)
    validate.positive(multiplier=multiplier)
    validate.open_probability(delta=delta)
    if batch_size > dataset_size:
        raise ValueError(
            f"batch_size must be at most dataset_size; got {batch_size} of"
            f" {dataset_size}"
        )
    accountant = dpa.rdp.RdpAccountant(
        # Any set of orders gives a bound; their cost grows with the square.
        orders=[*range(2, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128],
        neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE,
    )
    accountant.compose(
        fixed_batch_dp_event(dataset_size, batch_size, multiplier, count)
    )
    return up(float(accountant.get_epsilon(delta)), 8)


def fixed_batch_dp_event(
    dataset_size: int, batch_size: int, multiplier: float, count: int
) -> dp_accounting.DpEvent:
    """The same batches in dp_accounting's words, for its accountant of REPLACE_ONE."""
    import dp_accounting as dpa

    noise = dpa.GaussianDpEvent(down(multiplier / 2))
    one = dpa.SampledWithoutReplacementDpEvent(dataset_size, batch_size, noise)
    return dpa.SelfComposedDpEvent(one, count)
