"""Builders of subjects from a mechanism, an estimator or a plan's config."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from demur import training
from demur.core.adjacency import Ball, Unit
from demur.core.cost import Fixed
from demur.core.declaration import Declaration, Mechanism
from demur.core.digest import digest_of_array, digest_of_text
from demur.core.entropy import Source
from demur.core.errors import DemurError
from demur.core.release import Release
from demur.ledger import Filter, Ledger
from demur.mechanisms.reports import ReportMechanism
from demur.testing.subject import Inputs, Subject, entries_of

LABEL = "a contract of demur.testing"
RADIUS = 0.25
ROWS = 12


# -- mechanisms ----------------------------------------------------------------------


def of_mechanism(
    given: Mechanism | Callable[..., Mechanism],
    *,
    value: Any = None,
    unit: Unit | None = None,
    delta: float = 1e-6,
    noisier: Mapping[str, Any] | None = None,
    name: str | None = None,
    **more: Any,
) -> Subject:
    """The subject of a mechanism, or of a function that returns one.

    Data, unit and the parameter that sets the noise are inferred from its `dimension`,
    declaration and fields, where they are not given.
    """
    make = _maker(given)
    mechanism = make()
    declared = mechanism.declaration()
    argument, spend = _way_to_spend(mechanism)
    if value is None and argument:
        value = _data_for(mechanism, argument)
    parameters = numbers_of(mechanism)
    return Subject(
        name=name or type(mechanism).__name__,
        make=make,
        spend=spend,
        inputs={argument: value} if argument else {},
        unit=unit or first_unit(declared),
        delta=delta,
        parameters=parameters,
        noisier=_noisier(parameters) if noisier is None else noisier,
        **more,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """A mechanism and all that its contracts need, in one place.

    - `data`: good input; for bits and categories at least 64 values, so that a copy of
      them can be recognised;
    - `neighbours` and `outcomes`: two inputs that `unit` relates, and every value that
      the mechanism can release for them. With both, outputs are counted and compared
      with the declared price;
    - `unit`, `delta`, `filter`: those of the ledger that it is checked with (default:
      the first unit of its declaration, 1e-6, and the ledger's own);
    - `noisier`: the changed parameters that mean more noise (inferred from a `sigma`,
      `noise_multiplier` or `epsilon`).

    A class method `_example()` that returns one lets `run_all("my_package")` find it.
    """

    mechanism: Any
    data: Any
    neighbours: tuple[Any, Any] | None = None
    outcomes: tuple[Any, ...] = ()
    unit: Unit | None = None
    delta: float = 1e-6
    filter: Filter | str | None = None
    noisier: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.neighbours is not None and len(self.neighbours) != 2:
            raise ValueError("neighbours must be two inputs that the unit relates")
        if (self.neighbours is None) != (not self.outcomes):
            raise ValueError(
                "neighbours and outcomes belong together: give both or neither"
            )


def of_example(given: Any, **about: Any) -> Subject:
    """The subject of an `Example`, or of a mechanism with what is said about it."""
    if not isinstance(given, Example):
        return of_mechanism(given, **about)
    known = {
        "value": given.data,
        "neighbours": given.neighbours,
        "outcomes": given.outcomes,
        "unit": given.unit,
        "delta": given.delta,
        "filter": given.filter,
        "noisier": given.noisier,
    }
    return of_mechanism(given.mechanism, **(known | about))


def first_unit(declared: Declaration) -> Unit:
    """A unit that the declaration covers."""
    term = declared.cost.basic_terms()[0]
    return term.unit if isinstance(term, Fixed) else Ball(RADIUS, space=term.space)


def numbers_of(spender: Any) -> dict[str, Any]:
    """The numeric parameters of an object, by name."""
    if dataclasses.is_dataclass(spender):
        named = {
            f.name: getattr(spender, f.name)
            for f in dataclasses.fields(spender)
            if f.init
        }
    elif callable(getattr(spender, "get_params", None)):
        named = spender.get_params(deep=False)
    else:
        names = list(inspect.signature(type(spender)).parameters)
        named = {name: getattr(spender, name, None) for name in names}
    return {
        name: value
        for name, value in named.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _maker(given: Any) -> Callable[..., Any]:
    if callable(getattr(given, "declaration", None)) and not inspect.isclass(given):
        return partial(_changed, given)
    return given


def _changed(spender: Any, **changes: Any) -> Any:
    """A new copy of an object, with some parameters changed."""
    if dataclasses.is_dataclass(spender) and not isinstance(spender, type):
        return dataclasses.replace(spender, **changes)
    if not changes:
        return copy.copy(spender)
    return type(spender)(**(numbers_of(spender) | changes))


def _noisier(parameters: Mapping[str, Any]) -> dict[str, Any]:
    for name, factor in (("sigma", 2.0), ("noise_multiplier", 2.0), ("epsilon", 0.5)):
        if parameters.get(name) is not None:
            return {name: factor * parameters[name]}
    return {}


def _way_to_spend(spender: Any) -> tuple[str, Callable[..., Any]]:
    """The name of its data argument, and the function that makes it release."""
    if callable(getattr(spender, "privatize", None)):
        return "points", _privatize
    if callable(getattr(spender, "release", None)):
        return "value", _release
    if callable(getattr(spender, "apply", None)):
        return "value", _apply
    return "", _charge


def _privatize(
    spender: ReportMechanism, inputs: Inputs, ledger: Any, source: Source | None
) -> Any:
    return spender.privatize(
        inputs["points"], ledger=ledger, label=LABEL, source=source
    )


def _release(spender: Any, inputs: Inputs, ledger: Any, source: Source | None) -> Any:
    return spender.release(inputs["value"], ledger=ledger, label=LABEL, source=source)


def _apply(spender: Any, inputs: Inputs, ledger: Any, source: Source | None) -> Any:
    """For a mechanism without a `release` method: check, charge, draw, commit."""
    value = inputs["value"]
    check = getattr(spender, "check", None)
    if callable(check):
        value = check(value)
    with ledger.paid(spender, label=LABEL, source=source) as payment:
        released = spender.apply(value, payment.key)
        payment.released(_digest(released))
    return Release(released, payment.entry)


def _charge(spender: Any, inputs: Inputs, ledger: Any, source: Source | None) -> Any:
    del inputs
    with ledger.paid(spender, label=LABEL, source=source) as payment:
        _ = payment.key
        payment.released(_digest(payment.entry.id))
    return Release(None, payment.entry)


def _digest(value: object) -> str:
    if isinstance(value, np.ndarray):
        return digest_of_array(value)
    return digest_of_text(repr(value))


def _data_for(spender: Any, argument: str) -> Any:
    dimension = int(getattr(spender, "dimension", 3))
    rng = np.random.default_rng(1)
    shape = (ROWS, dimension) if argument == "points" else (dimension,)
    return rng.uniform(0.05, 0.95, size=shape)


# -- estimators ----------------------------------------------------------------------


def of_estimator(
    estimator: Any,
    X: Any = None,
    y: Any = None,
    *,
    unit: Unit | None = None,
    delta: float | None = None,
    fit: Callable[[Any, Inputs], Any] | None = None,
    name: str | None = None,
    unused: frozenset[str] = frozenset(),
    **more: Any,
) -> Subject:
    """The subject of an unfitted estimator with a `ledger` parameter.

    Unit and delta default to those of a first fit without a ledger. `unused` names
    parameters that have no effect in this configuration.
    """
    if X is None:
        X, y = two_classes()
    known = estimator.get_params(deep=False)
    act = fit or _fit
    if unit is None:
        fitted = act(clone(estimator), {"X": X, "y": y})
        entries = entries_of(fitted)
        if not entries:
            raise DemurError(
                "unit must be given: the estimator, fitted without a ledger, carries no"
                " entry that names one"
            )
        promise = entries[0].promises[0]
        unit, delta = promise.unit, promise.delta if delta is None else delta
    takes_source = "source" in known

    def make(**changes: Any) -> Any:
        return clone(estimator).set_params(**changes)

    def spend(
        spender: Any, inputs: Inputs, ledger: Ledger | None, source: Source | None
    ) -> Any:
        spender.set_params(ledger=ledger)
        if takes_source:
            spender.set_params(source=source)
        return act(spender, inputs)

    parameters = {n: v for n, v in numbers_of(estimator).items() if n not in unused}
    return Subject(
        name=name or type(estimator).__name__,
        make=make,
        spend=spend,
        inputs={"X": X} if y is None else {"X": X, "y": y},
        unit=unit,
        delta=1e-6 if delta is None else delta,
        parameters=parameters,
        noisier=more.pop("noisier", _noisier(parameters)),
        takes_source=takes_source,
        **more,
    )


def _fit(spender: Any, inputs: Inputs) -> Any:
    return (
        spender.fit(inputs["X"], inputs["y"])
        if "y" in inputs
        else spender.fit(inputs["X"])
    )


def two_classes(rows: int = 60, columns: int = 3) -> tuple[Any, Any]:
    """Synthetic points in the unit cube, in two classes."""
    rng = np.random.default_rng(7)
    y = np.arange(rows) % 2
    X = 0.3 + 0.4 * y[:, None] + rng.uniform(-0.2, 0.2, size=(rows, columns))
    return X, y


# -- plans ---------------------------------------------------------------------------


class OptaxDescent(NamedTuple):
    """Gradient descent in the shape of an optax transformation."""

    init: Callable[[Any], Any]
    update: Callable[..., Any]


# No run reads every row before it starts (data may be on disk): a contribution that is
# not finite counts as zero, and an empty dataset gives noise alone. Rows may have any
# shape that the loss accepts.
_TRAINING_ACCEPTS = frozenset(
    {"NaN", "infinity", "minus infinity", "no rows", "a cube"}
)

DESCENT = OptaxDescent(
    lambda params: (), lambda sums, state, params=None: (-sums, state)
)


def inner_product(params: Any, batch: Any) -> Any:
    """A loss whose gradient at an example is the example itself."""
    return (batch @ params).mean()


def of_plan(
    config: Any,
    *,
    loss: Callable[..., Any] = inner_product,
    params: Any = None,
    data: Any = None,
    optimizer: Any = DESCENT,
    delta: float = 1e-6,
    name: str | None = None,
    **more: Any,
) -> Subject:
    """The subject of a plan's config; every release is a whole training run."""
    if data is None:
        data = two_classes()[0].astype(np.float32)
    if params is None:
        params = np.zeros(np.shape(data)[-1], dtype=np.float32)

    def make(**changes: Any) -> Any:
        return dataclasses.replace(config, **changes)

    def spend(
        spender: Any, inputs: Inputs, ledger: Ledger | None, source: Source | None
    ) -> Any:
        return training.fit(
            spender.make(),
            loss,
            params,
            inputs["data"],
            optimizer=optimizer,
            ledger=ledger,
            label=LABEL,
            delta=delta,
            source=source,
            reporting=training.Reporting(progress=False),
        )

    parameters = numbers_of(config)
    return Subject(
        name=name or type(config).__name__,
        make=make,
        spend=spend,
        inputs={"data": data},
        unit=config.make().unit,
        # A run uses all of its own delta: this is enough for ten.
        delta=10.0 * delta,
        room=20.0,
        # A subsampled run has no price under the Gaussian filter: it enters as a block.
        filter=more.pop("filter", Filter.pure()),
        parameters=parameters,
        noisier=_noisier(parameters),
        # The loss decides what a row must be, and its error is raised.
        aliases={"data": ("loss", "shape", "shapes")},
        lenient=_TRAINING_ACCEPTS,
        **more,
    )
