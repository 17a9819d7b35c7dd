"""`PrivateGridSearch`: a private search over the settings of a head, as an estimator.

The rows are divided by a keyed hash of each person's id (`holdout`). Every run trains a
clone of the head on one part, with settings drawn at random from the grid, and counts
its correct answers on the other part, with noise. Training and score are calibrated
alike, such that the whole search costs the epsilon of the head that was given. The
winner leads to the entry of the search, and says what all of it cost.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from demur.cluster import CentralKMeans
from demur.convex.heads.base import PrivateHead
from demur.convex.heads.inputs import nothing_spent
from demur.convex.privacy_report import PrivacyReport
from demur.core import validate
from demur.core.accounting.gaussian import ideal_delta
from demur.core.accounting.repetitions import (
    NegativeBinomialRepetitions,
    Repetitions,
    default_repetitions,
)
from demur.core.digest import digest_of_array, digest_of_parts
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.core.rounding import printed_up
from demur.ledger import Ledger, LedgerLeftBehind, left_behind
from demur.preprocessing.checked_rows import restored_on_error
from demur.preprocessing.meta_estimators import search_around
from demur.tuning.costs import base_epsilon
from demur.tuning.errors import NotSearchable
from demur.tuning.holdout import KEY, SHARE, divided
from demur.tuning.scores import (
    NoisyScore,
    correct_answers,
    rows_digest,
    small_loss,
)
from demur.tuning.search import (
    PrivateSearch,
    SearchCandidate,
    SearchResult,
    check_settings,
)

Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]

# What every setting shares: the promise, the data, and how it is run.
_SHARED = ("delta", "radius", "unit", "norm_bound", "classes", "space", "clip")
_NOT_TUNED = {"epsilon", "ledger", "label", "source", "progress", *_SHARED}
_LARGEST_LOSS = 4.0  # of a row: the loss of the probability 2%


class PrivateGridSearch(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """The best of a secret number of fits with settings of a grid; one entry pays.

    - `estimator` is a head of `demur.convex`; its epsilon and delta, at its unit, are
      what the whole search costs.
    - `grid` maps parameters to lists of values, or is a list of such mappings. The key
      "estimator" may list other heads; they take promise and bounds from `estimator`.
    - `repetitions` is a law of the number of runs, or its mean. By default the mean is
      twice the number of settings (`default_repetitions`).
    - `scoring`: "accuracy", or "loss" (log-loss, cut at `loss_bound` for each row).
    - `share` of the persons is held back, by a hash of their ids under `split_key`.
    - `ledger` pays. With an `idempotency_key` a search that was interrupted is repeated
      with the same runs.

    A fitted search has `best_estimator_`, `best_params_`, `best_score_` (the noisy
    count or sum on held-back rows), `privacy_` and `entry_`. The winner's
    `epsilon` is that of the whole search, as in its report. If no run was drawn, which
    laws with K = 0 allow, or every run failed, there is no `best_estimator_`, and
    `outcome_` says so: "empty" or "failed".

    >>> import numpy as np
    >>> from demur.convex import BallPrototypeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(-1, 0.3, (400, 2)), rng.normal(1, 0.3, (400, 2))])
    >>> y = np.repeat([0, 1], 400)
    >>> head = BallPrototypeClassifier(epsilon=2.0, radius=0.5, norm_bound=2.0)
    >>> search = PrivateGridSearch(head, {"lam": [0.0, 0.1, 10.0]}).fit(X, y)
    >>> search.score(X, y) > 0.9
    True
    >>> search.privacy_.epsilon_at(0.5) <= 2.0
    True
    """

    result_: SearchResult
    best_estimator_: Any

    def __init__(
        self,
        estimator: Any,
        grid: Grid,
        *,
        ledger: Ledger | None = None,
        repetitions: Repetitions | float | None = None,
        scoring: str = "accuracy",
        loss_bound: float = _LARGEST_LOSS,
        share: float = SHARE,
        split_key: str = KEY,
        label: str | None = None,
        idempotency_key: str | None = None,
        block_delta: float | None = None,
        result_after: float | None = None,
        source: Source | None = None,
    ) -> None:
        self.estimator = estimator
        self.grid = grid
        self.ledger = ledger
        self.repetitions = repetitions
        self.scoring = scoring
        self.loss_bound = loss_bound
        self.share = share
        self.split_key = split_key
        self.label = label
        self.idempotency_key = idempotency_key
        self.block_delta = block_delta
        self.result_after = result_after
        self.source = source

    def fit(self, X: Any, y: ArrayLike, ids: ArrayLike | None = None) -> Self:
        """Search on rows X with labels y; the charge comes before the first run.

        `ids` name the person of each row, and so who is held back. Without them the
        number of the row does: the order of rows is then public, and each row is
        another person's.
        """
        with restored_on_error(self):
            search, digest = self._checked(X, y, ids)
            self.result_ = search.run(
                self.ledger,
                label=self.label or f"a search over {len(search.candidates)} settings",
                digest=digest,
                idempotency_key=self.idempotency_key,
                source=self.source,
                block_delta=self.block_delta,
            )
            for name in ("best_estimator_", "classes_", "n_features_in_"):
                if name in vars(self):  # of an earlier search
                    delattr(self, name)
            if self.outcome_ == "found":
                self.best_estimator_ = self.result_.value
                self.classes_ = self.best_estimator_.classes_
                self.n_features_in_ = self.best_estimator_.n_features_in_
            return self

    def private_search(
        self, X: Any, y: ArrayLike, ids: ArrayLike | None = None
    ) -> PrivateSearch:
        """The search that `fit` would run on these rows, for a look at its price."""
        return self._checked(X, y, ids)[0]

    def _checked(
        self, X: Any, y: ArrayLike, ids: ArrayLike | None
    ) -> tuple[PrivateSearch, str]:
        with nothing_spent():
            head = searchable(self.estimator)
            # Held-back rows too: one that no head can answer would fail every run.
            head.check_rows(X, y)
            return self._search(head, X, np.asarray(y), ids)

    def _search(
        self, head: PrivateHead, X: Any, y: NDArray[Any], ids: ArrayLike | None
    ) -> tuple[PrivateSearch, str]:
        total = head.promise()
        _say_what_is_charged(total)
        heads = _settings(head, self.grid)
        law = self._law(len(heads))
        one = replace(
            total, epsilon=base_epsilon(total.epsilon, ideal_delta(total.delta), law)
        )
        rows = _rows(X, y)
        names, back = divided(ids, rows, total.unit, self.share, self.split_key)
        train = _safe_indexing(X, np.flatnonzero(~back)), y[~back]
        test = _safe_indexing(X, np.flatnonzero(back)), y[back]
        candidates = [
            _candidate(setting, each.set_params(epsilon=one.epsilon), *train, total)
            for setting, each in heads
        ]
        search = PrivateSearch(
            candidates,
            law,
            self._score(*test, one, [each for _, each in heads]),
            promise=total,
            result_after=self.result_after,
        )
        # The division too: a search that is repeated has the same persons held back.
        return search, digest_of_parts(*map(rows_digest, (X, y, names, back)))

    def _law(self, settings: int) -> Repetitions:
        if self.repetitions is None:
            return default_repetitions(settings)
        if isinstance(self.repetitions, Repetitions):
            return self.repetitions
        validate.finite(repetitions=self.repetitions)
        mean = float(self.repetitions)
        return NegativeBinomialRepetitions.of_mean(mean, default_repetitions(1).eta)

    def _score(
        self, X: Any, y: NDArray[Any], promise: Promise, heads: list[PrivateHead]
    ) -> NoisyScore:
        # Heads answer row by row by construction, so nothing is assumed.
        if self.scoring == "accuracy":
            return correct_answers(X, y, promise, assumptions=())
        if self.scoring == "loss":
            for head in heads:
                if not hasattr(head, "predict_proba"):
                    raise NotSearchable(
                        f"{type(head).__name__} has no probabilities, so there is no"
                        " log-loss of it: choose scoring='accuracy'. Nothing was spent."
                    )
            return small_loss(
                lambda h: _log_losses(h, X, y),
                self.loss_bound,
                promise,
                rows=len(y),
                assumptions=(),
            )
        raise ValueError(
            f"scoring must be 'accuracy' or 'loss'; got {self.scoring!r}. Nothing was"
            " spent."
        )

    @property
    def outcome_(self) -> str:
        """ "found", "empty" (no run was drawn) or "failed" (every run failed)."""
        return self.result_.outcome

    @property
    def best_params_(self) -> dict[str, Any]:
        """The settings of the winner."""
        return dict(self._best().setting or {})

    @property
    def best_score_(self) -> float:
        """The noisy score of the winner, on the held-back rows."""
        score = self._best().score
        assert score is not None
        return score

    @property
    def entry_(self) -> Entry:
        """The ledger entry that paid for the search."""
        check_is_fitted(self, "result_")
        return self.result_.entry

    @property
    def privacy_(self) -> PrivacyReport:
        """The report of the winner: what the whole search cost."""
        self._best()
        report: PrivacyReport = self.best_estimator_.privacy_
        return report

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The winner's answers."""
        self._best()
        answers: NDArray[Any] = self.best_estimator_.predict(X)
        return answers

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """The winner's probabilities of the classes."""
        self._best()
        chances: NDArray[Any] = self.best_estimator_.predict_proba(X)
        return chances

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """The winner's scores of the rows."""
        self._best()
        scores: NDArray[Any] = self.best_estimator_.decision_function(X)
        return scores

    def _best(self) -> SearchResult:
        check_is_fitted(self, "result_")
        if self.outcome_ != "found":
            why = "drew no run" if self.outcome_ == "empty" else "had no run that ended"
            raise NotSearchable(
                f"the search {why}, so there is no head. The entry is spent: search"
                " again with another payment."
            )
        return self.result_

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        return state | {"ledger": left_behind(self.ledger), "source": None}


