"""State of a deletion service: model, journal and records, changed together.

Every change is one transaction that holds the journal's rows, the records' rows and the
whole state of the model after it. What is on disk is therefore always one moment of the
service, and what a process has beyond that is `pending`: inserts that were not
acknowledged yet.

Memory and disk change in one `step`. A step that is interrupted (a write that fails,
Ctrl-C between two lines) leaves one ahead of the other, so the service stops for good
(`broken`): reopening finds the last durable moment.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.engine import Connection

from demur.core.entropy import Source
from demur.core.errors import DemurError, LedgerMismatch
from demur.durable.chain import Tip
from demur.durable.clock import now
from demur.unlearning.errors import ServiceBusy, ServiceDamaged, ServiceMismatch
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import journal, rows, snapshot, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.directory import Directory
from demur.unlearning.records.encrypted_records import EncryptedRecords
from demur.unlearning.records.journal import Body, Row
from demur.unlearning.records.pseudonyms import Pseudonyms
from demur.unlearning.records.read_errors import readable
from demur.unlearning.records.rows import LearnedRecord
from demur.unlearning.records.seals import Seals
from demur.unlearning.records.state_cipher import StateCipher

_TIP = sa.select(tables.service.c.sequence, tables.service.c.hash)


class ServiceState:
    """The state of one service in one process."""

    def __init__(
        self,
        database: tables.ServiceStore,
        terms: ServiceTerms,
        pseudonyms: Pseudonyms | None,
        folder: Path,
        source: Source,
    ) -> None:
        self.database, self.terms = database, terms
        self._pseudonyms, self.source = pseudonyms, source
        self.signer: Ed25519PrivateKey | None = None  # of certificates
        self.folder, self.seals = folder, Seals(folder, 0)
        self.cipher = StateCipher(None if pseudonyms is None else pseudonyms.memory)
        encrypted = terms.record_store == "encrypted" and not database.read_only
        self.encrypted = EncryptedRecords(folder, source) if encrypted else None
        self.snapshots = snapshot.SnapshotFiles(folder / "snapshots")
        self.lock = threading.RLock()
        self.run = secrets.token_hex(8)  # tells this process from every other
        self.pending: list[Body] = []
        self._learned: list[LearnedRecord] = []
        self._deleted: dict[str, int] = {}  # deleted, their keys not erased yet
        self._process = os.getpid()
        self.broken = self.closed = self.unclean = False
        with readable():
            self._load()

    def _load(self) -> None:
        """The last durable moment, checked against the journal."""
        with self.database.read() as connection:
            row = connection.execute(sa.select(tables.service)).one()
            model = connection.execute(sa.select(tables.state)).one()
            tip, mode = Tip(int(row.sequence), row.hash), self.terms.model()
            mode.restore(self.cipher.decode(model.body))
            seals = self._check(connection, int(model.sequence), tip, mode)
            index, live = rows.index(connection), rows.live(connection)
        # Only what has passed the check: a reader loads again, and may be refused.
        self.id: str = row.service_id
        self.used = int(row.used)  # of this epoch's capacity
        self.epoch, self.tick = int(model.epoch), int(model.tick)
        self.tip, self.mode, self.index = tip, mode, index
        self.seals.number = seals
        if self._pseudonyms is not None:
            self._directory = Directory(self._pseudonyms, self.source, live)

    def _check(self, connection: Connection, at: int, tip: Tip, mode: Mode) -> int:
        """Compare the state on disk with its row of the journal; the seal's number."""
        last, digest, number = Tip(0, tip.hash), None, 1
        for row, body in journal.walk(connection, max(at - 1, 0)):
            if row.sequence == at:
                digest, number = body.get("state"), int(body["seal"])
            elif "state" in body:
                raise ServiceDamaged(
                    f"row {row.sequence} of the journal is newer than the state on"
                    " disk: the two come from different copies"
                )
            last = row.tip
        if last != tip:
            raise ServiceDamaged("the journal does not end where the service says")
        seal = self.seals.seal(mode.digest(), number)
        if seal is None and not self.database.read_only:
            raise ServiceDamaged(
                f"the seal key {number} is not in the service's folder of secrets:"
                " nobody can tell whether the state on disk is the right one. Restore"
                " both together."
            )
        if at and seal is not None and digest != seal:
            raise ServiceDamaged(
                "the state on disk is not the one that the journal names: it was"
                " edited, or comes from another copy. Restore both together."
            )
        return number

    @property
    def directory(self) -> Directory:
        """The pseudonyms of ids."""
        _ = self.pseudonyms  # or the refusal
        return self._directory

    @property
    def pseudonyms(self) -> Pseudonyms:
        """Pseudonyms under the service's secret."""
        if self._pseudonyms is None:
            memory = ", and the key of its memory (memory_key=)"
            raise ServiceMismatch(
                "the secret of this service cannot be read here, and without it no id"
                " can be looked up. Name the folder that has it (keys=)"
                f"{memory if self.terms.remembers else ''}, or ask the service's owner."
                " Nothing was changed."
            )
        return self._pseudonyms

    def sealed(self, mode: Mode, number: int | None = None) -> dict[str, Any]:
        """What the row of a state says of it: its seal, and the key's number."""
        number = self.seals.number if number is None else number
        return {"state": self.seals.seal(mode.digest(), number), "seal": number}

    def require_usable(self) -> None:
        """Refuse a forked copy, a closed service, and one whose last write failed.

        A reader loads what its writer has written since.
        """
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
        if self.database.read_only:
            self._follow()

    def require_writable(self) -> None:
        """Refuse what cannot be read either, and what was opened to be read."""
        self.require_usable()
        if self.database.read_only:
            raise LedgerMismatch(
                "this service was opened to be read: open it without read_only to"
                " write. Nothing was spent."
            )

    def _follow(self) -> None:
        """Load again if the writer has gone on: a deleted record is not served."""
        with readable(), self.database.read() as connection:
            row = connection.execute(_TIP).one()
        if Tip(int(row.sequence), row.hash) != self.tip:
            with readable():
                self._load()

    @property
    def foreign(self) -> bool:
        """Whether this is a forked copy in another process."""
        return os.getpid() != self._process

    @contextmanager
    def step(self, *refusals: type[Exception]) -> Iterator[None]:
        """All of it or none: whatever interrupts it stops the service.

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
        with self.step(), self.database.write() as connection:
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

    def learned(self, record: LearnedRecord, x: Array, y: float) -> None:
        """Note an insert that the model has made; durable after `flush`."""
        self.tick += 1
        self.index[record.pseudonym] = record.generation
        self.directory.add(record.named)
        self.pending.append(
            self.row(
                "insert",
                record=record.pseudonym,
                generation=record.generation,
                subject=record.subject,
            )
        )
        self._learned.append(record)
        if self.encrypted is not None:
            self.encrypted.encrypt(record.pseudonym, record.generation, x, y)

    def flush(self, then: Body | None = None) -> None:
        """Make every pending insert durable, and the row `then` with them."""
        bodies: list[Body] = list(self.pending)
        if bodies:
            bodies[-1] = bodies[-1] | self.sealed(self.mode) | {"time": now()}
        linked = journal.linked(self.tip, bodies if then is None else [*bodies, then])
        if not linked:
            return
        with self.step():
            self._write_keys()
            with self.writing() as connection:
                self._append(connection, linked, self._learned)
                if bodies:
                    at = linked[len(bodies) - 1].sequence
                    body = self.cipher.encode(self.mode)
                    rows.update_state(connection, body, self.epoch, self.tick, at)
                if then is not None and then["op"] == "intent":
                    rows.count_intent(connection, then)
                    self.used += then["used"]
            self._appended(linked)
            self.pending, self._learned = [], []

    def _write_keys(self) -> None:
        """Keys of records are on disk before the records."""
        if self.encrypted is not None:
            self.encrypted.write_keys()

    def _append(
        self,
        connection: Connection,
        linked: list[Row],
        learned: Iterable[LearnedRecord],
    ) -> None:
        journal.append(connection, linked)
        rows.insert_learned(connection, list(learned))
        if self.encrypted is not None:
            self.encrypted.write(connection)

    def _appended(self, linked: list[Row]) -> None:
        """Note in memory that the transaction is durable."""
        self.tip = linked[-1].tip
        if self.encrypted is not None:
            self.encrypted.written()

    # -- forgetting --------------------------------------------------------------

    def request_counts(self, subjects: Iterable[str]) -> dict[str, int]:
        """How many requests each person has made, interrupted ones included."""
        wanted, columns = list(subjects), tables.subjects.c
        with self.database.read() as connection:
            return dict.fromkeys(wanted, 0) | rows.column(
                connection, columns.pseudonym, columns.requests, wanted
            )

    def subjects(self, pseudonyms: Iterable[str]) -> dict[str, str]:
        """Whose records these are."""
        columns = tables.records.c
        with self.database.read() as connection:
            return rows.column(
                connection, columns.pseudonym, columns.subject, pseudonyms
            )

    def live_copies(self, pseudonyms: Iterable[str]) -> int:
        """How many other live records have the content of one of these."""
        columns, gone = tables.records.c, set(pseudonyms)
        with self.database.read() as connection:
            contents = rows.column(connection, columns.pseudonym, columns.content, gone)
            live = connection.execute(
                sa.select(columns.pseudonym).where(
                    columns.content.in_(set(contents.values()) - {None}), columns.live
                )
            )
            return len(set(live.scalars()) - gone)

    def block(self, pseudonym: str) -> None:
        """Refuse an id that was never learned, from now on."""
        if not self.directory.remembers:
            raise ServiceMismatch(
                "this service does not remember ids, so it cannot refuse one from now"
                " on: open a service with memory_key=. Nothing has changed."
            )
        self.flush()
        linked = journal.linked(
            self.tip, [self.row("block", record=pseudonym, time=now())]
        )
        with self.step():
            with self.writing() as connection:
                journal.append(connection, linked)
                rows.insert_blocked(connection, pseudonym)
            self._appended(linked)
            self.index[pseudonym] = 0

    def replace(
        self,
        mode: Mode,
        bodies: list[Body],
        certificates: Mapping[str, Certificate],
        *,
        learned: Iterable[LearnedRecord] = (),
        tick: int | None = None,
        new_epoch: bool = False,
    ) -> dict[str, Certificate]:
        """Put `mode` in the model's place, durably, and only then let it be seen.

        `certificates` are those of the records that are no longer in it, by pseudonym;
        each is the content of a row in `bodies`. The last row carries the
        digest of the state.
        """
        assert not self.pending, "pending inserts come first"
        tick = self.tick if tick is None else tick
        # The seals of states that held what is gone now end with their key.
        seal = self.seals.make(self.source) if certificates else self.seals.number
        bodies = [*bodies[:-1], bodies[-1] | self.sealed(mode, seal)]
        linked = journal.linked(self.tip, bodies)
        tips = {
            body["certificate"]["record"]: row.tip
            for body, row in zip(bodies, linked, strict=True)
            if "certificate" in body
        }
        recorded = {
            pseudonym: replace(certificate, tip=tips[pseudonym])
            for pseudonym, certificate in certificates.items()
        }
        if self.signer is not None:
            recorded = {p: c.signed(self.signer) for p, c in recorded.items()}
        issued = self._with_openings(recorded)
        at = linked[-1].sequence
        with self.step():
            self._write_keys()
            with self.writing() as connection:
                self._append(connection, linked, learned)
                remembers = self.directory.remembers
                rows.end_records(connection, issued, remembers=remembers)
                stored = self.cipher.encode(mode)
                rows.update_state(connection, stored, self.epoch, tick, at)
                if new_epoch:
                    connection.execute(tables.service.update().values(used=0))
            self._appended(linked)
            self.used = 0 if new_epoch else self.used
            self.index |= {r.pseudonym: r.generation for r in learned}
            self.index |= {pseudonym: -c.generation for pseudonym, c in issued.items()}
            for record in learned:
                self.directory.add(record.named)
            for pseudonym in issued:
                self.directory.end(pseudonym)
            self.mode, self.tick, self.seals.number = mode, tick, seal
            self._deleted |= {
                pseudonym: c.generation for pseudonym, c in issued.items()
            }
            self.unclean = self.unclean or bool(issued)  # until `clean_up` is done
        return issued

    def clean_up(self) -> None:
        """Erase what a deletion leaves: keys, snapshot files, pages, journals."""
        if self.encrypted is not None:
            self.encrypted.erase(self._deleted)
        self._deleted.clear()
        self.seals.destroy_others()
        self.snapshots.destroy(before=self.tip.sequence)
        self.scrub()

    def remove_leftovers(self) -> None:
        """Erase keys and snapshots of everything deleted so far, by any process."""
        with self.database.read() as connection:
            if self.encrypted is not None:
                self.encrypted.remove_leftovers(connection)
            self._deleted.clear()
            self.seals.destroy_others()
            self.snapshots.destroy(before=journal.last_forgotten(connection))

    def scrub(self, *, strict: bool = False) -> None:
        """Remove the journals with old pages; another writer may hold that up."""
        try:
            self.database.scrub()
            if self.encrypted is not None:
                self.encrypted.scrub()
            self.unclean = False
        except ServiceBusy:
            self.unclean = True
            if strict:
                raise

    def certificate(self, pseudonym: str, generation: int) -> Certificate | None:
        """The certificate of a deletion that was made."""
        with self.database.read() as connection:
            text = rows.certificate(connection, pseudonym, generation)
        if text is None:
            return None
        stored = Certificate.from_json(text)
        return self._with_openings({pseudonym: stored})[pseudonym]

    def certificates(self) -> list[Certificate]:
        """Every certificate, in the order of the journal, with no opening."""
        with self.database.read() as connection:
            return rows.certificates(connection)

    def _with_openings(
        self, certificates: Mapping[str, Certificate]
    ) -> dict[str, Certificate]:
        with self.database.read() as connection:
            return rows.with_openings(connection, self.pseudonyms, certificates)

    def close(self) -> None:
        """Close files and connections; pending inserts are not written."""
        self.closed = True
        if self.encrypted is not None:
            self.encrypted.close()
        self.database.close()
