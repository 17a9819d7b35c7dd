"""The desk: takes requests by id, finds out what they are about, and has them done.

A request that cannot be made out (an unknown id, a record that is not the one learned,
a record that is needed and not there) is refused before anything is written or spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import sqlalchemy as sa

from demur.unlearning.errors import (
    CapacityExhausted,
    RecordExists,
    RecordMismatch,
    RecordNeeded,
    ServiceDamaged,
    UnknownRecord,
)
from demur.unlearning.records import queue, store
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.queue import Queued
from demur.unlearning.service.deletion import Deletions, Target
from demur.unlearning.service.state import Keeper

OnExhausted: TypeAlias = Literal["raise", "queue", "retrain"]
Answer: TypeAlias = Certificate | Queued
# What lets a request wait; a box that cannot be opened waits for its record, too.
_NOT_NOW = (CapacityExhausted, RecordNeeded, ServiceDamaged)
BURIED = 0  # the generation of an id that was asked for and never learned


class Desk:
    """Requests of one service."""

    def __init__(
        self,
        keeper: Keeper,
        deletions: Deletions,
        on_exhausted: OnExhausted,
        retrain_without: Callable[[set[str]], dict[str, Certificate]],
    ) -> None:
        self._keeper = keeper
        self.deletions = deletions
        self._on_exhausted = on_exhausted
        self._retrain_without = retrain_without

    def newcomer(
        self, record_id: str | int, subject_id: str | int | None
    ) -> tuple[str, int, str]:
        """Mark, generation and subject of a record that may be learned, or why not."""
        keeper = self._keeper
        mark = keeper.marks.record(record_id)
        owners = keeper.subjects([mark]) if mark in keeper.index else {}
        return self._newcomer(mark, subject_id, owners)

    def newcomers(
        self,
        record_ids: Iterable[str | int],
        subject_ids: Iterable[str | int | None],
    ) -> list[tuple[str, int, str]]:
        """The same of many, looked up together."""
        keeper = self._keeper
        marks = [keeper.marks.record(record_id) for record_id in record_ids]
        owners = keeper.subjects(mark for mark in marks if mark in keeper.index)
        return [
            self._newcomer(mark, subject_id, owners)
            for mark, subject_id in zip(marks, subject_ids, strict=True)
        ]

    def _newcomer(
        self, mark: str, subject_id: str | int | None, owners: Mapping[str, str]
    ) -> tuple[str, int, str]:
        keeper = self._keeper
        known = keeper.index.get(mark)
        if known is not None and known > 0:
            raise RecordExists(
                "a record of this id is live: delete it first, or use another id."
                " Nothing has changed."
            )
        if known == BURIED:
            raise RecordExists(
                "this id was asked to be forgotten before it was learned, and is"
                " refused since. Nothing has changed."
            )
        if subject_id is not None:
            subject = keeper.marks.subject(subject_id)
        elif known is None:
            subject = keeper.marks.alone(mark)
        else:  # It comes back to its person, whose requests go on counting.
            subject = owners[mark]
        return mark, 1 if known is None else 1 - known, subject

    def forget(
        self, asked: Sequence[tuple[str, Any, Any]], deadline: str
    ) -> list[Answer]:
        """Forget records by mark, with x and y where given; all or none."""
        keeper = self._keeper
        answers: dict[str, Answer] = {}
        targets: dict[str, Target] = {}
        if any(keeper.index.get(mark, BURIED) == BURIED for mark, _, _ in asked):
            raise UnknownRecord(
                "no record of this id was ever learned here. Nothing was spent."
            )
        keeper.flush()  # The tables must know a record before it is found.
        for mark, x, y in asked:
            generation = keeper.index[mark]
            if generation < 0:
                answers[mark] = self._issued(mark, -generation)
            else:
                targets[mark] = self.target(mark, generation, x, y)
        if targets:
            answers |= self._carry_out(list(targets.values()), deadline)
        return [answers[mark] for mark, _, _ in asked]

    def _issued(self, mark: str, generation: int) -> Certificate:
        found = self._keeper.certificate(mark, generation)
        assert found is not None, "a deleted record has a certificate"
        return found

    def target(self, mark: str, generation: int, x: Any, y: Any) -> Target:
        """The record to forget, checked against what was learned."""
        keeper = self._keeper
        if (x is None) != (y is None):
            raise ValueError("x and y go together. Nothing was spent.")
        with keeper.place.read() as connection:
            row = connection.execute(
                sa.select(store.records).where(store.records.c.mark == mark)
            ).one()
            if x is None and keeper.mode.needs_record:
                if keeper.vault is None:
                    raise RecordNeeded(
                        f"mode {keeper.terms.mode!r} must see a record to forget it:"
                        " give its x and y, or keep an encrypted store. Nothing was"
                        " spent."
                    )
                x, y = keeper.vault.open(connection, mark)
        if x is None:
            return Target(mark, generation, row.subject)
        keeper.mode.check(x, y)
        if keeper.marks.content(x, y) != row.content:
            raise RecordMismatch(
                "this is not the record that was learned under this id: forgetting it"
                " would damage the model. Nothing has changed and nothing was spent."
            )
        point = np.asarray(x, dtype=np.float64)
        return Target(mark, generation, row.subject, point, float(y))

    def _carry_out(self, targets: Sequence[Target], deadline: str) -> dict[str, Answer]:
        """Forget, or do what was agreed for the day when the capacity is gone."""
        try:
            return dict(self.deletions.carry_out(targets, deadline))
        except CapacityExhausted as error:
            if self._on_exhausted == "raise":
                raise
            if self._on_exhausted == "retrain":
                return dict(self._retrain_without({t.mark for t in targets}))
            with self._keeper.writing() as connection:
                return {
                    t.mark: queue.put(
                        connection, t.mark, t.generation, deadline, error.reason
                    )
                    for t in targets
                }

    def records_of(self, subject: str) -> list[str]:
        """The marks of a person's records, deleted ones included."""
        self._keeper.flush()
        columns = store.records.c
        with self._keeper.place.read() as connection:
            found = connection.execute(
                sa.select(columns.mark)
                .where(columns.subject == subject)
                .order_by(columns.mark)
            )
            return list(found.scalars())

    def waiting(self) -> list[Queued]:
        """Requests that wait, the most urgent first."""
        with self._keeper.place.read() as connection:
            return queue.waiting(connection)

    def process(self, waiting: Iterable[Queued]) -> list[Certificate]:
        """Try requests that wait again; the certificates of those that went."""
        issued: list[Certificate] = []
        for queued in waiting:
            if self._keeper.index.get(queued.record) != queued.generation:
                continue
            try:
                target = self.target(queued.record, queued.generation, None, None)
                done = self.deletions.carry_out([target], queued.deadline)
            except _NOT_NOW:
                continue
            issued.extend(done.values())
        return issued

    def take_up_interrupted(self) -> None:
        """What a crash cut short is carried out now, where that takes no record.

        Together if that can be: as many requests of one person would be noised more
        and more, and they were one.
        """
        live = self._keeper.index
        waiting = [
            q
            for q in self.waiting()
            if q.reason == queue.INTERRUPTED and live.get(q.record) == q.generation
        ]
        try:
            targets = [self.target(q.record, q.generation, None, None) for q in waiting]
            if targets:
                self.deletions.carry_out(targets, waiting[0].deadline)
        except _NOT_NOW:
            self.process(waiting)
