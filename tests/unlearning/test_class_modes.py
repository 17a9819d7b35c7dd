"""What every mode over classes does alike, and that its guarantee is checked."""

import ast
import inspect
import json
import math
import textwrap

import numpy as np
import pytest

from demur.unlearning import make_mode, verify_against_retrain
from demur.unlearning.models import OGD, Logistic, Ridge, kernels, newton_kernels
from demur.unlearning.models.classes import nearest_distribution
from demur.unlearning.retrain.worlds import stream
from tests.unlearning.classes_kit import EVERY_CLASS_MODE, class_records, conflict

pytestmark = pytest.mark.slow

every_mode = pytest.mark.parametrize(
    "make", EVERY_CLASS_MODE.values(), ids=EVERY_CLASS_MODE
)


def same(one, two):
    a, b = one.state(), two.state()
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@every_mode
@pytest.mark.parametrize(("d", "K"), [(1, 2), (1, 5), (7, 3), (40, 4)])
def test_many_rows_are_single_events_bit_for_bit(make, d, K):
    X, Y = class_records(120, d, K, seed=d)
    X[5] *= 1e200  # its square overflows
    one, two = make(d, K), make(d, K)
    alone = np.array([one.insert(x, float(y)) for x, y in zip(X, Y, strict=True)])
    parts = [two.insert_many(X[a:b], Y[a:b]) for a, b in ((0, 1), (1, 50), (50, 120))]
    assert np.array_equal(alone, np.concatenate(parts))
    assert same(one, two) and one.digest() == two.digest()
    assert one.published().shape == (d * K,) and one.size == d * K
    assert np.ptp(alone) > 0.01  # the model does learn


@every_mode
def test_predictions_are_classes_and_probabilities(make):
    X, Y = class_records(400, 5, 4, seed=1)
    mode = make(5, 4)
    mode.insert_many(X, Y)
    for x, y in zip(X[:50], Y[:50], strict=True):
        p = mode.probabilities(x)
        assert p.shape == (4,) and p.min() >= 0 and p.sum() == pytest.approx(1.0)
        assert mode.predict(x) == mode.predict(x.tolist()) == np.argmax(p)
        # What an insertion returns is that of the record's own class, from before.
        own = mode.copy().insert(x, float(y))
        row, _ = mode.check(x, y)
        W = mode.published().reshape(4, 5)
        expected = (W @ row)[int(y)] if mode.exact else p[int(y)]
        lagged = mode.exact and mode.config()["refresh"]
        assert lagged or own == pytest.approx(expected, abs=1e-12)
    right = [mode.predict(x) == y for x, y in zip(X, Y, strict=True)]
    assert np.mean(right) > 0.45  # four classes


@every_mode
@pytest.mark.parametrize("bad", [-1, 3, 0.5, math.nan, math.inf, "1"])
def test_what_is_no_class_is_refused_and_changes_nothing(make, bad):
    mode = make(2, 3)
    X, Y = class_records(20, 2, 3)
    mode.insert_many(X, Y)
    before = mode.digest()
    noise = None if mode.exact else np.zeros(6)
    with pytest.raises((ValueError, TypeError), match="y must be"):
        mode.insert(X[0], bad)
    if not isinstance(bad, str):
        with pytest.raises(ValueError, match="must be"):
            mode.insert_many(X[:2], [0.0, bad])
        if mode.needs_record:
            with pytest.raises(ValueError, match="must be"):
                mode.delete(X[0], bad, noise)
    assert mode.digest() == before


@every_mode
def test_a_restored_mode_goes_on_bit_for_bit(make):
    X, Y = class_records(120, 6, 3, seed=3)
    mode = make(6, 3)
    mode.insert_many(X[:80], Y[:80])
    noise = None if mode.exact else np.full(18, 1e-3)
    mode.delete(X[3], Y[3], noise)
    twin = mode.copy()
    assert twin.digest() == mode.digest() and twin.classes == 3
    for world in (mode, twin):
        world.skip()
        world.insert_many(X[80:], Y[80:])
        world.delete(X[[7, 9]], Y[[7, 9]], noise, records=2)
        world.forget_nothing(noise)
    assert same(mode, twin)
    config = json.loads(json.dumps(mode.config()))
    assert config["classes"] == 3
    assert make_mode(mode.name, 6, **config).digest() == mode.fresh().digest()
    for other in (
        make(6, 4),
        make(9, 2),
        make_mode(mode.name, 6),
        make_mode("ogd", 18),
    ):
        with pytest.raises((ValueError, KeyError)):
            other.restore(mode.state() if other.size != 18 else make(5, 3).state())
    if not mode.exact:
        with pytest.raises(ValueError, match="shape"):
            mode.delete(X[20], Y[20], np.zeros(6))


@every_mode
def test_the_retrain_test_passes(make):
    X, Y = class_records(150, 6, 4, seed=5)
    mode = make(6, 4)
    deletions = {60: 5, 90: 89, 120: (1, 2, 30), 149: 77}
    report = verify_against_retrain(mode, stream(X, Y, deletions), trials=100)
    assert report.passed, str(report)
    assert report.tightest <= 1.0


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_twin_with_a_bound_of_seven_tenths_is_caught(factor):
    class Scaled(OGD):
        def shift_bound(self, records=1):
            return factor * super().shift_bound(records)

    X, Y = conflict(400, 5, 3, 300)
    mode = Scaled(5, classes=3, lam=1e-3)
    report = verify_against_retrain(mode, stream(X, Y, {399: 300}), trials=50)
    assert 0.95 / factor < report.tightest < 1.0 / factor
    assert report.passed == (factor == 1.0)


