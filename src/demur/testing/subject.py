"""Subjects: how the contracts construct something that spends, and run it.

A mechanism, an estimator and a plan have different interfaces and the same duties: they
have public parameters, take data, ask a ledger, and release something. A `Subject`
describes how, once, and every contract works on that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core import recording
from demur.core.adjacency import Unit
from demur.core.entropy import Seeded, Source
from demur.core.entry import Entry
from demur.core.errors import NotCovered, NotPriced
from demur.core.release import Release
from demur.ledger import Filter, Ledger
from demur.testing.graph import instances, reachable
from demur.testing.ledgers import ROOMY, LoggingLedger, RecordedKeys
from demur.testing.result import require

Inputs = Mapping[str, Any]
Array = NDArray[Any]


@dataclass(frozen=True)
class Run:
    """One release: the object that made it, the ledger that paid, and the result."""

    spender: Any
    ledger: LoggingLedger
    result: Any
    keys: RecordedKeys | None = None
    tape: recording.Tape | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """How to construct something that spends, run it, and read its result.

    - `make(**changes)`: a new object, with some of its `parameters` changed;
    - `spend(spender, inputs, ledger, source)`: one release; the result (a `Release`, or
      the fitted object itself);
    - `inputs`: good data by the name of the argument it is for;
    - `unit`, `delta`, `filter`, `room`: the ledger it is run with, and its epsilon;
    - `parameters`: its numeric parameters, which are replaced by bad values in turn;
    - `noisier`: the changes that mean more noise;
    - `secrets`: further values, by name, that must not be in a result;
    - `released(result)`: by name, the arrays that left, noise included;
    - `aliases`: other names that an error may use for an argument or a parameter;
    - `unit_phrases`: other words by which statements may name the unit;
    - `lenient`: kinds of bad data that it may accept, because they have a meaning;
    - `takes_source`: whether `spend` can be given a source of noise;
    - `neighbours`, `outcomes`: two inputs that the unit relates, and all values that
      can come out, for a mechanism with few of them;
    - `trusts_data`: why its data need not be checked again, if so;
    - `keeps_data`: why it may hold exact values, if so.
    """

    name: str
    make: Callable[..., Any]
    spend: Callable[[Any, Inputs, Ledger | None, Source | None], Any]
    inputs: Inputs
    unit: Unit
    delta: float = 1e-6
    filter: Filter | str | None = None
    room: float = ROOMY
    parameters: Mapping[str, Any] = field(default_factory=dict)
    noisier: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict)
    released: Callable[[Any], Mapping[str, Any]] = lambda result: released_arrays(
        result
    )
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit_phrases: tuple[str, ...] = ()
    lenient: frozenset[str] = frozenset()
    takes_source: bool = True
    neighbours: tuple[Any, Any] | None = None
    outcomes: tuple[Any, ...] = ()
    trusts_data: str = ""
    keeps_data: str = ""

    def ledger(self, epsilon: float | None = None) -> LoggingLedger:
        """A new ledger at the subject's unit."""
        room = self.room if epsilon is None else epsilon
        return LoggingLedger(room, self.delta, self.unit, self.filter)

    def run(
        self,
        ledger: Ledger | None = None,
        *,
        spender: Any = None,
        source: Source | None = None,
        inputs: Inputs | None = None,
    ) -> Any:
        """One release, by default of a new object on the subject's own data."""
        return self.spend(
            self.make() if spender is None else spender,
            self.inputs if inputs is None else inputs,
            self.ledger() if ledger is None else ledger,
            source,
        )

    @cached_property
    def sample(self) -> Run:
        """One release that several contracts read, and none changes."""
        spender, ledger = self.make(), self.ledger()
        return Run(spender, ledger, self.run(ledger, spender=spender))

    @cached_property
    def seeded(self) -> Run:
        """One release with seeded noise, whose keys and exact inputs are recorded.

        Inputs are recorded where noise is added (`core.recording`).
        """
        keys, tape = RecordedKeys(Seeded(20), []), recording.Tape()
        spender, ledger = self.make(), self.ledger()
        with recording.watching(tape):
            result = self.run(ledger, spender=spender, source=keys)
        return Run(spender, ledger, result, keys, tape)

    @property
    def entry(self) -> Entry:
        """The entry of one release, the costliest if there are several."""
        written = self.sample.ledger.written
        require(written, "a release on good data was not charged")
        return max(written, key=self._epsilon)

    def _epsilon(self, entry: Entry) -> float:
        try:
            return entry.epsilon(self.unit, self.delta)
        except (NotCovered, NotPriced):
            return -1.0

    @property
    def costs_nothing(self) -> bool:
        """Whether a release has price 0, such as an exact deletion."""
        return self.entry.epsilon(self.unit, self.delta) == 0.0

    def names_for(self, argument: str) -> tuple[str, ...]:
        """The names that an error may use for an argument."""
        return (argument, *self.aliases.get(argument, ()))


def released_arrays(result: Any) -> dict[str, Array]:
    """The float arrays of a release's value, or of a fitted object's attributes."""
    if isinstance(result, Release):
        values: dict[str, Any] = {"value": result.value}
    else:
        named = getattr(result, "__dict__", {}).items()
        values = {name: value for name, value in named if name.endswith("_")}
    arrays: dict[str, Array] = {}
    for name, value in values.items():
        floats = [item for item in reachable(value) if _is_floats(item)]
        arrays |= {f"{name} {i}": np.asarray(item) for i, item in enumerate(floats)}
    return arrays


def _is_floats(item: Any) -> bool:
    return (
        hasattr(item, "__array__")
        and hasattr(item, "dtype")
        and np.dtype(item.dtype).kind == "f"
        and np.size(item) > 0
    )


def entries_of(result: Any) -> list[Entry]:
    """The entries that a result carries."""
    return instances(result, Entry)
