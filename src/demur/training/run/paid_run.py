"""Paid runs: the payment, the key and the checkpoint of a run, held by process 0.

Process 0 pays, draws each round from the reservation, writes checkpoints (elastic ones
are written by all) and commits.
The others receive the entry and its key with what it was paid for, over JAX's own
collectives and into memory alone, because batches and noise follow from it. Every
method is called by all processes; if the first one is declined, all raise the same
error.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from demur.core.entropy import Binding, NoiseKey
from demur.core.entry import Entry
from demur.core.errors import EntryCommitted
from demur.ledger import Ledger, Payment
from demur.training.devices.placement import Placement
from demur.training.devices.processes import Processes
from demur.training.errors import CheckpointRefused, ProcessLost
from demur.training.plans.plan import DPExecutionPlan
from demur.training.run import charges
from demur.training.run.charges import PaymentTerms
from demur.training.run.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    SavedState,
)
from demur.training.run.checkpoints.elastic import ElasticCheckpoints, PaidDraws
from demur.training.run.sharded_state import TrainState

_SEAL = "checkpoint"


@dataclass(frozen=True)
class _Holdings:
    """What process 0 alone has."""

    payment: Payment
    folder: CheckpointFolder | None


@dataclass(frozen=True)
class _Broadcast:
    """What the other processes receive."""

    entry: Entry
    delta: float
    key: bytes | None
    binding: Binding | None

    def __repr__(self) -> str:
        return "_Broadcast(<secret>)"

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the wire."""
        return {
            "entry": self.entry.to_json(),
            "delta": self.delta,
            "key": None if self.key is None else self.key.hex(),
            "binding": None if self.binding is None else asdict(self.binding),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> _Broadcast:
        """What `to_json` wrote."""
        key, binding = data["key"], data["binding"]
        return cls(
            Entry.from_json(data["entry"]),
            data["delta"],
            None if key is None else bytes.fromhex(key),
            None if binding is None else Binding(**binding),
        )


class PaidRun:
    """One paid run: its entry, its key, and its checkpoint."""

    entry: Entry
    delta: float
    key: NoiseKey

    def __init__(
        self,
        group: Processes,
        plan: DPExecutionPlan,
        terms: PaymentTerms,
        state: TrainState,
        checkpoint: Checkpoint | None,
        layout: str | None = None,
    ) -> None:
        self._group = group
        self._plan = plan
        self._digest = terms.digest
        self._every = None if checkpoint is None else checkpoint.every
        self._holdings: _Holdings | None = None
        dimension = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        try:
            sent = group.from_first(
                lambda: self._pay(terms, checkpoint, dimension).to_json()
            )
            shared = _Broadcast.from_json(sent)
            with group.stage():
                if not group.first:
                    self.key = _received_key(shared, plan)
            self._elastic = None
            if checkpoint is not None and checkpoint.elastic:
                self._elastic = self._opened(terms, checkpoint, layout)
        except BaseException:
            if self._holdings is not None:  # paid, and then another process failed
                self.close()
            raise
        self.entry, self.delta = shared.entry, shared.delta
        self._drawn: int | None = None

    def _opened(
        self, terms: PaymentTerms, checkpoint: Checkpoint, layout: str | None
    ) -> ElasticCheckpoints:
        assert terms.digest is not None and layout is not None
        held = None
        if self._holdings is not None:
            payment, folder = self._holdings.payment, self._holdings.folder
            assert terms.ledger is not None and folder is not None
            held = PaidDraws(terms.ledger, payment.entry, payment.reservation, folder)
        return ElasticCheckpoints(
            self._group,
            Path(checkpoint.folder),
            self._plan,
            digest=terms.digest,
            layout=layout,
            seal=self.key.subkey(_SEAL),
            held=held,
        )

    def _pay(
        self, terms: PaymentTerms, checkpoint: Checkpoint | None, dimension: int
    ) -> _Broadcast:
        assert terms.ledger is not None and terms.delta is not None
        folder = None
        if checkpoint is not None:
            _check_durable(terms.ledger)
            folder = CheckpointFolder(checkpoint)
        try:
            run = None if folder is None else folder.run
            payment = charges.pay_for_run(self._plan, terms, dimension, run)
            self.key = self._plan.key(payment)
        except EntryCommitted as error:
            model = None if folder is None else folder.finished_model()
            if folder is not None:
                folder.close()
            if model is None:
                raise
            raise EntryCommitted(
                f"this run is finished and committed: its model is {str(model)!r}, and"
                f" load_model({str(model.parent)!r}, params) of demur.training reads"
                " its parameters. Nothing was spent; another run needs a folder of its"
                " own."
            ) from error
        except BaseException:
            if folder is not None:
                folder.close()
            raise
        self._holdings = _Holdings(payment, folder)
        key = self.key.handed_on() if self._group.count > 1 else None
        return _Broadcast(payment.entry, terms.delta, key, self.key.binding)

    @property
    def _folder(self) -> CheckpointFolder | None:
        return None if self._holdings is None else self._holdings.folder

    @property
    def pay(self) -> Callable[[int], None]:
        """A function of a step: its draw from the reservation, before its batch."""
        if self._holdings is None:
            return lambda step: None
        reservation = self._holdings.payment.reservation
        # A move leaves out what was drawn ahead: no more than between two checkpoints.
        most = None
        if self._elastic is not None and self._every is not None:
            most = max(1, self._every // self._plan.steps_per_draw)
        return charges.payer(self._plan, reservation, self._drawn, most)

    def _moved(
        self,
        elastic: ElasticCheckpoints,
        state: TrainState,
        replayed: Callable[[int], Any],
    ) -> tuple[TrainState, int]:
        """`resumed` from an elastic checkpoint, on whatever mesh this is."""
        found = elastic.resume_point()
        self._drawn = found.drawn
        model = elastic.read("model", found, state[:-1])
        if not found.moved:
            noise = elastic.read("noise", found, state.noise)
            return TrainState._make((*model, noise)), found.start
        with self._group.collective():
            state = TrainState._make((*model, replayed(found.start)))
        if found.start:
            self.save(found.start, state)  # now this mesh may repeat what follows
        if found.start > found.saved and self._group.first:
            warnings.warn(
                f"the run goes on with other devices: steps {found.saved} to"
                f" {found.start - 1} may have been seen and are not repeated, so it"
                f" ends with {found.start - found.saved} updates fewer. Nothing more"
                " is paid.",
                stacklevel=3,
            )
        return state, found.start

    def resumed(
        self,
        state: TrainState,
        placement: Placement,
        replayed: Callable[[int], Any],
    ) -> tuple[TrainState, int]:
        """The last checkpoint's state, placed like `state`, and the step to come.

        `replayed(step)` is the noise state before `step`, computed anew.
        """
        if self._elastic is not None:
            return self._moved(self._elastic, state, replayed)
        saved: SavedState | None = None

        def load() -> int | None:
            nonlocal saved
            if self._folder is None:
                return None
            assert self._digest is not None
            saved = self._folder.load(
                self._digest, self.key.subkey(_SEAL), state[:-1], state.noise
            )
            return None if saved is None else int(saved.step)

        step = self._group.from_first(load)
        if step is None:
            return state, 0
        own = None if saved is None else TrainState._make((*saved.model, saved.noise))
        loaded = self._group.arrays_from_first(own, state)
        return placement.like(loaded, state), step

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after `step` steps."""
        return self._every is not None and step % self._every == 0

    def save(self, step: int, state: TrainState) -> None:
        """Write a checkpoint."""
        if self._elastic is not None:
            self._elastic.save(step, state[:-1], state.noise)
            return
        whole = self._group.gather(state)
        with self._group.stage():
            if self._folder is not None:
                assert self._digest is not None
                seal = self.key.subkey(_SEAL)
                self._folder.save(step, self._digest, seal, whole[:-1], whole.noise)

    def commit(self, state: TrainState) -> None:
        """Close the entry of the finished run, and wipe its key everywhere."""
        with self._group.collective():  # the last steps may still be on their way
            digest = charges.tree_digest(state.params, self._group.whole)
            # The steps that were gone through; those that a move left out count too.
            elastic = self._elastic
            steps = int(state.steps if elastic is None else state.noise.step)
        self._group.check_same({"last parameters": digest}, "Nothing was released.")
        # Written before it is committed: the key is wiped then, and a run killed
        # between the two could neither be continued nor be read.
        if self._every is not None:
            self.save(steps, state)
        committed = False
        try:
            with self._group.stage():
                if self._holdings is not None:
                    self._holdings.payment.commit(digest)
                    committed = True
                    if elastic is not None:
                        elastic.finish()
                    elif self._holdings.folder is not None:
                        self._holdings.folder.finish(steps)
        except ProcessLost:
            if not committed:  # otherwise the release is made, whoever died since
                raise

    def close(self) -> None:
        """Unlock the checkpoint; a key that this process received is wiped."""
        if self._holdings is None:
            self.key.wipe()
        elif self._holdings.folder is not None:
            self._holdings.folder.close()

    def __enter__(self) -> PaidRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _received_key(shared: _Broadcast, plan: DPExecutionPlan) -> NoiseKey:
    """The key of process 0, if it was paid for the plan of this process."""
    assert shared.key is not None
    key = NoiseKey(shared.key, private=shared.entry.private, binding=shared.binding)
    return key.authorise(plan.fingerprint, runs=plan.draws)


def as_checkpoint(
    checkpoint: Checkpoint | str | os.PathLike[str] | None,
) -> Checkpoint | None:
    """A folder, or a `Checkpoint`, as a `Checkpoint`."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        return checkpoint
    return Checkpoint(checkpoint)


def _check_durable(ledger: Ledger) -> None:
    if not ledger.durable:
        raise CheckpointRefused(
            "a run with a checkpoint needs a ledger on disk or on a server: pass"
            " ledger=Ledger.open(...). Nothing was spent."
        )
