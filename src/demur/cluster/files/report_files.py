"""Files of local reports: written whole or not at all, read with their mechanism."""

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
from demur.durable.atomic_files import (
    name_all,
    sync_folder,
    temporary_name,
    written_aside,
)
from demur.mechanisms.bpm import BPM
from demur.mechanisms.reports import Reports

Values = NDArray[np.float64]
RowIds = NDArray[np.uint64]


def sidecar(path: Path) -> Path:
    """The metadata file beside a CSV of reports."""
    return path.with_name(path.name + ".json")


class ReportWriter:
    """Writes batches of reports into one file that appears whole or not at all.

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
        self._keep_aside = False
        self._csv = kind_of(path) == "csv"
        names = list(metadata.file_columns)
        types = [pa.float64()] * len(names)
        if metadata.id_column is not None:
            names.insert(0, metadata.id_column)
            types.insert(0, pa.uint64())
        self._schema = pa.schema(
            list(zip(names, types, strict=True)),
            metadata={SCHEMA_KEY: metadata.to_text().encode()},
        )
        self._aside = temporary_name(path)

    def __enter__(self) -> ReportWriter:
        self._file = self._aside.open("xb")
        make: Any = (
            pyarrow.csv.CSVWriter if self._csv else pyarrow.parquet.ParquetWriter
        )
        try:
            self._writer = make(self._file, self._schema)
            if self._csv:  # a trial: its name is longer, and by `finish` all is paid
                self._metadata_aside().unlink()
        except BaseException:  # a full disk: it writes the header at once
            self._file.close()
            self._aside.unlink(missing_ok=True)
            raise
        return self

    def write(self, values: Values, row_ids: RowIds) -> None:
        """Write the next batch."""
        arrays = [pa.array(column) for column in values.T]
        if self._metadata.id_column is not None:
            arrays.insert(0, pa.array(row_ids))
        batch = pa.record_batch(arrays, schema=self._schema)
        self._writer.write_batch(batch)
        self._file.flush()

    def finish(self) -> None:
        """Make everything durable, then move it to its name.

        Without `overwrite` an existing file stays. If it is the very same, as that of a
        job killed right after this step is, that is fine; any other is a
        FileExistsError, and nothing gets a name.
        """
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        files = [(self._aside, self.path)]
        if self._csv:  # the metadata first: no reports without them
            files.insert(0, (self._metadata_aside(), sidecar(self.path)))
        try:
            name_all(files, replace=self._overwrite)
        finally:
            for aside, _ in files[:-1]:
                aside.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _metadata_aside(self) -> Path:
        return written_aside(sidecar(self.path), self._metadata.to_text())

    def keep(self) -> Path:
        """Keep what lies aside, because its name is taken; the path of it."""
        self._keep_aside = True
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
        if not self._keep_aside:
            self._aside.unlink(missing_ok=True)


class ReportFile(NamedTuple):
    """Local reports and their metadata, as read from a file."""

    reports: Reports
    metadata: ReportMetadata


def read_reports(
    path: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    L: float | str | None = None,
) -> ReportFile:
    """Local reports from a file, with the mechanism that drew them.

    `epsilon` and `L` are for files without metadata; where a file has them, other
    values are an error.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    text = _metadata_text(file)
    metadata = None if text is None else ReportMetadata.from_text(text)
    try:
        table = _read(file, metadata)
    except pa.ArrowException as error:
        raise ValueError(f"{file.name} cannot be read as a table: {error}") from error
    if metadata is None:
        metadata = _metadata_given(file, list(table.column_names), epsilon, L)
    else:
        _must_agree(file, metadata.mechanism, epsilon, L)
    columns = _columns_of(metadata, table.column_names)
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ValueError(f"{file.name} lacks the columns {missing[:5]}")
    if table.num_rows == 0:
        raise ValueError(f"{file.name} holds no reports")
    values = np.column_stack([_numbers(table, n) for n in columns])
    ids = np.arange(len(values), dtype=np.uint64)
    if metadata.id_column in table.column_names:
        ids = np.asarray(_column(table, str(metadata.id_column)))
    try:
        reports = Reports(values, ids, metadata.mechanism)
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from error
    return ReportFile(reports, metadata)


def _columns_of(metadata: ReportMetadata, names: list[str]) -> tuple[str, ...]:
    """The columns of reports; files of earlier versions have the points' names."""
    old = all(name in names for name in metadata.columns)
    new = all(name in names for name in metadata.file_columns)
    return metadata.columns if old and not new else metadata.file_columns


def _metadata_text(file: Path) -> str | None:
    try:
        if kind_of(file) == "csv":
            beside = sidecar(file)
            return beside.read_text() if beside.is_file() else None
        stored = (pyarrow.parquet.read_schema(file).metadata or {}).get(SCHEMA_KEY)
        return stored.decode() if stored is not None else None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} cannot be read as a table: {error}") from error


def _read(file: Path, metadata: ReportMetadata | None) -> pa.Table:
    if kind_of(file) == "parquet":
        return pyarrow.parquet.read_table(file, page_checksum_verification=True)
    both = (*metadata.columns, *metadata.file_columns) if metadata else ()
    types = {name: pa.float64() for name in both}
    if metadata and metadata.id_column is not None:
        types[metadata.id_column] = pa.uint64()
    options = pyarrow.csv.ConvertOptions(column_types=types)
    return pyarrow.csv.read_csv(file, convert_options=options)


def _metadata_given(
    file: Path, columns: list[str], epsilon: float | None, L: float | str | None
) -> ReportMetadata:
    if epsilon is None or L is None:
        raise ValueError(
            f"{file.name} has no metadata about its mechanism: give --epsilon and --L,"
            " exactly as the clients had them"
        )
    return ReportMetadata(BPM(epsilon, L, len(columns)), tuple(columns))


def _must_agree(
    file: Path, stored: BPM, epsilon: float | None, L: float | str | None
) -> None:
    given = BPM(
        stored.epsilon if epsilon is None else epsilon,
        stored.L if L is None else L,
        stored.dimension,
    )
    if given != stored:
        raise ValueError(
            f"{file.name} was made with epsilon {stored.epsilon:g} and L {stored.L:g};"
            f" got epsilon {given.epsilon:g} and L {given.L:g}. Leave them out."
        )


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    if table.column_names.count(name) > 1:
        raise ValueError(f"column {name!r} occurs twice")
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"column {name!r} has missing values")
    values: NDArray[Any] = column.to_numpy()
    return values


def _numbers(table: pa.Table, name: str) -> Values:
    values = _column(table, name)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"column {name!r} must hold numbers; got {values.dtype}")
    return np.asarray(values, dtype=np.float64)
