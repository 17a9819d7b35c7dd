"""Pages of a ledger for those who mirror it: what some rows name, as it is stored."""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from demur.ledger.storage import tables
from demur.ledger.storage.rows import Body


def declarations_named(connection: Connection, names: set[str]) -> dict[str, str]:
    """Some of the stored declarations, as they are."""
    stored = tables.declarations
    found = connection.execute(sa.select(stored).where(stored.c.digest.in_(names)))
    return {row.digest: row.body for row in found}


def profiles_named(text: str) -> set[str]:
    """The events whose profiles a charge rests on."""
    return set(json.loads(text)["profiles"])


def stored_profile(connection: Connection, event: str) -> Body | None:
    """One stored profile, as it is."""
    stored = tables.profiles
    found = connection.execute(sa.select(stored).where(stored.c.event == event))
    row = found.mappings().first()
    return None if row is None else dict(row)
