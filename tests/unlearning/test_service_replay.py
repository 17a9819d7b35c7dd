"""A service under the audit's replay: seeded, stamped, and its broken twins."""

import dataclasses
import itertools

import numpy as np
import pytest

from demur.audit.replays import Breach, replay
from demur.core.adjacency import Erasure
from demur.core.entropy import Seeded
from demur.core.errors import NotPaidFor, NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms.gaussian import Gaussian
from demur.unlearning import verify_certificate
from demur.unlearning.service.deletion import Deletions
from tests.unlearning.service_kit import (
    DIM,
    NOISY,
    UnlearningService,
    fill,
    open_service,
    record,
)

GONE, LEARNED, MORE = 7, 20, 26
CASES = {
    "subject": {},
    "one request": {"requests_per_subject": 1},
    "joint": {"scope": "joint", "capacity": 3},
    "encrypted": {"record_store": "encrypted"},
}

EVERY_CASE = ["subject"] + [
    pytest.param(case, marks=pytest.mark.slow)
    for case in ("one request", "joint", "encrypted")
]


def worlds():
    """A record along an axis of its own, far off: it moves the model all it can.

    In world 2 it is blank, which is the regulariser's step alone.
    """
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(MORE, DIM))
    rows[:, -1] = 0.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[GONE] = np.eye(DIM)[-1]
    targets = np.sign(rows[:, 0] + 0.1)
    targets[GONE] = 50.0
    blank = rows.copy()
    blank[GONE] = 0.0
    return (rows, targets), (blank, targets)


def replayed(tmp_path, terms=None, service_class=UnlearningService):
    """Learn, forget the record, then another one, and learn on."""
    folders = itertools.count()

    def run(data, source):
        rows, targets = data
        terms_of_all = {"mode": "ogd", "dimension": DIM, "source": source, **NOISY}
        path = tmp_path / f"{next(folders)}.db"
        with service_class.open(path, **terms_of_all, **(terms or {})) as live:
            live.insert_many(
                rows[:LEARNED],
                targets[:LEARNED],
                record_ids=range(LEARNED),
                subject_ids=[number // 2 for number in range(LEARNED)],
            )
            held = live.delete_many([GONE])[0]
            live.delete(3)
            later = live.insert_many(
                rows[LEARNED:], targets[LEARNED:], record_ids=range(LEARNED, MORE)
            )
            return {
                "state": live._state.mode.state(),
                "published": live.published(),
                "later": later,
                "certificate": (held.record, held.sigma, held.epsilon, held.operation),
            }

    return replay(run, worlds(), unit=Erasure(), subject="a service")


@pytest.mark.parametrize("case", EVERY_CASE)
def test_a_replay_accepts_the_service(tmp_path, case):
    found = replayed(tmp_path, CASES[case])
    assert not found.refuted, [v.message for v in found.violations]
    # Two uses for each of two deletions (the noise, and the sum), on a hard pair.
    assert found.uses == 4 and found.sensitivity_used > 0.99


class HalfNoise(Deletions):
    """Charges what it should and draws half of it."""

    def noised(self, payment, rehearsed, records, plan):
        full = plan.mechanism
        half = Gaussian(float(full.sigma) / 2.0, full.sensitivity, full.dimension)
        self.compare(payment.key, full)
        halved = dataclasses.replace(plan, mechanism=half)
        return super().noised(payment, rehearsed, records, halved)

    def compare(self, key, full):
        """The key itself compares what is drawn with what was paid for."""


class HalfNoisePastTheKey(HalfNoise):
    """The same, asking the key about the noise that it did not draw."""

    def compare(self, key, full):
        drawing = key.authorise(full.fingerprint, full.digest(np.zeros(DIM)))
        key.authorise = lambda *_, **__: drawing


class Silent(Deletions):
    """Draws its noise and leaves it out."""

    @staticmethod
    def _apply(mode, records, noise, grid):
        Deletions._apply(mode, records, np.zeros(DIM), grid)


class Refused(UnlearningService):
    _deletions = HalfNoise


class Halved(UnlearningService):
    _deletions = HalfNoisePastTheKey


class Silenced(UnlearningService):
    _deletions = Silent


@pytest.mark.parametrize("case", EVERY_CASE[:3])
def test_half_the_noise_is_refuted(tmp_path, case):
    (tmp_path / "key").mkdir()
    with pytest.raises(NotPaidFor, match="other parameters"):
        replayed(tmp_path / "key", CASES[case], Refused)
    found = replayed(tmp_path, CASES[case], Halved)
    assert found.breaches() == {Breach.PRICE}


def test_no_noise_is_refuted(tmp_path):
    assert Breach.RESULT in replayed(tmp_path, service_class=Silenced).breaches()


@pytest.mark.slow
def test_equal_seeds_make_equal_services_and_others_do_not(tmp_path):
    drawn = []
    for number, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"{number}.db"
        with open_service(path, source=Seeded(seed)) as service:
            fill(service, range(5))
            service.delete(1)
            drawn.append(service.published())
        with open_service(path, source=Seeded(seed)) as again:  # no name comes back
            again.delete(2)
            assert again.verify().ok
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_whatever_a_seed_touches_is_stamped(tmp_path):
    path = tmp_path / "model.db"
    with open_service(path, source=Seeded(1)) as service:
        fill(service, range(5))
        held = [service.delete(1), *service.retrain([(2, *record(2))])]
        assert "NOT PRIVATE" in repr(service)
        assert not any(entry.private for entry in service.ledger.entries())
    with pytest.raises(NotPrivate, match="open it with a seeded source"):
        UnlearningService.open(path)
    for certificate in held:
        assert certificate.statement.startswith("NOT PRIVATE")
        found = verify_certificate(certificate, path)
        assert found.problems == (
            "the service is for tests: its noise has a seed, NOT PRIVATE",
        )


@pytest.mark.slow
def test_a_seed_never_reaches_a_service_or_a_ledger_in_use(tmp_path):
    path = tmp_path / "model.db"
    with open_service(path) as service:
        fill(service, range(3))
        assert "NOT PRIVATE" not in repr(service) + service.delete(1).statement
    with pytest.raises(NotPrivate, match="this service is not"):
        UnlearningService.open(path, source=Seeded(1))
    opening = {"dataset": "d", "budgets": {Erasure(): Budget(1.0, 1e-6)}}
    terms = {"source": Seeded(1), "requests_per_subject": 1}
    other = tmp_path / "other.db"
    with Ledger.open(tmp_path / "ledger.db", **opening) as ledger:
        with pytest.raises(NotPrivate, match="testing=True"):
            open_service(other, ledger=ledger, **terms)
        assert ledger.entries() == [] and not other.exists()
    with Ledger.open(tmp_path / "testing.db", testing=True, **opening) as ledger:
        with open_service(other, ledger=ledger, **terms) as service:
            fill(service, range(3))
            assert service.delete(1).statement.startswith("NOT PRIVATE")
