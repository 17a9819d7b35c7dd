"""A private search over the settings of a service that will serve published answers.

A service that is open cannot be searched: what a search costs rests on all runs but one
staying secret, on runs that repeat one mechanism on the same records, and on a number
of runs that nobody can infer. An open service has shown its answers, and later records
follow them: with other settings other records would have come, and nobody has those.
What can be searched are the settings, before the service is opened, on a stream that
was recorded. The records must not depend on which setting a run has.

**One run.** An empty model of the setting learns the recorded rows of those who are not
held back, in their order, and publishes one copy, with the noise that the copies of the
service will have (`publications`), or more where the search has less to spend. By the
theorem of `unlearning.models.published` that is a Gaussian at `ZeroOut`: a record that
is blanked keeps its tick, moves the copy by at most `publication_bound`, and the number
of ticks is public. The score is of other persons, so the pair is what the theorem of a
search asks for.

**What leaves.** The winner's setting, its score, and the copy: an empty model that
answers from it. The secret state of a run is gone with the run. The service is opened
with the setting, learns its records anew, and pays for its own copies; at `ZeroOut`
both add up in a ledger that pays for both. A later deletion takes a record out of the
service, and not out of the choice of its settings: that is what the search paid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.heads.inputs import nothing_spent
from demur.core import validate
from demur.core.accounting.gaussian import ideal_delta
from demur.core.accounting.repetitions import Repetitions, default_repetitions
from demur.core.bounds import finite_matrix, real_array
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_array, digest_of_parts
from demur.core.promise import Promise
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from demur.tuning.costs import base_epsilon
from demur.tuning.errors import NotSearchable
from demur.tuning.holdout import divided
from demur.tuning.scores import NoisyScore, correct_answers, small_loss
from demur.tuning.search import (
    PrivateSearch,
    SearchCandidate,
    SearchResult,
    SearchTerms,
)
from demur.unlearning import Publications, make_mode
from demur.unlearning.models.published import PublishedAnswers
from demur.unlearning.pricing.publications import PublicationPrices, check_publishable

_DEFAULT_TERMS = SearchTerms("a search over settings of a service")
_LARGEST_ERROR = 4.0  # squared: targets of -1 and 1 that are mistaken for each other


def search_services(
    settings: Sequence[Mapping[str, Any]],
    X: ArrayLike,
    y: ArrayLike,
    *,
    budget: Budget,
    publications: Publications,
    subject_ids: ArrayLike | None = None,
    error_bound: float = _LARGEST_ERROR,
    ledger: Ledger | None = None,
    repetitions: Repetitions | None = None,
    terms: SearchTerms = _DEFAULT_TERMS,
) -> SearchResult:
    """The best setting for a service with published answers, for one payment.

    - `settings`: what `UnlearningService.open` will be given: "mode" and its options.
    - `X`, `y`: a recorded stream; y are numbers of classes for modes with `classes`.
      `subject_ids` name the persons, each with at most
      `publications.records_per_subject` records.
    - `budget`: epsilon and delta of the whole search, at `publications.unit`.
    - `publications`: those of the service that will be opened; it must name its own
      epsilon and delta, which are another payment.
    - `error_bound`: modes that answer numbers are scored by their squared errors, each
      cut at this; modes with `classes` or loss="logistic" by correct answers.

    The result's `setting` opens the service, and its `value` answers from the winner's
    copy.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.5, 0.5, (2000, 2))
    >>> copies = Publications(epsilon=2.0, delta=1e-6, count=4)
    >>> found = search_services(
    ...     [{"mode": "ridge", "Lambda": 1.0}, {"mode": "ridge", "Lambda": 1e6}],
    ...     X, X @ [1.0, -1.0], budget=Budget(4.0, 1e-6), publications=copies,
    ...     error_bound=1.0,
    ... )
    >>> found.setting["mode"], found.entry.declaration.name[:24]
    ('ridge', 'a private search over 2 ')
    """
    with nothing_spent():
        if not isinstance(budget, Budget):
            raise TypeError(
                "budget must be a Budget(epsilon, delta), of the whole search; got"
                f" {type(budget).__name__}. Nothing was spent."
            )
        settings, unit = list(settings), _completed(publications).unit
        total = Promise(unit, budget.epsilon, budget.delta)
        validate.positive(error_bound=error_bound)
        rows, targets = finite_matrix("X", X), real_array("y", y)
        if targets.shape != (len(rows),) or not np.isfinite(targets).all():
            raise ValueError(
                f"y must have one finite number for each of {len(rows)} rows; got shape"
                f" {targets.shape}. Nothing was spent."
            )
        names, back = divided(
            subject_ids, len(rows), unit, terms.share, terms.split_key
        )
        most = int(np.unique(names.astype(str), return_counts=True)[1].max())
        if most > publications.records_per_subject:
            raise NotSearchable(
                f"a person has {most} records, and copies are priced for"
                f" {publications.records_per_subject}: give Publications a larger"
                " records_per_subject. Nothing was spent."
            )
        models = [_model(setting, rows.shape[1], publications) for setting in settings]
        for model in models:  # every row, as the service would: or why it would not
            model.fresh().insert_many(rows, targets)
        law = repetitions or default_repetitions(max(1, len(models)))
        one = replace(
            total, epsilon=base_epsilon(total.epsilon, ideal_delta(total.delta), law)
        )
        train = rows[~back], targets[~back]
        search = PrivateSearch(
            [
                _candidate(setting, model, *train, one, publications)
                for setting, model in zip(settings, models, strict=True)
            ],
            law,
            _score(models, rows[back], targets[back], one, error_bound),
            promise=total,
            result_after=terms.result_after,
            assumptions=(
                "the stream was recorded before the search, and no record of it follows"
                " from answers of a run",
            ),
        )
    return search.run(
        ledger,
        label=terms.label,
        digest=digest_of_parts(
            *map(digest_of_array, (rows, targets, names.astype(str), back))
        ),
        idempotency_key=terms.idempotency_key,
        source=terms.source,
        block_delta=terms.block_delta,
    )


def _completed(publications: Publications) -> Publications:
    if not isinstance(publications, Publications):
        raise NotSearchable(
            "publications must be the Publications(...) that the service will be opened"
            f" with; got {type(publications).__name__}. A service that is open, or one"
            " that shows its state, cannot be searched. Nothing was spent."
        )
    return publications.completed(None, None)


def _model(
    setting: Mapping[str, Any], dimension: int, publications: Publications
) -> PublishedAnswers:
    """An empty model of the setting, if a service of it could publish."""
    if not isinstance(setting, Mapping) or "mode" not in setting:
        raise NotSearchable(
            "a setting must be a mapping with 'mode' and the options of that mode, as"
            f" UnlearningService.open takes them; got {type(setting).__name__}. A"
            " service that is open cannot be searched. Nothing was spent."
        )
    options = {name: value for name, value in setting.items() if name != "mode"}
    if isinstance(options.get("classes"), list | tuple):
        raise NotSearchable(
            "classes must be their number in a search, and y the number of each row's"
            " class: give the labels when the service is opened. Nothing was spent."
        )
    model = PublishedAnswers(make_mode(setting["mode"], dimension, **options))
    check_publishable(publications, model)
    return model


def _candidate(
    setting: Mapping[str, Any],
    model: PublishedAnswers,
    X: NDArray[Any],
    y: NDArray[Any],
    one: Promise,
    publications: Publications,
) -> SearchCandidate:
    # Bounds follow from the number of ticks alone, so blank rows have the same ones.
    blank = model.fresh()
    blank.insert_many(np.zeros_like(X), np.zeros_like(y))
    mechanism, declared = _noise(blank, one, publications)

    def run(ledger: Ledger) -> PublishedAnswers:
        secret = model.fresh()
        secret.insert_many(X, y)
        with ledger.paid(declared, label="a copy of a run") as payment:
            noise = mechanism.apply(np.zeros(mechanism.dimension), payment.key)
            secret.show(noise, sigma=float(mechanism.sigma), grid=float(mechanism.grid))
            payment.released(digest_of_array(secret.published()))
        copy = model.fresh()  # has learned nothing, and answers from the copy
        copy.shows_as(secret)
        return copy

    def digest(copy: PublishedAnswers) -> str:
        return digest_of_array(copy.published())

    return SearchCandidate(setting, declared, run, digest=digest)


def _noise(
    model: PublishedAnswers, one: Promise, publications: Publications
) -> tuple[Gaussian, Declaration]:
    """The larger noise: of the service's own copies, or of the promise of one run."""
    alone = replace(publications, epsilon=one.epsilon, delta=one.delta, count=1)
    made = [
        (prices.mechanism(model), prices)
        for prices in map(PublicationPrices, (alone, publications))
    ]
    mechanism, prices = max(made, key=lambda pair: pair[0].sigma)
    return mechanism, prices.published_copy(mechanism)


def _score(
    models: Sequence[PublishedAnswers],
    X: NDArray[Any],
    y: NDArray[Any],
    one: Promise,
    error_bound: float,
) -> NoisyScore:
    """On held-back rows, each answered by itself from the copy."""

    def answers(copy: PublishedAnswers, rows: NDArray[Any]) -> NDArray[Any]:
        return np.array([copy.predict(row) for row in rows])

    def classes(copy: PublishedAnswers, rows: NDArray[Any]) -> NDArray[Any]:
        found = answers(copy, rows)
        return found if copy.classes is not None else (found > 0.5).astype(float)

    kinds = {m.classes is not None or m.loss == "logistic" for m in models}
    if len(kinds) > 1:
        raise NotSearchable(
            "settings must all answer classes (classes=, loss='logistic') or all answer"
            " numbers: otherwise their scores cannot be compared. Nothing was spent."
        )
    if True in kinds:
        right = np.where(y < 0.0, 0.0, y)  # -1 is a name of class 0
        return correct_answers(X, right, one, predict=classes, assumptions=())
    return small_loss(
        lambda copy: (answers(copy, X) - y) ** 2,
        error_bound,
        one,
        rows=len(y),
        assumptions=(),
    )
