"""The retrain test: each deletion compared with a replay without the record.

`verify_against_retrain` runs a stream through a mode and, for every deletion, the same
stream without the deleted records (their ticks skipped, the same noise elsewhere). It
fails a mode on any of these:

1. *shift*: the two worlds, before the deletion's noise, are farther apart than the
   mode's `shift_bound`; also for all deleted records at once. Compared is what the
   mode's theorem covers: the whole state, or the published copy.
2. *direction*: most deletions leave the weights farther from the replay than they were.
3. *distinguishing*: `trials` noised copies of each world, projected on the line through
   their noiseless points (for equal Gaussians that is the Neyman-Pearson statistic) and
   cut half-way, the worst pair of worlds of the stream. A mode that is mu-GDP has
   Phi^-1(true positives) - Phi^-1(false positives) <= mu for every test, so with
   Clopper-Pearson limits on both rates the difference is a lower bound on mu that holds
   with the stated confidence. It must not exceed the claim.
4. *digest*: an exact mode has other digests, or publishes something else.
5. *search*: something that the learner reaches holds a deleted x (`likeness` has the
   comparison and its chance of a false alarm, `search` the control by the replay).

The report holds noiseless distances: it is for test data and must not be released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import betaincinv, ndtri

from demur.core import validate
from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.models.inputs import check_size
from demur.unlearning.retrain.findings import (
    DeletionCheck,
    Distinguishing,
    RetrainReport,
    Trace,
)
from demur.unlearning.retrain.search import Search
from demur.unlearning.retrain.worlds import (
    Deletion,
    Event,
    Insertion,
    World,
    checked,
    covered_distance,
    weight_distance,
)


def verify_against_retrain(
    make: Mode | Callable[[], Mode],
    events: Iterable[Event],
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    trials: int = 4000,
    confidence: float = 0.99,
    noise_scale: Callable[[Mode, int], float] | None = None,
    seed: int = 0,
) -> RetrainReport:
    """Compare every deletion of a stream with a replay that lacks its records.

    `make` gives an empty mode (or is one: its `fresh()` is used). Each deletion is
    claimed to be (epsilon, delta)-private; `noise_scale(mode, records)` is the sigma
    that is really used, by default what the claim takes at the mode's own bound.

    >>> from demur.unlearning.models import OGD
    >>> from demur.unlearning.retrain.worlds import stream
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 5)) / 3
    >>> events = stream(X, X @ np.ones(5), {150: 3, 199: (0, 77)})
    >>> report = verify_against_retrain(OGD(5), events, trials=500)
    >>> report.passed, report.tightest < 1.0
    (True, True)
    """
    empty = make if isinstance(make, Mode) else make()
    check_size(empty.size, empty.size)
    listed = checked(events, empty.dimension)
    validate.count(trials=trials)
    validate.open_probability(confidence=confidence)
    mu = gaussian_mu(epsilon, delta)

    def world(*absent: Deletion) -> World:
        mode = make.fresh() if isinstance(make, Mode) else make()
        return World(mode, frozenset(r for f in absent for r in f.records))

    def sigma_of(mode: Mode, records: int) -> float:
        if mode.exact:
            return 0.0
        if noise_scale is not None:
            return noise_scale(mode, records)
        return mode.shift_bound(records) / mu

    rng = np.random.default_rng(seed)
    first, begin = world(), 0
    size = first.mode.size
    check_size(size, size)
    learned = {e.record: e.x for e in listed if isinstance(e, Insertion)}
    search = Search(world().mode, learned)
    search.prepare(r for e in listed if isinstance(e, Deletion) for r in e.records)
    requests: list[Deletion] = []
    noises: list[Array] = []
    checks: list[DeletionCheck] = []
    traces: list[Trace] = []
    worst: tuple[World, World, Deletion, float] | None = None
    for position, request in enumerate(listed):
        if not isinstance(request, Deletion):
            continue
        first.run(listed[begin:position], noises)
        begin = position + 1
        replay = world(request)
        replay.run(listed[:position], noises)
        for ready in (first, replay):
            ready.prepare(request)
        bound = first.mode.shift_bound(len(request.records))
        sigma = sigma_of(first.mode, len(request.records))
        check = _compare(first.copy(), replay.copy(), request, bound)
        if worst is None or check.tightness > max(c.tightness for c in checks):
            worst = (first.copy(), replay.copy(), request, sigma)
        checks.append(check)
        requests.append(request)
        noises.append(rng.normal(size=size) * sigma)
        first.forget(request, noises[-1])
        replay.forget(request, noises[-1])
        traces += search.traces(first.mode, replay.mode, request.records)
    without = world(*requests)
    without.run(listed[:begin], noises)
    assert worst is not None
    mode = first.mode
    test = None
    if not mode.exact:
        mu_lower = _mu_lower(*worst, trials, confidence, rng)
        test = Distinguishing(
            trials=trials,
            confidence=confidence,
            mu_lower=mu_lower,
            mu_claimed=mu,
            epsilon_lower=gaussian_epsilon(mu_lower, delta) if mu_lower > 0.0 else 0.0,
            epsilon_claimed=epsilon,
            delta=delta,
        )
    return RetrainReport(
        mode=mode.name,
        theorem=mode.theorem.id,
        exact=mode.exact,
        deletions=tuple(checks),
        joint_distance=covered_distance(first, without),
        joint_bound=mode.shift_bound(sum(len(r.records) for r in requests)),
        joint_digests_equal=mode.digest() == without.mode.digest(),
        distinguishing=test,
        traces=tuple(traces),
        search=search.scope(),
    )


def _compare(
    first: World, replay: World, request: Deletion, bound: float
) -> DeletionCheck:
    """Both worlds through the deletion without noise."""
    untouched = first.copy(), replay.copy()
    for world in untouched:
        world.publish_without_noise()
    for world in (first, replay):
        world.forget(request, np.zeros(world.mode.size))
    return DeletionCheck(
        records=request.records,
        bound=bound,
        distance=covered_distance(first, replay),
        weights_before=weight_distance(*untouched),
        weights_after=weight_distance(first, replay),
        digests_equal=first.mode.digest() == replay.mode.digest(),
    )


def _mu_lower(
    first: World,
    replay: World,
    request: Deletion,
    sigma: float,
    trials: int,
    confidence: float,
    rng: np.random.Generator,
) -> float:
    """A lower bound on mu from noised copies; at confidence `confidence`."""
    size = first.mode.size
    means = []
    for world in (first.copy(), replay.copy()):
        world.forget(request, np.zeros(size))
        means.append(world.mode.published())
    line = means[0] - means[1]
    if not line.any():
        line = np.ones(size)
    middle = float(line @ (means[0] + means[1])) / 2.0
    above = []
    for world in (first, replay):
        start, live, hits = world.mode.state(), dict(world.live), 0
        for _ in range(trials):  # one at a time: all of them may not fit in memory
            world.forget(request, rng.normal(size=size) * sigma)
            hits += float(line @ world.mode.published()) > middle
            world.mode.restore(start)
            world.live = dict(live)
        above.append(hits)
    # Each limit fails with half the allowed probability.
    wrong = (1.0 - confidence) / 2.0
    hits, false = above
    low = float(betaincinv(hits, trials - hits + 1, wrong)) if hits else 0.0
    if false == trials:
        return float("-inf")
    high = float(betaincinv(false + 1, trials - false, 1.0 - wrong))
    return float(ndtri(low) - ndtri(high))
