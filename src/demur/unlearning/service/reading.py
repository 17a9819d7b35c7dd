"""What an open service tells, and how it ends; it changes nothing of its model."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NoReturn, Self

from numpy.typing import ArrayLike

from demur.ledger import Ledger, Tip
from demur.unlearning.errors import UnknownRecord
from demur.unlearning.models.base import Array
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.queue import Queued
from demur.unlearning.service import opening
from demur.unlearning.service.opening import Opened
from demur.unlearning.service.requests import BURIED, Desk
from demur.unlearning.service.state import Keeper
from demur.unlearning.service.status import ServiceStatus, status_of
from demur.unlearning.service.verification import Finding, verify_service


class Serving:
    """A service in one process: its answers, and the way out."""

    _opened: Opened
    _keeper: Keeper
    _desk: Desk
    _resources: ExitStack

    def flush(self) -> Tip:
        """Acknowledge every insert so far; the journal's tip, to keep elsewhere."""
        keeper = self._keeper
        with keeper.lock:
            keeper.usable()
            keeper.flush()
            return keeper.tip

    def predict(self, x: ArrayLike) -> float:
        """A prediction from what may be published."""
        with self._keeper.lock:
            self._keeper.usable()
            return self._keeper.mode.predict(x)

    def published(self) -> Array:
        """The parameters that may be published."""
        with self._keeper.lock:
            self._keeper.usable()
            return self._keeper.mode.published()

    def queue(self) -> list[Queued]:
        """Requests that wait, the most urgent first."""
        with self._keeper.lock:
            self._keeper.usable()
            return self._desk.waiting()

    # -- trust -------------------------------------------------------------------

    def certificate(self, record_id: str | int) -> Certificate:
        """The certificate of a record's last deletion."""
        keeper = self._keeper
        with keeper.lock:
            keeper.usable()
            mark = keeper.marks.record(record_id)
            generation = keeper.index.get(mark, BURIED)
            last = -generation if generation < 0 else generation - 1
            found = keeper.certificate(mark, last) if last > 0 else None
        if found is None:
            raise UnknownRecord("no record of this id was ever deleted here")
        return found

    def verify(self) -> Finding:
        """Check journal, certificates, state and ledger against each other."""
        with self._keeper.lock:
            self._keeper.usable()
            self._keeper.flush()
            with opening.ledgers(self._opened) as ledgers:
                keeper = self._keeper
                return verify_service(keeper.place, ledgers, keeper.sealed_bytes)

    def status(self) -> ServiceStatus:
        """Where the service stands."""
        with self._keeper.lock:
            return status_of(self._keeper, self.queue())

    def scrub(self) -> None:
        """Wipe what a deletion left behind, if a reader or an error was in the way."""
        with self._keeper.lock:
            self._keeper.usable()
            self._keeper.sweep()
            self._keeper.scrub(strict=True)

    @property
    def ledger(self) -> Ledger:
        """The ledger that this epoch's deletions are charged to."""
        return self._opened.till.ledger

    def close(self) -> None:
        """Flush and give the service back."""
        keeper = self._keeper
        with keeper.lock:
            if keeper.closed:
                return
            if keeper.foreign:  # Pending inserts and connections are the parent's.
                keeper.closed = True
                return
            try:
                if not keeper.broken:
                    keeper.flush()
            finally:
                self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a service cannot be copied or pickled: it has one writer")

    def __repr__(self) -> str:
        terms = self._keeper.terms
        stamp = ", NOT PRIVATE" if terms.testing else ""
        return (
            f"<UnlearningService {terms.mode}, dim {terms.dim}, {terms.scope}{stamp}>"
        )
