"""`RangeScaler`: features of dicts scaled by declared ranges."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator

from demur.core import validate
from demur.unlearning.estimators.river_habits import RiverHabits


class RangeScaler(RiverHabits, BaseEstimator):
    """Each feature from its declared range to [-1, 1], clipped at the ends.

    `ranges` gives (low, high) for each name. They must be public: known without looking
    at the records, such as a scale's ends or an agreed unit. A range that was read off
    the data keeps the records which set it, and no deletion takes them back. The map is
    then the same for a record whenever it is applied, so every mode's theorem holds
    behind it, and the row that is unlearned is the row that was learned. For arrays see
    `demur.preprocessing.PublicScaler`.

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

    def __init__(self, ranges: Mapping[Hashable, tuple[float, float]]) -> None:
        self.ranges = ranges

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
        return {name: self._scaled(name, value) for name, value in x.items()}

    def _scaled(self, name: Hashable, value: float) -> float:
        low, high = self._range(name)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("the features of x must be numbers") from None
        if not math.isfinite(number):
            raise ValueError("the features of x must be finite numbers")
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        return min(max((number - middle) / half, -1.0), 1.0)

    def _range(self, name: Hashable) -> tuple[float, float]:
        if name not in self.ranges:
            raise ValueError(
                f"feature {validate.shorten(name)} has no range: declare (low, high) in"
                " `ranges`"
            )
        low, high = self.ranges[name]
        validate.finite(low=low, high=high)
        if not low < high:
            raise ValueError(
                f"the range of {validate.shorten(name)} must have low < high; got"
                f" ({low}, {high})"
            )
        return float(low), float(high)
