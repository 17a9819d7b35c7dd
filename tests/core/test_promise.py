"""What an estimator promises: its unit, or a radius for short, and nothing else."""

import math

import numpy as np
import pytest

from demur import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.promise import Promise, promise_at

ASKED = {"epsilon": 1.0, "delta": 1e-6, "space": "pixels"}


def test_a_radius_is_short_for_a_ball():
    for radius in (0.5, np.float32(0.5)):
        promise = promise_at(unit=None, radius=radius, **ASKED)
        assert promise == Promise(Ball(0.5, space="pixels"), 1.0, 1e-6)


@pytest.mark.parametrize("unit", [Ball(0.5, space="x"), ReplaceOne()])
def test_a_unit_is_taken_as_it_is(unit):
    asked = ASKED | {"epsilon": np.float32(1.0)}
    promise = promise_at(unit=unit, radius=None, **asked)
    assert promise == Promise(unit, 1.0, 1e-6) and type(promise.epsilon) is float


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"unit": ReplaceOne(), "radius": 0.5}, ValueError, "were both given"),
        ({}, ValueError, "radius must be declared"),
        ({"radius": 0.0}, ValueError, "radius must be positive"),
        ({"radius": math.inf}, ValueError, "radius must be positive"),
        ({"unit": AddOrRemoveOne()}, TypeError, "unit must be a Ball or ReplaceOne"),
        ({"unit": 0.5}, TypeError, "unit must be a Ball or ReplaceOne"),
        ({"radius": 0.5, "epsilon": 0.0}, ValueError, "epsilon"),
        ({"radius": 0.5, "delta": 0.0}, ValueError, "delta"),
        ({"radius": 0.5, "delta": 1.0}, ValueError, "delta"),
        ({"radius": 0.5, "space": ""}, ValueError, "space"),
    ],
)
def test_anything_else_is_refused(change, kind, text):
    with pytest.raises(kind, match=text):
        promise_at(**({"unit": None, "radius": None} | ASKED | change))
