"""The plan of an odometer: how many deletions, their noise, and the ledger's entries.

Pure functions of the odometer's terms and constants. Two limits make the capacity:
privacy (all deletions within epsilon and delta) and regret (their noise, spread over T
events, costs at most gamma on average). The noise for m deletions is what privacy asks
for, so the search is over m alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from demur.core import validate
from demur.core.accounting import gaussian
from demur.core.accounting.events import ApproxDP, Event, GaussianEvent, Pure, Repeated
from demur.core.adjacency import Erasure
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.rounding import product_up, sum_up, up
from demur.ledger import Budget, Filter
from demur.mechanisms.sampling.rounded_gaussian import LARGEST_SCALE, sampler_distance
from demur.unlearning.models.base import (
    NEVER_COVERED,
    Accounting,
    Composition,
    Mode,
    Scope,
)
from demur.unlearning.pricing import capacity, regret
from demur.unlearning.pricing.budget import (
    EXACT,
    WHOLE,
    DeletionBudget,
    DeletionPrice,
)
from demur.unlearning.pricing.calibrator import Formula, checked_formula
from demur.unlearning.pricing.noise import noise_fingerprint
from demur.unlearning.pricing.stream_constants import StreamConstants, average_regret

_SEED_CLAIM = (
    "the seed's step leaves the model within L / lambda of the one that never saw the"
    " record, which nobody has proved and which fails for old records"
)
_CALLER_CLAIM = (
    "noise of at least noise_scale(shift) is added to a state that is within shift of"
    " the one that never saw the record"
)


@dataclass(frozen=True)
class OdometerTerms:
    """What an odometer was asked for, checked."""

    epsilon: float
    delta: float
    lam: float
    delta_B: float
    T: int
    gamma: float
    accounting: Accounting
    formula: Formula
    scope: Scope
    requests_per_subject: int | None

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon, lam=self.lam, gamma=self.gamma)
        validate.open_probability(delta=self.delta, delta_B=self.delta_B)
        validate.count(T=self.T)
        if self.requests_per_subject is not None:
            validate.count(requests_per_subject=self.requests_per_subject)
        checked_formula(self.formula)
        if self.accounting not in capacity.ACCOUNTINGS:
            known = ", ".join(capacity.ACCOUNTINGS)
            raise ValueError(
                f"accounting must be one of {known}; got {self.accounting!r}"
            )
        if self.formula == "seed" and self.accounting != "basic":
            raise ValueError(
                "formula='seed' divides epsilon and delta by m: accounting must be"
                f" 'basic' there; got {self.accounting!r}"
            )
        if self.scope not in ("subject", "joint"):
            raise ValueError(f"scope must be 'subject' or 'joint'; got {self.scope!r}")

    @cached_property
    def budget(self) -> DeletionBudget:
        """The budget that the deletions share."""
        return DeletionBudget(
            float(self.epsilon),
            float(self.delta),
            self.accounting,
            self.requests_per_subject,
        )

    @property
    def several(self) -> bool:
        """Whether several deletions are part of one promise."""
        return self.scope == "joint" or self.requests_per_subject != 1

    def check_mode(self, mode: Mode) -> None:
        """Refuse a mode whose theorem does not cover these terms."""
        theorem = mode.theorem
        if not theorem.scopes or mode.exact:
            return
        theorem.composition(self.scope)  # covers the scope, or raises
        if self.several and self.accounting not in theorem.joint_accounting:
            what = "scope='joint'" if self.scope == "joint" else "several requests"
            raise ValueError(
                f"mode {mode.name!r} with {what} and accounting={self.accounting!r} is"
                " refused: deletions are proved to compose there by"
                f" {', '.join(theorem.joint_accounting)}, and by nothing tighter. Use"
                " accounting='zcdp'. Nothing was spent."
            )

    def over(self, T: int) -> OdometerTerms:
        """The same for another number of events."""
        return replace(self, T=T)


@dataclass(frozen=True)
class OdometerPlan:
    """m deletions of multiplier z, and what each of them is alone.

    `per_subject`: each person has the budget for themselves; z is then the multiplier
    of a first request. Elsewhere all m deletions share it. `epsilon_step` and
    `delta_step` add up under "basic" alone.
    """

    m: int
    z: float
    per_subject: bool
    epsilon_step: float
    delta_step: float
    sigma_step: float
    degenerate: bool


def composition(terms: OdometerTerms, constants: StreamConstants) -> Composition:
    """What adds up; without a theorem, all deletions."""
    theorem = constants.theorem
    if theorem is None or not theorem.scopes:
        return "deletions"
    return theorem.composition(terms.scope)


def proves_gaussian(terms: OdometerTerms, constants: StreamConstants) -> bool:
    """Whether the promise is a composition of Gaussians, by theorem."""
    theorem = constants.theorem
    if theorem is None or not theorem.scopes or not terms.several:
        return True
    return "gdp" in theorem.joint_accounting


def budget_of(terms: OdometerTerms, constants: StreamConstants) -> DeletionBudget:
    """The budget, with what the mode's theorem proves of it."""
    return replace(terms.budget, gaussians_compose=proves_gaussian(terms, constants))


