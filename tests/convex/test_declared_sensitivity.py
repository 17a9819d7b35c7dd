"""Delta(r) of a loss with a declared constant, by hand; the seed's constants."""

import math

import pytest

from demur.convex import DeclaredForm, Fit, HeadForm, minimiser_radius
from demur.convex.sensitivity import curves, lz
from demur.convex.sensitivity.curves import dominating_curve
from demur.core.adjacency import Ball, ReplaceOne

CASE = {"n": 50, "lam": 0.2, "norm_bound": 3.0, "radius": 0.7, "tau": 1e-3}


def declared_sensitivity(lz_constant, gradient_bound=None, **case):
    form = DeclaredForm(
        lz=lz_constant,
        lam=case["lam"],
        norm_bound=case["norm_bound"],
        gradient_bound=gradient_bound,
    )
    unit = Ball(case["radius"], space="records")
    return curves.declared_sensitivity(form, unit, Fit(case["n"], tau=case["tau"]))


def logistic_sensitivity(classes_public=True, **case):
    form = HeadForm("logistic", lam=case["lam"], norm_bound=case["norm_bound"])
    unit = Ball(case["radius"], space="records")
    fit = Fit(case["n"], tau=case["tau"], classes_public=classes_public)
    return curves.erm_sensitivity(form, unit, fit)


def delta_by_hand(lz_constant, radius, gradient_bound=math.inf):
    """min(Lz min(r, 2B), 2G) / (lam n) + 2 tau / lam."""
    difference = min(lz_constant * min(radius, 6.0), 2.0 * gradient_bound)
    return difference / (0.2 * 50) + 2.0 * 1e-3 / 0.2


@pytest.mark.parametrize("radius", [0.7, 5.3, 6.0, 40.0])
@pytest.mark.parametrize("gradient_bound", [None, 2.5])
def test_the_declared_constant_is_charged_up_to_the_diameter(radius, gradient_bound):
    case = CASE | {"radius": radius}
    found = declared_sensitivity(1.5, **case, gradient_bound=gradient_bound)
    exact = delta_by_hand(1.5, radius, gradient_bound or math.inf)
    at = found.table.at(Ball(radius, space="records"))
    assert exact <= at <= exact * (1 + 1e-8)
    (curve,) = [curve for _, curve in found.table.spaces]
    assert curve.knots[-1][0] == 6.0 and curve.saturates
    everything = delta_by_hand(1.5, 6.0, gradient_bound or math.inf)
    for beyond in (6.0, 100.0):
        at = found.table.at(Ball(beyond, space="records"))
        assert everything <= at <= everything * (1 + 1e-8)
    if gradient_bound is not None:
        full = 2.0 * gradient_bound / (0.2 * 50) + 0.01
        assert full <= found.table.at(ReplaceOne()) <= full * (1 + 1e-8)


def test_the_breakdown_adds_up():
    parts = declared_sensitivity(1.5, **CASE, gradient_bound=2.5).parts
    assert (parts.loss, parts.n, parts.lam) == ("declared", 50, 0.2)
    assert parts.norm_bound == 3.0 and parts.minimiser_radius is None
    assert parts.gradient_difference == pytest.approx(1.5 * 0.7, rel=1e-14)
    assert parts.from_record == pytest.approx(1.5 * 0.7 / 10, rel=1e-8)
    assert parts.from_solver == pytest.approx(0.01, rel=1e-8)
    assert parts.total == pytest.approx(parts.from_record + 0.01, rel=1e-8)
    assert parts.same_label == pytest.approx(0.5 + 0.01, rel=1e-8)
    assert parts.full_replacement == pytest.approx(0.5 + 0.01, rel=1e-8)
    assert declared_sensitivity(1.5, **CASE).parts.full_replacement is None
    logistic = logistic_sensitivity(**CASE).parts
    assert logistic.minimiser_radius == minimiser_radius(
        HeadForm("logistic", norm_bound=3.0, lam=0.2, num_classes=2, bias_scale=1.0)
    )


