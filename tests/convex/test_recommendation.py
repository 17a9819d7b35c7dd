"""A recommendation: public numbers alone, and the noise that the head then has."""

import inspect

import numpy as np
import pytest

from demur.convex import (
    BallDiscriminantClassifier,
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    HeadForm,
    recommend,
)
from demur.convex.heads import recommendation
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.preprocessing.second_moments import second_moment_bound
from tests.convex.kit import blobs

pytestmark = pytest.mark.slow

UNIT = Ball(0.3, space="records")


def test_no_data_are_touched():
    asked = set(inspect.signature(recommend).parameters)
    assert asked == {
        "n", "d", "K", "counts", "unit", "epsilon", "delta", "norm_bound", "bias_scale",
    }  # fmt: skip


def test_fewer_records_than_classes_have_an_answer_too():
    found = recommend(3, 2, 10, unit=UNIT, epsilon=1.0)
    assert found.best.head == "prototypes"
    assert all(np.isfinite(one.noise_share) for one in found.table)


@pytest.mark.parametrize("unit", [UNIT, ReplaceOne()])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_table_has_the_noise_of_the_heads_themselves(unit, classes):
    X, y = blobs(600, 4, classes)
    given = {"unit": unit, "epsilon": 2.0, "classes": list(range(classes))}
    found = recommend(600, 4, classes, unit=unit, epsilon=2.0)
    means, descent, output, moments = found.table
    head = BallPrototypeClassifier(**given).fit(X, y)
    if isinstance(unit, Ball):  # at a replacement the counts are noisy themselves
        rms = np.sqrt(np.mean(np.square(head.privacy_.sigma)))
        assert means.noise_share == pytest.approx(rms, rel=1e-3)
    kind = BallLogisticRegression if classes == 2 else BallSoftmaxClassifier
    vectors = 1.0 if classes == 2 else np.sqrt(classes)
    exact = kind(lam="auto", **given).fit(X, y).privacy_
    assert exact.sensitivity.lam == output.lam
    share = vectors * exact.sigma / exact.sensitivity.minimiser_radius
    assert output.noise_share == pytest.approx(share, rel=1e-3)
    steps = kind(lam=0.0, mechanism="noisy_gd", steps=7, **given).fit(X, y).privacy_
    form = HeadForm("logistic" if classes == 2 else "softmax", lam=0.0,
                    norm_bound=1.0, num_classes=classes)  # fmt: skip
    longest = recommendation.gradient_norm_bound(form, theta_radius=1e4)
    share = vectors * steps.sigma / np.sqrt(7) / longest
    assert descent.noise_share == pytest.approx(share, rel=1e-3)
    sigma = BallDiscriminantClassifier(**given).fit(X, y).privacy_.sigma
    moved = 2.0 if isinstance(unit, ReplaceOne) else unit.radius
    scale = moved / second_moment_bound(moved, 1.0) * np.sqrt(3 / 7)
    # Noise alone, drawn: its largest eigenvalue is near the edge where d is large.
    share = sigma * np.sqrt(2 * 4) / (scale * 600) * 4
    assert moments.noise_share == pytest.approx(share, rel=1e-3)


def test_more_records_and_more_epsilon_lead_from_means_to_descent():
    heads = []
    for n, epsilon in ((300, 0.5), (3000, 1.0), (300_000, 1.0), (300_000, 8.0)):
        heads.append(recommend(n, 64, 10, unit=UNIT, epsilon=epsilon).best.mechanism)
    assert heads == ["output", "output", "noisy_gd", "noisy_gd"]
    few = recommend(1000, 8, 2, unit=UNIT, epsilon=1.0).table[2].lam
    many = recommend(100_000, 8, 2, unit=UNIT, epsilon=1.0).table[2].lam
    assert many < few / 100


def test_discriminant_analysis_is_recommended_where_the_measured_sets_say_so():
    """Above and below the share at which it took the lead (docs/convex.md)."""
    unit = Ball(0.42, space="records")
    for n, d, classes, epsilon, head in (
        (880, 64, 10, 1.0, "prototypes"),
        (880, 64, 10, 2.0, "discriminant"),
        (7000, 384, 77, 2.0, "prototypes"),
        (7000, 384, 77, 4.0, "discriminant"),
    ):
        assert recommend(n, d, classes, unit=unit, epsilon=epsilon).best.head == head


def test_auto_lam_is_the_smallest_that_keeps_its_share():
    form = HeadForm("logistic", lam=1.0, norm_bound=1.0)
    lam = recommendation.auto_lam(form, UNIT, 5000, epsilon=1.0, delta=1e-6)
    at = recommendation.LAMS.index(lam)
    mu = recommendation.gaussian_mu(1.0, 1e-6)
    shares = [
        recommendation._output_share(
            HeadForm("logistic", lam=one, norm_bound=1.0), UNIT, 5000, mu
        )
        for one in recommendation.LAMS[at - 1 : at + 1]
    ]
    assert shares[1] <= recommendation.OUTPUT_SHARE * 1.001
    assert shares[0] > recommendation.OUTPUT_SHARE
    largest = recommendation.auto_lam(form, UNIT, 2, epsilon=0.01, delta=1e-6)
    assert largest == recommendation.LAMS[-1]


def test_lam_auto_depends_on_no_record():
    X, y = blobs(300, 4, 2)
    one = BallLogisticRegression(lam="auto", radius=0.3).fit(X, y).privacy_
    two = BallLogisticRegression(lam="auto", radius=0.3).fit(-X * 0.1, 1 - y).privacy_
    assert one.sensitivity == two.sensitivity
    with pytest.raises(ValueError, match="lam must be a number for mechanism"):
        head = BallLogisticRegression(lam="auto", radius=0.3, mechanism="noisy_gd")
        head.fit(X, y)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"K": 1}, "at least two"),
        ({"counts": [5, 6]}, "add up to n=10"),
        ({"counts": [10]}, "2 sizes of classes"),
        ({"counts": [5, 5], "unit": ReplaceOne()}, "counts must be left out"),
        ({"unit": AddOrRemoveOne()}, "number of records is public"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_wrong_questions_are_refused(given, words):
    asked = {"n": 10, "d": 3, "K": 2, "unit": UNIT, "epsilon": 1.0} | given
    with pytest.raises((ValueError, TypeError), match=words):
        recommend(**asked)
    assert "recommended" in str(recommend(10, 3, 2, unit=UNIT, epsilon=1.0))
