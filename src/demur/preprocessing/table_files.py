"""Files of rows: where they lie, each counted once, whole and unchanged.

A row that is read twice enters every sum twice, at the price of one. So a file that has
two names (a hard link, a symbolic link, a folder and a file inside it) is refused: on a
local disk a file is its device and inode, elsewhere its address. Pages are compared
with their checksums, where the writer left any, and a file that changes while it is
read is noticed (`changed`).

Files are reached through Arrow's file systems: local ones, `s3://`, `gs://`, `hdfs://`
and `abfs://` addresses, or any `filesystem` that Arrow can wrap. In a partitioned
folder the names `key=value` on the way to a file are columns of its rows, for those who
ask for them; a column of the file itself comes first.

An error names a file or a column, never a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet

from demur.core import validate
from demur.durable.store import shown_address

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_PARQUET = (".parquet", ".pq")
_BUFFER = 2**16  # bytes for each column; without it a whole column chunk is fetched
_FAR_BUFFER = 2**20  # where every read is a request
_CACHES = {"blockcache", "cached", "filecache", "simplecache"}  # in front of another
_MISSING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE_NUMBER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, eq=False)
class TableFile:
    """One file, and the columns that the names of its folders give its rows."""

    filesystem: Any
    path: str
    partition: dict[str, pa.Scalar]

    @property
    def name(self) -> str:
        """The last part of its path, for messages."""
        return self.path.rstrip("/").rpartition("/")[2]

    @cached_property
    def local(self) -> Path | None:
        """Its path on this machine; None if it lies elsewhere."""
        return _local_path(self.filesystem, self.path)

    def same_as(self) -> tuple[object, ...]:
        """What two names of one file have in common."""
        if self.local is not None:
            status = self.local.stat()
            return (status.st_dev, status.st_ino)
        return (self.filesystem.type_name, self.filesystem.normalize_path(self.path))

    def identity(self) -> tuple[object, ...]:
        """What changes when the file does; empty if it is gone."""
        try:
            if self.local is not None:
                now = self.local.stat()
                return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
            known = self.filesystem.get_file_info(self.path)
            return (*self.same_as(), known.size, known.mtime_ns)
        except OSError:
            return ()

    def own_schema(self) -> pa.Schema:
        """The columns of the file itself."""
        with self.opened() as file:
            return file.schema_arrow

    def schema(self) -> pa.Schema:
        """The columns of the file, and those of its folders that it does not have."""
        schema = self.own_schema()
        for name, value in self.partition.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, value.type))
        return schema

    @contextmanager
    def opened(self) -> Iterator[pyarrow.parquet.ParquetFile]:
        """The Parquet file; its pages are compared with their checksums."""
        far = self.local is None
        # pyarrow would by default fetch the whole file ahead of the batches.
        with (
            self.no_cell_in_errors(),
            pyarrow.parquet.ParquetFile(
                self.path,
                filesystem=self.filesystem,
                pre_buffer=False,
                buffer_size=_FAR_BUFFER if far else _BUFFER,
                page_checksum_verification=True,
            ) as file,
        ):
            yield file

    def batches(
        self, columns: Sequence[str], size: int, groups: list[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups (default: all), in batches, in this order."""
        with self.opened() as file:
            own = set(file.schema_arrow.names)
            # With no column of its own left, one is read for the number of rows.
            stored = [name for name in columns if name in own]
            asked = stored or file.schema_arrow.names[:1]
            for batch in file.iter_batches(
                size, groups, columns=asked, use_threads=False
            ):
                yield self._with_partition(batch, columns)

    def _with_partition(
        self, batch: pa.RecordBatch, columns: Sequence[str]
    ) -> pa.RecordBatch:
        arrays = [
            batch.column(name)
            if name in batch.schema.names
            else pa.repeat(self.partition[name], batch.num_rows)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    @contextmanager
    def no_cell_in_errors(self) -> Iterator[None]:
        """pyarrow's messages may quote a cell; ours names the file alone."""
        try:
            yield
        except (pa.ArrowException, OSError):
            raise ValueError(
                f"{self.name} cannot be read: it is not, or no longer, a well-formed"
                " Parquet file, or a page fails its checksum. Nothing was released."
            ) from None


def table_files(paths: Paths, filesystem: Any = None) -> list[TableFile]:
    """The Parquet files that `paths` name, in order, each of them once."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [file for path in given for file in _files_at(path, filesystem)]
    if not files:
        shown = ", ".join(map(_shown, given))
        raise ValueError(f"there are no Parquet files in {shown}. Nothing was spent.")
    files = _with_common_types(files)
    seen: dict[tuple[object, ...], TableFile] = {}
    for file in files:
        first = seen.setdefault(file.same_as(), file)
        if first is not file:
            raise ValueError(
                f"a Parquet file is named twice: {file.name} is {first.name} (a link, a"
                " repeated path, or a folder and a file inside it), and its rows would"
                " count twice. Name each file once. Nothing was spent."
            )
    return files


def changed(files: Iterable[TableFile], before: Iterable[object]) -> str | None:
    """The name of a file that is not as it was; None if all are."""
    for file, known in zip(files, before, strict=True):
        if file.identity() != known:
            return file.name
    return None


def read_whole(files: Sequence[TableFile], columns: Sequence[str] | None) -> pa.Table:
    """All rows of all files; by default all columns of the files themselves."""
    before = [file.identity() for file in files]
    names = list(files[0].own_schema().names if columns is None else columns)
    tables = []
    for file in files:
        kinds = file.schema()
        missing = [name for name in names if name not in kinds.names]
        if missing:
            raise ValueError(
                f"{file.name} has no column {missing[0]!r}; it has"
                f" {validate.nearest(missing[0], kinds.names)}. Nothing was spent."
            )
        schema = pa.schema([(name, kinds.field(name).type) for name in names])
        batches = [batch for batch in file.batches(names, 2**16) if batch.num_rows]
        tables.append(pa.Table.from_batches([b.cast(schema) for b in batches], schema))
    different = [t for t in tables if not t.schema.equals(tables[0].schema)]
    if different:
        raise ValueError(
            "the files must have columns of the same types; they have"
            f" {tables[0].schema.types[:6]} and {different[0].schema.types[:6]}."
            " Nothing was spent."
        )
    whole = pa.concat_tables(tables)
    name = changed(files, before)
    if name is not None:
        raise ValueError(
            f"{name} was changed while it was being read. Read it when nobody writes to"
            " it. Nothing was spent."
        )
    return whole


def _files_at(path: str | os.PathLike[str], filesystem: Any) -> Iterator[TableFile]:
    place, root = resolved(os.fspath(path), filesystem)
    kinds = pyarrow.fs.FileType
    found = place.get_file_info(root)
    if found.type == kinds.File:
        yield TableFile(place, root, {})
    elif found.type == kinds.Directory:
        selector = pyarrow.fs.FileSelector(root, recursive=True)
        inside = sorted(place.get_file_info(selector), key=lambda info: info.path)
        for info in inside:
            parts = info.path[len(root) :].strip("/").split("/")
            # By Parquet's convention, names with a leading _ or . are not data.
            hidden = any(part.startswith(("_", ".")) for part in parts)
            named = info.path.lower().endswith(_PARQUET)
            if info.type == kinds.File and named and not hidden:
                yield TableFile(place, info.path, _partition(parts[:-1]))
    else:
        raise ValueError(f"there is no file {_shown(path)}. Nothing was spent.")


def resolved(path: str, filesystem: Any = None) -> tuple[Any, str]:
    """Arrow's file system for an address, and the path in it."""
    if filesystem is not None:
        if not isinstance(filesystem, pyarrow.fs.FileSystem):  # one of fsspec's
            handler = pyarrow.fs.FSSpecHandler(filesystem)
            filesystem = pyarrow.fs.PyFileSystem(handler)
        return filesystem, filesystem.normalize_path(path)
    if "://" not in path:
        local = pyarrow.fs.LocalFileSystem()
        return local, local.normalize_path(os.path.abspath(os.path.expanduser(path)))
    try:
        return pyarrow.fs.FileSystem.from_uri(path)
    except (pa.ArrowException, OSError, NotImplementedError) as error:
        raise ValueError(
            f"{_shown(path)} cannot be reached ({type(error).__name__}): pass a"
            " filesystem of pyarrow.fs or fsspec, and the path in it. Nothing was"
            " spent."
        ) from None


def _local_path(filesystem: Any, path: str) -> Path | None:
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return Path(path)
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        below = filesystem.base_path.rstrip("/") + "/" + path.lstrip("/")
        return _local_path(filesystem.base_fs, below)
    return _fsspec_path(getattr(getattr(filesystem, "handler", None), "fs", None), path)


def _fsspec_path(filesystem: Any, path: str) -> Path | None:
    """`_local_path` for one of fsspec's, and for one that passes on to a local one."""
    given = getattr(filesystem, "protocol", ())
    protocols = {given} if isinstance(given, str) else set(given)
    if "file" in protocols:
        return Path(os.path.abspath(filesystem._strip_protocol(path)))
    if "dir" in protocols:
        return _fsspec_path(filesystem.fs, filesystem._join(path))
    if protocols & _CACHES:
        return _fsspec_path(filesystem.fs, filesystem._strip_protocol(path))
    return None


def _partition(folders: Sequence[str]) -> dict[str, pa.Scalar]:
    """The columns in folder names `key=value`, as words."""
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {
        unquote(key): pa.scalar(None if value == _MISSING else unquote(value), "string")
        for key, _, value in pairs
        if key
    }


def _with_common_types(files: list[TableFile]) -> list[TableFile]:
    """Partition columns that are whole numbers in every file, as numbers."""
    words: dict[str, set[str]] = {}
    for file in files:
        for name, value in file.partition.items():
            words.setdefault(name, set()).add(value.as_py() or "0")
    numbers = {
        name
        for name, values in words.items()
        if all(_WHOLE_NUMBER.fullmatch(value) for value in values)
    }

    def typed(name: str, value: pa.Scalar) -> pa.Scalar:
        return value.cast(pa.int64()) if name in numbers else value

    return [
        replace(file, partition={k: typed(k, v) for k, v in file.partition.items()})
        for file in files
    ]


def _shown(path: str | os.PathLike[str]) -> str:
    """A path for messages, without the password of an address."""
    text = os.fspath(path)
    return shown_address(text) if "://" in text else text
