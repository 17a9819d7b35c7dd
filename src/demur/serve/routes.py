"""The route table: every way into the service, and what it asks for.

Tests are generated from it (`tests/serve/test_roles.py`), and the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from demur.serve import api, console, evidence_pages, sign_in
from demur.serve.roles import Permission
from demur.serve.visit import Reply, Visit


class Kind(StrEnum):
    """How a route is reached."""

    OPEN = "open"  # by anybody
    API = "api"  # with a token, JSON both ways
    PAGE = "page"  # with a session, read only
    FORM = "form"  # with a session and the secret of its form


@dataclass(frozen=True)
class Way:
    """One route."""

    method: str
    path: str
    kind: Kind
    permission: Permission
    handler: Callable[[Visit], Reply]
    writes: bool = False  # to the chain: a graceful stop and `settled` wait for it


_READ, _CHARGE = Permission.READ, Permission.CHARGE
_LEDGER = "/ledgers/{name}"


def _call(
    name: str,
    handler: Callable[[Visit], Reply],
    permission: Permission = _READ,
    writes: bool = False,
) -> Way:
    path = f"/api{_LEDGER}/{name}"
    return Way("POST", path, Kind.API, permission, handler, writes)


def _page(
    path: str, handler: Callable[[Visit], Reply], permission: Permission = _READ
) -> Way:
    return Way("GET", path, Kind.PAGE, permission, handler)


def _form(
    path: str,
    handler: Callable[[Visit], Reply],
    permission: Permission,
    writes: bool = False,
) -> Way:
    return Way("POST", path, Kind.FORM, permission, handler, writes)


ROUTES: tuple[Way, ...] = (
    Way("GET", "/health", Kind.OPEN, Permission.SIGN_IN, api.health),
    Way("GET", "/api/openapi.json", Kind.OPEN, Permission.SIGN_IN, api.openapi),
    Way("GET", "/static/{file}", Kind.OPEN, Permission.SIGN_IN, sign_in.static_file),
    Way("GET", "/sign-in", Kind.OPEN, Permission.SIGN_IN, sign_in.page),
    Way("POST", "/sign-in", Kind.OPEN, Permission.SIGN_IN, sign_in.sign_in),
    _call("charge", api.charge, _CHARGE, writes=True),
    _call("commit", api.commit, _CHARGE, writes=True),
    _call("draw", api.draw, _CHARGE, writes=True),
    _call("note", api.note, _CHARGE, writes=True),
    _call("decide", api.decide, Permission.DECIDE, writes=True),
    _call("header", api.header),
    _call("contains", api.contains),
    _call("rows", api.rows),
    _call("profile", api.profile),
    _call("find", api.find),
    _call("charged", api.charged),
    _call("declaration", api.declaration),
    _call("drawn", api.drawn),
    _call("status", api.status),
    _call("reading", api.reading),
    _call("requests", api.requests),
    _call("verify", api.verify),
    _page("/", console.home),
    _page(_LEDGER, console.overview),
    _page(f"{_LEDGER}/entries", console.entries),
    _page(f"{_LEDGER}/entries/{{number:int}}", console.entry),
    _page(f"{_LEDGER}/distance", console.distance),
    _page(f"{_LEDGER}/distance.json", console.distance_data),
    _page(f"{_LEDGER}/requests", console.requests),
    _page(f"{_LEDGER}/deletions", console.deletions),
    _page(f"{_LEDGER}/audits", console.audits),
    _page(f"{_LEDGER}/what-if", console.what_if),
    _page(f"{_LEDGER}/verify", console.verify),
    _page(f"{_LEDGER}/report", evidence_pages.report),
    _page(f"{_LEDGER}/export.json", evidence_pages.export),
    _page(f"{_LEDGER}/tip.txt", evidence_pages.tip),
    _page(f"{_LEDGER}/evidence.zip", evidence_pages.evidence, Permission.AUDIT),
    _page(f"{_LEDGER}/backup.db", evidence_pages.backup, Permission.AUDIT),
    _page("/access", sign_in.access, Permission.ADMINISTER),
    _form(
        f"{_LEDGER}/requests/{{number:int}}",
        console.decide,
        Permission.DECIDE,
        writes=True,
    ),
    _form("/access/tokens", sign_in.create, Permission.ADMINISTER),
    _form("/access/tokens/{token:int}", sign_in.revoke, Permission.ADMINISTER),
    _form("/sign-out", sign_in.sign_out, Permission.READ),
)
