"""The service on a PostgreSQL server: the same promises, its secrets kept here."""

import pytest

from demur.core.adjacency import Erasure
from demur.ledger import Budget, Ledger
from demur.unlearning.refusals import ServiceBusy, ServiceMismatch
from demur.unlearning.service import UnlearningService
from demur.unlearning.witness import verify_certificate
from tests.ledger.conftest import postgres_url, server
from tests.unlearning.service_kit import fill, open_service, record

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


def test_a_new_epoch_needs_a_book_of_its_own(postgres_url, tmp_path):
    terms = {"keys": tmp_path / "keys", "scope": "joint", "capacity": 2}
    with open_service(postgres_url, **terms) as service:
        fill(service, range(6))
        service.delete(0)
        before = service.status()
        stay = [(n, *record(n)) for n in range(1, 6)]
        with pytest.raises(ServiceMismatch, match="one book"):
            service.retrain(stay)
        assert service.status() == before
    budgets = {Erasure(): Budget(1.0, 1e-6)}
    rule = {"dataset": "d", "budgets": budgets, "filter": "rdp"}
    with Ledger.open(tmp_path / "next.db", **rule) as book:
        with open_service(postgres_url, ledger=book, **terms) as service:
            service.retrain(stay)
            assert service.delete(1).book == book.id
            assert service.verify().ok
