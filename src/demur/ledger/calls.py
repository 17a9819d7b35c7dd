"""Calls of a served ledger: what a service does for clients that draw noise elsewhere.

`LedgerCalls` takes plain data and gives plain data; what is between it and a client
(HTTP, tokens, roles) is the service's (`demur.serve`). Every field of a charge is
checked here as strictly as the ledger writes it. Its price follows from its
declaration, its actor from the token; what a client says of either is not asked for.
"""

from __future__ import annotations

import base64
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, TypeVar

from demur.core import validate
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_text
from demur.core.errors import DemurError, NotPrivate
from demur.durable.chain import Tip, canonical
from demur.ledger.journal import Journal
from demur.ledger.ledger import Ledger
from demur.ledger.remote.wire import header_data
from demur.ledger.reservation import LARGEST
from demur.ledger.storage import pages, rows, tables
from demur.ledger.storage.acknowledged import Acknowledged, lost
from demur.ledger.storage.header import Header
from demur.ledger.storage.receipts import Receipt
from demur.ledger.storage.writing import Writing

_T = TypeVar("_T")
_ID, _DIGEST = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{64}")
_MOST_ROWS = 2000
_COLUMNS = tuple(tables.rows.c)
_CHARGE = {
    "declaration", "label", "count", "id", "key", "noise", "input", "idempotency_key",
    "block_delta", "purpose", "knows",
}  # fmt: skip


class _Listener(Acknowledged):
    """Hears the receipts of one call, and knows what its client was shown."""

    def __init__(self, own: Acknowledged, knows: Tip | None) -> None:
        self._own, self._knows = own, knows
        self.receipts: list[Receipt] = []

    def check(self, writing: Writing) -> None:
        """Refuse a ledger that lacks a row which it acknowledged to this client."""
        self._own.check(writing)
        tip = self._knows
        if tip is not None and not rows.contains(writing.connection, tip):
            raise lost(tip)

    def keep(self, receipts: Any) -> None:
        """Keep receipts on both sides."""
        self.receipts = list(receipts)
        self._own.keep(self.receipts)


class _ServedJournal(Journal):
    """The ledger's journal, one writer of this process at a time.

    On a file they would wait for each other by looking again and again. A client whose
    answer was lost repeats its call, and gets the receipts that it has missed.
    """

    repeats = True

    def __init__(
        self,
        ledger: Ledger,
        heard: _Listener,
        turn: AbstractContextManager[Any],
    ) -> None:
        super().__init__(ledger._store, ledger.terms, ledger.id, ledger._signer, heard)
        self._turn = turn

    def persist(
        self, work: Callable[[Writing], _T], *, whatever_was_lost: bool = False
    ) -> _T:
        """Wait for one's turn, then write."""
        with self._turn:
            return super().persist(work, whatever_was_lost=whatever_was_lost)


