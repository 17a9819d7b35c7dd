r"""Bounds G(r) on how far a record that moves by r moves its gradient, with proofs.

The heads minimise F_D(theta) = (1/n) sum_i l(theta; x_i, y_i) + (lam/2) |theta|^2 with
*every* coordinate regularised, the bias included. A row x enters as x~ = (x, s) with
the bias feature s = `bias_scale`; B bounds |x| and Bt = sqrt(B^2 + s^2) bounds |x~|.

**From G to the sensitivity.** Let u, v minimise F_D, F_D', the two worlds differing in
record j. F_D is lam-strongly convex and grad F_D(u) = grad F_D'(v) = 0, so

    lam |u - v| <= |grad F_D(v)| = |grad F_D(v) - grad F_D'(v)|
                 = (1/n) |grad l(v; z_j) - grad l(v; z'_j)|.

Hence Delta(r) <= G(r) / (lam n) with G(r) the largest such difference over same-label
pairs at distance at most r and over the theta that can be minimisers at all.

**Which theta can be minimisers** (`minimiser_radius`). <grad F(t), t> = 0 reads
lam |t|^2 = mean of -<t, grad l>, and for the losses here -<t, grad l> is a function of
the margins with a maximum c, so |t| <= R = sqrt(c / lam):

    logistic       m / (1 + e^m)                    c = W(1/e) = 0.2785   (Lambert W)
    softmax        log p_y + H(p)                   c = W((K - 1)/e)
    squared hinge  2 (1 - m)_+ m                    c = 1/2
    Huber hinge    m * slope(m), half-width h       c = (1+h)^2 / (8h); 1 - h if h < 1/3

and also |t| <= (largest gradient norm) / lam.

**The difference itself.** A gradient is a coefficient times the row: a x~ for binary
losses (up to the sign of the label, which both worlds share), the outer product of
a = p - e_y with x~ for softmax. For two such gradients, with X = |x~|^2, A = |a|^2,
rho = |x - x'| and t = |a - a'|, polarisation gives the identity

    |a x~ - a' x~'|^2 = (A - A')(X - X')/2 + rho^2 (A + A')/2 + t^2 (X + X')/2
                        - t^2 rho^2 / 2.                                          (*)

*Binary losses.* a = -phi'(m) lies in [0, A] and |a - a'| <= t(r), because the margin
moves by at most R r:

    logistic       A = sigma(R Bt)   t = tanh(R r / 4)   (sigma moves most around 0)
    Huber hinge    A = 1             t = min(1, R r / (2h))
    squared hinge  A = 2 (1 + R Bt)  t = min(A, 2 R r)

(a, a') ranges over a polygon and |a x~ - a' x~'| is convex in it: its vertices decide,
(0, 0), (A, A), (t, 0), (A, A - t) and their mirror images. They give 0, A r, t Bt and

    g(t) = sqrt((A - t)^2 r^2 + t^2 Bt^2 + 2 t (A - t) r B),

the last by <x~ - x~', x~> = <x - x', x> <= r B. As t Bt <= g(t), G(r) = max(A r, g(t)).
g^2 is a convex function of t with g(0) = A r, so G does not decrease in t, nor in r.
(A - t stays non-negative: t <= min(tanh(R r / 4), A), and likewise for the others.)
With A = t = 1 the bound max(r, Bt) holds for every theta, without lam.

*Softmax.* Scores z = theta x~ have |z| <= rho = R Bt. For one class k, by Jensen and
Cauchy-Schwarz, sum over j != k of e^(z_j - z_k) >= (K - 1) e^(-c rho) with
c = sqrt(K / (K - 1)), so that

    p_k <= m(rho) = 1 / (1 + (K - 1) e^(-c rho)).

The Jacobian of softmax, diag(p) - p p^T, has norm at most J = min(1/2, m(rho)): the
second since p p^T >= 0. Scores move by at most R r between the two rows, along a
segment inside the same ball, so t = |p - p'| <= J R r, and t <= sqrt 2. At z = 0 the
norm of a = p - e_y is sqrt(1 - 1/K); going out to z it grows at most by the integral of
the Jacobian's norm, so that

    |a| <= A = min(sqrt 2, sqrt(1 - 1/K) + integral of min(1/2, m(s)) over [0, rho]).

In (*) raising |a|^2 and |a'|^2 together, or X and X' together, never lowers the right
side until A^2 and Bt^2 are reached; what is left is linear in each of |a'|^2, X', t^2
and rho^2, so its maximum over the box

    |a'|^2 in [(A - t)_+^2, A^2],  X' in [(B - r)_+^2 + s^2, Bt^2],  t^2, rho^2 from 0

is at a corner. The box only grows with r, so the bound is monotone. Never larger than
the triangle inequality's A r + t Bt, which is taken too. For K = 2 a softmax is a
logistic loss in w_1 - w_0, whose norm is at most sqrt 2 R, with coefficients sqrt 2
times larger. A gradient is at most A Bt long, which bounds a minimiser by A Bt / lam;
as A depends on R, this is done a few times in turn, from one radius that holds to the
next.

**Caps.** Rows lie in a ball of radius B, so no same-label pair is farther apart than
2B: G is constant from there. A replacement that changes the label as well moves a
gradient by at most twice its largest norm (`full_replacement_bound`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import lambertw

from demur.convex.sensitivity.form import HeadForm
from demur.core import validate

_SQRT2 = math.sqrt(2.0)
# Far above the rounding of the few operations that a bound takes.
_ROUND_UP = 1.0 + 2.0**-40
_ROUNDS = 8


@dataclass(frozen=True)
class _Binary:
    """A margin loss: its largest c, slope and change of slope, as functions of R."""

    constant: Callable[[float], float]
    slope: Callable[[float, float], float]
    slope_change: Callable[[float, float, float], float]


def _huber_constant(h: float) -> float:
    return (1.0 + h) ** 2 / (8.0 * h) if h >= 1.0 / 3.0 else 1.0 - h


_BINARY = {
    "logistic": _Binary(
        constant=lambda h: float(lambertw(math.exp(-1.0)).real),
        slope=lambda R, Bt: 1.0 / (1.0 + math.exp(-R * Bt)),
        slope_change=lambda moved, A, h: min(A, math.tanh(moved / 4.0)),
    ),
    "huber": _Binary(
        constant=_huber_constant,
        slope=lambda R, Bt: 1.0,
        slope_change=lambda moved, A, h: min(1.0, moved / (2.0 * h)),
    ),
    "squared_hinge": _Binary(
        constant=lambda h: 0.5,
        slope=lambda R, Bt: 2.0 * (1.0 + R * Bt),
        slope_change=lambda moved, A, h: min(A, 2.0 * moved),
    ),
}


def minimiser_radius(form: HeadForm) -> float:
    """The radius R of the set of possible minimisers, |theta| <= R; tight.

    Without a norm bound it is sqrt(c / lam); with one, also the bound from the largest
    gradient, which is smaller where lam is large.

    >>> round(minimiser_radius(HeadForm("logistic", lam=0.01)), 6)
    5.276974
    >>> round(minimiser_radius(HeadForm("softmax", lam=0.01, num_classes=77)), 6)
    15.617628
    """
    lam = form.lam
    validate.positive(lam=lam)
    if form.multinomial:
        constant = float(lambertw((form.num_classes - 1) / math.e).real)
    else:
        constant = _BINARY[form.loss].constant(form.huber_width)
    radius = math.sqrt(constant / lam) * _ROUND_UP
    if math.isinf(form.norm_bound):
        return radius
    Bt = form.augmented_norm
    if form.loss == "squared_hinge":
        # While R Bt <= 1/2 the product 2 (1 - m) m grows up to m = R Bt, which gives
        # lam R <= 2 (1 - R Bt) Bt.
        if radius * Bt <= 0.5:
            radius = min(radius, 2.0 * Bt / (lam + 2.0 * Bt * Bt) * _ROUND_UP)
        return radius
    if not form.multinomial:
        return min(radius, Bt / lam * _ROUND_UP)
    for _ in range(_ROUNDS):
        steepest = _softmax_slope(form.num_classes, radius * Bt)
        radius = min(radius, steepest * Bt / lam * _ROUND_UP)
    return radius


def _theta_radius(form: HeadForm, theta_radius: float | None) -> float:
    """R from lam, or the radius that theta is kept inside by other means."""
    radius = math.inf
    if theta_radius is not None:
        validate.positive(theta_radius=theta_radius)
        radius = float(theta_radius)
    if form.lam > 0:
        radius = min(radius, minimiser_radius(form))
    if form.loss == "squared_hinge" and math.isinf(radius):
        raise ValueError(
            "the squared hinge has no largest slope: give a positive lam or a"
            " theta_radius, or use loss='huber'. Nothing was spent."
        )
    return radius


def grad_diff_bound(
    form: HeadForm, radius: float, *, theta_radius: float | None = None
) -> float:
    """G(r): the most that a same-label move by `radius` moves one record's gradient.

    It holds for every theta that can minimise the objective: for every theta where lam
    is 0. `theta_radius` says that theta is kept inside a ball by other means (noisy
    gradient descent projects it). From radius 2 `norm_bound` on the bound is constant.

    >>> round(grad_diff_bound(HeadForm("logistic", lam=0.01, norm_bound=1.0), 0.5), 3)
    0.978
    >>> form = HeadForm("softmax", lam=0.01, norm_bound=1.0, num_classes=4)
    >>> round(grad_diff_bound(form, 0.5), 3)
    2.062
    """
    validate.non_negative(radius=radius)
    B, s, Bt = form.norm_bound, form.bias_scale, form.augmented_norm
    R = _theta_radius(form, theta_radius)
    r = min(float(radius), 2.0 * B)
    if r == 0.0:
        return 0.0
    if not form.multinomial:
        margin = _BINARY[form.loss]
        A = margin.slope(R, Bt)
        t = margin.slope_change(R * r, A, form.huber_width)
        return _margin_bound(r, A, t, B, Bt)
    K = form.num_classes
    A = _softmax_slope(K, R * Bt)
    t = min(_SQRT2, 2.0 * A, _softmax_jacobian(K, R * Bt) * R * r)
    bound = _softmax_bound(r, t, A, B, s, Bt)
    if K == 2:
        A = _BINARY["logistic"].slope(_SQRT2 * R, Bt)
        t = min(A, math.tanh(_SQRT2 * R * r / 4.0))
        bound = min(bound, _SQRT2 * _margin_bound(r, A, t, B, Bt))
    return bound


def _softmax_jacobian(K: int, rho: float) -> float:
    """The largest norm of the Jacobian over scores of norm at most rho."""
    c = math.sqrt(K / (K - 1))
    return min(0.5, 1.0 / (1.0 + (K - 1) * math.exp(-c * rho)) * _ROUND_UP)


def _softmax_slope(K: int, rho: float) -> float:
    """The largest |p - e_y| over scores of norm at most rho."""
    c = math.sqrt(K / (K - 1))
    half = math.log(K - 1) / c  # from here on the norm is bounded by 1/2
    inner = min(rho, half)
    grown = math.log((math.exp(c * inner) + K - 1) / K) / c
    grown += 0.5 * max(rho - half, 0.0)
    return min(_SQRT2, (math.sqrt(1.0 - 1.0 / K) + grown) * _ROUND_UP)


def _margin_bound(r: float, A: float, t: float, B: float, Bt: float) -> float:
    """max(A r, g(t)) of the module docstring."""
    square = (A - t) ** 2 * r * r + t * t * Bt * Bt + 2.0 * t * (A - t) * r * B
    return max(A * r, math.sqrt(square)) * _ROUND_UP


def _softmax_bound(
    r: float, t: float, A: float, B: float, s: float, Bt: float
) -> float:
    """The largest corner of (*), and never more than the triangle inequality."""
    # A^2 - |a'|^2 and Bt^2 - X' at the far ends of the box, without cancellation.
    less_a = t * (2.0 * A - t) if t < A else A * A
    less_x = r * (2.0 * B - r) if r < B else B * B
    largest = max(
        da * dx + rho2 * (2.0 * A * A - da) + t2 * (2.0 * Bt * Bt - dx - rho2)
        for da, dx, t2, rho2 in itertools.product(
            (0.0, less_a), (0.0, less_x), (0.0, t * t), (0.0, r * r)
        )
    )
    corner = max(math.sqrt(largest / 2.0), A * r)
    return min(corner, A * r + t * Bt) * _ROUND_UP


def full_replacement_bound(
    form: HeadForm, *, theta_radius: float | None = None
) -> float:
    """The most that any replacement, label included, can move one record's gradient.

    Twice the largest gradient norm: 2 sigma(R Bt) Bt (logistic), 2 Bt (Huber),
    2 A Bt (softmax, A <= sqrt 2), 4 (1 + R Bt) Bt (squared hinge). `theta_radius` as in
    `grad_diff_bound`.

    >>> form = HeadForm("logistic", lam=0.01, norm_bound=1.0)
    >>> round(full_replacement_bound(form), 3)
    2.827
    """
    return 2.0 * gradient_norm_bound(form, theta_radius=theta_radius)


def gradient_norm_bound(form: HeadForm, *, theta_radius: float | None = None) -> float:
    """The largest norm of one record's gradient; theta as in `grad_diff_bound`."""
    Bt = form.augmented_norm
    R = _theta_radius(form, theta_radius)
    if form.multinomial:
        A = _softmax_slope(form.num_classes, R * Bt)
    else:
        A = _BINARY[form.loss].slope(R, Bt)
    return A * Bt * _ROUND_UP


def smoothness(form: HeadForm) -> float:
    """The largest curvature of the mean loss: Bt^2 times 1/4, 1/2, 2 or 1/(2h)."""
    curvature = {
        "logistic": 0.25,
        "softmax": 0.5,
        "squared_hinge": 2.0,
        "huber": 0.5 / form.huber_width,
    }[form.loss]
    return curvature * form.augmented_norm**2