def test_classes_read_off_the_labels_say_nothing_of_replacement():
    assert logistic_sensitivity(**CASE).parts.full_replacement > 0
    without = logistic_sensitivity(**CASE, classes_public=False)
    assert without.parts.full_replacement is None


def test_knots_are_close_and_one_is_next_to_the_declared_radius():
    curve = dominating_curve(lambda r: min(r, 2.0), largest=2.0, exact_at=0.3)
    radii = [radius for radius, _ in curve.knots]
    assert 0.3 in radii and 0.3 * (1 + 2.0**-30) in radii
    # The smallest is just below 1e-4 of the largest.
    assert radii[-1] == 2.0 and 1e-4 * 2.0 / 1.04 <= radii[1] <= 1e-4 * 2.0
    steps = [b / a for a, b in zip(radii[1:], radii[2:], strict=False)]
    assert max(steps) <= 1.04 * (1 + 1e-12)
    wide = dominating_curve(lambda r: min(r, 2.0), largest=2.0, exact_at=5.0)
    assert wide.knots[-1][0] == 2.0


@pytest.mark.parametrize("field", ["lam", "norm_bound", "radius", "n", "tau"])
@pytest.mark.parametrize("bad", [-1, math.nan])
def test_bad_numbers_are_refused(field, bad):
    with pytest.raises((ValueError, TypeError), match=field):
        declared_sensitivity(1.5, **(CASE | {field: bad}))
    with pytest.raises((ValueError, TypeError), match=field):
        logistic_sensitivity(**(CASE | {field: bad}))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_constants_are_refused(bad):
    with pytest.raises(ValueError, match="lz"):
        declared_sensitivity(bad, **CASE)
    with pytest.raises(ValueError, match="gradient_bound"):
        declared_sensitivity(1.5, **CASE, gradient_bound=bad)


def test_no_slack_of_the_solver_is_none():
    found = declared_sensitivity(1.5, **(CASE | {"tau": 0.0}))
    assert found.parts.from_solver == 0.0


# ------------------------------------------------------------- the seed's constants Lz


@pytest.mark.parametrize(("include_bias", "square"), [(True, 10.0), (False, 9.0)])
def test_the_seeds_constants_by_hand(include_bias, square):
    case = {"B": 3.0, "lam": 0.2, "include_bias": include_bias}
    assert lz.lz_logistic_binary_bound(**case) == 1.0 + square / 0.8
    softmax = math.sqrt(2.0) * (1.0 + square / 0.4)
    assert lz.lz_softmax_linear_bound(**case) == pytest.approx(softmax, rel=1e-15)
    glm = lz.lz_glm_data_independent_bound(A=0.5, L=0.3, **case)
    assert glm == pytest.approx(0.5 * (1.0 + 0.3 * square / 0.2), rel=1e-15)
    hinge = 2.0 + 4.0 * math.sqrt(square * 2.0 / 0.2)
    assert lz.lz_squared_hinge_bound(**case) == pytest.approx(hinge, rel=1e-15)
    assert lz.lz_prototypes_exact() == 2.0


def test_a_row_has_a_bias_unless_it_is_left_out():
    case = {"B": 3.0, "lam": 0.2}
    for bound in (
        lz.lz_logistic_binary_bound,
        lz.lz_softmax_linear_bound,
        lz.lz_squared_hinge_bound,
    ):
        assert bound(**case) == bound(**case, include_bias=True)
    glm = lz.lz_glm_data_independent_bound(A=0.5, L=0.3, **case)
    assert glm == lz.lz_glm_data_independent_bound(
        A=0.5, L=0.3, **case, include_bias=True
    )


@pytest.mark.parametrize("change", [{"B": 0.0}, {"lam": -1.0}, {"A": 0.0}, {"L": -0.1}])
def test_bad_constants_of_the_seed_are_refused(change):
    good = {"A": 0.5, "L": 0.0, "B": 3.0, "lam": 0.2}
    assert lz.lz_glm_data_independent_bound(**good) == 0.5
    with pytest.raises(ValueError, match=next(iter(change))):
        lz.lz_glm_data_independent_bound(**(good | change))
