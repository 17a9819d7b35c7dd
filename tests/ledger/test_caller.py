"""Calls over HTTP: what is repeated, what is final, and what is in doubt."""

import http.client
import json
import os
import pickle
import socket
import ssl
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from demur import LedgerUnreachable, OutcomeUnknown
from demur.errors import AccessRefused, BudgetExceeded, LedgerMissing
from demur.ledger import Timeouts
from demur.ledger.remote import connection
from demur.ledger.remote.connection import Address, Caller

TOKEN = "demur_" + "x" * 40
LOST = http.client.RemoteDisconnected("the link was cut")
TIMES = Timeouts(connect=2, silence=3, lock=4, pause=0.5, call=10)


def error(kind, message="told"):
    return {"error": {"kind": kind, "message": message}}


class Clock:
    """Time that passes while somebody sleeps, and not otherwise."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(connection, "time", clock)
    return clock


class Scripted(Caller):
    """Answers from a list: a status and its text, or an error; the last one repeats."""

    def __init__(self, *answers, connects=True):
        super().__init__("https://host/ledgers/v", TOKEN, TIMES)
        self.answers, self.connects, self.sent = list(answers), connects, []

    def _connection(self, give_up):
        if not self.connects:
            raise ConnectionRefusedError("nobody is there")
        return None

    def _exchange(self, link, call, content, give_up):
        self.sent.append((call, json.loads(content)))
        told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(told, Exception):
            raise told
        return told


def test_an_answer_is_final(clock):
    caller = Scripted((200, {"is": {"x": 1}}))
    assert caller.read("find", key="k", settled=True) == {"x": 1}
    assert caller.sent == [("find", {"key": "k", "settled": True})]
    assert clock.slept == []
    assert Scripted((200, {"is": None})).write("commit") is None


def test_a_lost_answer_is_asked_for_with_the_same_names_and_longer_waits(clock):
    caller = Scripted(*[LOST] * 7, (200, {"is": 5}))
    assert caller.write("draw", token="t") == 5
    assert caller.sent == [("draw", {"token": "t"})] * 8
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["BudgetExceeded", "AccessRefused", "LedgerMissing"])
def test_a_refusal_is_final(clock, kind):
    with pytest.raises(Exception, match="told") as caught:
        Scripted((409, error(kind))).write("charge")
    assert type(caught.value).__name__ == kind and clock.slept == []


def test_after_a_lost_call_only_a_refusal_of_the_charge_is_final(clock):
    """Who may not ask any more learns nothing of the call that was lost."""
    with pytest.raises(BudgetExceeded):
        Scripted(LOST, (409, error("BudgetExceeded"))).write("charge")
    for kind in ("AccessRefused", "LedgerMissing"):
        with pytest.raises(OutcomeUnknown, match="may or may not have been written"):
            Scripted(LOST, (401, error(kind))).write("charge")
        with pytest.raises(LedgerUnreachable):  # a reading changes nothing
            Scripted(LOST, (401, error(kind))).read("rows")
    assert clock.slept == [0.05] * 5


@pytest.mark.parametrize(
    "strange",
    [
        (500, None),
        (500, error("Defect")),
        (200, {}),
        (200, None),
        (201, {"is": 1}),
        (200, [1]),
        (409, error("OutcomeUnknown")),
    ],
)
def test_what_is_no_answer_leaves_the_outcome_unknown(clock, strange):
    with pytest.raises(OutcomeUnknown, match=f"status {strange[0]}"):
        Scripted(strange).write("charge")
    with pytest.raises(LedgerUnreachable, match="Nothing was spent by this step"):
        Scripted(strange).read("rows")
    assert 18.0 < sum(clock.slept) <= 20.0
    assert Scripted(strange, (200, {"is": 1})).write("charge") == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_is_busy_did_nothing_and_is_asked_again(clock, status):
    busy = (status, error("AccessRefused"))
    assert Scripted(busy, busy, (200, {"is": 1})).write("charge") == 1
    begun = clock.now
    with pytest.raises(LedgerUnreachable, match=f"status {status}"):
        Scripted(busy).write("charge")
    assert 9.0 < clock.now - begun <= 10.0, "ten seconds, and no wait past their end"


def test_what_was_never_sent_spent_nothing(clock):
    with pytest.raises(LedgerUnreachable, match="ConnectionRefusedError: nobody"):
        Scripted(None, connects=False).write("charge")
    caller = Scripted(LOST)
    exchange = caller._exchange

    def then_gone(*given):
        caller.connects = False
        return exchange(*given)

    caller._exchange = then_gone
    with pytest.raises(OutcomeUnknown):
        caller.write("charge")


def test_a_stranger_is_told_nothing(clock):
    stranger = ssl.SSLCertVerificationError("self-signed certificate")

    def refuse(give_up):
        raise stranger

    caller = Scripted((200, {"is": 1}))
    caller._connection = refuse
    with pytest.raises(LedgerUnreachable, match="host could not show who it is"):
        caller.write("charge")
    assert clock.slept == [] and caller.sent == []
    caller = Scripted(LOST)
    exchange = caller._exchange

    def then_a_stranger(*given):
        caller._connection = refuse
        return exchange(*given)

    caller._exchange = then_a_stranger
    with pytest.raises(OutcomeUnknown):
        caller.write("charge")


def test_other_errors_are_not_taken_for_a_lost_link(clock):
    with pytest.raises(ZeroDivisionError):
        Scripted(ZeroDivisionError()).write("charge")


# -- addresses and tokens ------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "secure", "host", "port", "path"),
    [
        ("https://h/ledgers/v", True, "h", 443, "/api/ledgers/v/x"),
        ("https://h:81/ledgers/v", True, "h", 81, "/api/ledgers/v/x"),
        ("http://localhost/ledgers/v", False, "localhost", 80, "/api/ledgers/v/x"),
        ("http://127.0.0.9:9/ledgers/v", False, "127.0.0.9", 9, "/api/ledgers/v/x"),
        ("http://[::1]/ledgers/v/", False, "::1", 80, "/api/ledgers/v/x"),
        ("https://h/p/q/ledgers/v.1_-", True, "h", 443, "/p/q/api/ledgers/v.1_-/x"),
    ],
)
def test_an_address_is_read(url, secure, host, port, path):
    address = Address.parse(url)
    assert (address.secure, address.host, address.port) == (secure, host, port)
    assert address.path("x") == path


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/ledgers/v",
        "http://10.0.0.1/ledgers/v",
        "https://me@h/ledgers/v",
        "https://:secret@h/ledgers/v",
        "https://h/ledgers/v?token=secret",
        "https://h/ledgers/v#secret",
        "https://h/v",
        "https://h/ledgers/",
        "https://h/ledgers/.v",
        "https://h/ledgers/" + "v" * 65,
        "https:///ledgers/v",
    ],
)
def test_an_address_that_gives_a_token_away_is_refused(url):
    with pytest.raises(ValueError, match="url must") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)
    assert Address.parse("https://h/ledgers/" + "v" * 64).name == "v" * 64


def test_a_token_is_given_or_in_the_environment(monkeypatch):
    monkeypatch.delenv("DEMUR_TOKEN", raising=False)
    wrong = (None, "", "x" * 15, "x" * 513, "x" * 15 + " ", "ü" * 20, 7)
    for token in wrong:
        with pytest.raises(ValueError, match="token must be a token of the service"):
            Caller("https://h/ledgers/v", token, TIMES)
    for token in ("x" * 16, "~" * 512, "!" * 16):
        caller = Caller("https://h/ledgers/v", token, TIMES)
        assert caller._authorisation == f"Bearer {token}"
    monkeypatch.setenv("DEMUR_TOKEN", TOKEN)
    assert Caller("https://h/ledgers/v", None, TIMES)._authorisation.endswith(TOKEN)
    with pytest.raises(ValueError, match="token"):
        Caller("https://h/ledgers/v", "", TIMES)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(caller)
    assert "!" * 16 not in repr(caller)
    context = caller._context
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    assert Caller("http://localhost/ledgers/v", TOKEN, TIMES)._context is None


# -- connections ---------------------------------------------------------------------


class Service(BaseHTTPRequestHandler):
    """Answers with what the test wants said, and remembers what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), json.loads(body)))
        text = self.server.says
        self.send_response(self.server.status)
        if self.server.closes:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.asked, server.says = [], b'{"is": 1}'
    server.status, server.closes = 200, False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def caller(service):
    url = f"http://127.0.0.1:{service.server_port}/ledgers/visits"
    with closing(Caller(url, TOKEN, TIMES)) as made:
        yield made


