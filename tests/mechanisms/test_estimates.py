"""Estimates from noisy numbers."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from demur.mechanisms.estimates import positive_mean


def test_the_mean_of_a_cut_normal():
    for estimate, error in [(1.0, 1.0), (-3.0, 0.5), (0.2, 5.0), (-20.0, 1.0)]:
        mass = quad(lambda t: norm.pdf(t, estimate, error), 0, np.inf, limit=200)[0]  # noqa: B023
        first = quad(lambda t: t * norm.pdf(t, estimate, error), 0, np.inf, limit=200)  # noqa: B023
        if mass > 1e-12:
            assert positive_mean(estimate, error) == pytest.approx(first[0] / mass)
    assert positive_mean(5.0, 0.0) == 5.0
    values = [positive_mean(z, 1.0) for z in (-1e9, -1e5, -9999.0, -100.0, -1.0, 0.0)]
    assert values[0] > 0.0 and values == sorted(values)
