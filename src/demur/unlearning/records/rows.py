"""Rows of a deletion service's tables: SQL to write and find them, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.unlearning.records import tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.commitments import Opening
from demur.unlearning.records.directory import NewRecord
from demur.unlearning.records.journal import Body
from demur.unlearning.records.pseudonyms import Pseudonyms

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
        subject_opening=sa.case(  # one that was learned before is the same person's
            (
                tables.records.c.subject == sa.bindparam("new_subject"),
                tables.records.c.subject_opening,
            ),
            else_=sa.bindparam("new_subject_opening", type_=sa.String(64)),
        ),
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
_ERASE_OPENINGS = (
    tables.records.update()
    .where(tables.records.c.pseudonym == _AT)
    .values(opening=None, subject_opening=None)
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
                    "new_subject_opening": r.named.subject_opening,
                    "new_content": r.content,
                }
                for r in again
            ],
        )


def live_of(connection: Connection, subjects: Sequence[str]) -> dict[str, int]:
    """How many records of each person are live."""
    columns, counts = tables.records.c, {}
    for at in range(0, len(subjects), _MOST_VARIABLES):
        part = subjects[at : at + _MOST_VARIABLES]
        statement = (
            sa.select(columns.subject, sa.func.count())
            .where(columns.live, columns.subject.in_(part))
            .group_by(columns.subject)
        )
        for subject, count in connection.execute(statement):
            counts[str(subject)] = int(count)
    return counts


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


def end_records(
    connection: Connection, issued: Mapping[str, Certificate], *, remembers: bool
) -> None:
    """Insert certificates, and delete everything else about their records.

    A service that `remembers` keeps the masked openings, to hand them out again.
    """
    if not issued:
        return
    pseudonyms = [{"at_pseudonym": pseudonym} for pseudonym in issued]
    for table in (tables.encrypted_records, tables.queue):
        connection.execute(table.delete().where(table.c.pseudonym == _AT), pseudonyms)
    connection.execute(_END_RECORD, pseudonyms)
    if not remembers:
        connection.execute(_ERASE_OPENINGS, pseudonyms)
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


def records_of(connection: Connection, subject: str) -> list[str]:
    """The pseudonyms of a person's records, deleted ones included."""
    columns = tables.records.c
    pseudonyms = connection.execute(
        sa.select(columns.pseudonym)
        .where(columns.subject == subject)
        .order_by(columns.pseudonym)
    )
    return list(pseudonyms.scalars())


def certificates(connection: Connection) -> list[Certificate]:
    """Every certificate, in the order of the journal."""
    bodies = connection.execute(sa.select(tables.certificates.c.body)).scalars()
    issued = [Certificate.from_json(body) for body in bodies]
    return sorted(issued, key=lambda c: 0 if c.tip is None else c.tip.sequence)


def with_openings(
    connection: Connection,
    pseudonyms: Pseudonyms,
    certificates: Mapping[str, Certificate],
) -> dict[str, Certificate]:
    """Certificates by pseudonym, with their openings where these are still there."""
    subjects = {pseudonym: c.subject for pseudonym, c in certificates.items()}
    stored = openings(connection, pseudonyms, subjects, subjects)
    return {
        pseudonym: replace(certificate, opening=stored.get(pseudonym))
        for pseudonym, certificate in certificates.items()
    }


def openings(
    connection: Connection,
    pseudonyms: Pseudonyms,
    records: Iterable[str],
    subjects: Mapping[str, str] | None = None,
) -> dict[str, Opening]:
    """The openings that are there, by pseudonym.

    Those of persons where these are the `subjects`: a record that is learned again may
    be another person's by then.
    """
    found, wanted, columns = {}, list(records), tables.records.c
    for at in range(0, len(wanted), _MOST_VARIABLES):
        statement = sa.select(
            columns.pseudonym, columns.subject, columns.opening, columns.subject_opening
        ).where(columns.pseudonym.in_(wanted[at : at + _MOST_VARIABLES]))
        for pseudonym, subject, opening, of_subject in connection.execute(statement):
            if opening is None:
                continue
            owner = None
            if of_subject and (subjects or {}).get(pseudonym, subject) == subject:
                owner = pseudonyms.masked(of_subject, subject)
            own = pseudonyms.masked(opening, pseudonym)
            found[pseudonym] = Opening(own, owner)
    return found


def live(connection: Connection) -> list[NewRecord]:
    """The live records, as they are named."""
    columns = tables.records.c
    statement = sa.select(
        columns.pseudonym,
        columns.generation,
        columns.subject,
        columns.name,
        columns.subject_name,
        columns.opening,
        columns.subject_opening,
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
