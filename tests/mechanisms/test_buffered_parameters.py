"""The free parameters of a buffered strategy and the strategies they stand for."""

import numpy as np
import pytest
from scipy.special import expit

from demur.mechanisms.correlated.buffered import Buffered, _unpack


@pytest.mark.parametrize(
    "logits",
    [[-3.0, -2.5], [-0.5, -40.0], [0.0, 0.0], [2.0, -1.0], [30.0, 29.0]],
)
def test_scales_are_shares_beside_one_that_is_left_free(logits):
    free = np.array([0.3, -1.2, *logits])
    decays, scales = _unpack(free)
    np.testing.assert_allclose(decays, expit(free[:2]), rtol=1e-14)
    raised = np.exp(free[2:])
    np.testing.assert_allclose(scales, raised / (1.0 + raised.sum()), rtol=1e-12)


def test_huge_parameters_stay_numbers():
    _, scales = _unpack(np.array([0.0, 0.0, 2000.0, 1990.0]))
    assert np.isfinite(scales).all()
    assert scales.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("decays", "scales"),
    [
        ([0.0, 0.5], [0.2, 0.2]),
        ([1.0, 0.5], [0.2, 0.2]),
        ([-0.1, 0.5], [0.2, 0.2]),
        ([0.5, 0.4], [0.0, 0.2]),
        ([0.5, 0.4], [0.9, 0.2]),
        ([0.5, np.nan], [0.2, 0.2]),
        ([0.5, 0.4], [0.2, np.nan]),
        ([0.5, 0.4], [0.2]),
        ([], []),
    ],
)
def test_strategies_outside_the_proof_are_refused(decays, scales):
    with pytest.raises(ValueError, match="decays|scales"):
        Buffered(decays, scales, 5)
    assert Buffered([0.5, 0.4], [0.5, 0.5], 5).coefs()[0] == 1.0
