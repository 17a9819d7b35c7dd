"""What leaves a search does not depend on how many runs there were.

Two searches have the same key, and the first run wins in both; one of them has one run
and the other five. Result, winner, statement and ledger must be the same, byte for
byte, but for what names the entry and its time.
"""

import functools
import io
import pickle
from dataclasses import replace

import numpy as np
import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Budget,
    Ledger,
    Promise,
    ReplaceOne,
    Seeded,
    ZeroOut,
)
from demur.cluster import CentralKMeans
from demur.convex import BallLogisticRegression, BallPrototypeClassifier
from demur.core.accounting import repetitions as laws
from demur.core.entry import Entry
from demur.mechanisms import Gaussian
from demur.tuning import (
    BinomialRepetitions,
    NoisyScore,
    PrivateGridSearch,
    PrivateSearch,
    SearchCandidate,
    SearchTerms,
    correct_answers,
    held_back,
    search_kmeans,
    search_services,
)
from demur.tuning import search as search_module
from demur.unlearning import Publications
from tests.convex.kit import blobs

LAW = BinomialRepetitions(8, 0.9)


def terms():
    return SearchTerms(source=Seeded(3))


class Plain(pickle.Pickler):
    """Pickles whatever is held; entries are compared on their own."""

    def persistent_id(self, held):
        return "an entry" if isinstance(held, Entry) else None


def plain(value):
    file = io.BytesIO()
    Plain(file, protocol=4).dump(value)
    return file.getvalue()


@pytest.fixture
def left(tmp_path, monkeypatch):
    """What leaves `search(ledger)` for one run and for five, as bytes."""
    runs = []
    one, draw = PrivateSearch._one, laws.draw

    def first_wins(self, paying, key, run, chosen):
        outcome, score = one(self, paying, key, run, chosen)
        runs.append(score)
        return outcome, score if run == 0 else -1e300

    monkeypatch.setattr(PrivateSearch, "_one", first_wins)

    def left_by(search, unit, epsilon):
        found = []
        for count in (1, 5):

            def drawn(law, read, count=count):
                draw(law, read)  # the same bytes are used up
                return count

            monkeypatch.setattr(laws, "draw", drawn)
            runs.clear()
            place = tmp_path / f"{count}.db"
            with Ledger.open(
                place,
                dataset="rows",
                budgets={unit: Budget(epsilon, 1e-4)},
                filter="pure",
                testing=True,
            ) as ledger:
                value = search(ledger)
                (entry,) = ledger.entries()
                named = replace(entry, id="", time="")
                facts = plain(value), repr(named), ledger.tip().sequence
            assert len(runs) == count and np.isfinite(runs).all()
            found.append((*facts, place.stat().st_size))
        return found

    return left_by


OTHER_HEADS = ({"estimator": [BallLogisticRegression(lam=0.05)]},)


def heads(ledger, others=OTHER_HEADS):
    X, y = blobs(80, 3, 2, spread=0.2)
    grid = [{"lam": [0.1, 1.0]}, *others]
    head = BallPrototypeClassifier(epsilon=2.0, radius=0.3)
    search = PrivateGridSearch(
        head, grid, ledger=ledger, repetitions=LAW, source=Seeded(3)
    ).fit(X, y)
    return {k: v for k, v in vars(search).items() if k not in ("ledger", "source")}


def clusterings(ledger):
    points = np.random.default_rng(0).uniform(size=(300, 2))
    grid = {"n_clusters": [1, 2], "random_state": [0, 1]}
    return search_kmeans(
        CentralKMeans(epsilon=4.0),
        grid,
        points,
        ledger=ledger,
        repetitions=LAW,
        terms=terms(),
    )


def services(ledger):
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (300, 2))
    return search_services(
        [{"mode": "ridge", "Lambda": 1.0}, {"mode": "ridge", "Lambda": 1e6}],
        X,
        X @ [1.0, -1.0],
        budget=Budget(4.0, 1e-6),
        publications=Publications(epsilon=2.0, delta=1e-6, count=4),
        ledger=ledger,
        repetitions=LAW,
        terms=terms(),
    )


SEARCHES = [
    (heads, Ball(0.3, space="records"), 2.0),
    (clusterings, ReplaceOne(), 4.0),
    (services, ZeroOut(), 4.0),
]


@pytest.mark.parametrize(("search", "unit", "epsilon"), SEARCHES)
def test_one_run_and_five_leave_the_same(left, search, unit, epsilon):
    one, five = left(search, unit, epsilon)
    assert one == five


