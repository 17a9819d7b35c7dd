"""Black-box audit: many runs of a mechanism on two neighbouring datasets.

`audit` scores the outputs of both datasets and compares a lower confidence bound on
epsilon with the claim. Which bound depends on what is claimed:

- *pure* and *(epsilon, delta)* claims: the runs are cut in two. The first half chooses
  the direction, where no score is given, and the event {score >= t} (or its complement,
  and the dataset under which it is likely) with the largest bound; the second half,
  independent of it, is counted, with Clopper-Pearson limits at alpha / 2 each. An event
  given in advance (`threshold`) uses all runs.
- *Gaussian* claims: the scores' shift and pooled deviation give a lower bound on mu
  (`confidence.mu_from_shift`), translated to epsilon at the claim's delta. Without a
  score, the first half of the runs estimates the direction theta(D) - theta(D') and the
  second half is projected on it. A claim with `counted=True` is tested by counting
  instead, which holds for every law and takes five to ten times the runs.

The score should be the claimed log-likelihood ratio: by Neyman and Pearson no other
event of the same size tells the claimed laws apart better. A poor score costs power and
cannot cause a false alarm, because it is fixed before the runs that are counted.

**Sizes**: runs on each side at which a real epsilon of twice the claim is refuted in at
least 90 of 100 audits at alpha = 1e-6 (measured, `tests/audit/power.py`; the score is
given, half of the runs choose the event where one is counted):

    claim                         test                        runs
    pure epsilon 0.5 / 1 / 2      counts                      3,000 / 2,000 / 1,000
    Gaussian 0.5 / 1 / 4, 1e-5    mu by shift and deviation   6,000 / 2,000 / 200
    the same                      mu by counts                30,000 / 10,000 / 2,000
    the same as (epsilon, 1e-5)   counts                      above 200,000

"Not refuted" does not prove the claim. The table shows how large an error each test
would have caught at which size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from demur.audit.claim import Claim, Score, Shape, apply_score, flat
from demur.audit.confidence import (
    epsilon_from_counts,
    epsilon_of_mu,
    mu_from_counts,
    mu_from_shift,
    scores,
)
from demur.audit.notes import check_entry, note_on_entry
from demur.audit.result import AuditResult, Level
from demur.core import validate
from demur.core.accounting.events import Event
from demur.core.declaration import Mechanism
from demur.core.entropy import Seeded
from demur.core.entry import Entry
from demur.core.rounding import printed_down, printed_up
from demur.ledger import Ledger

Values: TypeAlias = NDArray[np.float64]
_CANDIDATES = 512  # thresholds that the first half chooses from
_LEAST_RUNS = 8


def audit(
    run: Callable[..., Any],
    pair: tuple[Any, Any],
    claim: Claim | Entry | Mechanism | Event | tuple[float, float],
    *,
    runs: int = 10_000,
    alpha: float = 1e-6,
    many: bool = False,
    random_state: int = 0,
    subject: str = "a mechanism",
    ledger: Ledger | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Whether many runs on `pair` refute the claim, with a lower bound on epsilon.

    `run(dataset, source)` gives the output of one run; `source` is a `Seeded` of its
    own for every run (`source.seed` is the number), so that an audit can be repeated.
    With `many=True` it is `run(dataset, source, count)` and gives `count` outputs.
    `runs` counts the runs on *each* of the two datasets. `pair` must be synthetic or
    public: outputs on real data are releases and have to be paid for.

    `Claim.of(claim, unit=..., score=...)` states at which unit and delta a claim is
    read and how outputs are scored. With a `ledger` the result is noted on the entry
    that makes the claim. `progress(done, total)` is called after every run.

    >>> from demur.core.accounting.events import GaussianEvent
    >>> noisy = lambda x, source, n: np.random.default_rng(source.seed).normal(x, 1., n)
    >>> audit(noisy, (1.0, 0.0), GaussianEvent(1.0), many=True, runs=2000).refuted
    False
    >>> audit(noisy, (2.0, 0.0), GaussianEvent(1.0), many=True, runs=2000).refuted
    True
    """
    stated = Claim.of(claim)
    if ledger is not None:
        check_entry(ledger, stated.entry)
    validate.count(runs=runs)
    if runs < _LEAST_RUNS:
        raise ValueError(f"runs must be at least {_LEAST_RUNS}; got {runs}")
    validate.open_probability(alpha=alpha)
    plan = _Plan.of(stated, runs)
    worlds = _Worlds(run, pair, many, random_state, 2 * runs, progress)
    score = stated.score
    if score is None:
        score = worlds.direction(plan.direction)
    pilot = worlds.scores(score, plan.pilot) if plan.pilot else None
    sides = worlds.scores(score, runs - plan.direction - plan.pilot)
    result = audit_scores(
        *sides,
        stated,
        pilot=pilot,
        alpha=alpha,
        subject=subject,
        runs=runs,
    )
    return note_on_entry(result, ledger, stated.entry)


