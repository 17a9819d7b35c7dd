"""What a report mechanism declares beside its cost: the bound it enforces."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from demur.core.bounds import BoundSource
from demur.mechanisms import BPM
from demur.mechanisms.bpm.sampler import draw
from demur.mechanisms.bpm.table import BITS, make_table
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.reports import ReportMechanism, Reports
from demur.mechanisms.sampling.rounded_gaussian import rounded_gaussian
from demur.mechanisms.sampling.row_streams import RowStreams

EVERY: list[ReportMechanism] = [
    BPM(8.0, 0.5, 3),
    LaplaceReports(8.0, 3),
    GaussianReports(8.0, 3),
]
UNBOUNDED: list[ReportMechanism] = [BPM(8.0, math.inf, 3), *EVERY[1:]]


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


@pytest.mark.parametrize("epsilon", [1e-150, 1e-9, 0.1, 8.0, 1e5])
@pytest.mark.parametrize("d", [1, 2, 64, 100_000])
def test_no_honest_laplace_report_is_cut(epsilon: float, d: int) -> None:
    """The chance of one beyond `reach`, in 30 digits: below e^-600, and not in vain."""
    laplace = BPM(epsilon, math.inf, d)
    with mp.workdps(30):
        beyond = mp.gammainc(d, mp.mpf(epsilon) * laplace.reach, regularized=True)
        assert mp.log(beyond) <= -600
        nearer = mp.gammainc(d, mp.mpf(epsilon) * laplace.reach / 2, regularized=True)
        assert mp.log(nearer) > -1000 or d > 64
    assert math.fmod(laplace.reach, laplace.grid) == 0.0
    by_coordinate = LaplaceReports(epsilon, d)
    assert by_coordinate.reach * by_coordinate.rate >= 600


def test_a_huge_L_reaches_no_further_than_an_infinite_one() -> None:
    huge, infinite = BPM(50.0, 1e4, 2).reach, BPM(50.0, math.inf, 2).reach
    assert huge == pytest.approx(infinite, rel=1e-3) and huge < 20.0
    # Where the uniform part is seen, be it once in 10^200, the whole cube counts.
    for L in (0.3, 1.0, "auto", 100.0):
        bpm = BPM(4.0, L, 2)
        assert bpm.uniform_weight > 1e-260 and bpm.reach == bpm.L
    near = BPM(4.0, 155.0, 2)  # kL below 635: the cube itself ends before
    assert near.uniform_weight < 1e-260 and near.reach == 155.0


def test_a_laplace_report_beyond_its_reach_is_cut_to_it() -> None:
    """A table whose only shell is far out: every report would lie beyond."""
    bpm = BPM(4.0, math.inf, 2)
    table = make_table(4.0, math.inf, 2)
    far = replace(
        table, outer=np.array([4096.0]), upper=np.array([2**BITS], dtype=np.uint64),
        guide=np.zeros_like(table.guide), rare=0, epsilon=4.0,
    )  # fmt: skip
    ids = np.arange(200, dtype=np.uint64)
    drawn = draw(np.full((200, 2), 0.5), ids, far, bpm.grid, RowStreams(bytes(32)))
    found = drawn * bpm.grid
    assert found.min() == -bpm.reach and found.max() <= 1.0 + bpm.reach
    assert (np.abs(found) > 0.99 * bpm.reach).any(axis=1).all()
    assert len(Reports(found, ids, bpm)) == 200


@pytest.mark.parametrize(("epsilon", "d"), [(0.5, 1), (8.0, 3), (1.0, 50)])
def test_no_gaussian_noise_reaches_further_than_declared(
    epsilon: float, d: int
) -> None:
    """The words of the largest noise there is: a tail probability of all zeros."""
    mechanism = GaussianReports(epsilon, d)
    grid = mechanism._row("cube").grid
    zeros = np.zeros(1, dtype="<u8").tobytes()
    (largest,) = rounded_gaussian(
        1, mechanism.sigma / grid, io.BytesIO(zeros), lambda i: io.BytesIO(bytes(128))
    )
    farthest = float(largest) * grid
    assert 36 * mechanism.sigma < farthest < mechanism.reach < 1.3 * farthest


@pytest.mark.parametrize("mechanism", UNBOUNDED, ids=str)
@pytest.mark.parametrize("value", [1e160, -1e160, math.inf, math.nan])
def test_a_report_that_cannot_be_is_refused_with_its_place(
    mechanism: ReportMechanism, value: float
) -> None:
    values, ids = np.full((500, 3), 0.5), np.arange(500) + 10_000
    values[321, 1] = value
    with pytest.raises(ValueError, match=r"position 321 \(row id 10321\)") as caught:
        Reports(values, ids, mechanism)
    assert f"{1.0 + mechanism.reach:g}" in str(caught.value)
    values[321, 1] = mechanism.reach if value > 0 else -mechanism.reach
    assert len(Reports(values, ids, mechanism)) == 500


def test_gaussian_reports_promise_their_total_for_any_replacement() -> None:
    mechanism = GaussianReports(2.0, 4)
    assert mechanism.total <= 4.0 == pytest.approx(mechanism.total, rel=1e-15)
    assert mechanism.delta == GaussianReports(2.0, 4, mechanism.delta).delta
