r"""Which head to take, from public numbers alone: by the noise that each would get.

No data are touched, so that asking costs nothing. For rows of norm at most B, with the
bias Bt, each candidate has noise that is known before anything is fitted. It is
compared with the size of what it is added to:

- prototypes: the noise of a class mean over B, rms over the classes;
- noisy gradient descent: T steps of eta add noise of about eta sigma sqrt(T) to theta,
  while a signal that every step sees can move it by eta T A Bt; with
  sigma = sqrt(T) G / (n mu) the quotient is G / (n mu A Bt), whatever T and eta. Each
  of K score vectors has 1/sqrt(K) of the length: sqrt(K) times this is its share;
- discriminant analysis: the largest eigenvalue that noise alone would have in the
  second moments, over B^2 / d, the mean of theirs at most;
- output perturbation: sigma = Delta / mu over the largest minimiser R, times sqrt(K)
  for the same reason. It falls as 1 / sqrt(lam), and lam = "auto" is the smallest lam
  of a grid at which it is at most `OUTPUT_SHARE`.

Descent uses more of the data than class means do (which see no correlations), and needs
more of them: it is recommended where its share is at most `DESCENT_SHARE`, then
discriminant analysis where its own is at most `MOMENT_SHARE`, prototypes otherwise. The
three constants are conventions, not theorems: docs/convex.md says on what
they were set and what the heads reach there. A setting that is chosen on public data of
the same kind can do better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from demur.convex.heads.discriminant import plan_discriminant
from demur.convex.heads.noisy_gd import LARGEST_THETA
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
MOMENT_SHARE = 2.5
OUTPUT_SHARE = 1.0 / 64.0
LAMS = tuple(10.0 ** (k / 4.0) for k in range(-24, 9))


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
    equal = n // K + (np.arange(K) < n % K)
    sizes = np.asarray(equal if counts is None else counts, dtype=np.int64)
    if (
        K < 2
        or sizes.shape != (K,)
        or (sizes < 0).any()
        or (counts is not None and sizes.sum() != n)
    ):
        raise ValueError(
            f"counts must be {K} sizes of classes (at least two) that add up to n={n}"
        )
    if counts is not None and not isinstance(unit, Ball):
        raise ValueError(
            f"counts must be left out at {unit}: the sizes of the classes are not"
            " public there"
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
    form = HeadForm(
        loss, lam=0.0, norm_bound=norm_bound, num_classes=K, bias_scale=bias_scale
    )
    moved = _moved(form, unit, theta_radius=LARGEST_THETA)
    signal = gradient_norm_bound(form, theta_radius=LARGEST_THETA)
    descent = HeadCandidate(loss, "noisy_gd", 0.0, vectors * moved / (n * mu * signal))
    lam = auto_lam(form, unit, n, epsilon=epsilon, delta=delta)
    share = _output_share(replace(form, lam=lam), unit, n, mu)
    output = HeadCandidate(loss, "output", lam, share)
    moments = plan_discriminant(
        sizes,
        promise,
        dimension=d,
        bound=Bound(norm_bound, BoundSource.DECLARED),
        step=2.0**-44,
    )
    discriminant = HeadCandidate(
        "discriminant", "output", 0.0, moments.edge * d / norm_bound**2
    )
    best = means
    if descent.noise_share <= DESCENT_SHARE:
        best = descent
    elif discriminant.noise_share <= MOMENT_SHARE:
        best = discriminant
    return Recommendation(best, (means, descent, output, discriminant))


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

    The largest of the grid where none is. The form's own lam does not matter.
    """
    mu = gaussian_mu(epsilon, ideal_delta(delta))
    for lam in LAMS:
        if _output_share(replace(form, lam=lam), unit, n, mu) <= OUTPUT_SHARE:
            return lam
    return LAMS[-1]


def _moved(
    form: HeadForm, unit: Ball | ReplaceOne, *, theta_radius: float | None = None
) -> float:
    """How far the gradients of one person's records move at `unit`."""
    if isinstance(unit, Ball):
        one = grad_diff_bound(form, unit.radius, theta_radius=theta_radius)
    else:
        one = full_replacement_bound(form, theta_radius=theta_radius)
    return unit.records_per_person * one


def _output_share(form: HeadForm, unit: Ball | ReplaceOne, n: int, mu: float) -> float:
    delta = _moved(form, unit) / (form.lam * n) + 2.0 * TAU / form.lam
    vectors = math.sqrt(form.num_classes) if form.multinomial else 1.0
    return vectors * delta / mu / minimiser_radius(form)
