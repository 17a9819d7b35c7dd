"""`RangeScaler`: features of dicts scaled by declared ranges."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar, Self, TypeAlias

from demur.core import validate
from demur.unlearning.estimators.arrays import feature
from demur.unlearning.estimators.river_habits import RiverHabits

Ranges: TypeAlias = Mapping[Hashable, tuple[float, float]]


class RangeScaler(RiverHabits):
    """Each feature from its declared range to [-1, 1], clipped at the ends.

    `ranges` gives (low, high) for each name. They must be public: known without looking
    at the records, such as a scale's ends or an agreed unit. A range that was read off
    the data keeps the records which set it, and no deletion takes them back. The map is
    then the same for a record whenever it is applied, so every mode's theorem holds
    behind it, and the row that is unlearned is the row that was learned. For arrays see
    `demur.preprocessing.PublicScaler`. The ranges are copied.

    >>> scaler = RangeScaler({"age": (0, 120), "income": (0, 200_000)})
    >>> scaler.transform_one({"age": 30, "income": 150_000})
    {'age': -0.5, 'income': 0.5}
    """

    _river_kind: ClassVar[str] = "Transformer"
    fixed_map: ClassVar[bool] = True

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Register with river, loaded or not: a pipeline applies its own kind alone."""
        with suppress(ImportError):
            import_module("river.base")
        return super().__new__(cls)

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges

    @property
    def ranges(self) -> dict[Hashable, tuple[float, float]]:
        """(low, high) of each feature; a copy, as the map is fixed."""
        return dict(self._ranges)

    @ranges.setter
    def ranges(self, ranges: Ranges) -> None:
        """Check and copy them."""
        self._ranges = {name: _range(name, ends) for name, ends in ranges.items()}
        self._middles = {
            name: (low / 2.0 + high / 2.0, high / 2.0 - low / 2.0)
            for name, (low, high) in self._ranges.items()
        }

    def __sklearn_clone__(self) -> Self:
        return type(self)(self._ranges)

    @property
    def _supervised(self) -> bool:
        return False

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"ranges": {}}

    def _unit_test_skips(self) -> set[str]:
        return set()

    def learn_one(self, x: Mapping[Hashable, float]) -> None:
        """Nothing: there is nothing to learn."""

    def unlearn_one(self, x: Mapping[Hashable, float]) -> None:
        """Nothing: nothing was learned."""

    def transform_one(self, x: Mapping[Hashable, float]) -> dict[Hashable, float]:
        """The scaled features; those without a range are refused."""
        unknown = sum(name not in self._middles for name in x)
        if unknown:  # names may be data, so they are not quoted
            raise ValueError(
                f"{unknown} of the {len(x)} features of x have no range: declare (low,"
                " high) for them in `ranges`, or leave them out before the scaler"
            )
        return {name: _scaled(value, *self._middles[name]) for name, value in x.items()}


def _scaled(value: float, middle: float, half: float) -> float:
    number = feature(value)
    if not math.isfinite(number):
        raise ValueError("the features of x must be finite numbers")
    return min(max((number - middle) / half, -1.0), 1.0)


def _range(name: Hashable, ends: tuple[float, float]) -> tuple[float, float]:
    """A declared range, or what is wrong with it."""
    low, high = ends
    validate.finite(low=low, high=high)
    if not low < high:
        raise ValueError(
            f"the range of {validate.shorten(name)} must have low < high; got"
            f" ({low}, {high})"
        )
    if not float(high) / 2.0 - float(low) / 2.0 >= sys.float_info.min:
        raise ValueError(
            f"the range of {validate.shorten(name)} is too narrow for float64: choose"
            " a larger unit"
        )
    return float(low), float(high)
