"""What river asks of an estimator beyond learning: clones, tags, pipelines, memory.

river is never imported here: where it is loaded, estimators are registered with its
base classes, and what they would inherit from those is below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator

# Checks of river.checks that cannot hold, each with its reason. The table in
# docs/unlearning.md says the same in full sentences.
RIVER_EXCEPTIONS: Mapping[str, str] = {
    "check_emerging_features": "features are fixed with the first record",
    "check_disappearing_features": "features are fixed with the first record",
    "check_radically_disappearing_features": "features are fixed with the first record",
    "check_pickling": "a learned model is not copied: it would be a second budget",
    "check_no_state_aliasing_with_input": "it compares pickles of a learned model",
}


class RiverHabits(BaseEstimator):
    """river's conventions for an estimator of scikit-learn's."""

    _river_kind: ClassVar[str]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Where river is loaded, register: it tests isinstance(model, Regressor)."""
        river = sys.modules.get("river.base")
        if river is not None:
            getattr(river, cls._river_kind).register(cls)
        return super().__new__(cls)

    def clone(
        self,
        new_params: Mapping[str, Any] | None = None,
        include_attributes: bool = False,
    ) -> Self:
        """An estimator with the same parameters that has learned nothing.

        A ledger is shared, not copied: a copy of a ledger is a second budget. What was
        learned is never copied, so `include_attributes` is refused.
        """
        if include_attributes:
            raise TypeError(
                "what was learned cannot be cloned: a copy would share the budget of"
                " deletions and lose count. Use clone() and learn again."
            )
        return type(self)(**(self._get_params() | dict(new_params or {})))

    def mutate(self, new_attrs: Mapping[str, Any]) -> None:
        """Refused for every parameter: the theorem of a model is about its options."""
        for name in new_attrs:
            raise ValueError(
                f"{name!r} is not a mutable attribute of {type(self).__name__}: what a"
                " deletion guarantees is proved for fixed options. Use clone() with new"
                " ones."
            )

    def __or__(self, other: Any) -> Any:
        return import_module("river.compose").Pipeline(self, other)

    def __ror__(self, other: Any) -> Any:
        return import_module("river.compose").Pipeline(other, self)

    def _get_params(self) -> dict[str, Any]:
        params: dict[str, Any] = self.get_params(deep=False)
        return params

    @property
    def _mutable_attributes(self) -> set[str]:
        return set()

    @property
    def _supervised(self) -> bool:
        return True

    @property
    def _is_stochastic(self) -> bool:
        return False  # noise comes with deletions alone

    @property
    def _tags(self) -> set[str]:
        return set()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {}

    def _unit_test_skips(self) -> set[str]:
        return set(RIVER_EXCEPTIONS)

    @property
    def _raw_memory_usage(self) -> int:
        base = import_module("river.base").Base
        size: int = base._raw_memory_usage.fget(self)
        return size

    @property
    def _memory_usage(self) -> str:
        text: str = import_module("river.base").Base._memory_usage.fget(self)
        return text
