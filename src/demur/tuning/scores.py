"""Scores: declared mechanisms that say how good a run is, on held-back persons.

What a search selects on is part of what it tells, so a score is private too. A sum over
the rows of held-back persons moves by at most what the records of one person add to it,
whatever the distance that a record moves: a small ball earns no discount.

That holds where each row adds its own term and no more. Answers and losses that are not
one number for each row are refused: the run fails. That the answer to a row depends on
the outcome and on this row alone, and on no other held-back row, cannot be seen from
outside; for demur's own heads and models it is so, and for others it is a condition of
the statement. (A `predict` that centres its rows, or normalises a batch, moves all
answers when one person is replaced.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from demur.cluster.decoding.labelling import NearestCenter
from demur.core import validate
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit, ZeroOut
from demur.core.bounds import finite_matrix
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_array, digest_of_parts
from demur.core.promise import Promise
from demur.ledger import Ledger
from demur.mechanisms import Gaussian

Predict = Callable[[Any, Any], ArrayLike]

ROW_BY_ROW = (
    "the score of a held-back row follows from the outcome of a run and from this row"
    " alone, whatever the other held-back rows are, and no row makes the score fail"
)


@dataclass(frozen=True)
class NoisyScore:
    """A number for the outcome of a run, released with noise; larger is better.

    `value(outcome)` is exact and stays inside the search; `mechanism` adds the noise,
    which is paid for by the search. `value` must be finite and must not fail, whatever
    the held-back rows are: its sensitivity is what the mechanism says. `data` are the
    held-back rows, where the search is to be bound to them, and `persons` are their
    ids, where it is to be checked that nobody of them is trained on.
    """

    name: str
    value: Callable[[Any], float]
    mechanism: Gaussian
    data: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    persons: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    def declaration(self) -> Declaration:
        """What a search declares about its score."""
        return self.mechanism.declaration()

    def digest(self) -> str:
        """A digest of the held-back rows, as far as the score knows them."""
        return digest_of_parts(*map(rows_digest, self.data))

    def __call__(self, outcome: Any, ledger: Ledger) -> float:
        """The noisy score, paid by the ledger of the run."""
        exact = float(self.value(outcome))
        noisy = self.mechanism.release([exact], ledger=ledger, label=self.name)
        return float(noisy.value[0])


def correct_answers(
    X: Any,
    y: ArrayLike,
    promise: Promise,
    *,
    predict: Predict | None = None,
    ids: ArrayLike | None = None,
    assumptions: tuple[str, ...] = (ROW_BY_ROW,),
) -> NoisyScore:
    """The number of correct answers on held-back rows, with noise for the promise.

    `predict(outcome, X)` gives one answer for each row; by default
    `outcome.predict(X)`. It must answer row by row: an answer must not depend on other
    rows of X. That is a condition of the statement (`assumptions`), which may be left
    out where it holds by construction. `ids` are the persons of the rows, if known.
    """
    labels = np.asarray(y)
    rows = int(X.shape[0]) if hasattr(X, "shape") else len(X)
    if labels.ndim != 1 or len(labels) != rows:
        raise ValueError(
            f"y must have one label for each of {rows} held-back rows; got shape"
            f" {labels.shape}. Nothing was spent."
        )
    answers = _predicted if predict is None else predict

    def value(outcome: Any) -> float:
        given = _one_each(answers(outcome, X), rows)
        return float(np.count_nonzero(np.asarray(given == labels)))

    return NoisyScore(
        "correct answers on held-back persons",
        value,
        _noise(
            promise,
            1.0,
            "a noisy count of correct answers on held-back persons",
            assumptions,
        ),
        data=(X, labels),
        persons=None if ids is None else np.unique(np.asarray(ids)),
    )


def small_loss(
    loss: Callable[[Any], ArrayLike],
    bound: float,
    promise: Promise,
    *,
    rows: int,
    data: tuple[Any, ...] = (),
    ids: ArrayLike | None = None,
    assumptions: tuple[str, ...] = (ROW_BY_ROW,),
) -> NoisyScore:
    """The negative sum of losses of held-back rows, each cut to 0 ... bound.

    `loss(outcome)` has one number for each of the held-back `rows`; one that is not a
    number counts as the bound. The loss of a row must not depend on other rows (see
    `correct_answers`, also for `ids` and `assumptions`). `data` are the rows and labels
    that `loss` reads, so that a search which is repeated after a crash is bound to
    them.
    """
    validate.positive(bound=bound)
    validate.count(rows=rows)

    def value(outcome: Any) -> float:
        losses = _one_each(loss(outcome), rows).astype(np.float64)
        cut = np.clip(np.where(np.isnan(losses), bound, losses), 0.0, bound)
        return -float(cut.sum())

    return NoisyScore(
        "small losses on held-back persons",
        value,
        _noise(
            promise,
            float(bound),
            "a noisy sum of losses on held-back persons",
            assumptions,
        ),
        data=data,
        persons=None if ids is None else np.unique(np.asarray(ids)),
    )


def small_distances(
    X: ArrayLike,
    promise: Promise,
    *,
    bound: float | None = None,
    ids: ArrayLike | None = None,
) -> NoisyScore:
    """The negative sum of squared distances of held-back points to their centres.

    For outcomes with `cluster_centers_`, such as `CentralKMeans`; each point is
    assigned by itself. A squared distance is cut to 0 ... bound, by default d / 4 for
    points of the unit cube: none is farther from the middle, so that centres which are
    worse for a point than the middle alone count as that bad.
    """
    points = finite_matrix("X", X)
    largest = points.shape[1] / 4.0 if bound is None else bound

    def squares(outcome: Any) -> ArrayLike:
        return NearestCenter(outcome.cluster_centers_).with_squares(points)[1]

    return replace(
        small_loss(
            squares,
            largest,
            promise,
            rows=len(points),
            data=(points,),
            ids=ids,
            assumptions=(),
        ),
        name="squared distances of held-back persons to their centres",
    )


def rows_digest(values: Any) -> str:
    """A digest of rows or labels of whatever kind a head takes."""
    if sparse.issparse(values):
        coo = values.tocoo()
        return digest_of_parts(*map(digest_of_array, (coo.row, coo.col, coo.data)))
    array = np.asarray(values)
    if array.dtype.kind == "O":
        array = array.astype(str)
    return digest_of_array(array)


def _one_each(given: ArrayLike, rows: int) -> NDArray[Any]:
    """One term for each row: more of them would move the sum by more than was paid."""
    terms = np.asarray(given)
    if terms.shape != (rows,):
        raise ValueError(
            "a score must have one answer or loss for each held-back row; got another"
            " shape"
        )
    return terms


def _predicted(outcome: Any, X: Any) -> ArrayLike:
    answers: ArrayLike = outcome.predict(X)
    return answers


def _noise(
    promise: Promise, each: float, name: str, assumptions: tuple[str, ...]
) -> Gaussian:
    """Noise for a sum to which one record adds at most `each`."""
    unit = promise.unit
    table: dict[Unit | str, Any] = {
        at(): each for at in (AddOrRemoveOne, ReplaceOne, ZeroOut)
    }
    table[_any_change(unit)] = each * unit.records_per_person
    return Gaussian.calibrated(
        epsilon=promise.epsilon,
        delta=promise.delta,
        sensitivity=table,
        unit=unit,
        name=name,
        assumptions=assumptions,
    )


def _any_change(unit: Unit) -> Unit:
    """The unit itself; for a ball, any replacement of as many records."""
    if isinstance(unit, Ball):
        return ReplaceOne(unit.records_per_person)
    return unit
