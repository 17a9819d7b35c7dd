"""Replacing the model of a service: retrain, renew, or restore from a snapshot.

A record that the new model lacks is deleted by that, exactly: nothing of it is left in
the state, and its certificate says so (theorem "retrain", epsilon 0).
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike
from sqlalchemy.engine import Connection

from demur import __version__
from demur.durable.clock import now
from demur.unlearning.errors import (
    RecordExists,
    RecordMismatch,
    RecordNeeded,
    SnapshotRefused,
)
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.models.published import PublishedAnswers
from demur.unlearning.records import journal, tables
from demur.unlearning.records.certificate import VERSION, Certificate, stamped
from demur.unlearning.records.directory import NewRecord
from demur.unlearning.records.journal import Body
from demur.unlearning.records.rows import LearnedRecord
from demur.unlearning.records.snapshot import Snapshot
from demur.unlearning.service import intents
from demur.unlearning.service.charges import DeletionCharges
from demur.unlearning.service.state import ServiceState

Record: TypeAlias = (
    tuple[str | int, ArrayLike, float]
    | tuple[str | int, ArrayLike, float, str | int | None]
)
# Theorems of records that the new model never saw, and what they say.
WITHOUT_NOISE = {
    "retrain": "The model was trained anew without the record.",
    "restore": "The model went back to its state from before the record was learned.",
}


@dataclass(frozen=True)
class TrainingRecord:
    """A record that the new model will know."""

    record: LearnedRecord
    x: Array
    y: float
    new: bool


def _record(given: Any) -> tuple[Any, Any, Any, Any]:
    """Id, x, y and person (or None) of a record to retrain on."""
    if isinstance(given, list | tuple) and len(given) in (3, 4):
        record_id, x, y, *rest = given
        return record_id, x, y, rest[0] if rest else None
    raise ValueError(
        "records must be (record_id, x, y) or (record_id, x, y, subject_id), one for"
        f" each record; got {type(given).__name__}. Nothing has changed."
    )


def training_records(
    state: ServiceState,
    connection: Connection,
    records: Iterable[Record] | None,
    without: set[str],
) -> list[TrainingRecord]:
    """Records for a new model, each checked against what was learned."""
    columns = tables.records.c
    live = {
        row.pseudonym: LearnedRecord(
            NewRecord(row.pseudonym, row.generation, row.subject), row.content
        )
        for row in connection.execute(sa.select(tables.records).where(columns.live))
    }
    if records is None:
        if state.encrypted is None:
            raise RecordNeeded(
                "there is no encrypted store: give the records that stay, as"
                " (record_id, x, y). Nothing has changed."
            )
        return [
            TrainingRecord(live[pseudonym], x, y, False)
            for pseudonym, x, y in state.encrypted.all_records(connection)
            if pseudonym in live and pseudonym not in without
        ]
    checked: dict[str, TrainingRecord] = {}
    for record_id, x, y, subject_id in map(_record, records):
        pseudonym = state.directory.find(record_id)
        if pseudonym in without:
            continue
        y = state.terms.number_of(y)
        state.mode.check(x, y)
        if pseudonym in checked:
            raise RecordExists(
                "an id occurs twice among the records to retrain on. Nothing has"
                " changed."
            )
        content = state.pseudonyms.content(x, y)
        point = np.asarray(x, dtype=np.float64)
        if pseudonym in live:
            if live[pseudonym].content != content:
                raise RecordMismatch(
                    "a record to retrain on is not what was learned under its id."
                    " Nothing has changed."
                )
            owner = live[pseudonym].subject
            if subject_id is not None and state.directory.find_subject(subject_id) != (
                owner
            ):
                raise RecordMismatch(
                    "a record to retrain on was learned as another person's, and a"
                    " retrain does not change whose it is: delete it, and insert it as"
                    " theirs. Nothing has changed."
                )
            checked[pseudonym] = TrainingRecord(live[pseudonym], point, float(y), False)
            continue
        if pseudonym in state.index:
            raise RecordExists(
                "a record to retrain on was deleted: leave it out, and insert it"
                " afterwards if its owner wants it back. Nothing has changed."
            )
        new = state.directory.new(record_id, subject_id)
        learned = LearnedRecord(new, content)
        checked[pseudonym] = TrainingRecord(learned, point, float(y), True)
    return list(checked.values())


def begin(
    state: ServiceState, charges: DeletionCharges, staying: Sequence[TrainingRecord]
) -> dict[str, Certificate]:
    """Begin an epoch on these records; the certificates of all others, by pseudonym.

    The caller opens the ledger of the new epoch, and cleans up.
    """
    state.terms.check_per_subject(Counter(s.record.subject for s in staying))
    mode = state.terms.model()
    if isinstance(mode, PublishedAnswers) and isinstance(state.mode, PublishedAnswers):
        mode.shows_as(state.mode)  # until the new model is published
    if staying:
        X, Y = np.array([s.x for s in staying]), np.array([s.y for s in staying])
        # A mode that can take a batch gets closer to its minimum than event by event.
        learn: Callable[[Array, Array], object] = getattr(mode, "fit", mode.insert_many)
        learn(X, Y)
    new = [s for s in staying if s.new]
    stay = {s.record.pseudonym for s in staying}
    lost = [p for p, generation in state.index.items() if generation > 0]
    lost = [pseudonym for pseudonym in lost if pseudonym not in stay]
    certificates = _certificates(state, charges, lost, mode, "retrain", state.epoch + 1)
    with intents.replacing(state, charges) as paid, state.step():
        old, state.epoch = state.epoch, state.epoch + 1
        bodies: list[Body] = [
            state.row(
                "retrain",
                records=len(staying),
                new=len(new),
                drops=len(certificates),
                before=old,
                time=now(),
                **paid,
            ),
            *(
                state.row(
                    "insert",
                    record=s.record.pseudonym,
                    generation=s.record.generation,
                    subject=s.record.subject,
                )
                for s in new
            ),
            *_drops(state, certificates),
        ]
        if state.encrypted is not None:
            for s in new:
                state.encrypted.encrypt(
                    s.record.pseudonym, s.record.generation, s.x, s.y
                )
        return state.replace(
            mode,
            bodies,
            certificates,
            learned=[s.record for s in new],
            tick=len(staying),
            new_epoch=True,
        )


def renew(state: ServiceState, live: Sequence[TrainingRecord]) -> None:
    """Newton steps on the live records, for a mode that can make use of them."""
    if not hasattr(state.mode, "renew"):
        raise ValueError(f"mode {state.terms.mode!r} has nothing to renew")
    # With one left out and another in its place the number would be right.
    pseudonyms = {p for p, generation in state.index.items() if generation > 0}
    if pseudonyms != {r.record.pseudonym for r in live}:
        raise RecordMismatch(
            "these are not the live records, all of them and no others. Nothing has"
            " changed."
        )
    copy = state.mode.copy()
    X, Y = np.array([r.x for r in live]), np.array([r.y for r in live])
    cast(Any, copy).renew(X.reshape(-1, state.terms.dimension), Y)
    state.replace(copy, [state.row("renew", time=now())], {})


def snapshot(state: ServiceState) -> Path:
    """Write the state to a file of the service; its path."""
    taken = Snapshot(
        service=state.id,
        epoch=state.epoch,
        sequence=state.tip.sequence,
        tick=state.tick,
        sealed="",
        state=state.cipher.encode(state.mode),
    )
    return state.snapshots.put(replace(taken, sealed=_seal(state, taken)))


def _seal(state: ServiceState, taken: Snapshot) -> str:
    """The seal of state and moment: an old state must not pass for a newer one."""
    return state.pseudonyms.snapshot(replace(taken, sealed="").to_bytes())


def restore(
    state: ServiceState, charges: DeletionCharges, data: bytes
) -> list[Certificate]:
    """Go back to a snapshot that is newer than every deletion."""
    taken = Snapshot.from_bytes(data)
    with state.database.read() as connection:
        forgotten = journal.last_forgotten(connection)
        lost = [
            body["record"]
            for row, body in journal.walk(connection, taken.sequence)
            if row.op == "insert"
        ]
    if taken.service != state.id:
        raise SnapshotRefused(
            "this snapshot belongs to another service. Nothing has changed."
        )
    if taken.sequence < forgotten or taken.epoch != state.epoch:
        raise SnapshotRefused(
            f"this snapshot was taken at row {taken.sequence}, before row {forgotten}"
            " of the journal: it still holds what was deleted there. Nothing has"
            " changed."
        )
    if not hmac.compare_digest(_seal(state, taken), taken.sealed):
        raise SnapshotRefused(
            "this snapshot is not one that the service took: it was changed."
            " Nothing has changed."
        )
    if taken.sequence > state.tip.sequence:
        raise SnapshotRefused(
            "this snapshot is newer than the journal: one of the two comes from"
            " another copy. Nothing has changed."
        )
    mode = state.terms.model()
    mode.restore(state.cipher.decode(taken.state))
    certificates = _certificates(state, charges, lost, mode, "restore", state.epoch)
    with intents.replacing(state, charges) as paid:
        bodies = [
            state.row(
                "restore",
                to=taken.sequence,
                drops=len(certificates),
                time=now(),
                **paid,
            ),
            *_drops(state, certificates),
        ]
        issued = state.replace(mode, bodies, certificates, tick=taken.tick)
    state.clean_up()
    return list(issued.values())


def _drops(state: ServiceState, certificates: dict[str, Certificate]) -> list[Body]:
    return [state.row("drop", certificate=c.content()) for c in certificates.values()]


def _certificates(
    state: ServiceState,
    charges: DeletionCharges,
    lost: Sequence[str],
    after: Mode,
    theorem: str,
    epoch: int,
) -> dict[str, Certificate]:
    """Certificates for records that the new model never saw."""
    subjects = state.subjects(lost)
    requests = state.request_counts(set(subjects.values()))
    # Many persons, few different numbers of requests.
    so_far = {n: charges.prices.epsilon_of_requests(n) for n in set(requests.values())}
    time = now()
    return {
        pseudonym: Certificate(
            version=VERSION,
            service=state.id,
            record=pseudonym,
            generation=state.index[pseudonym],
            subject=subjects[pseudonym],
            requests=requests[subjects[pseudonym]],
            records=1,
            epoch=epoch,
            tick=state.tick,
            mode=state.terms.mode,
            theorem=theorem,
            statement=stamped(WITHOUT_NOISE[theorem], state.terms.testing),
            scope=state.terms.scope,
            accounting="none",
            not_covered=state.terms.not_covered(after),
            shift_bound=0.0,
            sigma=0.0,
            epsilon=0.0,
            delta=state.terms.delta,
            epsilon_so_far=so_far[requests[subjects[pseudonym]]],
            epsilon_in_all=charges.prices.epsilon_in_all(),
            delta_in_all=state.terms.delta_in_all,
            state_digest=None,
            operation="",
            ledger="",
            entry="",
            library=__version__,
            time=time,
        )
        for pseudonym in lost
    }
