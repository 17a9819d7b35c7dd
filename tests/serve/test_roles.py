"""Who may do what, for every route of the table and every role; and who may not."""

import json
import time
from urllib.parse import urlencode

import pytest

from demur.serve import app as application
from demur.serve.access import AccessStore
from demur.serve.gate import Gate
from demur.serve.roles import Permission, Role
from demur.serve.routes import ROUTES, Kind
from tests.serve.kit import FORM, serving

GUARDED = [way for way in ROUTES if way.kind is not Kind.OPEN]
REFUSED = [(way, role) for way in GUARDED for role in Role
           if not role.may(way.permission)]  # fmt: skip
ALLOWED = [(way, role) for way in GUARDED for role in Role if role.may(way.permission)]
LET_IN = (200, 303, 400, 409)  # the gate let it in; the rest is the handler's


def name_of(value):
    return f"{value.method} {value.path}" if hasattr(value, "path") else value


def path_of(way, ledger="visits"):
    return (
        way.path.replace("{name}", ledger)
        .replace("{number:int}", "1")
        .replace("{token:int}", "999")
    )


def knock(served, way, role, ledger="visits", **headers):
    """Ask for a route as a role would, with everything but the right to it."""
    path = path_of(way, ledger)
    if way.kind is Kind.API:
        bearer = {"Authorization": f"Bearer {served.tokens[role]}"} | headers
        return served.ask(way.method, path, "{}", **bearer)[0]
    visitor = served.browser(role)
    if way.method == "GET":
        return visitor.get(path)[0]
    return visitor.post(path, reason="x", verdict="approve")[0]


@pytest.mark.parametrize(("way", "role"), REFUSED, ids=name_of)
def test_a_role_is_refused_what_it_may_not(shared, way, role):
    before = shared.ledger.tip(), len(shared.access.grants())
    assert knock(shared, way, role) == 403
    assert (shared.ledger.tip(), len(shared.access.grants())) == before


@pytest.mark.parametrize(("way", "role"), ALLOWED, ids=name_of)
def test_a_role_is_let_in_where_it_may(shared, way, role):
    assert knock(shared, way, role) in LET_IN


def test_the_twin_that_looks_at_no_role_lets_everybody_in(shared, monkeypatch):
    monkeypatch.setattr(Gate, "check_role", lambda *_: None)
    assert all(knock(shared, way, role) != 403 for way, role in REFUSED[::7])


@pytest.mark.parametrize("way", GUARDED, ids=name_of)
def test_nobody_comes_in_without_a_token(shared, way):
    path = path_of(way)
    status, headers, _ = shared.ask(way.method, path, "{}")
    if way.kind is Kind.PAGE:
        assert (status, headers["location"]) == (303, "/sign-in")
    else:
        assert status == 401
    # A cookie is no token for the API, and a token no cookie for a page.
    viewer = shared.browser("administrator")
    if way.kind is Kind.API:
        assert shared.ask(way.method, path, "{}", Cookie=viewer.cookie)[0] == 401
    else:
        bearer = {"Authorization": f"Bearer {shared.tokens['administrator']}"}
        assert shared.ask(way.method, path, "", **bearer)[0] in (303, 401)


@pytest.mark.parametrize("way", [w for w in GUARDED if "{name}" in w.path], ids=name_of)
def test_a_token_is_for_its_ledgers(shared, way):
    role = next(r for r in Role if r.may(way.permission))
    token, _ = shared.access.create(f"the {role.value}", role, ledgers=["others"])
    before, shared.tokens[role.value] = shared.tokens[role.value], token
    try:
        assert knock(shared, way, role.value) == 404, "as if it were not there"
    finally:
        shared.tokens[role.value] = before


@pytest.mark.parametrize("way", GUARDED, ids=name_of)
@pytest.mark.parametrize("how", ["token", "access_token", "anything"])
def test_a_token_in_an_address_is_refused(shared, way, how):
    token = shared.tokens["administrator"]
    query = urlencode({how: token})
    status, _, text = shared.ask(way.method, f"{path_of(way)}?{query}", "{}")
    assert status == 400 and token not in text


@pytest.mark.parametrize("way", [w for w in ROUTES if w.kind is Kind.FORM], ids=name_of)
@pytest.mark.parametrize("how", ["none", "wrong", "of another", "site", "origin"])
def test_another_site_cannot_send_a_form(shared, way, how):
    role = next(r for r in Role if r.may(way.permission))
    visitor, other = shared.browser(role), shared.browser(role)
    secrets = {"none": "", "wrong": "x" * 43, "of another": other.csrf}
    headers = {
        "site": {"Sec-Fetch-Site": "cross-site"},
        "origin": {"Origin": "https://evil.example"},
    }.get(how, {})
    status, _, _ = visitor.post(
        path_of(way), csrf=secrets.get(how), headers=headers, name="x", role="viewer"
    )
    assert status == 403
    assert visitor.get("/")[0] == 200, "still signed in"


def test_a_form_from_here_is_taken(shared):
    visitor = shared.browser("viewer")
    origin = {"Origin": shared.url, "Sec-Fetch-Site": "same-origin"}
    assert visitor.post("/sign-out", headers=origin)[0] == 303
    assert visitor.get("/")[0] == 303, "signed out"
    assert visitor.post("/sign-out")[0] == 401, "a session that ended is no session"


def test_no_site_can_sign_somebody_in(shared):
    body = urlencode({"token": shared.tokens["viewer"]})
    cross = FORM | {"Origin": "https://evil.example"}
    assert shared.ask("POST", "/sign-in", body, **cross)[0] == 403