def searchable(estimator: Any) -> PrivateHead:
    """The head, if it can be searched over; anything else is refused in words."""
    if isinstance(estimator, PrivateHead):
        if isinstance(estimator.ledger, Ledger | LedgerLeftBehind):
            raise NotSearchable(
                "give the ledger to the search and not to the estimator: the search"
                " pays once, and its runs pay nothing. Nothing was spent."
            )
        return estimator
    kind, module = type(estimator).__name__, type(estimator).__module__
    if isinstance(estimator, CentralKMeans):
        raise NotSearchable(
            "PrivateGridSearch takes a head of demur.convex: search over the settings"
            " of CentralKMeans by search_kmeans(estimator, grid, X). Nothing was spent."
        )
    if module.startswith("demur.cluster"):
        raise NotSearchable(
            f"{kind} reads local reports, and these have no private search: whoever"
            " collects them sees every report, so that L is computed from the price,"
            " and the number of clusters is chosen on reports that were paid for, free"
            " of charge. Nothing was spent."
        )
    raise NotSearchable(
        f"PrivateGridSearch takes a head of demur.convex; got {kind}. For another"
        " declared mechanism make a PrivateSearch of SearchCandidates. Nothing was"
        " spent."
    )


def _say_what_is_charged(total: Promise) -> None:
    """Inside a search of scikit-learn's: each of its fits is a search, and is paid."""
    around = search_around()
    if around is None:
        return
    outer, settings, folds = around
    warnings.warn(
        f"{type(outer).__name__} charges each of its {settings * folds} private"
        f" searches with epsilon {printed_up(total.epsilon)}; one PrivateGridSearch"
        " with all of the settings in its grid is charged once.",
        stacklevel=2,
    )


