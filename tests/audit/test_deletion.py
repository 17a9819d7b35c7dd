"""The retrain test under the interface of the audits."""

import numpy as np
import pytest

from demur import AddOrRemoveOne
from demur.audit import AuditResult, Level, audit_deletion, audits_of
from demur.ledger import Budget, Ledger
from demur.unlearning import verify_against_retrain
from demur.unlearning.models import OGD, Ridge
from demur.unlearning.retrain.worlds import stream
from tests.audit.twins import gaussian

CONFIDENCE = 1 - 1e-6


class KeepsItsCache(OGD):
    """A deletion that leaves the last records where they are."""

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.seen = {"recent": []}

    def insert_many(self, X, Y):
        self.seen["recent"] = [*self.seen["recent"], *(x.tolist() for x in X)][-16:]
        return super().insert_many(X, Y)


class ForgetsNothing(Ridge):
    """A deletion that subtracts nothing."""

    def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
        self.forget_nothing(noise)


def findings(mode, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    events = stream(X, X @ np.ones(6) / 6, {80: 79, 119: (3, 118)})
    arguments = {"trials": 400, "confidence": CONFIDENCE} | options
    return verify_against_retrain(mode, events, **arguments)


def test_a_sound_mode_is_not_refuted():
    report = findings(OGD(6))
    result = audit_deletion(report)
    assert not result.refuted and result.level is Level.DELETION
    assert result.unit == "Erasure()" and result.runs == 400
    assert result.alpha == pytest.approx(1e-6, rel=1e-6)
    assert result.claimed == 1.0 and result.lower_bound <= 1.0
    assert str(result).startswith("not refuted at n = 400: unlearning: ogd")
    assert AuditResult.from_json(result.to_json()) == result


def test_an_exact_mode_claims_no_epsilon_and_alarms_falsely_never():
    result = audit_deletion(findings(Ridge(6)))
    assert not result.refuted and result.claimed is None and result.alpha == 0.0
    assert result.runs == 2


@pytest.mark.parametrize("mode", [KeepsItsCache(6), ForgetsNothing(6)])
def test_broken_deletions_are_refuted(mode):
    report = findings(mode)
    result = audit_deletion(report, subject="a twin")
    assert result.refuted and result.subject == "a twin"
    # The evidence names the checks and repeats no exact distance.
    assert "failed checks: " in result.evidence
    for check in report.deletions:
        assert f"{check.distance:.3g}" not in str(result)


def test_noise_of_a_fiftieth_is_told_apart():
    def too_little(mode, records):
        return mode.shift_bound(records) / 50

    result = audit_deletion(findings(OGD(6), noise_scale=too_little))
    assert result.refuted and result.lower_bound > result.claimed


def test_it_is_noted_with_an_entry():
    with Ledger(Budget(epsilon=9.0, delta=1e-5), unit=AddOrRemoveOne()) as ledger:
        entry = gaussian().release([0.0] * 3, ledger=ledger, label="x").entry
        result = audit_deletion(findings(OGD(6)), ledger=ledger, entry=entry)
        assert audits_of(ledger, entry) == (result,)
        with pytest.raises(TypeError, match="belong together"):
            audit_deletion(findings(OGD(6)), ledger=ledger)
