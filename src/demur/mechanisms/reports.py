"""Local reports: what every mechanism of them can do, and how they are released.

Every row has noise of its own, addressed by (entry key, row id): order and batches
change nothing, and neighbouring datasets, which differ in one record, differ in one
report.

A mechanism takes its `check`, `digest`, `apply` and `privatize` from here (`OneByOne`),
and what it declares beside its cost (`declared`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import recording
from demur.core.bounds import Bound, BoundSource, finite_matrix, real_array
from demur.core.cost import Cost, Term
from demur.core.declaration import Declaration, Rebuilt
from demur.core.digest import digest_of_rows, increasing
from demur.core.entropy import NoiseKey, Source
from demur.core.errors import NotPaidFor
from demur.core.release import Release
from demur.ledger import Ledger
from demur.mechanisms.sampling.row_streams import RowStreams

Values = NDArray[np.float64]
RowIds = NDArray[np.uint64]
Digest: TypeAlias = Callable[[], str] | str | None  # of an input, or how to take it

# What every mechanism of local reports declares beside its cost.
BOUNDS = (Bound(1.0, BoundSource.ENFORCED, "coordinate in [0, 1]"),)
UNPROTECTED = ("the number of records", "row ids")
ASSUMPTIONS = (
    "each record is one row (records_per_person says how many a person may own)",
)


def declared(name: str, terms: tuple[Term, ...], fingerprint: str) -> Declaration:
    """The declaration of one report for each record, at these costs."""
    return Declaration(
        name=name,
        cost=Cost(terms),
        bounds=BOUNDS,
        unprotected=UNPROTECTED,
        assumptions=ASSUMPTIONS,
        fingerprint=fingerprint,
    )


@runtime_checkable
class ReportMechanism(Protocol):
    """A mechanism that perturbs points of the unit cube one by one."""

    @property
    def epsilon(self) -> float:
        """The epsilon of a move by one unit of distance."""
        ...

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        ...

    @property
    def reach(self) -> float:
        """How far outside [0, 1] a coordinate of a report can lie."""
        ...

    def check(self, points: ArrayLike) -> Values:
        """The points as a matrix in the unit cube, or a clear error."""
        ...

    def log_density(self, v: ArrayLike, x: ArrayLike) -> Values:
        """log density of the report x of the point v."""
        ...

    def declaration(self, space: str = "cube") -> Declaration:
        """What the ledger has to know before noise is drawn."""
        ...

    def privatize(
        self,
        points: ArrayLike,
        *,
        ledger: Ledger | None = None,
        row_ids: ArrayLike | None = None,
        label: str = "local reports",
        space: str = "cube",
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> Release[Reports]:
        """Check, charge, draw, commit."""
        ...


@runtime_checkable
class RowMechanism(ReportMechanism, Protocol):
    """A mechanism whose rows can be drawn elsewhere, by a worker with a key for rows.

    `privatize` draws `draw_rows(matrix, ids, RowStreams(row_key(key, digest)))`.
    """

    @property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw for this mechanism."""
        ...

    def digest(self, points: ArrayLike, row_ids: ArrayLike | None = None) -> str:
        """What an entry that pays for these rows is bound to."""
        ...

    def row_key(self, key: NoiseKey, digest: Digest = None) -> bytes:
        """The key of the rows' streams, for a worker; it never gets the entry's key.

        `key` must have been paid for this mechanism on the rows of this digest.
        """
        ...

    def draw_rows(self, matrix: Values, ids: RowIds, streams: RowStreams) -> Values:
        """Reports of checked points from given streams; nothing is charged here."""
        ...

    def ledger_for(self, ledger: Ledger | None, space: str = "cube") -> Ledger:
        """The ledger given, or one in memory that this release fills.

        Whatever cannot be drawn is refused here, before it is paid for.
        """
        ...


