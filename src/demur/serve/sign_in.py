"""The way in, and who has the keys: signing in and out, tokens, files of the pages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from demur.core.errors import LedgerMissing
from demur.serve.access import EVERY
from demur.serve.gate import Refused
from demur.serve.rendering import static
from demur.serve.roles import Role
from demur.serve.visit import Reply, Visit, moved


def static_file(visit: Visit) -> Reply:
    """A style sheet or a script of the pages."""
    found = static(visit.path["file"])
    if found is None:
        raise LedgerMissing("there is nothing here")
    return Reply(found[0], found[1], headers={"Cache-Control": "max-age=3600"})


def page(visit: Visit) -> Reply:
    """The page to sign in."""
    text = visit.house.templates.render("sign_in.html", proxied=visit.proxied, wrong="")
    return Reply(text)


def sign_in(visit: Visit) -> Reply:
    """Take a token, or the word of the reverse proxy, and begin a session."""
    house = visit.house
    token = str(visit.data.get("token", "")).strip()
    if token:
        assert visit.known is not None
        try:
            grant = visit.known(token, visit.peer)
        except Refused as refused:
            text = house.templates.render(
                "sign_in.html", proxied=visit.proxied, wrong=str(refused)
            )
            return Reply(text, status=refused.status)
    else:
        named = house.access.named(visit.proxied) if visit.proxied else None
        if named is None:
            assert visit.failed is not None
            visit.failed(visit.peer, "no token")
            raise Refused(401, "a token is needed to sign in")
        grant = named
    house.log.write("signed in", name=grant.name, role=grant.role, peer=visit.peer)
    secret = house.access.sign_in(grant, house.settings.session_hours)
    return moved("/", cookie=secret)


def sign_out(visit: Visit) -> Reply:
    """End the session."""
    assert visit.session is not None
    visit.house.access.sign_out(visit.session)
    visit.house.log.write("signed out", name=visit.who.name, peer=visit.peer)
    return moved("/sign-in", cookie="")


def access(visit: Visit, told: str = "") -> Reply:
    """Tokens without their secrets, and the end of the access log."""
    grants = [
        {
            "id": grant.id,
            "name": grant.name,
            "role": grant.role.value,
            "ledgers": ", ".join(grant.ledgers),
            "ends": _day(grant.ends),
            "over": "revoked" if grant.revoked else "ended" if grant.ended else "",
        }
        for grant in visit.house.access.grants()
        if visit.who.covers_all(grant.ledgers)
    ]
    text = visit.house.templates.render(
        "access.html",
        visit=visit,
        grants=grants,
        roles=[role.value for role in Role],
        log=visit.house.log.tail(50) if EVERY in visit.who.ledgers else [],
        own=", ".join(visit.who.ledgers),
        told=told,
    )
    return Reply(text)


def create(visit: Visit) -> Reply:
    """Make a token, and show it once."""
    data = visit.data
    try:
        days = float(data.get("days", "90"))
    except ValueError:
        raise ValueError("days must be a number. Nothing was made.") from None
    named = [each.strip() for each in str(data.get("ledgers", "*")).split(",")]
    ledgers = [each for each in named if each]
    _check_scope(visit, ledgers)
    token, grant = visit.house.access.create(
        str(data.get("name", "")), str(data.get("role", "")), ledgers=ledgers, days=days
    )
    visit.house.log.write(
        "token made", name=grant.name, role=grant.role, by=visit.who.name
    )
    return access(visit, told=token)


def revoke(visit: Visit) -> Reply:
    """End a token now."""
    for grant in visit.house.access.grants():
        if grant.id == visit.path["token"]:
            _check_scope(visit, grant.ledgers)
    if visit.house.access.revoke(visit.path["token"]):
        visit.house.log.write(
            "token revoked", number=visit.path["token"], by=visit.who.name
        )
    return moved("/access")


def _check_scope(visit: Visit, ledgers: Iterable[str]) -> None:
    """Refuse tokens for ledgers that an administrator's own token is not for."""
    if not visit.who.covers_all(ledgers):
        visit.house.log.write(
            "refused", why="ledger", name=visit.who.name, peer=visit.peer
        )
        raise Refused(403, "your token is not for these ledgers. Nothing was changed.")


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")