def test_the_cookie_is_for_this_service_alone(shared):
    cookie = shared.browser("viewer").set_cookie.lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    assert shared.tokens["viewer"].lower() not in cookie


def test_over_tls_the_cookie_is_secure(tmp_path):
    settings = application.Settings(secure=True)
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        body = urlencode({"token": served.tokens["viewer"]})
        _, headers, _ = served.ask("POST", "/sign-in", body, **FORM)
        assert headers["set-cookie"].startswith("__Host-demur_session=")
        assert "Secure" in headers["set-cookie"]
        assert "max-age" in headers["strict-transport-security"]


# -- tokens ----------------------------------------------------------------------------


def test_an_expired_or_revoked_token_is_refused_and_so_is_its_session(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        for end in ("expire", "revoke"):
            token, grant = served.access.create("temp", "viewer", days=1)
            served.tokens["viewer"] = token
            visitor = served.browser("viewer")
            assert served.call("header", "viewer")[0] == 200
            if end == "revoke":
                assert served.access.revoke(grant.id)
                assert not served.access.revoke(grant.id)
            else:
                with served.access._connection:
                    served.access._connection.execute(
                        "UPDATE tokens SET ends = ? WHERE id = ?",
                        (time.time() - 1, grant.id),
                    )
            assert served.call("header", "viewer")[0] == 401
            assert visitor.get("/")[0] == 303


def test_tokens_and_sessions_are_hashed_at_rest(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        visitor = served.browser("officer")
        served.ask("GET", "/ledgers/visits", Cookie=visitor.cookie)
        served.call("header", "analyst")
        files = b"".join(
            path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
        )
        for token in served.tokens.values():
            assert token.encode() not in files and token[6:].encode() not in files
        assert visitor.cookie.split("=")[1].encode() not in files
        assert (served.access.path.stat().st_mode & 0o777) == 0o600


def test_one_name_has_one_role(tmp_path):
    store = AccessStore(tmp_path / "private" / "access.db")
    store.create("ada", "analyst")
    store.create("ada", "analyst")
    with pytest.raises(Exception, match="one name has one role"):
        store.create("ada", "officer")
    for wrong in (
        {"name": ""},
        {"role": "king"},
        {"days": 0},
        {"days": 1e308},
        {"ledgers": []},
    ):
        with pytest.raises((ValueError, TypeError)):
            store.create(**{"name": "x", "role": "viewer"} | wrong)
    store.close()


def test_guessing_is_slow_and_locks_nobody_out(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        guess = {"Authorization": "Bearer demur_" + "x" * 43}
        asked = [
            served.ask("POST", "/api/ledgers/visits/header", "{}", **guess)[0]
            for _ in range(14)
        ]
        assert asked[:10] == [401] * 10 and 429 in asked[10:]
        assert served.call("header", "viewer")[0] == 200
        lines = [json.loads(line) for line in served.log_path.read_text().splitlines()]
        assert 10 <= sum(line.get("why") == "unknown token" for line in lines) < 14


def test_a_proxy_is_believed_only_where_it_is_configured(tmp_path):
    header = {"X-Remote-User": "the officer"} | FORM
    with serving(str(tmp_path / "a.db"), tmp_path / "a") as served:
        assert served.ask("POST", "/sign-in", "", **header)[0] == 401
    settings = application.Settings(proxy_header="X-Remote-User")
    with serving(str(tmp_path / "b.db"), tmp_path / "b", settings) as served:
        status, headers, _ = served.ask("POST", "/sign-in", "", **header)
        assert status == 303 and "set-cookie" in headers
        stranger = header | {"X-Remote-User": "nobody"}
        assert served.ask("POST", "/sign-in", "", **stranger)[0] == 401
    far = application.Settings(proxy_header="X-Remote-User", proxies=("10.9.9.9",))
    with serving(str(tmp_path / "c.db"), tmp_path / "c", far) as served:
        assert served.ask("POST", "/sign-in", "", **header)[0] == 401


def test_an_administrator_of_one_ledger_is_none_of_the_others(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        token, _ = served.access.create("local", "administrator", ledgers=["visits"])
        served.tokens["local"] = token
        local, before = served.browser("local"), len(served.access.grants())
        _, _, page = local.get("/access")
        assert "the officer" not in page and 'value="visits"' in page
        for scope in ("*", "others", "visits, others", "visits, *"):
            call = {"name": "x", "role": "officer", "ledgers": scope, "days": "1"}
            assert local.post("/access/tokens", **call)[0] == 403, scope
        officer = next(g for g in served.access.grants() if g.name == "the officer")
        assert local.post(f"/access/tokens/{officer.id}")[0] == 403
        assert len(served.access.grants()) == before
        assert served.call("header", "officer")[0] == 200
        call = {"name": "x", "role": "officer", "ledgers": "visits", "days": "1"}
        assert local.post("/access/tokens", **call)[0] == 200
        own = served.access.grants()[-1]
        assert own.ledgers == ("visits",)
        assert local.post(f"/access/tokens/{own.id}")[0] == 303


def test_the_table_is_whole():
    """Every permission is asked for somewhere, and every write needs more than READ."""
    assert {way.permission for way in ROUTES} == set(Permission)
    for way in ROUTES:
        if way.writes or (way.method == "POST" and way.kind is Kind.FORM):
            assert way.permission is not Permission.READ or way.path == "/sign-out"
