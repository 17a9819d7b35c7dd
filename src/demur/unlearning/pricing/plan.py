"""The plan of an odometer: how many deletions, with how much noise, recorded as what.

Pure functions of the odometer's terms and of its sizing. Two limits make the capacity:
privacy (all deletions within epsilon and delta) and regret (their noise, spread over T
events, costs at most gamma on average); the noise for m deletions is what privacy asks
for, so the search is over m alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from demur.core import validate
from demur.core.accounting import gaussian
from demur.core.accounting.events import ApproxDP, Event, Gaussian, Pure, Repeated
from demur.core.adjacency import Erasure
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.rounding import product_up, sum_up, up
from demur.ledger import Budget, Filter
from demur.mechanisms.sampling.rounded_gaussian import LARGEST_SCALE, sampler_distance
from demur.unlearning.models.base import NEVER_COVERED, Accounting, Mode, Scope
from demur.unlearning.pricing import capacity
from demur.unlearning.pricing.calibrator import Formula, checked_formula
from demur.unlearning.pricing.noise import noise_fingerprint
from demur.unlearning.pricing.sizing import Sizing, average_regret

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
    lambda_: float
    delta_B: float
    T: int
    gamma: float
    accounting: Accounting
    formula: Formula
    scope: Scope
    requests_per_subject: int

    def __post_init__(self) -> None:
        validate.positive(
            eps_total=self.epsilon, lambda_=self.lambda_, gamma=self.gamma
        )
        validate.open_probability(delta_total=self.delta, delta_B=self.delta_B)
        validate.count(T=self.T, requests_per_subject=self.requests_per_subject)
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

    @property
    def several(self) -> bool:
        """Whether several deletions are part of one promise."""
        return self.scope == "joint" or self.requests_per_subject > 1

    def check_mode(self, mode: Mode) -> None:
        """Refuse a mode whose theorem does not cover these terms."""
        theorem = mode.theorem
        if not theorem.scopes or mode.exact:
            return
        theorem.composition(self.scope)  # speaks of the scope, or raises
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
class Plan:
    """m deletions of multiplier z; what each is alone; what their promise is about.

    `composed` is how many Gaussians the promise adds up: all m, or one person's
    requests. `eps_step` and `delta_step` add up under "basic" alone.
    """

    m: int
    z: float
    composed: int
    eps_step: float
    delta_step: float
    sigma_step: float
    degenerate: bool


def composed(terms: OdometerTerms, sizing: Sizing, m: int) -> int:
    """How many Gaussians the promise is about, if m deletions are made."""
    theorem = sizing.theorem
    if theorem is None or not theorem.scopes:
        return m
    alone = theorem.composition(terms.scope) == "nothing"
    return terms.requests_per_subject if alone else m


def proves_gaussian(terms: OdometerTerms, sizing: Sizing) -> bool:
    """Whether the promise is a composition of Gaussians, by theorem."""
    theorem = sizing.theorem
    if theorem is None or not theorem.scopes or not terms.several:
        return True
    return "gdp" in theorem.joint_accounting


def multiplier(terms: OdometerTerms, sizing: Sizing, m: int) -> float:
    """The z that m deletions need, the sampler's share of delta set aside."""
    count = composed(terms, sizing, m)
    target = (terms.epsilon, gaussian.ideal_delta(terms.delta))
    z = capacity.multiplier(count, *target, terms.accounting)
    if terms.accounting == "basic" and not proves_gaussian(terms, sizing):
        z = max(z, capacity.multiplier(count, *target, "zcdp"))
    return z


def within(terms: OdometerTerms, sizing: Sizing, m: int, z: float) -> bool:
    """Whether m deletions of multiplier z keep the average regret at gamma."""
    if terms.formula == "seed":
        R_ins = sizing.G * sizing.D * math.sqrt(sizing.c * sizing.C * terms.T)
        R_del = capacity.seed_deletion_regret(
            m,
            L=sizing.G,
            lambda_=terms.lambda_,
            eps_total=terms.epsilon,
            delta_total=terms.delta,
            delta_B=terms.delta_B,
        )
        return (R_ins + R_del) / terms.T <= terms.gamma
    return average_regret(sizing, m, z, terms.T, terms.delta_B) <= terms.gamma