@pytest.mark.slow
def test_half_the_noise_over_classes_is_told_apart():
    """The statistic sees the shift in K d numbers: at full noise under the claim, and
    more than half of it; at half the noise over it.
    """
    X, Y = conflict(400, 5, 3, 300)
    events = stream(X, Y, {399: 300})
    mode = OGD(5, classes=3, lam=1e-3)
    honest = verify_against_retrain(mode, events, trials=4000)
    assert honest.passed, str(honest)
    test = honest.distinguishing
    assert 0.5 * test.mu_claimed < test.mu_lower <= test.mu_claimed

    def half(mode, records):
        return mode.shift_bound(records) / test.mu_claimed / 2

    sabotaged = verify_against_retrain(mode, events, trials=4000, noise_scale=half)
    assert [f.split(":")[0] for f in sabotaged.failures] == ["distinguishing"]


def test_twin_without_its_newton_step_is_caught():
    class Lazy(Logistic):
        """Takes the record out of its sums and says it is done."""

        def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
            w, residual = self._vectors[0].copy(), self._scalars[1]
            super().delete(x, y, noise, records=records, grid=grid)
            self._vectors[0], self._scalars[1] = w, residual
            self.publish(noise, grid=grid)

    X, Y = class_records(150, 6, 4, seed=5)
    options = {"classes": 4, "Lambda": 3.0, "tolerance": 0.02}
    for kind, passes in ((Logistic, True), (Lazy, False)):
        events = stream(X, Y, {100: 5, 149: 77})
        report = verify_against_retrain(kind(6, **options), events, trials=50)
        assert report.passed == passes, str(report)
    assert report.failures[0].startswith("shift")


def test_twin_that_subtracts_the_features_alone_is_caught():
    """The record's class stays in the sums: the digest tells."""

    class Forgetful(Ridge):
        def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
            kept = self._sums[:, self.dimension :].copy()
            super().delete(x, y, noise, records=records, grid=grid)
            self._sums[:, self.dimension :] = kept

    X, Y = class_records(100, 5, 3)
    report = verify_against_retrain(Forgetful(5, classes=3), stream(X, Y, {99: 4}))
    assert {failure.split(":")[0] for failure in report.failures} >= {"digest", "shift"}


def test_a_class_that_was_not_learned_is_refused_where_it_shows():
    mode = Ridge(2, classes=3)
    mode.insert([0.6, 0.0], 0)
    mode.insert([0.0, 0.6], 1)
    before = mode.digest()
    with pytest.raises(ValueError, match="not among the live"):
        mode.delete([0.6, 0.0], 2)  # no record of class 2 is live
    assert mode.digest() == before


@pytest.mark.parametrize("name", ["ogd", "ridge", "logistic"])
@pytest.mark.parametrize("classes", [1, 0, -2, 2.0, True, "3"])
def test_numbers_of_classes_are_checked(name, classes):
    with pytest.raises((ValueError, TypeError), match="classes must be"):
        make_mode(name, 3, classes=classes)


def test_options_that_do_not_go_with_classes_are_refused():
    with pytest.raises(ValueError, match="y_bound must be 1"):
        Ridge(3, classes=3, y_bound=2.0)
    with pytest.raises(ValueError, match='loss must be "logistic" with classes'):
        OGD(3, classes=3, loss="huber")
    assert OGD(3, classes=3).loss == "logistic" and OGD(3).loss == "huber"
    for mode in (OGD(3), Ridge(3), Logistic(3)):
        assert mode.classes is None and mode.size == 3
        with pytest.raises(ValueError, match="without classes="):
            mode.probabilities([0.0, 0.0, 0.0])


def test_the_nearest_distribution_is_the_nearest():
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.normal(size=6) * rng.choice([0.1, 1.0, 10.0])
        p = nearest_distribution(scores)
        assert p.min() >= 0 and p.sum() == pytest.approx(1.0)
        others = rng.dirichlet(np.ones(6) * 0.3, size=300)
        assert (
            np.linalg.norm(others - scores, axis=1) >= np.linalg.norm(p - scores)
        ).all()
        assert np.argmax(p) == np.argmax(scores)


def test_the_nearest_distribution_of_huge_scores_is_certain():
    assert nearest_distribution(np.array([1e200, -1e200, 1e20])).tolist() == [1, 0, 0]


def test_both_kernel_modules_have_one_softmax():
    sources = [
        ast.dump(ast.parse(textwrap.dedent(inspect.getsource(module.softmax.py_func))))
        for module in (kernels, newton_kernels)
    ]
    assert sources[0] == sources[1]


def test_softmax_keeps_its_error_bound():
    """u (2 K + 8) in all, from scores that are exact; infinite ranges included."""
    rng = np.random.default_rng(1)
    worst = 0.0
    for _ in range(400):
        K = int(rng.integers(2, 40))
        scores = rng.normal(size=K) * 10.0 ** rng.uniform(-3, 2.5)
        p = scores.copy()
        best = kernels.softmax(p)
        assert best == np.argmax(scores)
        s = scores.astype(np.longdouble)
        exact = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        error = float(np.abs(exact - p).sum())
        worst = max(worst, error / (2.0**-53 * (2 * K + 8)))
    assert 0.01 < worst <= 1.0
