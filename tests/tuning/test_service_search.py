"""`search_services`: settings of a deletion service, before it is opened."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from demur import Budget, Erasure, Ledger, Seeded, ZeroOut
from demur.core.accounting.events import BestOf, GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.errors import NotPriced, NotSearchable
from demur.ledger import Filter
from demur.tuning import BinomialRepetitions, SearchTerms, held_back, search_services
from demur.unlearning import Publications, UnlearningService
from demur.unlearning.models import OGD, Ridge
from demur.unlearning.models.published import PublishedAnswers

LAW = BinomialRepetitions(8, 0.9)
COPIES = Publications(epsilon=2.0, delta=1e-6, count=4)
SETTINGS = [{"mode": "ridge", "Lambda": 1.0}, {"mode": "ridge", "Lambda": 1e7}]
TERMS = SearchTerms(source=Seeded(3))


def stream(n=1500, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (n, 3))
    return X, X @ [1.0, -1.0, 0.5]


def ledger(unit=None, epsilon=6.0):
    return Ledger(Budget(epsilon, 1e-6), unit=unit or ZeroOut(), filter=Filter.pure())


def searched(settings=SETTINGS, data=None, **options):
    X, y = data or stream()
    given = {"budget": Budget(6.0, 1e-6), "publications": COPIES, "terms": TERMS}
    given |= {"repetitions": LAW} | options
    return search_services(settings, X, y, **given)


def test_the_setting_that_wins_opens_the_service(tmp_path):
    paying = ledger()
    found = searched(ledger=paying)
    (entry,) = paying.entries()
    assert found.entry == entry and paying.epsilon() <= 6.0
    assert found.setting == SETTINGS[0]
    X, y = stream(200, 1)
    with UnlearningService.open(
        tmp_path / "model.db",
        dimension=3,
        answers=COPIES,
        record_store="encrypted",
        **found.setting,
    ) as service:
        service.insert_many(X, y, record_ids=range(200))
        service.publish()
        assert service.status().publications_left == 3
        # The search is another payment, and no part of the service's capacity.
        assert service.delete(17).epsilon_in_all == 2.0


@pytest.mark.parametrize("mode", ["ridge", "ogd"])
def test_what_leaves_has_learned_nothing_and_answers_from_the_copy(mode):
    options = {"Lambda": 1.0} if mode == "ridge" else {"lam": 0.1}
    found = searched([{"mode": mode, **options}])
    copy = found.value
    empty = copy.fresh()
    for name, array in copy.state().items():
        same = np.array_equal(array, empty.state()[name])
        assert same == (name != "published")
    assert pickle.dumps(found.score) and copy.predict([0.5, 0.0, 0.0]) != 0.0
    # The twin: the run's own model, which has learned the rows.
    X, y = stream()
    secret = copy.fresh()
    secret.insert_many(X, y)
    names = [n for n in secret.state() if n != "published"]
    assert any(not np.array_equal(secret.state()[n], empty.state()[n]) for n in names)


def test_a_run_has_the_noise_of_the_services_own_copies_or_more():
    """Its event, at the unit of publications: whichever needs the larger noise."""
    many = Publications(epsilon=2.0, delta=1e-6, count=10_000)
    multipliers = []
    for publications in (COPIES, many):
        found = searched(publications=publications)
        event = found.entry.declaration.cost.at(publications.unit)
        assert isinstance(event, BestOf)
        runs = [e.multiplier for e in event.events if isinstance(e, GaussianEvent)]
        multipliers.append(max(runs))
    mu = 1.0 / multipliers[1]
    assert multipliers[1] > 2 * multipliers[0]
    # 10,000 copies of that noise are the service's (2, 1e-6).
    whole = gaussian_mu(2.0, ideal_delta(1e-6))
    assert 0.99 * whole < math.sqrt(many.count) * mu <= whole


def test_a_blank_record_moves_a_copy_by_no_more_than_the_noise_is_for():
    """Both worlds, record by record, without noise; the twin says half of the bound."""
    X, y = stream(40)
    X[:, 2] = 0.0
    X[7], y[7] = [0.0, 0.0, 1.0], 50.0  # a direction of its own
    for make in (lambda: OGD(3, lam=0.05), lambda: Ridge(3)):
        world, blanked = PublishedAnswers(make()), PublishedAnswers(make())
        rows = X.copy()
        rows[7] = 0.0
        world.insert_many(X, y)
        blanked.insert_many(rows, y)
        counted = PublishedAnswers(make())
        counted.insert_many(np.zeros_like(X), np.zeros_like(y))
        bound = counted.publication_bound()
        assert bound == world.publication_bound()  # of the number of ticks alone
        moved = world._statistic.value() - blanked._statistic.value()
        assert 0.5 * bound < np.linalg.norm(moved) <= bound


def test_persons_with_several_records_and_classes():
    X, y = stream(600)
    who = [f"p{i // 2}" for i in range(600)]
    copies = Publications(epsilon=4.0, delta=1e-6, count=2, records_per_subject=2)
    settings = [{"mode": "ogd", "classes": 2, "lam": lam} for lam in (0.05, 5.0)]
    paying = ledger(ZeroOut(records_per_person=2), 12.0)
    found = searched(
        settings,
        (X, (y > 0).astype(float)),
        subject_ids=who,
        publications=copies,
        ledger=paying,
        budget=Budget(12.0, 1e-6),
    )
    assert found.outcome == "found" and len(paying.entries()) == 1
    answers = np.array([found.value.predict(x) for x in X])
    assert np.mean(answers == (y > 0)) > 0.6
    back = held_back(who)
    assert (back[::2] == back[1::2]).all()


def test_both_names_of_the_lower_class_are_scored_alike():
    X, y = stream(600)
    settings = [{"mode": "ogd", "loss": "logistic", "lam": 0.05}]
    scores = [
        searched(settings, (X, np.where(y > 0, 1.0, low)), terms=replace(TERMS)).score
        for low in (0.0, -1.0)
    ]
    # 120 rows score; were -1 never right, half of them would be lost.
    assert min(scores) > 80


def test_what_cannot_be_searched_is_refused_and_nothing_is_spent(tmp_path):
    X, y = stream(60)
    paying = ledger()

    def refused(error, match, settings=SETTINGS, data=(X, y), **options):
        with pytest.raises(error, match=match):
            searched(settings, data, ledger=paying, **options)

    refused(NotSearchable, "cannot be searched", [{"Lambda": 1.0}])
    with UnlearningService.open(
        tmp_path / "open.db", mode="ogd", dimension=3, epsilon=1.0, delta=1e-6
    ) as service:
        refused(NotSearchable, "open cannot be searched", [service])
    refused(NotSearchable, "shows its state", publications="live")
    refused(ValueError, "epsilon and delta", publications=Publications())
    refused(ValueError, "logistic", [{"mode": "logistic"}])
    refused(TypeError, "no option", [{"mode": "ogd", "Lambda": 1.0}])
    refused(ValueError, "1 to 1000 settings", [])
    refused(NotSearchable, "has 3 records", subject_ids=list(range(20)) * 3)
    refused(ValueError, "one finite number for each", data=(X, y[:3]))
    refused(ValueError, "error_bound", error_bound=0.0)
    refused(TypeError, "budget must be", budget=(6.0, 1e-6))
    refused(NotSearchable, "their number", [{"mode": "ogd", "classes": ["a", "b"]}])
    both = [*SETTINGS, {"mode": "ogd", "classes": 2}]
    refused(NotSearchable, "answer numbers", both, (X, (y > 0) * 1.0))
    broken = X.copy()
    broken[3, 1] = np.nan
    refused(ValueError, "NaN|finite", data=(broken, y))
    assert not paying.entries()


def test_one_ledger_carries_the_search_and_the_service(tmp_path):
    """Neither is added to deletions; at `ZeroOut` search and copies add up."""
    budgets = {ZeroOut(): Budget(8.0, 1e-6), Erasure(): Budget(4.0, 1e-6)}
    plain = Ledger(budgets, filter="gaussian")
    with pytest.raises(NotPriced, match="blocks"):
        searched(ledger=plain, budget=Budget(3.0, 1e-6))
    path = tmp_path / "ledger.db"
    with Ledger.open(
        path,
        dataset="people",
        budgets=budgets,
        filter=Filter.gaussian(blocks=0.5),
        testing=True,
    ) as paying:
        found = searched(ledger=paying, budget=Budget(3.0, 1e-6))
        spent = paying.epsilon(unit=ZeroOut())
        with UnlearningService.open(
            tmp_path / "model.db",
            dimension=3,
            answers=COPIES,
            ledger=paying,
            source=Seeded(1),
            record_store="encrypted",
            **found.setting,
        ) as service:
            service.insert_many(*stream(50, 1), record_ids=range(50))
            service.publish()
        assert paying.epsilon(unit=ZeroOut()) > spent > 0
        assert paying.verify().ok
