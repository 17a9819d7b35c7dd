"""Certificates for their holders: one file each, with the opening, in a private folder.

A service that does not remember ids knows an opening until the record is deleted. So
the openings are on disk before the deletion, and a command that is killed in between
loses none: the file that is left has the opening, the journal the certificate.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from demur.durable import private_files

if TYPE_CHECKING:
    from demur.unlearning import Certificate
    from demur.unlearning.records.commitments import Opening


class Handover:
    """A folder for the certificates of one command."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, False
        self._prepared: dict[str, Path] = {}

    @contextmanager
    def prepared(self, openings: Mapping[str, Opening]) -> Iterator[None]:
        """Around deletions: their openings are on disk before, and removed after.

        A request that was refused before anything was spent leaves none.
        """
        from demur.unlearning import errors

        refusals = (
            errors.CapacityExhausted,
            errors.RecordMismatch,
            errors.RecordNeeded,
            errors.UnknownRecord,
            typer.Exit,  # Some requests wait; their openings come with them.
        )
        self._made = not self._folder.exists()
        private_files.make_folder(self._folder)
        for pseudonym, opening in openings.items():
            path = self._folder / f"{pseudonym[:16]}.opening"
            self._write(path, f"{opening}\n".encode())
            self._prepared[pseudonym] = path
        try:
            yield
        except refusals:
            self._discard()
            raise
        self._discard()

    def _discard(self) -> None:
        for path in self._prepared.values():
            path.unlink(missing_ok=True)
        self._prepared = {}
        if self._made:
            with suppress(OSError):  # It is not empty: certificates are in it.
                self._folder.rmdir()

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file, or find it there as it should be; another one is refused."""
        private_files.write_new(path, content)
        there = private_files.read(path)  # An earlier writer may have been killed.
        if there != content and not _says_as_much(there, content):
            if not _says_as_much(content, there):
                raise FileExistsError(
                    errno.EEXIST,
                    "another file has this name: move it, and run `demur unlearn"
                    " certificates SERVICE -o FOLDER`, or the same command again",
                    str(path),
                )
            path.unlink()  # It lacks the opening, or was cut off.
            private_files.write_new(path, content)

    def write(self, certificates: Sequence[Certificate]) -> list[Path]:
        """Write certificates, each with its opening where there is one; their paths."""
        paths = []
        for issued in certificates:
            path = self._folder / f"{issued.record[:16]}-{issued.generation}.json"
            told = issued.to_json() if issued.opening is None else issued.for_holder()
            self._write(path, f"{told}\n".encode())
            paths.append(path)
        return paths


def _says_as_much(text: bytes, other: bytes) -> bool:
    """Whether a text is the certificate of another one, with an opening or without."""
    from demur.unlearning import Certificate

    try:
        here, there = Certificate.from_json(text), Certificate.from_json(other)
    except ValueError:
        return False
    return here == there and (here.opening == there.opening or there.opening is None)


def check_place(folder: Path, address: str, keys: Path | None) -> None:
    """Refuse a folder for openings where whoever holds the service's files finds them.

    An opening ties an id to a record that was deleted.
    """
    from demur.unlearning.records.tables import ServiceStore

    store = ServiceStore(address, read_only=True)
    try:
        places = [store.keys_folder, keys, store.path and store.path.parent]
    finally:
        store.close()
    for place in places:
        if place and folder.expanduser().resolve().is_relative_to(place.resolve()):
            raise ValueError(
                f"the folder {str(folder)!r} lies in the folder of the service"
                f" ({place}), and openings in it would tell whose records were deleted:"
                " name a folder elsewhere (-o). Nothing was spent."
            )