def _settings(
    head: PrivateHead, grid: Grid
) -> list[tuple[dict[str, Any], PrivateHead]]:
    """Each setting of the grid, as plain data and as a head of its own."""
    found, settings = [], ParameterGrid(_as_lists(grid))
    check_settings(len(settings))
    for setting in settings:
        base = searchable(setting.pop("estimator", head))
        wrong = _NOT_TUNED & set(setting)
        if wrong:
            raise NotSearchable(
                f"{sorted(wrong)} cannot be searched over: what is promised, about"
                " which rows and who pays is the same for all settings. Nothing was"
                " spent."
            )
        each = clone(base)
        if base is not head:
            each.set_params(**{name: getattr(head, name) for name in _SHARED})
            own = {**_options(base), **setting}
            setting = {"estimator": type(each).__name__, **own}
        own = {name: value for name, value in setting.items() if name != "estimator"}
        each.set_params(**own, ledger=None, source=None)
        if "progress" in each.get_params(deep=False):
            each.set_params(progress=None)
        found.append((setting, each))
    return found


def _options(head: PrivateHead) -> dict[str, Any]:
    """What tells a head from others of its class: parameters that were set."""
    usual = type(head)().get_params(deep=False)
    return {
        name: value
        for name, value in head.get_params(deep=False).items()
        if name not in _NOT_TUNED and repr(value) != repr(usual[name])
    }