def budget_share(terms: OdometerTerms, constants: StreamConstants, m: int) -> Fraction:
    """The part of the budget that a first request of one record gets, one of m."""
    return terms.budget.first_part(composition(terms, constants), m)


def first_multiplier(terms: OdometerTerms, constants: StreamConstants, m: int) -> float:
    """The z of a first request of one record, one of m."""
    share = budget_share(terms, constants, m)
    return budget_of(terms, constants).multiplier(share)


def request_price(
    terms: OdometerTerms,
    constants: StreamConstants,
    plan: OdometerPlan,
    *,
    request: int = 1,
    records: int = 1,
) -> DeletionPrice:
    """The price of a person's request number `request`, of so many records."""
    if constants.exact or plan.z == 0.0:
        return EXACT
    return budget_of(terms, constants).price(
        composition(terms, constants),
        first=plan.z,
        capacity=plan.m,
        records=records,
        request=request,
    )


def within_regret(
    terms: OdometerTerms, constants: StreamConstants, m: int, z: float
) -> bool:
    """Whether m deletions of multiplier z keep the average regret at gamma."""
    if terms.formula == "seed":
        return seed_average_regret(terms, constants, m) <= terms.gamma
    return average_regret(constants, m, z, terms.T, terms.delta_B) <= terms.gamma


def seed_average_regret(
    terms: OdometerTerms, constants: StreamConstants, m: int
) -> float:
    """(R_ins + R_del(m)) / T by the seed's formulas; nobody has proved it."""
    R_ins = regret.seed_insertion_regret(
        constants.G, constants.D, terms.T, c=constants.c, C=constants.C
    )
    R_del = regret.seed_deletion_regret(
        m,
        L=constants.G,
        lam=terms.lam,
        epsilon=terms.epsilon,
        delta=terms.delta,
        delta_B=terms.delta_B,
    )
    return (R_ins + R_del) / terms.T


def solve(terms: OdometerTerms, constants: StreamConstants) -> OdometerPlan:
    """The largest m that privacy and regret allow, and the noise it takes."""
    if terms.formula == "seed":
        return _seed_plan(terms, constants)
    alone = composition(terms, constants) == "nothing"
    if constants.exact:
        return OdometerPlan(capacity.UNLIMITED, 0.0, alone, 0.0, 0.0, 0.0, False)
    if constants.G == 0.0:
        raise ValueError("stats['G'] is 0: there is nothing to size noise by")
    m = capacity.largest_count(
        lambda count: within_regret(
            terms, constants, count, first_multiplier(terms, constants, count)
        ),
        min(terms.T, capacity.UNLIMITED),
    )
    if m == 0:
        return OdometerPlan(0, 0.0, alone, 0.0, 0.0, 0.0, True)
    z, share = first_multiplier(terms, constants, m), budget_share(terms, constants, m)
    delta_step = float(Fraction(terms.delta) * share)
    if terms.accounting == "basic":
        epsilon_step = float(Fraction(terms.epsilon) * share)
    else:
        epsilon_step = gaussian.gaussian_epsilon(up(1.0 / z), delta_step)
    sigma = product_up(z, constants.shift)
    return OdometerPlan(m, z, alone, epsilon_step, delta_step, sigma, False)


def _seed_plan(terms: OdometerTerms, constants: StreamConstants) -> OdometerPlan:
    """The seed's numbers, verbatim: capacity 1 where not even one is allowed."""
    allowed = capacity.largest_count(
        lambda m: within_regret(terms, constants, m, 0.0), terms.T
    )
    m = max(1, allowed)
    epsilon_step, delta_step = terms.epsilon / m, terms.delta / m
    z = math.sqrt(2.0 * math.log(1.25 / delta_step)) / epsilon_step
    if constants.theorem is not None and constants.theorem.scopes:
        z = max(z, first_multiplier(terms, constants, m))  # a promise is kept anyway
    sigma = constants.G / terms.lam * z
    return OdometerPlan(m, z, False, epsilon_step, delta_step, sigma, allowed == 0)


