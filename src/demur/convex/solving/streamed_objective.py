"""The objective of a head on rows that are read in passes, one pass for each answer.

The certificate is the one of `solver`: a pass computes the gradient over all rows in
float64, and its norm plus what rounding can add must be at most tau. Privacy rests on
that last pass alone. Where the search began (a sample of the rows) and how it went on
(a Hessian in float32, secants) decide how many passes it takes, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.errors import DataChanged
from demur.convex.rows import sources
from demur.convex.rows.class_sums import ClassSums, grid_step
from demur.convex.rows.sources import RowSource, Task
from demur.convex.rows.totals import Index, Totals, Work
from demur.convex.sensitivity.form import HeadForm
from demur.convex.solving import derivatives
from demur.convex.solving.derivatives import Labels
from demur.convex.solving.objective import Objective
from demur.core.bounds import Bound

Array = NDArray[np.float64]


class Answer(NamedTuple):
    """F, its gradient and (if asked for) its Hessian at one theta."""

    value: float
    gradient: Array
    hessian: Array | None


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """A row source whose labels and schema were checked, with its public limits."""

    rows: RowSource
    classes: NDArray[Any]
    counts: NDArray[np.int64]
    bound: Bound
    classes_public: bool
    clip: bool
    _first: list[int] = field(default_factory=list)  # the fingerprint of pass one

    @property
    def n(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    @property
    def width(self) -> int:
        """The number of features."""
        return self.rows.width

    def objective(self, form: HeadForm) -> StreamedObjective:
        """The objective of a form on these rows, with their norm bound."""
        return StreamedObjective(form.with_bound(self.bound), self)

    def exact_sums(self) -> tuple[Array, float]:
        """Sums of the rows of each class, exact on a grid, and that grid's step."""
        step = grid_step(self.n, self.bound.value)
        (sums,) = self.sums(ClassSums(len(self.classes), step))
        return sums.astype(np.float64) * step, step

    def sums(self, work: Work) -> tuple[NDArray[Any], ...]:
        """`work` summed over all rows: one pass, over the same rows as every other."""
        totals = self.rows.totals(self._task(work))
        self._check(totals)
        return totals.results()

    def sample(self, most: int) -> tuple[Array, Index]:
        """Up to `most` bounded rows in memory, and their classes."""
        chunk = self.rows.sample(self._task(_nothing), most)
        return chunk.rows, chunk.y

    @property
    def fingerprint(self) -> int | None:
        """The fingerprint of the rows that the first pass saw; None before it."""
        return self._first[0] if self._first else None

    def _task(self, work: Work) -> Task:
        return Task(self.classes, self.bound.value, self.clip, work)

    def _check(self, totals: Totals) -> None:
        if not self._first:
            self._first.append(totals.fingerprint)
        same = np.array_equal(totals.counts, self.counts)
        if not same or totals.fingerprint != self._first[0]:
            raise DataChanged(
                "the rows changed while they were read: two passes over them differ."
                " Write them to a file (or a table) that nobody changes, and fit"
                " again. Nothing was released, nothing was charged."
            )


def _nothing(rows: Array, index: Index) -> tuple[NDArray[Any], ...]:
    return ()


@dataclass(frozen=True)
class _Sums:
    """The work of a pass: losses, gradients and perhaps Hessians of a chunk, summed."""

    form: HeadForm
    theta: Array
    hessian: bool
    single: bool

    def __call__(self, rows: Array, index: Index) -> tuple[NDArray[Any], ...]:
        y = _labels(self.form, index)
        value, gradient = derivatives.gradient_sums(self.form, self.theta, rows, y)
        if not self.hessian:
            return np.array([value]), gradient
        hessian = derivatives.hessian_sum(
            self.form, self.theta, rows, y, single=self.single
        )
        return np.array([value]), gradient, hessian


def _labels(form: HeadForm, index: Index) -> Labels:
    return index if form.multinomial else 2.0 * index.astype(np.float64) - 1.0


class StreamedObjective:
    """`Objective` for streamed rows: the same answers, a pass for each."""

    def __init__(self, form: HeadForm, data: StreamedRows) -> None:
        """Nothing is read yet."""
        self.form = form
        self.data = data
        self.passes = 0
        self._last: tuple[Array, Answer] | None = None

    @property
    def n(self) -> int:
        """The number of records."""
        return self.data.n

    @property
    def lam(self) -> float:
        """The weight of the regulariser."""
        return self.form.lam

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of theta."""
        return self.form.shape(self.data.width)

    def answer(self, theta: ArrayLike, *, hessian: bool = False) -> Answer:
        """One pass: F and its derivatives at theta (the last answer is kept)."""
        theta = np.array(theta, dtype=np.float64)
        if theta.shape != self.shape:
            raise ValueError(f"theta must have shape {self.shape}; got {theta.shape}")
        if self._last is not None and np.array_equal(self._last[0], theta):
            if self._last[1].hessian is not None or not hessian:
                return self._last[1]
        # float32 leaves errors near 1e-6 of the largest eigenvalue, at most Bt^2.
        reach = self.form.norm_bound**2 + self.form.bias_scale**2
        single = self.lam >= 1e-4 * reach
        losses, gradients, *hessians = self.data.sums(
            _Sums(self.form, theta, hessian, single)
        )
        self.passes += 1
        n, lam = self.n, self.lam
        mean_hessian = None
        if hessian:
            mean_hessian = hessians[0] / n
            mean_hessian[np.diag_indices_from(mean_hessian)] += lam
        value = float(losses[0]) / n + 0.5 * lam * float(np.vdot(theta, theta))
        answer = Answer(value, gradients / n + lam * theta, mean_hessian)
        self._last = theta, answer
        return answer

    def value_and_gradient(self, theta: ArrayLike) -> tuple[float, Array]:
        """F(theta) and its gradient: one pass."""
        return self.answer(theta)[:2]

    def sampled(self, most: int) -> Objective:
        """The same objective on a sample of the rows, in memory."""
        rows, index = self.data.sample(most)
        return Objective(self.form, rows, _labels(self.form, index))

    def rounding(self, theta_norm: float) -> float:
        """How far the computed gradient can be from the true one, in norm."""
        return derivatives.rounding(
            self.form,
            theta_norm,
            features=self.data.width,
            additions=sources.additions(self.n),
        )

    def digest(self) -> str:
        """What the entry of a noisy descent is bound to; a first pass, where needed.

        That pass checks every row, so that nothing is charged for rows that cannot be
        fitted, and its answer is the first step's.
        """
        if self.data.fingerprint is None:
            self.value_and_gradient(np.zeros(self.shape))
        return f"{self.n} {self.data.width} {self.data.fingerprint:016x}"
