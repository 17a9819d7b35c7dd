"""What an attacker gains: by brute force on finite mechanisms, and for every engine."""

import itertools
import math

import numpy as np
import pytest

from demur import Ball, Budget, Erasure, Filter, Ledger, ReplaceOne
from demur.audit.attacks import AttackGains, attack_gains, gains_of_entry
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Repeated
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.mechanisms import BPM, Gaussian
from demur.testing.audit_suite import defaults
from demur.testing.examples import subjects_of
from demur.testing.subject import Subject
from tests.families import thinned

RATES = (0.0, 0.001, 0.05, 0.2, 0.5, 0.9)


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def exact_pairs(laws, base):
    """Every corner of the profile of a finite mechanism, in both directions."""
    ratios = [abs(math.log(a / b)) for law in laws for a, b in zip(law, base)]  # noqa: B905
    return tuple(
        (e, max(max(hockey_stick(p, base, e), hockey_stick(base, p, e)) for p in laws))
        for e in sorted({0.0, *ratios})
    )


def best_test(there, absent, rate):
    """True positives of the most powerful test, by filling up the likeliest outputs."""
    order = np.argsort(-there / absent)
    left, found = rate, 0.0
    for output in order:
        share = min(1.0, left / absent[output])
        found += share * there[output]
        left -= share * absent[output]
        if left <= 0:
            break
    return found


def best_guess(laws, prior):
    """Success of the maximum a posteriori among candidates that all have a law."""
    return float((np.asarray(prior)[:, None] * laws).max(axis=0).sum())


def random_laws(rng, candidates, outputs):
    laws = rng.dirichlet(np.full(outputs, 0.7), candidates + 1) + 1e-4
    laws /= laws.sum(axis=1, keepdims=True)
    return laws[1:], laws[0]


def broken_bounds(change):
    """How many of many finite mechanisms exceed bounds from changed profiles."""
    rng, beyond = np.random.default_rng(0), 0
    for _ in range(60):
        laws, base = random_laws(rng, int(rng.integers(1, 5)), int(rng.integers(2, 7)))
        gains = AttackGains(change(exact_pairs(laws, base)), "x")
        prior = rng.dirichlet(np.ones(len(laws)))
        tests = [
            best_test(law, base, rate) - gains.true_positives(rate)
            for law, rate in itertools.product(laws, RATES)
        ]
        tests += [
            best_test(base, law, rate) - gains.true_positives(rate)
            for law, rate in itertools.product(laws, RATES)
        ]
        advantage = max(hockey_stick(law, base, 0.0) for law in laws)
        tests.append(advantage - gains.membership_advantage)
        tests.append(best_guess(laws, prior) - gains.identification(blind=prior.max()))
        equal = np.full(len(laws), 1 / len(laws))
        if len(laws) > 1:
            named = gains.identification(candidates=len(laws))
            tests.append(best_guess(laws, equal) - named)
        beyond += max(tests) > 1e-9
    return beyond


def test_no_finite_mechanism_exceeds_the_bounds_of_its_profile():
    assert broken_bounds(lambda pairs: pairs) == 0
    # Twins: epsilons a tenth too small, deltas a tenth too small.
    assert broken_bounds(lambda pairs: tuple((0.9 * e, d) for e, d in pairs)) > 50
    assert broken_bounds(lambda pairs: tuple((e, 0.9 * d) for e, d in pairs)) > 50


def test_a_mechanism_that_is_its_own_mirror_reaches_the_bounds():
    law = np.array([0.5, 0.3, 0.15, 0.05])
    gains = AttackGains(exact_pairs(law[None], law[::-1]), "x")
    for rate in (*RATES, 0.03, 0.6):
        assert gains.true_positives(rate) == pytest.approx(
            best_test(law, law[::-1], rate), abs=1e-9
        )
    assert gains.membership_advantage == pytest.approx(0.6)


