"""The black box audit passes correct mechanisms and refutes their broken twins."""

import math

import numpy as np
import pytest

from demur import Ball, Seeded
from demur.audit import Claim, Level, audit, audit_scores, audits_of
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Pure
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, GaussianReports, LaplaceReports
from tests.audit.power import gaussian_audit, laplace_audit
from tests.audit.twins import (
    SIGMA,
    UNIT,
    bpm_reports,
    crescent,
    gaussian,
    key_of,
    likelihood_ratio,
    pair,
    released,
    released_many,
    seed_reports,
)
from tests.families import thinned

RUNS = 2000


# -- the Gaussian mechanism ------------------------------------------------------------


def gaussian_result(run, worlds=None, **options):
    one, two = worlds or pair()
    score = options.pop("score", one - two)
    claim = Claim.of(gaussian(), unit=UNIT, score=score)
    return audit(run, (one, two), claim, **({"runs": RUNS} | options))


@pytest.mark.slow
def test_a_correct_gaussian_is_not_refuted():
    result = gaussian_result(released(gaussian()))
    assert not result.refuted and result.level is Level.BLACK_BOX
    assert result.method == "GDP mu test" and result.unit == str(UNIT)
    # Most of the loss is seen: the bound is no empty one.
    assert 0.5 * result.claimed < result.lower_bound < result.claimed


@pytest.mark.slow
def test_without_a_score_the_direction_is_learned():
    run = released(gaussian())
    result = gaussian_result(run, score=None, runs=2 * RUNS)
    assert not result.refuted
    assert result.lower_bound > 0.5 * result.claimed


