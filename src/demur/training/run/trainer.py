"""`fit`: run a plan on data, and release the parameters it ends with.

    reserve -> select -> clip and sum -> noise -> update -> commit

The whole run is one reservation in the ledger, paid before the first batch is selected;
every round is drawn from it before its noise exists, and after the last one it
declines. Batches and noise come from the entry's key, by step, so that a run that was
cut short is taken up where its checkpoint left it, with the noise it would have had.

What comes out on the way (`callback`) is private-safe: step, rate, epsilon so far, and
parameters. Exact metrics exist for whoever asks, wrapped so that nothing prints them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.digest import digest_of_parts
from demur.core.entropy import NoiseKey, Source
from demur.core.release import Release
from demur.ledger import Ledger
from demur.training.batches.selection import UserSelectionStrategy
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.data import Data, as_data
from demur.training.devices.placement import Placement, Share
from demur.training.devices.processes import Processes
from demur.training.plans.plan import DPExecutionPlan
from demur.training.run import charges
from demur.training.run.checkpoint import Checkpoint
from demur.training.run.custody import Custody, as_checkpoint
from demur.training.run.feed import Feed
from demur.training.run.independence import check_examples_do_not_mix
from demur.training.run.loop import Loop
from demur.training.run.metrics import Exact, StepReport
from demur.training.run.progress import bar
from demur.training.run.steps import Steps, TrainState, call_arguments
from demur.training.sizes.defaults import loss_flops, may_need_several, shapes_for
from demur.training.sizes.shapes import CostModel, ShapePlan


@dataclass(frozen=True, eq=False)
class Users:
    """Batches of people: `ids[i]` owns example i, and brings `examples` to a batch."""

    ids: ArrayLike
    examples: int = 1

    def __post_init__(self) -> None:
        validate.count(examples=self.examples)
        object.__setattr__(self, "ids", _owners(self.ids))

    @property
    def count(self) -> int:
        """How many people there are."""
        return len(np.unique(self.ids))


def _owners(ids: ArrayLike) -> NDArray[Any]:
    """Names as an array. A missing one (None, NaN) would be taken for a person."""
    # Through objects: an array of strings would have made "nan" of a missing one.
    given = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    if given.dtype.kind == "O":
        kinds = (str, bytes, int, np.integer)
        wrong = [name for name in given.ravel() if not isinstance(name, kinds)]
        found = np.array(given.tolist())
    else:
        found = given
        wrong = [] if given.dtype.kind in "iuSUT" or not given.size else [given.flat[0]]
    if wrong:
        kind = type(wrong[0]).__name__
        raise TypeError(f"ids must be whole numbers or strings; got {kind}")
    return found


@dataclass(frozen=True)
class Trained(Release[PyTree]):
    """The parameters of a finished run, and the entry that paid.

    `average` is their moving average, if one was asked for (post-processing: it costs
    nothing). `waste` is the share of computed rows that were padding; it tells about
    the sampled batches, so it is exact, not private.
    """

    average: PyTree | None
    steps: int
    waste: Exact[float]


def fit(
    plan: DPExecutionPlan,
    loss_fn: Callable[..., Any] | None,
    params: PyTree,
    data: Any,
    *,
    optimizer: optax.GradientTransformation,
    ledger: Ledger | None = None,
    label: str = "DP training",
    delta: float | None = None,
    minibatch_size: int | None = None,
    microbatch_size: int | None = None,
    shapes: ShapePlan | CostModel | None = None,
    callback: Callable[[StepReport], Any] | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    average: float | None = None,
    users: Users | None = None,
    mesh: Mesh | None = None,
    progress: bool | None = None,
    exact_metrics: bool = False,
    check_mixing: bool = True,
    source: Source | None = None,
) -> Trained:
    """Train `params` on `data` by `plan`, charge the ledger, and release the result.

    - `loss_fn(params, batch)` is the loss of a batch, a mean or sum over its examples;
      None takes the loss of the plan's own gradient. `batch` has the structure of
      `data`: arrays, memory maps, an Arrow table, or a file (`as_data`).
    - `minibatch_size` is the most rows on the device at once; a global batch that
      exceeds it is processed in several goes and gets one draw of noise.
      `microbatch_size` splits further, inside the program. `shapes` is a `ShapePlan`,
      or what things cost on this machine; by default the sizes follow from the law of
      the batch size and usual costs.
    - `ledger` pays. None: a ledger in memory, at `delta` (the plan's, if it has one).
    - `callback(report)` is called after every step; if it returns True, the run ends
      there (what was reserved stays spent).
    - `checkpoint` (a folder, or a `Checkpoint`) makes the run resumable; it needs a
      ledger that lasts.
    - `average` keeps a moving average of the parameters with this decay.
    - `users` forms batches of people; the plan then protects one of them.
    - `mesh` spreads batches and noise over its devices. If it spans several processes
      (`distributed.start`), all of them call `fit` alike, and process 0 alone is given
      the `ledger`.
    - `check_mixing=False` skips the check that examples do not mix in the loss.
    """
    group, placement = Processes(mesh), Placement(mesh)
    with ExitStack() as stack:
        stack.enter_context(group.interruptible())
        with group.stage():
            rows = as_data(data)
            clipped = _gradient(plan, loss_fn, microbatch_size, exact_metrics)
            _check(plan, params, rows, average, users)
            selection = plan.batch_selection_strategy
            people = len(rows) if users is None else users.count
            width = () if users is None else (users.examples,)
            physical = shapes_for(
                selection,
                people,
                asked=shapes,
                flops=lambda: _flops(clipped, params, rows, width),
                minibatch_size=minibatch_size,
                microbatch_size=clipped.arguments["microbatch_size"],
                mesh=mesh,
            )
            paying = _paying(group, plan, ledger, delta)
            steps = Steps(
                clipped,
                plan.noise_addition_transform,
                optimizer,
                average=average,
                exact=exact_metrics,
                placement=placement,
            )
            stack.callback(steps.close)
            state = steps.init(params)

            def batch(size: int) -> Any:
                return rows.structs((size, *width), placement.rows)

            several = may_need_several(selection, people, physical)
            steps.prepare(state, physical, batch, several=several)
            if check_mixing:
                steps.compile()  # behind the check, which takes its time as well
                _check_mixing(clipped, params, rows, width)
            kept = as_checkpoint(checkpoint)
            if kept is not None:
                _check_keepable(state)
            given: dict[str, object] = {}
            if kept is not None or group.count > 1:
                given = {
                    "data": rows.told() if kept is None else rows.digest(),
                    "first parameters": charges.tree_digest(params),
                    "plan": plan.fingerprint,
                    "batch sizes": physical.sizes,
                    "users": None if users is None else charges.tree_digest(users.ids),
                    "program": steps.text(state, batch(physical.sizes[0])),
                }
                if mesh is not None:  # the rounding of sums follows it
                    given["mesh"] = placement.told()
        group.same(given | {"checkpoint": None if kept is None else kept.every})
        run = stack.enter_context(
            Custody(
                group,
                plan,
                paying,
                label=label,
                state=state,
                checkpoint=kept,
                digest=None if kept is None else digest_of_parts(*given.values()),
                source=source,
            )
        )
        steps.compile()
        state, start = run.resumed(state, placement)
        shown = bar(plan.iterations, start, progress if group.first else False)
        loop = Loop(plan, steps, run, callback, stack.enter_context(shown))
        feed = Feed(
            _batches(plan, rows, users, run.key, start),
            rows if placement.rows is None else Share(rows, placement.rows),
            start=start,
            shapes=physical,
            place=jax.device_put if mesh is None else lambda rows: rows,
            pay=run.pay,
        )
        inputs = iter(stack.enter_context(feed))
        with group.stage():
            if group.count > 1:
                steps.wait()  # a process that fails inside a step leaves the others
            now = next(inputs, None)
        while now is not None:
            with group.in_touch():
                state, value = loop.step(state, now)
            done = now.step + 1
            with group.stage() as meeting:
                meeting.stop = loop.tell(state, now, value) and group.first
                if not (meeting.stop or run.due(done)):
                    now = next(inputs, None)
            if run.due(done):
                run.save(done, state)
            if meeting.stop:
                break
            if run.due(done):
                # Only now: a batch that fails must not cost what is due before it.
                with group.stage():
                    now = next(inputs, None)
        run.commit(state)
    return Trained(
        value=state.params,
        entry=run.entry,
        average=state.average,
        steps=int(state.steps),
        waste=Exact(loop.waste),
    )


def _gradient(
    plan: DPExecutionPlan,
    loss_fn: Callable[..., Any] | None,
    microbatch_size: int | None,
    exact: bool,
) -> ClippedGrad:
    clipped = plan.gradient(loss_fn)
    changes: dict[str, Any] = {}
    if loss_fn is not None and clipped.arguments["fun"] is not loss_fn:
        changes["fun"] = loss_fn
    if microbatch_size is not None:
        changes["microbatch_size"] = microbatch_size
    if exact:
        changes["return_values"] = True
    clipped = clipped.with_(**changes) if changes else clipped
    if clipped.l2_norm_bound > plan.l2_norm_bound:
        raise ValueError(
            f"the noise was made for a bound of {plan.l2_norm_bound:g}; the gradient"
            f" has {clipped.l2_norm_bound:g}. Nothing was spent."
        )
    return clipped


def _check(
    plan: DPExecutionPlan,
    params: PyTree,
    rows: Data,
    average: float | None,
    users: Users | None,
) -> None:
    for leaf in jax.tree.leaves(params):
        if not np.isfinite(np.asarray(leaf)).all():
            raise ValueError("params must be finite. Nothing was spent.")
    if average is not None and not 0.0 < average < 1.0:
        raise ValueError(f"average must be between 0 and 1; got {average!r}")
    if users is not None and np.shape(users.ids) != (len(rows),):
        raise ValueError(
            f"users must name the owner of each of {len(rows)} examples; got shape"
            f" {np.shape(users.ids)}"
        )
    found = len(rows) if users is None else users.count
    if plan.num_examples is not None and plan.num_examples != found:
        raise ValueError(
            f"the plan was made for num_examples={plan.num_examples}; the data has"
            f" {found}. Its price rests on that number. Nothing was spent."
        )


def _check_keepable(state: TrainState) -> None:
    """Refuse, unpaid, what a checkpoint could not hold."""
    for leaf in jax.tree.leaves(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise TypeError(
                "a checkpoint cannot hold the random key of this optimiser: leave"
                " checkpoint out, or take one without. Nothing was spent."
            )


def _check_mixing(
    clipped: ClippedGrad, params: PyTree, rows: Data, width: tuple[int, ...]
) -> None:
    said = clipped.arguments
    # Without the batch axis a loss sees one example and has nothing to mix; with a key
    # it is random, and two calls differ anyway.
    if not said["keep_batch_dim"] or said["prng_argnum"] is not None:
        return
    batch = rows.structs((2, *width))
    arguments = call_arguments(clipped, params, batch, None)[1:]
    check_examples_do_not_mix(
        said["fun"], params, tuple(arguments), has_aux=said["has_aux"]
    )


def _flops(
    clipped: ClippedGrad, params: PyTree, rows: Data, width: tuple[int, ...]
) -> float | None:
    said = clipped.arguments
    if not said["keep_batch_dim"] or said["prng_argnum"] is not None:
        return None

    def value(*arguments: Any) -> Any:
        found = said["fun"](*arguments)
        return found[0] if said["has_aux"] else found

    batch = rows.structs((1, *width))
    return loss_flops(value, *call_arguments(clipped, params, batch, None))


def _paying(
    group: Processes,
    plan: DPExecutionPlan,
    ledger: Ledger | None,
    delta: float | None,
) -> tuple[Ledger, float] | None:
    """The ledger and the delta it is read at, in the process that holds it."""
    if group.first:
        return charges.ledger_for(plan, ledger, delta)
    if ledger is not None:
        raise TypeError(
            "only process 0 holds the ledger: pass ledger=None in the others. Nothing"
            " was spent."
        )
    return None


def _batches(
    plan: DPExecutionPlan,
    rows: Data,
    users: Users | None,
    key: NoiseKey,
    start: int,
) -> Iterator[NDArray[Any]]:
    chosen = plan.batch_selection_strategy
    if users is None:
        return chosen.batch_iterator(len(rows), key, start=start)
    people = UserSelectionStrategy(chosen, users.examples)
    return people.batch_iterator(users.ids, key, start=start)