# -- what goes into the ledger -----------------------------------------------------


@dataclass(frozen=True)
class LedgerEntries:
    """Declarations that an odometer charges: the promise, if any, and the draws."""

    promise: Declaration | None
    draws: Declaration
    budget: Budget
    filter: Filter


def ledger_entries(
    terms: OdometerTerms, constants: StreamConstants, plan: OdometerPlan
) -> LedgerEntries:
    """The entries of a plan, and a budget and filter that just hold them."""
    budget = Budget(terms.epsilon, terms.delta)
    if constants.exact:
        free = _declare(terms, constants, Pure(0.0), "exact deletions")
        return LedgerEntries(None, free, budget, Filter.gaussian())
    # One promise covers so many noises: all m, or the requests of one person. Where no
    # number limits those, each draw declares its own.
    noises = terms.requests_per_subject if plan.per_subject else plan.m
    counted = _declare(
        terms,
        constants,
        Pure(0.0),
        "deletions that a promise paid for",
        noises=1 if noises is None else 0,
        z=plan.z,
    )
    if not proves_gaussian(terms, constants):
        pair = ApproxDP(terms.epsilon, terms.budget.ideal_delta)
        whole = _declare(
            terms, constants, pair, "the promise of all deletions", noises=noises or 0
        )
        return LedgerEntries(whole, counted, budget, Filter.pure())
    if terms.formula == "seed":
        # The classic formula costs more than it promises above epsilon 8: a ledger of
        # the odometer's own says what it costs, and one that is given may decline.
        real = capacity.total_epsilon(plan.m, plan.z, terms.budget.ideal_delta)
        budget = Budget(max(terms.epsilon, sum_up(real, 1e-9)), terms.delta)
    if not plan.per_subject:
        draws = _declare(
            terms,
            constants,
            GaussianEvent(plan.z),
            "deletions with Gaussian noise",
            noises=1,
            z=plan.z,
        )
        return LedgerEntries(None, draws, budget, Filter.gaussian())
    own = _declare(
        terms,
        constants,
        _promise_to_one(terms, plan),
        "the promise to one subject",
        noises=noises or 0,
    )
    return LedgerEntries(own, counted, budget, Filter.gaussian())


def _promise_to_one(terms: OdometerTerms, plan: OdometerPlan) -> Event:
    """What all requests of one person come to."""
    requests = terms.requests_per_subject
    if requests is None:
        # Parts that add up to 1. Under "basic" the requests are (epsilon, delta)-DP
        # together, and Gaussians that are compose to at most the Gaussian of the whole.
        accounting: Accounting = (
            "gdp" if terms.accounting == "basic" else terms.accounting
        )
        return GaussianEvent(
            replace(terms.budget, accounting=accounting).multiplier(WHOLE)
        )
    event: Event = GaussianEvent(plan.z)
    return event if requests == 1 else Repeated(event, requests)


def _declare(
    terms: OdometerTerms,
    constants: StreamConstants,
    event: Event,
    name: str,
    *,
    noises: int = 0,
    z: float | None = None,
) -> Declaration:
    theorem = constants.theorem
    unprotected: tuple[str, ...] = NEVER_COVERED
    assumptions = [_CALLER_CLAIM]
    if theorem is not None:
        assumptions = [_SEED_CLAIM]
        if theorem.scopes:
            unprotected = theorem.not_covered
            assumptions = [f"theorem {theorem.id} is read at scope {terms.scope!r}"]
            if theorem.composition(terms.scope) == "nothing" and not constants.exact:
                assumptions.append(_about_requests(terms))
    return Declaration(
        f"{name} (mode {constants.mode}, scope {terms.scope})",
        Cost((Fixed(Erasure(), event),)),
        sampler_distance=noises * sampler_distance(constants.dimension, LARGEST_SCALE),
        unprotected=unprotected,
        assumptions=tuple(assumptions),
        fingerprint="" if z is None else noise_fingerprint(z),
        draws=1 if z is None else None,
    )


def _about_requests(terms: OdometerTerms) -> str:
    strangers = "records deleted without an id being different subjects'"
    if terms.requests_per_subject is None:
        return (
            f"each request of a subject is noised by its number among them, {strangers}"
        )
    return (
        f"no subject makes more than {terms.requests_per_subject} deletion"
        f" request(s), {strangers}"
    )
