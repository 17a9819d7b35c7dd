"""The OpenAPI document of the API, made from the route table."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from demur import __version__

_FIELDS: dict[str, dict[str, str]] = {
    "charge": {
        "declaration": "object", "label": "string", "count": "integer", "id": "string",
        "key": "string", "noise": "string", "input": "string",
        "idempotency_key": "string", "block_delta": "number", "purpose": "string",
        "knows": "string",
    },
    "commit": {"entry": "string", "artefact": "string", "knows": "string"},
    "draw": {"entry": "string", "count": "integer", "token": "string",
             "knows": "string"},
    "note": {"entry": "string", "about": "string", "facts": "object",
             "token": "string", "knows": "string"},
    "decide": {"number": "integer", "approved": "boolean", "reason": "string",
               "knows": "string"},
    "contains": {"tip": "string"},
    "rows": {"after": "integer", "most": "integer"},
    "profile": {"event": "string"},
    "find": {"key": "string", "settled": "boolean"},
    "charged": {"entry": "string"},
    "declaration": {"digest": "string"},
    "drawn": {"entry": "string"},
    "reading": {"unit": "object", "delta": "number"},
    "verify": {"tip": "string", "signer": "string"},
}  # fmt: skip
_NEEDED = {
    "charge": ["declaration", "label"], "commit": ["entry"], "draw": ["entry", "count"],
    "note": ["entry", "about", "facts"], "decide": ["number", "approved", "reason"],
    "contains": ["tip"], "rows": ["after"], "profile": ["event"], "find": ["key"],
    "charged": ["entry"], "declaration": ["digest"], "drawn": ["entry"],
}  # fmt: skip


@cache
def document() -> dict[str, Any]:
    """The document; the table imports the handlers, so it is looked up here."""
    table = import_module("demur.serve.routes").ROUTES
    paths = {
        way.path: {way.method.lower(): _operation(way)}
        for way in table
        if way.path.startswith("/api/ledgers/")
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "demur serve", "version": __version__},
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}
        },
        "paths": paths,
    }


def _operation(way: Any) -> dict[str, Any]:
    name = way.path.rsplit("/", 1)[1]
    fields = {key: {"type": kind} for key, kind in _FIELDS.get(name, {}).items()}
    schema: dict[str, Any] = {"type": "object", "properties": fields}
    if name in _NEEDED:
        schema["required"] = _NEEDED[name]
    refused = {
        "400": "bad arguments; nothing was spent",
        "401": "the token is unknown, has expired or was revoked",
        "403": "the token's role may not do this",
        "404": "no such ledger, or none that the token is for",
        "409": "declined, waiting for approval, or in conflict; nothing was spent",
        "429": "too many calls; nothing was spent",
        "503": "the ledger's store does not answer; nothing was spent",
    }
    return {
        "operationId": name,
        "summary": (way.handler.__doc__ or "").strip(),
        "description": f"Needs the permission to {way.permission}.",
        "parameters": [
            {"name": "name", "in": "path", "required": True,
             "schema": {"type": "string"}},
        ],
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer, in the field `is`."}}
        | {code: {"description": words} for code, words in refused.items()},
    }  # fmt: skip
