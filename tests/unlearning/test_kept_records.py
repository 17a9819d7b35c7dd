"""The search of the retrain test: learners that keep a deleted record are found.

Each keeps the last sixteen records in one form and never forgets one. The honest
learners beside them hold live records, random numbers and statistics in the same forms.
"""

import time
import warnings

import numpy as np
import pytest

from demur.unlearning import (
    DuplicateStaysLive,
    MemoryPair,
    PrivacyOdometer,
    UnlearnableRegressor,
    verify_against_retrain,
)
from demur.unlearning.models import MODES, OGD, Logistic, Ridge, make_mode
from demur.unlearning.retrain import reachable, search, sequences
from demur.unlearning.retrain.worlds import stream
from tests.unlearning import keepers
from tests.unlearning.keepers import FORMS, ROWS, Keeps, rows_of
from tests.unlearning.modes_kit import unit_rows

pytestmark = pytest.mark.slow


def report_on(mode, dimension=12, n=60, deletions=None, rows=None):
    X, Y = unit_rows(n, dimension, seed=3)
    X = X if rows is None else rows
    events = stream(X, np.clip(Y, -1, 1), deletions or {n - 1: n - 4})
    return verify_against_retrain(mode, events, trials=20)


def kinds(report):
    return [failure.split(":")[0] for failure in report.failures]


@pytest.mark.parametrize(
    ("form", "dimension"),
    [
        *((form, 12) for form in FORMS),
        *((form, 8) for form in ("halves", "bytes", "scaled", "float16")),
        *((form, 40) for form in ("halves", "json", "shifted", "float16")),
        *((form, 4) for form in ("array", "shifted", "dict, shuffled", "pickled list")),
        *((form, 2) for form in ("list", "json")),
    ],
)
def test_a_kept_record_is_found(form, dimension):
    twin = type("Twin", (Keeps,), {"form": staticmethod(FORMS[form])})
    report = report_on(twin(dimension), dimension)
    assert kinds(report) == ["search"], str(report)
    assert [trace.record for trace in report.traces] == [56]


@pytest.mark.parametrize(
    "twin",
    [
        keepers.InItsClass,
        keepers.InAGlobal,
        keepers.InADefault,
        keepers.InACachedFunction,
        keepers.with_a_closure(),
    ],
)
def test_a_record_kept_outside_the_object_is_found_in_each_run(twin):
    assert kinds(report_on(twin(12))) == ["search"]
    second = report_on(twin(12))  # the place is filled by now
    if (
        twin is keepers.InACachedFunction
    ):  # the same object as before the run: only named
        assert any("remembered" in name for name in second.search.held_before)
    else:
        assert kinds(second) == ["search"]


def test_what_held_the_record_before_the_run_is_not_counted_and_named():
    X, _ = unit_rows(60, 12, seed=3)
    keepers.GLOBAL_CACHE.append(X)
    try:
        report = report_on(keepers.OGDHere(12))
        assert report.passed, str(report)
        assert any("GLOBAL_CACHE" in name for name in report.search.held_before)
        assert "held a record before the run" in str(report)
        assert kinds(report_on(Keeps(12))) == ["search"]
    finally:
        keepers.GLOBAL_CACHE.clear()


# -- honest learners: no alarm --------------------------------------------------


@pytest.mark.parametrize(
    "learner",
    [
        OGD,
        keepers.Honest,
        keepers.Sampling,
        keepers.Compressing,
        keepers.Writing,
        keepers.Random,
        keepers.Statistics,
    ],
)
def test_honest_learners_raise_no_alarm(learner):
    """Chance alarms are below 2^-20 for each record by the argument of `likeness`."""
    rng = np.random.default_rng(11)
    for number, kind in enumerate(rng.permutation(ROWS)[:4]):
        d = (4, 8, 20)[number % 3]
        deletions = {29: (0, 19, 28)}
        report = report_on(
            learner(d, norm_bound=1e6), d, 30, deletions, rows_of(kind, 30, d, rng)
        )
        assert not report.traces, (kind, d, str(report))


# -- what the report says -------------------------------------------------------


def test_records_that_cannot_be_told_from_chance_are_named():
    rng = np.random.default_rng(0)
    rows = rows_of("one-hot", 60, 12, rng)
    report = report_on(Keeps(12), rows=rows)
    assert report.passed and not report.searched
    assert report.search.unsearchable == (56,)
    assert "NOT looked for: 1 record(s)" in str(report)
    rows = np.vstack([unit_rows(59, 12)[0], unit_rows(59, 12)[0][:1]])
    twice = report_on(Keeps(12), rows=rows, deletions={59: 0})  # a copy stays live
    assert twice.search.unsearchable == (0,)


def test_a_record_of_two_levels_is_found_as_a_whole():
    rows = rows_of("two levels", 60, 40, np.random.default_rng(1))
    report = report_on(Keeps(40), 40, rows=rows)
    assert "a run of 40 features, unchanged" in report.failures[0]


