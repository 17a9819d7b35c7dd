"""An attached deletion service: its queue and certificates, on the ledger's page."""

import http.client
import json
import zipfile
from datetime import timedelta

import numpy as np
import pytest

from demur import Budget, Erasure
from demur.report import check_evidence
from demur.serve import deletion_services
from demur.unlearning import Certificate, QueuedRequest, UnlearningService
from tests.commands import run
from tests.serve.kit import serving


def used_up(folder):
    """A service with one certificate, whose capacity is used up: a deletion waits."""
    path = folder / "model.db"
    with UnlearningService.open(
        path, mode="ogd", dimension=2, epsilon=1.0, delta=1e-6, capacity=1,
        on_exhausted="queue",
    ) as service:  # fmt: skip
        rng = np.random.default_rng(0)
        x = rng.normal(size=(20, 2)) * 0.3
        service.insert_many(x, x[:, 0], record_ids=[f"person {i}" for i in range(20)])
        assert service.delete("person 1").epsilon <= 1.0
        queued = service.delete("person 2", deadline=timedelta(days=3))
        assert isinstance(queued, QueuedRequest)
        return path, queued


@pytest.fixture(scope="module")
def attached(tmp_path_factory):
    return used_up(tmp_path_factory.mktemp("model"))


def test_a_deletion_that_waits_is_shown_without_a_name(tmp_path, attached):
    path, queued = attached
    terms = {"budgets": {Erasure(): Budget(1.0, 1e-6)}, "approval": None}
    with serving(
        str(tmp_path / "v.db"), tmp_path, services={"visits": (str(path),)}, **terms
    ) as served:
        status, _, page = served.browser("viewer").get("/ledgers/visits/deletions")
        assert status == 200, page
        assert queued.record[:12] in page and "retrain the model" in page
        assert queued.deadline[:10] in page and "1 issued, newest first" in page
        assert "person" not in page


def test_certificates_are_in_the_evidence_of_an_auditor(tmp_path, attached):
    path, _ = attached
    with serving(
        str(tmp_path / "v.db"), tmp_path, services={"visits": (str(path),)}
    ) as served:
        link = http.client.HTTPConnection("127.0.0.1", served.port)
        cookie = served.browser("auditor").cookie
        where = "/ledgers/visits/evidence.zip"
        link.request("GET", where, headers={"Cookie": cookie})
        pack = tmp_path / "pack.zip"
        pack.write_bytes(link.getresponse().read())
        link.close()
    assert check_evidence(pack).ok
    with zipfile.ZipFile(pack) as archive:
        issued = json.loads(archive.read("certificates.json"))
    (certificate,) = issued["model.db"]
    own = Certificate.from_json(json.dumps(certificate))
    assert own.opening is None and own.epsilon <= 1.0
    made = run(
        "evidence", tmp_path / "v.db", "--service", path, "-o", tmp_path / "own.zip"
    )
    assert made.exit_code == 0, made.output
    with zipfile.ZipFile(tmp_path / "own.zip") as archive:
        assert json.loads(archive.read("certificates.json")) == issued


def test_the_address_of_a_database_stays_out_of_the_page():
    secret = "postgresql://user:hush@db/models?password=hush"
    assert deletion_services._name(secret) == "models"


def test_an_address_without_a_service_is_said(tmp_path):
    with serving(
        str(tmp_path / "v.db"),
        tmp_path,
        services={"visits": (str(tmp_path / "no.db"),)},
    ) as served:
        status, _, page = served.browser("viewer").get("/ledgers/visits/deletions")
        assert status == 400 and "no deletion service" in page
    with pytest.raises(Exception, match="no such ledger"):
        with serving(
            str(tmp_path / "w.db"), tmp_path / "w", services={"other": ("x",)}
        ):
            pass
