"""The retrain test passes sound modes and rejects every sabotaged one."""

import dataclasses

import numpy as np
import pytest

from demur.unlearning import verify_against_retrain
from demur.unlearning.models import OGD, Logistic, Ridge, Seed
from demur.unlearning.retrain.worlds import Deletion, Insertion, stream
from tests.unlearning.modes_kit import unit_rows, worst_case

DELETIONS = {60: 5, 120: 119, 180: (1, 2, 150), 240: 77, 300: 299, 399: 3}


def targets(Y, mode):
    wants_labels = mode.name == "logistic" or getattr(mode, "loss", "") == "logistic"
    return (Y > 0).astype(float) if wants_labels else Y


def report_on(mode, deletions=DELETIONS, *, n=400, trials=1500, **options):
    X, Y = unit_rows(n, mode.dimension)
    events = stream(X, targets(Y, mode), deletions)
    return verify_against_retrain(mode, events, trials=trials, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        OGD(12),
        OGD(12, loss="logistic", lam=0.05),
        OGD(12, radius=0.3),
        Ridge(12, y_bound=3.0),
        Ridge(40, refresh=33, bits=24),
        Logistic(12, Lambda=5.0, tolerance=1e-2),
    ],
    ids=lambda m: f"{m.name}-{m.dimension}",
)
def test_sound_modes_pass(mode):
    report = report_on(mode)
    assert report.passed, str(report)
    assert len(report.deletions) == len(DELETIONS) and report.searched
    assert report.tightest <= 1.0
    if mode.exact:
        assert report.joint_distance == 0.0 and report.distinguishing is None
        assert "digests equal" in str(report)
    else:
        assert report.distinguishing.epsilon_lower <= 1.0
    assert str(report).endswith("passed")


@pytest.mark.slow
def test_the_seed_fails_in_direction_and_in_search():
    # Records that are still among the stored pairs when they are deleted.
    report = report_on(Seed(20), {60: 58, 120: 119, 180: 175, 240: 30, 399: 3})
    assert not report.passed
    kinds = {failure.split(":")[0] for failure in report.failures}
    assert {"direction", "search"} <= kinds
    assert report.moved_away > 0.5
    assert {trace.record for trace in report.traces} == {58, 119, 175}
    assert all("a run of" in trace.how for trace in report.traces)
    assert str(report).endswith("FAILED")


@pytest.mark.slow
def test_old_records_leave_the_seeds_pairs_but_its_step_still_moves_away():
    """As the notes measured: for an old record every deletion makes things worse."""
    report = report_on(Seed(20, safeguard=False), {100: 3, 200: 50, 300: 150, 399: 250})
    assert not report.traces
    assert report.moved_away == 1.0 and not report.passed


class LeakyInState(OGD):
    """Keeps the last records in its state, as a cache would."""

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.cache = np.zeros((16, dimension))

    def insert_many(self, X, Y):
        self.cache = np.roll(self.cache, -len(X), axis=0)
        self.cache[-min(len(X), 16) :] = np.asarray(X)[-16:] * 0.37
        return super().insert_many(X, Y)

    def state(self):
        return {**super().state(), "cache": self.cache.copy()}

    def restore(self, state):
        super().restore(state)
        self.cache = state["cache"].copy()


class LeakyOutside(OGD):
    """Keeps them beside its state, in an attribute nobody declared."""

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.seen = {"recent": []}

    def insert_many(self, X, Y):
        self.seen["recent"] = [*self.seen["recent"], *(x.tolist() for x in X)][-16:]
        return super().insert_many(X, Y)


@pytest.mark.slow
def test_a_leaky_cache_is_found_in_the_state():
    report = report_on(LeakyInState(12), {399: 395})
    kinds = {failure.split(":")[0] for failure in report.failures}
    assert {"search", "shift"} <= kinds  # and it is no part of what the noise hides
    assert report.traces[0].where == "state 'cache'"
    assert report_on(OGD(12), {399: 395}).passed


@pytest.mark.slow
def test_a_leaky_cache_is_found_beside_the_state():
    report = report_on(LeakyOutside(12), {399: 395})
    assert [failure.split(":")[0] for failure in report.failures] == ["search"]
    assert "seen['recent']" in report.traces[0].where


def worst_events(dimension=8, n=400, at=(7,)):
    X, Y = worst_case(n, dimension, at)
    return stream(X, Y, {n - 1: at})


