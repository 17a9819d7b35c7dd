"""A file of points into a file of reports: paid once, drawn batch by batch.

Two passes. The first checks every row and takes a digest of all of them, and of each
batch; then one entry is charged, bound to that digest; the second pass reads the file
again, and draws a batch only if it is the very batch of the first pass. So noise never
meets other data than those it was paid for, even if the file changes meanwhile.

Memory holds one batch. A row's report is a function of (entry key, row id, point), so
batches leave no trace in the result, and a job that was killed and is started again
with its idempotency key gives the same reports and pays nothing more. Row ids that
are not in increasing order take 8 bytes a row more, to see that none occurs twice.

The order at the end: file durable, under its name, entry committed (its key wiped). A
crash in between can be taken up again; nothing is lost in any order of events. A job
that was charged before may find its own output there: it draws again, and what is there
must be the same to the last byte. So it can finish, and never replaces another's file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demur.cluster.errors import InputChanged as InputChanged
from demur.cluster.files.point_survey import Digest, Progress, Survey, survey
from demur.cluster.files.point_tables import PointTable, kind_of
from demur.cluster.files.report_files import ReportWriter, sidecar
from demur.cluster.files.report_metadata import ReportMetadata
from demur.core.entropy import NoiseKey, Source
from demur.core.entry import Entry
from demur.core.errors import NoiseReuse, NotPaidFor
from demur.ledger import Ledger, Payment
from demur.mechanisms.bpm import BPM
from demur.mechanisms.bpm.table import make_table


@dataclass(frozen=True)
class MadeReports:
    """Where the reports are, what travels with them, and the entry that paid."""

    path: Path
    metadata: ReportMetadata
    entry: Entry


def make_reports(
    path: str | os.PathLike[str],
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
    source: Source | None = None,
) -> MadeReports:
    """Perturb every row of the file `path` with BPM, and write reports to `output`.

    `low` and `high` are public bounds, one number or one for each column; a value
    outside is an error, or moved to the bound with `clip`. `progress` is told (pass,
    rows done, rows in all if known). `source` is where the noise comes from: the
    operating system, or for tests a `Seeded` source.
    """
    table = PointTable(
        path, low=low, high=high, columns=columns, id_column=id_column, clip=clip
    )
    bpm = BPM(epsilon, L, table.dimension)
    job = ReportJob.prepare(
        table,
        output,
        bpm,
        space=space,
        overwrite=overwrite,
        begun=_charged_before(ledger, idempotency_key),
        progress=progress,
    )
    return job.run(ledger, label=label, idempotency_key=idempotency_key, source=source)


@dataclass(frozen=True)
class ReportJob:
    """A job whose input has been read and checked; nothing is spent until `run`."""

    table: PointTable
    path: Path
    metadata: ReportMetadata
    overwrite: bool
    _found: Survey
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
        begun: bool = False,
        progress: Progress | None = None,
    ) -> ReportJob:
        """The first pass, after everything that can be refused without it.

        An output that is there is refused, unless the job was `begun` (charged before):
        then `run` finds out whether it is the job's own.
        """
        path = _free(Path(output), table.path, may_exist=overwrite or begun)
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
        return cls(table, path, metadata, overwrite, survey(table, tell), tell)

    def run(
        self,
        ledger: Ledger | None,
        *,
        label: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> MadeReports:
        """Charge, then perturb: the second pass."""
        if idempotency_key is not None and (ledger is None or not ledger.durable):
            raise ValueError(
                "an idempotency key needs a ledger that lasts: without one a second run"
                " cannot know of the first. Nothing was spent."
            )
        bpm, digest = self.metadata.mechanism, self._found.digest
        declared = bpm.declaration(self.metadata.space)
        ledger = bpm.ledger_for(ledger, self.metadata.space)
        # The output is opened first: a place that cannot be written to costs nothing.
        with ReportWriter(self.path, self.metadata, overwrite=self.overwrite) as writer:
            if not (self.overwrite or _charged_before(ledger, idempotency_key)):
                _free(self.path, self.table.path, may_exist=False)
            payment = ledger.paid(
                declared,
                label=label or f"reports of {self.table.path.stem}"[:200],
                digest=digest,
                idempotency_key=idempotency_key,
                source=source,
            )
            entry = payment.entry
            released = self._perturb(bpm, self._noise_key(payment), entry, writer)
            try:
                writer.finish()
            except FileExistsError as taken:
                if idempotency_key is not None:  # nothing is lost: it can be repeated
                    raise _taken(taken, entry, None) from None
                left = writer.keep()
                payment.commit(released)
                raise _taken(taken, entry, left) from None
        payment.commit(released)
        return MadeReports(self.path, self.metadata, entry)

    def _noise_key(self, payment: Payment) -> NoiseKey:
        try:
            return payment.key
        except NoiseReuse as error:
            if not self.path.exists():
                raise
            raise NoiseReuse(f"{self.path} is there, and {error}") from None

    def _perturb(
        self, bpm: BPM, key: NoiseKey, entry: Entry, writer: ReportWriter
    ) -> str:
        """Every batch, while it is the one that was paid for; the reports' digest."""
        released = Digest("reports", bpm.dimension)
        expected = iter(self._found.batches)
        self._tell("perturbing", 0, self._found.rows)
        for batch in self.table.batches():
            try:
                values = bpm.apply(
                    batch.points,
                    key.part(next(expected, "no batch")),
                    batch.row_ids,
                    space=self.metadata.space,
                )
            except NotPaidFor:
                raise _changed(self.table.path, entry) from None
            writer.write(values, batch.row_ids)
            released.add(values, batch.row_ids)
            self._tell("perturbing", released.rows, self._found.rows)
        if next(expected, None) is not None:
            raise _changed(self.table.path, entry)
        return released.text()


def _charged_before(ledger: Ledger | None, idempotency_key: str | None) -> bool:
    """Whether a job of this key has been paid for, so that its output may be there."""
    if idempotency_key is None or not isinstance(ledger, Ledger):
        return False
    return ledger.find(idempotency_key) is not None


def _free(output: Path, source: Path, *, may_exist: bool) -> Path:
    """The output's place, if it may be written to."""
    if output.exists() and output.samefile(source):
        raise ValueError(
            "the output must not be the input: the points would be lost."
            " Nothing was spent."
        )
    written = [output, sidecar(output)] if kind_of(output) == "csv" else [output]
    for place in written:
        if os.path.lexists(place) and not (may_exist and place.is_file()):
            raise ValueError(
                f"{place} exists already; --overwrite replaces a file."
                " Nothing was spent."
            )
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent}. Nothing was spent.")
    return output


def _taken(found: FileExistsError, entry: Entry, left: Path | None) -> ValueError:
    paid = f"entry {entry.sequence} is paid for"
    if left is not None:
        kept = f"{paid}, and its reports are in {left.name} beside it."
    else:
        kept = (
            f"{paid}. Move that file away and run the same again, or with --overwrite:"
            " it makes its reports and pays nothing more."
        )
    return ValueError(
        f"{found.filename} exists and holds something else than this job's reports; it"
        f" stays as it is. {kept[0].upper()}{kept[1:]}"
    )


def _changed(path: Path, entry: Entry) -> InputChanged:
    return InputChanged(
        f"{path.name} changed while it was read: what was paid for is not what is"
        f" there now. Nothing was released; entry {entry.sequence} stays spent, and"
        " pays for the first file if that comes back under the same idempotency key."
    )
