"""Execution plans: batches, clipped gradients, noise and cost, made to fit each other.

    config  -> which batches, which correlation, which relation, which target
    .make() -> DPExecutionPlan: the objects a loop needs, and the event they cost

The event is derived from the batch strategy object (`accounting.participation`), the
noise from the bound that the clipped gradient enforces and the columns of the matrix
that is used. No number is given twice, so the parts cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from demur.core import accounting
from demur.core.accounting import calibrate
from demur.core.accounting.events import ApproxDP, Event, Neighbours, atoms
from demur.core.adjacency import (
    AddOrRemoveOne,
    Ball,
    Erasure,
    ReplaceOne,
    Unit,
    ZeroOut,
)
from demur.core.bounds import Bound, BoundSource
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.entropy import NoiseKey, Source
from demur.core.errors import NotCovered, NotPriced
from demur.core.promise import Promise
from demur.core.rounding import product_up
from demur.ledger import Ledger, Payment
from demur.mechanisms.correlated import Strategy
from demur.training.accounting.participation import (
    Account,
    FixedBatchAccount,
    participation_of,
    run_event,
)
from demur.training.batches.selection import BatchSelectionStrategy
from demur.training.clipping.types import ClippedGrad
from demur.training.noise.privatizer import Privatizer, privatizer
from demur.training.plans.relations import neighbours_of, unit_of

_SECRET = "batches, clipped sums and noise states of the run stay secret"


@dataclass(frozen=True, eq=False, kw_only=True)
class DPExecutionPlan:
    """The parts of a private training run, and what the run costs.

    - `clipped_grad`: a `ClippedGrad`, or, for a plan that was made without one, the
      function that makes it from a loss (`plan.gradient(loss)` works for both);
    - `batch_selection_strategy`: yields global batches of indices;
    - `noise_addition_transform`: an optax transformation from `ClippedSum` to a noisy
      pytree, for `iterations` steps;
    - `dp_event`: what the run costs, a `dp_accounting.DpEvent`;
    - `neighboring_relation`: the relation it was made for, dp_accounting's;
    - `target`: the (epsilon, delta) it was calibrated to, if it was.

    A loop of your own pays first and draws from the key of the payment:

    >>> from demur import AddOrRemoveOne, Budget, Ledger
    >>> from demur.training import dp_sgd
    >>> plan = dp_sgd(iterations=3, sampling_prob=0.5, noise_multiplier=2.0,
    ...     neighboring_relation="ADD_OR_REMOVE_ONE", l2_clip_norm=1.0).make()
    >>> ledger = Ledger(Budget(9.0, 1e-6), unit=AddOrRemoveOne(), filter="pure")
    >>> payment = plan.paid(ledger, label="three steps")
    >>> key = plan.key(payment)
    >>> batches = plan.batch_selection_strategy.batch_iterator(10, key)
    """

    clipped_grad: ClippedGrad | Callable[..., ClippedGrad]
    batch_selection_strategy: BatchSelectionStrategy
    noise_addition_transform: Privatizer
    neighbours: Neighbours
    account: Account
    noise_multiplier: float
    l2_norm_bound: float
    num_examples: int | None = None
    target: Promise | None = None
    assumptions: tuple[str, ...] = field(default=())

    @property
    def iterations(self) -> int:
        """T: the number of steps."""
        return self.batch_selection_strategy.iterations

    @property
    def unit(self) -> Unit:
        """The unit of the relation the plan was made for."""
        return unit_of(self.neighbours)

    @property
    def epsilon(self) -> float | None:
        """The target's epsilon, if there is a target."""
        return None if self.target is None else self.target.epsilon

    @property
    def delta(self) -> float | None:
        """The target's delta, if there is a target."""
        return None if self.target is None else self.target.delta

    @property
    def neighboring_relation(self) -> Any:
        """The relation as dp_accounting's NeighboringRelation."""
        return accounting.to_relation(self.neighbours)

    @cached_property
    def dp_event(self) -> Any:
        """The whole run as a `dp_accounting.DpEvent`.

        A run that was verified by Monte Carlo is "unsupported" there. The
        Gaussian of a run without amplification is stated per sensitivity: under
        REPLACE_ONE dp_accounting's PLD halves it once more, and overstates the cost.
        """
        if isinstance(self.account, FixedBatchAccount):
            return self.account.dp_event(self.noise_multiplier)
        event = self.event()
        if any(isinstance(atom, ApproxDP) for atom in atoms(event)):
            return accounting.unsupported_dp_event()
        return accounting.to_dp_event(event)

    @property
    def draws(self) -> int:
        """How many equal events make up the run: what a reservation counts."""
        return self.account.draws

    @property
    def steps_per_draw(self) -> int:
        """How many steps one of them pays for."""
        return self.account.steps_per_draw

    def event(self, unit: Unit | Any = None) -> Event:
        """The whole run at `unit` (default: the plan's own).

        A unit at which the batches have no account is refused with the reason.
        """
        neighbours = self.neighbours if unit is None else _relation_at(unit)
        return run_event(self.account, self.noise_multiplier, neighbours)

    def price(self, delta: float | None = None, unit: Unit | None = None) -> float:
        """Epsilon of the whole run at `delta` (default: the target's)."""
        at = self.delta if delta is None else delta
        if at is None:
            raise TypeError("delta must be given: the plan has no target of its own")
        return accounting.price(self.event(unit), at)

    def gradient(self, loss_fn: Callable[..., Any] | None = None) -> ClippedGrad:
        """The clipped gradient of the plan, of `loss_fn` where it has none yet."""
        if isinstance(self.clipped_grad, ClippedGrad):
            return self.clipped_grad
        if loss_fn is None:
            raise TypeError("loss_fn must be given: the plan was made without a loss")
        gradient = self.clipped_grad(loss_fn)
        if gradient.l2_norm_bound > self.l2_norm_bound:
            raise ValueError(
                f"the noise was made for a bound of {self.l2_norm_bound:g}; the"
                f" gradient has {gradient.l2_norm_bound:g}. Nothing was spent."
            )
        return gradient

    def declaration(
        self, units: Iterable[Unit] | None = None, *, dimension: int | None = None
    ) -> Declaration:
        """One draw as the ledger stores it: its cost at each of `units`.

        `dimension` is the number of parameters; hardened noise needs it to state how
        far its sampler is from the ideal law.
        """
        spec = self.noise_addition_transform.spec
        sampler = 0.0
        if spec.hardened:
            if dimension is None:
                raise TypeError("dimension must be given for noise='lattice'")
            sampler = product_up(spec.sampler_distance(dimension), self.steps_per_draw)
        wanted = [self.unit] if units is None else list(units)
        relations = {_stated_at(unit): _relation_at(unit) for unit in wanted}
        terms = [
            Fixed(unit, self.account.draw_event(self.noise_multiplier, neighbours))
            for unit, neighbours in relations.items()
        ]
        known_n = any(not isinstance(unit, AddOrRemoveOne) for unit in wanted)
        noise = f"{spec.noise} noise" if spec.hardened else spec.statement
        correlated = spec.strategy.bands > 1
        method = (
            "DP training with correlated noise" if correlated else "DP-SGD training"
        )
        return Declaration(
            name=f"{method}, {self.iterations} steps",
            cost=Cost(tuple(terms)),
            sampler_distance=self.account.selection_distance + sampler,
            bounds=(
                Bound(
                    self.l2_norm_bound,
                    BoundSource.ENFORCED,
                    "norm of one contribution to a step",
                ),
            ),
            unprotected=("the number of records",) if known_n else (),
            assumptions=(
                _SECRET,
                f"the noise is as good as Gaussian: {noise}",
                *self.assumptions,
            ),
            fingerprint=self.fingerprint,
            interactive=True,  # every step draws, on the sum of its own batch
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of batches and noise: plans of one cost may differ in it."""
        spec = self.noise_addition_transform.spec
        return spec.plan_fingerprint(repr(self.batch_selection_strategy))

    def paid(
        self,
        ledger: Ledger,
        *,
        label: str,
        dimension: int | None = None,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> Payment:
        """Pay for the whole run at once; `draws` draws, each good for some steps.

        The declaration states a cost at every unit for which the ledger has a budget.
        In a ledger of blocks alone the plan is priced at its own delta, so that it fits
        a budget it was calibrated for; elsewhere at `block_delta` or the filter's
        default. `plan.key(payment)` is the key of batches and noise.
        """
        units = [unit for unit, _ in ledger.terms.budgets]
        units = [unit for unit in units if isinstance(unit, _PRICED)] or [self.unit]
        if (
            block_delta is None
            and self.delta is not None
            and not ledger.terms.filter.meters
        ):
            block_delta = calibrate.ideal_delta(self.delta)
        return ledger.paid(
            self.declaration(units, dimension=dimension),
            count=self.draws,
            label=label,
            digest=digest,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        )

    def key(self, payment: Payment) -> NoiseKey:
        """The key of batches and noise; refused if another plan was paid for."""
        payment.key.pays_for(self.fingerprint)
        return payment.key

    def __repr__(self) -> str:
        return (
            f"DPExecutionPlan({self.batch_selection_strategy!r},"
            f" noise_multiplier={self.noise_multiplier:g}, {self.neighbours.name})"
        )


_PRICED = (AddOrRemoveOne, ReplaceOne, ZeroOut, Ball)


def _relation_at(unit: Any) -> Neighbours:
    if getattr(unit, "records_per_person", 1) != 1:
        raise NotCovered(
            f"a plan protects one record of its batches, and {unit} several at once:"
            " form batches of persons (UserData) and read the plan at one record."
            " Nothing was spent."
        )
    if isinstance(unit, Erasure):
        raise NotCovered(
            "a plan has no cost at unit Erasure(): it bounds what a run reveals about a"
            " record, not whether one was deleted. Nothing was spent."
        )
    return neighbours_of(unit)


def _stated_at(unit: Unit) -> Unit:
    """The unit of the term: what holds for any replacement holds for a ball."""
    return ReplaceOne() if isinstance(unit, Ball) else unit


def assemble(
    *,
    clipped_grad: ClippedGrad | Callable[..., ClippedGrad],
    l2_norm_bound: float,
    selection: BatchSelectionStrategy,
    strategy: Strategy,
    account: Account,
    neighbours: Neighbours,
    noise_multiplier: float,
    noise: str = "threefry",
    **rest: Any,
) -> DPExecutionPlan:
    """The plan with the noise that its account asks for."""
    account.draw_event(noise_multiplier, neighbours)  # refused if it has no account
    if strategy.iterations != selection.iterations:
        raise NotPriced(
            f"the noise strategy is made for {strategy.iterations} steps, the batches"
            f" for {selection.iterations}"
        )
    stddev = product_up(
        product_up(noise_multiplier, l2_norm_bound), account.scale(strategy)
    )
    return DPExecutionPlan(
        clipped_grad=clipped_grad,
        batch_selection_strategy=selection,
        noise_addition_transform=privatizer(
            strategy,
            stddev=stddev,
            noise=noise,
            l2_norm_bound=l2_norm_bound,
            participation=participation_of(selection),
            batches=repr(selection),
        ),
        neighbours=neighbours,
        account=account,
        noise_multiplier=noise_multiplier,
        l2_norm_bound=l2_norm_bound,
        **rest,
    )
