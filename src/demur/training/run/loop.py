"""The training loop: steps in flight, and the report after each of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import jax

from demur.training.clipping.types import PyTree
from demur.training.devices.shardings import own_copy
from demur.training.plans.plan import DPExecutionPlan
from demur.training.run.paid_run import PaidRun
from demur.training.run.prefetcher import StepInput
from demur.training.run.progress import ProgressBar
from demur.training.run.sharded_state import TrainState
from demur.training.run.step_reports import Exact, StepReport, spent_so_far
from demur.training.run.steps import Steps

_IN_FLIGHT = 3  # steps the device may lag behind; more would pile up batches


class TrainingLoop:
    """One step after the other, with reports, rate and waste."""

    def __init__(
        self,
        plan: DPExecutionPlan,
        steps: Steps,
        run: PaidRun,
        callback: Callable[[StepReport], Any] | None,
        progress: ProgressBar,
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._key = run.key
        self._callback = callback
        self._progress = progress
        self._delta = run.delta
        self._spent = None
        if callback is not None or progress.visible:
            whole = run.entry.epsilon(plan.unit, run.delta)
            self._spent = spent_so_far(plan.event(), plan.draws, run.delta, whole)
        self._in_flight: deque[Any] = deque()
        self._computed = self._real = 0
        self._times: deque[float] = deque([time.perf_counter()], maxlen=50)

    @property
    def waste(self) -> float:
        """The share of computed rows that were padding."""
        return 1.0 - self._real / max(self._computed, 1)

    def step(self, state: TrainState, step_input: StepInput) -> tuple[TrainState, Any]:
        """The next state, and sums of loss and aux if they were asked for."""
        state, token, value = self._steps.run(state, step_input, self._key)
        self._in_flight.append(token)
        if len(self._in_flight) > _IN_FLIGHT:
            jax.block_until_ready(self._in_flight.popleft())
        self._computed += sum(part.size for part in step_input.minibatches)
        self._real += sum(part.real for part in step_input.minibatches)
        return state, value

    def report(self, state: TrainState, step_input: StepInput, value: Any) -> bool:
        """Show progress and call the callback; True if it asks to stop."""
        if self._spent is None:
            return False
        self._times.append(time.perf_counter())
        rate = (len(self._times) - 1) / (self._times[-1] - self._times[0])
        epsilon = self._spent(step_input.step // self._plan.steps_per_draw + 1)
        self._progress.show(step_input.step + 1, epsilon, rate)
        if self._callback is None:
            return False
        exact = None
        if value is not None:
            real = sum(part.real for part in step_input.minibatches)
            loss, aux = jax.device_get(value)
            metrics = {"loss": float(loss) / max(real, 1), "batch_size": real}
            if aux is not None:
                metrics["aux"] = jax.tree.map(lambda leaf: leaf / max(real, 1), aux)
            exact = Exact(metrics)
        params = state.params
        report = StepReport(
            step=step_input.step + 1,
            iterations=self._plan.iterations,
            epsilon=epsilon,
            delta=self._delta,
            steps_per_second=rate,
            params=lambda: _copied(params),
            exact=exact,
        )
        return self._callback(report) is True


def _copied(params: PyTree) -> PyTree:
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(params)):
        raise RuntimeError(
            "the parameters of this step were overwritten by the next one: call"
            " report.params() inside the callback"
        )
    return jax.tree.map(own_copy, params)
