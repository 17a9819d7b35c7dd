"""Searches for strategies are given the gradient of what they minimise."""

import numpy as np
import pytest

from demur.mechanisms.correlated import buffered, dense, toeplitz


class Stop(Exception):
    """The objective has been seen."""


def objective_of(module, monkeypatch, search):
    """What a search hands to the minimiser, and where it starts."""
    seen = []

    def minimize_smooth(objective, start, **_):
        seen.append((objective, np.array(start)))
        raise Stop

    monkeypatch.setattr(module, "minimize_smooth", minimize_smooth)
    with pytest.raises(Stop):
        search()
    return seen[0]


@pytest.mark.parametrize(
    ("module", "search"),
    [
        (dense, lambda: dense.optimize_dense(5, bands=3)),
        (toeplitz, lambda: toeplitz.optimize_banded_toeplitz(6, 3)),
        (buffered, lambda: buffered.optimize_buffered(8, buffers=2)),
    ],
    ids=["dense", "toeplitz", "buffered"],
)
def test_gradients_are_those_of_the_objective(module, search, monkeypatch):
    objective, start = objective_of(module, monkeypatch, search)
    draw = np.random.default_rng(0)
    for _ in range(3):
        at = start + 0.05 * draw.normal(size=start.shape)
        _, gradient = objective(at)
        for i in range(len(at)):
            step = np.zeros(len(at))
            step[i] = 1e-5
            slope = (objective(at + step)[0] - objective(at - step)[0]) / 2e-5
            assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-7)
