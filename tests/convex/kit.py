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
    """The same by hand, for speed and as a second opinion; y is a class or a sign.

    For one theta and one x, or for as many of both, one below the other.
    """
    row = np.concatenate([x, np.full((*x.shape[:-1], 1), bias)], axis=-1)
    if loss == "softmax":
        scores = (theta * row[..., None, :]).sum(axis=-1)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        p[..., y] -= 1.0
        return p[..., None] * row[..., None, :]
    m = y * (theta * row).sum(axis=-1)
    if loss == "logistic":
        a = 1.0 / (1.0 + np.exp(np.minimum(m, 700.0)))
    elif loss == "squared_hinge":
        a = 2.0 * np.maximum(0.0, 1.0 - m)
    else:
        a = np.clip((1.0 + HUBER_WIDTH - m) / (2.0 * HUBER_WIDTH), 0.0, 1.0)
    return -(a * y)[..., None] * row


def into_ball(v, radius):
    norm = np.linalg.norm(v, axis=-1, keepdims=True)
    return np.where(norm > radius, v * (radius / np.maximum(norm, 1e-300)), v)


def largest_difference(
    loss, classes, radius, theta_radius, *, B=1.0, bias=1.0, restarts=12, seed=0, d=3
):
    """The largest same-label gradient difference that a search with restarts finds."""
    rng = np.random.default_rng(seed)
    shape = (classes, d + 1) if loss == "softmax" else (d + 1,)
    size = int(np.prod(shape))
    label = 0 if loss == "softmax" else 1

    def unpack(v):
        theta = into_ball(v[:, :size], theta_radius).reshape(-1, *shape)
        x = into_ball(v[:, size : size + d], B)
        # Projecting x' as well keeps it within the radius: projections do not stretch.
        return theta, x, into_ball(x + into_ball(v[:, size + d :], radius), B)

    def losses_of(v):
        theta, x, other = unpack(v)
        one = plain_gradient(loss, theta, x, label, bias)
        two = plain_gradient(loss, theta, other, label, bias)
        return -np.linalg.norm((one - two).reshape(len(v), -1), axis=1)

    def with_slope(v):
        """The loss and its forward differences, all in one go."""
        steps = 1.5e-8 * np.where(v < 0, -1.0, 1.0) * np.maximum(1.0, np.abs(v))
        here, *beside = losses_of(np.vstack([v, v + np.diag(steps)]))
        return here, (np.array(beside) - here) / ((v + steps) - v)

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
        found = minimize(
            with_slope, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}
        )
        best = max(best, -float(found.fun), -float(losses_of(start[None])[0]))
    return best


def blobs(n=200, d=4, classes=3, seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d))
    centres /= 1.3 * np.linalg.norm(centres, axis=1, keepdims=True)
    y = np.arange(n) % classes
    return centres[y] + spread * rng.normal(size=(n, d)) / np.sqrt(d), y
