"""Small problems, and an adversary that looks for the largest gradient difference."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from demur.convex import HeadForm, objective
from demur.convex.sensitivity.form import HUBER_WIDTH

LOSSES = [("logistic", 2), ("squared_hinge", 2), ("huber", 2), ("softmax", 2)]
LOSSES += [("softmax", 4), ("softmax", 10)]


def record_gradient(loss, theta, x, label, bias, classes):
    """The gradient of one record's loss, through the engine's own objective."""
    form = HeadForm(loss, lam=0.0, bias_scale=bias, num_classes=classes)
    stated = objective(form, x[None, :], np.array([label]))
    return stated.value_and_gradient(theta)[1]


def plain_gradient(loss, theta, x, y, bias):
    """The same by hand, for speed and as a second opinion; y is a class or a sign."""
    row = np.append(x, bias)
    if loss == "softmax":
        scores = theta @ row
        p = np.exp(scores - scores.max())
        p /= p.sum()
        p[y] -= 1.0
        return np.outer(p, row)
    m = y * (theta @ row)
    if loss == "logistic":
        a = 1.0 / (1.0 + np.exp(min(m, 700.0)))
    elif loss == "squared_hinge":
        a = 2.0 * max(0.0, 1.0 - m)
    else:
        a = min(1.0, max(0.0, (1.0 + HUBER_WIDTH - m) / (2.0 * HUBER_WIDTH)))
    return -a * y * row


def into_ball(v, radius):
    norm = np.linalg.norm(v)
    return v * (radius / norm) if norm > radius else v


def largest_difference(
    loss, classes, radius, theta_radius, *, B=1.0, bias=1.0, restarts=12, seed=0, d=3
):
    """The largest same-label gradient difference that a search with restarts finds."""
    rng = np.random.default_rng(seed)
    shape = (classes, d + 1) if loss == "softmax" else (d + 1,)
    size = int(np.prod(shape))
    label = 0 if loss == "softmax" else 1

    def unpack(v):
        theta = into_ball(v[:size], theta_radius).reshape(shape)
        x = into_ball(v[size : size + d], B)
        # Projecting x' as well keeps it within the radius: projections do not stretch.
        return theta, x, into_ball(x + into_ball(v[size + d :], radius), B)

    def loss_of(v):
        theta, x, other = unpack(v)
        one = plain_gradient(loss, theta, x, label, bias)
        two = plain_gradient(loss, theta, other, label, bias)
        return -float(np.linalg.norm(one - two))

    best = 0.0
    for _ in range(restarts):
        start = np.concatenate(
            [
                rng.normal(size=size)
                * theta_radius
                / np.sqrt(size)
                * rng.uniform(0, 2),
                rng.normal(size=d) * B,
                rng.normal(size=d) * radius,
            ]
        )
        found = minimize(loss_of, start, method="L-BFGS-B", options={"maxiter": 60})
        best = max(best, -float(found.fun), -loss_of(start))
    return best


def blobs(n=200, d=4, classes=3, seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d))
    centres /= 1.3 * np.linalg.norm(centres, axis=1, keepdims=True)
    y = np.arange(n) % classes
    return centres[y] + spread * rng.normal(size=(n, d)) / np.sqrt(d), y
