"""The keeper: model, journal, records and state of one service, moved together.

Every change is one transaction that holds the journal's rows, the records' rows and the
whole state after it. What is on disk is therefore always one moment of the service, and
what a process knows beyond that is `pending`: inserts that were not acknowledged yet.

Memory and disk move in one `step`. A step that does not come to its end (a write that
fails, Ctrl-C between two lines) leaves one ahead of the other, so the keeper stops for
good (`broken`): reopening finds the last durable moment.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.core.entropy import Source
from demur.core.errors import DemurError
from demur.durable.chain import Tip
from demur.durable.clock import now
from demur.unlearning.errors import ServiceBusy, ServiceDamaged
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.pricing.terms import Terms
from demur.unlearning.records import journal, snapshot, store, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.damage import readable
from demur.unlearning.records.encrypted_records import Vault
from demur.unlearning.records.journal import Body, Row
from demur.unlearning.records.pseudonyms import Marks
from demur.unlearning.records.tables import Learned


class Keeper:
    """One service in one process."""

    def __init__(
        self,
        place: store.ServiceStore,
        terms: Terms,
        marks: Marks,
        folder: Path,
        source: Source,
    ) -> None:
        self.place, self.terms, self.marks, self.source = place, terms, marks, source
        encrypted = terms.record_store == "encrypted"
        self.vault = Vault(folder, source) if encrypted else None
        self.snapshots = snapshot.Shelf(folder / "snapshots")
        self.lock = threading.RLock()
        self.run = secrets.token_hex(8)  # tells this process from every other
        self.mode: Mode = terms.model()
        self.pending: list[Body] = []
        self._learned: list[Learned] = []
        self._gone: dict[str, int] = {}  # deleted, their keys not erased yet
        self._process = os.getpid()
        self.broken = self.closed = self.unclean = False
        with readable():
            self._load()

    def _load(self) -> None:
        """The last durable moment, checked against the journal."""
        with self.place.read() as connection:
            row = connection.execute(sa.select(store.service)).one()
            kept = connection.execute(sa.select(store.state)).one()
            self.id: str = row.service_id
            self.paid = int(row.paid)
            self.tip = Tip(int(row.sequence), row.hash)
            self.epoch, self.tick = int(kept.epoch), int(kept.tick)
            self.mode.restore(snapshot.decode(kept.body))
            self._check(connection, int(kept.sequence))
            self.index = tables.index(connection)

    def _check(self, connection: Connection, at: int) -> None:
        """The state on disk is the one that its row of the journal speaks of."""
        last, sealed = Tip(0, self.tip.hash), None
        for row, body in journal.walk(connection, max(at - 1, 0)):
            if row.sequence == at:
                sealed = body.get("state")
            elif "state" in body:
                raise ServiceDamaged(
                    f"row {row.sequence} of the journal is newer than the state on"
                    " disk: the two come from different copies"
                )
            last = row.tip
        if last != self.tip:
            raise ServiceDamaged("the journal does not end where the service says")
        if at and sealed != self.sealed(self.mode):
            raise ServiceDamaged(
                "the state on disk is not the one that the journal names: it was"
                " edited, or comes from another copy. Restore both together."
            )

    def sealed(self, mode: Mode) -> str:
        """The keyed digest of a model's state."""
        return self.marks.state(mode.digest())

    def sealed_bytes(self, body: bytes) -> str:
        """The same of a state as it is stored."""
        mode = self.terms.model()
        mode.restore(snapshot.decode(body))
        return self.sealed(mode)

    def usable(self) -> None:
        """Refuse a forked copy, and a keeper whose last write failed."""
        if self.foreign:
            raise DemurError(
                "this service belongs to the process that opened it: a forked copy"
                " would write a second history. Ask that process."
            )
        if self.closed:
            raise DemurError("this service is closed: open it again")
        if self.broken:
            raise DemurError(
                "an earlier write failed, so memory may be ahead of the disk: close"
                " this service and open it again. What was acknowledged is there."
            )

    @property
    def foreign(self) -> bool:
        """Whether this is a forked copy in another process."""
        return os.getpid() != self._process

    @contextmanager
    def step(self, *refusals: type[Exception]) -> Iterator[None]:
        """All of it or none: whatever interrupts it stops the keeper.

        `refusals` are errors that the step raises before it changes anything.
        """
        before, self.broken = self.broken, True
        try:
            yield
        except refusals:
            self.broken = before
            raise
        self.broken = before

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One durable transaction, as a step."""
        with self.step(), self.place.write() as connection:
            yield connection

    def row(self, op: str, **content: Any) -> Body:
        """The body of a row, with what all rows say."""
        return {
            "op": op,
            "epoch": self.epoch,
            "tick": self.tick,
            "run": self.run,
            **content,
        }

    # -- learning ----------------------------------------------------------------

    def learned(self, record: Learned, x: Array, y: float) -> None:
        """Note an insert that the model has made; durable after `flush`."""
        self.tick += 1
        self.index[record.mark] = record.generation
        self.pending.append(
            self.row(
                "insert",
                record=record.mark,
                generation=record.generation,
                subject=record.subject,
            )
        )
        self._learned.append(record)
        if self.vault is not None:
            self.vault.seal(record.mark, record.generation, x, y)

    def flush(self, then: Body | None = None) -> None:
        """Make every pending insert durable, and the row `then` with them."""
        bodies: list[Body] = list(self.pending)
        if bodies:
            last = {"state": self.sealed(self.mode), "time": now()}
            bodies[-1] = bodies[-1] | last
        rows = journal.linked(self.tip, bodies if then is None else [*bodies, then])
        if not rows:
            return
        with self.step():
            self._write_keys()
            with self.writing() as connection:
                self._append(connection, rows, self._learned)
                if bodies:
                    at = rows[len(bodies) - 1].sequence
                    tables.keep_state(connection, self.mode, self.epoch, self.tick, at)
                if then is not None and then["op"] == "intent":
                    tables.count_intent(connection, then)
                    self.paid += then["units"]
            self._appended(rows)
            self.pending, self._learned = [], []

    def _write_keys(self) -> None:
        """The vault's keys are on disk before their boxes."""
        if self.vault is not None:
            self.vault.write_keys()

    def _append(
        self, connection: Connection, rows: list[Row], learned: Iterable[Learned]
    ) -> None:
        journal.append(connection, rows)
        tables.keep_learned(connection, list(learned))
        if self.vault is not None:
            self.vault.write(connection)

    def _appended(self, rows: list[Row]) -> None:
        """The transaction is durable: memory may say so."""
        self.tip = rows[-1].tip
        if self.vault is not None:
            self.vault.written()

    # -- forgetting --------------------------------------------------------------

    def requests(self, subjects: Iterable[str]) -> dict[str, int]:
        """How many requests each person has made, interrupted ones included."""
        wanted, columns = list(subjects), store.subjects.c
        with self.place.read() as connection:
            return dict.fromkeys(wanted, 0) | tables.column(
                connection, columns.mark, columns.requests, wanted
            )

    def subjects(self, marks: Iterable[str]) -> dict[str, str]:
        """Whose records these are."""
        columns = store.records.c
        with self.place.read() as connection:
            return tables.column(connection, columns.mark, columns.subject, marks)

    def bury(self, mark: str) -> None:
        """Refuse an id that was never learned, from now on."""
        self.flush()
        rows = journal.linked(self.tip, [self.row("bury", record=mark, time=now())])
        with self.step():
            with self.writing() as connection:
                journal.append(connection, rows)
                tables.keep_buried(connection, mark)
            self._appended(rows)
            self.index[mark] = 0

    def replace(
        self,
        mode: Mode,
        bodies: list[Body],
        gone: Mapping[str, Certificate],
        *,
        learned: Iterable[Learned] = (),
        tick: int | None = None,
        new_epoch: bool = False,
    ) -> dict[str, Certificate]:
        """Put `mode` in the model's place, durably, and only then let it be seen.

        `gone` are the certificates of the records that are not in it any more, by mark;
        each is the content of a row in `bodies`. The last row carries the state.
        """
        assert not self.pending, "pending inserts come first"
        tick = self.tick if tick is None else tick
        bodies = [*bodies[:-1], bodies[-1] | {"state": self.sealed(mode)}]
        rows = journal.linked(self.tip, bodies)
        tips = {
            body["certificate"]["record"]: row.tip
            for body, row in zip(bodies, rows, strict=True)
            if "certificate" in body
        }
        issued = {
            mark: Certificate(**certificate.content(), tip=tips[mark])
            for mark, certificate in gone.items()
        }
        at = rows[-1].sequence
        with self.step():
            self._write_keys()
            with self.writing() as connection:
                self._append(connection, rows, learned)
                tables.end_records(connection, issued)
                tables.keep_state(connection, mode, self.epoch, tick, at)
                if new_epoch:
                    connection.execute(store.service.update().values(paid=0))
            self._appended(rows)
            self.paid = 0 if new_epoch else self.paid
            self.index |= {r.mark: r.generation for r in learned}
            self.index |= {mark: -c.generation for mark, c in issued.items()}
            self.mode, self.tick = mode, tick
            self._gone |= {mark: c.generation for mark, c in issued.items()}
            self.unclean = self.unclean or bool(issued)  # until `tidy` is through
        return issued

    def tidy(self) -> None:
        """Let nothing outlive a deletion: keys, snapshot files, pages, logs."""
        if self.vault is not None:
            self.vault.erase(self._gone)
        self._gone.clear()
        self.snapshots.burn(before=self.tip.sequence)
        self.scrub()

    def sweep(self) -> None:
        """Keys and snapshots of whatever was deleted up to now, by any process."""
        with self.place.read() as connection:
            if self.vault is not None:
                self.vault.sweep(connection)
            self._gone.clear()
            self.snapshots.burn(before=journal.last_forgotten(connection))

    def scrub(self, *, strict: bool = False) -> None:
        """Overwrite freed pages and empty the log; a reader may hold that up."""
        try:
            self.place.scrub()
            if self.vault is not None:
                self.vault.scrub()
            self.unclean = False
        except ServiceBusy:
            self.unclean = True
            if strict:
                raise

    def certificate(self, mark: str, generation: int) -> Certificate | None:
        """The certificate of a deletion that was made."""
        with self.place.read() as connection:
            text = tables.certificate(connection, mark, generation)
        return None if text is None else Certificate.from_json(text)

    def close(self) -> None:
        """Close files and connections; pending inserts are not written."""
        self.closed = True
        if self.vault is not None:
            self.vault.close()
        self.place.close()
