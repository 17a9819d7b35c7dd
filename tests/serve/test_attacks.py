"""What somebody might send: scripts, SQL, paths, too much, too slowly, at once."""

import json
import re
import socket
import threading
import time
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from demur.errors import AlreadyDecided, ApprovalPending, DemurError
from demur.serve.routes import ROUTES, Kind
from demur.serve.settings import Settings
from tests.serve.kit import LOUD, QUIET, serving
from tests.serve.test_roles import path_of

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b"
SQL = "x'; DROP TABLE demur_rows; --"
PAGES = [way for way in ROUTES if way.kind is Kind.PAGE and way.method == "GET"]


class Elements(HTMLParser):
    """The elements of a page that could run or fetch something."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        ours = tag == "script" and str(names.get("src", "")).startswith("/static/")
        plain = tag == "script" and names.get("type") == "application/json"
        if (tag in ("script", "img", "iframe") and not ours and not plain) or any(
            name.startswith("on") for name in names
        ):
            self.found.append((tag, attrs))


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A ledger whose every text is an attack."""
    folder = tmp_path_factory.mktemp("marked")
    terms = {"dataset": SCRIPT}
    with serving(str(folder / "visits.db"), folder, **terms) as served:
        from demur import Declaration  # noqa: PLC0415

        nasty = Declaration(SCRIPT, QUIET.cost)
        with served.open(purpose=SCRIPT) as ledger:
            entry = ledger.charge(nasty, label=SCRIPT)
            ledger.annotate(entry, "utility", {SCRIPT: SCRIPT})
            loud = Declaration(SCRIPT, LOUD.cost)
            for key in ("a", "b"):
                with pytest.raises(ApprovalPending):
                    ledger.charge(loud, label=SCRIPT, idempotency_key=key)
        with served.open("officer") as officer:
            officer.decline(officer.requests()[0].sequence, reason=SCRIPT)
        token, _ = served.access.create(SCRIPT, "administrator")
        served.tokens["administrator"] = token
        yield served


@pytest.mark.parametrize("way", PAGES, ids=lambda w: w.path)
def test_no_text_becomes_markup(marked, way):
    role = next(r for r in marked.tokens if _may(r, way))
    visitor = marked.browser(role)
    nasty = quote(SCRIPT)
    for query in ("", f"?search={nasty}&tip={nasty}&like={nasty}"):
        status, headers, page = visitor.get(path_of(way) + query)
        assert status in (200, 400, 409), page[:200]
        if "html" in headers["content-type"]:
            assert Elements(page).found == []
            assert "<script>alert" not in page
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe-inline' script" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def _may(role, way):
    from demur.serve.roles import Role  # noqa: PLC0415

    return Role(role).may(way.permission)


def test_the_twin_without_escaping_is_found():
    assert Elements(f"<p>{SCRIPT}</p>").found != []


@pytest.mark.parametrize(
    "field", ["label", "idempotency_key", "purpose", "id", "key", "input", "noise"]
)
@pytest.mark.parametrize("text", [SQL, SCRIPT, "\x00", "é" * 300, {"a": 1}, None, -1])
def test_a_field_is_data_or_refused(shared, field, text):
    before = len(shared.ledger.entries())
    call = {"declaration": QUIET.to_json(), "label": "x"}
    status, told = shared.call("charge", **call | {field: text})
    assert status in (200, 400, 409), told
    assert len(shared.ledger.entries()) == before + (status == 200)
    assert shared.ledger.verify().ok


LOOKS = {
    "charged": "entry", "drawn": "entry", "find": "key", "declaration": "digest",
    "contains": "tip",
}  # fmt: skip


@pytest.mark.parametrize("call", LOOKS)
def test_sql_in_a_look_up_finds_nothing(shared, call):
    field = LOOKS[call]
    status, told = shared.call(call, **{field: f"{SQL} {call}"})
    assert status in (200, 400, 409) and told.get("is") is None
    assert shared.ledger.verify().ok


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{", b'{"label": NaN}', b"\xff\xfe", b'{"a":' * 5000,
        b'{"declaration": {}, "label": "x"}',
        b'{"declaration": {"name": "x"}, "label": "x"}',
        b'{"declaration": 5, "label": "x", "count": 1e400}',
    ],
)  # fmt: skip
def test_what_is_no_call_is_refused(shared, body):
    before = shared.ledger.tip()
    headers = {"Authorization": f"Bearer {shared.tokens['analyst']}"}
    path = "/api/ledgers/visits/charge"
    status, _, text = shared.ask("POST", path, body, **headers)
    assert status == 400 and "error" in json.loads(text)
    assert shared.ledger.tip() == before