@dataclass(frozen=True, eq=False)
class Reports:
    """Local reports as the server gets them: one for each row, and their mechanism.

    Row i of `values` is the report of the row with the id `row_ids[i]`. Everything
    computed from reports is post-processing and costs nothing.
    """

    values: Values
    row_ids: RowIds
    mechanism: ReportMechanism

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        ids = checked_row_ids(self.row_ids, len(values) if values.ndim else 0)
        bound = self.mechanism.reach
        if values.ndim != 2 or values.shape[1] != self.mechanism.dimension:
            raise ValueError(
                f"reports must be a matrix of {self.mechanism.dimension} columns;"
                f" got shape {values.shape}"
            )
        inside = (values >= -bound) & (values <= 1.0 + bound) & np.isfinite(values)
        if not inside.all():
            # A client may send anything, and the server's operator must find the row.
            outside = np.flatnonzero(~inside.all(axis=1))
            raise ValueError(
                f"reports of {self.mechanism} are finite and lie in [{-bound:g},"
                f" {1.0 + bound:g}]; {outside.size} of {len(values)} do not, the first"
                f" at position {outside[0]} (row id {ids[outside[0]]}): these are not"
                " this mechanism's. Leave them out."
            )
        for name, array in (("values", values), ("row_ids", ids)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)


def check_points(mechanism: ReportMechanism, points: ArrayLike) -> Values:
    """The points as a float64 matrix in the unit cube, or a clear error.

    Nothing has been charged or drawn when it raises.
    """
    matrix = finite_matrix("points", points)
    if matrix.shape[1] != mechanism.dimension:
        raise ValueError(
            f"points must have {mechanism.dimension} columns, as declared; got"
            f" {matrix.shape[1]}. Nothing was spent."
        )
    outside = ((matrix < 0.0) | (matrix > 1.0)).any(axis=1)
    if outside.any():
        raise ValueError(
            f"points must lie in the unit cube; {int(outside.sum())} rows do not, and"
            " none are clipped in silence. Scale them by public bounds"
            " (demur.to_unit_cube). Nothing was spent."
        )
    return matrix


def coordinates(name: str, values: ArrayLike, dimension: int) -> Values:
    """`values` as float64 with `dimension` coordinates along the last axis."""
    array = real_array(name, values)
    if array.ndim == 0 or array.shape[-1] != dimension:
        raise ValueError(
            f"{name} must have {dimension} coordinates along its last axis;"
            f" got shape {array.shape}"
        )
    return array


