"""What a report mechanism declares beside its cost: the bound it enforces."""

from __future__ import annotations

import math

import pytest

from demur.core.bounds import BoundSource
from demur.mechanisms import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplacePerDimension
from demur.mechanisms.reports import ReportMechanism

EVERY: list[ReportMechanism] = [
    BPM(8.0, 0.5, 3),
    LaplacePerDimension(8.0, 3),
    GaussianReports(8.0, 3),
]


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda m: type(m).__name__)
def test_the_bound_declared_is_the_one_enforced(mechanism: ReportMechanism) -> None:
    declared = mechanism.declaration()
    ((value, source),) = [(b.value, b.source) for b in declared.bounds]
    assert (value, source) == (1.0, BoundSource.ENFORCED)
    mechanism.check([[0.0, 1.0, 0.5]])
    for outside in (-1e-9, 1.0 + 1e-9):
        with pytest.raises(ValueError):
            mechanism.check([[0.0, outside, 0.5]])
    assert "row ids" in declared.unprotected
    assert any("one row" in line for line in declared.assumptions)


def test_unbounded_reports_reach_everywhere() -> None:
    assert LaplacePerDimension(8.0, 3).reach == math.inf
    assert GaussianReports(8.0, 3).reach == math.inf


def test_gaussian_reports_promise_their_total_for_any_replacement() -> None:
    mechanism = GaussianReports(2.0, 4)
    assert mechanism.total <= 4.0 == pytest.approx(mechanism.total, rel=1e-15)
    assert mechanism.delta == GaussianReports(2.0, 4, mechanism.delta).delta
