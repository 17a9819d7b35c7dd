"""One-run audits: closed forms, a peer, what is attainable, and twins."""

import math

import numpy as np
import pytest
from jax_privacy import auditing as peer
from scipy import special, stats

from demur import gaussian_mu
from demur.audit import Claim, audit_one_run
from demur.audit.confidence import epsilon_of_mu
from demur.audit.one_run.guesses import (
    Guesses,
    approximate_curve,
    classical_p_value,
    epsilon_one_run,
    gaussian_curve,
    guess,
    guess_sizes,
    mu_one_run,
    refutes_curve,
)
from demur.core.accounting.events import GaussianEvent, Pure
from tests.audit.power import DELTA, canary_scores, gaussian_claim
from tests.families import thinned

CASES = [
    (1000, 1000, 600, 0.05, 1e-5),
    (1000, 200, 180, 0.05, 1e-5),
    (1000, 300, 170, 0.05, 1e-4),
    (5000, 5000, 4000, 0.01, 1e-6),
    (500, 50, 45, 0.01, 1e-3),
    (300, 64, 64, 1e-6, 1e-9),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "count", "correct", "alpha", "delta"), thinned(CASES, 2, keep=(5,))
)
def test_agrees_with_a_peer(m, count, correct, alpha, delta):
    guesses = Guesses(m, count, correct)
    for epsilon in (0.1, 1.0, 3.0):
        theirs = peer._one_run_p_value(m, count, correct, epsilon, delta)
        ours = classical_p_value(guesses, epsilon, delta)
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)
    ours = epsilon_one_run(guesses, alpha=alpha, delta=delta)
    theirs = peer._epsilon_one_run(0, m, count, correct, alpha, delta)
    assert ours == pytest.approx(theirs, abs=2e-6)
    mu = mu_one_run(guesses, alpha=alpha)
    theirs = peer._epsilon_one_run_fdp(1e-9, m, count, correct, alpha, delta)
    assert epsilon_of_mu(mu, delta) == pytest.approx(theirs, abs=4e-6)


def test_closed_forms_of_one_canary():
    """The best guess of one coin is right with probability Phi(mu / 2)."""
    one = Guesses(1, 1, 1)
    for mu in (0.1, 1.0, 3.0):
        p = float(special.ndtr(mu / 2))
        assert not refutes_curve(one, gaussian_curve(mu), p * (1 - 1e-6))
        assert refutes_curve(one, gaussian_curve(mu), p * (1 + 1e-6))
    for epsilon, delta in ((1.0, 0.0), (0.5, 0.1)):
        p = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
        curve = approximate_curve(epsilon, delta)
        assert not refutes_curve(one, curve, p * (1 - 1e-6))
        assert refutes_curve(one, curve, p * (1 + 1e-6))
        assert classical_p_value(one, epsilon, delta) >= p


def test_curves_invert_the_trade_off():
    """g(F(x)) = x, with F = 1 - f written down independently."""
    x = np.linspace(1e-4, 0.9, 50)
    for mu in (0.0, 0.5, 2.0):
        grown = special.ndtr(special.ndtri(x) + mu)
        back = [gaussian_curve(mu)(float(y)) for y in grown]
        assert back == pytest.approx(x, rel=1e-6)
    for epsilon, delta in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.05)):
        e = math.exp(epsilon)
        grown = np.minimum(e * x + delta, 1 - (1 - delta - x) / e)
        inside = (grown < 1) & (x < 1 - delta)
        back = [approximate_curve(epsilon, delta)(float(y)) for y in grown[inside]]
        assert back == pytest.approx(x[inside], rel=1e-9)


# -- what an honest mechanism attains is never refuted ---------------------------------


def attained(m, correct, p):
    """P(W >= correct) with m independent canaries, each guessed rightly with p."""
    return float(stats.binom.sf(correct - 1, m, p))


SIZES = [(2, 2), (5, 4), (20, 15), (100, 60), (100, 95), (400, 300)]


@pytest.mark.parametrize(("m", "correct"), SIZES)
def test_what_is_attained_is_not_refuted(m, correct):
    guesses = Guesses(m, m, correct)
    for mu in (0.3, 1.0, 2.0):
        tau = attained(m, correct, float(special.ndtr(mu / 2)))
        assert not refutes_curve(guesses, gaussian_curve(mu), tau * (1 - 1e-7))
    for epsilon in (0.3, 1.0, 2.0):
        tau = attained(m, correct, float(special.expit(epsilon)))
        assert not refutes_curve(
            guesses, approximate_curve(epsilon, 0.0), tau * (1 - 1e-7)
        )
        assert classical_p_value(guesses, epsilon) == pytest.approx(tau)


def sabotaged(guesses, curve, tau):
    """The recursion with its weights one step off."""
    m, r, c = guesses.canaries, guesses.count, guesses.correct
    right, wrong = tau * c / m, tau * (r - c) / m
    for i in range(c - 1, -1, -1):
        least = curve(right)
        if least <= wrong:
            return False
        right += (i + 1) / (r - i) * (least - wrong)
        wrong = least
    return right + wrong > r / m


def test_a_recursion_one_step_off_refutes_the_honest():
    refuted = [
        sabotaged(
            Guesses(m, m, c),
            approximate_curve(e, 0.0),
            attained(m, c, float(special.expit(e))) * (1 - 1e-7),
        )
        for m, c in SIZES
        for e in (0.3, 1.0, 2.0)
    ]
    assert any(refuted)