def test_a_request_carries_the_token_and_its_data(service, caller):
    assert caller.write("charge", label="ü", count=2) == 1
    ((path, headers, data),) = service.asked
    assert path == "/api/ledgers/visits/charge"
    assert data == {"label": "ü", "count": 2}
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == headers["Accept"] == "application/json"


def test_a_connection_is_kept_and_waits_as_long_as_the_lock_may_take(service, caller):
    for _ in range(3):
        caller.read("x")
    (link,) = caller._idle
    assert link.sock.gettimeout() == TIMES.lock + TIMES.silence
    assert link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    status, told = caller._exchange(link, "x", b"{}", connection.time.monotonic() - 5.0)
    assert (status, told) == (200, {"is": 1}), "there is always a moment"
    assert link.sock.gettimeout() == 0.1
    caller.close()
    assert caller._idle == [] and link.sock is None
    assert caller.read("x") == 1, "another call opens another one"


def test_a_connection_that_the_service_closes_is_not_kept(service, caller):
    service.closes = True
    assert caller.read("x") == 1 and caller._idle == []


def test_eight_connections_are_kept(service, caller, monkeypatch):
    monkeypatch.setattr(connection, "_IDLE", 0)
    caller.read("x")
    assert caller._idle == []
    monkeypatch.undo()
    assert connection._IDLE == 8 and caller.read("x") == 1
    assert len(caller._idle) == 1


