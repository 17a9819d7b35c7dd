"""Which events have a profile to store."""

import pytest

from demur.core.accounting import profile_of
from demur.core.accounting.events import PoissonGaussian, Repeated


@pytest.mark.parametrize(
    ("probability", "stored"), [(0.0, False), (0.2, True), (1.0, False)]
)
def test_only_samples_of_some_records_have_a_profile(probability, stored):
    """Nobody and everybody have a closed form."""
    event = Repeated(PoissonGaussian(probability, 4.0), 3)
    assert (profile_of(event) is not None) is stored
