"""The service on a PostgreSQL server: the same promises, its secrets kept here."""

import threading

import pytest
import sqlalchemy as sa

from demur.core.adjacency import Erasure
from demur.core.errors import DemurError, LedgerUnreachable, OutcomeUnknown
from demur.ledger import Budget, Ledger
from demur.unlearning import ServiceBusy, ServiceMismatch, verify_certificate
from demur.unlearning.service.charges import DeletionCharges
from tests.ledger.conftest import postgres_url, server
from tests.unlearning.service_kit import UnlearningService, fill, open_service, record

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
__all__ = ["postgres_url", "server"]


def test_a_service_on_a_server(postgres_url, tmp_path):
    keys = tmp_path / "keys"
    terms = {"keys": keys, "record_store": "encrypted"}
    with open_service(postgres_url, **terms) as service:
        fill(service, range(6))
        certificate = service.delete(1)
        service.delete_many([2, 3])
        snapshot = service.snapshot()
        assert keys in snapshot.parents
        with pytest.raises(ServiceBusy, match="writer already"):
            UnlearningService.open(postgres_url, keys=keys)
    with UnlearningService.open(postgres_url, keys=keys) as service:
        assert service.status().live == 3 and service.delete(1) == certificate
        service.retrain()
        fill(service, [1])
        assert service.delete(1).generation == 2
        found = service.verify()
        assert found.ok, str(found)
    assert verify_certificate(certificate, postgres_url).ok
    with pytest.raises(ValueError, match="keys must name"):
        UnlearningService.open(postgres_url)
    with pytest.raises(ServiceMismatch, match="not beside"):
        UnlearningService.open(postgres_url, keys=tmp_path / "elsewhere")


def test_a_new_epoch_needs_a_ledger_of_its_own(postgres_url, tmp_path):
    terms = {"keys": tmp_path / "keys", "scope": "joint", "capacity": 2}
    with open_service(postgres_url, **terms) as service:
        fill(service, range(6))
        service.delete(0)
        before = service.status()
        stay = [(n, *record(n)) for n in range(1, 6)]
        with pytest.raises(ServiceMismatch, match="one ledger"):
            service.retrain(stay)
        assert service.status() == before
    budgets = {Erasure(): Budget(1.0, 1e-6)}
    rule = {"dataset": "d", "budgets": budgets, "filter": "rdp"}
    with Ledger.open(tmp_path / "next.db", **rule) as ledger:
        with open_service(postgres_url, ledger=ledger, **terms) as service:
            service.retrain(stay)
            assert service.delete(1).ledger == ledger.id
            assert service.verify().ok


def test_a_writer_that_lost_its_lock_writes_no_more(postgres_url, tmp_path):
    """Its successor may have opened: two histories, and a ledger that knows both."""
    keys = {"keys": tmp_path / "keys"}
    first = open_service(postgres_url, **keys)
    fill(first, range(4))
    end_lock(first)
    with UnlearningService.open(postgres_url, **keys) as second:
        before = len(second.ledger.entries())
        for _ in range(2):  # nor when the server answers again
            with pytest.raises(DemurError, match="open it again"):
                first.delete(1)
        with pytest.raises(DemurError, match="open it again"):
            first.insert(*record(9), record_id=9)
            first.flush()
        assert len(second.ledger.entries()) == before
        second.delete(1)
        assert second.verify().ok
    first.close()
    with UnlearningService.open(postgres_url, **keys) as again:
        assert again.status().live == 3 and again.verify().ok


@pytest.mark.parametrize("scope", ["subject", "joint"])
@pytest.mark.parametrize("way", ["delete", "restore"])
def test_a_writer_that_lost_its_lock_before_it_paid_cannot_pay_any_more(
    postgres_url, tmp_path, monkeypatch, scope, way
):
    """Its entry would be one that no journal knows: the sign of an older copy."""
    keys = {"keys": tmp_path / "keys"}
    first = open_service(postgres_url, scope=scope, capacity=5, **keys)
    fill(first, range(3))
    taken = first.snapshot()
    fill(first, [3])
    paid = DeletionCharges.paid

    def paused(charges, *what):
        monkeypatch.setattr(DeletionCharges, "paid", paid)
        end_lock(first)
        with UnlearningService.open(postgres_url, **keys) as second:
            assert second.verify().ok
        return paid(charges, *what)

    monkeypatch.setattr(DeletionCharges, "paid", paused)
    with pytest.raises(DemurError, match="open it again"):
        first.delete(1) if way == "delete" else first.restore(taken)
    first.close()
    with UnlearningService.open(postgres_url, **keys) as again:
        assert again.status().live == (3 if way == "delete" else 4)
        assert again.queue() == [] and again.verify().ok


def end_lock(service):
    with service._state.database.read() as connection:
        ended = connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_locks"
                " WHERE locktype = 'advisory' AND granted"
            )
        )
        assert ended.scalars().all() == [True]


@pytest.fixture
def ledger(postgres_url, tmp_path, monkeypatch):
    monkeypatch.setenv("DEMUR_KEYS", str(tmp_path / "state"))
    budgets = {Erasure(): Budget(1.0, 1e-6)}
    rule = {"dataset": "d", "budgets": budgets, "filter": "rdp"}
    with Ledger.open(postgres_url, **rule) as opened:
        yield opened


JOINT = {"scope": "joint", "capacity": 2}


def test_a_charge_still_under_way_is_not_taken_for_none(ledger, tmp_path):
    """Abandoned as unpaid and paid a moment later, it would look like a rollback."""
    place, paid = str(tmp_path / "service.db"), ledger.paid
    committing, writers = threading.Event(), []

    def slow(connection):
        if threading.current_thread() in writers:
            committing.set()
            threading.Event().wait(0.7)

    def lose_the_answer(*what, **more):
        writers.append(threading.Thread(target=paid, args=what, kwargs=more))
        writers[0].start()
        assert committing.wait(10)
        raise OutcomeUnknown("lost")

    sa.event.listen(ledger._store._engine, "commit", slow)
    with open_service(place, ledger=ledger, **JOINT) as service:
        fill(service, range(6))
        ledger.paid = lose_the_answer
        with pytest.raises(OutcomeUnknown):
            service.delete(0)
        del ledger.paid
    writers[0].join()
    assert len(ledger.entries()) == 1
    with open_service(place, ledger=ledger, **JOINT) as service:
        assert service.verify().ok


def test_a_ledger_out_of_reach_is_no_rewritten_journal(ledger, tmp_path):
    place = str(tmp_path / "service.db")
    with open_service(place, ledger=ledger, **JOINT) as service:
        fill(service, range(6))
        service.delete(0)

    def lost(*_):
        raise LedgerUnreachable("lost")

    ledger._commit = lost
    with pytest.raises(LedgerUnreachable):
        open_service(place, ledger=ledger, **JOINT)
