"""Likelihood-ratio audits of a Gaussian release on pairs of made-up datasets.

The draws here simulate a release; a seed may repeat them. Nothing that an audit
computes from real data is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from demur.core import validate
from demur.core.accounting import gdp

Floats = NDArray[np.float64]
MakeNeighbor = Callable[
    [Floats, np.random.Generator], tuple[Floats, int, Floats, Floats]
]


def gaussian_llr(y: ArrayLike, mu0: ArrayLike, mu1: ArrayLike, sigma: float) -> float:
    """log p(y | N(mu0, sigma^2)) - log p(y | N(mu1, sigma^2)): positive favours mu0.

    >>> gaussian_llr([0.0], [0.0], [2.0], 1.0)
    2.0
    """
    validate.positive(sigma=sigma)
    seen, first, second = (np.asarray(v, dtype=np.float64) for v in (y, mu0, mu1))
    # |y - m1|^2 - |y - m0|^2 = (m0 - m1) . (2 y - m0 - m1), without cancellation.
    gap = np.sum((first - second) * (2.0 * seen - first - second))
    return float(gap) / (2.0 * float(sigma) ** 2)


def llr_attack_predict(
    y: ArrayLike, mu0: ArrayLike, mu1: ArrayLike, sigma: float
) -> int:
    """0 where the first dataset is at least as likely, else 1."""
    return int(gaussian_llr(y, mu0, mu1, sigma) < 0.0)


def gaussian_expected_llr_attack_acc(
    mu0: ArrayLike, mu1: ArrayLike, sigma: float
) -> float:
    """Phi(d / (2 sigma)): the best accuracy at even odds, d = |mu0 - mu1|."""
    return gaussian_expected_llr_attack_acc_from_distance(_distance(mu0, mu1), sigma)


def gaussian_expected_llr_attack_acc_from_distance(d: float, sigma: float) -> float:
    """Phi(d / (2 sigma)); 1/2 where nothing lies between the two.

    >>> round(gaussian_expected_llr_attack_acc_from_distance(2.0, 1.0), 4)
    0.8413
    """
    validate.finite(d=d)
    validate.positive(sigma=sigma)
    return float(norm.cdf(max(float(d), 0.0) / (2.0 * float(sigma))))


def gaussian_dp_slack_closed_form(
    mu0: ArrayLike, mu1: ArrayLike, sigma: float, eps: float
) -> tuple[float, float]:
    """The pair's exact delta at eps in both directions; a Gaussian's are equal."""
    return gaussian_dp_slack_from_distance_closed_form(_distance(mu0, mu1), sigma, eps)


def gaussian_dp_slack_from_distance_closed_form(
    d: float, sigma: float, eps: float
) -> tuple[float, float]:
    """The exact delta at eps of two Gaussians `d` apart, in both directions.

    >>> round(gaussian_dp_slack_from_distance_closed_form(1.0, 1.0, 1.0)[0], 6)
    0.126937
    """
    validate.finite(d=d)
    validate.positive(sigma=sigma, eps=eps)
    if d <= 0.0:
        return 0.0, 0.0
    delta = math.exp(gdp.log_delta(float(d) / float(sigma), float(eps)))
    return delta, delta


@dataclass(frozen=True)
class LLRAuditResult:
    """Accuracy of the best attack, its statistics by dataset, and the delta it finds.

    L is log p(y | D) / p(y | D'). `delta_hat_*` are plain frequencies: estimates, not
    confidence bounds.
    """

    attack_acc: float
    llr_mean_under_D: float
    llr_std_under_D: float
    llr_mean_under_Dprime: float
    llr_std_under_Dprime: float
    p_L_gt_eps_under_D: float
    p_L_gt_eps_under_Dprime: float
    delta_hat_D_to_Dprime: float
    p_L_lt_minus_eps_under_D: float
    p_L_lt_minus_eps_under_Dprime: float
    delta_hat_Dprime_to_D: float
    n_trials: int
    n_D: int
    n_Dprime: int


def run_llr_audit_trials(
    *,
    f: Callable[[Floats], Floats],
    make_neighbor: MakeNeighbor,
    D: Floats,
    sigma: float,
    eps: float,
    n_trials: int = 2000,
    seed: int = 0,
) -> LLRAuditResult:
    """Simulate releases of f(D) and f(D'), and attack each with the likelihood ratio.

    `make_neighbor(D, rng)` returns (D', bit, mu0, mu1): bit 0 where this trial runs on
    D, 1 where it runs on D'; mu0 = f(D), mu1 = f(D'). `f` itself is not called.
    """
    validate.positive(sigma=sigma, eps=eps)
    validate.count(n_trials=n_trials)
    rng = np.random.default_rng(seed)
    bits = np.empty(n_trials, dtype=np.int64)
    ratios = np.empty(n_trials)
    for trial in range(n_trials):
        _, bit, mu0, mu1 = make_neighbor(D, rng)
        if bit not in (0, 1):
            raise ValueError(f"make_neighbor must return a bit of 0 or 1; got {bit!r}")
        mean = np.asarray(mu1 if bit else mu0, dtype=np.float64)
        noisy = mean + rng.normal(0.0, float(sigma), size=mean.shape)
        bits[trial] = bit
        ratios[trial] = gaussian_llr(noisy, mu0, mu1, sigma)
    on_d, on_other = ratios[bits == 0], ratios[bits == 1]
    above = _share(on_d > eps), _share(on_other > eps)
    below = _share(on_d < -eps), _share(on_other < -eps)
    factor = math.exp(eps)
    return LLRAuditResult(
        attack_acc=float(np.mean((ratios < 0.0) == (bits == 1))),
        llr_mean_under_D=_mean(on_d),
        llr_std_under_D=float(on_d.std()) if on_d.size else 0.0,
        llr_mean_under_Dprime=_mean(on_other),
        llr_std_under_Dprime=float(on_other.std()) if on_other.size else 0.0,
        p_L_gt_eps_under_D=above[0],
        p_L_gt_eps_under_Dprime=above[1],
        delta_hat_D_to_Dprime=max(0.0, above[0] - factor * above[1]),
        p_L_lt_minus_eps_under_D=below[0],
        p_L_lt_minus_eps_under_Dprime=below[1],
        delta_hat_Dprime_to_D=max(0.0, below[1] - factor * below[0]),
        n_trials=int(n_trials),
        n_D=int(on_d.size),
        n_Dprime=int(on_other.size),
    )


def aggregate_closed_form_gaussian_audit(
    dists: ArrayLike, *, sigma: float, eps: float
) -> dict[str, Any]:
    """The closed forms over many pairs at distances `dists`.

    The mean accuracy of the attack (`attack_acc_mean`), the largest delta in each
    direction (`delta_dir_max`, `delta_rev_max`), and min, med, p95, max and n of the
    distances (`d_summary`).
    """
    values = np.asarray(dists, dtype=np.float64).reshape(-1)
    if not values.size:
        raise ValueError("dists must hold at least one distance")
    pairs = [float(d) for d in values]
    accuracy = [gaussian_expected_llr_attack_acc_from_distance(d, sigma) for d in pairs]
    slack = np.array(
        [gaussian_dp_slack_from_distance_closed_form(d, sigma, eps) for d in pairs]
    )
    return {
        "attack_acc_mean": float(np.mean(accuracy)),
        "delta_dir_max": float(slack[:, 0].max()),
        "delta_rev_max": float(slack[:, 1].max()),
        "d_summary": {
            "min": float(values.min()),
            "med": float(np.median(values)),
            "p95": float(np.quantile(values, 0.95)),
            "max": float(values.max()),
            "n": len(pairs),
        },
    }


def _distance(mu0: ArrayLike, mu1: ArrayLike) -> float:
    gap = np.asarray(mu0, dtype=np.float64) - np.asarray(mu1, dtype=np.float64)
    return float(np.linalg.norm(gap.reshape(-1)))


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0


def _share(hits: NDArray[np.bool_]) -> float:
    return float(hits.mean()) if hits.size else 0.0
