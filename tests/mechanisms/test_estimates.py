"""Estimates from noisy numbers."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from demur.mechanisms.estimates import bounded_mean, positive_mean


def test_the_mean_of_a_cut_normal():
    for estimate, error in [(1.0, 1.0), (-3.0, 0.5), (0.2, 5.0), (-20.0, 1.0)]:
        mass = quad(lambda t: norm.pdf(t, estimate, error), 0, np.inf, limit=200)[0]  # noqa: B023
        first = quad(lambda t: t * norm.pdf(t, estimate, error), 0, np.inf, limit=200)  # noqa: B023
        if mass > 1e-12:
            assert positive_mean(estimate, error) == pytest.approx(first[0] / mass)
    assert positive_mean(5.0, 0.0) == 5.0
    values = [positive_mean(z, 1.0) for z in (-1e9, -1e5, -9999.0, -100.0, -1.0, 0.0)]
    assert values[0] > 0.0 and values == sorted(values)


@pytest.mark.parametrize("largest", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("error", [0.01, 0.1, 0.3, 1.0, 5.0, 1000.0])
def test_the_mean_of_a_normal_that_is_cut_on_both_sides(error, largest):
    for estimate in (-100.0, -5.0, -1.0, 0.0, 0.05, 0.5, 0.9, 1.0, 1.5, 7.0, 200.0):
        nearest = min(max(estimate, 0.0), 1.0)
        off = ((nearest - estimate) / error) ** 2
        # Most of the weight may lie within a small part of the interval.
        scale = error**2 / max(abs(nearest - estimate), error)
        ends = sorted({0.0, 1.0, *np.clip(nearest + scale * np.arange(-30, 31), 0, 1)})
        moments = [0.0, 0.0]
        for power in (0, 1):
            for low, high in zip(ends, ends[1:], strict=False):
                moments[power] += quad(
                    lambda t: (
                        t**power * np.exp((off - ((t - estimate) / error) ** 2) / 2)  # noqa: B023
                    ),
                    low,
                    high,
                )[0]
        found = bounded_mean(estimate * largest, error * largest, largest)
        assert found == pytest.approx(moments[1] / moments[0] * largest, rel=1e-3)
    assert bounded_mean(0.4, 0.1, np.inf) == positive_mean(0.4, 0.1)
