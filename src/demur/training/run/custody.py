"""What one process alone holds: the ledger, the entry's key, the checkpoint.

Process 0 pays, draws each round from the reservation, writes checkpoints and commits.
The others are told the entry and its key, over JAX's own collectives and into memory
alone, because batches and noise follow from it. Every method is called by all of them;
if the first one is declined, all raise the same error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from demur.core.entropy import Binding, NoiseKey, Source
from demur.core.entry import Entry
from demur.ledger import Ledger, Payment
from demur.training.devices.placement import Placement
from demur.training.devices.processes import Processes
from demur.training.errors import CheckpointRefused, ProcessLost
from demur.training.plans.plan import DPExecutionPlan
from demur.training.run import charges
from demur.training.run.checkpoint import Checkpoint, Keeper
from demur.training.run.steps import TrainState

_SEAL = "checkpoint"


@dataclass(frozen=True)
class _Held:
    """In process 0."""

    payment: Payment
    keeper: Keeper | None


@dataclass(frozen=True)
class _Told:
    """What the others need to know."""

    entry: Entry
    delta: float
    key: bytes | None
    binding: Binding | None

    def __repr__(self) -> str:
        return "_Told(<secret>)"


class Custody:
    """One paid run: its entry, its key, and where it is kept."""

    entry: Entry
    delta: float
    key: NoiseKey

    def __init__(
        self,
        group: Processes,
        plan: DPExecutionPlan,
        ledger: tuple[Ledger, float] | None,
        *,
        label: str,
        state: TrainState,
        checkpoint: Checkpoint | None,
        digest: str | None,
        source: Source | None,
    ) -> None:
        self._group = group
        self._plan = plan
        self._digest = digest
        self._every = None if checkpoint is None else checkpoint.every
        self._held: _Held | None = None

        def pay() -> _Told:
            assert ledger is not None
            paying, at = ledger
            keeper = None
            if checkpoint is not None:
                _check_lasts(paying)
                keeper = Keeper(checkpoint)
            try:
                payment = charges.paid_run(
                    plan,
                    paying,
                    label=label,
                    dimension=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
                    delta=at,
                    digest=digest,
                    run=None if keeper is None else keeper.run,
                    source=source,
                )
                self.key = plan.key(payment)
            except BaseException:
                if keeper is not None:
                    keeper.close()
                raise
            self._held = _Held(payment, keeper)
            shared = self.key.handed_on() if group.count > 1 else None
            return _Told(payment.entry, at, shared, self.key.binding)

        try:
            told = group.from_first(pay)
        except BaseException:
            if self._held is not None:  # paid, and then another process failed
                self.close()
            raise
        self.entry, self.delta = told.entry, told.delta
        if not group.first:
            assert told.key is not None
            private = told.entry.private
            self.key = NoiseKey(told.key, private=private, binding=told.binding)
            self.key.pays_for(plan.fingerprint)

    @property
    def pay(self) -> Callable[[int], None]:
        """step -> its draw from the reservation, before its batch is handed on."""
        if self._held is None:
            return lambda step: None
        return charges.payer(self._plan, self._held.payment.reservation)

    def resumed(
        self, state: TrainState, placement: Placement
    ) -> tuple[TrainState, int]:
        """The last checkpoint's state, placed like `state`, and the step to come."""
        found: Any = None

        def load() -> int | None:
            nonlocal found
            if self._held is None or self._held.keeper is None:
                return None
            assert self._digest is not None
            found = self._held.keeper.load(
                self._digest, self.key.subkey(_SEAL), state[:-1], state.noise
            )
            return None if found is None else int(found.step)

        step = self._group.from_first(load)
        if step is None:
            return state, 0
        mine = None if found is None else TrainState._make((*found.model, found.noise))
        loaded = self._group.arrays_from_first(mine, state)
        return placement.like(loaded, state), step

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after `step` steps."""
        return self._every is not None and step % self._every == 0

    def save(self, step: int, state: TrainState) -> None:
        """Write a checkpoint."""
        noise = self._group.whole(state.noise)
        with self._group.stage():
            if self._held is not None and self._held.keeper is not None:
                assert self._digest is not None
                seal = self.key.subkey(_SEAL)
                self._held.keeper.save(step, self._digest, seal, state[:-1], noise)

    def commit(self, state: TrainState) -> None:
        """The release is made: the entry is closed, and its key wiped everywhere."""
        with self._group.in_touch():  # the last steps may still be on their way
            steps, digest = int(state.steps), charges.tree_digest(state.params)
        self._group.same({"last parameters": digest}, "Nothing was released.")
        # Written before it is committed: the key is wiped then, and a run killed
        # between the two could neither be continued nor be read.
        if self._every is not None:
            self.save(steps, state)
        committed = False
        try:
            with self._group.stage():
                if self._held is not None:
                    self._held.payment.commit(digest)
                    committed = True
                    if self._held.keeper is not None:
                        self._held.keeper.finish(steps)
        except ProcessLost:
            if not committed:  # otherwise the release is made, whoever died since
                raise

    def close(self) -> None:
        """Let go of the checkpoint; a key that was lent to this process is wiped."""
        if self._held is None:
            self.key.wipe()
        elif self._held.keeper is not None:
            self._held.keeper.close()

    def __enter__(self) -> Custody:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_checkpoint(
    checkpoint: Checkpoint | str | os.PathLike[str] | None,
) -> Checkpoint | None:
    """A folder, or a `Checkpoint`, as a `Checkpoint`."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    return Checkpoint(checkpoint)


def _check_lasts(ledger: Ledger) -> None:
    if not ledger.durable:
        raise CheckpointRefused(
            "a run that may be resumed needs a ledger that lasts: pass"
            " ledger=Ledger.open(...). Nothing was spent."
        )
