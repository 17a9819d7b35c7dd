"""Report jobs: a file of points into a file of local reports, paid for once.

There are two passes. The first checks every row and takes a digest of all of them, and
of each batch; then one entry is charged, bound to that digest. The second pass reads
the file again, and draws a batch only if it is the same batch as in the first pass. So
noise is drawn for the data that were paid for and for no other, even if the file
changes meanwhile.

Memory holds one batch. A row's report is a function of (entry key, row id, point), so
the result does not depend on batches, and a job that was killed and is started again
with its idempotency key gives the same reports and pays nothing more. Row ids that
are not in increasing order take 8 bytes a row more, to check that none occurs twice.

The order at the end: the file is durable, it gets its name, the entry is committed (its
key wiped). A job that crashed in between can be taken up again, and nothing is lost in
any order of events. A job that was charged before may find its own output there: it
draws again, and what is there must be the same to the last byte. So it can finish, and
never replaces another's file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from demur.cluster.errors import InputChanged
from demur.cluster.files.checked_points import (
    CheckedPoints,
    FileDigest,
    Progress,
    check_point_table,
)
from demur.cluster.files.point_tables import PointTable, kind_of
from demur.cluster.files.report_files import ReportWriter, sidecar
from demur.cluster.files.report_metadata import ReportMetadata
from demur.core.adjacency import ReplaceOne, Unit
from demur.core.entropy import NoiseKey, Source
from demur.core.entry import Entry
from demur.core.errors import NoiseReuse, NotPaidFor
from demur.ledger import Ledger, Payment, checked_ledger
from demur.mechanisms.bpm import BPM
from demur.mechanisms.bpm.table import make_table


@dataclass(frozen=True)
class MadeReports:
    """The file of local reports, its metadata, and the entry that paid."""

    path: Path
    metadata: ReportMetadata
    entry: Entry


def make_reports(
    table: PointTable,
    output: str | os.PathLike[str],
    *,
    epsilon: float,
    L: float | str,
    ledger: Ledger | None = None,
    label: str | None = None,
    idempotency_key: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    source: Source | None = None,
) -> MadeReports:
    """Perturb every row of `table` with BPM, and write local reports to `output`.

        make_reports(PointTable("people.csv", low=0.0, high=100.0), "reports.parquet",
                     epsilon=4.0, L="auto", ledger=ledger)

    `BPM.for_unit` has the epsilon and L that tell most at a price of the ledger's unit.

    An output that exists is refused, or replaced with `overwrite`. `progress` is called
    with (pass, rows done, rows in all if known). `source` is where the noise comes
    from: the operating system, or, in tests, a `Seeded` source.
    """
    if not isinstance(table, PointTable):
        raise TypeError(
            "table must be a PointTable, as PointTable(path, low=0.0, high=1.0); got"
            f" {type(table).__name__}. Nothing was spent."
        )
    bpm = BPM(epsilon, L, table.dimension)
    begun = _charged_before(ledger, idempotency_key)
    job = ReportJob.prepare(
        table, output, bpm, overwrite=overwrite, begun=begun, progress=progress
    )
    return job.run(
        ledger=ledger, label=label, idempotency_key=idempotency_key, source=source
    )


def mechanism_for_job(
    table: PointTable,
    epsilon: float | None,
    L: float | str,
    price: float | None,
    units: tuple[Unit, ...] = (),
    people: int | None = None,
) -> BPM:
    """BPM of an epsilon and L, or of a price at the unit of the ledger.

    Of several units it is the one that covers all the others. L at a price follows from
    the number of reports as well: `people`, or the rows of the table, which are public
    (whoever sees the reports can count them).
    """
    if (epsilon is None) == (price is None):
        raise ValueError(
            "give either epsilon (per unit of the cube) or price (for the ledger's"
            " unit). Nothing was spent."
        )
    if people is not None and price is None:
        raise ValueError(
            "the number of people decides L at a price alone: leave it out, or give a"
            " price instead of epsilon. Nothing was spent."
        )
    if price is None:
        assert epsilon is not None
        return BPM(epsilon, L, table.dimension)
    if L != "auto":
        raise ValueError(
            "L is chosen with the rate where a price is given: leave it out. Nothing"
            " was spent."
        )
    widest = [u for u in units if all(u.covers(other) for other in units)]
    if units and not widest:
        raise ValueError(
            "the ledger has several units and none covers the others, so that a price"
            " alone does not decide: give epsilon and L. Nothing was spent."
        )
    unit = widest[0] if widest else ReplaceOne()
    count = table.counted_rows() if people is None else people
    return BPM.for_unit(
        unit,
        price=price,
        dimension=table.dimension,
        n=max(count, 1),  # an empty table is refused later
        space=table.space,
    )


@dataclass(frozen=True)
class ReportJob:
    """A job whose input has been read and checked; nothing is spent until `run`."""

    table: PointTable
    path: Path
    metadata: ReportMetadata
    overwrite: bool
    _checked: CheckedPoints
    _progress: Progress

    @classmethod
    def prepare(
        cls,
        table: PointTable,
        output: str | os.PathLike[str],
        bpm: BPM,
        *,
        overwrite: bool = False,
        begun: bool = False,
        progress: Progress | None = None,
    ) -> ReportJob:
        """The job after its first pass; whatever can be refused earlier is.

        An output that exists is refused, unless the job was `begun` (charged before):
        then `run` finds out whether it is the job's own.
        """
        path = _writable(Path(output), table.path, may_exist=overwrite or begun)
        metadata = ReportMetadata(
            bpm,
            table.columns,
            table.low,
            table.high,
            table.clip,
            table.id_column,
            table.space,
        )
        bpm.declaration(table.space)
        make_table(bpm.epsilon, bpm.L, bpm.dimension)
        tell = progress or (lambda what, done, total: None)
        return cls(
            table, path, metadata, overwrite, check_point_table(table, tell), tell
        )

    def run(
        self,
        *,
        ledger: Ledger | None = None,
        label: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> MadeReports:
        """Charge, then perturb: the second pass."""
        ledger = checked_ledger(ledger)
        if idempotency_key is not None and (ledger is None or not ledger.durable):
            raise ValueError(
                "an idempotency key needs a ledger that lasts: without one a second run"
                " cannot know of the first. Nothing was spent."
            )
        bpm, space = self.metadata.mechanism, self.metadata.space
        ledger = bpm.ledger_for(ledger, space)
        # The output is opened first: a place that cannot be written to costs nothing.
        with ReportWriter(self.path, self.metadata, overwrite=self.overwrite) as writer:
            if not (self.overwrite or _charged_before(ledger, idempotency_key)):
                _writable(self.path, self.table.path, may_exist=False)
            payment = ledger.paid(
                bpm.declaration(space),
                label=label or f"local reports of {self.table.path.stem}"[:200],
                digest=self._checked.digest,
                idempotency_key=idempotency_key,
                source=source,
            )
            entry = payment.entry
            released = self._perturb(bpm, self._noise_key(payment), entry, writer)
            try:
                writer.finish()
            except FileExistsError as error:
                if idempotency_key is not None:  # nothing is lost: it can be repeated
                    raise _name_taken(error, entry, None) from None
                aside = writer.keep()
                payment.commit(released)
                raise _name_taken(error, entry, aside) from None
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
        """Draw and write every batch that was paid for; the digest of the reports."""
        read = FileDigest("points", bpm.dimension)
        released = FileDigest("reports", bpm.dimension)
        expected = iter(self._checked.batches)
        self._progress("perturbing", 0, self._checked.rows)
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
            read.add(batch.points, batch.row_ids)
            released.add(values, batch.row_ids)
            self._progress("perturbing", released.rows, self._checked.rows)
        # Batches that are missing, or rows in another order.
        if read.text() != self._checked.digest:
            raise _changed(self.table.path, entry)
        return released.text()


def _charged_before(ledger: Ledger | None, idempotency_key: str | None) -> bool:
    """Whether a job of this key has been paid for, so that its output may be there."""
    ledger = checked_ledger(ledger)
    if idempotency_key is None or ledger is None:
        return False
    return ledger.find(idempotency_key) is not None


def _writable(output: Path, table: Path, *, may_exist: bool) -> Path:
    """The path of the output, if it may be written to."""
    if output.exists() and output.samefile(table):
        raise ValueError(
            "the output must not be the input: the points would be lost."
            " Nothing was spent."
        )
    written = [output, sidecar(output)] if kind_of(output) == "csv" else [output]
    for path in written:
        if os.path.lexists(path) and not (may_exist and path.is_file()):
            raise ValueError(
                f"{path} exists already; --overwrite replaces a file."
                " Nothing was spent."
            )
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent}. Nothing was spent.")
    return output


def _name_taken(error: FileExistsError, entry: Entry, aside: Path | None) -> ValueError:
    if aside is not None:
        then = f"and its reports are in {aside.name} beside it."
    else:
        then = (
            "and no reports were written: move that file away and run the same again,"
            " or with --overwrite, which pays nothing more."
        )
    return ValueError(
        f"{error.filename} exists and holds something else than this job's reports; it"
        f" was not replaced. Entry {entry.sequence} is paid for, {then}"
    )


def _changed(path: Path, entry: Entry) -> InputChanged:
    return InputChanged(
        f"{path.name} changed while it was read, so it is not what was paid for."
        f" Nothing was released, and entry {entry.sequence} stays spent: it pays for"
        " the first file if that comes back under the same idempotency key."
    )