@pytest.mark.slow
def test_noise_of_half_the_size_is_told_apart():
    def half(mode, records):
        return mode.shift_bound(records) / 0.26805 / 2

    honest = verify_against_retrain(OGD(8), worst_events(), trials=4000)
    assert honest.passed, str(honest)
    assert honest.tightest > 0.9
    assert honest.distinguishing.mu_lower > 0.5 * honest.distinguishing.mu_claimed
    sabotaged = verify_against_retrain(
        OGD(8), worst_events(), trials=4000, noise_scale=half
    )
    assert [f.split(":")[0] for f in sabotaged.failures] == ["distinguishing"]
    assert sabotaged.distinguishing.epsilon_lower > 1.0


def test_a_bound_that_is_too_small_is_caught():
    class Boastful(OGD):
        def shift_bound(self, records=1):
            return 0.85 * super().shift_bound(records)

    report = verify_against_retrain(Boastful(8), worst_events(), trials=200)
    assert report.failures[0].startswith("shift: 1 of 1")


def test_a_bound_that_forgets_the_subjects_other_records_is_caught():
    class OneOnly(OGD):
        def shift_bound(self, records=1):
            return super().shift_bound(1)

    events = worst_events(at=(7, 100, 350))
    assert verify_against_retrain(OGD(8), events, trials=200).passed
    report = verify_against_retrain(OneOnly(8), events, trials=200)
    assert any(failure.startswith("shift") for failure in report.failures)


def test_float_sums_are_caught_by_their_digest():
    class FloatRidge(Ridge):
        """Ridge on float sums of the same products."""

        def __init__(self, dimension, **config):
            super().__init__(dimension, **config)
            self.gram = np.zeros((dimension, dimension))

        def insert_many(self, X, Y):
            for x in X:
                self.gram += np.outer(x, x)
            return super().insert_many(X, Y)

        def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
            super().delete(x, y, noise, records=records, grid=grid)
            for row in np.atleast_2d(x):
                self.gram -= np.outer(row, row)

        def state(self):
            return {**super().state(), "gram": self.gram.copy()}

        def restore(self, state):
            super().restore(state)
            self.gram = state["gram"].copy()

        def digest(self):
            return super().digest() + str(hash(self.gram.tobytes()))

    report = report_on(FloatRidge(12, y_bound=3.0))
    kinds = {failure.split(":")[0] for failure in report.failures}
    assert kinds == {"digest", "shift"}


@pytest.mark.slow
def test_a_newton_step_that_is_left_out_is_caught():
    class Lazy(Logistic):
        """Downdates its sums and says it is done."""

        def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
            w, residual = self._vectors[0].copy(), self._scalars[1]
            super().delete(x, y, noise, records=records, grid=grid)
            self._vectors[0], self._scalars[1] = w, residual
            self.publish(noise, grid=grid)

    options = {"Lambda": 3.0, "tolerance": 1e-3}
    assert report_on(Logistic(12, **options), trials=100).passed
    report = report_on(Lazy(12, **options), trials=100)
    assert [failure.split(":")[0] for failure in report.failures][0] == "shift"


@pytest.mark.slow
def test_renewal_happens_where_the_certificate_runs_out():
    mode = Logistic(6, Lambda=3.0, tolerance=3e-3)
    report = report_on(mode, {t: t - 20 for t in range(100, 130)}, trials=200)
    assert report.passed, str(report)
    assert report.joint_distance <= report.joint_bound == 6e-3


def test_factories_and_labels_of_any_kind():
    X, Y = unit_rows(30, 5)
    events = [
        Insertion(f"p{i}", x, float(y))
        for i, (x, y) in enumerate(zip(X, Y, strict=True))
    ]
    report = verify_against_retrain(
        lambda: OGD(5), [*events, Deletion(("p3", "p9"))], trials=100
    )
    assert report.passed and report.deletions[0].records == ("p3", "p9")
    assert dataclasses.is_dataclass(report)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.mode = "x"


@pytest.mark.slow
def test_a_single_feature_is_not_searched_and_the_report_says_so():
    report = report_on(OGD(1))
    assert report.passed and not report.searched
    assert "NOT looked for" in str(report)


def test_streams_that_make_no_sense_are_refused():
    x = np.ones(3)
    learn = Insertion("a", x, 1.0)
    for events, message in (
        ([learn], "nothing to compare"),
        ([learn, Deletion(("b",))], "not live"),
        ([learn, Deletion(())], "not live"),
        ([learn, Deletion(("a",)), Deletion(("a",))], "not live"),
        ([learn, learn], "twice"),
    ):
        with pytest.raises(ValueError, match=message):
            verify_against_retrain(OGD(3), events)
    with pytest.raises(TypeError, match="Insertion and Deletion"):
        other: list = [("insert", x, 1.0)]
        verify_against_retrain(OGD(3), other)
    for options in ({"trials": 0}, {"confidence": 1.0}, {"epsilon": -1.0}):
        with pytest.raises(ValueError):
            verify_against_retrain(OGD(3), [learn, Deletion(("a",))], **options)
