"""The best of a secret number of runs: its exact law on finite runs, and the bounds.

Finite mechanisms have a law of the winner that can be summed exactly, in fractions.
Every bound that is shipped is compared with it, and so are four ways to get it wrong.
"""

import json
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from demur.core import accounting
from demur.core.accounting import composition, selection
from demur.core.accounting import repetitions as laws
from demur.core.accounting.events import (
    ApproxDP,
    BestOf,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
    for_group,
    from_json,
    to_json,
)
from demur.core.accounting.repetitions import (
    BinomialRepetitions,
    NegativeBinomialRepetitions,
    PoissonRepetitions,
)

LAWS = [
    NegativeBinomialRepetitions.of_mean(4.0, 0.0, limit=12),
    NegativeBinomialRepetitions.of_mean(3.0, 1.0, limit=8),
    NegativeBinomialRepetitions(-0.5, 0.2, limit=6),
    PoissonRepetitions(3.0, limit=7),
    BinomialRepetitions(5, 0.5),
    BinomialRepetitions(1, 0.3),
]
EPSILONS = np.linspace(0.0, 6.0, 61)


def generating(law, x):
    """f(x), exactly, for the weights that K is drawn by."""
    sums = laws._integers(law)
    weights = [b - a for a, b in zip((0, *sums), sums, strict=False)]
    return sum(Fraction(w, sums[-1]) * x**k for k, w in enumerate(weights))


def winner(law, q):
    """The exact law of what is released: nothing, or each outcome, worst first."""
    edges = [Fraction(0)]
    for mass in q:
        edges.append(edges[-1] + mass)
    values = [generating(law, x) for x in edges]
    return [values[0], *(b - a for a, b in zip(values, values[1:], strict=False))]


def stick(p, q, epsilon):
    """The larger hockey stick of the two directions; e^epsilon is rounded."""
    ratio = Fraction(math.exp(epsilon))
    both = [
        sum(max(Fraction(0), a - ratio * b) for a, b in zip(one, two, strict=True))
        for one, two in ((p, q), (q, p))
    ]
    return float(max(both))


def pair(rng, hole):
    """Two random laws on a few outcomes, as fractions; one may lack an outcome."""
    k = int(rng.integers(2, 6))
    p = rng.integers(1, 1000, k)
    q = np.maximum(p * np.exp(rng.normal(0, rng.choice([0.2, 1.0, 2.0]), k)), 1)
    q = q.astype(int)
    if hole:
        q[int(rng.integers(k))] = 0
        q[0] += 1 if not q.any() else 0
    total = [int(p.sum()), int(q.sum())]
    return tuple(
        [Fraction(int(v), n) for v in each]
        for each, n in zip((p, q), total, strict=True)
    )


def bounded_by(p, q):
    deltas = np.array([stick(p, q, e) for e in EPSILONS])
    return selection.BoundedTest.of(EPSILONS, deltas)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__[:8])
def test_the_bounds_hold_for_the_exact_law_of_the_winner(law):
    rng = np.random.default_rng(1)
    closest = 0.0
    for trial in range(12):
        p, q = pair(rng, hole=trial % 3 == 0)
        power = bounded_by(p, q)
        extra = selection.largest_ratio(law, power)
        best = winner(law, p), winner(law, q)
        for epsilon in (0.0, 0.5, 1.5):
            bound = law.mean * stick(p, q, epsilon)
            exact = stick(*best, epsilon + extra)
            assert exact <= bound * (1 + 1e-9)
            if bound > 1e-6:
                closest = max(closest, exact / bound)
        if all(q):
            for order in (2, 5):
                runs = renyi(p, q, order)
                more = selection.largest_ratio(law, power, order)
                bound = np.logaddexp(
                    (order - 1) * (runs + more), math.log(law.nothing or 1e-300)
                ) / (order - 1)
                assert renyi(*best, order) <= bound + 1e-9
    assert closest > 0.05  # the comparison has power


