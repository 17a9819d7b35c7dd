"""Files of reports: written aside and renamed, read back with their mechanism."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from demur.cluster.files.point_tables import kind_of
from demur.cluster.files.report_metadata import SCHEMA_KEY, ReportMetadata
from demur.durable.whole_files import aside_of, name_all, sync_folder, written_aside
from demur.mechanisms.bpm import BPM
from demur.mechanisms.reports import Reports

Values = NDArray[np.float64]
RowIds = NDArray[np.uint64]


def sidecar(path: Path) -> Path:
    """The file beside a CSV of reports that says what they are."""
    return path.with_name(path.name + ".json")


class ReportWriter:
    """Batches of reports into one file that appears whole or not at all.

    What is written lies aside (`.NAME.*.partial`) until `finish` moves it to its name;
    an exception removes it. Only a killed process leaves the part it had written,
    which holds reports and nothing else.
    """

    def __init__(
        self, path: Path, metadata: ReportMetadata, *, overwrite: bool = False
    ) -> None:
        self.path = path
        self._metadata = metadata
        self._overwrite = overwrite
        self._kept = False
        self._csv = kind_of(path) == "csv"
        names = list(metadata.columns)
        types = [pa.float64()] * len(names)
        if metadata.id_column is not None:
            names.insert(0, metadata.id_column)
            types.insert(0, pa.uint64())
        self._schema = pa.schema(
            list(zip(names, types, strict=True)),
            metadata={SCHEMA_KEY: metadata.to_text().encode()},
        )
        self._aside = aside_of(path)

    def __enter__(self) -> ReportWriter:
        self._file = self._aside.open("xb")
        make: Any = (
            pyarrow.csv.CSVWriter if self._csv else pyarrow.parquet.ParquetWriter
        )
        try:
            self._writer = make(self._file, self._schema)
            if self._csv:  # a trial: its name is longer, and by `finish` all is paid
                self._words_aside().unlink()
        except BaseException:  # a full disk: it writes the header at once
            self._file.close()
            self._aside.unlink(missing_ok=True)
            raise
        return self

    def write(self, values: Values, row_ids: RowIds) -> None:
        """One more batch."""
        arrays = [pa.array(column) for column in values.T]
        if self._metadata.id_column is not None:
            arrays.insert(0, pa.array(row_ids))
        batch = pa.record_batch(arrays, schema=self._schema)
        self._writer.write_batch(batch)
        self._file.flush()

    def finish(self) -> None:
        """Everything is durable, and then under its name.

        Without `overwrite` a file that is there already stays, whoever made it. It must
        be the very same, as that of a job killed right after this step is; another one
        is a FileExistsError, and no name is taken.
        """
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        files = [(self._aside, self.path)]
        if self._csv:  # no reports without the words that go with them: those first
            files.insert(0, (self._words_aside(), sidecar(self.path)))
        try:
            name_all(files, replace=self._overwrite)
        finally:
            for aside, _ in files[:-1]:
                aside.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _words_aside(self) -> Path:
        return written_aside(sidecar(self.path), self._metadata.to_text())

    def keep(self) -> Path:
        """What lies aside stays there, although its name is taken."""
        self._kept = True
        return self._aside

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            with suppress(Exception):
                self._writer.close()
            self._file.close()
        if not self._kept:
            self._aside.unlink(missing_ok=True)


class ReportFile(NamedTuple):
    """Reports and what travelled with them."""

    reports: Reports
    metadata: ReportMetadata


def read_reports(
    path: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    L: float | str | None = None,
) -> ReportFile:
    """Reports with the mechanism that made them.

    `epsilon` and `L` are for files that do not say; where the file says something else
    it is an error.
    """
    place = Path(path)
    if not place.is_file():
        raise ValueError(f"there is no file {place}")
    text = _metadata_text(place)
    metadata = None if text is None else ReportMetadata.from_text(text)
    try:
        table = _read(place, metadata)
    except pa.ArrowException as error:
        raise ValueError(f"{place.name} cannot be read as a table: {error}") from error
    if metadata is None:
        metadata = _told(place, list(table.column_names), epsilon, L)
    else:
        _must_agree(place, metadata.mechanism, epsilon, L)
    missing = [name for name in metadata.columns if name not in table.column_names]
    if missing:
        raise ValueError(f"{place.name} lacks the columns {missing[:5]}")
    if table.num_rows == 0:
        raise ValueError(f"{place.name} holds no reports")
    values = np.column_stack([_numbers(table, n) for n in metadata.columns])
    ids = np.arange(len(values), dtype=np.uint64)
    if metadata.id_column in table.column_names:
        ids = np.asarray(_column(table, str(metadata.id_column)))
    try:
        reports = Reports(values, ids, metadata.mechanism)
    except ValueError as error:
        raise ValueError(f"{place.name}: {error}") from error
    return ReportFile(reports, metadata)


def _metadata_text(place: Path) -> str | None:
    try:
        if kind_of(place) == "csv":
            beside = sidecar(place)
            return beside.read_text() if beside.is_file() else None
        kept = (pyarrow.parquet.read_schema(place).metadata or {}).get(SCHEMA_KEY)
        return kept.decode() if kept is not None else None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{place.name} cannot be read as a table: {error}") from error


def _read(place: Path, metadata: ReportMetadata | None) -> pa.Table:
    if kind_of(place) == "parquet":
        return pyarrow.parquet.read_table(place)
    types = {name: pa.float64() for name in metadata.columns} if metadata else {}
    if metadata and metadata.id_column is not None:
        types[metadata.id_column] = pa.uint64()
    options = pyarrow.csv.ConvertOptions(column_types=types)
    return pyarrow.csv.read_csv(place, convert_options=options)


def _told(
    place: Path, columns: list[str], epsilon: float | None, L: float | str | None
) -> ReportMetadata:
    if epsilon is None or L is None:
        raise ValueError(
            f"{place.name} does not say how its reports were made: give --epsilon and"
            " --L, exactly as the clients had them"
        )
    return ReportMetadata(BPM(epsilon, L, len(columns)), tuple(columns))


def _must_agree(
    place: Path, kept: BPM, epsilon: float | None, L: float | str | None
) -> None:
    told = BPM(
        kept.epsilon if epsilon is None else epsilon,
        kept.L if L is None else L,
        kept.dimension,
    )
    if told != kept:
        raise ValueError(
            f"{place.name} was made with epsilon {kept.epsilon:g} and L {kept.L:g};"
            f" got epsilon {told.epsilon:g} and L {told.L:g}. Leave them out."
        )


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    if table.column_names.count(name) > 1:
        raise ValueError(f"column {name!r} occurs twice")
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has missing values")
    found: NDArray[Any] = column.to_numpy()
    return found


def _numbers(table: pa.Table, name: str) -> Values:
    found = _column(table, name)
    if found.dtype.kind not in "iuf":
        raise ValueError(f"column {name!r} must hold numbers; got {found.dtype}")
    return np.asarray(found, dtype=np.float64)
