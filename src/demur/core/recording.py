"""The one hook at which every mechanism can be watched: what goes in, what comes out.

Nobody watches in ordinary use, and a noise point then pays one look at a context
variable. An audit (`demur.audit.replays`) lays a `Tape` there and runs an engine twice:

    first run     a noise point tells what it declares, its exact input and its output
    second run    it tells its input and is given the *first run's output*

so that afterwards the two worlds can differ in nothing but what by-passed the
mechanisms. Charges and selected batches are kept too. Exact inputs are kept, therefore
a private key or source is refused: only seeded runs, stamped NOT PRIVATE, are watched.

Context variables do not flow into threads. Whoever hands work to a thread hands the
tape on as well (`active()` there, `watching(tape)` here).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from demur.core.cost import Cost
from demur.core.declaration import Declaration
from demur.core.errors import NotPrivate
from demur.core.sensitivity import Sensitivity

Arrays: TypeAlias = tuple[NDArray[Any], ...]
T = TypeVar("T")

# -- what a noise point declares -------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shift:
    """Gaussian noise on one vector, which moves by at most `sensitivity`.

    With one sigma for each coordinate, movements are measured in units of sigma.
    Input: the vector.
    """

    sensitivity: Sensitivity
    sigma: float | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Noise on each row by itself, at the `cost` of one row. Input: ids and rows."""

    cost: Cost


@dataclass(frozen=True, eq=False)
class Scores:
    """The exponential mechanism on scores that one record moves by at most 1."""

    epsilon: float


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a run with noise stddev C^-1 Z on sums of clipped contributions.

    `strategy` is C, `bound` the norm of one contribution, `participation` the patterns
    of steps that one record can take part in, where they are known. Input: the sum G_t,
    or row t of C G if `mixed`.
    """

    step: int
    strategy: Any
    stddev: float
    bound: float
    participation: Any
    mixed: bool


Declared: TypeAlias = Shift | Rows | Scores | Step


class Keyed(Protocol):
    """What noise is drawn from."""

    private: bool


# -- what is kept ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Passage:
    """One value on its way through a mechanism. Exact, not private."""

    name: str
    declared: Declared
    value: Arrays
    released: Any
    key: int | None

    def __repr__(self) -> str:
        return f"Passage({self.name!r}, <exact>)"


@dataclass(eq=False)
class Charge:
    """What was asked of a ledger; `paid` once a new entry is written."""

    declaration: Declaration
    count: int
    label: str
    paid: bool = False


class Selection:
    """The batches of one run; `size` is the number of records. Exact, not private."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batches: list[NDArray[Any]] = []


class WrongOrder(ValueError):
    """The two worlds of a replay came in the wrong order."""


