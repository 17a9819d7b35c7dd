"""Tests of counts against an exact distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from demur.audit import AuditResult

_ALPHA = 1e-6
_LEAST_EXPECTED = 50.0


def _result(
    subject: str,
    method: str,
    runs: int,
    p_value: float,
    what: str,
    factor: float | None = None,
) -> AuditResult:
    refuted = bool(p_value < _ALPHA)
    return AuditResult.of_draws(
        subject,
        method,
        unit="the draws themselves",
        runs=runs,
        alpha=_ALPHA,
        refuted=refuted,
        evidence=f"{what} {'does not follow' if refuted else 'follows'} its law.",
        factor=factor,
        p_value=min(1.0, float(p_value)),
    )


def _seen_factor(runs: int, share: float) -> float:
    """The factor on a share that is refuted in 9 of 10 audits of this size."""
    away = stats.norm.isf(_ALPHA / 2.0) + stats.norm.ppf(0.9)
    return float(1.0 + away * math.sqrt((1.0 - share) / (share * runs)))


def binomial_test(hits: int, runs: int, share: float, *, subject: str) -> AuditResult:
    """Exact test of whether `hits` of `runs` have probability `share`."""
    p_value = stats.binomtest(hits, runs, share).pvalue
    factor = _seen_factor(runs, share)
    return _result(
        subject, "binomial test", runs, p_value, "The share of draws", factor
    )


def counts_test(
    observed: NDArray[np.int64], probabilities: NDArray[np.float64], *, subject: str
) -> AuditResult:
    """Pearson's test of how often 0, 1, 2 ... occurred, rare ones pooled.

    What cannot occur refutes the law when it is seen once.
    """
    total = int(observed.sum())
    order = np.argsort(probabilities)[::-1]
    often = order[probabilities[order] * total >= _LEAST_EXPECTED]
    seen = np.append(observed[often], total - observed[often].sum())
    meant = np.append(probabilities[often], 1.0 - probabilities[often].sum()) * total
    if meant[-1] < _LEAST_EXPECTED:  # too few to stand alone: with the least frequent
        seen = np.append(seen[:-2], seen[-2:].sum())
        meant = np.append(meant[:-2], meant[-2:].sum())
    impossible = bool(observed[probabilities == 0.0].any())
    p_value = 0.0 if impossible else stats.chisquare(seen, meant).pvalue
    return _result(subject, "chi-square test", total, p_value, "The number of times")


def batches_test(
    batches: Sequence[NDArray[Any]], records: int, share: float, *, subject: str
) -> AuditResult:
    """Whether every record is in every batch with probability `share`, independently.

    A record that is in a batch twice refutes it at once. Otherwise three tests at a
    third of alpha: the total (exactly binomial), and how much the sizes of batches and
    the participations of records spread around their means. Fixed sizes, shuffled
    epochs and records that stick together spread too little or too much.
    """
    drawn = np.zeros((len(batches), records))
    for step, batch in enumerate(batches):
        np.add.at(drawn[step], np.asarray(batch), 1.0)
    trials, total = drawn.size, int(np.minimum(drawn, 1.0).sum())
    p_values = [float(stats.binomtest(total, trials, share).pvalue)]
    if drawn.max() > 1.0:
        p_values.append(0.0)
    for axis in (0, 1):
        counts = drawn.sum(axis=axis)
        trials_each = drawn.shape[axis]
        square = (counts - trials_each * share) ** 2 / (
            trials_each * share * (1.0 - share)
        )
        statistic = float(square.sum())
        tails = (
            stats.chi2.cdf(statistic, len(counts)),
            stats.chi2.sf(statistic, len(counts)),
        )
        p_values.append(2.0 * float(min(tails)))
    return _result(
        subject,
        "tests of batches",
        trials,
        3.0 * min(p_values),
        "Who is in which batch",
        _seen_factor(trials, share),
    )
