"""A file of points into a file of reports: paid once, drawn batch by batch.

Two passes. The first checks every row and takes a digest of all of them, and of each
batch; then one entry is charged, bound to that digest; the second pass reads the file
again, and draws a batch only if it is the very batch of the first pass. So noise never
meets other data than those it was paid for, even if the file changes meanwhile.

Memory holds one batch. A row's report is a function of (entry key, row id, point), so
batches leave no trace in the result, and a job that was killed and is started again
with its idempotency key gives the same reports and pays nothing more. Row ids that
are not in increasing order take 8 bytes a row more, to see that none occurs twice.

The order at the end: file durable, renamed, entry committed (its key wiped). A crash in
between can be taken up again; nothing is lost in any order of events.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demur.cluster.point_tables import Batch, PointTable, RowIds, Values, kind_of
from demur.cluster.report_files import ReportWriter, sidecar
from demur.cluster.report_metadata import ReportMetadata
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, OsEntropy, Source
from demur.core.entry import Entry
from demur.core.errors import DemurError
from demur.core.events import Pure
from demur.ledger import Budget, Ledger, own_book
from demur.mechanisms.bpm import BPM
from demur.mechanisms.bpm_table import make_table

Progress = Callable[[str, int, int | None], None]


class InputChanged(DemurError):
    """The input file is not the one that was paid for; nothing was written."""


@dataclass(frozen=True)
class MadeReports:
    """Where the reports are, what travels with them, and the entry that paid."""

    path: Path
    metadata: ReportMetadata
    entry: Entry


@dataclass(frozen=True)
class _Survey:
    """What the first pass found: all of it secret but the number of rows."""

    rows: int
    digest: str
    batches: tuple[bytes, ...]

    def __repr__(self) -> str:
        return "_Survey(<secret>)"


def make_reports(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    epsilon: float,
    L: float | str,
    low: float | Sequence[float],
    high: float | Sequence[float],
    columns: Sequence[str] | None = None,
    id_column: str | None = None,
    clip: bool = False,
    ledger: Ledger | None = None,
    label: str | None = None,
    space: str = "cube",
    idempotency_key: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    noise: Source | None = None,
) -> MadeReports:
    """Perturb every row of `source` with BPM and write the reports to `output`.

    `low` and `high` are public bounds, one number or one for each column; a value
    outside is an error, or moved to the bound with `clip`. `progress` is told (pass,
    rows done, rows in all if known). `noise` is where it comes from: the operating
    system, or for tests a `Seeded` source.
    """
    table = PointTable(
        source, low=low, high=high, columns=columns, id_column=id_column, clip=clip
    )
    bpm = BPM(epsilon, L, table.dimension)
    job = ReportJob.prepare(
        table, output, bpm, space=space, overwrite=overwrite, progress=progress
    )
    return job.run(ledger, label=label, idempotency_key=idempotency_key, noise=noise)


@dataclass(frozen=True)
class ReportJob:
    """A job whose input has been read and checked; nothing is spent until `run`."""

    table: PointTable
    path: Path
    metadata: ReportMetadata
    _survey: _Survey
    _tell: Progress

    @classmethod
    def prepare(
        cls,
        table: PointTable,
        output: str | os.PathLike[str],
        bpm: BPM,
        *,
        space: str = "cube",
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> ReportJob:
        """The first pass, after everything that can be refused without it."""
        path = _free(Path(output), table.path, overwrite)
        metadata = ReportMetadata(
            bpm,
            table.columns,
            table.low,
            table.high,
            table.clip,
            table.id_column,
            space,
        )
        bpm.declaration(space)
        make_table(bpm.epsilon, bpm.L, bpm.dimension)
        tell = progress or (lambda what, done, total: None)
        return cls(table, path, metadata, _survey(table, tell), tell)

    def run(
        self,
        ledger: Ledger | None,
        *,
        label: str | None = None,
        idempotency_key: str | None = None,
        noise: Source | None = None,
    ) -> MadeReports:
        """Charge, then perturb: the second pass."""
        if idempotency_key is not None and (ledger is None or not ledger.durable):
            raise ValueError(
                "an idempotency key needs a book that lasts: without one a second run"
                " cannot know of the first. Nothing was spent."
            )
        bpm, digest = self.metadata.mechanism, self._survey.digest
        book = own_book(ledger, whole_budget(bpm), unit=ReplaceOne(), filter="pure")
        # The output is opened first: a place that cannot be written to costs nothing.
        with ReportWriter(self.path, self.metadata) as writer:
            entry = book.charge(
                bpm.declaration(self.metadata.space),
                label=label or f"reports of {self.table.path.stem}"[:200],
                input_digest=digest,
                idempotency_key=idempotency_key,
                source=noise or OsEntropy(),
            )
            released = self._perturb(bpm, book.key(entry, digest), entry, writer)
            writer.finish()
        book.commit(entry, released)
        return MadeReports(self.path, self.metadata, entry)

    def _perturb(
        self, bpm: BPM, key: NoiseKey, entry: Entry, writer: ReportWriter
    ) -> str:
        """Every batch, while it is the one that was paid for; the reports' digest."""
        released = _Digest("reports", bpm.dimension)
        expected = iter(self._survey.batches)
        self._tell("perturbing", 0, self._survey.rows)
        for batch in self.table.batches():
            if next(expected, None) != _digest_of(batch):
                raise _changed(self.table.path, entry)
            values = bpm.apply(
                batch.points, key, batch.row_ids, space=self.metadata.space
            )
            writer.write(values, batch.row_ids)
            released.add(values, batch.row_ids)
            self._tell("perturbing", released.rows, self._survey.rows)
        if next(expected, None) is not None:
            raise _changed(self.table.path, entry)
        return released.text()


