"""`ServiceReader`: predictions, certificates, status and verification of a service."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NoReturn, Self

from numpy.typing import ArrayLike

from demur.ledger import Ledger
from demur.unlearning.errors import UnknownRecord
from demur.unlearning.models.base import Array
from demur.unlearning.records import queue
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.queue import QueuedRequest
from demur.unlearning.service import opening
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

    def predict(self, x: ArrayLike) -> float:
        """A prediction from what may be published."""
        with self._state.lock:
            self._state.require_usable()
            return self._state.mode.predict(x)

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

    def status(self) -> ServiceStatus:
        """Counts of records and requests, and what is left of the capacity."""
        with self._state.lock:
            return status_of(self._state, self.queue())

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