class LedgerCalls:
    """The calls of one ledger; any number of threads may make them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        file = ledger._store.is_sqlite
        self._turn: AbstractContextManager[Any] = (
            threading.Lock() if file else nullcontext()
        )

    # -- writing ----------------------------------------------------------------------

    def charge(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """Pay for a charge; repeated with the same id or key it is found."""
        _fields(data, needed={"declaration", "label"}, known=_CHARGE)
        declaration = Declaration.from_json(data["declaration"])
        text = canonical(declaration.to_json())
        purpose = data.get("purpose", "")
        if purpose:
            validate.text(purpose=purpose)
        body = self._body(actor, data, text)
        if not isinstance(purpose, str):
            raise TypeError("purpose must be a string")
        journal, heard = self._journal(data)
        row = journal.charge(body, text, declaration, purpose=purpose, again=True)
        return _written(list(row), heard)

    def _body(self, actor: str, data: dict[str, Any], text: str) -> rows.Body:
        """The row of a charge as far as its client decides on it."""
        ledger = self.ledger
        validate.name(label=data["label"])
        count, noise = data.get("count", 1), data.get("noise", "os")
        validate.count(count=count)
        if count > LARGEST:
            raise ValueError(f"count must be at most 2^40; got {count}")
        if noise not in ("os", "seeded"):
            raise ValueError(f"noise must be os or seeded; got {noise!r:.40}")
        if noise == "seeded" and not ledger.terms.testing:
            raise NotPrivate(
                "a seeded noise source is for tests, and this ledger is not. Nothing"
                " was spent."
            )
        delta = data.get("block_delta")
        if delta is not None:
            validate.probability(block_delta=delta)
        key = data.get("idempotency_key")
        if key is not None:
            validate.name(idempotency_key=key)
        # A client that draws no noise of ours has no key: nobody can draw for it.
        unknown = digest_of_text(secrets.token_bytes(32))
        body: rows.Body = {
            "kind": "charge",
            "id": _hex(data.get("id", secrets.token_hex(16)), "id", _ID),
            "key": _hex(data.get("key", unknown), "key", _DIGEST),
            "label": data["label"],
            "declaration": digest_of_text(text),
            "count": int(count),
            "noise": noise,
            "input": data.get("input") and _hex(data["input"], "input", _DIGEST),
            "idempotency_key": key,
            "block_delta": None if delta is None else float(delta),
            "actor": actor,
        }
        if ledger._unsafe:
            body["unsafe"] = list(ledger._unsafe)
        return body

    def commit(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """Bind an entry to what was released."""
        _fields(data, needed={"entry"}, known={"entry", "artefact", "knows"})
        journal, heard = self._journal(data)
        journal.commit(_entry(data), data.get("artefact"))
        return _written(None, heard)

    def draw(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """Hand out runs of a reservation; the number of the first."""
        _fields(
            data,
            needed={"entry", "count"},
            known={"entry", "count", "token", "knows"},
        )
        validate.count(count=data["count"])
        token = _hex(data.get("token", secrets.token_hex(16)), "token", _ID)
        journal, heard = self._journal(data)
        first = journal.draw(_entry(data), int(data["count"]), token, again=True)
        return _written(first, heard)

    def note(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """Add facts about an entry."""
        known = {"entry", "about", "facts", "token", "knows"}
        _fields(data, needed={"entry", "about", "facts"}, known=known)
        token = _hex(data.get("token", secrets.token_hex(16)), "token", _ID)
        journal, heard = self._journal(data)
        journal.note(
            _entry(data), data["about"], data["facts"], token, actor, again=True
        )
        return _written(None, heard)

    def decide(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """Approve or decline a request for approval."""
        needed = {"number", "approved", "reason"}
        _fields(data, needed=needed, known=needed | {"knows"})
        if not isinstance(data["approved"], bool):
            raise TypeError("approved must be true or false")
        journal, heard = self._journal(data)
        decision = journal.decide(
            data["number"], data["approved"], data["reason"], actor
        )
        return _written(asdict(decision), heard)

    def _journal(self, data: dict[str, Any]) -> tuple[Journal, _Listener]:
        self.ledger._check_writable()
        knows = data.get("knows")
        tip = None if knows is None else Tip.parse(str(knows))
        heard = _Listener(self.ledger._acknowledged, tip)
        return _ServedJournal(self.ledger, heard, self._turn), heard

    # -- reading ----------------------------------------------------------------------

    def header(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """The header of the ledger, and whose token the client has."""
        return {"header": header_data(self.ledger._store.header()), "actor": actor}

    def contains(self, actor: str, data: dict[str, Any]) -> bool:
        """Whether a tip is in the ledger."""
        _fields(data, needed={"tip"}, known={"tip"})
        return self.ledger._store.contains(Tip.parse(str(data["tip"])))

    def rows(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """Rows as they are, after one; with the declarations that they name."""
        _fields(data, needed={"after"}, known={"after", "most"})
        after, most = data["after"], data.get("most", _MOST_ROWS)
        validate.count(most=most)
        whole = isinstance(after, int) and not isinstance(after, bool)
        if not whole or not 0 <= after < 2**62:
            raise ValueError(f"after must be a row's number, or 0; got {after!r:.40}")
        with self.ledger._store.read() as connection:
            header = Header.read(connection)
            page = rows.rows_after(connection, after or None, min(most, _MOST_ROWS))
            before = rows.hash_at(connection, after)
            named = {row.declaration for row in page if row.declaration is not None}
            texts = pages.declarations_named(connection, named)
        profiles: set[str] = set()
        for row in page:
            if row.kind == "charge":
                profiles |= pages.profiles_named(row.body)
        return {
            "header": header_data(header),
            "before": before,
            "rows": [[getattr(row, c.name) for c in _COLUMNS] for row in page],
            "declarations": texts,
            "profiles": sorted(profiles),
        }

    def profile(self, actor: str, data: dict[str, Any]) -> dict[str, Any]:
        """A stored profile, by its event."""
        _fields(data, needed={"event"}, known={"event"})
        event = _hex(data["event"], "event", _DIGEST)
        with self.ledger._store.read() as connection:
            stored = pages.stored_profile(connection, event)
        if stored is None:
            raise DemurError("there is no such profile in this ledger")
        return stored | {"body": base64.b64encode(stored["body"]).decode()}

    def find(self, actor: str, data: dict[str, Any]) -> list[Any] | None:
        """The charge under an idempotency key."""
        _fields(data, needed={"key"}, known={"key", "settled"})
        validate.name(key=data["key"])
        settled = data.get("settled") is True
        journal, _ = self._journal({}) if settled else (self.ledger._journal, None)
        row = journal.find(data["key"], settled=settled)
        return None if row is None else list(row[:2])

    def charged(self, actor: str, data: dict[str, Any]) -> list[Any]:
        """The row of a charge, and whether it is committed."""
        _fields(data, needed={"entry"}, known={"entry"})
        return list(self.ledger._journal.charged(_entry(data))[:2])

    def stored_declaration(self, actor: str, data: dict[str, Any]) -> str:
        """A declaration by its digest, as text."""
        _fields(data, needed={"digest"}, known={"digest"})
        digest = _hex(data["digest"], "digest", _DIGEST)
        with self.ledger._store.read() as connection:
            rows.declaration(connection, digest)  # or it is missing, or was edited
            return pages.declarations_named(connection, {digest})[digest]

    def drawn(self, actor: str, data: dict[str, Any]) -> int:
        """How many runs of a reservation were handed out."""
        _fields(data, needed={"entry"}, known={"entry"})
        return self.ledger._journal.drawn(_entry(data))


def _fields(data: object, *, needed: set[str], known: set[str]) -> None:
    if not isinstance(data, dict):
        raise TypeError("a call is a JSON object. Nothing was spent.")
    missing, unknown = sorted(needed - set(data)), sorted(set(data) - known)
    if missing or unknown:
        raise ValueError(
            f"a call has the fields {sorted(known)}; missing: {missing}, unknown:"
            f" {[name[:40] for name in unknown][:8]}. Nothing was spent."
        )


def _hex(value: object, name: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(
            f"{name} must be hexadecimal digits, {pattern.pattern[-3:-1]} of them; got"
            f" {validate.shorten(value)}. Nothing was spent."
        )
    return value


def _entry(data: dict[str, Any]) -> str:
    return _hex(data["entry"], "entry", _ID)


def _written(result: Any, heard: _Listener) -> dict[str, Any]:
    return {"result": result, "receipts": [r.to_json() for r in heard.receipts]}