def test_a_ledger_of_several_kinds_has_bounds_above_each_of_its_entries():
    unit = ReplaceOne()
    near = Ball(0.2, space="cube")
    budgets = {unit: Budget(60.0, 1e-3), near: Budget(60.0, 1e-3)}
    ledger = Ledger(budgets, filter=Filter.gaussian(blocks=0.5))
    sampled = Repeated(PoissonGaussian(0.1, 2.0, "replace_one"), 20)
    for declared in (
        Gaussian(4.0, {unit: 1.0}).declaration(),
        BPM(1.0, 0.3, 1).declaration(),
        Declaration("a plan", Cost((Fixed(unit, sampled),))),
    ):
        ledger.paid(declared, label=declared.name)
    for at in (unit, near):
        whole = attack_gains(ledger, at)
        for entry in ledger.entries():
            alone = dict(gains_of_entry(entry)).get(at)
            for rate in (0.001, 0.01, 0.1):
                least = rate if alone is None else alone.true_positives(rate)
                # A mixed profile has few points: it is above by more than they miss.
                assert rate <= least * (1 + 1e-9)
                assert least <= whole.true_positives(rate) * (1 + 1e-6) <= 1.0 + 1e-5
        assert whole.to_json()["true_positives"]["0.01"] == whole.true_positives(0.01)


SPENDERS = [
    candidate
    for candidate in defaults.spenders()
    if not candidate.name.startswith("demur.compat.")
]
EXAMPLES = [
    subject
    for candidate in SPENDERS
    for subject in subjects_of(candidate)
    if isinstance(subject, Subject)
]


@pytest.mark.slow
@pytest.mark.parametrize("subject", thinned(EXAMPLES, 4), ids=lambda s: s.name)
def test_every_entry_that_an_engine_writes_has_bounds(subject):
    found = 0
    for entry in subject.sample.ledger.entries():
        for unit, gains in gains_of_entry(entry):
            found += 1
            for rate in (0.001, 0.1):
                assert rate <= gains.true_positives(rate) <= 1.0
            assert 0.0 <= gains.membership_advantage <= 1.0
            assert unit.describe() in gains.statement()
    assert found
    whole = attack_gains(subject.sample.ledger, subject.unit)
    assert whole.true_positives(0.01) >= 0.01


def test_every_engine_is_among_the_examples():
    engines = {candidate.name.split(".")[1] for candidate in SPENDERS}
    assert engines >= {"convex", "cluster", "training", "unlearning", "tuning"}
    assert any(isinstance(subject.unit, Erasure) for subject in EXAMPLES)


def test_no_bound_is_below_a_guess_that_saw_nothing():
    """Also where it is so small that 1 - (1 - x) would be 0."""
    for pair in ((0.0, 0.0), (1e-18, 0.0), (0.0, 1e-18)):
        gains = AttackGains((pair,), "x")
        for blind in (1e-30, 1e-17, 1e-12, 1e-9):
            assert gains.identification(blind=blind) >= blind
    assert gains.reconstruction(within=1e-3, of=1.0, dimension=10) >= 1e-30


def test_the_bounds_of_a_ledger_say_what_they_leave_out():
    """Deletions have a cost of their own, which is not part of the other bounds."""
    at = {unit: Budget(50.0, 1e-5) for unit in (ReplaceOne(), Erasure())}
    ledger = Ledger(at)
    for unit, multiplier in zip(at, (10.0, 0.5), strict=True):
        told = Cost((Fixed(unit, GaussianEvent(multiplier)),))
        ledger.paid(Declaration("a release", told), label="x")
    kept, deleted = (attack_gains(ledger, unit) for unit in at)
    assert "(but not from 1 entry of deletions, without" in kept.statement()
    assert "(but not from 1 entry not of deletions, without" in deleted.statement()
    assert kept.membership_advantage < 0.05 < 0.6 < deleted.membership_advantage
    alone = attack_gains(ledger.entries()[0], ReplaceOne())
    assert "but not" not in alone.statement() and alone.pairs == kept.pairs
