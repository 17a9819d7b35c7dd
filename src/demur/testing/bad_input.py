"""Contracts of bad input: a clear error, and nothing is spent.

A clear error is a ValueError, TypeError or DemurError that names the argument, is
short, and quotes no record. Ledger and object stay unchanged.

Some unusual input may be accepted: booleans and very large numbers have a meaning for a
mechanism that clips. Then the release must be charged, and its values finite. Each kind
of data below states whether it may be accepted.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core.errors import DemurError
from demur.testing.declining import state
from demur.testing.errors import ContractBroken
from demur.testing.ledgers import ledger_state
from demur.testing.result import require
from demur.testing.secrets import Secret
from demur.testing.subject import Subject

Array = NDArray[Any]
_LONGEST_MESSAGE = 1500


@dataclass(frozen=True)
class Corruption:
    """A way to make an array bad input; None where it does not apply."""

    corrupt: Callable[[Array], Any]
    may_be_accepted: bool = False


def _with(value: float) -> Callable[[Array], Any]:
    def corrupt(good: Array) -> Any:
        bad = np.array(good, dtype=np.float64)
        bad.reshape(-1)[-1] = value
        return bad

    return corrupt


def _masked(good: Array) -> Any:
    mask = np.zeros(good.shape, dtype=bool)
    mask.reshape(-1)[0] = True
    return np.ma.masked_array(good, mask=mask)


def _ragged(good: Array) -> Any:
    if good.ndim < 2:
        return None
    rows = good.tolist()
    rows[0] = rows[0][:-1]
    return rows


CORRUPTIONS: Mapping[str, Corruption] = {
    "NaN": Corruption(_with(np.nan)),
    "infinity": Corruption(_with(np.inf)),
    "minus infinity": Corruption(_with(-np.inf)),
    "no rows": Corruption(lambda good: good[:0]),
    "no columns": Corruption(lambda good: good[:, :0] if good.ndim == 2 else None),
    "a vector": Corruption(lambda good: good[:, 0] if good.ndim == 2 else None),
    "a cube": Corruption(lambda good: good[None] if good.ndim == 2 else None),
    "twice as long": Corruption(
        lambda good: np.tile(good, 2) if good.ndim == 1 else None
    ),
    "nothing": Corruption(lambda good: None if good.ndim == 1 else np.array(None)),
    "ragged rows": Corruption(_ragged),
    "words": Corruption(lambda good: np.full(good.shape, "word")),
    "objects": Corruption(lambda good: np.full(good.shape, object())),
    "complex numbers": Corruption(lambda good: good.astype(np.complex128) + 1e-3j),
    "masked": Corruption(_masked),
    "dates": Corruption(lambda good: np.full(good.shape, np.datetime64("2020-01-01"))),
    "beyond float64": Corruption(
        lambda good: np.full(good.shape, 10**400, dtype=object)
    ),
    "very large": Corruption(_with(1e308), may_be_accepted=True),
    "booleans": Corruption(lambda good: good > np.median(good), may_be_accepted=True),
    "plain lists": Corruption(lambda good: good.tolist(), may_be_accepted=True),
    "numbers as objects": Corruption(
        lambda good: good.astype(object), may_be_accepted=True
    ),
}
# Labels may be words, dates or booleans, and there must be one for each row.
LABEL_CORRUPTIONS: Mapping[str, Corruption] = {
    "no rows": Corruption(lambda good: good[:0]),
    "too short": Corruption(lambda good: good[:-1]),
    "NaN": Corruption(_with(np.nan)),
    "infinity": Corruption(_with(np.inf)),
    "complex numbers": Corruption(lambda good: good.astype(np.complex128) + 1j),
    "masked": Corruption(_masked),
    "a cube": Corruption(lambda good: good[None, None]),
}
# Bits and categories: what is no whole number, or none of the ones that are allowed.
DISCRETE_CORRUPTIONS: Mapping[str, Corruption] = {
    "no rows": Corruption(lambda good: good[:0]),
    "NaN": Corruption(_with(np.nan)),
    "infinity": Corruption(_with(np.inf)),
    "fractions": Corruption(lambda good: good + 0.37),
    "complex numbers": Corruption(lambda good: good.astype(np.complex128) + 1j),
    "masked": Corruption(_masked),
    "a cube": Corruption(lambda good: good[None, None]),
    "words": Corruption(lambda good: np.full(good.shape, "word")),
    "booleans": Corruption(lambda good: good > good.min(), may_be_accepted=True),
    "plain lists": Corruption(lambda good: good.tolist(), may_be_accepted=True),
}
BAD_PARAMETERS: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    -1.0,
    "many",
    (),
    True,
    1j,
    np.array([1.0, 2.0]),
)


def bad_data_costs_nothing(subject: Subject) -> None:
    """Every argument is corrupted in every way, one at a time."""
    if subject.trusts_data:
        return
    problems: list[str] = []
    for argument, good in subject.inputs.items():
        array = np.asarray(good)
        table = LABEL_CORRUPTIONS if array.dtype.kind in "iuUSO" else CORRUPTIONS
        if len(subject.inputs) == 1 and array.dtype.kind in "iub":
            table = DISCRETE_CORRUPTIONS
        for kind, corruption in table.items():
            bad = corruption.corrupt(array)
            if bad is None:
                continue
            inputs = {**subject.inputs, argument: bad}
            accepted = corruption.may_be_accepted or kind in subject.lenient
            try:
                _refused(subject, argument, inputs, accepted)
            except ContractBroken as broken:
                problems.append(f"{argument} with {kind}: {broken}")
    require(not problems, " | ".join(problems))


def bad_parameters_cost_nothing(subject: Subject) -> None:
    """NaN, words and arrays are refused for every numeric parameter."""
    problems: list[str] = []
    for name, bad in product(subject.parameters, BAD_PARAMETERS):
        meaningless = not isinstance(bad, int | float) or bad != bad
        try:
            _refused_parameter(subject, name, bad, meaningless)
        except ContractBroken as broken:
            problems.append(f"{name}={bad!r:.20}: {broken}")
    require(not problems, " | ".join(problems))


def _refused_parameter(
    subject: Subject, name: str, bad: Any, meaningless: bool
) -> None:
    ledger = subject.ledger()
    before = ledger_state(ledger)
    error = _caught(lambda: subject.run(ledger, spender=subject.make(**{name: bad})))
    if error is None:
        require(not meaningless, "it was accepted")
        return
    require(
        ledger_state(ledger) == before,
        f"refused ({_shown(error)}) after it was charged",
    )
    # A number that is only out of range may be refused by a later check.
    names = subject.names_for(name) if meaningless else ()
    why = _unclear(error, names, ())
    require(not why, why)


CONTRACTS = (bad_data_costs_nothing, bad_parameters_cost_nothing)


def _refused(
    subject: Subject, argument: str, inputs: Mapping[str, Any], may_be_accepted: bool
) -> None:
    ledger, spender = subject.ledger(), subject.make()
    before, attributes = ledger_state(ledger), state(spender)
    result: list[Any] = []
    error = _caught(
        lambda: result.append(subject.run(ledger, spender=spender, inputs=inputs))
    )
    if error is None:
        require(may_be_accepted, "it was accepted")
        require(ledger.entries(), "it was accepted, and nothing was charged")
        if not subject.keeps_data:
            _require_finite(subject, result[0])
        return
    require(
        ledger_state(ledger) == before,
        f"refused ({_shown(error)}) after it was charged",
    )
    changed = [n for n in state(spender) if n not in attributes and n.endswith("_")]
    require(not changed, f"refused, but it has {', '.join(changed)}")
    secrets = [s for s in map(_secret, subject.inputs.items()) if s is not None]
    why = _unclear(error, subject.names_for(argument), secrets)
    require(not why, why)


def _caught(act: Callable[[], object]) -> BaseException | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy, about the bad values
            act()
    except Exception as error:
        return error
    return None


def _unclear(
    error: BaseException, names: tuple[str, ...], secrets: list[Secret] | tuple[()]
) -> str:
    """Why an error is not clear; empty if it is."""
    if not isinstance(error, ValueError | TypeError | DemurError):
        return f"not a clear error: {_shown(error)}"
    text = str(error)
    if names and not any(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
        return f"the error does not name {' or '.join(names)}: {_shown(error)}"
    if len(text) > _LONGEST_MESSAGE:
        return f"the error is {len(text)} characters long"
    quoted = [secret.name for secret in secrets if secret.in_text(text)]
    if quoted:
        return f"the error quotes {', '.join(quoted)}"
    return ""


def _secret(item: tuple[str, Any]) -> Secret | None:
    name, value = item
    array = np.asarray(value)
    try:
        return Secret.of(name, array) if array.dtype.kind == "f" else None
    except ValueError:
        return None


def _require_finite(subject: Subject, result: Any) -> None:
    for name, value in subject.released(result).items():
        require(
            np.isfinite(np.asarray(value, dtype=np.float64)).all(),
            f"it was accepted, and {name} was released with NaN or infinity",
        )


def _shown(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.160}"