@pytest.mark.parametrize(
    "path",
    [
        "/static/../access.py", "/static/..%2f..%2faccess.py", "/static/%2e%2e/app.py",
        "/ledgers/../../etc/passwd", "/ledgers/..%2f..%2fetc%2fpasswd", "/ledgers/%00",
        "/api/ledgers/..%2fvisits/header", "//evil.example/", "/static/console.css/..",
        "/static//etc/passwd",
    ],
)  # fmt: skip
def test_no_path_leads_out(shared, path):
    visitor = shared.browser("administrator")
    for method in ("GET", "POST"):
        status, headers, text = shared.ask(method, path, "", Cookie=visitor.cookie)
        assert status in (303, 307, 400, 404, 405), (method, status)
        assert "root:" not in text and "import" not in text
        assert not str(headers.get("location", "")).startswith(("http", "//evil"))


def test_a_body_that_is_too_large_is_refused(tmp_path):
    settings = Settings(largest_body=10_000)
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        headers = {"Authorization": f"Bearer {served.tokens['analyst']}"}
        path = "/api/ledgers/visits/charge"
        assert served.ask("POST", path, b"x" * 20_000, **headers)[0] == 413
        # Without saying so in advance.
        link = socket.create_connection(("127.0.0.1", served.port), timeout=20)
        with link:
            link.sendall(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                f"Authorization: Bearer {served.tokens['analyst']}\r\n\r\n".encode()
            )
            answer = b""
            try:
                for _ in range(50):
                    link.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
            except OSError:
                pass
            try:
                answer = link.recv(100)
            except OSError:
                pass
            assert not answer or b"413" in answer
        assert served.call("header")[0] == 200


def test_slow_clients_hold_nobody_up(tmp_path):
    settings = Settings(slowest_body=0.5)
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        links = []
        for _ in range(40):
            link = socket.create_connection(("127.0.0.1", served.port), timeout=20)
            link.sendall(
                b"POST /api/ledgers/visits/charge HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: 500\r\n\r\n{"
            )
            links.append(link)
        with served.open() as ledger:
            assert ledger.charge(QUIET, label="meanwhile").sequence == 1
        assert b"408" in links[0].recv(100)
        for link in links:
            link.close()


def test_many_officers_at_once_through_the_service(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        with served.open() as ledger, pytest.raises(ApprovalPending):
            ledger.charge(LOUD, label="x", idempotency_key="k")
        tokens = [served.access.create(f"o{i}", "officer")[0] for i in range(4)]
        begin, outcomes = threading.Barrier(4), []

        def decide(i):
            from demur import Ledger  # noqa: PLC0415

            with Ledger.open(f"{served.url}/ledgers/visits", token=tokens[i]) as own:
                begin.wait()
                try:
                    verdict = own.approve if i % 2 else own.decline
                    outcomes.append(verdict(1, reason=f"r{i}"))
                except DemurError as error:
                    outcomes.append(error)

        threads = [threading.Thread(target=decide, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lost = [each for each in outcomes if isinstance(each, AlreadyDecided)]
        assert len(lost) == 3 and len(outcomes) == 4
        assert served.ledger.tip().sequence == 2


def test_nothing_private_is_logged(tmp_path, caplog):
    with caplog.at_level("INFO", logger="demur.serve"):
        with serving(str(tmp_path / "v.db"), tmp_path) as served:
            with served.open(purpose="a secret purpose") as ledger:
                ledger.charge(QUIET, label="a private label", idempotency_key="secretk")
                with pytest.raises(ApprovalPending):
                    ledger.charge(LOUD, label="a private label", idempotency_key="kk")
            officer = served.browser("officer")
            officer.get("/ledgers/visits/entries?search=private")
            officer.post("/ledgers/visits/requests/2", reason="a secret reason",
                         verdict="decline")  # fmt: skip
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert {line["route"] for line in lines} >= {"/api/ledgers/{name}/charge"}
    text = caplog.text + served.log_path.read_text()
    for private in ("private label", "secret", *served.tokens.values()):
        assert private not in text
    assert served.ledger.requests()[0].decision.reason == "a secret reason"


def test_a_settled_look_waits_for_what_came_before(tmp_path, monkeypatch):
    """A lost charge that is still on its way through the service is not missed."""
    from demur.ledger import journal  # noqa: PLC0415

    price, arrived = journal.ways_to_pay, threading.Event()

    def slow(*given):
        arrived.set()
        time.sleep(0.4)
        return price(*given)

    with serving(str(tmp_path / "v.db"), tmp_path) as served, served.open() as ledger:
        monkeypatch.setattr(journal, "ways_to_pay", slow)
        charge = threading.Thread(
            target=served.call,
            args=("charge",),
            kwargs={"declaration": QUIET.to_json(), "label": "x",
                    "idempotency_key": "k"},
        )  # fmt: skip
        charge.start()
        arrived.wait()
        assert ledger.find("k") is None, "an ordinary look is too early"
        assert ledger.find("k", settled=True) is not None
        charge.join()


def test_other_hosts_and_methods_are_refused(tmp_path):
    settings = Settings(hosts=("127.0.0.1",))
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        assert served.ask("GET", "/health", Host="evil.example")[0] == 400
        assert served.ask("GET", "/health")[0] == 200
        assert served.ask("DELETE", "/health")[0] == 405
        assert re.fullmatch("[^/]*", served.ask("GET", "/health")[1].get("server", ""))
