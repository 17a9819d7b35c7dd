"""Engines with a served ledger: a head, a training run, a service of deletions."""

import numpy as np
import pytest

from demur import Budget, Erasure, Filter
from demur.convex import BallPrototypeClassifier
from demur.core.adjacency import Ball
from demur.unlearning import UnlearningService
from tests.serve.kit import UNIT, serving

pytestmark = pytest.mark.slow


def test_a_head(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)) * 0.3
    y = (x[:, 0] > 0).astype(int)
    budgets = {Ball(0.3, space="records"): Budget(2.0, 1e-5)}
    with serving(
        str(tmp_path / "v.db"), tmp_path, budgets=budgets, approval=None
    ) as served:
        with served.open() as ledger:
            head = BallPrototypeClassifier(
                epsilon=1.0, delta=1e-5, radius=0.3, ledger=ledger
            ).fit(x, y)
            assert head.entry_.actor == "the analyst"
            assert ledger.commit_of(head.entry_) is not None
        assert served.ledger.verify().ok


def test_a_training_run(tmp_path):
    from tests.training.kit import make_plan, train  # noqa: PLC0415

    budgets = {UNIT: Budget(50.0, 1e-5)}
    terms = {"budgets": budgets, "filter": Filter.pure(), "approval": None}
    with serving(str(tmp_path / "v.db"), tmp_path, **terms) as served:
        with served.open() as ledger:
            done = train(make_plan(iterations=4), ledger=ledger, label="a run")
            assert served.ledger._drawn(done.entry) == done.entry.count
        assert served.ledger.verify().ok


def test_deletions(tmp_path):
    budgets = {Erasure(): Budget(1.0, 1e-5)}
    with serving(
        str(tmp_path / "v.db"), tmp_path, budgets=budgets, approval=None
    ) as served:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(20, 2)) * 0.3
        with (
            served.open() as ledger,
            UnlearningService.open(
                tmp_path / "model.db", mode="ogd", dimension=2, epsilon=0.5,
                delta=1e-6, capacity=4, ledger=ledger,
            ) as service,
        ):  # fmt: skip
            service.insert_many(x, x[:, 0], record_ids=range(20))
            certificate = service.delete(3)
            assert certificate.epsilon <= 0.5
        assert served.ledger.entries() and served.ledger.verify().ok
