"""`search_kmeans`: one payment for a search over clusterings, and its score."""

import pickle

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.model_selection import GridSearchCV

from demur import AddOrRemoveOne, Ball, Budget, Ledger, ReplaceOne, Seeded
from demur.cluster import CentralKMeans, PrivateKMeans
from demur.core.promise import Promise
from demur.errors import BudgetExceeded, NotSearchable
from demur.ledger import Filter
from demur.tuning import (
    BinomialRepetitions,
    PrivateGridSearch,
    SearchTerms,
    held_back,
    search_kmeans,
    small_distances,
)

CENTRES = np.array([[0.2, 0.2], [0.8, 0.25], [0.5, 0.8]])
LAW = BinomialRepetitions(8, 0.9)
GRID = {"n_clusters": [1, 3], "random_state": [0, 1]}
RIGHT = [{"n_clusters": 3, "random_state": seed} for seed in (0, 1)]


def points(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    rows = CENTRES[np.arange(n) % 3] + 0.03 * rng.normal(size=(n, 2))
    return np.clip(rows, 0.0, 1.0)


def ledger(unit=None, epsilon=4.0):
    return Ledger(
        Budget(epsilon, 1e-6), unit=unit or ReplaceOne(), filter=Filter.pure()
    )


@pytest.mark.parametrize("unit", [ReplaceOne(), AddOrRemoveOne(), Ball(0.1, space="x")])
def test_one_entry_pays_and_the_better_number_of_clusters_wins(unit):
    X, paying = points(), ledger(unit)
    ids = [f"p{i}" for i in range(len(X))]
    model = CentralKMeans(epsilon=4.0, unit=unit)
    terms = SearchTerms(source=Seeded(2))
    found = search_kmeans(
        model, GRID, X, ids=ids, ledger=paying, repetitions=LAW, terms=terms
    )
    (entry,) = paying.entries()
    best = found.value
    assert found.entry == best.entry_ == entry and best.ledger is None
    assert best.epsilon == 4.0 and paying.epsilon() <= 4.0
    assert best.n_clusters == 3 and found.setting in RIGHT
    fitted = KMeans(3, n_init=1, random_state=0).fit(X)
    assert best.compute_sse(X) < 3 * fitted.inertia_
    with pytest.raises(BudgetExceeded):
        search_kmeans(model, GRID, X, ids=ids, ledger=paying, repetitions=LAW)
    assert pickle.loads(pickle.dumps(best)).entry_ == entry


def test_the_score_moves_by_no_more_than_its_bound_for_any_point():
    """Brute force over a grid of the cube, and the twin without a bound."""
    model = CentralKMeans(3, random_state=0, epsilon=50.0).fit(points())
    others, one = points(50, 1), Promise(ReplaceOne(), 1.0, 1e-6)
    corners = np.array([[a, b] for a in np.linspace(0, 1, 9) for b in (0, 0.5, 1)])

    def moves(centres, bound=None):
        model.cluster_centers_ = np.asarray(centres)
        values = [
            small_distances(np.vstack([others, x[None]]), one, bound=bound).value(model)
            for x in corners
        ]
        return max(values) - min(values)

    far = [[0.0, 0.0], [0.01, 0.0], [0.0, 0.01]]  # all centres in one corner
    assert 0.4 < moves(far) <= 0.5 + 1e-9  # d / 4
    assert moves(far, bound=9.0) > 1.5  # not cut: more than the default noise is for
    sigma = small_distances(others, one).mechanism.sensitivity
    assert sigma.at(ReplaceOne()) == 0.5


def test_what_cannot_be_searched_is_refused_and_nothing_is_spent():
    X, paying = points(60), ledger()
    nothing = paying

    def refused(error, match, model=None, grid=GRID, rows=X, **options):
        model = CentralKMeans(epsilon=4.0) if model is None else model
        with pytest.raises(error, match=match) as stopped:
            search_kmeans(model, grid, rows, ledger=paying, repetitions=LAW, **options)
        assert "othing was" in str(stopped.value)

    refused(NotSearchable, "CentralKMeans", PrivateKMeans(2, epsilon=1.0))
    refused(NotSearchable, "to the search", CentralKMeans(ledger=paying))
    refused(NotSearchable, "epsilon", grid={"epsilon": [1.0]})
    seeds = {"random_state": [np.random.default_rng(0)]}
    refused(NotSearchable, "whole number", grid=seeds)
    refused(ValueError, "n_clusters", grid={"n_clusters": [0, 2]})
    refused(ValueError, "ids must name", CentralKMeans(unit=AddOrRemoveOne()))
    refused(ValueError, "ids must name", ids=["a"] * 3)
    refused(ValueError, "differ", grid={"n_clusters": [2, 2]})
    outside = X.copy()
    outside[np.flatnonzero(held_back(np.arange(60)))[0]] = 1.5
    refused(ValueError, "cube|\\[0, 1\\]", rows=outside)
    missing = X.copy()
    missing[0, 0] = np.nan
    refused(ValueError, "NaN|finite", rows=missing)
    # The promise is for a replacement, and the ledger keeps count of presence too.
    both = {ReplaceOne(): Budget(4.0, 1e-6), AddOrRemoveOne(): Budget(4.0, 1e-6)}
    paying, model = Ledger(both, filter="pure"), CentralKMeans(epsilon=4.0)
    refused(ValueError, "ids must name", model)
    found = search_kmeans(model, GRID, X, repetitions=LAW)
    assert "number of records is public" in found.statement()
    with pytest.raises(NotSearchable, match="search_kmeans"):
        PrivateGridSearch(CentralKMeans(), GRID).fit(X, np.zeros(60))
    assert not nothing.entries() and not paying.entries()


def test_grid_search_cv_says_what_a_private_search_would_have_cost():
    model = CentralKMeans(epsilon=1.0, random_state=0)
    with pytest.warns(UserWarning, match="charges each of its 6 fits") as told:
        GridSearchCV(model, {"n_clusters": [1, 2, 3]}, cv=2).fit(points(300))
    (line,) = [str(w.message) for w in told if "charges" in str(w.message)]
    assert "\n" not in line and "demur.tuning.search_kmeans over the same 3" in line


def test_a_crash_repeats_the_same_runs(tmp_path, monkeypatch):
    X, model = points(300), CentralKMeans(epsilon=4.0)
    place = {"dataset": "points", "filter": "pure", "testing": True}
    budgets = {ReplaceOne(): Budget(4.0, 1e-6)}
    fits, plain = [], CentralKMeans.fit

    def fit(self, rows, y=None):
        plain(self, rows, y)
        fits.append(self.cluster_centers_.tolist())
        if len(fits) == 2:
            raise KeyboardInterrupt
        return self

    monkeypatch.setattr(CentralKMeans, "fit", fit)

    def search(seed):
        terms = SearchTerms(idempotency_key="night", source=Seeded(seed))
        with Ledger.open(tmp_path / "ledger.db", budgets=budgets, **place) as paying:
            return search_kmeans(
                model, GRID, X, ledger=paying, repetitions=LAW, terms=terms
            )

    with pytest.raises(KeyboardInterrupt):
        search(1)
    first = list(fits)
    fits.append(None)  # no interrupt the second time
    found = search(99)
    assert fits[3:5] == first and len(fits) > 5
    assert found.value.cluster_centers_.tolist() in fits
