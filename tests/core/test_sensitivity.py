"""Tables of sensitivities: what their smallest number is."""

import pytest

from demur.core.adjacency import AddOrRemoveOne, ReplaceOne
from demur.core.curve import PiecewiseLinear
from demur.core.sensitivity import Sensitivity

CAPPED = PiecewiseLinear.linear(slope=2.0, cap=0.5)
RISING = PiecewiseLinear(
    ((0.0, 0.0), (4.0, 12.0)), saturates=False
)  # 3 for each unit of distance


@pytest.mark.parametrize(
    ("table", "smallest"),
    [
        ({AddOrRemoveOne(): 1.0, ReplaceOne(): 2.0}, 1.0),
        ({ReplaceOne(): 2.0, "cube": CAPPED}, 0.5),
        ({ReplaceOne(): 0.25, "cube": CAPPED}, 0.25),
        ({"line": RISING}, 3.0),  # not 12 at its end, and not 6 at a distance of 2
        ({"line": PiecewiseLinear(((0.0, 0.0), (0.5, 1.5)), saturates=False)}, 1.5),
    ],
)
def test_the_smallest_number_of_a_table(table, smallest):
    assert Sensitivity.of(table).smallest() == smallest
