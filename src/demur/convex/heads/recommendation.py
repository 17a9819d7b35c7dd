r"""Which head to take, from public numbers alone: by the noise that each would get.

No data are touched, so that asking costs nothing. For rows of norm at most B, with the
bias Bt, each candidate has noise that is known before anything is fitted. It is
compared with the size of what it is added to:

- prototypes: the noise of a class mean over B, rms over the classes;
- noisy gradient descent: T steps of eta add noise of about eta sigma sqrt(T) to theta,
  while a signal that every step sees can move it by eta T A Bt; with
  sigma = sqrt(T) G / (n mu) the quotient is G / (n mu A Bt), whatever T and eta. Each
  of K score vectors has 1/sqrt(K) of the length: sqrt(K) times this is its share;
- output perturbation: sigma = Delta / mu over the largest minimiser R, times sqrt(K)
  for the same reason. It falls as 1 / sqrt(lam), and lam = "auto" is the smallest lam
  of a grid at which it is at most `OUTPUT_SHARE`.

Descent uses more of the data than class means do (which see no correlations), and needs
more of them: it is recommended where its share is at most `DESCENT_SHARE`, prototypes
otherwise. The two constants are conventions, not theorems: docs/convex.md says on what
they were set and what the heads reach there. A setting that is chosen on public data of
the same kind can do better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demur.convex.heads.prototypes import plan_prototypes
from demur.convex.sensitivity.form import TAU, HeadForm
from demur.convex.sensitivity.gradient_bounds import (
    full_replacement_bound,
    grad_diff_bound,
    gradient_norm_bound,
    minimiser_radius,
)
from demur.core import validate
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound, BoundSource
from demur.core.promise import promise_at

DESCENT_SHARE = 5e-4
OUTPUT_SHARE = 1.0 / 64.0
LAMS = tuple(10.0 ** (k / 4.0) for k in range(-24, 9))
_ANY_THETA = 1e4  # noisy descent without a bound on theta


@dataclass(frozen=True)
class HeadCandidate:
    """A head, its lam, and its noise relative to what the noise is added to."""

    head: str
    mechanism: str
    lam: float
    noise_share: float


@dataclass(frozen=True)
class Recommendation:
    """The head to take, and all that were compared."""

    best: HeadCandidate
    table: tuple[HeadCandidate, ...]

    def __str__(self) -> str:
        lines = ["head          mechanism  lam       noise share"]
        for one in self.table:
            mark = "  <- recommended" if one == self.best else ""
            lines.append(
                f"{one.head:<13} {one.mechanism:<10} {one.lam:<9.3g}"
                f" {one.noise_share:.2g}{mark}"
            )
        return "\n".join(lines)


def recommend(
    n: int,
    d: int,
    K: int,
    counts: Sequence[int] | None = None,
    *,
    unit: Ball | ReplaceOne,
    epsilon: float,
    delta: float = 1e-6,
    norm_bound: float = 1.0,
    bias_scale: float = 1.0,
) -> Recommendation:
    """The head for n rows of d columns in K classes, by the noise it would get.

    `counts` are the sizes of the classes where they are public (default: equal). No
    data are touched.

    >>> unit = Ball(0.42, space="records")
    >>> recommend(10_000, 384, 77, unit=unit, epsilon=1.0).best.head
    'prototypes'
    >>> recommend(32_000, 108, 2, unit=ReplaceOne(), epsilon=1.0).best.mechanism
    'noisy_gd'
    """
    validate.count(n=n, d=d, K=K)
    promise = promise_at(epsilon, delta, unit=unit, radius=None, space="records")
    sizes = np.full(K, n // K) if counts is None else np.asarray(counts, dtype=np.int64)
    if (
        K < 2
        or sizes.shape != (K,)
        or (sizes < 0).any()
        or (counts and sizes.sum() != n)
    ):
        raise ValueError(
            f"counts must be {K} sizes of classes (at least two) that add up to n={n}"
        )
    loss = "logistic" if K == 2 else "softmax"
    vectors = 1.0 if K == 2 else math.sqrt(K)
    mu = gaussian_mu(epsilon, ideal_delta(delta))
    plan = plan_prototypes(
        sizes,
        promise,
        dimension=d,
        lam=0.0,
        bound=Bound(norm_bound, BoundSource.DECLARED),
        step=2.0**-44,
    )
    noise = plan.width / np.maximum(sizes, 1.0)
    means = HeadCandidate(
        "prototypes",
        "output",
        0.0,
        float(np.sqrt(np.mean(noise**2))) / norm_bound,
    )
    free = _form(loss, 0.0, K, norm_bound, bias_scale)
    full = full_replacement_bound(free, theta_radius=_ANY_THETA)
    moved = full
    if isinstance(unit, Ball):
        moved = grad_diff_bound(free, unit.radius, theta_radius=_ANY_THETA)
    moved *= unit.records_per_person
    signal = gradient_norm_bound(free, theta_radius=_ANY_THETA)
    descent = HeadCandidate(loss, "noisy_gd", 0.0, vectors * moved / (n * mu * signal))
    lam = auto_lam(
        _form(loss, 1.0, K, norm_bound, bias_scale),
        unit,
        n,
        epsilon=epsilon,
        delta=delta,
    )
    share = _output_share(_form(loss, lam, K, norm_bound, bias_scale), unit, n, mu)
    output = HeadCandidate(loss, "output", lam, share)
    best = descent if descent.noise_share <= DESCENT_SHARE else means
    return Recommendation(best, (means, descent, output))


def is_auto(lam: object) -> bool:
    """Whether a parameter asks for `auto_lam`."""
    return isinstance(lam, str) and lam == "auto"


def auto_lam(
    form: HeadForm,
    unit: Ball | ReplaceOne,
    n: int,
    *,
    epsilon: float,
    delta: float,
) -> float:
    """The smallest lam of a public grid whose noise share is at most `OUTPUT_SHARE`.

    The largest of the grid where none is.
    """
    mu = gaussian_mu(epsilon, ideal_delta(delta))
    for lam in LAMS:
        stated = _form(
            form.loss, lam, form.num_classes, form.norm_bound, form.bias_scale
        )
        if _output_share(stated, unit, n, mu) <= OUTPUT_SHARE:
            return lam
    return LAMS[-1]


def _form(loss: str, lam: float, K: int, norm_bound: float, bias: float) -> HeadForm:
    return HeadForm(
        loss, lam=lam, norm_bound=norm_bound, num_classes=K, bias_scale=bias
    )


def _output_share(form: HeadForm, unit: Ball | ReplaceOne, n: int, mu: float) -> float:
    moved = full_replacement_bound(form)
    if isinstance(unit, Ball):
        moved = grad_diff_bound(form, unit.radius)
    delta = unit.records_per_person * moved / (form.lam * n) + 2.0 * TAU / form.lam
    vectors = math.sqrt(form.num_classes) if form.multinomial else 1.0
    return vectors * delta / mu / minimiser_radius(form)
