"""Evidence files: journal and certificates of a service, for whoever has to check them.

An evidence file is one SQLite file with the terms of the service, every row of its
journal, its certificates, and copies of the service's own ledgers. It has no state of
the model (noisy or secret), no record, no key, no salt, no name of an id and no
opening. The pseudonyms in it are commitments whose openings are not in it
(`commitments`): nobody can try ids against them. The seals in the journal are under
keys that are not in it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur import __version__
from demur.durable import database_files, sqlite
from demur.durable.clock import now
from demur.ledger import Tip
from demur.unlearning.errors import ServiceDamaged, ServiceMismatch
from demur.unlearning.records import tables
from demur.unlearning.records.read_errors import readable

_PART = 2000  # rows in one statement
_TABLE = "demur_unlearning_evidence"
_NOUN = "deletion service, and no evidence of one"

metadata = sa.MetaData()
header = sa.Table(
    _TABLE,
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("service_id", sa.String(32), nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("made", sa.String(40), nullable=False),
    sa.Column("library", sa.String(40), nullable=False),
)
journal = tables.journal.to_metadata(metadata)
certificates = tables.certificates.to_metadata(metadata)
ledgers = sa.Table(
    "demur_unlearning_evidence_ledgers",
    metadata,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


class EvidenceFile(tables.ServiceStore):
    """An evidence file, as a store."""

    noun = "evidence file"


def is_evidence(url: str) -> bool:
    """Whether there is an evidence file at this address; changes nothing."""
    if "://" in url and not url.startswith("sqlite:///"):
        return False
    path = sqlite.path_of(url)
    return path.is_file() and _TABLE in sqlite.tables_in(path, _NOUN)


def write(
    database: tables.ServiceStore,
    ledger_copies: Callable[[], Mapping[str, bytes]],
    place: str | os.PathLike[str],
) -> Tip:
    """Write the evidence of a service to a new file, whole or not at all; its tip.

    `ledger_copies` are ledgers as files; they are made when the journal was read.
    """
    path = Path(place).expanduser()
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}. Nothing was written.")
    if os.path.lexists(path):
        message = "a file is there already, and evidence never replaces one"
        raise FileExistsError(errno.EEXIST, message, str(path))

    def fill(target: Connection) -> None:
        metadata.create_all(target, checkfirst=True)
        with database.read() as source:
            _copy(source, target)
        copies = ledger_copies()
        if copies:
            rows = [{"name": name, "body": body} for name, body in copies.items()]
            target.execute(ledgers.insert(), rows)

    database_files.make_whole(path, EvidenceFile, fill, mode=0o600)
    return tip_of(path)


def _copy(source: Connection, target: Connection) -> None:
    service: Any = source.execute(sa.select(tables.service)).one()
    target.execute(
        header.insert().values(
            id=1,
            schema_version=service.schema_version,
            service_id=service.service_id,
            terms=service.terms,
            sequence=service.sequence,
            hash=service.hash,
            made=now(),
            library=__version__,
        )
    )
    for table, order in (
        (tables.journal, tables.journal.c.sequence),
        (tables.certificates, tables.certificates.c.pseudonym),
    ):
        statement = sa.select(table).order_by(order)
        with source.execute(statement.execution_options(yield_per=_PART)) as result:
            for part in result.mappings().partitions(_PART):
                target.execute(table.insert(), [dict(row) for row in part])


def tip_of(path: Path) -> Tip:
    """Where the journal in an evidence file ends."""
    store = EvidenceFile(str(path), read_only=True)
    try:
        row = read_header(store)
    finally:
        store.close()
    return Tip(int(row.sequence), row.hash)


def read_header(store: EvidenceFile) -> Any:
    """The first table's row: service, terms, and where the journal ends."""
    assert store.path is not None
    lacks = set(metadata.tables) - set(sqlite.tables_in(store.path, _NOUN))
    if lacks:
        raise ServiceDamaged(
            f"this evidence file lacks the table {min(lacks)}: it was edited, or is not"
            " whole. Ask for another copy."
        )
    with store.read() as connection:
        rows = connection.execute(sa.select(header)).all()
    if len(rows) != 1:
        raise ServiceDamaged("this evidence file does not say what it is about")
    if rows[0].schema_version != tables.SCHEMA_VERSION:
        raise ServiceMismatch(
            f"this evidence is of a service with schema {rows[0].schema_version}; this"
            f" version of demur reads {tables.SCHEMA_VERSION}. Verify it with the"
            f" version that made it ({str(rows[0].library):.20})."
        )
    return rows[0]


def extract_ledgers(store: EvidenceFile, folder: Path) -> list[Path]:
    """The ledgers in an evidence file, as files in a folder of the reader's."""
    with store.read() as connection:
        bodies = connection.execute(sa.select(ledgers.c.body).order_by(ledgers.c.name))
        with readable():
            contents = [bytes(memoryview(body)) for body in bodies.scalars()]
    places = [folder / f"ledger-{number}" for number in range(1, len(contents) + 1)]
    for place, content in zip(places, contents, strict=True):
        place.write_bytes(content)
    return places
