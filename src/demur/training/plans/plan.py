"""Execution plans: batches, clipped gradients, noise and cost, made to fit each other.

    config  -> which batches, which correlation, which relation, which target
    .make() -> DPExecutionPlan: the objects a loop needs, and the event they cost

The event is derived from the batch strategy object (`accounting.accounts`), the
noise from the bound that the clipped gradient enforces and the columns of the matrix
that is used. No number is given twice, so the parts cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from demur.core import accounting, validate
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    Event,
    Neighbours,
    atoms,
)
from demur.core.accounting.gaussian import ideal_delta
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
from demur.core.declaration import PER_PERSON, Declaration
from demur.core.entropy import NoiseKey, Source
from demur.core.errors import NotCovered, NotPriced
from demur.core.promise import NO_LIMIT, Promise
from demur.core.rounding import product_up, up
from demur.ledger import Budget, Filter, Ledger, Payment, ledger_or_in_memory
from demur.mechanisms.correlated import Strategy
from demur.training.accounting.accounts import (
    Account,
    FixedBatchAccount,
    participation_of,
    run_event,
)
from demur.training.batches.selection import BatchSelectionStrategy
from demur.training.batches.user_selection import UserSelectionStrategy, base_of
from demur.training.clipping.types import ClippedGrad
from demur.training.noise.privatizer import PlanTerms, Privatizer, privatizer
from demur.training.plans.relations import neighbours_of, unit_of
from demur.training.plans.sum_rounding import most_rows, stated_rounding

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
    batch_selection_strategy: BatchSelectionStrategy | UserSelectionStrategy
    noise_addition_transform: Privatizer
    neighbours: Neighbours
    account: Account
    noise_multiplier: float
    l2_norm_bound: float
    num_examples: int | None = None
    target: Promise | None = None
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        made_for = self.noise_addition_transform.spec.plan
        if made_for is not None and made_for != self.terms:
            raise ValueError(
                "the noise of this plan was made for other batches, another multiplier,"
                " account or number of examples: make the plan anew by its config,"
                " instead of replacing a part of it. Nothing was spent."
            )

    @property
    def iterations(self) -> int:
        """T: the number of steps."""
        return self.batch_selection_strategy.iterations

    @property
    def per_person(self) -> bool:
        """Whether its batches are of persons, so that it protects one person."""
        return isinstance(self.batch_selection_strategy, UserSelectionStrategy)

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

        A run that was verified by Monte Carlo, or has random allocation, is
        "unsupported" there. The Gaussian of a run without amplification is stated per
        sensitivity: under REPLACE_ONE dp_accounting's PLD halves it once more, and
        overstates the cost.
        """
        if isinstance(self.account, FixedBatchAccount):
            return self.account.dp_event(self.noise_multiplier)
        event = self.event()
        if any(isinstance(atom, ApproxDP | AllocatedGaussian) for atom in atoms(event)):
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
        self,
        units: Iterable[Unit] | None = None,
        *,
        dimension: int | None = None,
        per_person: bool = False,
        assumed: tuple[str, ...] = (),
    ) -> Declaration:
        """One draw as the ledger stores it: its cost at each of `units`.

        `dimension` is the number of parameters; hardened noise needs it to state how
        far its sampler is from the ideal law. `per_person` says that batches are of
        persons (`UserData`): the guarantee is then about all of a person's examples.
        Where some of them stay, it is another: the person's contribution changes, which
        moves a sum twice as far as one that comes or goes. `assumed` is what a run
        assumes besides.
        """
        per_person = per_person or self.per_person
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
        unprotected = []
        if known_n:
            unprotected.append(
                f"the number of {'persons' if per_person else 'records'}"
            )
        replaced = {Neighbours.REPLACE_ONE}
        if per_person and set(relations.values()) != replaced:
            unprotected.append("a change to some of a person's examples, others kept")
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
            unprotected=tuple(unprotected),
            assumptions=(
                *((PER_PERSON,) if per_person else ()),
                _SECRET,
                f"the noise is as good as Gaussian: {noise}",
                *stated_rounding(spec.most_rows, spec.sum_rounding),
                *self.assumptions,
                *assumed,
            ),
            fingerprint=self.fingerprint,
            draws=None,  # every step draws, on the sum of its own batch
        )

    @cached_property
    def terms(self) -> PlanTerms:
        """What the price follows from, beside the noise; part of what is paid for."""
        return plan_terms(
            self.batch_selection_strategy,
            self.account,
            self.noise_multiplier,
            self.num_examples,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of terms and noise: plans of one cost may differ in it."""
        return self.noise_addition_transform.spec.plan_fingerprint(self.terms)

    def paid(
        self,
        ledger: Ledger | None = None,
        *,
        label: str = "DP training",
        dimension: int | None = None,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
        per_person: bool = False,
        assumed: tuple[str, ...] = (),
    ) -> Payment:
        """Pay for the whole run at once; `draws` draws, each good for some steps.

        The declaration states a cost at every unit for which the ledger has a budget.
        In a ledger of blocks alone the plan is priced at its own delta, so that it fits
        a budget it was calibrated for; elsewhere at `block_delta` or the filter's
        default. `plan.key(payment)` is the key of batches and noise. Without a ledger
        (None) it is one in memory, at the delta of the plan's target. `per_person` says
        that a record is a person, and `assumed` what else a reader must believe
        (`declaration`).
        """
        ledger, _ = ledger_and_delta(self, ledger, None)
        units = self.units_in(ledger)
        if (
            block_delta is None
            and self.delta is not None
            and not ledger.terms.filter.meters
        ):
            block_delta = ideal_delta(self.delta)
        return ledger.paid(
            self.declaration(
                units, dimension=dimension, per_person=per_person, assumed=assumed
            ),
            count=self.draws,
            label=label,
            digest=digest,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        )

    def units_in(self, ledger: Ledger) -> list[Unit]:
        """The units of a ledger at which a run of this plan states its cost."""
        units = [unit for unit, _ in ledger.terms.budgets]
        return [unit for unit in units if isinstance(unit, _PRICED)] or [self.unit]

    def key(self, payment: Payment) -> NoiseKey:
        """The key of batches and noise, if all of this very plan was paid for."""
        return payment.key.authorise(self.fingerprint, runs=self.draws)

    def __repr__(self) -> str:
        return (
            f"DPExecutionPlan({self.batch_selection_strategy!r},"
            f" noise_multiplier={self.noise_multiplier:g}, {self.neighbours.name})"
        )


def ledger_and_delta(
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
    ideal = ideal_delta(at)
    epsilon = plan.epsilon
    if epsilon is None or plan.delta != at:
        epsilon = accounting.price(plan.event(), ideal)
    # One ulp of room: the ledger prices the same event by itself.
    budget = Budget(min(up(epsilon, 4), NO_LIMIT), at)
    return ledger_or_in_memory(None, budget, unit=plan.unit, filter=Filter.pure()), at


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


def plan_terms(
    selection: BatchSelectionStrategy | UserSelectionStrategy,
    account: Account,
    noise_multiplier: float,
    num_examples: int | None,
) -> PlanTerms:
    """Everything that the price of a plan follows from, but its noise."""
    parts = (selection, account, float(noise_multiplier), num_examples)
    return PlanTerms("\n".join(map(repr, parts)), account.draws)


def assemble(
    *,
    clipped_grad: ClippedGrad | Callable[..., ClippedGrad],
    l2_norm_bound: float,
    selection: BatchSelectionStrategy | UserSelectionStrategy,
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
    num_examples = rest.get("num_examples")
    return DPExecutionPlan(
        clipped_grad=clipped_grad,
        batch_selection_strategy=selection,
        noise_addition_transform=privatizer(
            strategy,
            stddev=stddev,
            noise=noise,
            l2_norm_bound=l2_norm_bound,
            participation=participation_of(base_of(selection)),
            plan=plan_terms(selection, account, noise_multiplier, num_examples),
            most_rows=most_rows(selection) if noise == "lattice" else None,
        ),
        neighbours=neighbours,
        account=account,
        noise_multiplier=noise_multiplier,
        l2_norm_bound=l2_norm_bound,
        **rest,
    )
