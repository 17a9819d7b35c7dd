"""Certificates for their holders: one file each, with the opening, in a private folder.

A service that does not remember ids knows an opening until the record is deleted. So
the openings are on disk before the deletion, and a command that is killed in between
loses none: the file that is left has the opening, the journal the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        self._folder = folder
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
        )
        private_files.make_folder(self._folder)
        for pseudonym, opening in openings.items():
            path = self._folder / f"{pseudonym[:16]}.opening"
            private_files.write_new(path, f"{opening}\n".encode())
            self._prepared[pseudonym] = path
        try:
            yield
        except refusals:
            self._discard()
            raise
        except typer.Exit:  # Some requests wait; their openings come with them.
            self._discard()
            raise
        self._discard()

    def _discard(self) -> None:
        for path in self._prepared.values():
            path.unlink(missing_ok=True)
        self._prepared = {}

    def write(self, certificates: Sequence[Certificate]) -> list[Path]:
        """Write certificates, each with its opening where there is one; their paths."""
        paths = []
        for issued in certificates:
            path = self._folder / f"{issued.record[:16]}-{issued.generation}.json"
            told = issued.to_json() if issued.opening is None else issued.for_holder()
            private_files.write_new(path, f"{told}\n".encode())
            paths.append(path)
        return paths