def test_what_is_no_json_is_no_answer(service, caller):
    service.says = b"<html>"
    link = caller._connection(connection.time.monotonic() + 5.0)
    answer = caller._exchange(link, "x", b"{}", connection.time.monotonic() + 5.0)
    assert answer == (200, None)
    service.status, service.says = 409, json.dumps(error("AccessRefused")).encode()
    with pytest.raises(AccessRefused, match="told"):
        caller.write("x")
    service.says = json.dumps(error("LedgerMissing")).encode()
    with pytest.raises(LedgerMissing, match="told"):
        caller.read("x")


def test_an_answer_without_end_is_cut_off(service, caller, monkeypatch):
    size = len(service.says)
    monkeypatch.setattr(connection, "_LARGEST", size)
    assert caller.read("x") == 1
    monkeypatch.setattr(connection, "_LARGEST", size - 1)
    link = caller._idle.pop()
    with pytest.raises(http.client.HTTPException, match="too long"):
        caller._exchange(link, "x", b"{}", connection.time.monotonic() + 5.0)
    assert link.sock is None and caller._idle == []
    monkeypatch.undo()
    assert connection._LARGEST == 64 * 2**20


def test_a_connection_that_has_ended_is_replaced(service, caller):
    caller.read("x")
    (link,) = caller._idle
    link.sock.shutdown(socket.SHUT_RDWR)
    assert caller.read("x") == 1
    assert caller._idle != [link] and len(caller._idle) == 1 and link.sock is None


def test_whether_a_link_has_ended():
    here, there = socket.socketpair()
    here.settimeout(5.0)
    assert connection._has_ended(here) is False
    assert here.gettimeout() is None
    there.send(b"x")
    assert connection._has_ended(here) is False, "something to read is no end"
    assert here.recv(1) == b"x"
    there.close()
    assert connection._has_ended(here) is True
    here.close()

    class Broken:
        def __init__(self, error):
            self.error = error

        def setblocking(self, _):
            raise self.error

        def settimeout(self, _):
            pass

    for raised in (BlockingIOError(), ssl.SSLWantReadError(), ValueError()):
        assert connection._has_ended(Broken(raised)) is False
    assert connection._has_ended(Broken(ConnectionResetError())) is True


def test_a_forked_child_takes_no_connection_of_its_parent(service, caller, monkeypatch):
    caller.read("x")
    (link,) = caller._idle
    pid = os.getpid()
    monkeypatch.setattr(connection.os, "getpid", lambda: pid + 1)
    caller.read("x")
    assert link not in caller._idle and link.sock is not None, "it stays open"
    assert caller._process == pid + 1 and len(caller._idle) == 1
    kept = list(caller._idle)
    monkeypatch.undo()
    connection._close_all(caller._idle, pid + 1)
    assert caller._idle == [] and kept[0].sock is not None
    for each in (link, *kept):
        each.close()
