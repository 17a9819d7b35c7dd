"""Receipts: rows of a ledger that whoever wrote them keeps, with their place in it.

A server that fails may be followed by a standby that lacks the last rows. Whoever wrote
those rows still has them: a receipt is the text of a row and the hash before it, so
that receipts follow from one another as the rows did. A client of a server keeps its
receipts in a private file, and recognises by the last one a ledger that has lost rows;
`Ledger.recover` enters them again.

The file is for the failure of the server: it is not forced to the disk at each row. It
holds what the ledger itself holds, and no secret.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demur.durable import chain, private_files
from demur.durable.chain import Tip, canonical

_LARGEST = 16 << 20  # bytes of one file; the one before it is kept as well
_TAIL = 1 << 16  # bytes at the end that hold the newest rows


@dataclass(frozen=True)
class Receipt:
    """A row that a ledger acknowledged, and the hash that it follows."""

    ledger_id: str
    sequence: int
    previous: str
    body: str
    declaration: str | None = None  # of a charge, as text
    signature: str | None = None

    @property
    def tip(self) -> Tip:
        """The tip of the ledger when this was its last row."""
        return Tip(self.sequence, chain.link(self.previous, self.body))

    @property
    def follows(self) -> Tip:
        """The row before it."""
        return Tip(self.sequence - 1, self.previous)

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain data; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Receipt:
        """The receipt that `to_json` wrote; anything else is a ValueError."""
        kinds = {
            "ledger_id": str,
            "sequence": int,
            "previous": str,
            "body": str,
            "declaration": str | None,
            "signature": str | None,
        }
        if (
            not isinstance(data, dict)
            or set(data) != set(kinds)
            or not all(isinstance(data[name], kind) for name, kind in kinds.items())
        ):
            raise ValueError(f"not a receipt: {str(data)[:80]}")
        receipt = cls(**data)
        Tip(receipt.sequence, receipt.previous)  # refuses what is no hash
        try:
            body = json.loads(receipt.body)
        except RecursionError as error:
            raise ValueError("not a receipt: nested too deeply") from error
        if not isinstance(body, dict) or canonical(body) != receipt.body:
            raise ValueError("not a receipt: its text is no row")
        return receipt


class ReceiptFile:
    """The receipts of one machine's clients, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = path.with_name(f"{path.name}.before")

    def append(self, receipts: Iterable[Receipt]) -> None:
        """Add the rows that were just acknowledged."""
        self._add("".join(canonical(each.to_json()) + "\n" for each in receipts))

    def mark_recovered(self, ledger_id: str) -> None:
        """Note that what was written before is accounted for, lost or not."""
        self._add(canonical({"recovered": ledger_id}) + "\n")

    def _add(self, lines: str) -> None:
        data = lines.encode()
        with self._alone() as descriptor:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # after a line that was cut off
            while data:
                data = data[os.write(descriptor, data) :]
            if os.fstat(descriptor).st_size > _LARGEST:
                os.replace(self.path, self._before)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """The file, locked; one that was put aside meanwhile is left alone."""
        while True:
            descriptor = private_files.open_to_append(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                try:
                    same = os.path.samestat(os.stat(self.path), os.fstat(descriptor))
                except FileNotFoundError:
                    same = False
                if same:
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def newest(self, ledger_id: str) -> Tip | None:
        """The newest row of this ledger that a client of this machine wrote.

        Lines of several processes may be out of order: the highest number counts, of
        those after the last recovery.
        """
        mark = canonical({"recovered": ledger_id}).encode() + b"\n"
        for path, most in (
            (self.path, _TAIL),
            (self.path, None),  # A long line, or another ledger's, may be at the end.
            (self._before, None),
        ):
            try:
                content = private_files.read(path, most=most)
            except FileNotFoundError:
                continue
            recovered = mark in content
            receipts = parse_receipts(content.rpartition(mark)[2])
            tips = [r.tip for r in receipts if r.ledger_id == ledger_id]
            if tips:
                return max(tips, key=lambda tip: tip.sequence)
            if recovered:
                return None
        return None


def parse_receipts(content: bytes) -> list[Receipt]:
    """The receipts of a file, a line each.

    A line that was cut off when its client was killed is left out: what is missing
    shows, as receipts follow from one another.
    """
    receipts = []
    for line in content.splitlines():
        with suppress(ValueError, TypeError, RecursionError):
            receipts.append(Receipt.from_json(json.loads(line)))
    return receipts
