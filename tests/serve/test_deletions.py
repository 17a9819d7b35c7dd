"""The queue of an attached deletion service, on the ledger's page."""

from datetime import timedelta

import numpy as np
import pytest

from demur import Budget, Erasure
from demur.unlearning import QueuedRequest, UnlearningService
from tests.serve.kit import serving


@pytest.fixture
def attached(tmp_path):
    """A service whose capacity is used up, so that a deletion waits."""
    path = tmp_path / "model.db"
    with UnlearningService.open(
        path, mode="ogd", dimension=2, epsilon=1.0, delta=1e-6, capacity=1,
        on_exhausted="queue",
    ) as service:  # fmt: skip
        rng = np.random.default_rng(0)
        x = rng.normal(size=(20, 2)) * 0.3
        service.insert_many(x, x[:, 0], record_ids=[f"person {i}" for i in range(20)])
        service.delete("person 1")
        queued = service.delete("person 2", deadline=timedelta(days=3))
        assert isinstance(queued, QueuedRequest)
        return path, queued


def test_a_deletion_that_waits_is_shown_without_a_name(tmp_path, attached):
    path, queued = attached
    terms = {"budgets": {Erasure(): Budget(1.0, 1e-6)}, "approval": None}
    with serving(
        str(tmp_path / "v.db"), tmp_path, services={"visits": (str(path),)}, **terms
    ) as served:
        status, _, page = served.browser("viewer").get("/ledgers/visits/deletions")
        assert status == 200, page
        assert queued.record[:12] in page and queued.reason in page
        assert "person 2" not in page and queued.deadline[:10] in page


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
