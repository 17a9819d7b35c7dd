"""Recording of mechanisms for audits: what goes in, what comes out.

In ordinary use nothing is recorded, and a noise point only looks up one context
variable. An audit (`demur.audit.replays`) sets a `Tape` there and runs an engine twice:

    first run     a noise point records its declaration, exact input and output
    second run    it records its input and returns the *first run's output*

Afterwards the two runs can differ only in what by-passed the mechanisms. Charges and
selected batches are recorded too. Because exact inputs are recorded, a private key or
source is refused: only seeded runs, stamped NOT PRIVATE, can be recorded.

Context variables do not reach other threads. Code that starts a thread passes the tape
on: `active()` before, `watching(tape)` in the thread.
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
from demur.core.errors import DatasetsInWrongOrder, NotPrivate
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
class RowNoise:
    """Noise on each row by itself, at the `cost` of one row. Input: ids and rows."""

    cost: Cost


@dataclass(frozen=True, eq=False)
class ScoredChoice:
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


Declared: TypeAlias = Shift | RowNoise | ScoredChoice | Step


class Keyed(Protocol):
    """A noise key."""

    private: bool

    def shares_noise_with(self, other: object) -> bool:
        """Whether both are one key, or parts of one."""
        ...


# -- what is recorded ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MechanismUse:
    """One use of a mechanism: exact input and output. Not private."""

    name: str
    declared: Declared
    value: Arrays
    released: Any
    key: int | None

    def __repr__(self) -> str:
        return f"MechanismUse({self.name!r}, <exact>)"


@dataclass(eq=False)
class Charge:
    """A charge that was asked of a ledger; `paid` once a new entry is written."""

    declaration: Declaration
    count: int
    label: str
    paid: bool = False


class SelectedBatches:
    """The batches of one run; `size` is the number of records. Exact, not private."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batches: list[NDArray[Any]] = []


class Tape:
    """Mechanism uses, charges and batches of a run; `earlier` is the run to replay."""

    def __init__(self, earlier: Tape | None = None) -> None:
        self.uses: list[MechanismUse] = []
        self.charges: list[Charge] = []
        self.selections: list[SelectedBatches] = []
        self._earlier = earlier
        self._keys: list[Keyed] = []
        self._drawn: list[tuple[object, str, Declared]] = []
        self._lock = threading.Lock()
        self.closed = False

    def close(self) -> None:
        """Delete everything recorded, and record no more.

        Programs that were traced under this tape keep a reference to it. They may run
        again, with private data: that is not recorded, and nothing is replayed to it.
        """
        with self._lock:
            self.closed = True
            self._earlier = None
            for recorded in (self.uses, self.charges, self.selections):
                recorded.clear()
            self._keys.clear()
            self._drawn.clear()

    def record_use(
        self,
        name: str,
        declared: Declared,
        value: Arrays,
        draw: Callable[[], T],
        *,
        key: Keyed | None = None,
    ) -> T:
        """The output of a noise point: `draw()`, or its output in the earlier run.

        Mechanisms inside `draw` belong to this one and are not recorded themselves.
        """
        if self.closed:
            return draw()
        if key is not None:
            _must_be_seeded(key.private)
        copied = tuple(np.array(part) for part in value)
        before = self._counterpart(name, declared, copied)
        if before is None:
            with watching(None):
                released = draw()
        else:
            released = _copied(before.released)
        with self._lock:
            number = None if key is None else self._number(key)
            self.uses.append(
                MechanismUse(name, declared, copied, _copied(released), number)
            )
            self._drawn.append((released, name, declared))
        return released

    def _counterpart(
        self, name: str, declared: Declared, value: Arrays
    ) -> MechanismUse | None:
        """The earlier run's use at this place, if its name and shapes match."""
        at = len(self.uses)
        if self._earlier is None or at >= len(self._earlier.uses):
            return None
        before = self._earlier.uses[at]
        fits = (
            before.name == name
            and type(before.declared) is type(declared)
            and [part.shape for part in before.value] == [part.shape for part in value]
        )
        return before if fits else None

    def _number(self, key: Keyed) -> int:
        for number, known in enumerate(self._keys):
            if known.shares_noise_with(key):
                return number
        self._keys.append(key)
        return len(self._keys) - 1

    def record_addition(
        self, value: NDArray[Any], noise: object, add: Callable[[], NDArray[Any]]
    ) -> NDArray[Any]:
        """`add()` as a use of the mechanism that drew `noise`, if one did.

        For engines that draw noise alone (a mechanism on zeros) and add it later.
        """
        for drawn, name, declared in self._drawn:
            if drawn is noise:
                return self.record_use(name, declared, (value,), add)
        return add()

    def record_batches(
        self, size: int, batches: Iterator[NDArray[Any]], *, independent: bool
    ) -> Iterator[NDArray[Any]]:
        """The batches, recorded; in a dataset without the last record, less that one.

        Records that are selected independently of each other (`independent`) have the
        same coins in the smaller dataset: its batches are those of the larger one less
        that record. Where they are not, each dataset has its own.
        """
        selection = SelectedBatches(size)
        before: SelectedBatches | None = None
        at = len(self.selections)
        self.selections.append(selection)
        if self._earlier is not None and at < len(self._earlier.selections):
            before = self._earlier.selections[at]
        if independent and before is not None and before.size < size:
            raise DatasetsInWrongOrder(
                "the larger dataset must come first, with the extra record as its last:"
                " the batches of the smaller one do not say when that record is drawn"
            )

        def coupled() -> Iterator[NDArray[Any]]:
            if before is None or before.size == size or not independent:
                for batch in batches:
                    if not self.closed:
                        selection.batches.append(np.array(batch))
                    yield batch
                return
            for batch in before.batches:
                smaller = batch[batch < size]
                selection.batches.append(smaller)
                yield smaller

        return coupled()


def _copied(released: Any) -> Any:
    """A copy: engines write into the arrays that they are given."""
    if isinstance(released, np.ndarray):
        return released.copy()
    if isinstance(released, tuple | list):
        return type(released)(_copied(part) for part in released)
    return released


# -- the hook --------------------------------------------------------------------------

_ACTIVE: ContextVar[Tape | None] = ContextVar("demur tape", default=None)


def active() -> Tape | None:
    """The tape that records, or None; in ordinary use this is one look-up."""
    tape = _ACTIVE.get()
    return None if tape is None or tape.closed else tape


@contextmanager
def watching(tape: Tape | None) -> Iterator[None]:
    """Record on `tape` (or not at all) what runs inside, in this thread."""
    token = _ACTIVE.set(tape)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def record_charge(
    declaration: Declaration, count: int, label: str, *, private: bool
) -> Charge | None:
    """Record a charge before it is written; the ledger sets `paid` afterwards."""
    tape = active()
    if tape is None:
        return None
    _must_be_seeded(private)
    tape.charges.append(Charge(declaration, count, label))
    return tape.charges[-1]


def refuse_private(private: bool) -> None:
    """Refuse to draw private noise while a tape records."""
    if private and active() is not None:
        _must_be_seeded(private)


def _must_be_seeded(private: bool) -> None:
    if private:
        raise NotPrivate(
            "a recording holds exact values, so private noise is refused: give the"
            " engine the seeded source of the audit (source=). Nothing was spent and"
            " nothing was drawn."
        )
