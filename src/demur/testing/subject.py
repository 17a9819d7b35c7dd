"""Something that spends, and how the contracts make it do so.

A mechanism, an estimator and a plan look different from outside and owe the same: they
are made from public parameters, take data, ask a ledger, and hand something out. A
`Subject` says how, once, and every contract works on that.
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
from demur.core.release import Release
from demur.ledger import Filter, Ledger
from demur.testing.graph import instances, reachable
from demur.testing.ledgers import ROOMY, KeptKeys, WatchedLedger
from demur.testing.result import require

Inputs = Mapping[str, Any]
Array = NDArray[Any]


@dataclass(frozen=True)
class Run:
    """One release: who made it, the ledger that paid, and what was handed out."""

    made: Any
    ledger: WatchedLedger
    result: Any
    keys: KeptKeys | None = None
    tape: recording.Tape | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """How to make one, feed it, charge it and look at what comes out.

    - `make(**changes)`: a fresh object, with some of its `parameters` changed;
    - `spend(made, inputs, ledger, source)`: one release; the result (a `Release`, or
      the fitted object itself);
    - `inputs`: good data by the name of the argument it is for;
    - `unit`, `delta`, `filter`, `room`: the ledger it is run with, and its epsilon;
    - `parameters`: the numbers it is made from, which are spoiled one by one;
    - `noisier`: the changes that mean more noise;
    - `secrets`: further values, by name, that must not be found in a result;
    - `released(result)`: by name, the arrays that left, noise included;
    - `aliases`: what else an error may call an argument or a parameter;
    - `unit_phrases`: words by which statements may name the unit (default: its own);
    - `lenient`: kinds of bad data it may take, because they mean something to it;
    - `takes_source`: whether `spend` can be given a source of noise;
    - `trusts_data`: why its data need not be checked again, if so;
    - `keeps_data`: why it may hold exact values, where that is its business.
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
    released: Callable[[Any], Mapping[str, Any]] = lambda result: handed_out(result)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit_phrases: tuple[str, ...] = ()
    lenient: frozenset[str] = frozenset()
    takes_source: bool = True
    trusts_data: str = ""
    keeps_data: str = ""

    def ledger(self, epsilon: float | None = None) -> WatchedLedger:
        """A new ledger at the subject's unit."""
        room = self.room if epsilon is None else epsilon
        return WatchedLedger(room, self.delta, self.unit, self.filter)

    def run(
        self,
        ledger: Ledger | None = None,
        *,
        made: Any = None,
        source: Source | None = None,
        inputs: Inputs | None = None,
    ) -> Any:
        """One release from good data, unless told otherwise."""
        return self.spend(
            self.make() if made is None else made,
            self.inputs if inputs is None else inputs,
            self.ledger() if ledger is None else ledger,
            source,
        )

    @cached_property
    def sample(self) -> Run:
        """One release that many contracts look at; none may change it."""
        made, ledger = self.make(), self.ledger()
        return Run(made, ledger, self.run(ledger, made=made))

    @cached_property
    def seeded(self) -> Run:
        """One release with noise that can be repeated: its keys and inputs are known.

        Exact inputs are recorded where noise is added (`core.recording`).
        """
        keys, tape = KeptKeys(Seeded(20), []), recording.Tape()
        made, ledger = self.make(), self.ledger()
        with recording.watching(tape):
            result = self.run(ledger, made=made, source=keys)
        return Run(made, ledger, result, keys, tape)

    @property
    def entry(self) -> Entry:
        """The entry of one release; its declaration says what the subject costs."""
        written = self.sample.ledger.written
        require(written, "a release on good data was not charged")
        return written[-1]

    @property
    def costs_nothing(self) -> bool:
        """Whether a release has price 0: an exact deletion, say."""
        return self.entry.epsilon(self.unit, self.delta) == 0.0

    def names_for(self, argument: str) -> tuple[str, ...]:
        """How an error may call an argument."""
        return (argument, *self.aliases.get(argument, ()))


def handed_out(result: Any) -> dict[str, Array]:
    """The float arrays of a release's value, or of a fitted object's attributes."""
    if isinstance(result, Release):
        held: dict[str, Any] = {"value": result.value}
    else:
        named = getattr(result, "__dict__", {}).items()
        held = {name: value for name, value in named if name.endswith("_")}
    found: dict[str, Array] = {}
    for name, value in held.items():
        arrays = [one for one in reachable(value) if _is_floats(one)]
        found |= {f"{name} {i}": np.asarray(one) for i, one in enumerate(arrays)}
    return found


def _is_floats(one: Any) -> bool:
    return (
        hasattr(one, "__array__")
        and hasattr(one, "dtype")
        and np.dtype(one.dtype).kind == "f"
        and np.size(one) > 0
    )


def entries_of(result: Any) -> list[Entry]:
    """The entries that a result carries."""
    return instances(result, Entry)