def _as_lists(grid: Grid) -> list[dict[str, Any]]:
    grids: Iterable[Any] = [grid] if isinstance(grid, Mapping) else list(grid)
    for one in grids:
        values = one.values() if isinstance(one, Mapping) else [None]
        if any(isinstance(v, str) or not isinstance(v, Iterable) for v in values):
            raise TypeError(
                "grid must map names of parameters to lists of values, as in {'lam':"
                " [0.01, 0.1]}, or be a list of such mappings. Nothing was spent."
            )
    return [{name: list(values) for name, values in one.items()} for one in grids]


def _candidate(
    setting: dict[str, Any], head: PrivateHead, X: Any, y: NDArray[Any], total: Promise
) -> SearchCandidate:
    def run(ledger: Ledger) -> PrivateHead:
        return clone(head).set_params(ledger=ledger).fit(X, y)

    def credited(fitted: PrivateHead, entry: Entry) -> PrivateHead:
        # The runs' ledger is gone; what is left says what the search cost.
        fitted.set_params(ledger=None, epsilon=total.epsilon)
        fitted.privacy_ = replace(fitted.privacy_, promise=total, entry=entry)
        return fitted

    def digest(fitted: PrivateHead) -> str:
        names = ("prototypes_", "coef_", "intercept_")
        return digest_of_parts(
            *[digest_of_array(getattr(fitted, n)) for n in names if hasattr(fitted, n)]
        )

    return SearchCandidate(
        setting, head.fit_declaration(X, y), run, credited=credited, digest=digest
    )


def _log_losses(head: Any, X: Any, y: NDArray[Any]) -> NDArray[Any]:
    """The log-loss of each row; a label that the head does not know costs the most."""
    chances = np.asarray(head.predict_proba(X))
    places = {label: i for i, label in enumerate(head.classes_.tolist())}
    at = np.array([places.get(label, -1) for label in y.tolist()])
    own = np.where(at >= 0, chances[np.arange(len(at)), np.maximum(at, 0)], 0.0)
    with np.errstate(divide="ignore"):
        losses: NDArray[Any] = -np.log(own)
    return losses


def _rows(X: Any, y: NDArray[Any]) -> int:
    rows = int(X.shape[0]) if hasattr(X, "shape") else len(X)
    if y.ndim != 1 or len(y) != rows:
        raise ValueError(
            f"y must have one label for each of {rows} rows; got shape {y.shape}."
            " Nothing was spent."
        )
    return rows