def solve(terms: OdometerTerms, sizing: Sizing) -> Plan:
    """The largest m that privacy and regret allow, and the noise it takes."""
    if terms.formula == "seed":
        return _seed_plan(terms, sizing)
    if sizing.exact:
        return Plan(capacity.UNLIMITED, 0.0, 0, 0.0, 0.0, 0.0, False)
    if sizing.G == 0.0:
        raise ValueError("stats['G'] is 0: there is nothing to size noise by")
    m = capacity.largest(
        lambda count: within(terms, sizing, count, multiplier(terms, sizing, count)),
        min(terms.T, capacity.UNLIMITED),
    )
    if m == 0:
        return Plan(0, 0.0, 0, 0.0, 0.0, 0.0, True)
    z, count = multiplier(terms, sizing, m), composed(terms, sizing, m)
    delta_step = terms.delta / count
    if terms.accounting == "basic":
        eps_step = terms.epsilon / count
    else:
        eps_step = gaussian.gaussian_epsilon(up(1.0 / z), delta_step)
    sigma = product_up(z, sizing.shift)
    return Plan(m, z, count, eps_step, delta_step, sigma, False)


def _seed_plan(terms: OdometerTerms, sizing: Sizing) -> Plan:
    """The seed's numbers, verbatim: capacity 1 where not even one is allowed."""
    found = capacity.largest(lambda m: within(terms, sizing, m, 0.0), terms.T)
    m = max(1, found)
    eps_step, delta_step = terms.epsilon / m, terms.delta / m
    z = math.sqrt(2.0 * math.log(1.25 / delta_step)) / eps_step
    if sizing.theorem is not None and sizing.theorem.scopes:
        z = max(z, multiplier(terms, sizing, m))  # a promise is kept all the same
    sigma = sizing.G / terms.lambda_ * z
    return Plan(m, z, m, eps_step, delta_step, sigma, found == 0)


# -- what goes into the ledger -----------------------------------------------------


@dataclass(frozen=True)
class Charging:
    """One promise to charge (None: the draws carry it) and the draws to reserve."""

    promise: Declaration | None
    draws: Declaration
    budget: Budget
    filter: Filter


def charging(terms: OdometerTerms, sizing: Sizing, plan: Plan) -> Charging:
    """The entries of a plan, and a budget and filter that just hold them."""
    budget = Budget(terms.epsilon, terms.delta)
    gaussian_ledger = Filter.gaussian()
    if sizing.exact:
        free = _declare(terms, sizing, Pure(0.0), "exact deletions")
        return Charging(None, free, budget, gaussian_ledger)
    counted = _declare(
        terms, sizing, Pure(0.0), "deletions that a promise paid for", z=plan.z
    )
    if not proves_gaussian(terms, sizing):
        pair = ApproxDP(terms.epsilon, gaussian.ideal_delta(terms.delta))
        whole = _declare(
            terms, sizing, pair, "the promise of all deletions", plan.composed
        )
        return Charging(whole, counted, budget, Filter.pure())
    event: Event = Gaussian(plan.z)
    if terms.formula == "seed":
        # The classic formula costs more than it promises above epsilon 8: a ledger of
        # the odometer's own says what it costs, and one that is given may decline.
        ideal = gaussian.ideal_delta(terms.delta)
        real = capacity.total_epsilon(plan.m, plan.z, ideal)
        budget = Budget(max(terms.epsilon, sum_up(real, 1e-9)), terms.delta)
    if plan.composed == plan.m:
        draws = _declare(
            terms, sizing, event, "deletions with Gaussian noise", 1, plan.z
        )
        return Charging(None, draws, budget, gaussian_ledger)
    if plan.composed > 1:
        event = Repeated(event, plan.composed)
    own = _declare(terms, sizing, event, "the promise to one subject", plan.composed)
    return Charging(own, counted, budget, gaussian_ledger)


def _declare(
    terms: OdometerTerms,
    sizing: Sizing,
    event: Event,
    name: str,
    noises: int = 0,
    z: float | None = None,
) -> Declaration:
    theorem = sizing.theorem
    unprotected: tuple[str, ...] = NEVER_COVERED
    assumptions = [_CALLER_CLAIM]
    if theorem is not None:
        assumptions = [_SEED_CLAIM]
        if theorem.scopes:
            unprotected = theorem.not_covered
            assumptions = [f"theorem {theorem.id} is read at scope {terms.scope!r}"]
            if theorem.composition(terms.scope) == "nothing" and not sizing.exact:
                assumptions.append(
                    f"no subject makes more than {terms.requests_per_subject} deletion"
                    " request(s), records deleted without an id being different"
                    " subjects'"
                )
    return Declaration(
        f"{name} (mode {sizing.mode}, scope {terms.scope})",
        Cost((Fixed(Erasure(), event),)),
        sampler_distance=noises * sampler_distance(sizing.dim, LARGEST_SCALE),
        unprotected=unprotected,
        assumptions=tuple(assumptions),
        fingerprint="" if z is None else noise_fingerprint(z),
        interactive=z is not None,
    )
