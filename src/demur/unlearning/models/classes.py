"""More than two classes: their numbers, scores and probabilities, and softmax's bounds.

A mode with `classes=K` has a matrix W of weights, one row for each class, laid end to
end in one vector. The softmax loss of a record (x, y) in the scores s = W x is
l(s) = log sum_c exp(s_c) - s_y. With p = softmax(s), as a function of the scores,

    |grad l|  = |p - e_y| < sqrt(2):  its square is (1 - p_y)^2 + sum_(c != y) p_c^2, at
                most 2 (1 - p_y)^2;
    0 <= Hess l = diag(p) - p p' <= 1/2:  a covariance matrix, whose rows have absolute
                sums 2 p_c (1 - p_c) <= 1/2;
    |Hess l(s) - Hess l(t)| <= M |s - t|,  M = sqrt(6) / 9 = 2 sqrt(2) / (6 sqrt(3)).

*Proof of the last.* The third derivative is a symmetric trilinear form, so its norm is
its largest value on one unit vector v three times: the third central moment of the
number v_c when c is drawn from p. Given its mean, the moment is linear in the
distribution, so it is largest on two values: at most r^3 q (1 - q) (1 - 2 q), at most
r^3 / (6 sqrt(3)), for values that are r apart, and r <= sqrt(2) |v|. [] Two classes
reach all three bounds. In W, x multiplies: Frobenius norms of gradients are at most
sqrt(2) B, and Hessians are Kronecker products of those above with x x'.
"""

from __future__ import annotations

import math

import numpy as np

from demur.core import validate
from demur.core.rounding import up
from demur.unlearning.models import kernels
from demur.unlearning.models.base import Array
from demur.unlearning.models.inputs import number

SOFTMAX_SLOPE = up(math.sqrt(2.0))
SOFTMAX_SMOOTH = 0.5


def check_classes(classes: int | None) -> None:
    """A number of classes, or None for a mode without."""
    if classes is not None:
        validate.count(classes=classes)
        if classes < 2:
            raise ValueError(f"classes must be at least 2; got {classes}")


def class_number(y: object, classes: int) -> float:
    """A class as a whole number from 0 on; the error does not quote it."""
    value = float(y) if isinstance(y, (bool, np.bool_)) else number(y)
    if not (0.0 <= value < classes and value == math.floor(value)):
        raise ValueError(
            f"y must be a class, a whole number from 0 to {classes - 1}; got another"
            " number"
        )
    return value


def class_scores(w: Array, row: Array, classes: int) -> Array:
    """The score of a clipped row for each class."""
    scores: Array = kernels.class_scores(w, row, 1.0, classes)
    return scores


def class_probabilities(w: Array, row: Array, classes: int) -> Array:
    """The softmax of the scores."""
    p = class_scores(w, row, classes)
    kernels.softmax(p)
    return p


def nearest_distribution(scores: Array) -> Array:
    """The Euclidean projection onto the simplex: scores less a constant, cut at 0."""
    scores = scores - scores.max()  # so that 1 counts, however large they are
    falling = np.sort(scores)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, scores.size + 1)
    level = excess[falling > excess][-1]
    nearest: Array = np.maximum(scores - level, 0.0)
    return nearest
