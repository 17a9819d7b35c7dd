"""A test for noise that two draws share: steps, leaves, blocks, runs.

Every row is one draw of as many numbers (the noise of a leaf in a step, a block of
reports). All pairs of rows are compared: noise that is used twice, mirrored, or shared
in part shows as a correlation between two rows, wherever they are. After the
probability transform the numbers are standard normal, and the correlation of two
independent normal vectors has an exact t law; the smallest of all p-values is compared
with alpha over the number of pairs.

The control is a pair that shares half its variance: if that would pass, the rows are
too short, and the test raises `NoPower`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from demur.audit.distributions import Law
from demur.audit.errors import NoPower
from demur.audit.noise_tests import ALPHA
from demur.audit.result import AuditResult
from demur.core import validate

_SHARED = 0.7071  # the correlation of two rows that share half their variance
_MISS = 1e-6


def shared_noise_test(
    rows: ArrayLike,
    law: Law,
    *,
    alpha: float = ALPHA,
    subject: str = "a noise source",
) -> AuditResult:
    """Whether two rows of noise share numbers, among all pairs of rows.

    >>> from demur.audit.distributions import normal
    >>> rows = np.random.default_rng(0).normal(size=(50, 200))
    >>> shared_noise_test(rows, normal(1.0)).refuted
    False
    >>> rows[17] = -rows[40]
    >>> shared_noise_test(rows, normal(1.0)).refuted
    True
    """
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(
            "rows must be a matrix of finite numbers with at least two rows; got shape"
            f" {values.shape}"
        )
    validate.open_probability(alpha=alpha)
    count, length = values.shape
    pairs = count * (count - 1) // 2
    level = alpha / pairs
    if length < 8 or _power(length, level) < 1.0 - _MISS:
        raise NoPower(
            f"rows of {length} numbers are too short to see two of {count} that share"
            " half their variance: give longer rows"
        )
    tiny = np.finfo(np.float64).tiny
    uniform = np.clip(law.uniform(values), tiny, 1.0 - 2.0**-53)
    scores = np.asarray(special.ndtri(uniform))
    spread = np.ptp(values, axis=1)
    if (spread == 0.0).any():
        return _result(subject, count, alpha, 0.0, "A row of noise does not vary.")
    scores -= scores.mean(axis=1, keepdims=True)
    scores /= np.linalg.norm(scores, axis=1, keepdims=True)
    alike = np.abs(scores @ scores.T)
    np.fill_diagonal(alike, 0.0)
    place = int(np.argmax(alike))
    first, second = sorted(divmod(place, count))
    largest = float(alike.reshape(-1)[place])
    p_value = min(1.0, pairs * _tail(largest, length))
    refuted = p_value < alpha
    evidence = (
        f"Rows {first} and {second} of the noise have correlation {largest:.3f}"
        f" (p = {p_value:.2g})."
        if refuted
        else f"No two of {count} rows share noise; half the variance would be detected."
    )
    return _result(subject, count, alpha, p_value, evidence)


def _tail(correlation: float, length: int) -> float:
    if correlation >= 1.0 - 1e-15:
        return 0.0
    t = correlation * math.sqrt((length - 2) / (1.0 - correlation**2))
    return float(2.0 * stats.t.sf(t, length - 2))


def _power(length: int, level: float) -> float:
    """How often a pair with the control's correlation is seen (Fisher's z)."""
    t = float(stats.t.isf(level / 2.0, length - 2))
    least = t / math.sqrt(length - 2 + t * t)
    away = (math.atanh(_SHARED) - math.atanh(least)) * math.sqrt(length - 3)
    return float(stats.norm.cdf(away))


def _result(
    subject: str, rows: int, alpha: float, p_value: float, evidence: str
) -> AuditResult:
    return AuditResult.of_draws(
        subject,
        "shared-noise test",
        runs=rows,
        alpha=alpha,
        refuted=p_value < alpha,
        evidence=evidence,
        p_value=p_value,
    )
