"""The rows of a service's tables: how they are written and found. SQL, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.unlearning.models.base import Mode
from demur.unlearning.records import snapshot, store
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.journal import Body

_MOST_VARIABLES = 500  # in one statement
_AT: sa.BindParameter[str] = sa.bindparam("at")
# Built once: putting a statement together costs more than running it.
_KEEP_RECORD = store.records.insert()
_RENEW_RECORD = (
    store.records.update()
    .where(store.records.c.mark == _AT)
    .values(
        generation=sa.bindparam("of"),
        live=True,
        subject=sa.bindparam("who"),
        content=sa.bindparam("what"),
    )
)
_MOVE_STATE = store.state.update().values(
    epoch=sa.bindparam("of"),
    tick=sa.bindparam("clock"),
    sequence=sa.bindparam("to"),
    body=sa.bindparam("new"),
)
_END_RECORD = (
    store.records.update()
    .where(store.records.c.mark == _AT)
    .values(live=False, content=None)
)


@dataclass(frozen=True)
class Learned:
    """A record that was learned, as journal and tables say it."""

    mark: str
    generation: int
    subject: str
    content: str


def keep_learned(connection: Connection, learned: Sequence[Learned]) -> None:
    """New records, and deleted ones that came back."""
    new = [r for r in learned if r.generation == 1]
    again = [r for r in learned if r.generation > 1]
    if new:
        connection.execute(_KEEP_RECORD, [vars(r) | {"live": True} for r in new])
    if again:
        connection.execute(
            _RENEW_RECORD,
            [
                {"at": r.mark, "of": r.generation, "who": r.subject, "what": r.content}
                for r in again
            ],
        )


def keep_buried(connection: Connection, mark: str) -> None:
    """An id that is refused: a record of generation 0."""
    connection.execute(
        _KEEP_RECORD, {"mark": mark, "generation": 0, "live": False, "subject": mark}
    )


def keep_state(
    connection: Connection, mode: Mode, epoch: int, tick: int, sequence: int
) -> None:
    """The whole state, as of a row of the journal."""
    connection.execute(
        _MOVE_STATE,
        {
            "of": epoch,
            "clock": tick,
            "to": sequence,
            "new": snapshot.encode(mode.state()),
        },
    )


def count_intent(connection: Connection, intent: Body) -> None:
    """An intent is counted when it is written, and never discounted."""
    table = store.subjects
    for subject, number in intent["requests"].items():
        connection.execute(table.delete().where(table.c.mark == subject))
        connection.execute(table.insert().values(mark=subject, requests=number))
    connection.execute(
        store.service.update().values(paid=store.service.c.paid + intent["units"])
    )


def end_records(connection: Connection, issued: Mapping[str, Certificate]) -> None:
    """Certificates in, everything else that speaks of the records out."""
    if not issued:
        return
    marks = [{"at": mark} for mark in issued]
    for table in (store.boxes, store.queue):
        connection.execute(table.delete().where(table.c.mark == _AT), marks)
    connection.execute(_END_RECORD, marks)
    connection.execute(
        store.certificates.insert(),
        [
            {"mark": m, "generation": c.generation, "body": c.to_json()}
            for m, c in issued.items()
        ],
    )


def column(
    connection: Connection,
    key: sa.Column[Any],
    value: sa.Column[Any],
    keys: Iterable[str],
) -> dict[str, Any]:
    """The values of many keys."""
    wanted = list(keys)
    found: dict[str, Any] = {}
    for at in range(0, len(wanted), _MOST_VARIABLES):
        part = wanted[at : at + _MOST_VARIABLES]
        rows = connection.execute(sa.select(key, value).where(key.in_(part)))
        found |= {row[0]: row[1] for row in rows}
    return found


def certificate(connection: Connection, mark: str, generation: int) -> str | None:
    """The text of a certificate."""
    table = store.certificates
    return connection.execute(
        sa.select(table.c.body).where(
            table.c.mark == mark, table.c.generation == generation
        )
    ).scalar_one_or_none()


def index(connection: Connection) -> dict[str, int]:
    """The generation of each mark: negative once it is deleted, 0 if it is buried."""
    columns = store.records.c
    statement = sa.select(columns.mark, columns.generation, columns.live)
    return {
        mark: generation if live else -generation
        for mark, generation, live in connection.execute(statement)
    }
