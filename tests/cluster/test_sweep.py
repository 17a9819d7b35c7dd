"""A sweep: every setting, every trial, medians and bands."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_iris

from demur.cluster.metrics import Quality
from demur.cluster.sweep import METRICS, Band, SweepSettings, Trial, sweep
from demur.core.adjacency import Ball, ReplaceOne
from demur.mechanisms.bpm import BPM

X, y = load_iris(return_X_y=True)
X = (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))


@pytest.fixture(scope="module")
def found():
    told = []
    result = sweep(
        X,
        y,
        n_clusters=3,
        settings=SweepSettings([4.0, 400.0], [0.5, "auto"], trials=3, decoder="clip"),
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (12, 12)
    return result


@pytest.mark.slow
def test_every_setting_is_there(found):
    settings = {(t.epsilon, t.L, t.trial) for t in found.trials}
    assert len(settings) == len(found.trials) == 12
    assert {(b.epsilon, b.L) for b in found.bands()} == {
        (e, L) for e in (4.0, 400.0) for L in (0.5, "auto")
    }
    assert found.baseline.increase == 0.0 and found.baseline.ari == pytest.approx(
        0.716, abs=0.02
    )


@pytest.mark.slow
def test_little_noise_is_nearly_none_and_much_is_seen(found):
    bands = {(b.epsilon, b.L): b for b in found.bands()}
    weak = bands[400.0, "auto"].median
    assert weak.sse == pytest.approx(found.baseline.sse, rel=0.02)
    assert weak.centroid_error < 0.1
    assert bands[4.0, 0.5].median.sse > 2 * found.baseline.sse
    assert bands[4.0, 0.5].median.ari < weak.ari


def test_bands_are_percentiles():
    values, bpm = [1.0, 2.0, 3.0, 4.0, 5.0, math.nan], BPM(1.0, 0.5, 4)
    trials = [
        Trial("kmeans", 1.0, "auto", i, "clip", Quality(*([v] * len(METRICS))), bpm)
        for i, v in enumerate(values)
    ]
    band = Band.of("kmeans", 1.0, "auto", trials)
    assert band.median.sse == 3.0
    assert (band.low.ari, band.high.ari) == pytest.approx((1.4, 4.6))
    assert band.decoders == ("clip",)


@pytest.mark.parametrize("algorithm", ["gmm", "tmm"])
def test_mixtures_are_swept_too(algorithm):
    asked = SweepSettings([64.0], algorithms=[algorithm], trials=1, decoder="clip")
    one = sweep(X, y, n_clusters=3, settings=asked)
    assert one.trials[0].algorithm == algorithm
    assert np.isfinite(one.trials[0].quality.sse)


def test_without_labels_the_clusters_are_the_truth():
    asked = SweepSettings([1000.0], trials=1, decoder="plain")
    one = sweep(X, n_clusters=3, settings=asked)
    assert one.baseline.ari == 1.0 and one.trials[0].quality.ari > 0.8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilons": []}, "at least one"),
        ({"epsilons": [0.0]}, "epsilon must be positive"),
        ({"Ls": [-1.0]}, "L must be"),
        ({"trials": 0}, "trials must be"),
        ({"algorithms": []}, "algorithms must be"),
        ({"algorithms": ["tree"]}, "algorithms must be"),
        ({"points": X + 1.0}, "unit cube"),
    ],
)
def test_bad_input(change, words):
    asked = {"epsilons": [4.0], "trials": 1, **change}
    points = asked.pop("points", X)
    with pytest.raises(ValueError, match=words):
        sweep(points, y, n_clusters=3, settings=SweepSettings(**asked))


def test_prices_are_met_whatever_L_is():
    for unit in (ReplaceOne(), Ball(0.3, space="cube")):
        settings = SweepSettings([4.0], [0.25, 1.0, "auto"], unit=unit)
        for L in settings.Ls:
            bpm = settings.mechanism(4.0, L, 2, 1000)
            assert 3.999 < bpm.event(unit).epsilon <= 4.0
            assert L == "auto" or bpm.L == L
    # The twin compares at one rate: a small L then costs less, and is no comparison.
    rate = SweepSettings([4.0], [0.25])
    assert rate.mechanism(4.0, 0.25, 2, 1000).event(ReplaceOne()).epsilon == 1.0
