"""The gate: what is checked of a request before any handler sees it.

- A token in an address is refused, since addresses end in logs and histories.
- An API call needs `Authorization: Bearer`; cookies do not count there, so that no
  other site can make a browser call the API.
- A page needs the cookie of a session. A form also needs the secret of that session
  in its field `csrf`, and a browser that says where it comes from must come from here.
- A name in a proxy's header counts only if a header is configured, and from the
  proxy's own address.
"""

from __future__ import annotations

import hmac
import re
from urllib.parse import unquote, urlsplit

from starlette.requests import Request

from demur.core.errors import AccessRefused
from demur.serve.access import PREFIX, BrowserSession, Grant
from demur.serve.limits import PerMinute
from demur.serve.roles import Permission
from demur.serve.settings import Settings
from demur.serve.visit import House

COOKIE, SECURE_COOKIE = "demur_session", "__Host-demur_session"
_IN_URL = ("token", "access_token", "authorization")
# A whole token. A ledger may well be called demur_visits.
_A_TOKEN = re.compile(rf"(?<![\w-]){PREFIX}[\w-]{{43}}(?![\w-])", re.ASCII)


class Refused(AccessRefused):
    """A refusal with its status; a caller gets its answer, never this class."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def cookie_name(settings: Settings) -> str:
    """The cookie's name; over TLS one that no other host or path can set."""
    return SECURE_COOKIE if settings.secure else COOKIE


class Gate:
    """Decides who a request is from."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._failures = PerMinute(house.settings.failures)
        self._told = PerMinute(1)
        self._calls = PerMinute(house.settings.calls_a_minute)

    def check_address(self, request: Request) -> None:
        """Refuse a token in the address, and a host that is not ours."""
        keys = {key.lower() for key in request.query_params}
        whole = unquote(f"{request.url.path}?{request.url.query}")
        if keys.intersection(_IN_URL) or _A_TOKEN.search(whole):
            raise Refused(
                400,
                "a token must not be in an address, which ends in logs. Send it as"
                " Authorization: Bearer, and revoke this one. Nothing was spent.",
            )
        hosts = self._house.settings.hosts
        if hosts and (request.url.hostname or "") not in hosts:
            raise Refused(400, "this service does not answer to that host name")

    def bearer(self, request: Request) -> Grant:
        """Whose token an API call carries."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refused(401, "a call needs the header Authorization: Bearer TOKEN")
        return self.known(token.strip(), peer(request))

    def known(self, token: str, address: str) -> Grant:
        """What a token allows; many wrong ones from one address have to wait."""
        grant = self._house.access.find(token)
        if grant is None:
            self.failed(address, "unknown token")
            raise Refused(
                401, "this token is unknown, has expired or was revoked. Nothing was"
                " spent.",
            )  # fmt: skip
        self._count(grant)
        return grant

    def failed(self, address: str, why: str) -> None:
        """Note a failed attempt to come in; too many in a minute are refused as such.

        They are not written down then, one by one: nobody fills a disk by guessing.
        """
        if self._failures.take(address):
            self._house.log.write("refused", why=why, peer=address)
            return
        if self._told.take(address):
            self._house.log.write("refused", why="too many attempts", peer=address)
        raise Refused(429, "too many wrong tokens from this address: wait a minute")

    def _count(self, grant: Grant) -> None:
        if not self._calls.take(f"token {grant.id}"):
            raise Refused(429, "too many calls with this token: wait a minute")

    def session(self, request: Request) -> BrowserSession | None:
        """The session of a browser, if it has one."""
        secret = request.cookies.get(cookie_name(self._house.settings))
        session = None if not secret else self._house.access.session(secret)
        if session is not None:
            self._count(session.grant)
        return session

    def check_form(
        self, request: Request, session: BrowserSession, csrf: object
    ) -> None:
        """Refuse a form that another site may have sent."""
        self.check_origin(request)
        given = csrf if isinstance(csrf, str) else ""
        if not hmac.compare_digest(given.encode(), session.csrf.encode()):
            raise Refused(403, "this form is out of date: load the page again")

    def check_origin(self, request: Request) -> None:
        """Refuse what a browser says comes from another site."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin = request.headers.get("origin")
        ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
        if site not in ("same-origin", "none") or not ours:
            raise Refused(403, "this form was sent from another site")

    def proxied(self, request: Request) -> str | None:
        """Whom a reverse proxy has signed in."""
        settings = self._house.settings
        if not settings.proxy_header or peer(request) not in settings.proxies:
            return None
        names = request.headers.getlist(settings.proxy_header)
        if len(names) > 1:  # one of them is not the proxy's
            raise Refused(400, "the header of the proxy came twice. Nothing was done.")
        return names[0] or None if names else None

    def check_role(
        self, grant: Grant, permission: Permission, ledger: str | None, address: str
    ) -> None:
        """Refuse what a token is not for."""
        if ledger is not None and not grant.covers(ledger):
            self._refuse(grant, "ledger", address)
            raise Refused(404, "there is no such ledger here. Nothing was spent.")
        if not grant.role.may(permission):
            self._refuse(grant, str(permission), address)
            raise Refused(
                403,
                f"a token of the role {grant.role} may not {permission}. Nothing was"
                " spent.",
            )

    def _refuse(self, grant: Grant, why: str, address: str) -> None:
        self._house.log.write("refused", why=why, name=grant.name, peer=address)


def peer(request: Request) -> str:
    """The address that a request comes from."""
    return request.client.host if request.client else "unknown"