def test_the_report_says_what_was_looked_for_and_what_cannot_be_found():
    report = report_on(OGD(12))
    assert report.passed and report.search.places > 3
    for words in ("JSON", "global variables", "encrypted", "files", "mixtures"):
        assert words in str(report)


@pytest.mark.parametrize("twin", [keepers.Ciphered, keepers.Mixed])
def test_it_is_true_that_these_are_not_found(twin):
    assert report_on(twin(12)).passed


def test_large_places_are_read_in_part_and_said(monkeypatch):
    class Large(OGD):
        def __init__(self, dimension, **config):
            super().__init__(dimension, **config)
            self.large, self.text = np.zeros(2000), "x" * 3000

    monkeypatch.setattr(sequences, "MOST_NUMBERS", 500)
    monkeypatch.setattr(sequences, "MOST_BYTES", 1000)
    report = report_on(Large(12))
    left_out = " ".join(report.search.left_out)
    assert "large (1,500 of 2,000 numbers)" in left_out
    assert "text (2,000 of 3,000 bytes)" in left_out
    assert "NOT looked at: " in str(report)
    monkeypatch.setattr(search, "MOST_LOOKED_AT", 100)
    assert "and all farther away" in str(report_on(Large(12)))
    monkeypatch.setattr(reachable, "MOST_OBJECTS", 50)
    assert "there are too many" in str(report_on(OGD(12)))


# -- large dimensions -----------------------------------------------------------


def odometer():
    return PrivacyOdometer(1.0, 1e-5, lam=0.5, gamma=1.0)


class Enormous(OGD):
    """A mode of one's own that checks nothing."""

    size = 10**8


REFUSED = {
    **{mode: lambda mode=mode: make_mode(mode, 10**8) for mode in MODES},
    "classes": lambda: OGD(10**7, classes=3),
    "MemoryPair": lambda: MemoryPair(10**8, odometer()),
    "regressor": lambda: UnlearnableRegressor().partial_fit(np.zeros((1, 10**8)), [0]),
    "retrain": lambda: report_on(Enormous(12)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_hundred_million_features_are_refused_at_once(what):
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"at most 16,777,216; got .* GiB"):
        REFUSED[what]()
    assert time.perf_counter() - begin < 1.0


@pytest.mark.parametrize("mode", [Ridge, Logistic])
def test_sums_that_do_not_fit_in_memory_are_refused(mode):
    with pytest.raises(ValueError, match=r"sums of products take .* GiB and this"):
        mode(10**6)


# -- duplicates -----------------------------------------------------------------


ROW = np.array([0.25, -0.5, 0.125])


def pair_with(ids, mode="ridge"):
    budget = PrivacyOdometer(1.0, 1e-5, lam=0.5, gamma=1e9)
    model = MemoryPair(3, budget, mode=mode)
    budget.finalize_with(model.finalize_calibration(1.0), T_estimate=10**6)
    for record_id in ids:
        model.insert(ROW, 0.5, record_id=record_id)
    return model


@pytest.mark.parametrize("mode", ["ridge", Logistic(3, tolerance=1e5)])
def test_the_owner_is_told_of_copies_that_stay_live(mode):
    model, target = pair_with([], mode), 1.0
    for record_id, row in (("a", ROW), ("b", ROW), ("c", ROW / 2), ("d", ROW)):
        model.insert(row, target, record_id=record_id)
    with pytest.warns(DuplicateStaysLive, match="2 live record") as caught:
        model.delete(ROW, target, record_id="a")
    (warning,) = [w.message for w in caught]
    assert warning.record_ids == ("b", "d") and model.deletes_seen == 1
    # It may end in a log: no id and no content.
    assert not any(text in str(warning) for text in ("'b'", "'d'", "0.25", "0.125"))
    model.delete(ROW / 2, target, record_id="c")  # no copy, no warning
    model.delete_many(["b", "d"], [ROW, ROW], [target] * 2)  # both go: none stays


def test_a_deletion_by_content_and_a_subjects_copies_are_told_too():
    model = pair_with(["a"])
    model.insert(ROW, 0.5)
    with pytest.warns(DuplicateStaysLive) as caught:
        model.delete(ROW, 0.5)
    assert [w.message.record_ids for w in caught] == [("a",)]
    model = pair_with([])
    for record_id, subject in (("a", "Ada"), ("b", "Ada"), ("c", "Bob")):
        model.insert(ROW, 0.5, record_id, subject)
    with pytest.warns(DuplicateStaysLive) as caught:
        model.delete([ROW, ROW], [0.5, 0.5], subject_id="Ada")
    assert [w.message.record_ids for w in caught] == [("c",)]
    model.delete(ROW, 0.5, record_id="c")


def test_a_warning_that_is_made_an_error_leaves_the_deletion_in_place():
    model = pair_with(["a", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DuplicateStaysLive):
            model.delete(ROW, 0.5, record_id="a")
    assert model.deletes_seen == 1 and "a" not in model.registry
