"""What one client cannot do to the others: wait, flood, fill a disk, draw at once."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure

from demur import Ball, Budget
from demur.core.cost import Cost, GaussianOverBalls
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration
from demur.report.figure import Chart, inline
from demur.serve import console
from demur.serve.rendering import Templates
from demur.serve.server import Connection
from demur.serve.settings import Settings
from tests.serve.kit import FORM, QUIET, serving

pytestmark = pytest.mark.slow

CHARGE = b"POST /api/ledgers/visits/charge HTTP/1.1\r\nHost: x\r\n"
SCRIPT = "<script>alert(1)</script>\"'><b"


@pytest.fixture
def visits(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        yield served


def connect(served):
    return socket.create_connection(("127.0.0.1", served.port), timeout=20)


def ended(link, drip):
    """Whether the service closes a connection on which little comes, within 5 s."""
    link.settimeout(0.1)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            link.sendall(drip)
            if link.recv(4096) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("sent", [b"", b"GET /hea", CHARGE + b"X: "], ids=repr)
def test_a_request_has_to_begin_in_time(visits, monkeypatch, sent):
    monkeypatch.setattr(Connection, "patience", 0.4)
    with connect(visits) as link:
        link.sendall(sent)
        assert ended(link, b"x" if sent else b"")
    assert visits.call("header")[0] == 200


def test_the_twin_that_waits_for_ever_is_held(visits, monkeypatch):
    monkeypatch.setattr(Connection, "_wait", lambda _: None)
    with connect(visits) as link:
        link.sendall(b"GET /hea")
        link.settimeout(1.0)
        with pytest.raises(TimeoutError):
            link.recv(1)


def test_a_request_that_is_served_slowly_is_not_cut_off(visits, monkeypatch):
    monkeypatch.setattr(Connection, "patience", 0.2)
    render = Templates.render

    def slow(self, name, **facts):
        time.sleep(0.6)
        return render(self, name, **facts)

    monkeypatch.setattr(Templates, "render", slow)
    assert visits.ask("GET", "/sign-in")[0] == 200


def test_a_body_that_drips_on_after_its_answer_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(Connection, "patience", 0.4)
    settings = Settings(slowest_body=0.3)
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        with connect(served) as link:
            link.sendall(CHARGE + b"Content-Length: 500\r\n\r\n{")
            assert ended(link, b" ")


def test_slow_pages_hold_no_charge_up(visits, monkeypatch):
    """Readers and writers have threads of their own."""
    go_on, render = threading.Event(), Templates.render

    def slow(self, name, **facts):
        if name == "home.html":
            go_on.wait(20)
        return render(self, name, **facts)

    visitor = visits.browser("viewer")
    monkeypatch.setattr(Templates, "render", slow)
    with ThreadPoolExecutor(20) as many:
        pages = [many.submit(visitor.get, "/") for _ in range(20)]
        time.sleep(0.2)
        status, _ = visits.call("charge", declaration=QUIET.to_json(), label="x")
        assert status == 200 and not any(page.done() for page in pages)
        go_on.set()
        assert {page.result()[0] for page in pages} == {200}


def test_guesses_do_not_fill_the_log(visits):
    for _ in range(40):
        wrong = {"Authorization": "Bearer demur_" + "x" * 43}
        visits.ask("POST", "/api/ledgers/visits/header", "{}", **wrong)
        visits.ask("POST", "/sign-in", "", **FORM)
    lines = [json.loads(line) for line in visits.log_path.read_text().splitlines()]
    assert 10 <= len(lines) <= 30, "ten a minute, and that there were more"
    assert "too many attempts" in {line["why"] for line in lines}


def test_a_session_is_counted_like_its_token(tmp_path):
    settings = Settings(calls_a_minute=20)
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        visitor = served.browser("viewer")
        assert 429 in [visitor.get("/")[0] for _ in range(25)]
        assert served.call("header", "analyst")[0] == 200


def test_two_names_from_a_proxy_are_none(tmp_path):
    settings = Settings(proxy_header="X-Remote-User")
    with serving(str(tmp_path / "v.db"), tmp_path, settings) as served:
        link = http.client.HTTPConnection("127.0.0.1", served.port)
        link.putrequest("POST", "/sign-in")
        for name in ("the administrator", "the viewer"):
            link.putheader("X-Remote-User", name)
        link.putheader("Content-Length", "0")
        link.endheaders()
        answer = link.getresponse()
        assert answer.status == 400 and "set-cookie" not in answer.headers
        link.close()


def test_a_ledger_may_have_the_name_of_a_token(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path, name="demur_visits") as served:
        visitor = served.browser("viewer")
        assert visitor.get("/ledgers/demur_visits/entries?search=demur_")[0] == 200
        assert served.call("header", name="demur_visits")[0] == 200
        token = served.tokens["viewer"]
        for path in (f"/ledgers/{token}", f"/?q={token}", f"/?q={quote(token)}",
                     f"/?q=%64emur_{token[6:]}"):  # fmt: skip
            assert visitor.get(path)[0] in (400, 404), path
        assert visitor.get(f"/?search=x{token}")[0] == 200, "no token"


HUGE = 10**30


def test_numbers_without_end_are_refused(visits):
    visitor = visits.browser("officer")
    for path in (f"entries/{HUGE}", f"entries?page={HUGE}", f"distance?radius={HUGE}",
                 f"what-if?like={HUGE}", f"what-if?times={HUGE}", "what-if?unit=x",
                 f"verify?tip={HUGE}:a", "what-if?unit=-1", "what-if?until=9999-99-99",
                 "what-if?epsilon=inf", "distance?radius=nan"):  # fmt: skip
        assert visitor.get(f"/ledgers/visits/{path}")[0] in (200, 400, 404, 409), path
    path = f"/ledgers/visits/requests/{HUGE}"
    assert visitor.post(path, reason="x", verdict="approve")[0] == 409
    administrator = visits.browser("administrator")
    assert administrator.post(f"/access/tokens/{HUGE}")[0] == 303
    for call, data in {
        "rows": {"after": HUGE},
        "contains": {"tip": f"{HUGE}:{'0' * 64}"},
        "verify": {"tip": f"{HUGE}:{'0' * 64}"},
        "draw": {"entry": "0" * 32, "count": HUGE},
        "reading": {"delta": HUGE},
        "charge": {"declaration": QUIET.to_json(), "label": "x", "count": HUGE},
    }.items():
        status, told = visits.call(call, **data)
        assert status in (400, 409), (call, status, told)
    status, told = visits.call(
        "decide", "officer", number=HUGE, approved=True, reason="x"
    )
    assert status == 409 and "no request" in told["error"]["message"]


def test_a_defect_is_logged_without_its_words(visits, monkeypatch, caplog):
    def broken(*_):
        raise ArithmeticError("a private label")

    monkeypatch.setattr(console, "forecast", broken)
    with caplog.at_level("INFO", logger="demur.serve"):
        status, _, page = visits.browser("viewer").get("/ledgers/visits")
    assert status == 500 and "private" not in page + caplog.text
    told = [json.loads(record.getMessage()) for record in caplog.records]
    (defect,) = [line for line in told if "defect" in line]
    assert defect["defect"] == "ArithmeticError"
    assert any("test_limits.py" in place for place in defect["where"])


def test_an_unknown_address_is_a_page_for_people_and_json_for_programs(visits):
    status, headers, page = visits.ask("GET", "/ledgers/visits/nothing")
    assert status == 404 and "html" in headers["content-type"] and "Not found" in page
    status, headers, _ = visits.ask("POST", "/api/ledgers/visits/nothing", "{}")
    assert status == 404 and headers["content-type"] == "application/json"


def test_the_name_of_a_space_is_text(tmp_path):
    line = PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)], saturates=True)
    by_distance = GaussianOverBalls(SCRIPT, line, 9.0)
    terms = {"budgets": {Ball(0.2, space=SCRIPT): Budget(2.0, 1e-6)}, "approval": None}
    with serving(str(tmp_path / "v.db"), tmp_path, **terms) as served:
        with served.open() as ledger:
            nasty = Declaration("$x_{", Cost((by_distance,)))
            ledger.charge(nasty, label=f"$x_{{ {SCRIPT}")
        visitor = served.browser("viewer")
        for path in ("", "/distance?radius=0.1", "/entries", "/entries/1"):
            status, _, page = visitor.get(f"/ledgers/visits{path}")
            assert status == 200 and "alert(1)" in page
            assert "<script>alert" not in page


def test_charts_are_drawn_one_after_another():
    """Matplotlib's settings are those of the process, and pages come in threads."""

    def draw(frame):
        figure = Figure(figsize=(2, 1))
        figure.add_subplot().set_title("$x_{ <b")
        return figure

    chart, before = Chart("x", "x", "x", draw), dict(rcParams)
    alone = inline(chart)
    with ThreadPoolExecutor(4) as many:
        assert set(many.map(lambda _: inline(chart), range(8))) == {alone}
    assert dict(rcParams) == before


def test_a_token_that_ended_is_said_to_have_ended(visits):
    _, grant = visits.access.create("gone", "viewer", days=1e-9)
    time.sleep(0.01)
    assert grant.ended
    _, _, page = visits.browser("administrator").get("/access")
    assert "ended" in page and "Revoke the token of gone" not in page
