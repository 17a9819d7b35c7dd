"""Who may come in: tokens and sessions, hashed at rest, in a file of their own.

A token is 256 random bits, so that its SHA-256 says nothing of it and needs no salt.
It is shown once, when it is made. It has a name, which entries and decisions carry, a
role, the ledgers it is for, and an end. A session is what a browser gets for a token:
another random secret, hashed as well, which ends with its token or before.

The file is the owner's alone. Whoever reads it learns who may do what, and no token;
whoever writes it can let anybody in.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demur.core import validate
from demur.core.errors import DemurError
from demur.durable import private_files
from demur.serve.roles import Role

PREFIX = "demur_"
EVERY = "*"
_DAY = 86_400.0
_LONGEST = 3660  # days of a token
_TABLES = """
CREATE TABLE IF NOT EXISTS tokens (
  id INTEGER PRIMARY KEY, hash TEXT UNIQUE NOT NULL, name TEXT NOT NULL,
  role TEXT NOT NULL, ledgers TEXT NOT NULL, made REAL NOT NULL, ends REAL NOT NULL,
  revoked REAL);
CREATE TABLE IF NOT EXISTS sessions (
  hash TEXT PRIMARY KEY, token INTEGER NOT NULL REFERENCES tokens(id),
  csrf TEXT NOT NULL, ends REAL NOT NULL);
"""


@dataclass(frozen=True)
class Grant:
    """What a token allows: to whom, as what, for which ledgers, until when."""

    id: int
    name: str
    role: Role
    ledgers: tuple[str, ...]
    made: float
    ends: float
    revoked: bool = False

    def covers(self, ledger: str) -> bool:
        """Whether it is for this ledger."""
        return EVERY in self.ledgers or ledger in self.ledgers

    def covers_all(self, ledgers: Iterable[str]) -> bool:
        """Whether it is for each of these; "*" is all ledgers, also later ones."""
        return EVERY in self.ledgers or set(ledgers) <= set(self.ledgers)

    @property
    def ended(self) -> bool:
        """Whether its time is over."""
        return self.ends <= time.time()


@dataclass(frozen=True)
class BrowserSession:
    """A browser that is signed in, and the secret that its forms must repeat."""

    grant: Grant
    csrf: str
    hash: str


class AccessStore:
    """Tokens and sessions in one private file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        private_files.make_folder(path.parent)
        if not path.exists():
            private_files.write_new(path, b"")
        private_files.check_file(path)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, timeout=30)
        weakref.finalize(self, self._connection.close)
        with self._lock, self._connection:
            self._connection.executescript(_TABLES)

    def create(
        self,
        name: str,
        role: Role | str,
        *,
        ledgers: Iterable[str] = (EVERY,),
        days: float = 90.0,
    ) -> tuple[str, Grant]:
        """A new token, which is told once, and what it allows."""
        validate.name(name=name)
        validate.positive(days=days)
        if days > _LONGEST:
            raise ValueError(f"days must be at most {_LONGEST}; got {days:g}")
        role = validate.choice(Role, role=role)
        named = tuple(ledgers)
        for ledger in named:
            validate.name(ledgers=ledger)
        if not named:
            raise ValueError("ledgers must name at least one, or '*' for all")
        token = PREFIX + secrets.token_urlsafe(32)
        now = time.time()
        values = (_hash(token), name, role.value, json.dumps(named), now)
        with self._lock, self._connection:
            taken = self._connection.execute(
                "SELECT role FROM tokens WHERE name = ? AND revoked IS NULL"
                " AND ends > ? AND role != ?",
                (name, now, role.value),
            ).fetchone()
            if taken is not None:
                raise DemurError(
                    f"{name!r} has a token as {taken[0]} already: one name has one"
                    " role, so that nobody decides on their own requests. Nothing was"
                    " made."
                )
            made = self._connection.execute(
                "INSERT INTO tokens (hash, name, role, ledgers, made, ends)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (*values, now + days * _DAY),
            )
        number = made.lastrowid or 0
        return token, Grant(number, name, role, named, now, now + days * _DAY)

    def grants(self) -> list[Grant]:
        """Every token that was ever made, without its secret."""
        with self._lock:
            found = self._connection.execute(
                "SELECT id, name, role, ledgers, made, ends, revoked FROM tokens"
                " ORDER BY id"
            ).fetchall()
        return [_grant(row) for row in found]

    def revoke(self, number: int) -> bool:
        """End a token and its sessions now; whether there was one to end."""
        if not 0 < number < 2**63:
            return False
        with self._lock, self._connection:
            ended = self._connection.execute(
                "UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL",
                (time.time(), number),
            )
            self._connection.execute("DELETE FROM sessions WHERE token = ?", (number,))
        return ended.rowcount == 1

    def find(self, token: str) -> Grant | None:
        """What a token allows now; None for one that is unknown, ended or revoked."""
        return self._living("tokens.hash = ?", _hash(token))

    def named(self, name: str) -> Grant | None:
        """What somebody may do whom a reverse proxy has signed in."""
        return self._living("tokens.name = ?", name)

    def _living(self, where: str, value: str) -> Grant | None:
        with self._lock:
            row = self._connection.execute(
                "SELECT id, name, role, ledgers, made, ends, revoked FROM tokens"
                f" WHERE {where} AND revoked IS NULL AND ends > ? ORDER BY id DESC",
                (value, time.time()),
            ).fetchone()
        return None if row is None else _grant(row)

    def sign_in(self, grant: Grant, hours: float) -> str:
        """A session for a browser; the secret of its cookie."""
        secret, now = secrets.token_urlsafe(32), time.time()
        ends = min(grant.ends, now + hours * 3600)
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM sessions WHERE ends < ?", (now,))
            self._connection.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?)",
                (_hash(secret), grant.id, secrets.token_urlsafe(32), ends),
            )
        return secret

    def session(self, secret: str) -> BrowserSession | None:
        """The session of a cookie, if it and its token are alive."""
        with self._lock:
            row = self._connection.execute(
                "SELECT tokens.id, name, role, ledgers, made, tokens.ends, revoked,"
                " csrf, sessions.hash FROM sessions JOIN tokens ON tokens.id = token"
                " WHERE sessions.hash = ? AND revoked IS NULL AND tokens.ends > ?"
                " AND sessions.ends > ?",
                (_hash(secret), time.time(), time.time()),
            ).fetchone()
        return None if row is None else BrowserSession(_grant(row[:7]), row[7], row[8])

    def sign_out(self, session: BrowserSession) -> None:
        """End a session."""
        with self._lock, self._connection:
            self._connection.execute(
                "DELETE FROM sessions WHERE hash = ?", (session.hash,)
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> AccessStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _grant(row: Any) -> Grant:
    number, name, role, ledgers, made, ends, revoked = row
    return Grant(
        number, name, Role(role), tuple(json.loads(ledgers)), made, ends, bool(revoked)
    )
