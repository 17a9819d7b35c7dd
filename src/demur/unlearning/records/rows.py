"""Rows of a deletion service's tables: SQL to write and find them, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.unlearning.records import tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.directory import NewRecord
from demur.unlearning.records.journal import Body

_MOST_VARIABLES = 500  # in one statement
# SQLAlchemy keeps a column's own name as a bind name for itself: hence at_, new_.
_AT: sa.BindParameter[str] = sa.bindparam("at_pseudonym")
# Built once: putting a statement together costs more than running it.
_INSERT_RECORD = tables.records.insert()
_RENEW_RECORD = (
    tables.records.update()
    .where(tables.records.c.pseudonym == _AT)
    .values(
        generation=sa.bindparam("new_generation"),
        live=True,
        subject=sa.bindparam("new_subject"),
        content=sa.bindparam("new_content"),
    )
)
_UPDATE_STATE = tables.state.update().values(
    epoch=sa.bindparam("new_epoch"),
    tick=sa.bindparam("new_tick"),
    sequence=sa.bindparam("new_sequence"),
    body=sa.bindparam("new_body"),
)
_END_RECORD = (
    tables.records.update()
    .where(tables.records.c.pseudonym == _AT)
    .values(live=False, content=None, name=None, subject_name=None)
)


@dataclass(frozen=True)
class LearnedRecord:
    """A record that was learned, as journal and tables name it."""

    named: NewRecord
    content: str

    @property
    def pseudonym(self) -> str:
        """What journal and certificates call it."""
        return self.named.pseudonym

    @property
    def generation(self) -> int:
        """How often a record of this id was learned."""
        return self.named.generation

    @property
    def subject(self) -> str:
        """The pseudonym of the person whose record it is."""
        return self.named.subject


def insert_learned(connection: Connection, learned: Sequence[LearnedRecord]) -> None:
    """Insert new records, and deleted ones that are learned again."""
    new = [r for r in learned if r.generation == 1]
    again = [r for r in learned if r.generation > 1]
    if new:
        connection.execute(
            _INSERT_RECORD,
            [r.named._asdict() | {"content": r.content, "live": True} for r in new],
        )
    if again:
        connection.execute(
            _RENEW_RECORD,
            [
                {
                    "at_pseudonym": r.pseudonym,
                    "new_generation": r.generation,
                    "new_subject": r.subject,
                    "new_content": r.content,
                }
                for r in again
            ],
        )


def insert_blocked(connection: Connection, pseudonym: str) -> None:
    """Insert an id that is refused: a record of generation 0."""
    connection.execute(
        _INSERT_RECORD,
        {"pseudonym": pseudonym, "generation": 0, "live": False, "subject": pseudonym},
    )


def update_state(
    connection: Connection, body: bytes, epoch: int, tick: int, sequence: int
) -> None:
    """Write the whole state, as of a row of the journal."""
    connection.execute(
        _UPDATE_STATE,
        {
            "new_epoch": epoch,
            "new_tick": tick,
            "new_sequence": sequence,
            "new_body": body,
        },
    )


def count_intent(connection: Connection, intent: Body) -> None:
    """Count an intent when it is written; it is never taken back."""
    table = tables.subjects
    for subject, number in intent["requests"].items():
        connection.execute(table.delete().where(table.c.pseudonym == subject))
        connection.execute(table.insert().values(pseudonym=subject, requests=number))
    connection.execute(
        tables.service.update().values(used=tables.service.c.used + intent["used"])
    )


def end_records(connection: Connection, issued: Mapping[str, Certificate]) -> None:
    """Insert certificates, and delete everything else about their records."""
    if not issued:
        return
    pseudonyms = [{"at_pseudonym": pseudonym} for pseudonym in issued]
    for table in (tables.encrypted_records, tables.queue):
        connection.execute(table.delete().where(table.c.pseudonym == _AT), pseudonyms)
    connection.execute(_END_RECORD, pseudonyms)
    connection.execute(
        tables.certificates.insert(),
        [
            {"pseudonym": p, "generation": c.generation, "body": c.to_json()}
            for p, c in issued.items()
        ],
    )


def column(
    connection: Connection,
    key: sa.Column[Any],
    value: sa.Column[Any],
    keys: Iterable[str],
) -> dict[str, Any]:
    """The values of many keys, by key."""
    wanted = list(keys)
    values: dict[str, Any] = {}
    for at in range(0, len(wanted), _MOST_VARIABLES):
        part = wanted[at : at + _MOST_VARIABLES]
        rows = connection.execute(sa.select(key, value).where(key.in_(part)))
        values |= {row[0]: row[1] for row in rows}
    return values


def certificate(connection: Connection, pseudonym: str, generation: int) -> str | None:
    """The text of a certificate."""
    table = tables.certificates
    return connection.execute(
        sa.select(table.c.body).where(
            table.c.pseudonym == pseudonym, table.c.generation == generation
        )
    ).scalar_one_or_none()


def live(connection: Connection) -> list[NewRecord]:
    """The live records, as they are named."""
    columns = tables.records.c
    statement = sa.select(
        columns.pseudonym,
        columns.generation,
        columns.subject,
        columns.name,
        columns.subject_name,
    ).where(columns.live)
    return [NewRecord(*row) for row in connection.execute(statement)]


def index(connection: Connection) -> dict[str, int]:
    """The generation of each pseudonym: negative if deleted, 0 if blocked."""
    columns = tables.records.c
    statement = sa.select(columns.pseudonym, columns.generation, columns.live)
    return {
        pseudonym: generation if live else -generation
        for pseudonym, generation, live in connection.execute(statement)
    }
