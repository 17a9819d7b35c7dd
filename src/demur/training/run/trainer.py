"""`fit`: DP training of a model by a plan, charged to a ledger.

    pay -> select -> clip and sum -> noise -> update -> commit

The whole run is one entry of the ledger, paid before the first batch is selected; every
round is drawn from it before its noise exists, and after the last one it declines.
Batches and noise come from the entry's key, by step, so that a run that was interrupted
is resumed from its checkpoint with the noise it would have had.

What a run reports on the way (`Reporting`) may be released: step, rate, epsilon so far,
and parameters. Exact metrics exist on request, wrapped so that nothing prints them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from demur.core import memory_dumps
from demur.core.digest import digest_of_parts
from demur.core.entropy import Source
from demur.core.release import Release
from demur.ledger import Ledger
from demur.training.batches.user_selection import UserSelectionStrategy, base_of
from demur.training.clipping.frozen_losses import (
    FrozenLoss,
    frozen_of,
    gradient_at,
)
from demur.training.clipping.ghost.memory import default_budget
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.devices.placement import Placement, ShardedData
from demur.training.devices.processes import Processes
from demur.training.finetuning.parts import Trainable
from demur.training.plans.plan import DPExecutionPlan, ledger_and_delta
from demur.training.run import agreement, charges
from demur.training.run.arguments import (
    check_called_plainly,
    check_count,
    check_optimizer,
    check_params,
    problem,
)
from demur.training.run.charges import PaymentTerms
from demur.training.run.checkpoints import orbax_files
from demur.training.run.checkpoints.checkpoint import Checkpoint
from demur.training.run.checkpoints.elastic import check_reached
from demur.training.run.examples import RunExamples
from demur.training.run.loop import TrainingLoop
from demur.training.run.loss_checks import dead_parameters
from demur.training.run.loss_checks.checked_losses import check_loss, flops
from demur.training.run.paid_run import PaidRun, as_checkpoint
from demur.training.run.prefetcher import Prefetcher
from demur.training.run.progress import progress_bar
from demur.training.run.sharded_state import TrainState
from demur.training.run.step_reports import Exact, Reporting
from demur.training.run.steps import Steps
from demur.training.sizes.defaults import (
    may_need_several,
    rows_of_largest_step,
    shapes_for,
)
from demur.training.sizes.resources import Resources

_ROWS = "data (the rows, in order)"
_DEFAULT_RESOURCES = Resources()
_DEFAULT_REPORTING = Reporting()


@dataclass(frozen=True)
class Trained(Release[PyTree]):
    """The parameters of a finished run, and the entry that paid.

    `average` is their moving average, if one was asked for (post-processing: it costs
    nothing). `waste` is the share of computed rows that were padding; it follows from
    the sampled batches, so it is exact, not private.

    `without_gradient` names parameters that the loss does not depend on, and those that
    had no gradient on made-up inputs, on which it may depend all the same. `unmoved`
    names those that ended as they began (`dead_parameters`). A warning has named them
    too. Both are free of charge.
    """

    average: PyTree | None
    steps: int
    waste: Exact[float]
    without_gradient: tuple[str, ...] = ()
    unmoved: tuple[str, ...] = ()


def fit(
    plan: DPExecutionPlan,
    loss_fn: Callable[..., Any] | Trainable | None,
    params: PyTree = None,
    data: Any = None,
    *,
    optimizer: optax.GradientTransformation,
    ledger: Ledger | None = None,
    label: str = "DP training",
    delta: float | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    average: float | None = None,
    resources: Resources = _DEFAULT_RESOURCES,
    reporting: Reporting = _DEFAULT_REPORTING,
    source: Source | None = None,
) -> Trained:
    """Train `params` on `data` by `plan`, charge the ledger, and release the result.

    - `loss_fn(params, batch)` is the loss of a batch, a mean or sum over its examples;
      None takes the loss of the plan's own gradient. A `Trainable` (a part of a model
      with its loss, a torch module) has parameters of its own: `fit(plan, it, data)`.
    - `batch` has the structure of `data`: arrays, memory maps, an Arrow table, a file,
      a dataset (`as_data`), or any of these grouped by user (`UserData`); the plan then
      protects a user.
    - `ledger` pays. None: a ledger in memory, at `delta` (the plan's, if it has one).
    - `checkpoint` (a folder, or a `Checkpoint`) makes the run resumable; it needs a
      ledger on disk or on a server.
    - `average` keeps a moving average of the parameters with this decay.
    - `resources`: sizes of what is computed at once, and devices (`Resources`).
    - `reporting`: callback, progress bar, exact metrics (`Reporting`).
    - `source` is where the noise comes from: the operating system, or, in tests, a
      `Seeded` source.
    """
    memory_dumps.switch_off()
    loss_fn, params, data = problem(plan, loss_fn, params, data)
    mesh = resources.mesh
    group = Processes(mesh)
    placement = Placement(mesh, resources.shard_parameters, resources.batch_axes)
    with ExitStack() as stack:
        stack.enter_context(group.interruptible())
        with group.stage():
            computing = agreement.versions() if group.count > 1 else {}
        group.check_same(computing)
        with group.stage():
            check_called_plainly()
            examples = RunExamples.of(data)
            check_params(params)
            check_optimizer(optimizer, params)
            clipped = _gradient(plan, loss_fn, resources, reporting)
            _check(plan, examples, average)
            own = examples.checked_own(group, placement, plan)
            frozen = frozen_of(clipped.arguments["fun"])
            where = placement.described((params, frozen))
        # Programs over several processes come after this alone: what is cut in one and
        # whole in another would leave them waiting for each other.
        group.check_same(
            {
                "shapes and shardings of parameters": where,
                "counts of rows": own and own.counts,
            }
        )
        with group.stage():
            selection = base_of(plan.batch_selection_strategy)
            micro = clipped.arguments["microbatch_size"]
            shapes = shapes_for(
                selection,
                examples.count,
                replace(resources, microbatch_size=micro),
                flops=lambda: flops(clipped, params, examples),
            )
            if resources.shapes is None and shapes.microbatch_size != micro:
                clipped = clipped.with_(microbatch_size=shapes.microbatch_size)
            paying_ledger, read_at = _paying_ledger(group, plan, ledger, delta)
            steps = Steps(
                clipped,
                plan.noise_addition_transform,
                optimizer,
                average=average,
                exact=reporting.exact_metrics,
                placement=placement,
                stored=resources.store_programs,
                shares=0 if own is None else len(own.counts),
            )
            stack.callback(steps.close)
            state = steps.init(params)

            def batch(size: int) -> Any:
                return examples.structs(size, placement.row_sharding)

            spread = 1 if own is None else len(own.counts)
            plan.noise_addition_transform.spec.check_rows(
                rows_of_largest_step(selection, examples.count, shapes, spread)
            )
            several = may_need_several(selection, examples.count, shapes)
            several = several or own is not None  # one process may have many
            steps.prepare(state, shapes, batch, several=several)
            if resources.check_loss:
                steps.compile()  # in the background of the check, which takes a while
            stored = as_checkpoint(checkpoint)
            elastic = stored is not None and stored.elastic
            if stored is not None:
                _check_storable(state)
            if elastic:
                _check_elastic(group)
            inputs: dict[str, object] = {}
            agreed: dict[str, object] = {}
            if stored is not None or group.count > 1:
                ids = examples.ids
                inputs = {
                    _ROWS: examples.rows.digest(),
                    "first parameters": None,
                    "plan": plan.fingerprint,
                    "batch sizes": shapes.sizes,
                    "users": None if ids is None else charges.tree_digest(ids),
                    "program": " ".join(
                        steps.digest(state, batch(size))
                        # What is repeated has the form of its own size (`memory`).
                        for size in (shapes.sizes if stored else shapes.sizes[:1])
                    ),
                }
                if frozen is not None:
                    inputs["frozen parameters"] = None
                devices = placement.digest()
                if devices is not None:  # the rounding of sums follows them
                    inputs["mesh"] = devices
                if own is not None:
                    inputs["counts of rows"] = own.counts
                if elastic:
                    inputs["step"] = steps.digest_of_any_layout(
                        state, examples.structs(2)
                    )
            if group.count > 1:
                # The same names in all: what is compared is one array in each.
                names = ("frozen parameters", "step", "mesh", "counts of rows")
                agreed = dict.fromkeys(names) | inputs
                agreed["checkpoint"] = stored and (stored.every, stored.elastic)
                agreed["batches drawn from one key"] = agreement.probe(
                    lambda key: examples.batches(plan, key, 0)
                )
        if own is not None and inputs:  # each process has a digest of its own
            inputs[_ROWS] = agreed[_ROWS] = own.joint_digest(group, str(inputs[_ROWS]))
        group.check_same(agreed)
        # Parameters that lie with several processes are brought together leaf by leaf.
        for name, tree in (("first parameters", params), ("frozen parameters", frozen)):
            if name in inputs:
                inputs[name] = charges.tree_digest(tree, group.whole)
                group.check_same({name: inputs[name]})
        with group.stage():
            cut = placement.shardings(params) is not None
            dead = check_loss(
                gradient_at(clipped, steps.frozen) if cut else clipped,
                state.params if cut else params,
                examples,
                resources.check_loss,
            )
            if dead.seen and group.first:
                warnings.warn(str(dead), stacklevel=2)
        layout = digest = None
        if stored is not None:
            inputs["machines"] = agreement.machines(group)
            if elastic:  # the layout may change between two starts
                check_reached(group, Path(stored.folder))
                parts = ("batch sizes", "program", "mesh", "machines")
                layout = digest_of_parts(*[inputs.pop(part, None) for part in parts])
            digest = digest_of_parts(*inputs.values())
        assumed = agreement.assumed(own, resumable=stored is not None)
        people = examples.ids is not None
        terms = PaymentTerms(
            paying_ledger, read_at, label, digest, source, people, assumed
        )
        run = stack.enter_context(PaidRun(group, plan, terms, state, stored, layout))
        steps.compile()
        state, start = run.resumed(
            state, placement, lambda step: steps.noise_after(state, run.key, step)
        )
        shown = reporting.progress if group.first else False
        progress = stack.enter_context(progress_bar(plan.iterations, start, shown))
        loop = TrainingLoop(plan, steps, run, reporting.callback, progress)
        sharding = placement.row_sharding
        rows = examples.rows if own is None else own
        prefetcher = Prefetcher(
            examples.batches(plan, run.key, start),
            rows if sharding is None else ShardedData(rows, sharding),
            start=start,
            shapes=shapes,
            place=jax.device_put if mesh is None else lambda rows: rows,
            pay=run.pay,
            owners=own,
        )
        step_inputs = iter(stack.enter_context(prefetcher))
        with group.stage():
            if group.count > 1:
                steps.wait()  # a process that fails inside a step leaves the others
            step_input = next(step_inputs, None)
        while step_input is not None:
            with group.collective():
                state, value = loop.step(state, step_input)
            done = step_input.step + 1
            with group.stage() as stage:
                stage.stop = loop.report(state, step_input, value) and group.first
                if not (stage.stop or run.due(done)):
                    step_input = next(step_inputs, None)
            if run.due(done):
                run.save(done, state)
            if stage.stop:
                break
            if run.due(done):
                # Only now: a batch that fails must not cost what is due before it.
                with group.stage():
                    step_input = next(step_inputs, None)
        run.commit(state)
    unmoved = dead_parameters.unmoved(params, state.params)
    if unmoved and group.first:
        every = len(unmoved) == len(jax.tree.leaves(params))
        warnings.warn(dead_parameters.unmoved_text(unmoved, every), stacklevel=2)
    return Trained(
        value=state.params,
        entry=run.entry,
        average=state.average,
        steps=int(state.steps),
        waste=Exact(loop.waste),
        without_gradient=dead.seen,
        unmoved=unmoved,
    )


def check_fit(
    plan: DPExecutionPlan,
    loss_fn: Callable[..., Any] | None,
    params: PyTree,
    data: Any,
    *,
    optimizer: optax.GradientTransformation,
    average: float | None = None,
    resources: Resources = _DEFAULT_RESOURCES,
) -> None:
    """Refuse whatever `fit` would refuse before it pays; nothing is computed on data.

    For a search, which pays for fits that are not made yet.
    """
    examples = RunExamples.of(data)
    check_params(params)
    check_optimizer(optimizer, params)
    clipped = _gradient(plan, loss_fn, resources, _DEFAULT_REPORTING)
    _check(plan, examples, average)
    check_loss(clipped, params, examples, resources.check_loss)


def _gradient(
    plan: DPExecutionPlan,
    loss_fn: Callable[..., Any] | None,
    resources: Resources,
    reporting: Reporting,
) -> ClippedGrad:
    clipped = plan.gradient(loss_fn)
    changes: dict[str, Any] = {}
    if loss_fn is not None and clipped.arguments["fun"] is not loss_fn:
        changes["fun"] = loss_fn
    if isinstance(loss_fn, FrozenLoss) and loss_fn.takes_key:
        changes["prng_argnum"] = 2
    if resources.microbatch_size is not None:
        changes["microbatch_size"] = resources.microbatch_size
    if resources.memory is not None:
        changes["memory"] = resources.memory
    elif resources.mesh is not None and clipped.arguments["memory"] is None:
        # Microbatches are taken on each device by itself, whole batches by all of them.
        micro = resources.microbatch_size or clipped.arguments["microbatch_size"]
        devices = resources.mesh.size if micro is None else 1
        changes["memory"] = default_budget(devices)
    if reporting.exact_metrics:
        changes["return_values"] = True
    clipped = clipped.with_(**changes) if changes else clipped
    if clipped.l2_norm_bound > plan.l2_norm_bound:
        raise ValueError(
            f"the noise was made for a bound of {plan.l2_norm_bound:g}; the gradient"
            f" has {clipped.l2_norm_bound:g}. Nothing was spent."
        )
    return clipped


def _check(plan: DPExecutionPlan, examples: RunExamples, average: float | None) -> None:
    if average is not None and not 0.0 < average < 1.0:
        raise ValueError(
            f"average must be between 0 and 1; got {average!r}. Nothing was spent."
        )
    users = plan.batch_selection_strategy
    if isinstance(users, UserSelectionStrategy):
        wanted = users.examples_per_user_per_batch
        if examples.ids is None or examples.per_user != wanted:
            raise TypeError(
                "the plan forms batches of users: pass data as UserData(data, ids,"
                f" examples={wanted}). Nothing was spent."
            )
    check_count(plan, examples.count, persons=examples.ids is not None)


def _check_storable(state: TrainState) -> None:
    """Refuse, unpaid, a state that a checkpoint could not hold."""
    for leaf in jax.tree.leaves(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise TypeError(
                "a checkpoint cannot hold the random key of this optimiser: leave"
                " checkpoint out, or take one without. Nothing was spent."
            )


def _check_elastic(group: Processes) -> None:
    """Refuse, unpaid, a checkpoint that Orbax could not write."""
    orbax_files.check_installed()
    if group.count != jax.process_count():
        raise ValueError(
            "Checkpoint(elastic=True) is written by all the processes that JAX has"
            f" joined, {jax.process_count()}: pass a mesh of all of them. Nothing was"
            " spent."
        )


def _paying_ledger(
    group: Processes,
    plan: DPExecutionPlan,
    ledger: Ledger | None,
    delta: float | None,
) -> tuple[Ledger, float] | tuple[None, None]:
    """The ledger and the delta it is read at, in the process that holds it."""
    if group.first:
        return ledger_and_delta(plan, ledger, delta)
    if ledger is not None:
        raise TypeError(
            "ledger must be None in every process but process 0, which holds it."
            " Nothing was spent."
        )
    return None, None