def renyi(p, q, order):
    sums = [
        sum(a**order * b ** (1 - order) for a, b in zip(one, two, strict=True) if a)
        for one, two in ((p, q), (q, p))
    ]
    return math.log(float(max(sums))) / (order - 1)


def test_the_earliest_of_equal_scores_is_as_good_as_a_random_one():
    law = BinomialRepetitions(3, 0.5)
    q = {"bad": Fraction(1, 2), "a": Fraction(1, 3), "b": Fraction(1, 6)}
    score = {"bad": 0, "a": 1, "b": 1}
    found = dict.fromkeys(q, Fraction(0))
    for k in range(1, 4):
        weight = Fraction(math.comb(3, k), 8)
        for runs in product(q, repeat=k):
            best = max(runs, key=lambda name: score[name])  # the first of equals
            found[best] += weight * math.prod(q[name] for name in runs)
    both = generating(law, Fraction(1)) - generating(law, Fraction(1, 2))
    assert found["a"] == both * Fraction(2, 3) and found["b"] == both / 3


@pytest.mark.parametrize(("eta", "mean"), [(-0.5, 3.0), (0.0, 10.0), (1.0, 4.0)])
def test_pure_runs_have_the_closed_form_and_stay_below_the_known_bound(eta, mean):
    law = NegativeBinomialRepetitions.of_mean(mean, eta)
    for epsilon in (0.01, 1.0, 4.0):
        e = math.exp(epsilon)
        closed = epsilon + (1 + eta) * math.log((e + law.gamma) / (1 + law.gamma * e))
        price = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
        assert price == pytest.approx(closed, rel=3e-4) and price <= (2 + eta) * epsilon


def worst_two_outcomes(law, epsilon):
    """The largest loss of the winner of randomised response, over where it is cut."""
    a = Fraction(math.exp(-epsilon)).limit_denominator(10**9)
    worst = 0.0
    for cut in range(1, 40):
        p = Fraction(cut, 40) * a
        q = min(p / a, 1 - a * (1 - p))
        one, two = winner(law, [1 - p, p]), winner(law, [1 - q, q])
        losses = [
            abs(math.log(y / x)) for x, y in zip(one, two, strict=True) if x and y
        ]
        worst = max(worst, *losses)
    return worst


def test_a_fixed_number_of_runs_breaks_the_price_of_a_random_one():
    epsilon, law = 1.0, NegativeBinomialRepetitions.of_mean(10.0, 1.0, limit=60)
    claimed = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
    assert worst_two_outcomes(law, epsilon) <= claimed

    class Always(BinomialRepetitions):  # ten runs, whatever happens
        @property
        def weights(self):
            return np.eye(11)[10]

    assert worst_two_outcomes(Always(10, 0.5), epsilon) > claimed


def test_the_price_of_the_winner_alone_is_refuted():
    law = NegativeBinomialRepetitions.of_mean(10.0, 1.0, limit=60)
    assert worst_two_outcomes(law, 1.0) > 1.5 * 1.0


def test_a_score_that_is_not_private_is_refuted():
    """Outputs by randomised response, scored by the exact bit they answer for."""
    epsilon, law = 0.1, NegativeBinomialRepetitions.of_mean(10.0, 1.0, limit=60)
    claimed = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
    right = Fraction(math.exp(epsilon) / (1 + math.exp(epsilon)))
    # Selecting on "is it the true answer" ranks the true answer on top.
    true = winner(law, [1 - right, right])  # the world of "yes": no < yes
    other = winner(law, [1 - right, right])  # the world of "no": yes < no
    yes, no = true[2], other[1]
    assert math.log(yes / no) > 3 * claimed


