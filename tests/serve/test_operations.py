"""Running a service: health, stopping in mid-charge, backups, TLS, several ledgers."""

import contextlib
import datetime
import ipaddress
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import Budget, Ledger
from demur.core.accounting.events import GaussianEvent
from demur.errors import (
    AlreadyDecided,
    ApprovalPending,
    BudgetExceeded,
    LedgerMissing,
    LedgerUnreachable,
)
from demur.ledger import Decision, Timeouts, journal
from demur.serve.access import AccessStore
from demur.serve.app import create_app
from demur.serve.ledgers import ServedLedgers
from demur.serve.routes import ROUTES
from demur.serve.server import RunningService, running
from tests.ledger.kit import says, subprocess_environment
from tests.serve.kit import LOUD, QUIET, TERMS, UNIT, serving

pytestmark = pytest.mark.slow

PLAIN = {"dataset": "v", "budgets": {UNIT: Budget(1.0, 1e-6)}}


def test_health_and_its_opposite(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        assert served.ask("GET", "/health")[0] == 200
        path = tmp_path / "v.db"
        path.rename(tmp_path / "away.db")
        status, _, text = served.ask("GET", "/health")
        assert status != 200 and "healthy" not in text
        (tmp_path / "away.db").rename(path)
        assert served.ask("GET", "/health")[0] == 200


def test_a_stop_in_the_middle_of_a_charge_waits_for_it(tmp_path, monkeypatch):
    price, arrived = journal.ways_to_pay, threading.Event()

    def slow(*given):
        arrived.set()
        time.sleep(0.6)
        return price(*given)

    with Ledger.open(tmp_path / "v.db", **TERMS):
        pass
    access = AccessStore(tmp_path / "a" / "access.db")
    token, _ = access.create("ada", "analyst")
    ledgers = ServedLedgers.open([f"visits={tmp_path / 'v.db'}"])
    service = RunningService(create_app(ledgers, access)).start()
    entries = []
    with Ledger.open(f"{service.url}/ledgers/visits", token=token) as ledger:
        monkeypatch.setattr(journal, "ways_to_pay", slow)
        charge = threading.Thread(
            target=lambda: entries.append(ledger.charge(QUIET, label="x"))
        )
        charge.start()
        arrived.wait()
        service.stop()
        charge.join()
    with Ledger.open(tmp_path / "v.db") as own:
        assert [e.id for e in own.entries()] == [e.id for e in entries] != []


def test_a_backup_is_taken_while_it_runs(tmp_path):
    with serving(str(tmp_path / "v.db"), tmp_path) as served:
        with served.open() as ledger:
            ledger.charge(QUIET, label="x")
        visitor = served.browser("auditor")
        connection = sqlite3.connect(":memory:")
        import http.client  # noqa: PLC0415

        link = http.client.HTTPConnection("127.0.0.1", served.port)
        link.request(
            "GET", "/ledgers/visits/backup.db", headers={"Cookie": visitor.cookie}
        )
        connection.deserialize(link.getresponse().read())
        link.close()
        ((rows,),) = connection.execute("SELECT count(*) FROM demur_rows").fetchall()
        connection.close()
        assert rows == 1


def test_the_document_is_that_of_the_table(shared):
    status, _, text = shared.ask("GET", "/api/openapi.json")
    document = json.loads(text)
    calls = {way.path for way in ROUTES if way.path.startswith("/api/ledgers")}
    assert status == 200 and set(document["paths"]) == calls
    for path, operations in document["paths"].items():
        told = operations["post"]
        assert told["summary"] and told["responses"], path
        known = set(told["requestBody"]["content"]["application/json"]["schema"][
            "properties"])  # fmt: skip
        # The service refuses what the document does not name, and says what it takes.
        status, answer = shared.call(path.rsplit("/", 1)[1], _role(path), nonsense=1)
        message = str(answer.get("error", {}).get("message"))
        if status == 400 and "has the fields" in message:
            assert all(repr(name) in message for name in known)


def _role(path):
    return "officer" if path.endswith("decide") else "analyst"


def test_one_service_has_several_ledgers(tmp_path):
    folder = tmp_path / "ledgers"
    folder.mkdir()
    for name in ("visits", "sales"):
        Ledger.create(folder / f"{name}.db", dataset=name, budgets=TERMS["budgets"])
    access = AccessStore(tmp_path / "a" / "access.db")
    token, _ = access.create("ada", "analyst", ledgers=["sales"])
    ledgers = ServedLedgers.open([str(folder)])
    assert ledgers.names() == ["sales", "visits"]
    with running(create_app(ledgers, access)) as service:
        with Ledger.open(f"{service.url}/ledgers/sales", token=token) as ledger:
            assert ledger.charge(QUIET, label="x").dataset == "sales"
        with pytest.raises(LedgerMissing):
            Ledger.open(f"{service.url}/ledgers/visits", token=token)
    with pytest.raises(ValueError, match="two ledgers"):
        ServedLedgers.open([str(folder), str(folder / "sales.db")])
    with pytest.raises(LedgerMissing):
        ServedLedgers.open([str(tmp_path / "none.db")])
    assert not (tmp_path / "none.db").exists()


def test_signed_and_unsigned_ledgers_are_served_side_by_side(tmp_path):
    key = Ed25519PrivateKey.generate()
    for name, own in (("signed", key), ("plain", None)):
        Ledger.create(tmp_path / f"{name}.db", signing_key=own, **PLAIN).close()
    ledgers = ServedLedgers.open([str(tmp_path)], signing_key=key)
    for name in ledgers.names():
        calls = ledgers.calls(name)
        calls.charge("ada", {"declaration": QUIET.to_json(), "label": "x"})
        assert calls.ledger.verify().ok and len(calls.ledger.entries()) == 1
    ledgers.close()


@pytest.mark.postgres
def test_two_services_over_one_database(postgres_url, tmp_path):
    """Whichever service a client asks: one budget, one decision, one charge."""
    with (
        serving(postgres_url, tmp_path / "a") as one,
        serving(postgres_url, tmp_path / "b") as two,
    ):
        both = (one, two)
        with one.open() as analyst, pytest.raises(ApprovalPending) as caught:
            analyst.charge(LOUD, label="x", idempotency_key="k")
        outcomes = [_decided(each, caught.value.number) for each in both]
        assert sorted(map(type, outcomes), key=str) == [AlreadyDecided, Decision]
        call = {"declaration": LOUD.to_json(), "label": "x", "idempotency_key": "k"}
        charged = [each.call("charge", **call) for each in both]
        assert charged[0] == charged[1] and charged[0][0] == 200, "receipts included"

        def spend(each):
            done = 0
            with each.open() as ledger, contextlib.suppress(BudgetExceeded):
                while True:
                    ledger.charge(says(GaussianEvent(9.0)), label="y")
                    done += 1
            return done

        with ThreadPoolExecutor(2) as many:
            done = sum(many.map(spend, both))
        (status,) = one.ledger.status()
        assert len(two.ledger.entries()) == done + 1
        assert status.spent_epsilon <= status.budget.epsilon
        assert one.ledger.verify().ok


def _decided(served, number):
    token, _ = served.access.create(f"an officer at {served.port}", "officer")
    with Ledger.open(f"{served.url}/ledgers/visits", token=token) as officer:
        try:
            return officer.approve(number, reason="yes")
        except AlreadyDecided as error:
            return error


def certificate(folder):
    """A certificate of 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.slow
def test_the_command_over_tls_prints_its_token_once_and_stops(tmp_path, monkeypatch):
    path = tmp_path / "visits.db"
    Ledger.create(path, dataset="v", budgets={UNIT: Budget(1.0, 1e-6)}).close()
    public, private = certificate(tmp_path)
    folder = tmp_path / "access"

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", "from demur.cli import app; app()", "serve",
             str(path), "--port", "0", "--json", "--access", str(folder),
             "--tls-certificate", str(public), "--tls-key", str(private)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=subprocess_environment(),
        )  # fmt: skip
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        return process, json.loads(text)

    def stop(process):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        return process.returncode

    process, told = start()
    try:
        with AccessStore(folder / "access.db") as store:
            token, _ = store.create("ada", "analyst")
        (url,) = told["ledgers"]
        assert told["token"].startswith("demur_") and url.startswith("https://")
        brief = Timeouts(connect=3, silence=1, lock=1, pause=0.5, call=2)
        with pytest.raises(LedgerUnreachable, match="who it is"):
            Ledger.open(url, token=token, timeouts=brief)
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        with Ledger.open(url, token=token) as ledger:
            assert ledger.charge(QUIET, label="over TLS").sequence == 1
    finally:
        assert stop(process) in (0, -signal.SIGTERM)
    process, told = start()
    assert "token" not in told, "it is shown once"
    assert stop(process) in (0, -signal.SIGTERM)
