"""Audits of training: replay, noise and batches of `fit` itself, and canaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.audit import (
    AuditResult,
    Canaries,
    Claim,
    Level,
    audit,
    audit_canaries,
    flip_coins,
    independence_test,
    noise_test,
    replay,
    shared_noise_test,
)
from demur.audit.distributions import normal
from demur.core.adjacency import AddOrRemoveOne, ReplaceOne
from demur.core.entropy import NoiseKey, Seeded, Source
from demur.mechanisms.correlated import Participation, optimize_banded_toeplitz
from demur.testing.audit_suite.batches import allocation, records_of_a_person
from demur.testing.audit_suite.case import Case, Size
from demur.testing.audit_suite.counting import batches_test
from demur.testing.audit_suite.layouts import training as layouts
from demur.testing.audit_suite.recorded_fit import (
    RECORDS,
    charged_deviation,
    charged_probability,
    recorded_run,
)
from demur.training import (
    BandMFExecutionPlanConfig,
    ClippedSum,
    DPExecutionPlan,
    Reporting,
    Resources,
    dp_sgd,
    fit,
    gradient_run,
    named_optimizer,
    privatizer,
    step_weights,
)
from demur.training.batches.selection import KeyedSelection
from demur.training.models import MLP, cross_entropy

ENGINE = "training"
_WEIGHTS, _BIASES = (8, 16), 128
_SIZE = 256
_DELTA = 1e-5
_STEPS = 90  # as many draws as the tests of noise ask for, and some

Values = NDArray[np.float64]
Data = dict[str, NDArray[Any]]


def _params() -> dict[str, NDArray[np.float32]]:
    """Two leaves; in the order of their names, biases come first."""
    return {
        "b": np.zeros(_BIASES, np.float32),
        "w": np.zeros(_WEIGHTS, np.float32),
    }


def _plan(iterations: int = 1, **more: Any) -> DPExecutionPlan:
    parameters: dict[str, Any] = {
        "neighboring_relation": "ADD_OR_REMOVE_ONE",
        "l2_clip_norm": 1.0,
        "sampling_prob": 1.0,
        "noise_multiplier": 1.0,
    } | more
    if "num_bands" in parameters:
        return BandMFExecutionPlanConfig(iterations=iterations, **parameters).make()
    return dp_sgd(iterations=iterations, **parameters).make()


# -- replay ----------------------------------------------------------------------------


def _worlds() -> tuple[Data, Data]:
    """A distant record with one label, and with the other."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(24, 3)).astype(np.float32)
    labels = (rows @ np.arange(1, 4) > 0).astype(np.int32)
    rows[-1], labels[-1] = [40.0, -30.0, 20.0], 0
    other = labels.copy()
    other[-1] = 1
    return {"x": rows, "y": labels}, {"x": rows, "y": other}


def _replayed(
    make: Callable[[], DPExecutionPlan], seed: int, minibatch: int | None = None
) -> AuditResult:
    model = MLP(inputs=3, hidden=(), classes=2)

    def run(data: Data, source: Source) -> dict[str, Any]:
        done = fit(
            make(),
            cross_entropy(model),
            model.init(0),
            data,
            optimizer=named_optimizer("sgd", 0.5),
            delta=_DELTA,
            average=0.9,
            resources=Resources(check_loss=False, minibatch_size=minibatch),
            reporting=Reporting(progress=False),
            source=source,
        )
        return {"params": done.value, "average": done.average, "entry": done.entry}

    return replay(
        run,
        _worlds(),
        unit=ReplaceOne(),
        subject="training: a short run",
        random_state=seed,
    ).audit_result()


def _short(iterations: int = 2, **more: Any) -> DPExecutionPlan:
    parameters = {
        "neighboring_relation": "REPLACE_ONE",
        "sampling_prob": 0.9,
        "normalize_by": 20.0,
    }
    return _plan(iterations, **(parameters | more))


# -- noise and sampling ----------------------------------------------------------------


def _noise(kind: str | None, size: Size, seed: int) -> AuditResult:
    """The noise of every step and leaf of a run, against what the ledger was told."""
    run = recorded_run(size.of(_STEPS), seed, kind)
    deviation = charged_deviation(run)
    return noise_test(
        run.noise.reshape(-1) / deviation,
        normal(1.0),
        subject=f"training: noise of a run, {kind or 'default'} generator",
    )