def test_drawing_anew_after_a_crash_is_refuted():
    """A run may crash, with a chance that epsilon allows; a crash is the best outcome.

    Resumed or left spent, the search shows once whether there was a crash: that is an
    outcome, and inside the price. Drawn anew until it ends, the number of crashes is
    seen, and its loss has no bound.
    """
    epsilon, law = 0.5, NegativeBinomialRepetitions.of_mean(4.0, 1.0, limit=30)
    claimed = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
    crash = Fraction(1, 10)
    more = crash * Fraction(math.exp(epsilon)).limit_denominator(1000)
    once = [winner(law, [1 - c, c])[2] for c in (crash, more)]
    assert 0 < math.log(once[1] / once[0]) <= claimed
    assert 10 * math.log(once[1] / once[0]) > claimed  # ten crashes in a row


def test_drawing_anew_after_a_crash_is_refuted_by_what_it_releases_alone():
    """Nobody sees the crashes: the release that follows costs too much all the same.

    It has the law of the winner given that no run crashed. A crash and the worst
    outcome are rarer in the second world; of the first the search shows nothing.
    """
    epsilon, law = 0.5, NegativeBinomialRepetitions.of_mean(4.0, 1.0, limit=30)
    claimed = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
    a = Fraction(math.exp(-epsilon)).limit_denominator(10**6)
    worst, both = Fraction(1, 1000), 1 / (1 + a)
    first = [worst, 1 - both, both - worst]  # the last one, a crash, wins
    second = [worst * a, 1 - both * a, (both - worst) * a]
    ratios = [x / y for x, y in zip(first, second, strict=True)]
    assert all(a <= ratio <= 1 / a for ratio in ratios)  # runs are pure
    laws_of = [winner(law, q) for q in (first, second)]
    once = [each[1] for each in laws_of]
    anew = [each[1] / (1 - each[3]) for each in laws_of]
    losses = [abs(math.log(x / y)) for x, y in (once, anew)]
    assert losses[0] <= claimed < losses[1] - 0.1


def test_gaussian_runs_cost_less_than_the_renyi_bound_of_dp_accounting():
    dpa = pytest.importorskip("dp_accounting")
    for law in (
        NegativeBinomialRepetitions.of_mean(10.0, 1.0),
        PoissonRepetitions(5.0),
    ):
        event = BestOf((GaussianEvent(4.0),), law)
        theirs = dpa.rdp.RdpAccountant()
        theirs.compose(accounting.to_dp_event(event))
        own = accounting.price(event, 1e-6)
        assert accounting.price(GaussianEvent(4.0), 1e-6) < own
        assert own < theirs.get_epsilon(1e-6)
        back = accounting.from_dp_event(accounting.to_dp_event(event))
        assert accounting.price(back, 1e-6) == pytest.approx(own, rel=1e-3)


def test_an_imported_search_costs_what_it_does_without_a_limit():
    dpa = pytest.importorskip("dp_accounting")
    theirs = dpa.dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), 10, 1)
    law = accounting.from_dp_event(theirs).repetitions
    e, own = math.exp(20.0), NegativeBinomialRepetitions.of_mean(10.0, 1.0)
    exact = 20.0 + 2.0 * math.log((e + law.gamma) / (1 + law.gamma * e))
    price, cut = (accounting.price(BestOf((Pure(20.0),), k), 0.0) for k in (law, own))
    assert cut < exact * (1 - 1e-7) < exact <= price < exact * (1 + 1e-6)
    with pytest.raises(ValueError, match="smaller mean"):
        accounting.from_dp_event(
            dpa.dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), 900, 0)
        )


@pytest.mark.parametrize(
    "law", [lambda: BinomialRepetitions(2000, 0.9), lambda: PoissonRepetitions(1000.0)]
)
def test_a_law_that_hardly_ever_runs_once_is_refused_in_words(law):
    with pytest.raises(ValueError, match="exactly one run"):
        law()


