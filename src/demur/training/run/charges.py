"""Charges of a training run: the ledger that pays, its draws, and input digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from demur.core import accounting, validate
from demur.core.accounting import calibrate
from demur.core.entropy import Source
from demur.core.errors import BudgetExceeded, IdempotencyConflict
from demur.core.rounding import up
from demur.ledger import (
    Budget,
    Filter,
    Ledger,
    Payment,
    Reservation,
    ledger_or_in_memory,
)
from demur.training.clipping.types import PyTree
from demur.training.errors import CheckpointRefused
from demur.training.plans.plan import DPExecutionPlan

_LARGEST_BLOCK = 64  # draws taken at once: what the store costs is then a 64th


def ledger_for(
    plan: DPExecutionPlan, ledger: Ledger | None, delta: float | None
) -> tuple[Ledger, float]:
    """The ledger that pays, and the delta at which the run is read.

    Without a ledger it is one in memory, whose budget the run uses up.
    """
    if ledger is not None:
        checked = ledger_or_in_memory(ledger, Budget(1.0), unit=plan.unit)
        budgets = dict(checked.terms.budgets)
        budget = budgets.get(plan.unit, next(iter(budgets.values())))
        if delta is not None:
            # Gaussian noise has no epsilon at a delta of 0.
            validate.open_probability(delta=delta)
            return checked, delta
        return checked, budget.delta if plan.delta is None else plan.delta
    at = plan.delta if delta is None else delta
    if at is None:
        raise TypeError(
            "delta must be given: there is no ledger, and the plan has no target."
            " Nothing was spent."
        )
    validate.open_probability(delta=at)
    ideal = calibrate.ideal_delta(at)
    epsilon = plan.epsilon
    if epsilon is None or plan.delta != at:
        epsilon = accounting.price(plan.event(), ideal)
    # One ulp of room: the ledger prices the same event by itself.
    budget = Budget(up(epsilon, 4), at)
    return ledger_or_in_memory(None, budget, unit=plan.unit, filter=Filter.pure()), at


def pay_for_run(
    plan: DPExecutionPlan,
    ledger: Ledger,
    *,
    label: str,
    dimension: int,
    delta: float,
    digest: str | None,
    run: str | None,
    source: Source | None,
) -> Payment:
    """The payment for the whole run; that of an earlier call if the run is resumed."""
    block = calibrate.ideal_delta(delta) if not ledger.terms.filter.meters else None
    try:
        return plan.paid(
            ledger,
            label=label,
            dimension=dimension,
            digest=digest,
            idempotency_key=run,
            source=source,
            block_delta=block,
        )
    except IdempotencyConflict as error:
        raise CheckpointRefused(
            "the run of this checkpoint began with other data, first parameters, plan,"
            " program or mesh, and the same noise on two sums would reveal their"
            " difference. Begin a new run in a new folder. Nothing was spent."
        ) from error


def payer(plan: DPExecutionPlan, reservation: Reservation) -> Callable[[int], None]:
    """A function of a step that makes its draw durable, if it has not been drawn.

    Draws are taken ahead in blocks that double, because each transaction waits for a
    disk or a server, and a step on an accelerator is shorter than that. A draw means
    that its step *may* have happened, so taking it early is safe; a run that stops
    leaves at most as many unused as it has used, and `_LARGEST_BLOCK`.
    """
    drawn = reservation.drawn
    block = 1

    def pay(step: int) -> None:
        nonlocal drawn, block
        index, within = divmod(step, plan.steps_per_draw)
        if within or index < drawn:
            return
        try:
            draws = reservation.draw_many(min(block, reservation.count - index))
        except BudgetExceeded as error:
            raise _drawn_elsewhere() from error
        if draws[0].index != index:
            raise _drawn_elsewhere()
        drawn = draws[-1].index + 1
        block = min(2 * block, _LARGEST_BLOCK)

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


def tree_digest(tree: PyTree) -> str:
    """A digest of structure, shapes and content of a tree of arrays."""
    leaves, treedef = jax.tree.flatten(tree)
    whole = hashlib.sha256(str(treedef).encode())
    for leaf in leaves:
        array = np.asarray(leaf)
        whole.update(f"{array.dtype} {array.shape}".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()