def audit_scores(
    first: Any,
    second: Any,
    claim: Claim | Event | tuple[float, float],
    *,
    pilot: tuple[Any, Any] | None = None,
    alpha: float = 1e-6,
    subject: str = "a mechanism",
    runs: int | None = None,
    level: Level = Level.BLACK_BOX,
) -> AuditResult:
    """`audit` from scores that were computed elsewhere, one number for each run.

    Counting needs an event that these scores did not choose: the claim's threshold, or
    one chosen by the `pilot`, the scores of other runs.
    """
    stated = Claim.of(claim)
    validate.open_probability(alpha=alpha)
    first_scores, second_scores = scores("first", first), scores("second", second)
    event = None
    if _counted(stated) or _constant(first_scores, second_scores):
        event = _event(stated, pilot, first_scores, second_scores, alpha)
        counts = event.counts(first_scores, second_scores)
    if stated.shape is Shape.GAUSSIAN:
        assert stated.mu is not None
        if event is None:
            mu = mu_from_shift(first_scores, second_scores, alpha=alpha)
            how = "GDP mu test"
        else:
            mu, how = mu_from_counts(*counts, alpha=alpha), "GDP mu test by counts"
        lower = epsilon_of_mu(mu, stated.delta)
        evidence = (
            f"The scores show mu of at least {printed_down(mu)};"
            f" {printed_up(stated.mu)} is claimed."
        )
    else:
        assert event is not None
        lower = epsilon_from_counts(*counts, delta=stated.delta, alpha=alpha)
        how = "Clopper-Pearson bound"
        (a, n), (b, m) = counts
        evidence = (
            f"An event chosen beforehand occurred in {a} of {n} runs on one dataset"
            f" and in {b} of {m} on the other."
        )
    return AuditResult(
        subject=subject,
        level=level,
        method=how,
        unit=stated.unit,
        claimed=stated.epsilon,
        delta=stated.delta,
        lower_bound=lower,
        runs=runs or min(first_scores.size, second_scores.size),
        alpha=alpha,
        refuted=lower > stated.epsilon,
        evidence=evidence,
    )


def _constant(first: Values, second: Values) -> bool:
    """Whether neither dataset's scores vary: noise that is drawn once and reused."""
    return bool(np.ptp(first) == 0.0 and np.ptp(second) == 0.0)


def _counted(claim: Claim) -> bool:
    return claim.counted or claim.shape is not Shape.GAUSSIAN