def test_the_price_of_gaussian_runs_holds_for_a_gaussian_cut_to_outcomes():
    """Outcomes are cells of a Gaussian, scored by their place: an exact finite run."""
    law = NegativeBinomialRepetitions.of_mean(6.0, 1.0, limit=25)
    event, delta = BestOf((GaussianEvent(1.0),), law), 1e-3
    cuts = np.linspace(-4, 5, 25)
    laws_of = []
    for shift in (0.0, 1.0):
        cells = np.diff(np.concatenate([[0.0], norm.cdf(cuts - shift), [1.0]]))
        whole = [Fraction(float(c)).limit_denominator(10**12) for c in cells]
        laws_of.append(winner(law, [c / sum(whole) for c in whole]))
    epsilon = accounting.price(event, delta)
    exact = stick(laws_of[0], laws_of[1], epsilon)
    assert exact <= delta
    assert stick(laws_of[0], laws_of[1], 0.6 * epsilon) > delta  # not far off


@pytest.fixture
def few_dots(monkeypatch):
    """Any dots are a bound; few of them take less time, and bound a little less."""
    monkeypatch.setattr(composition, "_SEARCH_DOTS", 256)


def test_alternatives_cost_the_larger_one_and_compose(few_dots):
    law = PoissonRepetitions(3.0)
    small, large = GaussianEvent(8.0), GaussianEvent(4.0)
    both = accounting.price(BestOf((small, large), law), 1e-6)
    assert both == pytest.approx(
        accounting.price(BestOf((large,), law), 1e-6), rel=1e-3
    )
    one = BestOf((large,), law)
    two = accounting.price([one, one], 1e-6)
    assert both < two <= 2 * accounting.price(one, 5e-7)
    assert accounting.price([one, Pure(0.1)], 1e-6) <= both + 0.1 + 1e-3
    assert 0 < accounting.delta_of(one, both) <= 1.01e-6
    pairs = BestOf((ApproxDP(0.5, 1e-8),), law)
    assert 0.5 < accounting.price(pairs, 1e-6) < math.inf
    assert math.isinf(accounting.price(pairs, 1e-9))


class NothingForgotten(PoissonRepetitions):
    """The twin: no run at all is left out of the distribution of a search."""

    nothing = 0.0


@pytest.mark.parametrize("delta", [1e-6, 1e-4])
def test_a_search_that_hardly_ever_runs_adds_to_what_it_is_composed_with(delta):
    """Of a pure event with epsilon 1, known in closed form, nothing may be lost."""
    alone = math.log(math.e - delta * (1 + math.e))
    for law in (PoissonRepetitions(0.01), BinomialRepetitions(1, 0.01)):
        both = [BestOf((Pure(1e-6),), law), Pure(1.0)]
        assert alone <= accounting.price(both, delta) < alone + 1e-3
        exact = (math.e - math.exp(0.5)) / (1 + math.e)
        assert exact <= accounting.delta_of(both, 0.5) < exact + 1e-3
    twin = [BestOf((Pure(1e-6),), NothingForgotten(0.01)), Pure(1.0)]
    assert accounting.price(twin, delta) < alone


def test_searches_of_pairs_cost_little_more_than_those_of_pure_runs(few_dots):
    law = NegativeBinomialRepetitions.of_mean(10.0, 1.0)
    pairs, pure = BestOf((ApproxDP(0.5, 1e-9),), law), BestOf((Pure(0.5),), law)
    one = accounting.price(pure, 0.0)
    assert one <= accounting.price(pairs, 1e-6) < 1.001 * one
    two = accounting.price([pairs, pairs], 1e-6)
    assert one < two <= 2.001 * one
    # Delta that nothing takes away: the searches cost it, each once.
    assert math.isinf(accounting.price([pairs, pairs], 1e-8))
    lost = 2e-9 * law.mean
    delta = accounting.delta_of([pairs, pairs], 2.001 * one)
    assert (1 - 1e-6) * lost < delta < 1.5 * lost