def _leaves(same: bool, size: Size, seed: int) -> AuditResult:
    """The biases' noise beside that of the weights, of which there are as many."""
    run = recorded_run(size.of(_STEPS), seed)
    biases, weights = (leaf.reshape(-1) for leaf in run.leaves())
    two = biases if same else weights
    return independence_test(
        np.column_stack([biases, two]) / charged_deviation(run),
        normal(1.0),
        subject="training: noise of two leaves",
    )


def _shared(
    kind: str | None, size: Size, seed: int, again: bool = False
) -> AuditResult:
    """All steps and leaves of two runs: no two of them may share noise."""
    first = recorded_run(size.of(_STEPS), seed, kind)
    second = recorded_run(3, seed + 1, kind)
    rows = np.vstack([leaf[: 2 * _STEPS] for leaf in first.leaves()])
    rows = np.vstack([rows, *second.leaves()])
    if again:
        rows[1] = rows[0]
    return shared_noise_test(
        rows / charged_deviation(first),
        normal(1.0),
        subject="training: noise of steps, leaves and runs",
    )


class _Shuffled(KeyedSelection):
    """Every record once in each epoch, in a new random order."""

    def __init__(self, batch: int, iterations: int) -> None:
        self.batch, self.iterations = batch, iterations

    def _steps(self, n: int, key: NoiseKey, start: int) -> Any:
        rng = np.random.default_rng(
            int.from_bytes(key.stream("order").read(16), "little")
        )
        for _ in range(0, self.iterations, n // self.batch):
            yield from np.split(rng.permutation(n), n // self.batch)


def _participation(shuffled: bool, size: Size, seed: int) -> AuditResult:
    """Who took part in which step of a run, against what the ledger was told."""
    run = recorded_run(size.of(_STEPS), seed)
    share = charged_probability(run)
    batches = run.batches
    if shuffled:
        strategy = _Shuffled(int(RECORDS * share), len(batches))
        key = NoiseKey(Seeded(seed).new_key(), private=False)
        batches = [np.asarray(b) for b in strategy.batch_iterator(RECORDS, key)]
    return batches_test(
        batches, RECORDS, share, subject="training: participation of records"
    )


# -- sensitivity over steps ------------------------------------------------------------


def _over_steps(size: Size, seed: int) -> AuditResult:
    """How far correlated noise's sums move, over every pattern of a small run.

    |C u| for a record that contributes the same unit vector in the steps of a pattern,
    all patterns tried, against what the strategy declares of them.
    """
    steps, shares = 10, []
    for bands, apart, most in ((1, 1, 3), (3, 3, None), (3, 2, 4), (4, 1, 2)):
        strategy = optimize_banded_toeplitz(steps, bands)
        known = Participation(min_separation=apart, max_participations=most)
        matrix = np.abs(strategy.matrix())
        reached = max(
            float(np.linalg.norm(matrix[:, list(pattern)].sum(axis=1)))
            for pattern in _patterns(steps, apart, most or steps)
        )
        shares.append(reached / strategy.sensitivity(known).value)
    most_used, least_used = max(shares), min(shares)
    refuted = most_used > 1.0 + 1e-9
    return AuditResult(
        subject="training: sensitivity over the steps of a record",
        level=Level.SENSITIVITY,
        method="search for the worst pattern",
        unit=AddOrRemoveOne().describe(),
        claimed=None,
        delta=0.0,
        lower_bound=None,
        runs=len(shares),
        alpha=0.0,
        refuted=refuted,
        evidence=f"The worst patterns use {least_used:.3f} to {most_used:.3f} of what"
        " is declared.",
        factor=1.0 / least_used,
    )


def _patterns(steps: int, apart: int, most: int) -> Iterator[tuple[int, ...]]:
    for count in range(1, most + 1):
        for pattern in itertools.combinations(range(steps), count):
            gaps = itertools.pairwise(pattern)
            if all(b - a >= apart for a, b in gaps):
                yield pattern


# -- canaries --------------------------------------------------------------------------


def _canaries(
    plan: DPExecutionPlan, claimed: DPExecutionPlan, form: Any, seed: int
) -> AuditResult:
    canaries = Canaries.draw(_SIZE, _SIZE, clip_norm=1.0)
    coins = flip_coins(_SIZE, random_state=seed)
    releases = gradient_run(plan, _params())(canaries.rows(coins), Seeded(seed))
    scores = canaries.scores(releases, step_weights(plan))
    claim = Claim.of(claimed.event(), unit=claimed.unit, delta=_DELTA)
    (result,) = audit_canaries(
        scores, coins, claim, forms=(form,), subject="training: canaries in one run"
    )
    return result


def _one_step(plan: DPExecutionPlan, size: Size, seed: int) -> AuditResult:
    """One canary in the biases, present and absent, many times."""
    rows = np.zeros((1, _SIZE), np.float32)
    rows[0, 0] = 4.0
    claimed = _plan()
    return audit(
        gradient_run(plan, _params()),
        (rows, np.zeros_like(rows)),
        Claim.of(claimed.event(), unit=claimed.unit, delta=_DELTA, score=rows[0]),
        runs=size.of(1500),
        random_state=seed,
        subject="training: one step, one canary",
    )


def _with_noise(plan: DPExecutionPlan, factor: float) -> DPExecutionPlan:
    spec = plan.noise_addition_transform.spec
    wrong = privatizer(
        spec.strategy,
        stddev=spec.stddev * factor,
        noise=spec.noise,
        l2_norm_bound=spec.l2_norm_bound,
        participation=spec.participation,
        plan=spec.plan,
    )
    return replace(plan, noise_addition_transform=wrong)


def _one_leaf_unclipped(plan: DPExecutionPlan) -> DPExecutionPlan:
    """Norms without the biases, whose sum is not clipped."""

    def unclipped(loss: Any) -> Any:
        right = plan.gradient(loss)

        def run(params: Any, rows: Any, *args: Any, **options: Any) -> ClippedSum:
            total = right.run(params, rows, *args, **options)
            # Here a row is its own gradient, biases first, and padding rows are zero.
            value = dict(total.value) | {"b": rows[:, :_BIASES].sum(axis=0)}
            return ClippedSum(value, total.l2_norm_bound)

        return replace(right, run=run)

    return replace(plan, clipped_grad=unclipped)


def cases() -> tuple[Case, ...]:
    """Correct plans, then twins."""
    eight = _plan(8, noise_multiplier=1.5)
    correct: tuple[tuple[str, Level, Callable[[Size, int], AuditResult]], ...] = (
        (
            "two steps of DP-SGD as fit runs them by default",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _short(noise="threefry"), i),
        ),
        (
            "two steps of DP-SGD, lattice noise",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _short(noise="lattice"), i),
        ),
        (
            "a step in several minibatches",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _short(1), i, minibatch=2),
        ),
        (
            "seven steps with three bands",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _short(7, num_bands=3), i),
        ),
        (
            "noise of a run, default generator",
            Level.NOISE,
            lambda s, i: _noise(None, s, i),
        ),
        (
            "noise of a run, lattice",
            Level.NOISE,
            lambda s, i: _noise("lattice", s, i),
        ),
        ("noise of two leaves", Level.NOISE, lambda s, i: _leaves(False, s, i)),
        (
            "noise of steps, leaves and runs, default generator",
            Level.NOISE,
            lambda s, i: _shared(None, s, i),
        ),
        (
            "noise of steps, leaves and runs, lattice",
            Level.NOISE,
            lambda s, i: _shared("lattice", s, i),
        ),
        (
            "participation of records",
            Level.NOISE,
            lambda s, i: _participation(False, s, i),
        ),
        ("steps of an allocated record", Level.NOISE, allocation),
        ("records of a person in a batch", Level.SENSITIVITY, records_of_a_person),
        ("sensitivity over steps", Level.SENSITIVITY, _over_steps),
        ("one step", Level.BLACK_BOX, lambda s, i: _one_step(_plan(), s, i)),
        (
            "eight steps, one run, GDP",
            Level.CANARIES,
            lambda s, i: _canaries(eight, eight, "GDP", i),
        ),
    )
    twins: tuple[tuple[str, Level, Callable[[Size, int], AuditResult]], ...] = (
        (
            "half the noise",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _with_noise(_short(), 0.5), i),
        ),
        (
            "half the noise",
            Level.CANARIES,
            lambda s, i: _canaries(_with_noise(eight, 0.5), eight, "GDP", i),
        ),
        (
            "one leaf not clipped",
            Level.BLACK_BOX,
            lambda s, i: _one_step(_one_leaf_unclipped(_plan()), s, i),
        ),
        ("the same noise in two leaves", Level.NOISE, lambda s, i: _leaves(True, s, i)),
        (
            "the same noise in two steps",
            Level.NOISE,
            lambda s, i: _shared(None, s, i, again=True),
        ),
        (
            "Poisson accounting, shuffled batches",
            Level.NOISE,
            lambda s, i: _participation(True, s, i),
        ),
    )
    return (
        *(Case(ENGINE, name, level, run) for name, level, run in correct),
        *layouts.cases(ENGINE),
        *(Case(ENGINE, "DP-SGD", level, run, what) for what, level, run in twins),
    )
