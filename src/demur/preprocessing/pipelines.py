"""Steps before an estimator in a scikit-learn pipeline: what they do to a promise.

A head protects one record of the rows that it is given. A step before it that was
fitted on those same rows (a `StandardScaler`, a `PCA`) moves everybody's rows when one
record moves, and the head's promise says nothing about that. So an estimator asks, when
it is fitted, which pipeline it is in and what the steps before it are:

- maps of this package carry a radius on (`RowMap.space_after`);
- scikit-learn's maps of single rows that read nothing off the data are let through;
- scikit-learn's other transformers are refused by name;
- anything else, and a `FrozenEstimator`, becomes a condition of the statement.

Steps that are let through and are no maps of this package have no known constant: a
radius is measured after them, and none is carried through them.

The pipeline is found on the call stack, because scikit-learn hands a step the rows and
nothing else. It ends where a thread or a process begins: a head that scikit-learn fits
in a worker (`n_jobs`) sees the pipelines inside the worker and none around it, and its
statement says so (`meta_estimators`). Rows that were transformed before `fit` was
called look like any other rows: there the caller has to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from demur.core.adjacency import Ball, Unit
from demur.core.errors import NotPrivate
from demur.preprocessing.meta_estimators import conditions_around, frames
from demur.preprocessing.row_maps import RowMap
from demur.preprocessing.spaces import RowSpace

INPUT = "records"
# They look at one row at a time; what they "fit" is the number of columns (and, where
# they choose how many components to take, that of the rows, which is public).
SINGLE_ROWS = frozenset(
    "AdditiveChi2Sampler Binarizer FeatureHasher GaussianRandomProjection"
    " HashingVectorizer Normalizer PolynomialCountSketch PolynomialFeatures RBFSampler"
    " SkewedChi2Sampler SparseRandomProjection".split()
)
_INSTEAD = {
    "StandardScaler": "PublicScaler or PrivateStandardScaler",
    "MinMaxScaler": "PublicScaler",
    "MaxAbsScaler": "PublicScaler",
    "RobustScaler": "PublicScaler or PrivateStandardScaler",
    "QuantileTransformer": "PublicScaler",
    "PowerTransformer": "PublicScaler or PrivateStandardScaler",
    "PCA": "PrivatePCA, or PublicProjection.pca on public rows",
    "IncrementalPCA": "PrivatePCA, or PublicProjection.pca on public rows",
    "TruncatedSVD": "PrivatePCA, or PublicProjection.pca on public rows",
    "RBFSampler": "a number for gamma, or RandomProjection",
    "SimpleImputer": "a public constant in place of missing values",
}
_UNKNOWN = (
    "{} maps one row at a time by a rule that does not depend on these records"
    " (conditional: demur does not know it)"
)
_ANY = "PublicScaler, ClipRows, RandomProjection, PrivateStandardScaler or PrivatePCA"


@dataclass(frozen=True)
class Preprocessing:
    """What the steps before an estimator did: the rows' space, and conditions."""

    space: RowSpace
    assumptions: tuple[str, ...] = ()


def preprocessing_of(estimator: object, unit: Unit, space: str) -> Preprocessing:
    """The space of the rows that `estimator` is being fitted on, and conditions.

    The input of a pipeline lies in the space "records". A ball in a space that no step
    leads into names that space instead, and so does `space` where the unit is no ball.
    A step that was fitted on the same rows is refused, and so is a meta-estimator whose
    rows are not those of single records.
    """
    steps = _steps_before(estimator)
    conditions = [
        condition
        for name, step in steps
        for inner_name, inner in _flat(name, step)
        for condition in _conditions(inner_name, inner, unit, estimator)
    ]
    if isinstance(unit, Ball):
        rows = _space_after(steps, RowSpace(INPUT))
        if unit.space not in rows:
            rows = _space_after(steps, RowSpace(unit.space))
        rows.from_space(unit.space)
    else:
        rows = _space_after(steps, RowSpace(space))
    conditions += conditions_around(estimator, unit)
    return Preprocessing(rows, tuple(conditions))