def test_a_search_is_plain_data():
    event = BestOf(
        (GaussianEvent(2.0), Repeated(PoissonGaussian(0.1, 1.0), 5)), LAWS[1]
    )
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert for_group(BestOf((Pure(0.5),), LAWS[0]), 3) == BestOf((Pure(1.5),), LAWS[0])
    for law in LAWS:
        assert laws.law_from_json(laws.law_to_json(law)) == law
    broken = to_json(event)
    broken["event"]["repetitions"]["law"] = "fixed"
    with pytest.raises(ValueError, match="not a law"):
        from_json(broken)
    with pytest.raises(ValueError, match="inside of a search"):
        BestOf((event,), LAWS[0])


def test_the_number_of_runs_is_drawn_exactly_by_its_weights():
    law = BinomialRepetitions(2, 0.5)
    sums = laws._integers(law)
    assert [Fraction(s, sums[-1]) for s in sums] == [Fraction(1, 4), Fraction(3, 4), 1]
    counts = np.zeros(3, int)
    for byte in range(256):  # every byte once: exact frequencies
        counts[laws.draw(law, lambda n, b=byte: bytes([b] * n))] += 1
    assert counts.tolist() == [64, 128, 64]
    seen = {laws.uniform(5, lambda n, b=b: bytes([b] * n)) for b in range(0, 160, 32)}
    assert seen == {0, 1, 2, 3, 4}


def test_a_limit_lowers_mean_and_price():
    free = NegativeBinomialRepetitions.of_mean(10.0, 1.0)
    cut = NegativeBinomialRepetitions(free.eta, free.gamma, limit=8)
    assert cut.mean < free.mean and len(cut.weights) == 9
    prices = [
        accounting.price(BestOf((GaussianEvent(4.0),), law), 1e-6)
        for law in (cut, free)
    ]
    assert prices[0] < prices[1]


