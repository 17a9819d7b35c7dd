"""`ServiceReader`: predictions, certificates, status and verification of a service."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from demur.ledger import Ledger, Tip
from demur.unlearning.errors import UnknownRecord
from demur.unlearning.models.base import Array
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import queue, rows, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.commitments import Opening, id_list
from demur.unlearning.records.queue import QueuedRequest
from demur.unlearning.service import opening
from demur.unlearning.service.backup import backup_service, write_evidence
from demur.unlearning.service.forecast import NoiseForecast, forecast
from demur.unlearning.service.opening import OpenService, ServiceToRead
from demur.unlearning.service.requests import BLOCKED
from demur.unlearning.service.state import ServiceState
from demur.unlearning.service.status import ServiceStatus, status_of
from demur.unlearning.service.verification import ServiceVerification, verify_service


class ServiceReader:
    """The part of a service that does not change its model."""

    _opened: OpenService | ServiceToRead
    _state: ServiceState
    _resources: ExitStack

    @property
    def terms(self) -> ServiceTerms:
        """The terms that the first opening fixed."""
        return self._state.terms

    def predict(self, x: ArrayLike) -> Any:
        """A prediction from what may be published; a label, where there are labels."""
        with self._state.lock:
            self._state.require_usable()
            return self._state.terms.label_of(self._state.mode.predict(x))

    def probabilities(self, x: ArrayLike) -> Array:
        """The probability of each class, in the order of `classes`."""
        with self._state.lock:
            self._state.require_usable()
            return self._state.mode.probabilities(x)

    def published(self) -> Array:
        """The parameters that may be published."""
        with self._state.lock:
            self._state.require_usable()
            return self._state.mode.published()

    def queue(self) -> list[QueuedRequest]:
        """Requests that wait, the most urgent first."""
        with self._state.lock:
            self._state.require_usable()
            with self._state.database.read() as connection:
                return queue.waiting(connection)

    # -- trust -------------------------------------------------------------------

    def certificate(self, record_id: str | int) -> Certificate:
        """The certificate of a record's last deletion."""
        state = self._state
        with state.lock:
            state.require_usable()
            pseudonym = state.directory.find(record_id)
            generation = state.index.get(pseudonym, BLOCKED)
            last = -generation if generation < 0 else generation - 1
            issued = state.certificate(pseudonym, last) if last > 0 else None
            remembers = state.directory.remembers
        if issued is None:
            raise UnknownRecord(
                "no record of this id was ever deleted here"
                if remembers
                else "ids of deleted records are not remembered here (memory_key=):"
                " keep the certificate that the deletion returns"
            )
        return issued

    def verify(self) -> ServiceVerification:
        """Check journal, certificates, state and ledger against each other."""
        with self._state.lock:
            self._state.require_usable()
            self._state.flush()
            with opening.ledgers(self._opened) as ledgers:
                state = self._state
                return verify_service(
                    state.database, state.terms, ledgers, state.seals, state.cipher
                )

    def openings(
        self,
        record_ids: Iterable[str | int] = (),
        *,
        subject_id: str | int | None = None,
    ) -> dict[str, Opening]:
        """What ties pseudonyms to these ids, by pseudonym; of live records.

        Whoever gave a record can be given its opening when it is learned: the journal
        has the pseudonym from then on. A service with a `memory_key` knows those of
        deleted records, too.
        """
        state = self._state
        with state.lock:
            state.require_usable()
            state.flush()
            ids = id_list("record_ids", record_ids)
            pseudonyms = [state.directory.find(each) for each in ids]
            with state.database.read() as connection:
                if subject_id is not None:
                    subject = state.directory.find_subject(subject_id)
                    pseudonyms += rows.records_of(connection, subject)
                return rows.openings(connection, state.pseudonyms, pseudonyms)

    def openings_of_leaving(
        self, staying: Iterable[str | int] | None = None
    ) -> dict[str, Opening]:
        """The same of records that a retrain on `staying` would delete, by pseudonym.

        Without `staying`, of those whose requests wait. Without a `memory_key` they are
        known until then alone.
        """
        state = self._state
        with state.lock:
            state.require_usable()
            state.flush()
            with state.database.read() as connection:
                leaving = {each.record for each in queue.waiting(connection)}
                if staying is not None:
                    live = {p for p, number in state.index.items() if number > 0}
                    leaving |= live - {state.directory.find(each) for each in staying}
                return rows.openings(connection, state.pseudonyms, leaving)

    def find_deleted(
        self, record_ids: Sequence[str | int]
    ) -> tuple[list[int], list[int]]:
        """Which ids were deleted, and which are refused for good (`block`).

        A service without a `memory_key` knows of none.
        """
        state = self._state
        with state.lock:
            state.require_usable()
            known = [state.index.get(state.directory.find(each)) for each in record_ids]
        deleted = [at for at, number in enumerate(known) if (number or BLOCKED) < 0]
        return deleted, [at for at, number in enumerate(known) if number == BLOCKED]

    def check_rows(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        subject_ids: Sequence[str | int | None] | None = None,
    ) -> list[int]:
        """The rows that the mode would refuse to learn.

        More records of one person than published answers are priced for are a
        `CapacityExhausted`. Nothing is learned.
        """
        state = self._state
        points, targets = np.asarray(X), np.asarray(state.terms.numbers_of(Y))
        refused = []
        with state.lock:
            state.require_usable()
            for at, (x, y) in enumerate(zip(points, targets.tolist(), strict=True)):
                try:
                    state.mode.check(x, y)
                except (ValueError, TypeError):
                    refused.append(at)
            if state.terms.answers is not None and subject_ids is not None:
                named = [each for each in subject_ids if each is not None]
                counts = Counter(map(state.directory.find_subject, named))
                with state.database.read() as connection:
                    counts.update(rows.live_of(connection, list(counts)))
                state.terms.check_per_subject(counts)
        return refused

    def find_live(
        self,
        record_ids: Sequence[str | int],
        X: ArrayLike,
        Y: ArrayLike,
        *,
        subject_ids: Sequence[str | int | None] | None = None,
    ) -> tuple[list[int], list[int]]:
        """Which rows are live under their ids: as they are here, and with other values.

        For whoever repeats an insert of many rows that was interrupted. With
        `subject_ids`, a record of another person has other values, too.
        """
        state, columns = self._state, tables.records.c
        points, targets = np.asarray(X), np.asarray(state.terms.numbers_of(Y))
        equal: list[int] = []
        other: list[int] = []
        with state.lock:
            state.require_usable()
            state.flush()
            found = [state.directory.find(each) for each in record_ids]
            with state.database.read() as connection:
                contents = rows.column(
                    connection,
                    columns.pseudonym,
                    columns.content,
                    [p for p in found if state.index.get(p, BLOCKED) > 0],
                )
            owners = {} if subject_ids is None else state.subjects(contents)
            for at, pseudonym in enumerate(found):
                if pseudonym in contents:
                    here = state.pseudonyms.content(points[at], targets[at])
                    same = contents[pseudonym] == here
                    if subject_ids is not None and same:
                        same = self._owned_by(
                            pseudonym, owners[pseudonym], subject_ids[at]
                        )
                    (equal if same else other).append(at)
        return equal, other

    def _owned_by(
        self, pseudonym: str, owner: str, subject_id: str | int | None
    ) -> bool:
        """Whether a live record would be of this person if it were inserted now."""
        if subject_id is not None:
            return self._state.directory.find_subject(subject_id) == owner
        if self._state.index[pseudonym] > 1:  # It went on being the same person's.
            return True
        return self._state.pseudonyms.alone(pseudonym) == owner

    def evidence(self, path: str | os.PathLike[str]) -> Tip:
        """Write a file with journal, certificates and own ledgers; the journal's tip.

        It holds no state, no key and no name of an id (`records.evidence`), and `demur
        unlearn verify` checks certificates against it.
        """
        with self._state.lock:
            self._state.require_usable()
            self._state.flush()
            return write_evidence(self._state.database, path)

    def backup(self, folder: str | os.PathLike[str], *, keys: bool = False) -> Tip:
        """Copy the service, while it runs, into a new folder; the tip of the copy.

        With `keys` the copy can be opened by itself. It holds every record that is live
        now, also those that are deleted later: destroy it with them.
        """
        with self._state.lock:
            self._state.require_usable()
            self._state.flush()
            secrets = self._state.folder if keys else None
            return backup_service(self._state.database, folder, keys=secrets)

    def certificates(self) -> list[Certificate]:
        """Every certificate that was issued, in the order of the journal."""
        with self._state.lock:
            self._state.require_usable()
            return self._state.certificates()

    def status(self) -> ServiceStatus:
        """Counts of records and requests, and what is left of the capacity."""
        with self._state.lock:
            prices = self._opened.prices
            left = None
            if prices.publications is not None:
                left = opening.publications_left(self._opened)
            return status_of(self._state, self.queue(), prices, left)

    def forecast(
        self, deletions: int = 100, *, rows: ArrayLike | None = None
    ) -> NoiseForecast:
        """What the noise of deletions does to answers: now, and after further ones.

        With `rows`, for these; otherwise for rows in all directions alike.
        """
        with self._state.lock:
            self._state.require_usable()
            return forecast(
                self._state.mode,
                self._opened.prices,
                self._state.used,
                deletions=deletions,
                rows=rows,
            )

    @property
    def ledger(self) -> Ledger:
        """The ledger that this epoch's deletions are charged to."""
        return opening.current_ledger(self._opened)

    def close(self) -> None:
        """Make pending inserts durable, and close the service."""
        state = self._state
        with state.lock:
            if state.closed:
                return
            if state.foreign:  # Pending inserts and connections are the parent's.
                state.closed = True
                return
            try:
                if not state.broken:
                    state.flush()
            finally:
                self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a service cannot be copied or pickled: it has one writer")

    def __repr__(self) -> str:
        terms = self._state.terms
        stamp = ", NOT PRIVATE" if terms.testing else ""
        return (
            f"<UnlearningService {terms.mode}, dimension {terms.dimension},"
            f" {terms.scope}{stamp}>"
        )