class Tape:
    """The passages, charges and batches of one run; `earlier` is the run to replay."""

    def __init__(self, earlier: Tape | None = None) -> None:
        self.passages: list[Passage] = []
        self.charges: list[Charge] = []
        self.selections: list[Selection] = []
        self._earlier = earlier
        self._keys: list[Keyed] = []
        self._drawn: list[tuple[object, str, Declared]] = []
        self._lock = threading.Lock()
        self.closed = False

    def close(self) -> None:
        """Forget everything and watch no more.

        Programs that were traced under this tape hold on to it. They may be run again,
        with private data: nothing of that is kept, and nothing is replayed to it.
        """
        with self._lock:
            self.closed = True
            self._earlier = None
            for kept in (self.passages, self.charges, self.selections):
                kept.clear()
            self._keys.clear()
            self._drawn.clear()

    def passed(
        self,
        name: str,
        declared: Declared,
        value: Arrays,
        draw: Callable[[], T],
        *,
        key: Keyed | None = None,
    ) -> T:
        """What leaves a noise point: `draw()`, or what left it in the earlier run.

        Mechanisms inside `draw` belong to this one and are not watched themselves.
        """
        if self.closed:
            return draw()
        if key is not None:
            _must_be_seeded(key.private)
        kept = tuple(np.array(part) for part in value)
        before = self._counterpart(name, declared, kept)
        if before is None:
            with watching(None):
                released = draw()
        else:
            released = _copied(before.released)
        with self._lock:
            number = None if key is None else self._number(key)
            self.passages.append(
                Passage(name, declared, kept, _copied(released), number)
            )
            self._drawn.append((released, name, declared))
        return released

    def _counterpart(
        self, name: str, declared: Declared, value: Arrays
    ) -> Passage | None:
        """The earlier run's passage at this place, if it fits; an audit compares."""
        at = len(self.passages)
        if self._earlier is None or at >= len(self._earlier.passages):
            return None
        before = self._earlier.passages[at]
        fits = (
            before.name == name
            and type(before.declared) is type(declared)
            and [part.shape for part in before.value] == [part.shape for part in value]
        )
        return before if fits else None

    def _number(self, key: Keyed) -> int:
        for number, known in enumerate(self._keys):
            if known is key:
                return number
        self._keys.append(key)
        return len(self._keys) - 1

    def added(
        self, value: NDArray[Any], noise: object, add: Callable[[], NDArray[Any]]
    ) -> NDArray[Any]:
        """`add()` as a passage of the mechanism that drew `noise`, if one did.

        For engines that draw noise alone (a mechanism on zeros) and add it later.
        """
        for drawn, name, declared in self._drawn:
            if drawn is noise:
                return self.passed(name, declared, (value,), add)
        return add()

    def selected(
        self, size: int, batches: Iterator[NDArray[Any]], *, independent: bool
    ) -> Iterator[NDArray[Any]]:
        """The batches, kept; in a world that lacks the last record, without it.

        Records that are selected independently of each other (`independent`) have the
        same coins in the smaller world: its batches are those of the larger one less
        that record. Where they are not, each world has its own.
        """
        found = Selection(size)
        before: Selection | None = None
        at = len(self.selections)
        self.selections.append(found)
        if self._earlier is not None and at < len(self._earlier.selections):
            before = self._earlier.selections[at]
        if independent and before is not None and before.size < size:
            raise WrongOrder(
                "the larger world comes first, the extra record as its last one:"
                " batches of a smaller world say nothing about a record it lacks"
            )

        def coupled() -> Iterator[NDArray[Any]]:
            if before is None or before.size == size or not independent:
                for batch in batches:
                    if not self.closed:
                        found.batches.append(np.array(batch))
                    yield batch
                return
            for batch in before.batches:
                kept = batch[batch < size]
                found.batches.append(kept)
                yield kept

        return coupled()


def _copied(released: Any) -> Any:
    """Engines write into what they are given; the tape keeps its own."""
    if isinstance(released, np.ndarray):
        return released.copy()
    if isinstance(released, tuple | list):
        return type(released)(_copied(part) for part in released)
    return released


# -- the hook --------------------------------------------------------------------------

_ACTIVE: ContextVar[Tape | None] = ContextVar("demur tape", default=None)


def active() -> Tape | None:
    """The tape that watches, or None: one look-up in ordinary use."""
    tape = _ACTIVE.get()
    return None if tape is None or tape.closed else tape


@contextmanager
def watching(tape: Tape | None) -> Iterator[None]:
    """Lay `tape` (or none) under what runs inside, in this thread."""
    token = _ACTIVE.set(tape)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def asked(
    declaration: Declaration, count: int, label: str, *, private: bool
) -> Charge | None:
    """Tell of a charge before it is written; the ledger marks it as paid afterwards."""
    tape = active()
    if tape is None:
        return None
    _must_be_seeded(private)
    tape.charges.append(Charge(declaration, count, label))
    return tape.charges[-1]


def refuse_private(private: bool) -> None:
    """Refuse to draw private noise while a tape watches."""
    if private and active() is not None:
        _must_be_seeded(private)


def _must_be_seeded(private: bool) -> None:
    if private:
        raise NotPrivate(
            "a recording keeps exact values, so it is for seeded runs alone: hand the"
            " source of the audit to the engine (source=). Nothing was spent and"
            " nothing was drawn."
        )
