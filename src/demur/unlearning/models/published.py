"""`PublishedAnswers`: a mode that answers from its last published copy alone.

The theorems of the modes hold for requests and inserts that were fixed in advance. A
recommender, a bandit or self-training learns what its own answers brought about: then
the record has changed what came after it, and taking it out of the state does not take
that back. Here the state is secret. Whatever leaves (answers, the prediction that
`insert` returns) follows the last published copy, and copy j is

    S(model) + N(0, sigma_j^2 I),   S the weights (ogd) or the sums (ridge).

**Theorem published-answers.** Inserts, deletions and publications may be any function
of what was published before. Take a person who never has more than K live records, and
a set D of their records. Compare with the replay, in which the records of D are blank
(x = 0): they count, and contribute nothing (in ogd that is the regulariser's step
alone). Let S move by at most Delta_j at publication j for each live record of D. If the
sum of (K Delta_j / sigma_j)^2 over all publications is at most a^2, and the sum of
1 / z_i^2 over the noises of this person's deletions at most b^2 (0 where deletions are
exact), whatever happens, then all that ever leaves, before the deletion and after, can
be told apart from the replay's no better than N(0, 1) and N(sqrt(a^2 + b^2), 1).

*Proof.* Other people's deletion noise has the same law in both worlds: fix it. Suppose
both worlds have published the same so far. Then they have had the same calls, and their
models differ by the live records of D alone, of which there are at most K.

- A publication: S of the two is at most K Delta_j apart, so each publishes a Gaussian
  around a mean which differs by some h, |h| <= K Delta_j.
- A deletion of k of the a live records of D, by noise in the state (ogd): where world 1
  draws N, the replay takes N + h, h the share k / a of their difference. So
  |h| <= k Delta, and (a - k) Delta is left, as in the proof of `ogd-shift`. An exact
  deletion (ridge) leaves the sums of the other live records.

So each draw is a Gaussian whose mean differs between the worlds by an h that follows
from earlier draws, and what leaves is a function of the draws. That is an adaptive
composition of Gaussians. Its parameters are chosen on the way too; the sum of their
squares has a limit that is fixed in advance and never exceeded, and then composition
holds as if they were fixed (the Gaussian filter of the ledger). []

*Why the limit and not the sum so far.* How many copies were published may depend on
what was seen, so that sum is no valid price. The capacity is declared at the opening.

**Delta.** ogd: k G / (lambda (t + t0)), `shift_bound`; it is proved for records that
are live. ridge: S holds x x' (off-diagonal entries times sqrt 2, so that its Euclidean
norm is the Frobenius norm) and x y. One record adds a vector of norm
|x| sqrt(|x|^2 + y^2), and its floats are off by at most 8 u of n times that in both
worlds together. logistic is not offered: it refuses to publish until it is proved to be
near its minimum, and that refusal follows the data and would be seen.

**Weights from noisy sums** are post-processing. Directions of x x' that are no stronger
than the noise (an eigenvalue below sigma sqrt(2 d), the norm of such a noise matrix)
are treated as if they were that strong: the weights stay finite, and strong directions
are left as measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.rounding import up
from demur.unlearning.models import kernels
from demur.unlearning.models.base import Array, Mode, State, Theorem, digest_of
from demur.unlearning.models.classes import (
    class_probabilities,
    class_scores,
    nearest_distribution,
)
from demur.unlearning.models.inputs import clipped, longest, vector, with_noise
from demur.unlearning.models.ogd import OGD
from demur.unlearning.models.ridge import Ridge

_U = 2.0**-53
_STATE = "model "  # the prefix of the secret model's arrays
_NOT_COVERED = (
    "that something was deleted, and when, is not hidden",
    "that some record was learned at that place is not hidden",
    "what the service tells its owner (refusals, verification) is not covered",
    "how long an answer takes is not covered",
)


class _Statistic(Protocol):
    """What of a model is published with noise, and what follows from that."""

    size: int

    def bound(self, records: int) -> float: ...

    def largest(self) -> float: ...

    def value(self) -> Array: ...

    def weights(self, noisy: Array, sigma: float) -> Array: ...


class _Weights:
    """The weights of `ogd`, as they are."""

    def __init__(self, mode: OGD) -> None:
        self._mode, self.size = mode, mode.size

    def bound(self, records: int) -> float:
        return self._mode.shift_bound(records)

    def largest(self) -> float:
        return self._mode.radius

    def value(self) -> Array:
        return self._mode.published()

    def weights(self, noisy: Array, sigma: float) -> Array:
        norm, radius = float(np.linalg.norm(noisy)), self._mode.radius
        return noisy * (radius / norm) if norm > radius else noisy


class _Sums:
    """The sums of `ridge`: x x' as an isometric vector, then x y for each target."""

    def __init__(self, mode: Ridge) -> None:
        self._mode = mode
        self._targets = 1 if mode.classes is None else mode.classes
        self._triangle = np.tril_indices(mode.dimension)
        rows, columns = self._triangle
        self._stretch = np.where(rows == columns, 1.0, math.sqrt(2.0))
        self.size = rows.size + mode.dimension * self._targets
        # The largest norm that one record adds, on the grid of the sums.
        d, B = mode.dimension, mode.norm_bound
        rounded = B * math.sqrt(d) * 2.0 ** -(mode.bits + 1)
        row = up(longest(B, d) + rounded, 4)
        self._one = up(row * math.hypot(row, mode.y_bound), 4)

    def bound(self, records: int) -> float:
        return up(self._one * (records + 8.0 * _U * self._mode.records), 4)

    def largest(self) -> float:
        return up(self._one * self._mode.records * (1.0 + 8.0 * _U), 4)

    def value(self) -> Array:
        mode = self._mode
        low, *high = mode.state()["sums"]
        if high:  # Added up as integers: only the sum is rounded.
            low = low.astype(object) + high[0].astype(object) * 2**kernels.LOW_BITS
        sums = low.astype(np.float64)
        d, x = mode.dimension, mode.norm_bound / 2.0**mode.bits
        # One-hot targets are steps of 2^bits too, whose bound is 1.
        y = mode.y_bound / 2.0**mode.bits
        return np.concatenate(
            [
                sums[:d, :d][self._triangle] * self._stretch * (x * x),
                sums[d:, :d].ravel() * (x * y),
            ]
        )

    def weights(self, noisy: Array, sigma: float) -> Array:
        d, split = self._mode.dimension, self._triangle[0].size
        square = np.zeros((d, d))
        square[self._triangle] = noisy[:split] / self._stretch
        square += np.tril(square, -1).T
        strength, directions = np.linalg.eigh(square)
        floor = sigma * math.sqrt(2.0 * d)
        strength = np.maximum(strength, floor) + self._mode.Lambda
        products = noisy[split:].reshape(self._targets, d)
        solved = (products @ directions) / strength @ directions.T
        return solved.ravel()


