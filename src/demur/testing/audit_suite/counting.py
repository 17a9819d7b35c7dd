"""Tests of counts against an exact distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from demur.audit import AuditResult

_ALPHA = 1e-6
_LEAST_EXPECTED = 50.0


def _result(
    subject: str, method: str, runs: int, refuted: bool, what: str
) -> AuditResult:
    return AuditResult.of_draws(
        subject,
        method,
        unit="the draws themselves",
        runs=runs,
        alpha=_ALPHA,
        refuted=refuted,
        evidence=f"{what} {'does not follow' if refuted else 'follows'} its law.",
    )


def binomial_test(hits: int, runs: int, share: float, *, subject: str) -> AuditResult:
    """Exact test of whether `hits` of `runs` have probability `share`."""
    p_value = stats.binomtest(hits, runs, share).pvalue
    refuted = bool(p_value < _ALPHA)
    return _result(subject, "binomial test", runs, refuted, "The share of draws")


def counts_test(
    observed: NDArray[np.int64], probabilities: NDArray[np.float64], *, subject: str
) -> AuditResult:
    """Pearson's test of how often 0, 1, 2 ... occurred, rare ones pooled."""
    total = int(observed.sum())
    order = np.argsort(probabilities)[::-1]
    often = order[probabilities[order] * total >= _LEAST_EXPECTED]
    seen = np.append(observed[often], total - observed[often].sum())
    meant = np.append(probabilities[often], 1.0 - probabilities[often].sum()) * total
    if meant[-1] < _LEAST_EXPECTED:  # too few to stand alone: with the least frequent
        seen = np.append(seen[:-2], seen[-2:].sum())
        meant = np.append(meant[:-2], meant[-2:].sum())
    p_value = stats.chisquare(seen, meant).pvalue
    refuted = bool(p_value < _ALPHA)
    return _result(subject, "chi-square test", total, refuted, "The number of times")