def whole_budget(bpm: BPM) -> Budget:
    """What one entry of this mechanism costs at any replacement of a record."""
    event = bpm.event(ReplaceOne())
    assert isinstance(event, Pure)
    return Budget(max(event.epsilon, 2.0**-1022))


def _free(output: Path, source: Path, overwrite: bool) -> Path:
    """The output's place, if it may be written to."""
    if output.exists() and output.samefile(source):
        raise ValueError(
            "the output must not be the input: the points would be lost."
            " Nothing was spent."
        )
    written = [output, sidecar(output)] if kind_of(output) == "csv" else [output]
    for place in written:
        if place.exists() and not (overwrite and place.is_file()):
            raise ValueError(
                f"{place} exists already; --overwrite replaces a file."
                " Nothing was spent."
            )
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent}. Nothing was spent.")
    return output


class _Digest:
    """Of rows and their names, however they are cut into batches."""

    def __init__(self, what: str, dimension: int) -> None:
        self._what, self._dimension, self.rows = what, dimension, 0
        self._values, self._ids = hashlib.sha256(), hashlib.sha256()

    def add(self, values: Values, ids: RowIds) -> None:
        self._values.update(np.ascontiguousarray(values, dtype="<f8").data)
        self._ids.update(np.ascontiguousarray(ids, dtype="<u8").data)
        self.rows += len(values)

    def text(self) -> str:
        whole = hashlib.sha256(
            f"bpm file of {self._what} {self.rows} {self._dimension}\x00".encode()
        )
        whole.update(self._values.digest())
        whole.update(self._ids.digest())
        return whole.hexdigest()


def _digest_of(batch: Batch) -> bytes:
    one = hashlib.sha256(np.ascontiguousarray(batch.points, dtype="<f8").data)
    one.update(np.ascontiguousarray(batch.row_ids, dtype="<u8").data)
    return one.digest()


def _survey(table: PointTable, tell: Progress) -> _Survey:
    """Check every row and remember what they were, in 32 bytes for each batch."""
    total = table.rows
    whole = _Digest("points", table.dimension)
    batches: list[bytes] = []
    increasing, last = True, -1
    for batch in table.batches():
        whole.add(batch.points, batch.row_ids)
        batches.append(_digest_of(batch))
        ids = batch.row_ids
        increasing &= int(ids[0]) > last and bool((ids[1:] > ids[:-1]).all())
        last = int(ids[-1])
        tell("checking", whole.rows, total)
    if not whole.rows:
        raise ValueError(f"{table.path.name} holds no rows. Nothing was spent.")
    if not increasing:
        _must_differ(table, whole.rows, batches)
    return _Survey(whole.rows, whole.text(), tuple(batches))


def _must_differ(table: PointTable, rows: int, batches: Sequence[bytes]) -> None:
    """Read the ids again, of the very same batches, and sort them in place."""
    found = np.empty(rows, dtype=np.uint64)
    expected, done = iter(batches), 0
    for batch in table.batches():
        if next(expected, None) != _digest_of(batch):
            raise InputChanged(
                f"{table.path.name} changed while it was read. Nothing was spent."
            )
        found[done : done + len(batch.row_ids)] = batch.row_ids
        done += len(batch.row_ids)
    found.sort()
    if done != rows or (found[1:] == found[:-1]).any():
        raise ValueError(
            f"the id column {table.id_column!r} must not hold an id twice: two rows of"
            " one id would share their noise. Nothing was spent."
        )


def _changed(path: Path, entry: Entry) -> InputChanged:
    return InputChanged(
        f"{path.name} changed while it was read: what was paid for is not what is"
        f" there now. Nothing was released; entry {entry.sequence} stays spent, and"
        " pays for the first file if that comes back under the same idempotency key."
    )