def test_settings_in_turn_cost_more_than_settings_drawn_at_random():
    """Every setting once before any comes a second time: the price does not hold.

    Two settings, K of the logarithmic law. Drawn at random, the runs are of one
    mixture, and the bound of it holds. In turn (the first of the two at random), the
    second setting holds the top of the first one back more often than its share: the
    exact loss exceeds what the search would have paid.
    """
    epsilon, law = 1.0, NegativeBinomialRepetitions.of_mean(4.0, 0.0, limit=40)
    claimed = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
    a = Fraction(math.exp(-epsilon)).limit_denominator(10**6)
    rare = Fraction(1, 10**6)  # the top outcome of the first setting
    right = 1 / (1 + a)  # of the second one's being below it

    def top(first, second, in_turn):
        """The chance that the first setting's top outcome is released."""
        sums = laws._integers(law)
        weights = [b - c for c, b in zip((0, *sums), sums, strict=False)]
        found = Fraction(0)
        for k, weight in enumerate(weights):
            if in_turn:  # k // 2 runs of each; of an odd k one of the two has one more
                counts = [(k // 2, k - k // 2), (k - k // 2, k // 2)]
                shares = [Fraction(1, 2)] * 2
            else:
                counts = [(i, k - i) for i in range(k + 1)]
                shares = [Fraction(math.comb(k, i), 2**k) for i in range(k + 1)]
            for share, (one, two) in zip(shares, counts, strict=True):
                best = (1 - (1 - first) ** one) * second**two
                found += Fraction(weight, sums[-1]) * share * best
        return found

    def loss(in_turn):
        # One world has the rare outcome more often, and is less often beaten.
        return math.log(top(rare, right, in_turn) / top(rare * a, right * a, in_turn))

    assert loss(in_turn=False) <= claimed < loss(in_turn=True) - 0.05


def released(law, q):
    """The law of the winner in floats, without cancellation, for many laws in turn."""
    upto = np.minimum(np.cumsum(q), 1.0)
    below = np.concatenate([[0.0], upto[:-1]])
    sums, powers, found = np.zeros(len(q)), np.ones(len(q)), np.zeros(len(q))
    for weight in law.weights[1:]:
        sums, powers = upto * sums + powers, powers * below
        found += weight * q * sums
    return np.concatenate([[law.weights[0]], found])


def pure_pair(logits, losses, epsilon):
    """P, and the Q that has these losses, moved until it sums to one."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    low, high = -2 * epsilon, 2 * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        total = p @ np.exp(np.clip(losses + middle, -epsilon, epsilon))
        low, high = (low, middle) if total > 1 else (middle, high)
    q = p * np.exp(np.clip(losses + low, -epsilon, epsilon))
    return p, q / q.sum()


def worst_share(law, epsilon, delta, rng, climbs):
    """The largest (exact / claimed) that climbing over runs of a profile finds.

    Runs are pure, or with `delta` pairs whose outcome gives the world away so often.
    """
    run = ApproxDP(epsilon, delta) if delta else Pure(epsilon)
    event, at = BestOf((run,), law), np.array([0.0, 0.5 * epsilon])
    claimed = [accounting.delta_of(event, e) for e in at]
    divergence = None if delta else accounting.search_divergence(event, 6)
    whole = None if delta else accounting.price(event, 0.0)

    def share(logits, losses, order):
        worlds = pure_pair(logits, losses, epsilon)
        if delta:
            own = ([delta, 0.0], [0.0, delta])
            worlds = [
                np.concatenate([(1 - delta) * w, o])[order]
                for w, o in zip(worlds, own, strict=True)
            ]
        one, two = (released(law, w) for w in worlds)
        both = ((one, two), (two, one))
        shares = [
            max(np.maximum(p - np.exp(e) * q, 0.0).sum() for p, q in both) / c
            for e, c in zip(at, claimed, strict=True)
        ]
        if not delta:
            seen = one > 0
            logs = np.log(one[seen]), np.log(two[seen])
            shares.append(np.abs(logs[0] - logs[1]).max() / whole)
            powers = [np.exp(6 * a - 5 * b).sum() for a, b in (logs, logs[::-1])]
            shares.append(math.log(max(powers)) / 5 / divergence)
        return max(shares)

    worst = 0.0
    for _ in range(climbs):
        n = int(rng.integers(2, 6))
        here = (
            rng.normal(0, rng.choice([0.5, 2.0]), n),
            rng.choice([-1.0, 1.0], n) * epsilon,
            rng.permutation(n + 2),
        )
        value = share(*here)
        for _ in range(40):
            losses = np.where(rng.random(n) < 0.1, -here[1], here[1])
            order = rng.permutation(n + 2) if rng.random() < 0.1 else here[2]
            other = here[0] + rng.normal(0, 0.3, n), losses, order
            if share(*other) > value:
                here, value = other, share(*other)
        worst = max(worst, value)
    return worst


@pytest.mark.deep
@pytest.mark.parametrize("delta", [0.0, 0.01])
@pytest.mark.parametrize("law", [*LAWS, PoissonRepetitions(0.05, limit=3)])
def test_climbing_over_finite_runs_never_exceeds_the_price(law, delta):
    rng = np.random.default_rng(7)
    shares = [worst_share(law, e, delta, rng, 30) for e in (0.1, 1.0, 3.0)]
    assert max(shares) <= 1 + 1e-9
    assert max(shares) > 0.9 or delta  # the climb gets near


@pytest.mark.deep
def test_climbing_refutes_half_of_what_the_choice_costs(monkeypatch):
    """The twin: the root of C."""
    whole = selection.largest_ratio

    def half(law, power, order=math.inf):
        return whole(law, power, order) / 2

    monkeypatch.setattr(selection, "largest_ratio", half)
    law = NegativeBinomialRepetitions.of_mean(5.0, 1.0, limit=40)  # priced nowhere else
    assert worst_share(law, 1.25, 0.0, np.random.default_rng(7), 10) > 1.05
