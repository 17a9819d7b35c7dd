"""The fields of every plan's config: privacy target, relation and clip norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

from demur.core import accounting, validate
from demur.core.accounting.events import Neighbours
from demur.core.accounting.gaussian import ideal_delta
from demur.core.errors import NotPriced
from demur.core.promise import Promise
from demur.ledger import Budget, Ledger
from demur.mechanisms.correlated import Strategy
from demur.training.accounting.accounts import Account, run_event
from demur.training.accounting.calibration import Calibration, calibrate_noise
from demur.training.accounting.monte_carlo import MonteCarloAccount
from demur.training.batches.selection import BatchSelectionStrategy
from demur.training.batches.user_selection import UserSelectionStrategy
from demur.training.clipping.clipped_grad import clipped_grad as make_clipped_grad
from demur.training.clipping.clipped_grad import norm_tree
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.plans.plan import DPExecutionPlan, assemble
from demur.training.plans.relations import neighbours_of, unit_of


@dataclass(frozen=True, eq=False, kw_only=True)
class BasePlanConfig:
    """The privacy target, the neighbouring relation and the clip norm of a plan.

    Exactly one of (epsilon, delta) and noise_multiplier is set when a plan is made;
    `calibrate` sets the first. The relation has no default: it is either named, or
    that of the accountant or of the ledger that the plan is calibrated for.

    `l2_clip_norm` is a number, or a tree of numbers that is a prefix of the parameters:
    each part is then clipped by itself, and the noise follows the root of the sum of
    squares (`clipped_grad`).
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    neighboring_relation: Any = None
    accountant: Any = None
    num_examples: int | None = None
    l2_clip_norm: PyTree | None = None
    normalize_by: float = 1.0
    rescale_to_unit_norm: bool = False
    noise: str = "threefry"

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("epsilon and delta must be given together")
        if self.epsilon is not None:
            validate.positive(epsilon=self.epsilon)
            validate.open_probability(delta=self.delta)
            if self.noise_multiplier is not None:
                raise ValueError(
                    "give either (epsilon, delta) or noise_multiplier: one follows"
                    " from the other"
                )
        if self.noise_multiplier is not None:
            validate.positive(noise_multiplier=self.noise_multiplier)
        if self.l2_clip_norm is not None:
            norm_tree(self.l2_clip_norm, self.rescale_to_unit_norm)
        if self.num_examples is not None:
            validate.count(num_examples=self.num_examples)
        self._relation(required=False)

    def _relation(self, *, required: bool = True) -> Neighbours | None:
        named = None
        if self.neighboring_relation is not None:
            named = neighbours_of(self.neighboring_relation)
        if self.accountant is not None:
            accounted = accounting.relation_of_accountant(self.accountant)
            if named is not None and named is not accounted:
                raise ValueError(
                    f"neighboring_relation is {named.name} and the accountant was made"
                    f" for {accounted.name}: its epsilon would be for another relation"
                )
            named = accounted
        if named is None and required:
            raise TypeError(
                "neighboring_relation must be given: whether the plan protects a record"
                " that is added or removed, blanked, or replaced has no default"
            )
        return named

    @property
    def neighbours(self) -> Neighbours:
        """The relation the plan is made for."""
        relation = self._relation()
        assert relation is not None
        return relation

    @property
    def _account(self) -> Account:
        raise NotImplementedError

    @property
    def _selection(self) -> BatchSelectionStrategy | UserSelectionStrategy:
        raise NotImplementedError

    @property
    def _strategy(self) -> Strategy:
        raise NotImplementedError

    @cached_property
    def calibration(self) -> Calibration:
        """The least noise multiplier for the target (epsilon, delta)."""
        account, neighbours = self._account, self.neighbours
        if self.epsilon is None or self.delta is None:
            raise TypeError(
                "give (epsilon, delta) or noise_multiplier, or call calibrate(budget)"
            )
        if isinstance(account, MonteCarloAccount):
            raise NotPriced(
                "a Monte Carlo account verifies one noise_multiplier for a target: give"
                " noise_multiplier (searching would use up its confidence)"
            )
        # A ledger sets a little of delta aside for samplers; one such plan fits a
        # budget of exactly (epsilon, delta).
        return calibrate_noise(
            lambda z: run_event(account, z, neighbours),
            self.epsilon,
            ideal_delta(self.delta),
            accountant=self.accountant,
        )

    def calibrate(
        self,
        target: Budget | Ledger | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Self:
        """The config with the least noise for a budget, a ledger's only budget, or
        (epsilon, delta).

        A ledger also names the relation, if the config does not.
        """
        relation = self.neighboring_relation
        if isinstance(target, Ledger):
            if len(target.terms.budgets) != 1:
                raise TypeError(
                    "a ledger with several budgets does not say which one: pass one"
                    " Budget, or epsilon and delta"
                )
            ((unit, target),) = target.terms.budgets
            relation = unit if self._relation(required=False) is None else relation
        if isinstance(target, Budget):
            if epsilon is not None or delta is not None:
                raise TypeError("give a budget, or epsilon and delta, not both")
            epsilon, delta = target.epsilon, target.delta
        elif target is not None:
            raise TypeError(
                f"target must be a Budget or a Ledger; got {type(target).__name__}"
            )
        config = replace(
            self,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=None,
            neighboring_relation=relation,
        )
        config.calibration  # noqa: B018  searched for now, and cached
        return config

    def make(self, clipped_grad: ClippedGrad | None = None) -> DPExecutionPlan:
        """The plan. `clipped_grad` enforces the bound that the noise is made for.

        Without it the config's `l2_clip_norm` and `normalize_by` say what gradient the
        plan will take of a loss (`plan.gradient(loss_fn)`).
        """
        gradient, bound = self._gradient(clipped_grad)
        multiplier = self.noise_multiplier
        if multiplier is None:
            multiplier = self.calibration.noise_multiplier
        return assemble(
            clipped_grad=gradient,
            l2_norm_bound=bound,
            selection=self._selection,
            strategy=self._strategy,
            account=self._account,
            neighbours=self.neighbours,
            noise_multiplier=multiplier,
            noise=self.noise,
            num_examples=self.num_examples,
            target=self._target,
            assumptions=getattr(self._account, "assumptions", ()),
        )

    @property
    def _target(self) -> Promise | None:
        if self.epsilon is None or self.delta is None:
            return None
        return Promise(unit_of(self.neighbours), self.epsilon, self.delta)

    def _gradient(
        self, given: ClippedGrad | None
    ) -> tuple[ClippedGrad | Callable[..., ClippedGrad], float]:
        if given is not None:
            if not isinstance(given, ClippedGrad):
                raise TypeError(
                    "clipped_grad must come from demur.training.clipped_grad, whose"
                    f" bound is known; got {type(given).__name__}"
                )
            if self.l2_clip_norm is not None:
                raise TypeError(
                    "l2_clip_norm is given to the config and to clipped_grad: give it"
                    " once"
                )
            if self.noise == "lattice":
                given = given.with_(accumulator="float64")
            return given, given.l2_norm_bound
        if self.l2_clip_norm is None:
            raise TypeError(
                "make needs a clipped_grad, or the config an l2_clip_norm: the noise"
                " is scaled to what one record can contribute"
            )
        transform = partial(
            make_clipped_grad,
            l2_clip_norm=self.l2_clip_norm,
            normalize_by=self.normalize_by,
            rescale_to_unit_norm=self.rescale_to_unit_norm,
            accumulator="float64" if self.noise == "lattice" else "float32",
        )
        return transform, transform(_no_loss).l2_norm_bound


def _no_loss(params: Any, batch: Any) -> Any:
    raise AssertionError("only the bound is asked for")
