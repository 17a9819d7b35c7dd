"""Charges of a training run: the ledger that pays, its draws, and input digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from demur.core.accounting.gaussian import ideal_delta
from demur.core.declaration import Declaration
from demur.core.entropy import Source
from demur.core.errors import BudgetExceeded, IdempotencyConflict
from demur.ledger import Ledger, Payment, Reservation
from demur.training.clipping.types import PyTree
from demur.training.errors import CheckpointRefused
from demur.training.plans.plan import DPExecutionPlan

_LARGEST_BLOCK = 64  # draws taken at once: what the store costs is then a 64th


@dataclass(frozen=True)
class PaymentTerms:
    """How a run is to be paid; `ledger` and `delta` are None outside process 0.

    `digest` is that of the run's input, for a run with a checkpoint. `per_person` says
    that the batches are of persons. `assumed` is what the run adds to what the plan
    assumes.
    """

    ledger: Ledger | None
    delta: float | None
    label: str
    digest: str | None = None
    source: Source | None = None
    per_person: bool = False
    assumed: tuple[str, ...] = ()


def pay_for_run(
    plan: DPExecutionPlan, terms: PaymentTerms, dimension: int, run: str | None
) -> Payment:
    """The payment for the whole run; that of an earlier call if the run is resumed.

    `run` is the idempotency key of a run with a checkpoint.
    """
    assert terms.ledger is not None and terms.delta is not None
    block = None if terms.ledger.terms.filter.meters else ideal_delta(terms.delta)
    try:
        return plan.paid(
            terms.ledger,
            label=terms.label,
            dimension=dimension,
            digest=terms.digest,
            idempotency_key=run,
            source=terms.source,
            block_delta=block,
            per_person=terms.per_person,
            assumed=terms.assumed,
        )
    except IdempotencyConflict as error:
        raise CheckpointRefused(
            "the run of this checkpoint began with other data, first parameters, plan,"
            " program or mesh, or on another machine (processor, cores, jaxlib,"
            " XLA_FLAGS), and the same noise on two sums would reveal their difference."
            " Begin a new run in a new folder; one with Checkpoint(..., elastic=True)"
            " goes on elsewhere. Nothing was spent."
        ) from error


def run_declaration(
    plan: DPExecutionPlan, ledger: Ledger, params: PyTree, *, per_person: bool = False
) -> Declaration:
    """What `fit` will declare to this ledger, `plan.draws` times."""
    dimension = sum(np.asarray(leaf).size for leaf in jax.tree.leaves(params))
    return plan.declaration(
        plan.units_in(ledger), dimension=dimension, per_person=per_person
    )


def payer(
    plan: DPExecutionPlan,
    reservation: Reservation,
    drawn: int | None = None,
    most: int | None = None,
) -> Callable[[int], None]:
    """A function of a step that makes its draw durable, if it has not been drawn.

    `drawn` draws have been taken by this run; None: as many as the ledger has. At most
    `most` are taken at once.

    Draws are taken ahead in blocks that double, because each transaction waits for a
    disk or a server, and a step on an accelerator is shorter than that. A draw means
    that its step *may* have happened, so taking it early is safe; a run that stops
    leaves at most as many unused as it has used, and `_LARGEST_BLOCK`.
    """
    taken: int = reservation.drawn if drawn is None else drawn
    block = 1
    largest = _LARGEST_BLOCK if most is None else min(most, _LARGEST_BLOCK)

    def pay(step: int) -> None:
        nonlocal taken, block
        index, within = divmod(step, plan.steps_per_draw)
        if within or index < taken:
            return
        try:
            draws = reservation.draw_many(min(block, reservation.count - index))
        except BudgetExceeded as error:
            raise _drawn_elsewhere() from error
        if draws[0].index != index:
            raise _drawn_elsewhere()
        taken = draws[-1].index + 1
        block = min(2 * block, largest)

    return pay


def _drawn_elsewhere() -> CheckpointRefused:
    return CheckpointRefused(
        "another process draws from this run: a copy of its checkpoint folder is in"
        " use. Resume the run when the other has stopped; no draw is lost."
    )


def program_digest(*lowered: Any) -> str:
    """A digest of what programs compute: every operation and every constant.

    It is taken from the compiler's input: the text of a jaxpr leaves out the constants
    of functions that are jitted themselves.
    """
    whole = hashlib.sha256(f"jax {jax.__version__} {jax.default_backend()}".encode())
    for program in lowered:
        whole.update(program.as_text().encode())
    return whole.hexdigest()


def tree_digest(tree: PyTree, host: Callable[[Any], Any] = np.asarray) -> str:
    """A digest of structure, shapes and content of a tree of arrays.

    `host` brings an array to the host, one after the other (`Processes.whole`).
    """
    leaves, treedef = jax.tree.flatten(tree)
    whole = hashlib.sha256(str(treedef).encode())
    for leaf in leaves:
        array = host(leaf)
        whole.update(f"{array.dtype} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()