def test_a_winner_that_holds_what_later_runs_wrote_is_found(left, monkeypatch):
    """The twin: runs that share a list, as a cache or a log would."""
    shared, fit = [], BallPrototypeClassifier.fit

    def noted(self, *rows):
        fit(self, *rows)
        shared.append(float(self.prototypes_[0, 0]))
        self.log_ = shared
        return self

    monkeypatch.setattr(BallPrototypeClassifier, "fit", noted)

    def search(ledger):
        shared.clear()
        return heads(ledger, others=())

    one, five = left(search, Ball(0.3, space="records"), 2.0)
    assert one[0] != five[0] and one[1:] == five[1:]


class Clock:
    """A clock that each run moves on by ten seconds; a wait is noted."""

    def __init__(self):
        self.now, self.noted = 1000.0, lambda: None

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.noted()
        self.now += seconds


@pytest.mark.parametrize("after", [60.0, 30.0, None])
def test_the_result_appears_at_a_public_time(monkeypatch, after):
    """Released and committed then, whatever the number of runs.

    The twin has no time, or one that five runs exceed; its statement says so.
    """
    unit, draw = AddOrRemoveOne(), laws.draw
    one = Gaussian(4.0, {unit: 1.0}, 1, "a count")
    ends = []
    for count in (1, 5):
        clock, early = Clock(), []
        monkeypatch.setattr(search_module, "time", clock)
        monkeypatch.setattr(laws, "draw", lambda *law, n=count: (draw(*law), n)[1])

        def run(ledger, clock=clock):
            clock.now += 10.0
            return one.release([1.0], ledger=ledger, label="a run")

        search = PrivateSearch(
            [SearchCandidate({"i": 0}, one, run)],
            LAW,
            NoisyScore("score", lambda made: float(made.value[0]), one),
            promise=Promise(unit, 8.0, 1e-6),
            result_after=after,
        )
        ledger = Ledger(Budget(8.0, 1e-6), unit=unit, filter="pure")

        def noted(ledger=ledger, early=early):
            early.append(ledger.commit_of(ledger.entries()[0]))

        clock.noted = noted
        result = search.run(ledger, label="s", source=Seeded(1))
        assert early == [] if after is None else early == [None]
        assert ledger.commit_of(result.entry)
        words = result.statement()
        assert ("one that took longer" in words) == (after is not None)
        assert ("time is not part" in words) == (after is None)
        ends.append(clock.now - 1000.0)
    assert ends == {60.0: [60.0, 60.0], 30.0: [30.0, 50.0], None: [10.0, 50.0]}[after]


@pytest.mark.deep
def test_one_run_of_training_and_five_leave_the_same(left):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    training = pytest.importorskip("demur.training")
    models = pytest.importorskip("demur.training.models")
    plans = pytest.importorskip("demur.tuning.plan_search")
    y = np.arange(200) % 3
    noise = np.random.default_rng(0).normal(size=(200, 6))
    x = (2.0 * np.eye(3, 6)[y] + 0.4 * noise).astype(np.float32)
    model, back = models.MLP(6, (), 3), held_back(np.arange(200))

    @functools.cache
    def plan(epsilon):
        return training.BandMFExecutionPlanConfig(
            iterations=3,
            num_bands=1,
            sampling_prob=0.2,
            epsilon=epsilon,
            delta=1e-4,
            neighboring_relation="ADD_OR_REMOVE_ONE",
            l2_clip_norm=1.0,
            normalize_by=30.0,
        ).make()

    def settings(epsilon):
        rates = (0.1, 1.0)
        return [plans.PlanSetting({"r": r}, plan(epsilon), optax.sgd(r)) for r in rates]

    def predict(done, rows):
        return np.asarray(model.logits(done.value, rows)).argmax(-1)

    def search(ledger):
        found = plans.search_plans(
            settings,
            Promise(AddOrRemoveOne(), 12.0, 1e-4),
            models.cross_entropy(model),
            model.init(jax.random.key(0)),
            {"x": x[~back], "y": y[~back]},
            score=functools.partial(correct_answers, x[back], y[back], predict=predict),
            ledger=ledger,
            terms=terms(),
        )
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(found.value.value)]
        rest = replace(found.value, value=None, waste=None)
        return arrays, rest, found.setting, found.score

    one, five = left(search, AddOrRemoveOne(), 12.0)
    assert one == five
