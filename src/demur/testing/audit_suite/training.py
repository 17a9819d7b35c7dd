"""Audits of training: replay of short runs, noise, sampling, and canaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from demur.audit import (
    AuditResult,
    Canaries,
    Claim,
    Level,
    audit,
    audit_canaries,
    draws_needed,
    flip_coins,
    independence_test,
    noise_test,
    replay,
)
from demur.audit.distributions import normal
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, Seeded, Source
from demur.testing.audit_suite.case import Case, Size
from demur.testing.audit_suite.counting import counts_test
from demur.training import (
    BandMFExecutionPlanConfig,
    BatchSelectionStrategy,
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
from demur.training.batches.user_selection import base_of
from demur.training.models import MLP, cross_entropy

ENGINE = "training"
_WEIGHTS, _BIASES = (8, 16), 128
_SIZE = 256
_DELTA = 1e-5
_PAIRS = 21_000  # what the test of independence asks for, and some

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


def _replayed(make: Callable[[], DPExecutionPlan], seed: int) -> AuditResult:
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
            resources=Resources(check_loss=False),
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
        "noise": "lattice",
    }
    return _plan(iterations, **(parameters | more))


# -- noise and sampling ----------------------------------------------------------------


def _draws(kind: str, count: int, seed: int) -> tuple[Values, Any]:
    """At least `count` draws, a row for each step."""
    law = normal(1.0)
    steps = -(-count // _SIZE)
    plan = _plan(steps, noise=kind)
    spec = plan.noise_addition_transform.spec
    if kind == "lattice":
        # Rounded to float32 after the lattice, which hides the lattice step.
        law = normal(float(np.max(spec.lattice(_SIZE).mechanism.sigma)))
    return gradient_run(plan, _params())(np.zeros((1, _SIZE)), Seeded(seed)), law


def _noise(kind: str, size: Size, seed: int) -> AuditResult:
    draws, law = _draws(kind, size.of(draws_needed(normal(1.0))), seed)
    return noise_test(draws.reshape(-1), law, subject=f"training: {kind} noise")


def _leaves(same: bool, size: Size, seed: int) -> AuditResult:
    """The biases' noise beside that of the weights, of which there are as many."""
    draws, law = _draws("threefry", size.of(_PAIRS * 2), seed)
    one = draws[:, :_BIASES].reshape(-1)
    two = one if same else draws[:, _BIASES:].reshape(-1)
    return independence_test(
        np.column_stack([one, two]), law, subject="training: noise of two leaves"
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


def _participation(
    strategy: BatchSelectionStrategy, size: Size, seed: int
) -> AuditResult:
    """How often each record takes part in eight steps, against Binomial(8, 1/4)."""
    n, steps, share = size.of(4000), 8, 0.25
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    times = np.zeros(n, np.int64)
    for batch in strategy.batch_iterator(n, key):
        times[np.asarray(batch)] += 1
    return counts_test(
        np.bincount(times, minlength=steps + 1),
        stats.binom.pmf(np.arange(steps + 1), steps, share),
        subject="training: participation of records",
    )


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
    poisson = base_of(_plan(8, sampling_prob=0.25).batch_selection_strategy)
    eight = _plan(8, noise_multiplier=1.5)
    correct: tuple[tuple[str, Level, Callable[[Size, int], AuditResult]], ...] = (
        ("two steps of DP-SGD", Level.REPLAY, lambda s, i: _replayed(_short, i)),
        (
            "seven steps with three bands",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _short(7, num_bands=3), i),
        ),
        ("threefry noise", Level.NOISE, lambda s, i: _noise("threefry", s, i)),
        ("lattice noise", Level.NOISE, lambda s, i: _noise("lattice", s, i)),
        ("noise of two leaves", Level.NOISE, lambda s, i: _leaves(False, s, i)),
        (
            "participation of records",
            Level.NOISE,
            lambda s, i: _participation(poisson, s, i),
        ),
        ("one step", Level.BLACK_BOX, lambda s, i: _one_step(_plan(), s, i)),
        (
            "eight steps, one run, f-DP",
            Level.CANARIES,
            lambda s, i: _canaries(eight, eight, "f-DP", i),
        ),
        (
            "eight steps, one run, classical",
            Level.CANARIES,
            lambda s, i: _canaries(eight, eight, "classical", i),
        ),
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
            "Poisson accounting, shuffled batches",
            Level.NOISE,
            lambda s, i: _participation(_Shuffled(s.of(1000), 8), s, i),
        ),
    )
    return (
        *(Case(ENGINE, name, level, run) for name, level, run in correct),
        *(Case(ENGINE, "DP-SGD", level, run, what) for what, level, run in twins),
    )
