"""What `demur reports inspect` counts, and that a wrong sampler would be seen."""

import math

import numpy as np
import pytest
from scipy import integrate

from demur.cluster import inspection
from demur.cluster.inspection import Share, inspect
from demur.core.entropy import Seeded
from demur.mechanisms import BPM

SETTINGS = [
    (2.0, 0.3, 2),
    (4.0, 0.5, 2),
    (4.0, "auto", 1),
    (8.0, 1.0, 3),
    (6.0, math.inf, 4),
]


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "L", "d"), SETTINGS)
def test_reports_fall_where_the_density_says(epsilon, L, d):
    bpm = BPM(epsilon, L, d)
    found = inspect(bpm, 50_000, source=Seeded(1))
    assert found.share.agrees and len(found.reports) == 50_000
    for shell in found.shells:
        # The mean of the density over the shell, by quadrature of its radial law.
        def law(r):
            return r ** (d - 1) * math.exp(-epsilon * min(r, bpm.L))

        if shell.outer > bpm.L:
            expected = bpm.log_lambda_L - epsilon * bpm.L
        else:
            mass = integrate.quad(law, shell.inner, shell.outer)[0]
            volume = (shell.outer**d - shell.inner**d) / d
            expected = bpm.log_lambda_L + math.log(mass / volume)
        # 99% intervals of up to 18 shells, hence a little room beyond them.
        room = 0.35 * (shell.high - shell.low) + 0.01
        assert shell.low - room <= expected <= shell.high + room


@pytest.mark.parametrize(
    ("epsilon", "L", "d", "wrong"), [(2.0, 0.3, 2, 0.2182), (4.0, 0.5, 2, 0.798)]
)
def test_the_seeds_probability_does_not_agree(epsilon, L, d, wrong):
    """2000 reports drawn with the seed's p_L: its own check passed, this one fails."""
    drawn = int(np.random.default_rng(2).binomial(2000, wrong))
    assert not Share(drawn, 2000, BPM(epsilon, L, d).p_L).agrees
    assert Share(drawn, 2000, wrong).agrees  # the seed's "verification" is circular


@pytest.mark.slow
def test_a_density_that_does_not_level_off_is_seen():
    """Laplace reports against the profile of a small L: shells beyond L are too low."""
    bpm, laplace = BPM(8.0, 0.2, 2), BPM(8.0, math.inf, 2)
    reports = inspect(laplace, 50_000, source=Seeded(3)).reports
    distances = np.linalg.norm(reports - 0.5, axis=1)
    shells = inspection._shells(bpm, np.full(2, 0.5), distances)
    level = bpm.log_lambda_L - 8.0 * 0.2
    assert any(not s.low <= level <= s.high for s in shells if s.inner >= 0.2)


def test_the_interval_is_clopper_and_pearsons():
    low, high = Share(0, 100, 0.0).interval
    assert low == 0.0 and high == pytest.approx(1 - 0.005 ** (1 / 100), rel=1e-9)


@pytest.mark.slow
def test_seeds_repeat_and_the_operating_system_does_not():
    bpm = BPM(4.0, 0.5, 2)
    one, two = (inspect(bpm, 20, source=Seeded(4)).reports for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(inspect(bpm, 20).reports, inspect(bpm, 20).reports)


@pytest.mark.slow
@pytest.mark.parametrize(("L", "d"), [(0.0, 2), (0.5, 200), (0.5, 784), ("auto", 64)])
def test_corners_of_the_parameters(L, d):
    found = inspect(BPM(2.0, L, d), 200, source=Seeded(0))
    assert found.shells and all(not math.isnan(s.log_density) for s in found.shells)
    assert sum(s.count for s in found.shells) >= 150


def test_bad_input():
    with pytest.raises(ValueError, match="samples must be at least 1"):
        inspect(BPM(4.0, 0.5, 2), 0)
    with pytest.raises(ValueError, match="unit cube"):
        inspect(BPM(4.0, 0.5, 2), 5, point=np.array([2.0, 0.0]))
