"""What tasks do, without Spark: faults, runs of ids, the digest of rows, the draw."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from demur.adapters.errors import BadRows
from demur.adapters.spark import checked_rows
from demur.adapters.spark.checked_rows import Runs, points_and_ids
from demur.adapters.spark.drawing import ReportTask, probe
from demur.core.errors import DemurError, NotPaidFor
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from demur.mechanisms.sampling.row_streams import RowStreams

RNG = np.random.default_rng(4)
POINTS = RNG.random((500, 3))
IDS = RNG.permutation(2**50 + np.arange(500))


def batch_of(ids, points):
    columns = [pa.array(ids), *(pa.array(column) for column in np.array(points).T)]
    return pa.RecordBatch.from_arrays(columns, names=["id", "x0", "x1", "x2"])


def found(*batches):
    (told,) = checked_rows.check_partition(iter(batches))
    return told.to_pylist()[0]


def lanes(*batches):
    told = found(*batches)
    return told["first"], told["second"]


def folded_in_python(ids, points):
    """The two lanes, in Python's integers."""
    mask, sums = 2**64 - 1, [0, 0]
    finalisers = (
        (0x9E3779B97F4A7C15, 33, 0xFF51AFD7ED558CCD, 33, 0xC4CEB9FE1A85EC53, 33),
        (0xD1B54A32D192ED03, 30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31),
    )
    for i, row in zip(ids, np.array(points), strict=True):
        words = [int(i) & mask, *row.view(np.uint64).tolist()]
        for lane, (start, s1, m1, s2, m2, s3) in enumerate(finalisers):
            h = start
            for word in words:
                h ^= word
                h = ((h ^ (h >> s1)) * m1) & mask
                h = ((h ^ (h >> s2)) * m2) & mask
                h ^= h >> s3
            sums[lane] = (sums[lane] + h) & mask
    return tuple(s - 2**64 if s >= 2**63 else s for s in sums)


def test_the_lanes_are_those_of_plain_integers():
    assert lanes(batch_of(IDS, POINTS)) == folded_in_python(IDS, POINTS)


def test_order_and_batches_leave_no_trace():
    turn = RNG.permutation(500)
    whole = lanes(batch_of(IDS, POINTS))
    ids, points = IDS[turn], POINTS[turn]
    parts = [batch_of(ids[a : a + 90], points[a : a + 90]) for a in range(0, 500, 90)]
    assert lanes(*parts) == whole
    narrow = batch_of(IDS.astype(np.int64) - 2**50, POINTS)
    small = batch_of((IDS - 2**50).astype(np.int16), POINTS)
    assert lanes(narrow) == lanes(small) != whole


def changes():
    """Rows that differ from POINTS by as little as an accident can change."""
    for i, j in ((0, 0), (499, 2), (250, 1)):
        one = POINTS.copy()
        one[i, j] = np.nextafter(one[i, j], 2.0)
        yield IDS, one
    swapped = POINTS.copy()
    swapped[[3, 4]] = swapped[[4, 3]]  # two people trade their points
    yield IDS, swapped
    yield IDS, POINTS[:, [1, 0, 2]]  # two columns trade places
    traded = POINTS.copy()
    traded[[3, 4], 1] = traded[[4, 3], 1]  # two coordinates of one column
    yield IDS, traded
    renamed = IDS.copy()
    renamed[7] += 1000
    yield renamed, POINTS
    yield IDS[:-1], POINTS[:-1]
    yield np.r_[IDS, IDS[:1]], np.r_[POINTS, POINTS[:1]]


def test_small_changes_are_noticed_in_either_lane():
    first, second = lanes(batch_of(IDS, POINTS))
    for ids, points in changes():
        other = lanes(batch_of(ids, points))
        assert other[0] != first and other[1] != second


def test_a_digest_that_adds_values_would_miss_some():
    def added(ids, points):
        return (len(ids), int(ids.sum()), *points.view(np.uint64).sum(axis=0).tolist())

    plain = added(IDS, POINTS)
    missed = [added(i, np.ascontiguousarray(p)) == plain for i, p in changes()]
    assert sum(missed) == 2  # rows that trade points, and coordinates


def test_faults_are_counted_and_not_shown():
    points = POINTS.copy()
    points[0, 1], points[1, 0], points[1, 1] = -1.0, np.nan, np.inf
    points[2, 1], points[3, 0] = 1.0 + 2**-52, -(2.0**-1074)
    ids = IDS.copy()
    ids[5] = -12345678
    batch = batch_of(ids, points)
    holed = batch.set_column(
        3, "x2", pa.array([None if 7 < i < 11 else 0.5 for i in range(500)])
    )
    told = found(holed)
    counts = told["missing"], told["not_finite"], told["outside"], told["negative"]
    assert counts == (3, 1, 3, 1)
    with pytest.raises(BadRows) as refused:
        points_and_ids(holed)
    text = str(refused.value)
    assert "3 rows have no value" in text and "1 rows hold NaN" in text
    assert "12345678" not in text and "1.0000" not in text and "e-" not in text


