"""`UnlearningService`: a durable model that learns by id, forgets, and certifies it.

    with UnlearningService.open("model.db", mode="ogd", dimension=20, epsilon=1.0,
                                delta=1e-6) as service:
        service.insert(x, y, record_id="order 17", subject_id="customer 3")
        certificate = service.delete("order 17")

`deletion` has the order of events and why it survives a crash, `recovery` what opening
does, `pricing.budget` what a deletion costs. One process at a time opens a service.

**When is an insert acknowledged?** With durability="each", when `insert` returns. With
"batch", when `flush` returns, or `insert` of the `batch_size`-th record; a crash loses
what came after, and the model on disk does not have it either. Deletions are always
durable when they return, together with every insert before them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.entropy import OsEntropy, Source
from demur.ledger import Ledger, Tip, load_signing_key
from demur.unlearning.errors import RecordExists, UnknownRecord
from demur.unlearning.models.base import Accounting, Array, Scope
from demur.unlearning.pricing.publications import Answers
from demur.unlearning.pricing.service_terms import RecordStore, RequestedTerms
from demur.unlearning.records import queue
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.commitments import id_list
from demur.unlearning.records.memory_key import MemoryKey
from demur.unlearning.records.rows import LearnedRecord
from demur.unlearning.service import opening, publication, retraining
from demur.unlearning.service.deletion import Deletions
from demur.unlearning.service.limits import ServiceLimits, check_limits
from demur.unlearning.service.opening import OpenService, ServiceToRead
from demur.unlearning.service.reader import ServiceReader
from demur.unlearning.service.requests import (
    Answer,
    DeletionRequests,
    OnExhausted,
    rows_with_ids,
)
from demur.unlearning.service.retraining import Record

Durability: TypeAlias = Literal["each", "batch"]
Deadline: TypeAlias = datetime | timedelta | None


class UnlearningService(ServiceReader):
    """A live model with ids, a journal, a ledger and certificates of deletion."""

    # What carries deletions out; tests put broken ones here.
    _deletions: type[Deletions] = Deletions

    def __init__(
        self,
        opened: OpenService | ServiceToRead,
        on_exhausted: OnExhausted = "raise",
        records: Callable[[], Iterable[Record]] | None = None,
        batch: int = 1,
        limits: ServiceLimits | None = None,
    ) -> None:
        """Use `open`."""
        self._opened, self._state, self._limits = opened, opened.state, limits
        self._records, self._batch = records, batch
        self._recovered: tuple[Certificate, ...] = ()
        self._resources = ExitStack()
        if isinstance(opened, OpenService):
            self._requests = DeletionRequests(
                self._state,
                self._deletions(self._state, opened.charges, opened.prices, limits),
                on_exhausted,
                lambda without: self._retrain(None, without),
            )

    @property
    def _writing(self) -> OpenService:
        """The parts that a write needs, or the refusal."""
        self._state.require_writable()
        assert isinstance(self._opened, OpenService)
        return self._opened

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        mode: str | None = None,
        dimension: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        scope: Scope | None = None,
        accounting: Accounting | None = None,
        capacity: int | None = None,
        requests_per_subject: int | None = None,
        record_store: RecordStore | None = None,
        answers: Answers | None = None,
        ledger: Ledger | None = None,
        on_exhausted: OnExhausted = "raise",
        limits: ServiceLimits | None = None,
        records: Callable[[], Iterable[Record]] | None = None,
        durability: Durability = "each",
        batch_size: int = 1000,
        keys: str | os.PathLike[str] | None = None,
        memory_key: MemoryKey | None = None,
        signing_key: Ed25519PrivateKey | Path | str | None = None,
        tip: Tip | str | None = None,
        source: Source | None = None,
        read_only: bool = False,
        **config: Any,
    ) -> Self:
        """Open or create a service: a file, `sqlite:///...` or `postgresql://...`.

        The first opening fixes the terms: mode, dimension, epsilon, delta, scope,
        accounting, capacity, requests_per_subject, record_store, answers and the mode's
        own options (`config`). Later ones may leave them out, and are refused if they
        name others. `answers="published"` (or `Publications(...)`) keeps the model
        secret and answers from published copies alone. `limits` are the owner's and may
        change. `records` gives the live records for on_exhausted="retrain" (default:
        the encrypted store). `keys` is the owner-only folder for secrets (default:
        beside a file). `memory_key` is a key outside of that folder (a file, a
        `Passphrase`, or a function that asks a keyring), fixed at the first opening:
        with it the service remembers the ids of deleted records, so that it refuses a
        second deletion and goes on counting a person's requests. Without it an id is
        forgotten with its record. `signing_key` (an Ed25519 key or its PEM file, as of
        a ledger) signs the certificates and the service's own ledger; it is fixed at
        the first opening, too. With a `tip` that was kept, an older copy of the service
        is refused. `classes` may be a list of labels, for modes that take `classes`:
        y and predictions are then labels. A service with a seeded `source` is for
        tests, from its first opening to its last: its certificates are stamped NOT
        PRIVATE, and `demur unlearn verify` refuses them.

        With `read_only` nothing is written, no right to write is needed, and a running
        service is not in the way: each call answers from what is on disk by then. What
        needs the secret (`certificate`, and part of `verify`) is refused or reported
        where it cannot be read.
        """
        _one_of("on_exhausted", on_exhausted, OnExhausted)
        _one_of("durability", durability, Durability)
        validate.count(batch_size=batch_size)
        check_limits(limits)
        requested_terms: RequestedTerms = {
            "mode": mode,
            "dimension": dimension,
            "epsilon": epsilon,
            "delta": delta,
            "scope": scope,
            "accounting": accounting,
            "capacity": capacity,
            "requests_per_subject": requests_per_subject,
            "record_store": record_store,
            "answers": answers,
        }
        with ExitStack() as refused:  # A refusal leaves no lock and no file open.
            if read_only:
                self = cls(
                    opening.open_to_read(
                        os.fspath(url),
                        requested_terms,
                        config,
                        ledger=ledger,
                        keys=keys,
                        memory_key=memory_key,
                        resources=refused,
                    )
                )
                self._resources = refused.pop_all()
                return self
            opened = opening.open_service(
                os.fspath(url),
                requested_terms,
                config,
                ledger=ledger,
                keys=keys,
                memory_key=memory_key,
                source=OsEntropy() if source is None else source,
                resources=refused,
                signer=None if signing_key is None else load_signing_key(signing_key),
                tip=Tip.parse(tip) if isinstance(tip, str) else tip,
            )
            batch = 1 if durability == "each" else int(batch_size)
            self = cls(opened, on_exhausted, records, batch, limits)
            self._recovered = tuple(self._requests.take_up_interrupted())
            self._resources = refused.pop_all()
        return self

    # -- learning ----------------------------------------------------------------

    def insert(
        self,
        x: ArrayLike,
        y: float | str,
        *,
        record_id: str | int,
        subject_id: str | int | None = None,
    ) -> float:
        """Learn a record; the prediction for it from before."""
        state = self._state
        target: float = state.terms.number_of(y)
        with state.lock:
            state.require_writable()
            new, before = self._requests.new_record(record_id, subject_id), state.tick
            with state.step(ValueError, TypeError):  # the model's refusals
                prediction = state.mode.insert(x, target)
                record = LearnedRecord(new, state.pseudonyms.content(x, target))
                point = np.asarray(x, dtype=np.float64)
                state.learned(record, point, float(target))
            if len(state.pending) >= self._batch:
                state.flush()
            self._publish_if_due(before)
            return prediction

    def insert_many(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        record_ids: Sequence[str | int],
        subject_ids: Sequence[str | int | None] | None = None,
    ) -> Array:
        """Learn rows in order, all or none, and make them durable together."""
        rows, targets, ids, subjects = rows_with_ids(
            self._state.terms, X, Y, record_ids, subject_ids
        )
        state = self._state
        with state.lock:
            state.require_writable()
            new, before = self._requests.new_records(ids, subjects), state.tick
            if len({record.name or record.pseudonym for record in new}) < len(new):
                raise RecordExists(
                    "an id occurs twice among the rows; none was learned"
                )
            with state.step(ValueError, TypeError):  # the model's refusals
                predictions = state.mode.insert_many(rows, targets)
                for record, x, y in zip(new, rows, targets.tolist(), strict=True):
                    content = state.pseudonyms.content(x, y)
                    state.learned(LearnedRecord(record, content), x, y)
            state.flush()
            self._publish_if_due(before)
            return predictions

    def flush(self) -> Tip:
        """Acknowledge every insert so far; the journal's tip, to keep elsewhere."""
        state = self._state
        with state.lock:
            state.require_writable()
            state.flush()
            return state.tip

    # -- forgetting --------------------------------------------------------------

    def delete(
        self,
        record_id: str | int,
        x: ArrayLike | None = None,
        y: float | str | None = None,
        *,
        deadline: Deadline = None,
        block: bool = False,
    ) -> Answer:
        """Forget a record and certify it; again, and the same certificate comes back.

        x and y are for modes that must see the record, unless it is in the encrypted
        store; if given, they must be what was learned. With `block`, an id that was
        never learned is refused from now on (and the call still raises
        `UnknownRecord`).
        """
        state, until = self._state, queue.deadline_text(deadline)
        with state.lock:
            state.require_writable()
            pseudonym = state.directory.find(record_id)
            try:
                (answer,) = self._requests.delete([(pseudonym, x, y)], until)
            except UnknownRecord:
                if block and pseudonym not in state.index:
                    state.block(pseudonym)
                raise
            return answer

    def delete_many(
        self,
        record_ids: Iterable[str | int],
        X: ArrayLike | None = None,
        Y: ArrayLike | None = None,
        *,
        deadline: Deadline = None,
    ) -> list[Answer]:
        """Forget records together, with one noise and one commit; all or none."""
        ids = id_list("record_ids", record_ids, ordered=X is not None)
        rows: Sequence[Any] = [None] * len(ids) if X is None else list(np.asarray(X))
        targets: Sequence[Any] = [None] * len(ids) if Y is None else list(np.asarray(Y))
        if not len(ids) == len(rows) == len(targets):
            raise ValueError(
                f"{len(ids)} ids came with {len(rows)} rows and {len(targets)} targets"
            )
        state, until = self._state, queue.deadline_text(deadline)
        with state.lock:
            state.require_writable()
            pseudonyms = map(state.directory.find, ids)
            requests = list(zip(pseudonyms, rows, targets, strict=True))
            return self._requests.delete(requests, until)

    def delete_subject(
        self, subject_id: str | int, *, deadline: Deadline = None
    ) -> list[Answer]:
        """Forget every record of a person, as one request.

        For modes that must see the records, they have to be in the encrypted store.
        """
        state, until = self._state, queue.deadline_text(deadline)
        with state.lock:
            state.require_writable()
            subject = state.directory.find_subject(subject_id)
            pseudonyms = self._requests.records_of(subject)
            if not pseudonyms:
                raise UnknownRecord(
                    "no record of this person was learned. Nothing was spent."
                )
            return self._requests.delete(
                [(pseudonym, None, None) for pseudonym in pseudonyms], until
            )

    def publish(self) -> None:
        """Publish a copy, which is paid for; `predict` answers from it.

        For services with `answers="published"`, and for modes that publish an output;
        the model itself answers in all others, and there is nothing to do.
        """
        state = self._state
        with state.lock:
            opened = self._writing
            if opened.prices.publications is not None:
                publication.publish(state, opened.charges, opened.prices.publications)
            elif state.mode.publishes == "output":
                self._requests.deletions.carry_out([], queue.deadline_text(None))

    def _publish_if_due(self, before: int) -> None:
        prices = self._opened.prices.publications
        if prices is not None:
            charges = self._writing.charges
            publication.publish_if_due(self._state, charges, prices, before)

    @property
    def recovered(self) -> tuple[Certificate, ...]:
        """Certificates of requests that a crash cut short and this opening carried out.

        Whoever asked was never answered, and a service that does not remember ids has
        these openings in memory alone: hand them over (`Certificate.is_of` tells whose
        they are).
        """
        return self._recovered

    def process_queue(self) -> list[Certificate]:
        """Try every waiting request again; the certificates of those that were done."""
        with self._state.lock:
            self._state.require_writable()
            return self._requests.process(self._requests.waiting())

    def scrub(self) -> None:
        """Erase what a deletion left behind because of an error or another program."""
        with self._state.lock:
            self._state.require_writable()
            self._state.remove_leftovers()
            self._state.scrub(strict=True)

    # -- epochs ------------------------------------------------------------------

    def retrain(self, records: Iterable[Record] | None = None) -> list[Certificate]:
        """Train anew on `records`, (record_id, x, y) or (record_id, x, y, subject_id).

        A new epoch begins. Every live record that is not among them is deleted by
        that, exactly, and its certificate is among those returned; so are the requests
        that wait. Default: the records of `records=` at opening, or of the encrypted
        store. Ids that are not live are new; a `memory_key` refuses deleted ones.
        """
        with self._state.lock:
            self._state.require_writable()
            return list(self._retrain(records, set()).values())

    def _retrain(
        self, records: Iterable[Record] | None, without: set[str]
    ) -> dict[str, Certificate]:
        opened = self._writing
        opening.check_next_epoch(opened)
        without = without | {queued.record for queued in self._requests.waiting()}
        staying = self._training_records(records, without)
        issued = retraining.begin(self._state, opened.charges, staying)
        with self._state.step():  # No deletion of an epoch without its ledger.
            if opening.next_epoch(opened):
                self._requests.deletions = self._deletions(
                    self._state, opened.charges, opened.prices, self._limits
                )
        self._state.clean_up()
        return issued

    def _training_records(
        self, records: Iterable[Record] | None, without: set[str]
    ) -> list[retraining.TrainingRecord]:
        self._state.flush()
        if records is None and self._records is not None:
            records = self._records()
        with self._state.database.read() as connection:
            return retraining.training_records(
                self._state, connection, records, without
            )

    def renew(self, records: Iterable[Record] | None = None) -> None:
        """Bring the model to its minimum again by the live records (`logistic`)."""
        with self._state.lock:
            self._state.require_writable()
            retraining.renew(self._state, self._training_records(records, set()))

    def snapshot(self) -> Path:
        """Write the state to a file; the next deletion destroys it."""
        with self._state.lock:
            self._state.require_writable()
            self._state.flush()
            return retraining.snapshot(self._state)

    def restore(self, path: str | os.PathLike[str]) -> list[Certificate]:
        """Go back to a snapshot, unless something was deleted since.

        Records that were learned since are no longer in the model; their certificates
        are returned.
        """
        data = Path(path).read_bytes()
        with self._state.lock:
            charges = self._writing.charges
            self._state.flush()
            return retraining.restore(self._state, charges, data)


def _one_of(name: str, value: object, choices: Any) -> None:
    known = get_args(choices)
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r:.40}")
