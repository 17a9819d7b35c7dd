"""The application: the route table behind its gate, on Starlette.

A handler is an ordinary function and runs in a thread. The event loop reads the body,
within a size and a time, and decides who asks; it never waits for a ledger.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from demur.core.errors import (
    AccessRefused,
    DemurError,
    LedgerMissing,
    LedgerUnreachable,
    OutcomeUnknown,
)
from demur.ledger import error_data
from demur.serve.access import AccessStore
from demur.serve.gate import Gate, Refused, cookie_name, peer
from demur.serve.ledgers import ServedLedgers
from demur.serve.logs import AccessLog, log_defect, log_request
from demur.serve.rendering import Templates
from demur.serve.routes import ROUTES, Kind, Way
from demur.serve.settings import Settings
from demur.serve.visit import House, Reply, Visit, json_reply, moved

_THREADS = 16  # for writes, and as many for reads: slow pages hold no charge up
_POLICY = (
    "default-src 'none'; style-src 'self'; style-src-attr 'unsafe-inline';"
    " script-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_UNREAD = (408, 413)  # the rest of the body is not waited for


def create_app(
    ledgers: ServedLedgers,
    access: AccessStore,
    *,
    settings: Settings | None = None,
    log: AccessLog | None = None,
    services: Mapping[str, tuple[str, ...]] | None = None,
) -> Starlette:
    """The service as an ASGI application, for uvicorn or any other server.

    `services` are addresses of deletion services, by the ledger whose page shows them.
    """
    for name in services or {}:
        ledgers.calls(name)  # or there is no such ledger
    house = House(
        ledgers,
        access,
        settings or Settings(),
        log or AccessLog(None),
        Templates(),
        services or {},
    )
    door = Door(house)
    app = Starlette(
        routes=[
            Route(way.path, door.endpoint(way), methods=[way.method]) for way in ROUTES
        ],
        exception_handlers={HTTPException: door.no_route},
    )
    app.state.house, app.state.door = house, door
    return app


class Door:
    """Lets requests in, and sends the answers out."""

    def __init__(self, house: House) -> None:
        self._house, self._gate = house, Gate(house)
        self._writers = ThreadPoolExecutor(_THREADS, "demur-writes")
        self._readers = ThreadPoolExecutor(_THREADS, "demur-reads")
        self._writing: dict[str, set[asyncio.Future[Any]]] = {}

    def close(self) -> None:
        """Wait for what is under way."""
        self._writers.shutdown(wait=True)
        self._readers.shutdown(wait=True)

    def endpoint(self, way: Way) -> Callable[[Request], Awaitable[Response]]:
        """What Starlette calls for a route."""

        async def serve(request: Request) -> Response:
            begin, name = time.monotonic(), None
            try:
                answer, name = await self._admitted(way, request)
            except ClientDisconnect:
                answer = Reply("", status=400)
            except Exception as error:
                answer = self._refusal(way, error)
            log_request(
                route=way.path,
                ledger=request.path_params.get("name"),
                who=name,
                status=answer.status,
                milliseconds=round(1000 * (time.monotonic() - begin), 1),
            )
            return self._response(answer)

        return serve

    async def no_route(self, request: Request, error: Exception) -> Response:
        """An address that there is not."""
        assert isinstance(error, HTTPException)
        status, words = error.status_code, "there is nothing at this address."
        if request.url.path.startswith("/api/"):
            told = {"kind": "LedgerMissing", "message": words}
            return self._response(json_reply({"error": told}, status))
        return self._response(self._page(status, words))

    async def _admitted(self, way: Way, request: Request) -> tuple[Reply, str | None]:
        """The answer, and whose request it was, once the gate has let it in."""
        gate, settings = self._gate, self._house.settings
        gate.check_address(request)
        body = await asyncio.wait_for(
            _body(request, settings.largest_body), settings.slowest_body
        )
        grant = session = None
        data: dict[str, Any] = {}
        if way.kind is Kind.API:
            grant = gate.bearer(request)
            data = _json(body)
        else:
            session = gate.session(request)
            grant = None if session is None else session.grant
        if way.kind in (Kind.PAGE, Kind.FORM) and session is None:
            if way.kind is Kind.PAGE:
                return moved("/sign-in"), None
            raise Refused(401, "sign in first. Nothing was done.")
        if way.method == "POST" and way.kind is not Kind.API:
            data = _form(body)
        if way.kind is Kind.FORM:
            assert session is not None
            gate.check_form(request, session, data.pop("csrf", None))
        elif way.kind is Kind.OPEN and way.method == "POST":
            gate.check_origin(request)
        if grant is not None and way.kind is not Kind.OPEN:
            ledger = request.path_params.get("name")
            gate.check_role(grant, way.permission, ledger, peer(request))
        visit = Visit(
            self._house,
            grant,
            session,
            request.path_params,
            dict(request.query_params),
            data,
            peer(request),
            gate.proxied(request),
            gate.known,
            gate.failed,
        )
        answer = await self._run(way, visit)
        return answer, None if grant is None else grant.name

    async def _run(self, way: Way, visit: Visit) -> Reply:
        """Run a handler in a thread.

        A settled look waits for all writes to its ledger that came before it: one that
        a client has lost may still be on its way through here.
        """
        loop, name = asyncio.get_running_loop(), str(visit.path.get("name"))
        if visit.data.get("settled") is True:
            waiting = set(self._writing.get(name, ()))
            if waiting:
                await asyncio.wait(waiting)
        if not way.writes:
            return await loop.run_in_executor(self._readers, way.handler, visit)
        work = loop.run_in_executor(self._writers, way.handler, visit)
        writing = self._writing.setdefault(name, set())
        writing.add(work)
        work.add_done_callback(writing.discard)
        # What was begun is carried through, also for a client that went away.
        return await asyncio.shield(work)

    def _refusal(self, way: Way, error: Exception) -> Reply:
        status, told = _told(error)
        if way.kind is Kind.API or way.path == "/health":
            return json_reply({"error": told}, status)
        return self._page(status, told["message"])

    def _page(self, status: int, message: str) -> Reply:
        facts = {"status": status, "message": message}
        return Reply(self._house.templates.render("error.html", **facts), status=status)

    def _response(self, answer: Reply) -> Response:
        response = Response(answer.content, answer.status, media_type=answer.kind)
        response.headers.update(_HEADERS | dict(answer.headers))
        if answer.status in _UNREAD:
            response.headers["Connection"] = "close"
        settings = self._house.settings
        if settings.secure:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        if answer.cookie is not None:
            ends = answer.cookie == ""
            response.set_cookie(
                cookie_name(settings),
                answer.cookie,
                max_age=0 if ends else int(3600 * settings.session_hours),
                path="/",
                httponly=True,
                secure=settings.secure,
                samesite="strict",
            )
        return response


def _told(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status of an error, and what is said of it."""
    told = error_data(error)
    if isinstance(error, Refused):
        kind = "LedgerMissing" if error.status == 404 else "AccessRefused"
        return error.status, {"kind": kind, "message": str(error)}
    if isinstance(error, TimeoutError):
        words = "the request took too long to arrive. Nothing was spent."
        return 408, {"kind": "ValueError", "message": words}
    if told["kind"] == "Defect":
        log_defect(error)
        return 500, told
    if isinstance(error, AccessRefused):
        return 401, told
    if isinstance(error, LedgerMissing):
        return 404, told
    if isinstance(error, LedgerUnreachable):
        return 503, told
    if isinstance(error, OutcomeUnknown):
        return 500, told
    return (409 if isinstance(error, DemurError) else 400), told


async def _body(request: Request, largest: int) -> bytes:
    length = request.headers.get("content-length", "0")
    too_long = Refused(413, f"a request has at most {largest:,} bytes")
    if not length.isascii() or not length.isdigit() or int(length) > largest:
        raise too_long
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise too_long
    return body


def _json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body or b"{}", parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError("a call is a JSON object. Nothing was spent.") from error
    if not isinstance(data, dict):
        raise ValueError("a call is a JSON object. Nothing was spent.")
    return data


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _form(body: bytes) -> dict[str, Any]:
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body),
            max_num_fields=50, errors="strict",
        )  # fmt: skip
    except ValueError as error:
        raise ValueError("this is no form") from error
    return dict(fields)