def _offered(mode: Mode) -> tuple[OGD | Ridge, _Statistic]:
    """A mode for which a bound is proved, and what it publishes; or the refusal."""
    if isinstance(mode, OGD):
        return mode, _Weights(mode)
    if isinstance(mode, Ridge):
        return mode, _Sums(mode)
    why = "no bound is proved for it"
    if mode.name == "logistic":
        why = (
            "it declines to publish until it is proved to be near its minimum, and when"
            " that is follows the data"
        )
    raise ValueError(
        f"mode {mode.name!r} cannot answer from published copies: {why}. Use 'ridge' or"
        " 'ogd'."
    )


class PublishedAnswers(Mode):
    """A mode whose state is secret, and which answers from published copies.

    Before the first publication every weight is 0. `delete` and `shift_bound` are the
    mode's own; `show` publishes.

    >>> mode = PublishedAnswers(OGD(2, lam=0.5))
    >>> _ = mode.insert([0.6, 0.8], 1.0)
    >>> mode.predict([0.6, 0.8]), mode.secret
    (0.0, True)
    >>> mode.show(np.zeros(2), sigma=1.0)
    >>> round(mode.predict([0.6, 0.8]), 4)
    0.5
    """

    publishes = "state"

    @property
    def secret(self) -> bool:
        """Only published copies may be seen."""
        return True

    def __init__(self, mode: Mode) -> None:
        self._mode, self._statistic = _offered(mode)
        self.name, self.loss, self.losses = mode.name, mode.loss, mode.losses
        self.dimension, self.classes = mode.dimension, mode.classes
        self.needs_record, self.exact = mode.needs_record, mode.exact
        self.regulariser = mode.regulariser
        self.theorem = Theorem(
            id=f"{mode.theorem.id}-published",
            statement=(
                "Everything that ever leaves the service, before the deletion and"
                " after it, can be told apart from that of a service that never saw the"
                " record, where its place in the stream was kept and left blank, no"
                " better than two Gaussians whose means are sqrt(a^2 + b^2) apart,"
                " whatever requests and inserts looked at: a for all publications, "
                + (
                    "b = 0 for the deletion, which is exact."
                    if mode.exact
                    else "b for this person's deletions."
                )
            ),
            scopes=("subject",),
            not_covered=_NOT_COVERED,
            joint_accounting=mode.theorem.joint_accounting,
            composes=(("subject", mode.theorem.composition("subject")),),
        )
        self._shown = np.zeros(mode.size)

    # -- publications --------------------------------------------------------------

    @property
    def statistic_size(self) -> int:
        """How many numbers a publication adds noise to."""
        return self._statistic.size

    def publication_bound(self, records: int = 1) -> float:
        """How far `records` live records of one person move what is published now.

        It follows the configuration and the number of events, never their content.
        """
        validate.count(records=records)
        return self._statistic.bound(records)

    def publication_size(self) -> float:
        """A bound on every number to be published, from public counts alone."""
        return self._statistic.largest()

    def show(self, noise: Array, *, sigma: float, grid: float | None = None) -> None:
        """Publish: from now on answers follow this copy."""
        value = self._statistic.value()
        noisy = with_noise(value, noise, grid, self.statistic_size)
        self._shown = self._statistic.weights(noisy, sigma)

    def shows_as(self, other: PublishedAnswers) -> None:
        """Go on answering from the copy that another model published."""
        self._shown = other.published()

    # -- answers, from the published copy --------------------------------------------

    def published(self) -> Array:
        """The weights of the last published copy."""
        return self._shown.copy()

    def predict(self, x: ArrayLike) -> float:
        """A prediction from the last published copy."""
        mode, row = self._mode, self._row(x)
        return float(kernels.predict(self._shown, row, mode.norm_bound, mode._kind))

    def probabilities(self, x: ArrayLike) -> Array:
        """The probability of each class, from the last published copy."""
        if self.classes is None:
            return super().probabilities(x)
        row = self._row(x)
        if isinstance(self._mode, Ridge):
            return nearest_distribution(class_scores(self._shown, row, self.classes))
        return class_probabilities(self._shown, row, self.classes)

    def _row(self, x: ArrayLike) -> Array:
        return clipped(vector(x, self.dimension), self._mode.norm_bound)

    def _answer(self, x: ArrayLike, y: float) -> float:
        """The prediction that `insert` returns; over classes, for the record's own."""
        if self.classes is None:
            return self.predict(x)
        row, target = self.check(x, y)
        if isinstance(self._mode, Ridge):
            return float(class_scores(self._shown, row, self.classes)[int(target)])
        return float(self.probabilities(row)[int(target)])

    # -- the secret model -------------------------------------------------------------

    def check(self, x: ArrayLike, y: float) -> tuple[Array, float]:
        """The record as it will be learned."""
        return self._mode.check(x, y)

    def insert(self, x: ArrayLike, y: float) -> float:
        """Learn a record; the prediction for it from the last published copy."""
        answer = self._answer(x, y)
        self._mode.insert(x, y)
        return answer

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Array:
        """Learn rows in order, all or none; predictions as `insert` gives them."""
        self._mode.insert_many(X, Y)  # and publishes nothing
        rows, targets = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
        return np.array(
            [self._answer(x, y) for x, y in zip(rows, targets, strict=True)]
        )

    def skip(self) -> None:
        """The tick of a record that the replay lacks."""
        self._mode.skip()

    def shift_bound(self, records: int = 1) -> float:
        """The mode's own, after the deletion."""
        return self._mode.shift_bound(records)

    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        noise: Array | None = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        """Forget, in the secret model; what was published stays published."""
        self._mode.delete(x, y, noise, records=records, grid=grid)

    def forget_nothing(
        self, noise: Array | None = None, *, grid: float | None = None
    ) -> None:
        """The replay's step where the other world deletes."""
        self._mode.forget_nothing(noise, grid=grid)

    def state(self) -> State:
        """The secret state and the published copy."""
        secret = {_STATE + name: array for name, array in self._mode.state().items()}
        return secret | {"published": self.published()}

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on from a `state()`."""
        shown = vector(state["published"], self.size, "the published copy").copy()
        start = len(_STATE)
        self._mode.restore(
            {n[start:]: a for n, a in state.items() if n.startswith(_STATE)}
        )
        self._shown = shown

    def config(self) -> dict[str, Any]:
        """That of the secret model."""
        return self._mode.config()

    def fresh(self) -> Self:
        """The same configuration, nothing learned and nothing published."""
        return type(self)(self._mode.fresh())

    def digest(self) -> str:
        """The digest of the secret model and the published copy."""
        inner = np.frombuffer(bytes.fromhex(self._mode.digest()), dtype=np.uint8)
        parts: State = {"model": inner, "published": self._shown}
        return digest_of(f"published {self.name}", self.dimension, self.config(), parts)
