"""Deletion requests by id: checked, then carried out, queued, or answered by a retrain.

A request that cannot be made out (an unknown id, a record that is not the one learned,
a record that is needed and not there) is refused before anything is written or spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike

from demur.core.bounds import real_array
from demur.unlearning.errors import (
    CapacityExhausted,
    RecordExists,
    RecordMismatch,
    RecordNeeded,
    ServiceDamaged,
    UnknownRecord,
)
from demur.unlearning.models.base import Array
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import queue, rows, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.commitments import id_list
from demur.unlearning.records.directory import NewRecord
from demur.unlearning.records.queue import QueuedRequest
from demur.unlearning.service.deletion import Deletions, RecordToDelete
from demur.unlearning.service.state import ServiceState

OnExhausted: TypeAlias = Literal["raise", "queue", "retrain"]
Answer: TypeAlias = Certificate | QueuedRequest
# What lets a request wait; one whose stored record cannot be decrypted, too.
_NOT_NOW = (CapacityExhausted, RecordNeeded, ServiceDamaged)
BLOCKED = 0  # the generation of an id that was asked for and never learned


def rows_with_ids(
    terms: ServiceTerms,
    X: ArrayLike,
    Y: ArrayLike,
    record_ids: Iterable[str | int],
    subject_ids: Iterable[str | int | None] | None,
) -> tuple[Array, Array, list[str | int], list[str | int | None]]:
    """Rows to learn with their targets, ids and persons, equally many of each."""
    ids = id_list("record_ids", record_ids, ordered=True)
    subjects: list[str | int | None] = [None] * len(ids)
    if subject_ids is not None:
        subjects = id_list("subject_ids", subject_ids, ordered=True)
    rows = real_array("X", X, "a matrix")
    targets = real_array("Y", terms.numbers_of(Y))
    if rows.ndim != 2 or targets.ndim != 1:
        raise ValueError(
            f"X must be a matrix and Y a vector; got shapes {rows.shape} and"
            f" {targets.shape}"
        )
    if not len(rows) == len(targets) == len(ids) == len(subjects):
        raise ValueError(
            f"X, Y and the ids must be equally many; got {len(rows)} rows,"
            f" {len(targets)} targets, {len(ids)} record ids"
        )
    return rows, targets, ids, subjects


class DeletionRequests:
    """Requests to one service."""

    def __init__(
        self,
        state: ServiceState,
        deletions: Deletions,
        on_exhausted: OnExhausted,
        retrain_without: Callable[[set[str]], dict[str, Certificate]],
    ) -> None:
        self._state = state
        self.deletions = deletions
        self._on_exhausted = on_exhausted
        self._retrain_without = retrain_without

    def new_record(
        self, record_id: str | int, subject_id: str | int | None
    ) -> NewRecord:
        """A record that may be learned, or the refusal."""
        return self.new_records([record_id], [subject_id])[0]

    def new_records(
        self,
        record_ids: Iterable[str | int],
        subject_ids: Iterable[str | int | None],
    ) -> list[NewRecord]:
        """The same for many, looked up together."""
        state = self._state
        found = [(each, state.directory.find(each)) for each in record_ids]
        known = [pseudonym for _, pseudonym in found if pseudonym in state.index]
        owners = state.subjects(known) if known else {}
        new = [
            self._new_record(*each, subject_id, owners)
            for each, subject_id in zip(found, subject_ids, strict=True)
        ]
        if state.terms.answers is not None:
            self._check_per_subject(new, state.terms)
        return new

    def _check_per_subject(self, new: Sequence[NewRecord], terms: ServiceTerms) -> None:
        """Refuse more live records of one person than publications are priced for."""
        counts = Counter(record.subject for record in new)
        state = self._state
        with state.database.read() as connection:
            stored = rows.live_of(connection, list(counts))
        counts.update(stored)
        counts.update(
            body["subject"] for body in state.pending if body["subject"] in counts
        )
        terms.check_per_subject(counts)

    def _new_record(
        self,
        record_id: str | int,
        pseudonym: str,
        subject_id: str | int | None,
        owners: Mapping[str, str],
    ) -> NewRecord:
        state = self._state
        generation = state.index.get(pseudonym)
        if generation is None:
            return state.directory.new(record_id, subject_id, pseudonym)
        if generation > 0:
            raise RecordExists(
                "a record of this id is live: delete it first, or use another id."
                " Nothing has changed."
            )
        if generation == BLOCKED:
            raise RecordExists(
                "this id was asked to be forgotten before it was learned, and has been"
                " refused since. Nothing has changed."
            )
        # It belongs to the same person, whose requests go on counting.
        return state.directory.again(
            record_id, 1 - generation, owners[pseudonym], subject_id
        )

    def delete(
        self, requests: Sequence[tuple[str, Any, Any]], deadline: str
    ) -> list[Answer]:
        """Delete records by pseudonym, with x and y where given; all or none."""
        state = self._state
        answers: dict[str, Answer] = {}
        records: dict[str, RecordToDelete] = {}
        if any(
            state.index.get(pseudonym, BLOCKED) == BLOCKED for pseudonym, *_ in requests
        ):
            raise UnknownRecord(
                "no record of this id was ever learned here. Nothing was spent."
                if state.directory.remembers
                else "no record of this id is live here; ids of deleted records are not"
                " remembered (memory_key=). Nothing was spent."
            )
        state.flush()  # The tables must know a record before it is looked up.
        for pseudonym, x, y in requests:
            generation = state.index[pseudonym]
            if generation < 0:
                answers[pseudonym] = self._issued(pseudonym, -generation)
            else:
                records[pseudonym] = self.record(pseudonym, generation, x, y)
        if records:
            answers |= self._carry_out(list(records.values()), deadline)
        return [answers[pseudonym] for pseudonym, _, _ in requests]

    def _issued(self, pseudonym: str, generation: int) -> Certificate:
        certificate = self._state.certificate(pseudonym, generation)
        assert certificate is not None, "a deleted record has a certificate"
        return certificate

    def record(self, pseudonym: str, generation: int, x: Any, y: Any) -> RecordToDelete:
        """The record to delete, checked against what was learned."""
        state = self._state
        if (x is None) != (y is None):
            raise ValueError("x and y go together. Nothing was spent.")
        y = None if y is None else state.terms.number_of(y)
        with state.database.read() as connection:
            row = connection.execute(
                sa.select(tables.records).where(tables.records.c.pseudonym == pseudonym)
            ).one()
            if x is None and state.mode.needs_record:
                if state.encrypted is None:
                    raise RecordNeeded(
                        f"mode {state.terms.mode!r} must see a record to forget it:"
                        " give its x and y, or keep an encrypted store. Nothing was"
                        " spent."
                    )
                x, y = state.encrypted.decrypt(connection, pseudonym)
        if x is None:
            return RecordToDelete(pseudonym, generation, row.subject)
        state.mode.check(x, y)
        if state.pseudonyms.content(x, y) != row.content:
            raise RecordMismatch(
                "this is not the record that was learned under this id: forgetting it"
                " would damage the model. Nothing has changed and nothing was spent."
            )
        point = np.asarray(x, dtype=np.float64)
        return RecordToDelete(pseudonym, generation, row.subject, point, float(y))

    def _carry_out(
        self, records: Sequence[RecordToDelete], deadline: str
    ) -> dict[str, Answer]:
        """Delete, or what `on_exhausted` says where the capacity is used up."""
        wanted = {record.pseudonym for record in records}
        kept = [each.limits for each in self.waiting() if each.record in wanted]
        try:
            with self.deletions.under(kept):
                return dict(self.deletions.carry_out(records, deadline))
        except CapacityExhausted as error:
            if self._on_exhausted == "raise":
                raise
            if self._on_exhausted == "retrain":
                return dict(self._retrain_without({r.pseudonym for r in records}))
            with self._state.writing() as connection:
                return {
                    r.pseudonym: queue.put(
                        connection,
                        r.pseudonym,
                        r.generation,
                        deadline,
                        error.reason,
                        self.deletions.named_limits,
                    )
                    for r in records
                }

    def records_of(self, subject: str) -> list[str]:
        """The pseudonyms of a person's records, deleted ones included."""
        self._state.flush()
        with self._state.database.read() as connection:
            return rows.records_of(connection, subject)

    def waiting(self) -> list[QueuedRequest]:
        """Requests that wait, the most urgent first."""
        with self._state.database.read() as connection:
            return queue.waiting(connection)

    def process(self, waiting: Iterable[QueuedRequest]) -> list[Certificate]:
        """Try waiting requests again; the certificates of those that were done."""
        issued: list[Certificate] = []
        by_person: dict[str, list[RecordToDelete]] = {}
        deadlines: dict[str, str] = {}
        kept: dict[str, list[str | None]] = {}
        for queued in waiting:
            if self._state.index.get(queued.record) != queued.generation:
                continue
            with suppress(*_NOT_NOW):
                record = self.record(queued.record, queued.generation, None, None)
                by_person.setdefault(record.subject, []).append(record)
                deadlines.setdefault(record.subject, queued.deadline)
                kept.setdefault(record.subject, []).append(queued.limits)
        for subject, records in by_person.items():
            with suppress(*_NOT_NOW), self.deletions.under(kept[subject]):
                for request in self.deletions.grouped(records):
                    done = self.deletions.carry_out(request, deadlines[subject])
                    issued.extend(done.values())
        return issued

    def take_up_interrupted(self) -> list[Certificate]:
        """Carry out what a crash cut short, where that does not need the record.

        Together if possible, as they were one request: as several requests of one
        person each would get more noise than the one before.
        """
        live = self._state.index
        waiting = [
            q
            for q in self.waiting()
            if q.reason == queue.INTERRUPTED and live.get(q.record) == q.generation
        ]
        try:
            records = [self.record(q.record, q.generation, None, None) for q in waiting]
            if not records:
                return []
            with self.deletions.under(queued.limits for queued in waiting):
                done = self.deletions.carry_out(records, waiting[0].deadline)
        except _NOT_NOW:
            return self.process(waiting)
        return list(done.values())
