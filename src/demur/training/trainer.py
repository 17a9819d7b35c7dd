"""`fit`: run a plan on data, and release the parameters it ends with.

    reserve -> select -> clip and sum -> noise -> update -> commit

The whole run is one reservation in the book, paid before the first batch is selected;
every round is drawn from it before its noise exists, and after the last one it
declines. Batches and noise come from the entry's key, by step, so that a run that was
cut short is taken up where its checkpoint left it, with the noise it would have had.

What comes out on the way (`callback`) is private-safe: step, rate, epsilon so far, and
parameters. Exact metrics exist for whoever asks, wrapped so that nothing prints them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.entropy import NoiseKey, Source
from demur.core.release import Release
from demur.ledger import Ledger
from demur.training import booking
from demur.training.batch_selection import UserSelectionStrategy
from demur.training.checkpoint import Checkpoint, CheckpointRefused, Keeper
from demur.training.data import Data, as_data
from demur.training.feed import Feed, StepInput, placed
from demur.training.metrics import Exact, StepReport, spent_so_far
from demur.training.mixing import check_examples_do_not_mix
from demur.training.plan import DPExecutionPlan
from demur.training.progress import Bar, bar
from demur.training.shapes import CostModel, ShapePlan
from demur.training.sizes import loss_flops, may_need_several, shapes_for
from demur.training.steps import Steps, TrainState, call_arguments
from demur.training.types import ClippedGrad, PyTree

_SEAL = "checkpoint"
_IN_FLIGHT = 3  # steps the device may lag behind; more would pile up batches


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
    """Train `params` on `data` by `plan`, book it, and release the result.

    - `loss_fn(params, batch)` is the loss of a batch, a mean or sum over its examples;
      None takes the loss of the plan's own gradient. `batch` has the structure of
      `data`: arrays, memory maps, an Arrow table, or a file (`as_data`).
    - `minibatch_size` is the most rows on the device at once; a global batch that
      exceeds it is processed in several goes and gets one draw of noise.
      `microbatch_size` splits further, inside the program. `shapes` is a `ShapePlan`,
      or what things cost on this machine; by default the sizes follow from the law of
      the batch size and usual costs.
    - `ledger` pays. None: a book in memory, at `delta` (the plan's, if it has one).
    - `callback(report)` is called after every step; if it returns True, the run ends
      there (what was reserved stays spent).
    - `checkpoint` (a folder, or a `Checkpoint`) makes the run resumable; it needs a
      ledger that lasts.
    - `average` keeps a moving average of the parameters with this decay.
    - `users` forms batches of people; the plan then protects one of them.
    - `mesh` spreads batches over its devices.
    - `check_mixing=False` skips the check that examples do not mix in the loss.
    """
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
    book, at = booking.book_for(plan, ledger, delta)
    steps = Steps(
        clipped,
        plan.noise_addition_transform,
        optimizer,
        average=average,
        exact=exact_metrics,
    )
    with ExitStack() as stack:
        stack.callback(steps.close)
        state = steps.init(params)
        sharding = None
        if mesh is not None:
            state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
            sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

        def batch(size: int) -> Any:
            return rows.structs((size, *width), sharding)

        several = may_need_several(selection, people, physical)
        steps.prepare(state, physical, batch, several=several)
        if check_mixing:
            steps.compile()  # behind the check, which takes its time as well
            _check_mixing(clipped, params, rows, width)
        keeper, digest = None, None
        kept = _checkpoint(checkpoint, book)
        if kept is not None:
            keeper = stack.enter_context(Keeper(kept))
            digest = booking.digest_of(
                rows.digest(),
                booking.tree_digest(params),
                plan.fingerprint(),
                physical.sizes,
                None if users is None else booking.tree_digest(users.ids),
                steps.text(state, batch(physical.sizes[0])),
            )
        reservation = booking.reserve(
            plan,
            book,
            label=label,
            dimension=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
            delta=at,
            digest=digest,
            run=None if keeper is None else keeper.run,
            source=source,
        )
        steps.compile()
        key = book.key(reservation.entry, digest)
        state, start = _resumed(state, keeper, digest, key)
        shown = bar(plan.iterations, start, progress)
        run = _Run(
            plan,
            steps,
            key,
            callback,
            stack.enter_context(shown),
            at,
            reservation.entry.epsilon(plan.unit, at)
            if callback or shown.visible
            else 0,
        )
        feed = Feed(
            _batches(plan, rows, users, key, start),
            rows,
            start=start,
            shapes=physical,
            place=placed(sharding),
            pay=booking.payer(plan, reservation),
        )
        for given in stack.enter_context(feed):
            state, stop = run.step(state, given)
            if kept is not None and keeper is not None and digest is not None:
                if (given.step + 1) % kept.every == 0:
                    seal = key.subkey(_SEAL)
                    keeper.save(given.step + 1, digest, seal, state[:-1], state.noise)
            if stop:
                break
        # Written before it is committed: the key is wiped then, and a run killed
        # between the two could neither be continued nor be read.
        if keeper is not None and digest is not None:
            seal = key.subkey(_SEAL)
            keeper.save(int(state.steps), digest, seal, state[:-1], state.noise)
        book.commit(reservation.entry, booking.tree_digest(state.params))
        if keeper is not None:
            keeper.finish(int(state.steps))
    return Trained(
        value=state.params,
        entry=reservation.entry,
        average=state.average,
        steps=int(state.steps),
        waste=Exact(run.waste),
    )


class _Run:
    """The loop's own bookkeeping: reports, rate, waste."""

    def __init__(
        self,
        plan: DPExecutionPlan,
        steps: Steps,
        key: NoiseKey,
        callback: Callable[[StepReport], Any] | None,
        shown: Bar,
        delta: float,
        whole: float,
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._key = key
        self._callback = callback
        self._shown = shown
        self._delta = delta
        self._spent = None
        if callback is not None or shown.visible:
            self._spent = spent_so_far(plan.event(), plan.draws, delta, whole)
        self._in_flight: deque[Any] = deque()
        self._computed = self._real = 0
        self._times: deque[float] = deque([time.perf_counter()], maxlen=50)

    @property
    def waste(self) -> float:
        """The share of computed rows that were padding."""
        return 1.0 - self._real / max(self._computed, 1)

    def step(self, state: TrainState, given: StepInput) -> tuple[TrainState, bool]:
        """One step; True if the callback wants no more."""
        state, token, value = self._steps.run(state, given, self._key)
        self._in_flight.append(token)
        if len(self._in_flight) > _IN_FLIGHT:
            jax.block_until_ready(self._in_flight.popleft())
        self._computed += sum(part.size for part in given.parts)
        real = sum(part.real for part in given.parts)
        self._real += real
        if self._spent is None:
            return state, False
        self._times.append(time.perf_counter())
        rate = (len(self._times) - 1) / (self._times[-1] - self._times[0])
        epsilon = self._spent(given.step // self._plan.steps_per_draw + 1)
        self._shown.show(given.step + 1, epsilon, rate)
        if self._callback is None:
            return state, False
        exact = None
        if value is not None:
            exact = Exact({"loss": float(value) / max(real, 1), "batch_size": real})
        params = state.params
        report = StepReport(
            step=given.step + 1,
            iterations=self._plan.iterations,
            epsilon=epsilon,
            delta=self._delta,
            steps_per_second=rate,
            params=lambda: _copied(params),
            exact=exact,
        )
        return state, self._callback(report) is True


def _copied(params: PyTree) -> PyTree:
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(params)):
        raise RuntimeError(
            "the parameters of this step are gone, the next one was written over them:"
            " call report.params() inside the callback"
        )
    return jax.device_get(params)


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


def _checkpoint(
    checkpoint: Checkpoint | str | os.PathLike[str] | None, book: Ledger
) -> Checkpoint | None:
    if checkpoint is None:
        return None
    if not book.durable:
        raise CheckpointRefused(
            "a run that may be resumed needs a book that lasts: pass"
            " ledger=Ledger.open(...). Nothing was spent."
        )
    return checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


def _resumed(
    state: TrainState, keeper: Keeper | None, digest: str | None, key: NoiseKey
) -> tuple[TrainState, int]:
    """The state of the last checkpoint, placed like `state`, and the step to come."""
    if keeper is None or digest is None:
        return state, 0
    found = keeper.load(digest, key.subkey(_SEAL), state[:-1], state.noise)
    if found is None:
        return state, 0
    loaded = TrainState._make((*found.model, found.noise))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.device_put(loaded, shardings), found.step


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
