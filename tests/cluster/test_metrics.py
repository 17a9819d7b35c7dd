"""Metrics against brute force."""

import itertools
import math

import numpy as np
import pytest

from demur.cluster.metrics import assign, centroid_error, quality

rng = np.random.default_rng(5)


def test_assign_is_the_nearest_centre():
    points, centres = rng.random((50, 3)), rng.random((4, 3))
    squares = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    labels, sse = assign(points, centres)
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    assert sse == pytest.approx(squares.min(axis=1).sum(), rel=1e-12)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_centres_are_matched_as_well_as_can_be(k):
    true, found = rng.random((k, 2)), rng.random((k, 2))
    spread = ((true - true.mean(axis=0)) ** 2).sum()
    every = [
        ((found[list(order)] - true) ** 2).sum()
        for order in itertools.permutations(range(k))
    ]
    right = math.sqrt(min(every) / spread)
    assert centroid_error(true, found) == pytest.approx(right, rel=1e-12)
    assert math.sqrt(every[0] / spread) >= right  # taken as they come: not smaller
    shifted = centroid_error(true + 7.0, found + 7.0)
    assert shifted == pytest.approx(right, rel=1e-9)


def test_matching_matters():
    true = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert centroid_error(true, true[[2, 0, 1]]) == 0.0
    unmatched = ((true[[2, 0, 1]] - true) ** 2).sum()
    assert unmatched > 1.0


def test_shapes_must_agree_and_one_centre_has_no_spread():
    with pytest.raises(ValueError, match="one shape"):
        centroid_error(np.zeros((2, 2)), np.zeros((3, 2)))
    assert math.isnan(centroid_error(np.zeros((1, 2)), np.ones((1, 2))))


def test_quality_of_the_truth_and_of_one_heap():
    points = np.vstack([np.full((40, 2), 0.1), np.full((60, 2), 0.9)])
    points += 0.01 * rng.normal(size=points.shape)
    labels = np.repeat([0, 1], [40, 60])
    best = np.array([points[:40].mean(axis=0), points[40:].mean(axis=0)])
    sse = assign(points, best)[1]
    found = quality(points, labels, best[::-1].copy(), best=best, best_sse=sse)
    assert (found.ari, found.increase) == (1.0, 0.0)
    assert found.nmi == pytest.approx(1.0)
    assert found.silhouette > 0.9 and found.centroid_error == 0.0
    heap = np.array([[0.5, 0.5], [5.0, 5.0]])
    worse = quality(points, labels, heap, best=best, best_sse=sse)
    assert worse.ari == 0.0 and math.isnan(worse.silhouette) and worse.increase > 1e3


def test_silhouette_of_many_rows_is_that_of_some():
    points = np.vstack(
        [rng.normal(0.2, 0.02, (9000, 2)), rng.normal(0.8, 0.02, (9000, 2))]
    )
    best = np.array([[0.2, 0.2], [0.8, 0.8]])
    labels = np.repeat([0, 1], 9000)
    found = quality(points, labels, best, best=best, best_sse=1.0)
    assert found.silhouette > 0.9
