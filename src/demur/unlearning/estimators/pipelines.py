"""Unlearning through river's pipelines: which steps keep a record, and which do not.

A pipeline learns f(x), and its model promises something about the row f(x). That is a
promise about x if f is the same map for this record whenever it is applied, and for
everybody else's whether or not this one was ever seen. A step that learns breaks both:
a running scaler keeps sums of x itself, and every row that came later was scaled by
them. So steps that learn are refused by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from importlib import import_module
from typing import Any

from demur.unlearning.estimators.base import Unlearnable

# Transformers of river whose answer is a function of the row alone, and which leave the
# row as it is.
_FIXED = frozenset(
    {
        "Binarizer",
        "Discard",
        "FeatureHasher",
        "FuncTransformer",
        "Normalizer",
        "PolynomialExtender",
        "Prefixer",
        "Select",
        "SelectType",
        "Suffixer",
    }
)
_WHY = {
    "Renamer": (
        "writes into the record that it is given, so that predicting first and learning"
        " then learns another one; rename by a FuncTransformer that returns a new dict"
    )
}
_JOINING = frozenset({"TransformerProduct", "TransformerUnion"})


def unlearn_one(
    pipeline: Any,
    x: Mapping[Hashable, Any] | None = None,
    y: Any = None,
    *,
    record_id: str | None = None,
    subject_id: str | None = None,
) -> None:
    """Forget one record that a river pipeline learned, named by content or by id.

    x is the record as the pipeline learned it. The last step must be an
    `UnlearnableRegressor` or `UnlearnableClassifier`; the others must be fixed maps:
    a `RangeScaler`, river's transformers that learn nothing, or a class of your own
    with `fixed_map = True`. Anything else is refused by name, and nothing has changed.
    The function of a `FuncTransformer` must follow the record alone and leave it as it
    is; that is for the caller to see to.

    >>> from river import compose
    >>> from demur.unlearning import RangeScaler, UnlearnableRegressor
    >>> model = RangeScaler({"age": (0, 120)}) | UnlearnableRegressor(mode="ridge")
    >>> model.learn_one({"age": 40}, 0.3, record_id="Ada")
    >>> model.learn_one({"age": 60}, 0.5, record_id="Ben")
    >>> unlearn_one(model, {"age": 40}, 0.3, record_id="Ada")
    >>> model["UnlearnableRegressor"].model_.mode.records
    1
    """
    *steps, last = _steps(pipeline)
    if not isinstance(last, Unlearnable):
        raise TypeError(
            f"the last step, {type(last).__name__}, cannot unlearn: use an"
            " UnlearnableRegressor or an UnlearnableClassifier there. Nothing has"
            " changed."
        )
    for step in steps:
        _require_fixed(step)
    if x is not None:
        x = dict(x)  # the caller's stays as it is, whatever a step does
        for step in steps:
            x = step.transform_one(x)
    last.unlearn_one(x, y, record_id=record_id, subject_id=subject_id)


def _steps(pipeline: Any) -> list[Any]:
    """The steps of a pipeline, those of pipelines inside it in their place."""
    steps = getattr(pipeline, "steps", None)
    if not isinstance(steps, Mapping):
        return [pipeline]
    return [inner for step in steps.values() for inner in _steps(step)]


def _parts(step: Any) -> Iterator[Any]:
    """A transformer, or those that a union or product of river joins.

    No other kind that holds transformers: a `Grouper` makes one for each group that it
    has seen, and keeps the names of the groups.
    """
    kind = type(step)
    if kind.__module__.startswith("river.compose.") and kind.__name__ in _JOINING:
        for part in step.transformers.values():
            for inner in _steps(part):
                yield from _parts(inner)
    else:
        yield step


def _require_fixed(step: Any) -> None:
    for part in _parts(step):
        kind, name = type(part), type(part).__name__
        of_river = kind.__module__.startswith("river.")
        fixed = of_river and name in _FIXED
        if not fixed and getattr(part, "fixed_map", False) is not True:
            if of_river and name in _WHY:
                raise TypeError(f"{name} {_WHY[name]}. Nothing has changed.")
            raise TypeError(
                f"{name} learns from the records, or is not known not to: it keeps the"
                " one to be forgotten, and later rows depend on it. Instead, scale by"
                " declared numbers (RangeScaler), or let mode='ridge' standardise its"
                " own features (standardise=True); a transformer of your own that"
                " learns nothing says so by `fixed_map = True`. Nothing has changed."
            )
        if not isinstance(part, import_module("river.base").Transformer):
            raise TypeError(
                f"{name} is no Transformer of river: a pipeline does not apply"
                " it when it learns, so the record cannot be found through it. Derive"
                " it from river.base.Transformer and learn again. Nothing has changed."
            )