def _space_after(steps: list[tuple[str, object]], rows: RowSpace) -> RowSpace:
    for name, step in steps:
        if isinstance(step, RowMap):
            rows = step.space_after(rows)
        elif rows.earlier or any(isinstance(s, RowMap) for _, s in _flat(name, step)):
            # A step without a known constant, or maps of some columns side by side,
            # which have none together: no radius is carried through it.
            rows = rows.then(f"{rows.name} after {name}", None)
    return rows


def _steps_before(estimator: object) -> list[tuple[str, object]]:
    """The steps before `estimator` in every pipeline that is fitting it right now."""
    steps: list[tuple[str, object]] = []
    for pipeline, position in _pipelines(estimator):
        steps = [*pipeline.steps[:position], *steps]
    return list(_in_a_row(steps))


def _in_a_row(steps: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The steps, those of a pipeline inside a pipeline one after another."""
    for name, step in steps:
        if isinstance(step, Pipeline):
            inner = [(f"{name}.{inner_name}", one) for inner_name, one in step.steps]
            yield from _in_a_row(inner)
        elif step not in (None, "passthrough"):
            yield name, step


def _pipelines(estimator: object) -> Iterator[tuple[Pipeline, int]]:
    """Pipelines on the call stack, from the inside out, and where each one stands."""
    seen = set()
    for frame in frames():
        pipeline = frame.f_locals.get("self")
        if isinstance(pipeline, Pipeline) and id(pipeline) not in seen:
            seen.add(id(pipeline))
            own = [i for i, (_, s) in enumerate(pipeline.steps) if s is estimator]
            # A copy of a step is being fitted where results are cached.
            at = frame.f_locals.get("step_idx", len(pipeline.steps) - 1)
            yield pipeline, own[0] if own else int(at)


def _flat(name: str, step: Any) -> Iterator[tuple[str, Any]]:
    """A step and, where it holds others, those inside it."""
    if isinstance(step, Pipeline):
        inner = step.steps
    elif isinstance(step, ColumnTransformer):
        fitted = getattr(step, "transformers_", step.transformers)
        inner = [(n, t) for n, t, _ in fitted]
    elif isinstance(step, FeatureUnion):
        inner = step.transformer_list
    else:
        yield name, step
        return
    for inner_name, one in inner:
        if one not in (None, "passthrough", "drop"):
            yield from _flat(f"{name}.{inner_name}", one)


def _conditions(name: str, step: Any, unit: Unit, estimator: object) -> tuple[str, ...]:
    kind, module = type(step).__name__, type(step).__module__
    shown = f"step {name!r} ({kind}) of the pipeline"
    if isinstance(step, RowMap):
        own = () if module.split(".")[0] == "demur" else (_UNKNOWN.format(shown),)
        return (*own, *step.conditions(estimator))
    from_sklearn = module.split(".")[0] == "sklearn"
    measured: tuple[str, ...] = ()
    if isinstance(unit, Ball):
        measured = (f"the radius is measured after {shown}",)
    if from_sklearn and _reads_single_rows(step):
        return measured
    if from_sklearn and kind == "FrozenEstimator":
        public = f"{shown} was fitted on public data, and maps one row at a time"
        return (public, *measured)
    if from_sklearn and kind != "FunctionTransformer":
        raise NotPrivate(
            f"{shown} was fitted on the same private rows: when one record moves, it"
            " moves everybody's rows, and the promise says nothing about that. Use"
            f" {_INSTEAD.get(kind, _ANY)}, or a FrozenEstimator around a step that was"
            " fitted on public data. The maps are in demur.preprocessing. Nothing was"
            " charged."
        )
    return (_UNKNOWN.format(shown), *measured)


def _reads_single_rows(step: Any) -> bool:
    """Whether a transformer of scikit-learn reads nothing off the rows of its fit."""
    if type(step).__name__ == "FunctionTransformer":
        return step.func is None  # the identity: columns that are passed through
    # gamma="scale" is a function of the variance of all the rows.
    scaled = getattr(step, "gamma", None) == "scale"
    return type(step).__name__ in SINGLE_ROWS and not scaled
