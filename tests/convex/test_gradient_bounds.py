"""G(r): against vectors, against an adversary, and against the seed's constants."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from demur.convex import Fit, HeadForm, lam_from
from demur.convex.sensitivity import gradient_bounds, lz
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.core.adjacency import Ball
from tests.convex.kit import (
    LOSSES,
    largest_difference,
    plain_gradient,
    record_gradient,
)

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "minimiser_radius.json").read_text()
)


@pytest.mark.parametrize("row", VECTORS["rows"], ids=lambda row: row["lam"])
def test_minimiser_radius_matches_the_vectors(row):
    for name, value in row.items():
        if name == "lam":
            continue
        loss, _, classes = name.partition("_")
        if loss == "softmax":
            form = HeadForm("softmax", lam=float(row["lam"]), num_classes=int(classes))
        else:
            form = HeadForm(name, lam=float(row["lam"]))
        radius = gradient_bounds.minimiser_radius(form)
        assert float(value) <= radius <= float(value) * (1 + 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize(("lam", "radius"), [(0.01, 0.1), (0.01, 0.5), (1.0, 0.5)])
def test_an_adversary_never_exceeds_the_bound_and_comes_close(
    loss, classes, lam, radius
):
    form = HeadForm(loss, norm_bound=1.0, lam=lam, num_classes=classes)
    bound = gradient_bounds.grad_diff_bound(form, radius)
    R = gradient_bounds.minimiser_radius(form)
    restarts = 24 if loss != "softmax" else 4
    found = largest_difference(loss, classes, radius, R, restarts=restarts, d=2)
    assert found <= bound
    # The sabotaged twin, half the bound, is exceeded with it. (Where lam is large, the
    # theta that would attain the bound are not minimisers, and it is a little looser.)
    assert found >= bound / (1.5 if lam < 0.1 else 1.75)


@pytest.mark.parametrize("classes", [2, 4, 10])
def test_softmax_is_as_tight_as_the_others_where_lam_is_large(classes):
    """Coefficients near the uniform ones: sqrt(1 - 1/K) in place of sqrt 2."""
    form = HeadForm("softmax", norm_bound=1.0, lam=10.0, num_classes=classes)
    bound = gradient_bounds.grad_diff_bound(form, 0.5)
    R = gradient_bounds.minimiser_radius(form)
    found = largest_difference("softmax", classes, 0.5, R, restarts=3, d=2)
    assert 0.95 * bound <= found <= bound


@pytest.mark.parametrize("classes", [2, 3, 10, 77])
@pytest.mark.parametrize("rho", [0.01, 0.5, 2.0, 8.0])
def test_softmax_coefficients_and_jacobians_over_a_ball_of_scores(classes, rho):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, classes))
    z[:classes] = np.eye(classes) - 1.0 / classes
    z[classes] = np.eye(classes)[1 % classes] - np.eye(classes)[0]
    z[classes + 1] = 1.0 / classes - np.eye(classes)[0]
    z *= rho / np.linalg.norm(z, axis=1, keepdims=True)
    p = softmax(z, axis=1)
    slope = np.linalg.norm(p - np.eye(classes)[0], axis=1).max()
    bound = gradient_bounds._softmax_slope(classes, rho)
    assert slope <= bound <= math.sqrt(2.0)
    norms = [np.linalg.norm(np.diag(q) - np.outer(q, q), 2) for q in p[: classes + 40]]
    jacobian = gradient_bounds._softmax_jacobian(classes, rho)
    assert max(norms) <= jacobian <= 0.5
    # Twin: nothing of either may be taken off where scores are small.
    if rho < 0.1:
        assert slope > 0.98 * bound and max(norms) > 0.9 * jacobian


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_an_adversary_with_more_time(loss, classes, bias):
    for lam in (1e-4, 0.03, 3.0):
        for radius in (0.02, 0.7, 5.0):
            for B in (1.5,):
                form = HeadForm(
                    loss, lam=lam, norm_bound=B, num_classes=classes, bias_scale=bias
                )
                R = gradient_bounds.minimiser_radius(form)
                bound = gradient_bounds.grad_diff_bound(form, radius)
                found = largest_difference(
                    loss, classes, radius, R, B=B, bias=bias, restarts=2, d=2
                )
                assert found <= bound, (lam, radius, B)


def test_the_figures_that_were_promised():
    logistic = HeadForm("logistic", norm_bound=1.0, lam=0.01)
    softmax = HeadForm("softmax", norm_bound=1.0, lam=0.01, num_classes=4)
    assert gradient_bounds.grad_diff_bound(logistic, 0.5) <= 0.98
    assert gradient_bounds.grad_diff_bound(softmax, 0.5) <= 2.07
    # The seed's: 25.5 and 71.
    assert lz.lz_logistic_binary_bound(B=1.0, lam=0.01) * 0.5 == 25.5
    assert round(lz.lz_softmax_linear_bound(B=1.0, lam=0.01) * 0.5) == 71


def test_the_seeds_constants_keep_their_values():
    assert lz.lz_prototypes_exact() == 2.0
    assert lz.lz_logistic_binary_bound(B=1.0, lam=0.01) == 51.0
    assert lz.lz_logistic_binary_bound(B=2.0, lam=1.0, include_bias=False) == 2.0
    assert round(lz.lz_softmax_linear_bound(B=1.0, lam=0.1), 1) == 15.6
    assert lz.lz_squared_hinge_bound(B=1.0, lam=0.01) == pytest.approx(82.0)
    assert lz.lz_glm_data_independent_bound(A=2.0, L=0.5, B=1.0, lam=1.0) == 4.0
    with pytest.raises(ValueError, match="lam must be positive"):
        lz.lz_logistic_binary_bound(B=1.0, lam=0.0)


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
@pytest.mark.parametrize("lam", [1e-4, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("bias", [0.0, 0.1, 1.0])
def test_g_grows_saturates_and_beats_the_alternatives(loss, classes, lam, bias):
    form = HeadForm(loss, lam=lam, norm_bound=1.5, num_classes=classes, bias_scale=bias)
    radii = np.concatenate([[0.0], np.geomspace(1e-6, 4.0, 60)])
    values = [gradient_bounds.grad_diff_bound(form, r) for r in radii]
    assert values[0] == 0.0
    assert all(a <= b for a, b in zip(values, values[1:], strict=False))
    end = gradient_bounds.grad_diff_bound(form, 3.0)
    assert values[-1] == end == gradient_bounds.grad_diff_bound(form, 1e9)
    assert end <= gradient_bounds.full_replacement_bound(form)
    if loss != "squared_hinge":
        # Without a regulariser every theta can be a minimiser.
        everywhere = gradient_bounds.grad_diff_bound(replace(form, lam=0.0), 0.7)
        assert gradient_bounds.grad_diff_bound(form, 0.7) <= everywhere


@pytest.mark.parametrize("lam", [1e-3, 0.01, 0.1])
def test_never_worse_than_the_seeds_constant(lam):
    for radius in np.geomspace(1e-3, 2.0, 20):
        for loss, constant, classes in [
            ("logistic", lz.lz_logistic_binary_bound(B=1.0, lam=lam), 2),
            ("softmax", lz.lz_softmax_linear_bound(B=1.0, lam=lam), 10),
            ("squared_hinge", lz.lz_squared_hinge_bound(B=1.0, lam=lam), 2),
        ]:
            form = HeadForm(loss, norm_bound=1.0, lam=lam, num_classes=classes)
            ours = gradient_bounds.grad_diff_bound(form, radius)
            assert ours <= constant * radius * (1 + 1e-9)


@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_two_gradients_agree(loss, classes):
    rng = np.random.default_rng(3)
    for _ in range(20):
        shape = (classes, 4) if loss == "softmax" else (4,)
        theta, x = rng.normal(size=shape) * 2, rng.normal(size=3)
        label = int(rng.integers(classes))
        sign = label if loss == "softmax" else 2 * label - 1
        ours = record_gradient(loss, theta, x, label, 0.7, classes)
        assert np.allclose(ours, plain_gradient(loss, theta, x, sign, 0.7), atol=1e-12)


def test_huber_constant_is_the_largest_product_of_margin_and_slope():
    m = np.linspace(-1, 3, 400_001)
    for h in (0.05, 0.2, 1 / 3, 0.5, 1.0):
        slope = np.clip((1 + h - m) / (2 * h), 0, 1)
        R = gradient_bounds.minimiser_radius(HeadForm("huber", lam=1.0, huber_width=h))
        assert R**2 == pytest.approx(float((m * slope).max()), rel=1e-6)


def test_conventions_of_regularisation():
    assert lam_from("lambda_frob", 0.005, 10) == 0.01
    assert lam_from("sklearn_C", 2.0, 100) == 0.005
    assert lam_from("weight_decay", 0.1, 10) == 0.1
    with pytest.raises(ValueError, match="convention must be one of"):
        lam_from("ridge", 0.1, 10)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"loss": "hinge"}, "loss must be one of"),
        ({"num_classes": 3}, "is for two classes"),
        ({"radius": -1.0}, "radius must be"),
        ({"radius": math.nan}, "radius must be"),
        ({"lam": -0.1}, "lam must be at least 0"),
        ({"bias_scale": -1.0}, "bias_scale must be at least 0"),
        ({"norm_bound": 0.0}, "norm_bound must be positive"),
        ({"norm_bound": math.nan}, "norm_bound must be positive"),
        ({"norm_bound": math.inf}, "norm_bound must be positive"),
        ({"huber_width": 2.0}, "huber_width must be at most 1"),
        ({"loss": "squared_hinge", "lam": 0.0}, "no largest slope"),
    ],
)
def test_bad_arguments(change, error):
    form = {"loss": "logistic", "norm_bound": 1.0, "lam": 0.01} | change
    radius = form.pop("radius", 0.5)
    with pytest.raises(ValueError, match=error):
        gradient_bounds.grad_diff_bound(HeadForm(**form), radius)


def test_without_a_regulariser_there_is_no_radius_of_minimisers():
    with pytest.raises(ValueError, match="lam must be positive"):
        gradient_bounds.minimiser_radius(HeadForm("logistic", lam=0.0))
    free = HeadForm("squared_hinge", lam=0.0, norm_bound=1.0)
    kept_inside = gradient_bounds.grad_diff_bound(free, 0.5, theta_radius=2.0)
    assert (
        0.0 < kept_inside < gradient_bounds.grad_diff_bound(free, 0.5, theta_radius=3.0)
    )


@pytest.mark.parametrize("r", [1e-7, 1e-12, 1e-17, 1e-150])
def test_softmax_bound_does_not_cancel_at_tiny_radii(r):
    """It is linear there, and at least sqrt(2) r: the steepest coefficient's move."""

    def slope(radius):
        form = HeadForm("softmax", norm_bound=1.0, lam=0.01, num_classes=5)
        return gradient_bounds.grad_diff_bound(form, radius) / radius

    assert slope(r) >= math.sqrt(2.0)
    assert slope(r) == pytest.approx(slope(1e-8), rel=1e-5)


def test_a_bound_that_falls_by_an_ulp_still_makes_a_curve():
    form = HeadForm(
        "logistic", lam=0.00028391315885247377, norm_bound=3.0, bias_scale=0.0
    )
    unit = Ball(0.42, space="records")
    assert erm_sensitivity(form, unit, Fit(1000)).parts.total > 0