@pytest.mark.slow
@pytest.mark.parametrize("m", [10, 100])
def test_the_classical_bound_covers_exactly(m):
    """Randomised response attains it: W is binomial, so coverage is enumerated."""
    alpha = 0.05
    for epsilon in (0.2, 1.0, 2.5):
        p = float(special.expit(epsilon))
        bounds = np.array(
            [epsilon_one_run(Guesses(m, m, v), alpha=alpha) for v in range(m + 1)]
        )
        chances = stats.binom.pmf(np.arange(m + 1), m, p)
        assert chances[bounds > epsilon].sum() <= alpha
        assert chances[np.append(bounds[1:], 99.0) > epsilon].sum() > alpha


@pytest.mark.slow
@pytest.mark.parametrize("form", thinned(["classical", "f-DP", "GDP"], 2))
def test_bounds_cover_gaussian_canaries(form):
    """At 90%, for the shared alpha of several numbers of guesses too."""
    claim, repeats = gaussian_claim(1.0), 60
    mu = gaussian_mu(1.0, DELTA)
    missed = sum(
        audit_one_run(
            *canary_scores(mu, 500, seed), claim, form=form, alpha=0.1
        ).refuted
        for seed in range(repeats)
    )
    assert missed <= stats.binom.isf(1e-6, repeats, 0.1)
    if form == "GDP":  # exact, so about a tenth must miss
        assert missed >= 1


# -- the audit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "claimed", "real", "canaries"),
    [
        ("GDP", 4.0, 8.0, 2000),
        ("GDP", 1.0, 2.0, 10_000),
        ("f-DP", 1.0, 8.0, 2000),
        ("classical", 1.0, 8.0, 2000),
    ],
)
def test_too_much_loss_is_refuted_and_the_claim_is_not(form, claimed, real, canaries):
    claim = gaussian_claim(claimed)
    if form == "classical":  # its p-value at 1e-5 stops at 2 m delta / v
        claim = Claim.of((claimed, 1e-12))
    for epsilon, refuted in ((claimed, False), (real, True)):
        scores_and_coins = canary_scores(gaussian_mu(epsilon, DELTA), canaries, 3)
        result = audit_one_run(*scores_and_coins, claim, form=form)
        assert result.refuted is refuted
        assert result.runs == canaries and result.level == "canaries"


def test_a_pure_claim_is_refuted_by_randomised_response():
    rng = np.random.default_rng(0)
    coins = rng.random(4000) < 0.5

    def scores(epsilon):
        told = rng.random(4000) < special.expit(epsilon)
        return np.where(told, coins, ~coins) + 1e-9 * rng.random(4000)

    for epsilon, refuted in ((1.0, False), (2.0, True)):
        for form in ("classical", "f-DP"):
            result = audit_one_run(scores(epsilon), coins, Pure(1.0), form=form)
            assert result.refuted is refuted
            assert result.lower_bound > 0.6


def test_guesses_are_the_extremes():
    coins = np.array([True, True, False, False, True, False])
    scores = np.array([9.0, 8.0, 7.0, -1.0, -2.0, -3.0])
    assert guess(scores, coins, 2) == Guesses(6, 2, 2)
    assert guess(scores, coins, 4) == Guesses(6, 4, 3)
    assert guess(scores, coins, 6) == Guesses(6, 6, 4)
    assert guess(-scores, coins, 6) == Guesses(6, 6, 2)
    assert guess_sizes(200) == (200, 100, 50)
    assert guess_sizes(5) == (5,)


def test_more_right_guesses_show_more():
    for form in ("classical", "f-DP"):
        bounds = [
            epsilon_one_run(Guesses(200, 200, v), alpha=0.05, delta=1e-6, form=form)
            for v in range(100, 201, 10)
        ]
        assert bounds == sorted(bounds) and bounds[0] == 0.0 and bounds[-1] > 3.0
    # The null grows with epsilon: what refutes a large epsilon refutes every smaller.
    values = [
        classical_p_value(Guesses(500, 100, 90), e, 1e-4) for e in np.linspace(0, 6, 60)
    ]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2, 3, 1), "count <= canaries"),
        ((3, 2, 3), "count <= canaries"),
        ((3, 2, -1), "count <= canaries"),
        ((0, 0, 0), "canaries"),
    ],
)
def test_guesses_must_be_possible(arguments, error):
    with pytest.raises(ValueError, match=error):
        Guesses(*arguments)


def test_bad_arguments_are_refused():
    scores, coins = np.arange(8.0), np.arange(8) % 2 == 0
    claim = Claim.of(GaussianEvent(1.0))
    with pytest.raises(TypeError, match="one bool"):
        audit_one_run(scores, np.ones(8), claim)
    with pytest.raises(ValueError, match="8 scores for 7 coins"):
        audit_one_run(scores, coins[:7], claim)
    with pytest.raises(ValueError, match="finite"):
        audit_one_run(scores * math.nan, coins, claim)
    with pytest.raises(ValueError, match="for Gaussian claims"):
        audit_one_run(scores, coins, Pure(1.0), form="GDP")
    with pytest.raises(ValueError, match="form"):
        audit_one_run(scores, coins, claim, form="other")
    with pytest.raises(ValueError, match="count"):
        audit_one_run(scores, coins, claim, guesses=9)
    with pytest.raises(ValueError, match="alpha"):
        audit_one_run(scores, coins, claim, alpha=1.5)
    with pytest.raises(ValueError, match="delta"):
        classical_p_value(Guesses(5, 5, 5), 1.0, -0.5)