def test_a_missing_id_is_a_fault():
    batch = batch_of(IDS, POINTS).set_column(
        0, "id", pa.array([None, *IDS[1:].tolist()])
    )
    assert found(batch)["missing"] == 1


def test_the_edges_of_the_cube_are_inside():
    matrix, ids = points_and_ids(
        batch_of([0, 2**63 - 1], [[0.0, 1.0, -0.0], [1.0, 0.0, 0.5]])
    )
    assert matrix.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.5]]
    assert ids.tolist() == [0, 2**63 - 1] and ids.dtype == np.uint64


class Part:
    def __init__(self, *batches):
        runs = Runs()
        for ids in batches:
            runs.add(np.array(ids))
        self.low, self.high = runs.low, runs.high


def test_runs_go_on_over_batches_and_break_where_ids_fall():
    part = Part([1, 2, 5], [6, 9, 3], [4, 4])
    assert (part.low, part.high) == ([1, 3, 4], [9, 4, 4])


@pytest.mark.parametrize(
    ("parts", "apart"),
    [
        ([Part([1, 2, 3]), Part([4, 5])], True),
        ([Part([4, 5]), Part([1, 2, 3])], True),
        ([Part([4, 5, 1, 2]), Part([3])], True),  # two files in one partition
        ([Part([1, 2, 3]), Part([3, 4])], False),  # one id twice
        ([Part([1, 5]), Part([2, 3])], False),  # none twice, but it takes a shuffle
        ([Part([1, 1])], False),
        ([Part([2, 3, 1, 2])], False),
        ([Part(), Part([1])], True),
    ],
)
def test_runs_that_lie_apart_hold_no_id_twice(parts, apart):
    assert checked_rows._disjoint(parts) is apart


def test_too_many_runs_say_nothing():
    falling = Part(np.arange(5000)[::-1])
    assert falling.low is None and not checked_rows._disjoint([falling])


def test_an_empty_partition_tells_zero():
    told = found()
    assert told["rows"] == 0 and told["low"] == []


def test_the_sum_over_ids_tells_of_ids_alone():
    whole = found(batch_of(IDS, POINTS))["ids"]
    assert found(batch_of(IDS[::-1], POINTS))["ids"] == whole
    other = IDS.copy()
    other[0], other[1] = other[0] + 1, other[1] - 1  # a plain sum would not notice
    twice = np.r_[IDS[:-1], IDS[:1]]
    assert len({found(batch_of(i, POINTS))["ids"] for i in (IDS, other, twice)}) == 3


class Drifted(BPM):
    """An executor whose reports are one grid step away from the driver's."""

    def draw_rows(self, matrix, ids, streams):
        return super().draw_rows(matrix, ids, streams) + self.grid


MECHANISMS = [BPM(8.0, "auto", 3), LaplaceReports(8.0, 3), GaussianReports(8.0, 3)]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_a_task_draws_only_what_the_driver_would(mechanism):
    key, names = bytes(range(32)), ("id", "x0", "x1", "x2")
    shared = SimpleNamespace(combined=lambda: key)
    batch, paid_for = batch_of(IDS, POINTS), mechanism.fingerprint
    task = ReportTask(mechanism, names, shared, probe(mechanism), paid_for)
    (drawn,) = task([batch])
    ids = IDS.astype(np.uint64)
    expected = mechanism.draw_rows(POINTS, ids, RowStreams(key))
    values = np.column_stack([drawn.column(name) for name in names[1:]])
    assert np.array_equal(values, expected)
    assert drawn.column("id").to_pylist() == IDS.tolist()
    drifted = Drifted(8.0, "auto", 3)
    assert probe(drifted) != probe(MECHANISMS[0])
    with pytest.raises(DemurError, match="version of demur"):
        other = ReportTask(
            drifted, names, shared, probe(mechanism), drifted.fingerprint
        )
        next(other([batch]))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_a_task_refuses_a_mechanism_that_was_not_paid_for(mechanism):
    """Before the key is put together, and even if the driver would draw the same."""
    names, asked = ("id", "x0", "x1", "x2"), []

    def combined():
        asked.append(True)
        return bytes(32)

    shared = SimpleNamespace(combined=combined)
    sharp = type(mechanism)(1e4, *([math.inf] * isinstance(mechanism, BPM)), 3)
    task = ReportTask(sharp, names, shared, probe(sharp), mechanism.fingerprint)
    with pytest.raises(NotPaidFor, match="Nothing was drawn here"):
        next(task([batch_of(IDS, POINTS)]))
    assert not asked
    # The twin: a task that is told what it wants to hear gives the points away.
    believing = replace(task, paid_for=sharp.fingerprint)
    (drawn,) = believing([batch_of(IDS, POINTS)])
    values = np.column_stack([drawn.column(name) for name in names[1:]])
    assert asked and np.abs(values - POINTS).max() < 0.5
