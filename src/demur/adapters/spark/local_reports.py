"""Local reports of the rows of a Spark DataFrame: paid once, drawn on the executors.

Spark runs a task again when it fails, when its executor is lost, when it is slow
(speculation) and when its result is asked for twice. Fresh noise in each of these would
be several reports of one point for the price of one. So a report is a function of (key,
row id, point), by the same kernel as on one machine (`RowMechanism.draw_rows`), and a
task that runs again gives the same reports again.

The order of the steps:

    check     a job: every row checked, all of them counted and digested, no id twice
    charge    one entry, bound to the digest: durable, or declined and nothing is drawn
    share     the key of the rows, in shares, with the tasks of this session (`shares`)
    draw      lazily, by `mapInArrow`, as often as actions ask
    commit    the shares destroyed; the check again; the entry committed, its key wiped

The shares are destroyed before the last check, so that no task begins to draw after it.

**The input must not change.** One noise on two points shows their difference, so the
rows that are drawn for must be those that were checked. A plan that Spark calls
non-deterministic is refused, the draw refuses rows that the check would have refused,
and the check at commit finds everything else (`InputChanged`). The draw itself cannot
compare: row by row it would need a digest of every row, and partition by partition
would be wrong, for Spark cuts a scan by the number of executors at that moment, which
changes when one is lost.

**What the commit binds.** An HMAC, under the key of the rows, of the input's digest: it
names the one set of reports that key and input determine. A plain hash of the input
would let readers of the ledger test guesses about the data. With `commit(written)` it
is the digest of the reports as written, which anyone who has them can check.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from demur.adapters.errors import BadRows, NothingDrawn
from demur.adapters.spark import writing
from demur.adapters.spark.checked_rows import (
    CheckedRows,
    check_dataframe_points,
    check_reports,
)
from demur.adapters.spark.columns import id_and_coordinates, listed, spread
from demur.adapters.spark.drawing import ReportTask, probe
from demur.adapters.spark.session import classic_dataframe
from demur.adapters.spark.shares import KeyShares, TaskKey, check_closure
from demur.adapters.spark.writing import check_place
from demur.cluster.errors import InputChanged
from demur.core import recording
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.errors import NoiseReuse
from demur.ledger import Ledger, Payment
from demur.mechanisms.reports import RowMechanism, check_idempotency_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_State = Literal["open", "closed", "being committed", "spoiled", "committed"]


def privatize(
    df: DataFrame,
    mechanism: RowMechanism,
    columns: Sequence[str] | str,
    id_column: str,
    *,
    lazy: bool = False,
    ledger: Ledger | None = None,
    label: str = "local reports on Spark",
    space: str = "cube",
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> SparkReports:
    """Local reports that are checked and paid for, drawn when their DataFrame is used.

        with privatize(df, BPM(4.0, "auto", 2), ["x", "y"], "id", lazy=True,
                       ledger=ledger, idempotency_key="2026-11-15") as reports:
            few = reports.cached().where("id < 100").collect()

    `write_reports` is the call to begin with. This one is for several actions on the
    reports: `lazy=True` says that you know that they are drawn by actions alone, inside
    the `with`. A normal exit commits, unless some reports were not drawn
    (`NothingDrawn`; `commit()` says that those few are all you want). An exception does
    not: the entry stays spent, and a run again with the same idempotency
    key and the same rows gives the same reports and pays nothing more. `columns` hold
    coordinates in [0, 1] (or name one column of arrays of them), `id_column` whole
    numbers from 0 that all differ; as in `mechanism.privatize`, and so are the reports.
    """
    if lazy is not True:
        raise TypeError(
            "privatize gives a lazy DataFrame: nothing is drawn before an action, and"
            " after the with its key is gone. Use write_reports(df, mechanism, columns,"
            " id_column, path), which draws, writes and commits, or pass lazy=True and"
            " act inside the with. Nothing was spent."
        )
    df = classic_dataframe(df)
    if not isinstance(mechanism, RowMechanism):
        raise TypeError(
            "mechanism must be a mechanism of local reports (BPM, LaplaceReports,"
            f" GaussianReports); got {type(mechanism).__name__}. Nothing was spent."
        )
    df, columns = spread(df, mechanism.dimension, columns)
    rows = id_and_coordinates(df, mechanism.dimension, columns, id_column)
    _must_repeat(df)
    schema = _schema(df, columns, id_column)
    task = ReportTask(mechanism, (), TaskKey("", b"", None), "", mechanism.fingerprint)
    check_closure(df.sparkSession.sparkContext, task, schema)
    check_idempotency_key(ledger, idempotency_key)
    if recording.active() is not None:
        raise NoiseReuse(
            "a recording cannot watch executors: audit mechanism.privatize, whose"
            " reports are the same. Nothing was spent."
        )
    ledger = mechanism.ledger_for(ledger, space)
    checked = check_dataframe_points(rows)
    payment = ledger.paid(
        mechanism.declaration(space),
        label=label,
        digest=checked.digest,
        idempotency_key=idempotency_key,
        source=source,
    )
    key = mechanism.row_key(payment.key, checked.digest)
    repeatable = idempotency_key is not None
    return SparkReports(
        rows, schema, mechanism, payment, checked, key, repeatable=repeatable
    )


def write_reports(
    df: DataFrame,
    mechanism: RowMechanism,
    columns: Sequence[str] | str,
    id_column: str,
    path: str,
    *,
    ledger: Ledger | None = None,
    label: str = "local reports on Spark",
    space: str = "cube",
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> Entry:
    """Draw local reports of all rows, write them to Parquet files, and commit.

        entry = write_reports(df, BPM(4.0, "auto", 2), ["x", "y"], "id",
                              "s3://survey/reports", ledger=ledger,
                              idempotency_key="2026-11-15")

    Returns the entry that paid. `path` is a new or empty folder that the driver and all
    executors reach. The commit is bound to the reports as they were written
    (`reports_digest`). After a failure remove the folder and run the same call again:
    with an idempotency key it gives the same reports and pays nothing more. The other
    arguments are those of `privatize`.
    """
    classic_dataframe(df)
    check_place(path)
    with privatize(
        df,
        mechanism,
        columns,
        id_column,
        lazy=True,
        ledger=ledger,
        label=label,
        space=space,
        idempotency_key=idempotency_key,
        source=source,
    ) as reports:
        reports.write(path)
    return reports.entry


def reports_digest(df: DataFrame, columns: Sequence[str], id_column: str) -> str:
    """The digest of reports as written, whatever their order: what a commit binds.

    `commit(written)` puts it into the ledger; whoever has the reports can compare.
    """
    columns = listed(columns)
    rows = id_and_coordinates(classic_dataframe(df), len(columns), columns, id_column)
    return check_reports(rows).digest


class SparkReports:
    """Local reports that are paid for and can be drawn until `commit`.

    Use it as a context manager. Its DataFrame may be acted on any number of times, from
    any thread, until then. Let all actions end before the commit: one that still runs
    fails, or draws rows that had changed by the last check.
    """

    def __init__(
        self,
        rows: DataFrame,
        schema: StructType,
        mechanism: RowMechanism,
        payment: Payment,
        checked: CheckedRows,
        key: bytes,
        *,
        repeatable: bool = False,
    ) -> None:
        self.mechanism = mechanism
        self._rows, self._checked, self._payment = rows, checked, payment
        self._names = schema.fieldNames()
        text = f"spark reports {payment.entry.id} {checked.digest}"
        self._artefact = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        self._state: _State = "open"
        self._repeatable = repeatable
        self._drawn = rows.sparkSession.sparkContext.accumulator(0)
        expected = probe(mechanism)
        self._shares = KeyShares(rows.sparkSession, key)
        try:
            self._task = ReportTask(
                mechanism,
                tuple(self._names),
                self._shares.task_key,
                expected,
                payment.entry.declaration.fingerprint,
                self._drawn,
            )
            self._dataframe = rows.mapInArrow(self._task, schema)
        except BaseException:
            self._shares.destroy()
            raise

    @property
    def entry(self) -> Entry:
        """The entry that paid."""
        return self._payment.entry

    @property
    def dataframe(self) -> DataFrame:
        """The reports: the id column and one double for each coordinate."""
        if self._state != "open":
            raise NoiseReuse(
                f"these reports are {self._state} and their key is gone: their noise"
                " cannot be drawn again. Read them where they were written."
            )
        return self._dataframe

    def cached(self) -> DataFrame:
        """The reports, drawn now and kept by Spark, for several actions in the `with`.

        They end with it: whatever Spark keeps, it may want to draw again. Write what is
        needed afterwards.
        """
        kept = self.dataframe.persist()
        kept.count()
        return kept

    def write(self, path: str) -> None:
        """Draw all reports and write them to Parquet files in a new or empty folder.

        The tasks write the files themselves (`writing`). The commit is then bound to
        the reports as written.
        """
        _ = self.dataframe  # refuses after the commit
        reports = writing.write(self._rows, self._task, path, len(self._names) - 1)
        self._compare(reports, "path")
        self._artefact = reports.digest

    def __len__(self) -> int:
        return self._checked.rows

    def commit(self, written: DataFrame | None = None) -> None:
        """End the draw: the entry is committed and its key wiped everywhere.

        The rows are checked once more. If they are not those that were paid for, it
        raises `InputChanged`, and what was written must not be published. `written`
        holds the reports as they were read back: the commit is then bound to them.
        """
        if self._state == "committed":
            return
        if written is None:
            self._check_drawn(least=1)
        artefact = self._artefact if written is None else self._digest_of(written)
        self._shares.destroy()
        if self._state != "spoiled":
            self._state = "being committed"
            if not self._unchanged():
                self._state = "spoiled"
        if self._state == "spoiled":
            raise InputChanged(
                "df changed after it was checked: one noise may lie on two points of a"
                " row and reveal their difference. Destroy what was written; entry"
                f" {self.entry.sequence} stays spent. Use files that nobody writes to,"
                " and no plan that depends on chance or order."
            )
        self._payment.commit(artefact)
        self._state = "committed"

    def _check_drawn(self, *, least: int) -> None:
        """Refuse to wipe the key while fewer reports than `least` were drawn.

        Rows are counted in tasks that came to their end, so fewer than there are mean
        that some were never drawn: `show()` draws twenty, and ends its task early.
        """
        # Where rows changed, tasks fail: that is looked for first, and told.
        if self._state != "open" or self._drawn.value >= least:
            return
        if not self._unchanged():
            return
        again = (
            "run the same call again with the same idempotency key: it costs nothing"
            " more"
            if self._repeatable
            else "call write(path) of these reports, which are still open"
        )
        raise NothingDrawn(
            f"these {len(self)} reports were not all drawn, as their DataFrame is lazy:"
            " act on all of it inside the with (reports.write(path)). Entry"
            f" {self.entry.sequence} is paid and not committed; {again}."
        )

    def close(self) -> None:
        """Destroy the key's shares without committing; the entry stays spent.

        The end of a `with` then does not commit either.
        """
        self._shares.destroy()
        if self._state == "open":
            self._state = "closed"

    def _unchanged(self) -> bool:
        try:
            return check_dataframe_points(self._rows).digest == self._checked.digest
        except BadRows:
            return False

    def _digest_of(self, written: DataFrame) -> str:
        name, *columns = self._names
        rows = id_and_coordinates(
            classic_dataframe(written, "written"), len(columns), columns, name
        )
        reports = check_reports(rows)
        self._compare(reports, "written")
        return reports.digest

    def _compare(self, reports: CheckedRows, what: str) -> None:
        """Refuse reports that are not one for each id that was paid for."""
        points = self._checked
        if (reports.rows, reports.ids) != (points.rows, points.ids):
            raise ValueError(
                f"{what} must hold one report for each of {points.rows} ids; it holds"
                f" {reports.rows}, or other ids. Write them again."
                " Nothing was committed."
            )

    def __enter__(self) -> SparkReports:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._state != "closed":
                self._check_drawn(least=len(self))
                self.commit()
        except NothingDrawn:
            if self._repeatable:
                self.close()
            raise  # otherwise still open: what was paid for is not lost
        except BaseException:
            self.close()
            raise
        self.close()

    def __repr__(self) -> str:
        return f"SparkReports({self.entry.label!r}, {self._state})"


def _schema(df: DataFrame, columns: Sequence[str], id_column: str) -> StructType:
    from pyspark.sql import types as T

    whole = df.schema[id_column].dataType
    return T.StructType(
        [T.StructField(id_column, whole, nullable=False)]
        + [T.StructField(name, T.DoubleType(), nullable=False) for name in columns]
    )


def _must_repeat(df: DataFrame) -> None:
    """Refuse a DataFrame that is known to have other rows when it runs again."""
    if df.isStreaming:
        raise ValueError("df must not be a stream. Nothing was spent.")
    if not df._jdf.queryExecution().analyzed().deterministic():
        raise ValueError(
            "df comes from a plan that Spark calls non-deterministic (rand,"
            " monotonically_increasing_id, uuid, ...): each run of it has other rows,"
            " and their noise would be used twice. Write df to files and read those."
            " Nothing was spent."
        )
