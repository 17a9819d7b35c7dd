"""The database tables of a ledger."""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

SCHEMA_VERSION = 5
# A ledger whose charges may need approval: a demur that knows nothing of that must not
# open it, and charge past it. The tables are the same.
APPROVALS_VERSION = 6
KNOWN_VERSIONS = frozenset({SCHEMA_VERSION, APPROVALS_VERSION})

metadata = sa.MetaData()
# What moves with every row comes first and together: it lies on one page of a file, so
# that a copy taken in the middle of a write has all of it or none. What one row adds to
# the other tables is compared with it when a ledger is opened.
ledger = sa.Table(
    "demur_ledger",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("ledger_id", sa.String(64), nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("totals", sa.Text, nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
)
declarations = sa.Table(
    "demur_declarations",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)
profiles = sa.Table(
    "demur_profiles",
    metadata,
    sa.Column("event", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("event_body", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
rows = sa.Table(
    "demur_rows",
    metadata,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("entry_id", sa.String(64), nullable=False, index=True),
    sa.Column("idempotency_key", sa.String(200), unique=True),
    sa.Column("declaration", sa.String(64), index=True),
    sa.Column("count", sa.BigInteger),
    sa.Column("noise", sa.String(16)),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("signature", sa.String(128)),
)


@lru_cache(maxsize=4)
def statements(dialect: Dialect) -> tuple[str, ...]:
    """The statements that create what is not there."""
    missing: list[ExecutableDDLElement] = []
    for table in metadata.sorted_tables:
        missing.append(CreateTable(table, if_not_exists=True))
        missing += [CreateIndex(i, if_not_exists=True) for i in table.indexes]
    return tuple(str(element.compile(dialect=dialect)) for element in missing)
