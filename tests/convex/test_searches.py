"""Adversarial searches: gradients, real minimisers, and end to end through `fit`.

The floors lie below what a search of this length reached (2026-11-16): under them the
search itself would be broken. They are no statement about tightness.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    BallSVC,
    HeadForm,
)
from demur.convex.sensitivity.gradient_bounds import grad_diff_bound, minimiser_radius
from demur.core.adjacency import Ball, ReplaceOne
from demur.preprocessing import ClipRows, PublicScaler, RandomProjection
from tests.convex.kit import LOSSES, largest_difference
from tests.convex.search import largest_minimiser_ratio, largest_ratio

BALL, ANY = Ball(0.4, space="records"), ReplaceOne()
TWO = Ball(0.4, space="records", records_per_person=2)
ANY_TWO = ReplaceOne(records_per_person=2)
TWO_CLASSES, THREE = [0, 1], [0, 1, 2]

logistic = partial(BallLogisticRegression, classes=TWO_CLASSES, bias_scale=0.0)
softmax = partial(BallSoftmaxClassifier, classes=THREE, bias_scale=0.0)
huber = partial(BallSVC, classes=TWO_CLASSES, bias_scale=0.0)
squared = partial(huber, loss="squared_hinge")
prototypes = partial(BallPrototypeClassifier, classes=THREE)
discriminant = partial(BallDiscriminantClassifier, classes=THREE)
GD = {"lam": 0.0, "mechanism": "noisy_gd", "steps": 3}

CASES = {
    "prototypes, a ball": (prototypes, BALL, {}, 0.8),
    "prototypes, ridge": (prototypes, BALL, {"lam": 0.3}, 0.8),
    "prototypes, any": (prototypes, ANY, {}, 0.8),
    "prototypes, persons of two": (prototypes, TWO, {}, 0.8),
    "discriminant, a ball": (discriminant, BALL, {}, 0.8),
    "discriminant, any": (discriminant, ANY, {}, 0.6),
    "discriminant, persons of two": (discriminant, TWO, {}, 0.7),
    "logistic, a ball": (logistic, BALL, {"lam": 5.0}, 0.68),
    "logistic, any": (logistic, ANY, {"lam": 5.0}, 0.7),
    "logistic with a bias": (
        partial(logistic, bias_scale=1.0),
        BALL,
        {"lam": 0.5},
        0.4,
    ),
    "softmax, a ball": (softmax, BALL, {"lam": 5.0}, 0.68),
    "softmax, any": (softmax, ANY, {"lam": 5.0}, 0.7),
    "huber, a ball": (huber, BALL, {"lam": 5.0}, 0.7),
    "huber, any": (huber, ANY, {"lam": 0.5}, 0.8),
    "squared hinge, any": (squared, ANY, {"lam": 5.0}, 0.55),
    "descent, logistic, a ball": (logistic, BALL, GD | {"theta_radius": 1.0}, 0.65),
    "descent, logistic, any": (logistic, ANY, GD, 0.6),
    "descent, softmax, a ball": (softmax, BALL, GD | {"theta_radius": 1.0}, 0.5),
    "descent, softmax, any": (softmax, ANY, GD, 0.6),
    "descent, persons of two": (logistic, TWO, GD, 0.3),
    "prototypes, any two": (prototypes, ANY_TWO, {}, 0.6),
    "discriminant, any two": (discriminant, ANY_TWO, {}, 0.6),
    "huber, any two": (huber, ANY_TWO, {"lam": 5.0}, 0.8),
}
# In every run: one of each kind of release.
SHORT = {
    "prototypes, any": 0.8,
    "discriminant, a ball": 0.7,
    "huber, any": 0.5,
    "descent, logistic, any": 0.3,
}


def searched(name: str, attack=None, **effort) -> float:
    make, unit, options, _ = CASES[name]
    head = partial(make, unit=unit, **options)
    classes = len(make.keywords["classes"])
    return largest_ratio(head, attack or unit, classes=classes, n=20, **effort)


@pytest.mark.deep
@pytest.mark.parametrize("name", CASES)
def test_no_pair_is_told_apart_better_than_promised(name):
    assert CASES[name][3] <= searched(name, restarts=4, steps=60) <= 1.0


def weighed(**given):
    """A head whose `fit` is given weights, the largest that count."""
    head = BallSVC(unit=BALL, classes=TWO_CLASSES, lam=20.0, bias_scale=0.0, **given)
    head.set_params(weight_bound=4.0, class_weight={0: 1.0, 1: 0.5})
    return SimpleNamespace(fit=lambda X, y: head.fit(X, y, np.full(len(y), 9.0)))


def behind_maps(maps, **given):
    head = prototypes(unit=BALL, norm_bound=3.0, **given)
    return make_pipeline(*maps(), head)


AROUND = {
    "weights": (weighed, 2, 0.7),
    "a scaler": (partial(behind_maps, lambda: [PublicScaler(-1, 1)]), 3, 0.8),
    "three maps": (
        partial(
            behind_maps,
            lambda: [ClipRows(0.8), PublicScaler(-0.5, 0.5), RandomProjection(2)],
        ),
        3,
        0.5,
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", AROUND)
def test_nor_through_weights_and_maps(name):
    make, classes, floor = AROUND[name]
    found = largest_ratio(make, BALL, classes=classes, restarts=4, steps=60, n=12)
    assert floor <= found <= 1.0


@pytest.mark.deep
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_no_minimiser_moves_farther_than_delta(loss, classes, lam):
    form = HeadForm(loss, lam=lam, norm_bound=1.0, num_classes=classes, bias_scale=0.5)
    for unit in (BALL, ANY, TWO):
        found = largest_minimiser_ratio(form, unit, restarts=3, steps=60)
        # Where lam is small, the rows of 20 others curve the objective by far more.
        assert {1e-3: 0.0, 0.1: 0.1, 10.0: 0.6}[lam] < found <= 1.0


@pytest.mark.deep
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("B", [0.5, 1.0, 3.0])
def test_no_gradient_moves_farther_than_g(loss, classes, B):
    for lam in (1e-4, 1e-2, 1.0, 10.0):
        for r in (0.01, 0.3, 1.0, 2.0 * B):
            form = HeadForm(loss, lam=lam, norm_bound=B, num_classes=classes)
            inside = minimiser_radius(form)
            found = largest_difference(loss, classes, r, inside, B=B, restarts=6, d=2)
            assert found <= grad_diff_bound(form, r)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_short_search(name):
    assert SHORT[name] <= searched(name, restarts=1, steps=8) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["prototypes, a ball", "discriminant, a ball", "logistic, a ball"]
)
def test_twin_with_noise_for_half_the_radius_is_caught(name):
    wide = Ball(2 * BALL.radius, space="records")
    assert searched(name, attack=wide, restarts=1, steps=6) > 1.0