TWINS = {
    "half the noise": (released(gaussian(sigma=SIGMA / 2)), 1.0),
    "sensitivity off by 2": (released(gaussian()), 2.0),
    "noise reused": (released(gaussian(), reuse=True), 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "score"),
    [
        *((name, "given") for name in TWINS),
        ("half the noise", "learned"),
        pytest.param("sensitivity off by 2", "learned", marks=pytest.mark.deep),
        pytest.param("noise reused", "learned", marks=pytest.mark.deep),
    ],
)
def test_broken_gaussians_are_refuted(name, score):
    run, distance = TWINS[name]
    worlds = pair(distance=distance)
    options = {"runs": RUNS // 2} if score == "given" else {"score": None}
    result = gaussian_result(run, worlds, **options)
    assert result.refuted and result.lower_bound > result.claimed


COUNTED = {
    "sound": (released_many(), 1.0),
    "half the noise": (released_many(SIGMA / 2), 1.0),
    "sensitivity off by 2": (released_many(), 2.0),
    "noise reused": (released_many(reuse=True), 1.0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counting_refutes_them_for_any_law(name):
    run, distance = COUNTED[name]
    result = audit(
        run,
        (distance, 0.0),
        Claim.of(gaussian(), unit=UNIT, score=float, counted=True),
        runs=20_000,
        many=True,
    )
    assert result.method == "GDP mu test by counts"
    assert result.refuted is (name != "sound")
    assert result.lower_bound > 0.5 * result.claimed


@pytest.mark.slow
def test_a_wrong_sign_of_the_score_makes_it_weak_and_not_wrong():
    one, two = pair()
    run = TWINS["half the noise"][0]
    result = gaussian_result(run, score=two - one, runs=RUNS // 2)
    assert not result.refuted and result.lower_bound == 0.0


# -- pure claims -----------------------------------------------------------------------

POINTS = np.array([0.3, 0.4]), np.array([0.3, 0.5])
BALL = Ball(0.1, space="cube")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "runs"), [(crescent, 20_000), (likelihood_ratio, 4_000)]
)
def test_bpm_is_not_refuted(score, runs):
    bpm = BPM(4.0, 0.5, 2)
    result = audit(
        bpm_reports(bpm),
        POINTS,
        Claim.of(bpm, unit=BALL, score=score(bpm, *POINTS)),
        runs=runs,
        many=True,
    )
    assert not result.refuted and result.claimed == pytest.approx(0.4)
    assert result.method == "Clopper-Pearson bound" and result.delta == 0.0


@pytest.mark.slow
def test_the_first_bpm_sampler_is_refuted():
    bpm = BPM(4.0, 0.5, 2)
    result = audit(
        seed_reports(bpm),
        POINTS,
        Claim.of(bpm, unit=BALL, score=crescent(bpm, *POINTS), threshold=0.5),
        runs=40_000,
        many=True,
    )
    assert result.refuted and result.lower_bound > 2 * result.claimed


@pytest.mark.slow
def test_a_bpm_that_is_twice_too_sharp_is_refuted():
    claimed, sharp = BPM(4.0, 0.5, 1), BPM(8.0, 0.5, 1)
    worlds = np.array([0.2]), np.array([0.6])
    ratio = likelihood_ratio(claimed, *worlds)
    claim = Claim.of(claimed, unit=Ball(0.4, space="cube"), score=ratio)
    for mechanism, refuted in ((claimed, False), (sharp, True)):
        result = audit(bpm_reports(mechanism), worlds, claim, runs=8000, many=True)
        assert result.refuted is refuted


def laplace_reports(mechanism):
    def run(point, source, count):
        points = np.tile(point, (count, 1))
        return mechanism.apply(points, key_of(source))

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sharper"), [(LaplaceReports, 2), (GaussianReports, 3)]
)
def test_other_reports_and_their_sharper_twins(kind, sharper):
    claimed = kind(2.0, 2)
    worlds = np.array([1.0, 1.0]), np.array([0.0, 0.0])
    ratio = likelihood_ratio(claimed, *worlds)
    claim = Claim.of(claimed, unit=Ball(math.sqrt(2), space="cube"), score=ratio)
    for mechanism, refuted in ((claimed, False), (kind(2.0 * sharper, 2), True)):
        result = audit(laplace_reports(mechanism), worlds, claim, runs=4000, many=True)
        assert result.refuted is refuted


# -- general claims --------------------------------------------------------------------


def sampled_sum(probability, sigma):
    """One Poisson-sampled Gaussian step on a single record of size x."""

    def run(x, source, count):
        rng = np.random.default_rng(source.seed)
        return rng.normal(0, sigma, count) + x * (rng.random(count) < probability)

    return run


@pytest.mark.slow
def test_a_sampled_gaussian_is_counted_at_delta():
    claim = Claim.of(PoissonGaussian(0.5, 1.0), delta=1e-3, score=float)
    options = {"runs": 20_000, "many": True}
    sound = audit(sampled_sum(0.5, 1.0), (1.0, 0.0), claim, **options)
    assert not sound.refuted and sound.lower_bound > 0.2 * sound.claimed
    for twin in (sampled_sum(1.0, 0.4), sampled_sum(0.5, 0.2)):
        assert audit(twin, (1.0, 0.0), claim, **options).refuted


def test_randomised_response_is_tight():
    """The loss is epsilon exactly: the bound comes close and stays below."""

    def run(bit, source, count):
        rng = np.random.default_rng(source.seed)
        p = 1 / (1 + math.exp(-1.0))
        return np.where(rng.random(count) < p, bit, 1 - bit).astype(float)

    def result(claim):
        stated = Claim.of(claim, score=float, threshold=0.5)
        return audit(run, (1, 0), stated, runs=40_000, many=True)

    sound = result(Pure(1.0))
    assert not sound.refuted and sound.lower_bound > 0.93
    assert result(Pure(0.9)).refuted
    assert result((0.9, 1e-3)).refuted
    assert not result((0.9, 0.06)).refuted


# -- the power that the docs state -----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audit_of", "claimed", "runs"),
    thinned(
        [
            (laplace_audit, 0.5, 3000),
            (laplace_audit, 1.0, 2000),
            (laplace_audit, 2.0, 1000),
            (gaussian_audit, 0.5, 6000),
            (gaussian_audit, 1.0, 2000),
            (gaussian_audit, 4.0, 200),
        ],
        2,
    ),
)
def test_twice_the_claim_is_caught_at_the_stated_size(audit_of, claimed, runs):
    trials = 20
    caught = sum(
        audit_of(claimed, 2 * claimed, runs, seed).refuted for seed in range(trials)
    )
    assert caught >= 0.8 * trials
    assert not any(audit_of(claimed, claimed, runs, s).refuted for s in range(trials))
    # A tenth of the runs would not do: the size is no habit.
    few = [audit_of(claimed, 2 * claimed, runs // 10, s).refuted for s in range(trials)]
    assert sum(few) < 0.5 * trials


# -- the interface ---------------------------------------------------------------------


def test_the_result_is_noted_on_the_entry():
    with Ledger(Budget(epsilon=9.0, delta=1e-5), unit=UNIT) as ledger:
        entry = gaussian().release(np.zeros(3), ledger=ledger, label="x").entry
        result = audit(
            released(gaussian()), pair(), entry, ledger=ledger, runs=200, subject="x"
        )
        assert audits_of(ledger, entry) == (result,)
        assert result.subject == "x" and result.delta == 1e-5

        def never(value, source):
            raise AssertionError("run before the entry was checked")

        with pytest.raises(TypeError, match="belong together"):
            audit(never, pair(), (1.0, 0.0), ledger=ledger)
        with Ledger(Budget(epsilon=9.0, delta=1e-5), unit=UNIT) as other:
            with pytest.raises(ValueError, match="not in this ledger"):
                audit(never, pair(), entry, ledger=other)


def test_every_run_has_a_source_of_its_own_and_progress_is_told():
    seeds, told = [], []

    def run(value, source):
        assert isinstance(source, Seeded)
        seeds.append(source.seed)
        return value + np.random.default_rng(source.seed).normal()

    audit(
        run, (1.0, 0.0), GaussianEvent(1.0), runs=20, progress=lambda *a: told.append(a)
    )
    assert len(seeds) == len(set(seeds)) == 40
    assert told[-1] == (40, 40) and [done for done, _ in told] == list(range(1, 41))
    first = audit(run, (2.0, 0.0), GaussianEvent(1.0), runs=200)
    assert first == audit(run, (2.0, 0.0), GaussianEvent(1.0), runs=200)
    assert first != audit(run, (2.0, 0.0), GaussianEvent(1.0), runs=200, random_state=1)


def test_the_pilot_is_never_counted():
    """An event chosen and counted on the same runs would refute the honest."""
    rng = np.random.default_rng(5)
    one, two = rng.normal(size=(2, 200))
    honest = audit_scores(one[100:], two[100:], Pure(0.0), pilot=(one[:100], two[:100]))
    assert honest.runs == 100 and not honest.refuted
    with pytest.raises(TypeError, match="before the runs are counted"):
        audit_scores(one, two, Pure(0.0))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"runs": 7}, "at least 8"),
        ({"runs": 10.5}, "whole number"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"pair": (1.0,)}, "two datasets"),
        ({"run": 3}, "callable"),
        ({"seed": 1.5}, "seed"),
        ({"claim": "eps"}, "claim"),
        ({"run": lambda x, s: math.nan}, "finite"),
        ({"run": lambda x, s: "text"}, "numbers"),
        ({"run": lambda x, s: np.zeros(1 + int(x))}, "shapes"),
        ({"many": True, "run": lambda x, s, n: np.zeros(3)}, "outputs"),
    ],
)
def test_bad_arguments_are_refused(changes, error):
    arguments = {
        "run": lambda x, source: x + source.seed % 7,
        "pair": (1.0, 0.0),
        "claim": GaussianEvent(1.0),
        "runs": 16,
    } | changes
    with pytest.raises((TypeError, ValueError), match=error):
        audit(**arguments)


def test_nan_in_one_world_is_reported():
    def run(x, source):
        return math.nan if x else source.seed % 5

    with pytest.raises(ValueError, match="tell the two apart"):
        audit(run, (1.0, 0.0), Claim.of(Pure(1.0)).scored_by(float), runs=16)
