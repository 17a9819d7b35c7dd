"""Two classes of softmax are logistic regression on the difference of their scores."""

import math

import pytest

from demur.convex.sensitivity.form import HeadForm
from demur.convex.sensitivity.gradient_bounds import grad_diff_bound


@pytest.mark.parametrize("radius", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("theta", [0.3, 1.0, 4.0])
def test_the_bound_of_two_classes_is_at_most_that_of_their_difference(radius, theta):
    two = HeadForm("softmax", lam=1e-6, norm_bound=1.0, num_classes=2)
    one = HeadForm("logistic", lam=1e-6, norm_bound=1.0)
    reached = grad_diff_bound(two, radius, theta_radius=theta)
    apart = grad_diff_bound(one, radius, theta_radius=math.sqrt(2.0) * theta)
    assert reached <= math.sqrt(2.0) * apart * (1 + 1e-12)
