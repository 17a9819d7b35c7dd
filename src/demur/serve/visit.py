"""One request to the service, as its handler sees it, and what it may answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demur.core.errors import AccessRefused
from demur.ledger import Ledger, LedgerCalls
from demur.serve.access import AccessStore, BrowserSession, Grant
from demur.serve.ledgers import ServedLedgers
from demur.serve.logs import AccessLog
from demur.serve.settings import Settings

if TYPE_CHECKING:
    from demur.serve.rendering import Templates


@dataclass(frozen=True)
class House:
    """What all requests share."""

    ledgers: ServedLedgers
    access: AccessStore
    settings: Settings
    log: AccessLog
    templates: Templates
    services: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Visit:
    """Who asks for what."""

    house: House
    grant: Grant | None
    session: BrowserSession | None
    path: Mapping[str, Any]
    query: Mapping[str, str]
    data: Mapping[str, Any]  # of a form, or of a call
    peer: str
    proxied: str | None = None  # whom a reverse proxy has signed in
    known: Callable[[str, str], Grant] | None = None  # looks a token up at the gate
    failed: Callable[[str, str], None] | None = None  # counts an attempt that failed

    @property
    def who(self) -> Grant:
        """Whose token it is; routes that need one are not reached without."""
        if self.grant is None:
            raise AccessRefused("sign in first. Nothing was spent.")
        return self.grant

    @property
    def calls(self) -> LedgerCalls:
        """The ledger that the path names."""
        return self.house.ledgers.calls(self.path["name"])

    @property
    def ledger(self) -> Ledger:
        """The ledger itself."""
        return self.calls.ledger


@dataclass(frozen=True)
class Reply:
    """What goes back: a text or bytes, their type, and a few headers."""

    content: str | bytes
    kind: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cookie: str | None = None  # the secret of a new session; "" ends it


def json_reply(data: Any, status: int = 200) -> Reply:
    """Data as JSON."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Reply(text, "application/json", status)


def moved(place: str, **more: Any) -> Reply:
    """The page to look at after a form, relative to the service."""
    return Reply("", status=303, headers={"Location": place}, **more)


def download(content: str | bytes, kind: str, name: str) -> Reply:
    """A file to be kept."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Reply(content, kind, headers=headers)
