"""The curve read off point masses is never below the exact sum, and hardly above."""

from types import SimpleNamespace

import mpmath as mp
import numpy as np
import pytest

from demur.core.accounting.sampled_profiles import _hockey_stick

STEP = 2.0**-4


def masses(seed, size=40):
    """Point masses over many magnitudes, as a composition leaves them."""
    draw = np.random.default_rng(seed)
    probabilities = np.exp(-draw.uniform(0.0, 30.0, size))
    probabilities /= probabilities.sum() * (1.0 + 1e-6)
    return SimpleNamespace(
        _lower_loss=-7, size=size, _probs=probabilities, _infinity_mass=1e-8
    )


def exact(pmf, place):
    with mp.workdps(40):
        losses = [pmf._lower_loss + i for i in range(pmf.size)]
        terms = (
            mp.mpf(p) * -mp.expm1(-(at - place) * mp.mpf(STEP))
            for at, p in zip(losses, pmf._probs.tolist(), strict=True)
            if at > place
        )
        return mp.mpf(pmf._infinity_mass) + mp.fsum(terms)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("error", [0.0, 1e-12])
def test_the_curve_is_the_exact_sum_rounded_up(seed, error):
    pmf = masses(seed)
    first, last = -9, 35
    curve = _hockey_stick(pmf, first, last, STEP, error)
    assert curve.size == last - first + 2
    for place, found in zip(range(first, last + 2), curve.tolist(), strict=True):
        true = exact(pmf, place)
        assert true + error <= found
        assert found <= min(1.0, true * (1 + mp.mpf(2e-9)) + error + 1e-15)