def privatize_rows(
    mechanism: RowMechanism,
    points: ArrayLike,
    *,
    ledger: Ledger | None = None,
    row_ids: ArrayLike | None = None,
    label: str = "local reports",
    space: str = "cube",
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> Release[Reports]:
    """Check, charge, draw, commit; whatever can be refused is, before the charge.

    The arguments are those of `BPM.privatize`.
    """
    matrix = mechanism.check(points)
    ids = checked_row_ids(row_ids, len(matrix))
    check_idempotency_key(ledger, idempotency_key)
    digest = digest_of_rows("points", matrix, ids)
    declared = mechanism.declaration(space)
    with mechanism.ledger_for(ledger, space).paid(
        declared,
        label=label,
        digest=digest,
        idempotency_key=idempotency_key,
        source=source,
    ) as payment:
        values = _drawn(mechanism, declared, matrix, ids, payment.key, digest)
        payment.released(digest_of_rows("reports", values, ids))
    return Release(Reports(values, ids, mechanism), payment.entry)


def apply_rows(
    mechanism: RowMechanism,
    points: ArrayLike,
    key: NoiseKey,
    row_ids: ArrayLike | None = None,
    *,
    space: str = "cube",
) -> Values:
    """One report for each row, if the key was paid for this mechanism and these rows.

    A key for a part of the rows is `key.part(mechanism.digest(points, row_ids))`.
    """
    matrix = mechanism.check(points)
    if row_ids is None and key.is_part:
        raise ValueError(
            "row_ids must be given for a part of the rows: numbered from 0, two parts"
            " would share ids and so their noise. Nothing was drawn."
        )
    ids = checked_row_ids(row_ids, len(matrix))
    declared = mechanism.declaration(space)

    def digest() -> str:
        return digest_of_rows("points", matrix, ids)

    return _drawn(mechanism, declared, matrix, ids, key, digest)


def digest_of_points(
    mechanism: ReportMechanism, points: ArrayLike, row_ids: ArrayLike | None = None
) -> str:
    """What an entry that pays for these rows is bound to, whatever their order."""
    matrix = mechanism.check(points)
    return digest_of_rows("points", matrix, checked_row_ids(row_ids, len(matrix)))


def paid_row_key(
    mechanism: RowMechanism, key: NoiseKey, digest: Digest, purpose: str
) -> bytes:
    """The key of the rows' streams, if `key` was paid for these rows, once.

    Draws of one entry would all take the same streams, and one noise on two sets of
    rows shows their difference. So an entry pays for one draw.
    """
    binding = key.binding
    if binding is not None and binding.total != 1:
        raise NotPaidFor(
            f"this key was paid for {binding.total} draws, and local reports are drawn"
            " once for each entry, from one noise for each row id. Pay for every set of"
            " reports with an entry of its own (count=1). Nothing was drawn."
        )
    return key.authorise(mechanism.fingerprint, digest).subkey(purpose)


def _drawn(
    mechanism: RowMechanism,
    declaration: Declaration,
    matrix: Values,
    ids: RowIds,
    key: NoiseKey,
    digest: Digest,
) -> Values:
    """The reports, drawn at the one point that an audit can watch."""

    def draw() -> Values:
        streams = RowStreams(mechanism.row_key(key, digest))
        return mechanism.draw_rows(matrix, ids, streams)

    tape = recording.active()
    if tape is None:
        return draw()
    declared = recording.RowNoise(declaration.cost)
    return tape.record_use(declaration.name, declared, (ids, matrix), draw, key=key)


def check_idempotency_key(ledger: Ledger | None, idempotency_key: str | None) -> None:
    """Refuse an idempotency key without a ledger: a repeat would draw other noise."""
    if ledger is None and idempotency_key is not None:
        raise ValueError(
            "an idempotency key needs a ledger: without one a second run cannot know"
            " of the first, and would draw other noise. Nothing was spent."
        )


def checked_row_ids(row_ids: ArrayLike | None, count: int) -> RowIds:
    """The row ids as uint64, all different; by default the rows' positions."""
    if row_ids is None:
        return np.arange(count, dtype=np.uint64)
    given = np.asarray(row_ids)
    if given.dtype.kind not in "iu" or given.shape != (count,):
        raise ValueError(
            f"row_ids must be {count} whole numbers, one for each row, as an integer"
            f" array (uint64 for the largest); got {given.dtype} of shape"
            f" {given.shape}. Nothing was spent."
        )
    if (given < 0).any():
        raise ValueError("row_ids must not be negative. Nothing was spent.")
    ids = np.array(given, dtype=np.uint64)
    if not increasing(ids) and len(np.unique(ids)) != count:
        raise ValueError(
            "row_ids must all differ: two rows of one id would share their noise, and"
            " the difference of their reports would show that of their points."
            " Nothing was spent."
        )
    return ids


class OneByOne(Rebuilt):
    """A mechanism that draws every row from the row's own stream, by `draw_rows`."""

    stream: ClassVar[str]  # the purpose of the key of its rows

    check = check_points
    """The points as a float64 matrix in the unit cube, or a clear error."""
    digest = digest_of_points
    """What an entry that pays for these rows is bound to, whatever their order."""
    apply = apply_rows
    """One report for each row under a key that was paid for: as `BPM.apply`."""
    privatize = privatize_rows
    """Local reports of the points, and the entry that paid: as `BPM.privatize`."""

    def row_key(self: Any, key: NoiseKey, digest: Digest = None) -> bytes:
        """The key of the rows' streams, which a worker gets, not the entry's key."""
        return paid_row_key(self, key, digest, self.stream)
