"""Engines with a served ledger: a head, clusters, a training run, deletions.

Spark is in tests/adapters/spark/test_served_ledger.py.
"""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import Budget, Erasure, Filter, ReplaceOne
from demur.cluster import PrivateKMeans
from demur.convex import BallPrototypeClassifier
from demur.core.adjacency import Ball
from demur.training import Checkpoint
from demur.unlearning import UnlearningService
from tests.commands import run
from tests.serve.kit import UNIT, serving

pytestmark = pytest.mark.slow
BALLS = {Ball(0.3, space="records"): Budget(2.0, 1e-5)}


@pytest.fixture
def rows():
    x = np.random.default_rng(0).normal(size=(60, 3)) * 0.3
    return x, (x[:, 0] > 0).astype(int)


@pytest.fixture
def service(tmp_path):
    """A service over a ledger with these terms, without approvals."""

    def started(**terms):
        given = {"approval": None} | terms
        return serving(str(tmp_path / "v.db"), tmp_path, **given)

    return started


def test_a_head(service, rows):
    with service(budgets=BALLS) as served:
        with served.open() as ledger:
            head = BallPrototypeClassifier(
                epsilon=1.0, delta=1e-5, radius=0.3, ledger=ledger
            ).fit(*rows)
            assert head.entry_.actor == "the analyst"
            assert ledger.commit_of(head.entry_) is not None
        assert served.ledger.verify().ok


def test_a_command_charges_a_signed_ledger_that_the_service_signs(
    service, rows, tmp_path, monkeypatch
):
    x, y = rows
    np.savez(tmp_path / "rows.npz", X=x, y=y)
    key = Ed25519PrivateKey.generate()
    with service(budgets=BALLS, signing_key=key) as served:
        monkeypatch.setenv("DEMUR_TOKEN", served.tokens["analyst"])
        url = f"{served.url}/ledgers/visits"
        made = run(
            "head", "fit", tmp_path / "rows.npz", "--label", "y", "--epsilon", 1.0,
            "--delta", 1e-5, "--radius", 0.3, "--ledger", url,
            "--output", tmp_path / "head.npz",
        )  # fmt: skip
        assert made.exit_code == 0, made.output
        (entry,) = served.ledger.entries()
        assert entry.actor == "the analyst"
        signer = served.ledger.terms.signer
        assert signer and served.ledger.verify(signer=signer).ok
        for command in ("show", "verify", "requests"):
            told = run("ledger", command, url)
            assert told.exit_code == 0, told.output


def test_clusters_of_local_reports(service, rows):
    budgets = {ReplaceOne(): Budget(20.0)}
    with service(budgets=budgets, filter=Filter.pure()) as served:
        with served.open() as ledger:
            x = np.clip(rows[0] + 0.5, 0.0, 1.0)
            model = PrivateKMeans(
                n_clusters=2, epsilon=8.0, ledger=ledger, random_state=0
            ).fit(x)
            assert model.cluster_centers_.shape == (2, 3)
            assert model.entry_.actor == "the analyst"
        assert served.ledger.verify().ok and not served.ledger.unfinished()


def test_a_training_run_is_taken_up_again_in_its_reservation(service, tmp_path):
    from tests.training.kit import make_plan, train  # noqa: PLC0415

    class Stop(Exception):
        pass

    def stop(report):
        if report.step == 2:
            raise Stop

    budgets = {UNIT: Budget(50.0, 1e-5)}
    with service(budgets=budgets, filter=Filter.pure()) as served:
        call = {
            "plan": make_plan(iterations=4),
            "label": "a run",
            "checkpoint": Checkpoint(tmp_path / "run", every=1),
            "delta": None,
        }
        with served.open() as ledger, pytest.raises(Stop):
            train(**call, ledger=ledger, callback=stop)
        (entry,) = served.ledger.entries()
        assert served.ledger._drawn(entry) > 0 and served.ledger.unfinished()
        with served.open() as ledger:
            done = train(**call, ledger=ledger)
        assert done.entry.id == entry.id, "paid once"
        assert served.ledger._drawn(entry) == entry.count
        assert served.ledger.verify().ok and len(served.ledger.entries()) == 1
        assert not served.ledger.unfinished()


def test_deletions(service, rows, tmp_path):
    with service(budgets={Erasure(): Budget(1.0, 1e-5)}) as served:
        x = rows[0][:20, :2]
        with (
            served.open() as ledger,
            UnlearningService.open(
                tmp_path / "model.db", mode="ogd", dimension=2, epsilon=0.5,
                delta=1e-6, capacity=4, ledger=ledger,
            ) as deletions,
        ):  # fmt: skip
            deletions.insert_many(x, x[:, 0], record_ids=range(20))
            certificate = deletions.delete(3)
            assert certificate.epsilon <= 0.5
        assert served.ledger.entries() and served.ledger.verify().ok
