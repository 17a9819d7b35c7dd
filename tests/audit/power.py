"""How many runs it takes to catch a real epsilon of twice the claim.

    python -m tests.audit.power        (or: python tests/audit/power.py)

prints the tables of `demur.audit.black_box` and `one_run`. The tests use the same
functions at the sizes that are printed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from demur import gaussian_mu
from demur.audit import AuditResult, Claim, audit_one_run, audit_scores
from demur.core.accounting.events import GaussianEvent, Pure, Repeated

ALPHA = 1e-6
DELTA = 1e-5
_LEVELS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)


def smaller_than_uniform(p_values: ArrayLike) -> bool:
    """Whether too many p-values are below some level, at 1e-6 for all levels."""
    values = np.asarray(p_values)
    return any(
        stats.binom.sf((values < u).sum() - 1, values.size, u) < 1e-6 / len(_LEVELS)
        for u in _LEVELS
    )


def laplace_audit(
    claimed: float, real: float, runs: int, seed: int, *, alpha: float = ALPHA
) -> AuditResult:
    """Laplace noise on a query of sensitivity 1, half of the runs as pilot."""
    rng = np.random.default_rng(seed)
    one, two = (rng.laplace(x, 1 / real, runs) for x in (1.0, 0.0))
    half = runs // 2
    return audit_scores(
        one[half:],
        two[half:],
        Pure(claimed),
        pilot=(one[:half], two[:half]),
        alpha=alpha,
        runs=runs,
    )


def gaussian_claim(epsilon: float) -> Claim:
    return Claim.of(GaussianEvent(1 / gaussian_mu(epsilon, DELTA)), delta=DELTA)


def gaussian_audit(
    claimed: float,
    real: float,
    runs: int,
    seed: int,
    *,
    how: str = "shift",
    alpha: float = ALPHA,
) -> AuditResult:
    """Gaussian noise; `how` is shift, counts (of mu), or epsilon (counts at delta)."""
    rng = np.random.default_rng(seed)
    mu = gaussian_mu(real, DELTA)
    one, two = (rng.normal(x, 1.0, runs) for x in (mu, 0.0))
    claim = gaussian_claim(claimed)
    if how == "shift":
        return audit_scores(one, two, claim, alpha=alpha)
    half = runs // 2
    pilot = one[:half], two[:half]
    rest = one[half:], two[half:]
    if how == "counts":
        claim = Claim.of(claim, counted=True)
        return audit_scores(*rest, claim, pilot=pilot, alpha=alpha)
    return audit_scores(*rest, (claimed, DELTA), pilot=pilot, alpha=alpha)


def canary_scores(mu: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ideal independent canaries: N(mu, 1) when in, N(0, 1) when out."""
    rng = np.random.default_rng(seed)
    coins = rng.random(canaries) < 0.5
    return rng.normal(size=canaries) + mu * coins, coins


def sampled_scores(
    event: Repeated, canaries: int, seed: int, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Ideal canaries of a sampled plan: how often each was drawn, plus the noise."""
    step = event.event
    rng = np.random.default_rng(seed)
    coins = rng.random(canaries) < 0.5
    times = rng.binomial(event.count, step.probability, canaries) * coins
    spread = noise * step.multiplier * math.sqrt(event.count)
    return times + spread * rng.normal(size=canaries), coins


def caught(audit_of, trials: int) -> float:
    return float(np.mean([audit_of(seed).refuted for seed in range(trials)]))


def smallest(audit_of, sizes, trials: int = 100, share: float = 0.9) -> str:
    for runs in sizes:
        rate = caught(lambda seed, runs=runs: audit_of(runs, seed), trials)
        if rate >= share:
            return f"{runs:,} ({rate:.0%})"
    return f"above {sizes[-1]:,} ({rate:.0%})"


def main() -> None:
    sizes = [
        int(base * 10**power) for power in (2, 3, 4, 5) for base in (1, 2, 3, 4, 6)
    ][:17]
    for epsilon in (0.5, 1.0, 2.0):
        runs_needed = smallest(
            lambda n, s, e=epsilon: laplace_audit(e, 2 * e, n, s), sizes
        )
        print(f"pure {epsilon:g}: {runs_needed}", flush=True)
    for how in ("shift", "counts", "epsilon"):
        for epsilon in (0.5, 1.0, 4.0):
            runs_needed = smallest(
                lambda n, s, e=epsilon, h=how: gaussian_audit(e, 2 * e, n, s, how=h),
                sizes,
                trials=40 if how == "epsilon" else 100,
            )
            print(f"Gaussian {epsilon:g}, {how}: {runs_needed}", flush=True)
    for epsilon in (1.0, 4.0):
        for canaries in (1000, 10_000):
            mu = gaussian_mu(2 * epsilon, DELTA)
            bounds = []
            for form in ("classical", "f-DP", "GDP"):
                lower_bounds = [
                    audit_one_run(
                        *canary_scores(mu, canaries, seed),
                        gaussian_claim(epsilon),
                        form=form,
                        alpha=0.05,
                    ).lower_bound
                    for seed in range(5)
                ]
                bounds.append(f"{form} {math.fsum(lower_bounds) / 5:.2f}")
            print(f"one run, {epsilon:g} claimed, twice real, {canaries}: {bounds}")


if __name__ == "__main__":
    main()