class _Plan(NamedTuple):
    """How many runs estimate the direction and choose the event; the rest count."""

    direction: int
    pilot: int

    @classmethod
    def of(cls, claim: Claim, runs: int) -> _Plan:
        half = runs // 2
        chosen = _counted(claim) and claim.threshold is None
        if claim.score is not None:
            return cls(0, half if chosen else 0)
        return cls(half // 2, half - half // 2) if chosen else cls(half, 0)


@dataclass(frozen=True)
class _Event:
    """{score >= threshold} or its complement, and the dataset it is likely under."""

    threshold: float
    above: bool = True
    of_first: bool = True

    def counts(
        self, first: Values, second: Values
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(hits, runs) of the likely dataset and of the other."""
        hits = []
        for side in (first, second) if self.of_first else (second, first):
            inside = side >= self.threshold if self.above else side < self.threshold
            hits.append((int(inside.sum()), int(side.size)))
        return hits[0], hits[1]


def _event(
    claim: Claim,
    pilot: tuple[Any, Any] | None,
    first: Values,
    second: Values,
    alpha: float,
) -> _Event:
    if claim.threshold is not None:
        return _Event(claim.threshold)
    if pilot is not None:
        return choose_event(
            scores("pilot", pilot[0]),
            scores("pilot", pilot[1]),
            claim.delta,
            alpha,
            by_mu=claim.shape is Shape.GAUSSIAN,
        )
    if _constant(first, second):
        # Nothing is chosen: only one event tells two constants apart.
        high = max(first[0], second[0])
        return _Event(float(high), of_first=bool(first[0] == high))
    raise TypeError(
        "the event must be fixed before the runs are counted: give the claim a"
        " threshold, or the scores of other runs as pilot"
    )


def choose_event(
    first_scores: Values,
    second_scores: Values,
    delta: float,
    alpha: float,
    *,
    by_mu: bool = False,
) -> _Event:
    """The event with the largest bound on these scores, to be counted on others."""
    pooled = np.unique(np.concatenate([first_scores, second_scores]))
    if pooled.size > _CANDIDATES:
        # Half evenly over the ranks, half towards both ends, where tails are thin.
        even = np.linspace(0, pooled.size - 1, _CANDIDATES // 2)
        ends = np.geomspace(1, pooled.size / 2, _CANDIDATES // 4)
        places = np.concatenate([even, ends, pooled.size - ends]).astype(int)
        pooled = pooled[np.unique(places)]
    first = first_scores.size - np.searchsorted(np.sort(first_scores), pooled)
    second = second_scores.size - np.searchsorted(np.sort(second_scores), pooled)
    best, chosen = -np.inf, _Event(float(pooled[0]))
    for above in (True, False):
        a = first if above else first_scores.size - first
        b = second if above else second_scores.size - second
        for of_first in (True, False):
            counts = (a, first_scores.size), (b, second_scores.size)
            x, y = counts if of_first else counts[::-1]
            value = _bounds(*x, *y, delta, alpha, by_mu)
            place = int(np.argmax(value))
            if value[place] > best:
                best = float(value[place])
                chosen = _Event(float(pooled[place]), above, of_first)
    return chosen


def _bounds(
    a: NDArray[np.int64],
    n: int,
    b: NDArray[np.int64],
    m: int,
    delta: float,
    alpha: float,
    by_mu: bool,
) -> Values:
    """The bound at every candidate, negative ones included, in one sweep."""
    low = np.where(a > 0, special.betaincinv(np.maximum(a, 1), n - a + 1, alpha / 2), 0)
    high = np.where(
        b < m, special.betainccinv(b + 1, np.maximum(m - b, 1), alpha / 2), 1.0
    )
    if by_mu:
        return np.where(low > 0, special.ndtri(low) - special.ndtri(high), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log((low - delta) / high), -np.inf)


class _Worlds:
    """Runs on both datasets, each run with its own source."""

    def __init__(
        self,
        run: Callable[..., Any],
        pair: tuple[Any, Any],
        many: bool,
        seed: int,
        total: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError("pair must be two datasets")
        if not callable(run):
            raise TypeError(f"run must be callable; got {type(run).__name__}")
        self._run, self._pair, self._many = run, pair, many
        self._seed = Seeded(seed).seed << 64
        self._total, self._done, self._progress = total, 0, progress

    def _source(self) -> Seeded:
        self._seed += 1
        return Seeded(self._seed)

    def _tick(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _each(self, dataset: Any, count: int) -> Any:
        if self._many:
            outputs = self._run(dataset, self._source(), count)
            if len(outputs) != count:
                raise ValueError(
                    f"run must return count={count} outputs with many=True; got"
                    f" {len(outputs)}"
                )
            yield from outputs
            self._tick(count)
            return
        for _ in range(count):
            yield self._run(dataset, self._source())
            self._tick(1)

    def direction(self, count: int) -> Values:
        """The difference of the mean outputs: for equal Gaussians the best direction.

        Outputs are added up as they come and not kept.
        """
        first, second = (_mean(self._each(dataset, count)) for dataset in self._pair)
        if first.shape != second.shape:
            raise ValueError("outputs of the two datasets have different shapes")
        line = first - second
        if not np.isfinite(line).all():
            raise ValueError("outputs must be finite; got NaN or infinity")
        return line if line.any() else np.ones_like(line)

    def scores(self, score: Score, count: int) -> tuple[Values, Values]:
        """`count` scores of each dataset; the outputs are not kept."""
        first, second = (
            _scored(score, self._each(dataset, count)) for dataset in self._pair
        )
        return first, second


def _scored(score: Score, outputs: Any) -> Values:
    return np.array([apply_score(score, output) for output in outputs])


def _mean(outputs: Any) -> Values:
    total, count = np.zeros(1), 0
    for output in outputs:
        vector = flat(output)
        if count and vector.shape != total.shape:
            raise ValueError("outputs of one dataset have different shapes")
        total = total + vector if count else vector.copy()
        count += 1
    return np.asarray(total / count)
