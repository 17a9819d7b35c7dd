"""A mirror of a served ledger, from which a client reads.

Its rows are fetched when they are first read, those that are new each time, and every
link of the chain is checked on the way in: a service that rewrites what it has shown
once is noticed. All that a ledger computes from rows (readings, costs, verification,
the report) is computed here, in the client, by the same code as beside the ledger.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Connection

from demur.core.errors import LedgerDamaged, LedgerMismatch
from demur.durable import chain
from demur.durable.chain import Tip
from demur.durable.postgres import Timeouts
from demur.ledger.remote.connection import Caller
from demur.ledger.remote.wire import header_of
from demur.ledger.storage import header, tables
from demur.ledger.storage.acknowledged import lost
from demur.ledger.storage.header import Header
from demur.ledger.storage.ledger_store import LedgerStore

_AT_ONCE = 2000
_COLUMNS = tuple(column.name for column in tables.rows.c)


class RemoteStore(LedgerStore):
    """The place of a ledger that a service keeps."""

    remote = True

    def __init__(
        self, url: str, token: str | None, timeouts: Timeouts | None, *, read_only: bool
    ) -> None:
        super().__init__(None, timeouts, read_only=read_only)
        self.durable = True
        self.caller = Caller(url, token, timeouts or Timeouts())
        self._mirror, self._owner = LedgerStore(None), os.getpid()
        self._last: Tip | None = None
        self._fetching = threading.Lock()

    @property
    def is_sqlite(self) -> bool:
        """No: receipts are kept, as with any server."""
        return False

    def unsafe_settings(self) -> tuple[str, ...]:
        """None of ours; the service's own are in the rows that it writes."""
        return ()

    def exists(self) -> bool:
        """Whether the service has this ledger; it says so itself if not."""
        self.header()
        return True

    def create(self, header: Header) -> None:
        """Refuse: ledgers are made where they are kept."""
        raise LedgerMismatch(
            "a ledger is made where it is kept, with `demur ledger create`, and then"
            " served. Nothing was created."
        )

    def header(self) -> Header:
        """The header as it is now."""
        return header_of(self.caller.read("header")["header"])

    def who(self) -> str:
        """Whose token this is, as entries will say."""
        return str(self.caller.read("header")["actor"])

    def migrate(self) -> None:
        """Refuse a ledger that is newer than this demur."""
        version = self.header().schema_version
        if version not in tables.KNOWN_VERSIONS:
            raise LedgerMismatch(
                f"this ledger has schema {version}; this version of demur reads up to"
                f" {max(tables.KNOWN_VERSIONS)}. Use a newer demur. Nothing was spent."
            )

    def opened(self) -> tuple[Header, bool, bool]:
        """The header; its beginning and its end are checked when rows are fetched."""
        return self.header(), True, True

    def contains(self, tip: Tip) -> bool:
        """Whether a row is there, or accounted for."""
        return bool(self.caller.read("contains", tip=str(tip)))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the ledger, as of now."""
        with self._fetching:
            if os.getpid() != self._owner:  # a fork: the mirror is the parent's
                self._mirror, self._owner = LedgerStore(None), os.getpid()
                self._last = None
            self._fetch()
        with self._mirror.read() as connection:
            yield connection

    def close(self) -> None:
        """Close the connections."""
        self.caller.close()

    def _fetch(self) -> None:
        """Bring the mirror up to the ledger."""
        while True:
            after = 0 if self._last is None else self._last.sequence
            page = self.caller.read("rows", after=after, most=_AT_ONCE)
            there = header_of(page["header"])
            if self._last is None:
                genesis = there.genesis
                first = Header.first(
                    there.ledger_id, there.terms, "[]", there.schema_version
                )
                self._mirror.create(first)
                self._last = Tip(0, genesis)
            if page["before"] != self._last.hash or there.state.sequence < after:
                raise lost(self._last)
            self._add(page, there)
            if self._last.sequence >= there.state.sequence:
                if self._last.hash != there.state.hash:
                    raise LedgerDamaged(
                        "the ledger does not end with the row it names. Verify it."
                    )
                return

    def _add(self, page: dict[str, Any], there: Header) -> None:
        assert self._last is not None
        sequence, last = self._last.sequence, self._last.hash
        new = []
        for values in page["rows"]:
            row = dict(zip(_COLUMNS, values, strict=True))
            sequence += 1
            follows = chain.link(last, row["body"])
            if (row["sequence"], row["hash"]) != (sequence, follows):
                raise LedgerDamaged(
                    f"row {sequence} of the served ledger does not follow from the one"
                    " before it: it was changed, or is missing. Verify it."
                )
            last = follows
            new.append(row)
        if not new and sequence < there.state.sequence:
            raise LedgerDamaged(f"the service does not show row {sequence + 1}")
        with self._mirror.write() as connection:
            if new:
                connection.execute(tables.rows.insert(), new)
            known = set(connection.execute(tables.declarations.select()).scalars())
            added = [
                {"digest": digest, "body": text}
                for digest, text in page["declarations"].items()
                if digest not in known
            ]
            if added:
                connection.execute(tables.declarations.insert(), added)
            curves = set(connection.execute(tables.profiles.select()).scalars())
            for event in sorted(set(page["profiles"]) - curves):
                told = self.caller.read("profile", event=event)
                told["body"] = base64.b64decode(told["body"])
                connection.execute(tables.profiles.insert(), told)
            header.move(connection, there.state)
        self._last = Tip(sequence, last)
