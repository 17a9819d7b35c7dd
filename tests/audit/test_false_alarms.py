"""False alarms: the statistical audits on correct mechanisms, 200 times over.

Every audit is designed to alarm falsely with probability at most 1e-6, so 200 repeats
of all of them expect 200 * len(AUDITS) * 1e-6 = 0.003 alarms: 0 is asked for.
That alone would also be met by audits that never alarm. So each is repeated at a
designed rate of 20%, where the alarms must be no more than a binomial count allows and,
for the audits whose level is exact, not far fewer either.
"""

import math

import numpy as np
import pytest
from scipy import stats

from demur import Ball, Seeded, gaussian_mu
from demur.audit import (
    Claim,
    audit,
    audit_one_run,
    audit_scores,
    independence_test,
    law_of,
    noise_test,
    shared_noise_test,
)
from demur.audit.distributions import bpm_radius, laplace, normal
from demur.audit.noise_tests import failures
from demur.audit.one_run.sampled_runs import refutes
from demur.core.accounting.events import (
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.mechanisms import BPM, Gaussian
from demur.testing.audit_suite.counting import batches_test, binomial_test, counts_test
from tests.audit.power import (
    DELTA,
    canary_scores,
    gaussian_audit,
    gaussian_claim,
    laplace_audit,
    sampled_scores,
    smaller_than_uniform,
)
from tests.audit.twins import (
    SIGMA,
    UNIT,
    bpm_reports,
    gaussian,
    key_of,
    released_many,
)

pytestmark = pytest.mark.deep

REPEATS = 200
LOOSE = 0.2  # the rate at which alarms are counted


def black_box_gaussian(seed, alpha):
    return audit(
        released_many(),
        (1.0, 0.0),
        Claim.of(gaussian(), unit=UNIT, score=float),
        runs=4000,
        many=True,
        alpha=alpha,
        random_state=seed,
    ).refuted


def black_box_gaussian_counts(seed, alpha):
    return gaussian_audit(1.0, 1.0, 4000, seed, how="counts", alpha=alpha).refuted


def black_box_laplace(seed, alpha):
    return laplace_audit(1.0, 1.0, 4000, seed, alpha=alpha).refuted


def black_box_bpm(seed, alpha):
    bpm = BPM(4.0, 0.5, 1)
    worlds = np.array([0.2]), np.array([0.6])
    sides = []
    for i, point in enumerate(worlds):
        reports = bpm_reports(bpm)(point, Seeded(2 * seed + i), 4000)
        ratio = bpm.log_density(worlds[0], reports) - bpm.log_density(
            worlds[1], reports
        )
        sides.append(ratio)
    claim = Claim.of(bpm, unit=Ball(0.4, space="cube"))
    pilot = sides[0][:2000], sides[1][:2000]
    return audit_scores(
        sides[0][2000:], sides[1][2000:], claim, pilot=pilot, alpha=alpha
    ).refuted


def randomised_response(seed, alpha):
    """The loss is the claim exactly: the hardest honest case."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + math.exp(-1.0))
    one, two = ((rng.random(4000) < q).astype(float) for q in (p, 1 - p))
    claim = Claim.of(Pure(1.0)).scored_by(float, 0.5)
    return audit_scores(one, two, claim, alpha=alpha).refuted


def one_run(form):
    def alarm(seed, alpha):
        scores_and_coins = canary_scores(gaussian_mu(1.0, DELTA), 1000, seed)
        return audit_one_run(
            *scores_and_coins, gaussian_claim(1.0), form=form, alpha=alpha
        ).refuted

    return alarm


NOISY = Gaussian(SIGMA, {UNIT: 1.0}, dimension=40_000)
LAW = law_of(NOISY)


def gaussian_noise(seed, alpha):
    draws = NOISY.apply(np.zeros(NOISY.dimension), key_of(Seeded(seed)))
    law = LAW
    # At a loose alpha the controls are beside the point: count the failures alone.
    if alpha > 1e-3:
        return bool(failures(draws, law, alpha))
    return noise_test(draws, law, alpha=alpha).refuted


def laplace_noise(seed, alpha):
    law = laplace(2.0)
    draws = law.quantile(np.random.default_rng(seed).random(80_000))
    return bool(failures(draws, law, alpha))


def bpm_noise(seed, alpha):
    bpm = BPM(8.0, 1.0, 2)
    point = np.full((60_000, 2), 0.5)
    radii = np.linalg.norm(bpm.apply(point, key_of(Seeded(seed))) - 0.5, axis=1)
    return bool(failures(radii[radii <= bpm.L], bpm_radius(bpm), alpha))


def independence(seed, alpha):
    draws = np.random.default_rng(seed).normal(size=(21_000, 3))
    return independence_test(draws, normal(1.0), alpha=alpha).refuted


PLAN = Repeated(PoissonGaussian(0.25, 4.0), 80)


def sampled_run(test):
    def alarm(seed, alpha):
        return refutes(*sampled_scores(PLAN, 1000, seed), PLAN, test, alpha)

    return alarm


# Whether the level is exact, so that loose alarms must come about as often as designed.
AUDITS = {
    "black box, Gaussian by shift": (black_box_gaussian, True),
    "black box, Gaussian by counts": (black_box_gaussian_counts, False),
    "black box, Laplace": (black_box_laplace, False),
    "black box, BPM": (black_box_bpm, False),
    "black box, randomised response": (randomised_response, False),
    "one run, classical": (one_run("classical"), False),
    "one run, f-DP": (one_run("f-DP"), False),
    "one run, GDP": (one_run("GDP"), True),
    "one run, plan's curve, f-DP": (sampled_run("f-DP"), False),
    "one run, plan's curve, counts": (sampled_run("counts"), False),
    "noise of the Gaussian": (gaussian_noise, False),
    "noise of Laplace": (laplace_noise, False),
    "radius of BPM": (bpm_noise, False),
    "independence": (independence, False),
}


@pytest.mark.parametrize("name", AUDITS)
def test_no_false_alarm_in_200_repeats(name):
    alarm, exact = AUDITS[name]
    assert sum(alarm(seed, 1e-6) for seed in range(REPEATS)) == 0
    loose = sum(alarm(seed, LOOSE) for seed in range(REPEATS))
    least, most = stats.binom.interval(1 - 2e-6, REPEATS, LOOSE)
    assert loose <= most
    if exact:
        assert loose >= least
    print(f"{name}: 0 of {REPEATS} at 1e-6, {loose} of {REPEATS} at {LOOSE:g}")


def test_the_count_sees_a_level_that_is_not_kept():
    """Twice the designed rate is far outside what the loose count allows."""
    most = stats.binom.interval(1 - 2e-6, REPEATS, LOOSE)[1]
    assert sum(black_box_gaussian(seed, 2.2 * LOOSE) for seed in range(REPEATS)) > most


def test_a_claim_a_fifth_too_small_alarms():
    claim = Claim.of(GaussianEvent(SIGMA * 1.25), score=float)
    alarms = [
        audit(
            released_many(),
            (1.0, 0.0),
            claim,
            runs=40_000,
            many=True,
            random_state=seed,
        ).refuted
        for seed in range(20)
    ]
    assert sum(alarms) >= 15


# -- p-values --------------------------------------------------------------------------


def noise_p(seed):
    draws = np.random.default_rng(seed).normal(size=40_000)
    return noise_test(draws, normal(1.0)).p_value


def independence_p(seed):
    draws = np.random.default_rng(seed).normal(size=(22_000, 2))
    return independence_test(draws, normal(1.0)).p_value


def shared_p(seed):
    draws = np.random.default_rng(seed).normal(size=(40, 400))
    return shared_noise_test(draws, normal(1.0)).p_value


def share_p(seed):
    hits = int(np.random.default_rng(seed).binomial(60_000, 0.3))
    return binomial_test(hits, 60_000, 0.3, subject="x").p_value


def counts_p(seed):
    rng = np.random.default_rng(seed)
    law = stats.binom.pmf(np.arange(9), 8, 0.25)
    times = np.bincount(rng.binomial(8, 0.25, 20_000), minlength=9)
    return counts_test(times, law, subject="x").p_value


def batches_p(seed):
    rng = np.random.default_rng(seed)
    batches = [np.flatnonzero(rng.random(64) < 0.25) for _ in range(90)]
    return batches_test(batches, 64, 0.25, subject="x").p_value


P_VALUES = [noise_p, independence_p, shared_p, share_p, counts_p, batches_p]


def test_p_values_that_are_half_as_large_are_noticed():
    """The power of the test below, at 200 repeats."""
    uniform = (np.arange(200) + 0.5) / 200
    assert not smaller_than_uniform(uniform)
    assert smaller_than_uniform(uniform / 2)
    assert smaller_than_uniform(uniform**2)


@pytest.mark.deep
@pytest.mark.parametrize("p_value", P_VALUES, ids=lambda f: f.__name__)
def test_p_values_are_uniform_or_larger_over_200_repeats(p_value):
    values = np.array([p_value(seed) for seed in range(200)])
    assert not smaller_than_uniform(values)
    assert values.min() > 1e-6
    # Nor so large that the audit could not refute anything.
    assert (values < 0.5).sum() >= 20


# -- p-values of the bounds: the smallest alpha at which the claim is refuted ----------


def smallest_alpha(alarm, seed):
    """By halving; 1 where not even alpha = 0.98 refutes."""
    low, high = math.log(1e-7), math.log(0.98)
    if not alarm(seed, 0.98):
        return 1.0
    if alarm(seed, 1e-7):
        return 1e-7
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if alarm(seed, math.exp(middle)) else (middle, high)
    return math.exp(high)


def not_uniform(values):
    """Kolmogorov's test, at 1e-6."""
    return stats.kstest(values, "uniform").pvalue < 1e-6


def test_uniformity_is_tested_with_power():
    """At 200 repeats a p-value half, or 1.6 times, as large as it should be shows."""
    uniform = (np.arange(200) + 0.5) / 200
    assert not not_uniform(uniform)
    assert not_uniform(uniform / 2)
    assert not_uniform(np.minimum(1.0, 1.6 * uniform))


# Tests of noise and independence state their p-values, which are tested above.
@pytest.mark.parametrize("name", [n for n in AUDITS if n.startswith(("black", "one"))])
def test_smallest_alphas_are_uniform_or_larger_over_200_repeats(name):
    alarm, exact = AUDITS[name]
    values = np.array([smallest_alpha(alarm, seed) for seed in range(REPEATS)])
    assert not smaller_than_uniform(values)
    assert values.min() > 1e-6
    if exact:
        assert not not_uniform(values)
    shares = ", ".join(f"{(values < u).mean():.2f} below {u}" for u in (0.1, 0.5))
    print(f"{name}: smallest {values.min():.4f}, {shares}")
