"""A step of the seed's mode that leaves the floats in one coordinate is refused."""

import numpy as np
import pytest

from demur.unlearning import make_mode

HUGE = np.array([1.7e308, 0.0])


def at_the_edge():
    mode = make_mode("seed", 2)
    mode.forget_nothing(HUGE)
    return mode


def test_a_deletion_that_diverges_in_one_coordinate_is_refused():
    mode = at_the_edge()
    before = mode.digest()
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="diverges"):
        mode.delete([0.0, 1.0], 0.0, HUGE)
    assert mode.digest() == before
    mode.delete([0.0, 1.0], 0.0, -HUGE)  # one that does not is made
    assert mode.published().tolist() == [0.0, 0.0]


def test_an_insertion_that_diverges_in_one_coordinate_is_refused():
    mode = make_mode("seed", 2, step=1e200)
    before = mode.digest()
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="diverges"):
        mode.insert([1e120, 0.0], 1e120)
    assert mode.digest() == before
