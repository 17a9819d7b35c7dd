"""`Mode`: the interface of a model that forgets, and the theorem that covers it.

A mode is a model that learns one record at a time and forgets on request. Its promise
compares two worlds:

    world 1   learned the records, then was asked to forget some of them;
    world 2   the *replay*: the same calls, in which a forgotten record's tick is
              `skip()` and its deletion is `delete` of nothing, noise included.

`shift_bound()` bounds how far apart the two worlds are at the moment of the deletion,
before noise. Noise of deviation at least z times that bound, in both worlds, makes
them as hard to tell apart as N(0, 1) and N(1/z, 1). Where the noise goes is declared
by the mode (`publishes`):

    "state"    it enters the state and stays. Everything later is post-processing, and
               nothing secret is left: one deletion costs once, however often the
               model is read afterwards.
    "output"   it enters the published copy alone and the inner point stays secret.
               Every further published copy (`publish`) costs once more. Noise is the
               last step of a deletion: `delete` with silent noise and then
               `publish(noise)` gives the same bits as `delete` with that noise.

Noise is drawn by the caller, who pays for it first. Modes that are `exact` take none.

With `classes`, a mode has one row of weights for each class, and its parameters, noise
and norms are those of the rows laid end to end: `size` numbers, the Euclidean norm of
which is the Frobenius norm of the matrix. y is then the number of a class.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
State: TypeAlias = dict[str, np.ndarray[Any, Any]]
Scope: TypeAlias = Literal["subject", "joint"]
Accounting: TypeAlias = Literal["basic", "rdp", "zcdp", "gdp"]
Composition: TypeAlias = Literal["nothing", "deletions", "publications"]
RowFunctions: TypeAlias = tuple[Callable[[], float], Callable[[float], float]]
LossName: TypeAlias = Literal["squared", "huber", "logistic"]

# True of every mode; each theorem begins with these.
NEVER_COVERED = (
    "predictions and states published before the deletion are not covered",
    "deletion requests and later inserts must not depend on published outputs",
    "that something was deleted, and when, is not hidden",
)


@dataclass(frozen=True)
class Theorem:
    """What a mode guarantees of a deletion, in words, and what it does not.

    `composes` says over what costs add up, for each scope: under "subject" the worlds
    differ in one subject's records, under "joint" in all deleted ones.
    `joint_accounting` are the accountings proved for composing deletions under "joint".
    """

    id: str
    statement: str
    scopes: tuple[Scope, ...]
    not_covered: tuple[str, ...] = NEVER_COVERED
    joint_accounting: tuple[Accounting, ...] = ("basic", "rdp", "zcdp", "gdp")
    composes: tuple[tuple[Scope, Composition], ...] = (
        ("subject", "nothing"),
        ("joint", "deletions"),
    )

    def composition(self, scope: Scope) -> Composition:
        """What adds up under `scope`; an error if the theorem does not cover it."""
        if scope not in self.scopes:
            known = ", ".join(self.scopes) or "none: it makes no promise"
            raise ValueError(f"theorem {self.id!r} has no scope {scope!r} ({known})")
        return dict(self.composes)[scope]


class Mode(abc.ABC):
    """A model that learns one record at a time and forgets on request.

    What the first lines name belongs to the class; `PublishedAnswers`, which wraps a
    mode, has it from that mode.
    """

    name: str
    theorem: Theorem
    needs_record: bool  # delete needs (x, y)
    exact: bool  # equal digests and no noise: epsilon 0
    publishes: ClassVar[Literal["state", "output"]]
    losses: tuple[LossName, ...]  # to choose from; the default first
    regulariser: Literal["lam", "Lambda"]  # for each record, or for all
    clips: ClassVar[bool] = True  # rows, to `norm_bound`
    multiclass: ClassVar[bool] = False  # whether it takes `classes`
    formula: ClassVar[Literal["consistent", "seed"]] = "consistent"  # of its odometer
    loss: LossName
    dimension: int
    classes: int | None = None  # None: one score, or the probability of class 1

    @property
    def secret(self) -> bool:
        """Whether the state must not be seen: only published copies may."""
        return self.publishes == "output"

    @property
    def size(self) -> int:
        """How many parameters are published, and how long noise has to be."""
        return self.dimension * (1 if self.classes is None else self.classes)

    @abc.abstractmethod
    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """One record as it will be learned: x within its bound; or a clear error."""

    @abc.abstractmethod
    def predict(self, x: ArrayLike) -> float:
        """A prediction from the published parameters; over classes, a class."""

    def probabilities(self, x: ArrayLike) -> Array:
        """The probability of each class, from the published parameters."""
        raise ValueError(
            f"mode {self.name!r} was made without classes= and predicts one number"
        )

    @abc.abstractmethod
    def insert(self, x: ArrayLike, y: float) -> float:
        """Learn a record; the prediction for it from before.

        Over classes that is the probability (ridge: the score) of its own class.
        """

    @abc.abstractmethod
    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """Learn rows in order: `insert` in a loop, bit for bit, all rows or none."""

    def on_row(self, row: Array, emptied: int) -> RowFunctions:
        """`predict()` and `insert(y)` of the record that is in `row` at that time.

        For callers who write many records into one array, whose first `emptied` numbers
        are 0 afterwards. NaN means that nothing has changed and that the record is to
        go through `predict` or `insert`.
        """

        def predict() -> float:
            try:
                return self.predict(row)
            finally:
                row[:emptied] = 0.0

        def insert(y: float) -> float:
            try:
                return self.insert(row, y)
            finally:
                row[:emptied] = 0.0

        return predict, insert

    def planned_gradient(self, gradient: Array) -> Array:
        """A gradient in the units that calibration plans in: here, as it is."""
        return gradient

    def planned_parameters(self) -> Array:
        """The published parameters in these units."""
        return self.published()

    def skip(self) -> None:  # noqa: B027 - most modes have no clock
        """The step of the replay in the tick of a record that it never saw."""

    @abc.abstractmethod
    def shift_bound(self, records: int = 1) -> float:
        """A bound on the distance to the replay after deleting `records` records now.

        The records are one subject's. A function of the configuration, the clock and
        earlier grids, never of the data, so that noise sized by it reveals nothing.
        0.0 if exact.
        """

    @abc.abstractmethod
    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        noise: Array | None = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        """Forget a record, or `records` of one subject as rows x and vector y.

        x and y may be None where `needs_record` is False. `noise` is a vector of
        deviation at least z times `shift_bound(records)`; None for exact modes. With
        `grid` (of the `Gaussian` that drew it), what is noised is first rounded to
        multiples of it, so that the sum is exact and its bits reveal nothing; that adds
        grid sqrt(size) to the shift. Nothing has changed if this raises.
        """

    def forget_nothing(
        self, noise: Array | None = None, *, grid: float | None = None
    ) -> None:
        """The step of the replay where the other world deletes: the noise alone."""
        self.publish(noise, grid=grid)

    @abc.abstractmethod
    def published(self) -> Array:
        """A copy of the parameters that may be released, noise included."""

    def publish(self, noise: Array | None = None, *, grid: float | None = None) -> None:
        """Renew the published copy, with noise; a mode with "output" pays for each.

        Modes that publish their state are always up to date and take no noise here.
        """
        if noise is not None:
            raise ValueError(
                f"mode {self.name!r} publishes its state as it is; noise enters with"
                " a deletion"
            )

    @abc.abstractmethod
    def state(self) -> State:
        """Copies of everything it takes to go on bit for bit, as arrays."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()` of the same configuration.

        Nothing is left of the state before, in work space either.
        """

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Keyword arguments that make an empty copy (plain JSON values)."""

    def fresh(self) -> Self:
        """The same configuration, nothing learned."""
        return type(self)(self.dimension, **self.config())  # type: ignore[call-arg]

    def copy(self) -> Self:
        """Another model in the same state."""
        twin = self.fresh()
        twin.restore(self.state())
        return twin

    def digest(self) -> str:
        """SHA-256 of mode, configuration and state; equal states, equal digests."""
        return digest_of(self.name, self.dimension, self.config(), self.state())


def digest_of(
    name: str,
    dimension: int,
    config: Mapping[str, Any],
    state: Mapping[str, np.ndarray[Any, Any]],
) -> str:
    """SHA-256 of a canonical encoding: names sorted, numbers little-endian."""
    header = json.dumps([name, dimension, dict(config)], sort_keys=True)
    digest = hashlib.sha256(f"demur mode\x00{header}".encode())
    for key in sorted(state):
        array = np.asarray(state[key])
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
        digest.update(f"\x00{key}\x00{array.dtype.str}\x00{array.shape}\x00".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
