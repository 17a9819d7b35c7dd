"""A privacy promise: at most epsilon at delta for one unit."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne, Unit

# The largest float stands for no limit: for one release in memory whose epsilon is past
# any meaning. A promise without a limit holds whatever is spent.
NO_LIMIT = sys.float_info.max


@dataclass(frozen=True)
class Promise:
    """At most `epsilon` at `delta` for two datasets that differ by one `unit`.

    An entry carries one for each budget of its ledger; an engine calibrates to one.
    """

    unit: Unit
    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.probability(delta=self.delta)


def promise_at(
    epsilon: float,
    delta: float,
    *,
    unit: Unit | None,
    radius: float | None,
    space: str,
) -> Promise:
    """The promise of an estimator that takes `unit`, or `radius` for short.

    The unit is a ball, or ReplaceOne: the number of records is public at both, and the
    noise of a mean shows it.
    """
    validate.positive(epsilon=epsilon)
    validate.open_probability(delta=delta)
    validate.name(space=space)
    if unit is not None and radius is not None:
        raise ValueError(
            "radius and unit were both given; radius=r is short for"
            " unit=Ball(r, space=...), so give one of them"
        )
    if unit is None and radius is None:
        raise ValueError(
            "radius must be declared: how far a record may move, in the space"
            f" {space!r}. It comes from policy or public data, or from"
            " demur.convex.private_radius(...), which pays for it. For any change of a"
            " record, its label included, give unit=ReplaceOne() instead."
        )
    if unit is None:
        validate.positive(radius=radius)
        assert radius is not None
        unit = Ball(float(radius), space=space)
    if not isinstance(unit, Ball | ReplaceOne):
        raise TypeError(
            "unit must be a Ball or ReplaceOne(), where the number of records is"
            f" public; got {validate.shorten(unit)}"
        )
    return Promise(unit, float(epsilon), float(delta))
