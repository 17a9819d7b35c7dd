"""Replay on the engines, and on twins that do one thing wrong each."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demur import AddOrRemoveOne, Ball, Erasure, ReplaceOne
from demur.audit import Breach, replay
from demur.cluster import PointTable, make_reports
from demur.compat.ball_dp.radius import dp_quantile_exponential_mechanism
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    private_radius,
)
from demur.convex import release as head_release
from demur.convex.heads import inputs, prototypes
from demur.core import recording
from demur.core.curve import PiecewiseLinear
from demur.core.entropy import NoiseKey, OsEntropy
from demur.errors import NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian, GaussianReports, LaplaceReports
from demur.unlearning import MemoryPair, PrivacyOdometer
from demur.unlearning.models.ogd import OGD
from tests.keys import os_key

REPLACED = ReplaceOne()
DIAGONAL = math.sqrt(2.0)  # of the unit square


def audit(run, pair, unit=REPLACED, subject="a test"):
    return replay(run, pair, unit=unit, subject=subject)


# -- a mean, and what can be wrong with it ---------------------------------------------

ROWS = np.array([[0.2, 0.9], [0.4, 0.1], [0.0, 0.0], [0.7, 0.5]])
# The last row goes from beyond one corner of the unit square to beyond the other.
MEANS = (np.vstack([ROWS[:3], [[-5.0, -5.0]]]), np.vstack([ROWS[:3], [[9.0, 9.0]]]))


def release(value, source, *, moved, sigma_of=1.0, unit=REPLACED):
    value = np.asarray(value, dtype=np.float64).reshape(-1)
    noise = Gaussian.calibrated(
        epsilon=1.0,
        delta=1e-6,
        sensitivity={unit: moved},
        unit=unit,
        dimension=value.size,
    )
    noise = replace_sigma(noise, sigma_of)
    ledger = Ledger(Budget(4.0, 1e-6), unit=unit)
    return noise.release(value, ledger=ledger, label="mean", source=source).value


def unbound_key(source):
    """A key that was paid for nothing; a bound one refuses what these twins do."""
    return NoiseKey(source.new_key(), private=False)


def replace_sigma(noise, factor):
    if factor == 1.0:
        return noise
    return Gaussian(noise.sigma * factor, noise.sensitivity, noise.dimension)


def mean(data, source, moved=DIAGONAL):
    return release(np.clip(data, 0, 1).mean(axis=0), source, moved=moved / len(data))


def test_a_clipped_mean_passes_and_the_pair_is_as_hard_as_can_be():
    result = audit(mean, MEANS)
    assert not result.refuted and not result.violations
    assert (result.uses, result.charges) == (1, 1)
    assert result.sensitivity_used == pytest.approx(1.0, rel=1e-6)


def test_half_the_sensitivity_is_found():
    result = audit(lambda d, s: mean(d, s, moved=math.sqrt(2.0) / 2), MEANS)
    assert Breach.INPUT in result.breaches()
    assert result.sensitivity_used == pytest.approx(2.0, rel=1e-6)


def test_the_sensitivity_of_one_coordinate_for_two_is_found():
    """1 for each coordinate and sqrt(2) for both: a factor of 1.41 is enough."""
    assert audit(lambda d, s: mean(d, s, moved=1.0), MEANS).refuted
    almost = audit(lambda d, s: mean(d, s, moved=math.sqrt(2.0) * 0.999), MEANS)
    assert almost.breaches() == {Breach.INPUT, Breach.PRICE}


def test_smartnoise_622_clipped_and_then_not_used():
    def run(data, source):
        np.clip(data, 0, 1)
        raw = data.mean(axis=0)
        return release(raw, source, moved=math.sqrt(2.0) / len(data))

    assert Breach.INPUT in audit(run, MEANS).breaches()


def test_diffprivlib_104_lower_bound_used_twice():
    """Bounds [-1, 3]: the range is 4 and 3 - 1 = 2 was declared."""
    pair = (np.array([0.5, -1.0]), np.array([0.5, 3.0]))

    def run(width):
        return lambda data, source: release(
            np.clip(data, -1, 3).mean(), source, moved=width / len(data)
        )

    assert not audit(run(4.0), pair).refuted
    assert audit(run(2.0), pair).refuted


def test_opacus_571_noise_that_follows_n():
    """At add-or-remove n is a secret, and a scale that follows it publishes it."""
    pair = (np.array([0.5, 0.5, 1.0]), np.array([0.5, 0.5]))
    unit = AddOrRemoveOne()

    def right(data, source):
        return release(np.clip(data, 0, 1).sum(), source, moved=1.0, unit=unit)

    def wrong(data, source):
        mean = np.clip(data, 0, 1).mean()
        return release(mean, source, moved=1.0 / len(data), unit=unit)

    assert not audit(right, pair, unit).refuted
    assert {Breach.NOISE, Breach.CHARGE} <= audit(wrong, pair, unit).breaches()


def test_noise_that_follows_the_data_is_found_even_without_a_charge_that_does():
    def run(data, source):
        ledger = Ledger(Budget(4.0, 1e-6), unit=REPLACED)
        declared = Gaussian(10.0, {REPLACED: 1.0})
        ledger.charge(declared, label="x", source=source)
        spread = 10.0 + float(np.clip(data, 0, 1).std())
        used = Gaussian(spread, {REPLACED: 1.0})
        return used.apply([np.clip(data, 0, 1).mean()], unbound_key(source))

    assert audit(run, MEANS).breaches() == {Breach.NOISE}


def test_a_nan_that_passes_the_clip_is_infinitely_far():
    """np.clip leaves NaN alone; the bounded mean of a NaN is a NaN."""
    pair = (ROWS, np.vstack([ROWS[:3], [[np.nan, 0.0]]]))

    def run(data, source):
        ledger = Ledger(Budget(4.0, 1e-6), unit=REPLACED)
        noise = Gaussian(10.0, {REPLACED: 1.0}, dimension=2)
        bounded = np.clip(data, 0, 1).mean(axis=0)
        with ledger.paid(noise, label="x", source=source) as payment:
            return noise.apply(bounded, payment.key)

    result = audit(run, pair)
    assert Breach.INPUT in result.breaches() and result.sensitivity_used == math.inf
    repaired = audit(lambda d, s: run(np.nan_to_num(d), s), pair)
    assert not repaired.refuted
    # `release` refuses NaN before it charges: one world alone ends with an error.
    assert audit(mean, pair).breaches() == {
        Breach.ERROR,
        Breach.CHARGE,
        Breach.USES,
    }


def test_a_domain_read_off_the_records():
    """One noisy count for each value that occurs: which occur is not noised."""
    pair = (np.array([1, 1, 2, 2]), np.array([1, 1, 2, 3]))

    def histogram(domain_of):
        def run(data, source):
            domain = domain_of(data)
            counts = [(data == value).sum() for value in domain]
            noisy = release(counts, source, moved=math.sqrt(2.0))
            return dict(zip(map(int, domain), noisy, strict=True))

        return run

    assert not audit(histogram(lambda data: np.arange(1, 4)), pair).refuted
    result = audit(histogram(np.unique), pair)
    assert {Breach.CHARGE, Breach.RESULT} <= result.breaches()


def test_a_domain_of_equal_size_shows_in_the_result_alone():
    pair = (np.array([1, 1, 2]), np.array([1, 1, 3]))

    def run(data, source):
        domain = np.unique(data)
        counts = [(data == value).sum() for value in domain]
        noisy = release(counts, source, moved=math.sqrt(2.0))
        return dict(zip(map(int, domain), noisy, strict=True))

    assert audit(run, pair).breaches() == {Breach.RESULT}


def test_a_value_that_by_passes_the_mechanism():
    def run(data, source):
        return {"mean": mean(data, source), "largest": float(np.max(data))}

    result = audit(run, MEANS)
    assert result.breaches() == {Breach.RESULT}
    assert result.violations[0].message.endswith("result['largest']")


def test_noise_added_outside_of_the_mechanism():
    """Zeros go through the mechanism, and the exact value is added to what leaves."""

    def run(data, source):
        silence = np.zeros(data.shape[1])
        exact = np.clip(data, 0, 1).mean(axis=0)
        return release(silence, source, moved=0.5) + exact

    assert audit(run, MEANS).breaches() == {Breach.RESULT}


def test_a_release_for_some_records_only():
    def run(data, source):
        first = mean(data, source)
        return [first, mean(data, source)] if data.max() > 1 else [first]

    result = audit(run, MEANS)
    assert {Breach.CHARGE, Breach.USES, Breach.RESULT} <= result.breaches()


def test_half_the_noise_for_the_price_of_the_whole():
    def run(data, source):
        ledger = Ledger(Budget(4.0, 1e-6), unit=REPLACED)
        declared = Gaussian(10.0, {REPLACED: 0.5})
        ledger.charge(declared, label="x", source=source)
        used = Gaussian(5.0, {REPLACED: 0.5}, dimension=2)
        return used.apply(np.clip(data, 0, 1).mean(axis=0), unbound_key(source))

    assert audit(run, MEANS).breaches() == {Breach.PRICE}


def test_a_release_that_nobody_paid_for():
    def run(data, source):
        noise = Gaussian(10.0, {REPLACED: 1.0}, dimension=2)
        return noise.apply(np.clip(data, 0, 1).mean(axis=0), unbound_key(source))

    assert audit(run, MEANS).breaches() == {Breach.PRICE}


def test_a_unit_that_the_mechanism_does_not_speak_of():
    result = audit(mean, MEANS, unit=AddOrRemoveOne())
    assert result.breaches() == {Breach.INPUT, Breach.PRICE}
    assert "nothing is declared at AddOrRemoveOne()" in result.violations[0].message


def test_one_world_that_ends_with_an_error():
    def run(data, source):
        if data.max() > 1:
            raise ValueError("secret: 9.0")
        return mean(data, source)

    result = audit(run, MEANS)
    assert Breach.ERROR in result.breaches()
    assert not any("9.0" in violation.message for violation in result.violations)


def test_an_error_in_the_first_world_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        audit(lambda data, source: 1 / 0, MEANS)
    assert recording.active() is None


def test_an_error_in_the_first_world_alone_is_found():
    def run(rows, source):
        if rows[-1, 0] < 0.0:
            raise RuntimeError("an exact value")
        return 1

    result = audit(run, MEANS)
    assert result.breaches() == {Breach.ERROR}
    assert "exact" not in result.audit_result().statement()


class Fitted:
    pass


@pytest.mark.parametrize("where", ["object", "dict", "array"])
def test_a_model_from_outside_that_both_worlds_write_into(where):
    """`run` returns the same object twice: the second world overwrote the first."""
    model, table, coef = Fitted(), {}, np.zeros(1)

    def run(rows, source):
        model.mean = table["mean"] = coef[0] = rows.mean()
        return {"object": model, "dict": {"model": table}, "array": [coef]}[where]

    assert audit(run, MEANS).breaches() == {Breach.RESULT}


def test_a_model_from_outside_that_is_sound_passes():
    model = Fitted()

    def run(rows, source):
        model.mean = release(np.clip(rows, 0, 1).mean(0), source, moved=DIAGONAL / 4)
        return model

    assert not audit(run, MEANS).refuted


def test_a_tape_is_empty_and_deaf_after_the_replay():
    """A program that was traced meanwhile may keep it, and be run on private data."""
    tapes = []

    def run(rows, source):
        tapes.append(recording.active())
        return release(np.clip(rows, 0, 1).mean(0), source, moved=DIAGONAL / 4)

    audit(run, MEANS)
    mechanism = Gaussian(1.0, {REPLACED: 1.0})
    for tape in tapes:
        with recording.watching(tape):
            assert recording.active() is None
            mechanism.apply([3.0], os_key(mechanism))
        declared = recording.Shift(mechanism.sensitivity, 1.0)
        drawn = tape.record_use(mechanism.name, declared, (np.zeros(2),), lambda: "own")
        assert drawn == "own"
        assert not tape.uses and not tape.charges and not tape.selections


def test_a_private_source_is_refused():
    with pytest.raises(NotPrivate, match="Nothing was spent"):
        audit(lambda data, source: mean(data, OsEntropy()), MEANS)


def test_a_replay_inside_a_replay_is_refused():
    with pytest.raises(RuntimeError, match="inside another replay"):
        audit(lambda data, source: audit(mean, MEANS), MEANS)


def test_what_is_told_of_a_replay():
    passed = audit(mean, MEANS, subject="a clipped mean").audit_result()
    assert passed.statement().startswith("not refuted at n = 2: a clipped mean at any")
    assert "proved" not in passed.statement()
    assert (passed.claimed, passed.lower_bound, passed.alpha) == (None, None, 0.0)
    broken = audit(lambda d, s: mean(d, s, moved=0.1), MEANS).audit_result()
    assert broken.refuted and "further than declared" in broken.evidence
    assert type(broken).from_json(broken.to_json()) == broken


def test_seeds_change_the_noise_and_not_the_verdict():
    seen = []

    def run(data, source):
        seen.append(mean(data, source))
        return seen[-1]

    for seed in (1, 2):
        assert not replay(
            run, MEANS, unit=REPLACED, subject="a mean", random_state=seed
        ).refuted
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.allclose(seen[0], seen[2])


# -- convex heads ----------------------------------------------------------------------

SPACE = "records"


def classes_of(n=60, seed=0, k=3):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    X = rng.normal(size=(n, 2)) * 0.2 + np.array([[1, 0], [0, 1], [-1, -1]])[y] * 0.5
    return X, y


def moved(data, by, label=None):
    """The last record somewhere else, with another label if one is given."""
    X, y = data[0].copy(), data[1].copy()
    X[-1] += by
    if label is not None:
        y[-1] = label
    return X, y


def public_part(head):
    return {
        "model": {k: v for k, v in vars(head).items() if k.endswith("_")},
        "statement": head.privacy_.entry.declaration,
    }


def fitted(make):
    def run(data, source):
        head = make(source)
        return public_part(head.fit(*data))

    return run


def heads(**options):
    shared = {"epsilon": 2.0, "radius": 0.5, "norm_bound": 1.0} | options
    return {
        "softmax": lambda s: BallSoftmaxClassifier(
            classes=[0, 1, 2], source=s, **({"lam": 0.1} | shared)
        ),
        "noisy gd": lambda s: BallSoftmaxClassifier(
            classes=[0, 1, 2], mechanism="noisy_gd", steps=5, source=s, **shared
        ),
        "prototypes": lambda s: BallPrototypeClassifier(
            classes=[0, 1, 2], source=s, **shared
        ),
    }


@pytest.mark.parametrize("name", heads())
def test_heads_at_a_ball(name):
    data = classes_of()
    by = np.array([0.3, 0.4])  # a move by the whole radius, inside the norm bound
    result = audit(
        fitted(heads()[name]),
        (data, moved(data, by)),
        Ball(0.5, space=SPACE),
        f"convex: {name}",
    )
    assert result.violations == ()
    assert result.uses == (5 if name == "noisy gd" else 1)
    assert result.sensitivity_used > 0.1


@pytest.mark.parametrize("name", ["softmax", "noisy gd"])
def test_heads_at_any_replacement(name):
    data = classes_of()
    pair = (data, moved(data, np.array([5.0, -5.0]), label=0))
    result = audit(fitted(heads()[name]), pair, REPLACED)
    assert result.violations == () and result.sensitivity_used > 0.1


def test_logistic_regression_at_a_ball():
    data = classes_of(k=2)

    def make(source):
        return BallLogisticRegression(
            epsilon=2.0, radius=0.5, lam=0.1, classes=[0, 1], source=source
        )

    pair = (data, moved(data, np.array([0.3, 0.4])))
    assert audit(fitted(make), pair, Ball(0.5, space=SPACE)).violations == ()


def test_a_move_beyond_the_radius_is_no_neighbour_and_is_seen():
    """The pair is not one of Ball(0.01): the input moves further than it says."""
    data = classes_of()
    pair = (data, moved(data, np.array([0.3, 0.4])))
    unit = Ball(0.001, space=SPACE)
    assert Breach.INPUT in audit(fitted(heads()["prototypes"]), pair, unit).breaches()


HARD = {
    # All others at 0, so that the regulariser alone bends the objective: the minimiser
    # moves by more than half of what is declared, and half would not do.
    Ball(0.5, space=SPACE): [0.5, 0.0],
    REPLACED: [-1.0, 0.0],
}


def hard_pair(unit):
    X, y = np.zeros((6, 2)), np.arange(6) % 3
    X[-1] = [1.0, 0.0]
    return (X, y), (np.vstack([X[:-1], [HARD[unit]]]), y)


@pytest.mark.slow
@pytest.mark.parametrize("unit", HARD)
@pytest.mark.parametrize("half", [False, True])
def test_a_softmax_head_with_half_its_sensitivity(monkeypatch, unit, half):
    """The sensitivity of twice as many records."""
    if half:
        right = head_release.erm_sensitivity
        monkeypatch.setattr(
            head_release,
            "erm_sensitivity",
            lambda form, unit, fit, **space: right(
                form, unit, replace(fit, n=2 * fit.n), **space
            ),
        )
    make = heads(lam=100.0, bias_scale=0.0)["softmax"]
    result = audit(fitted(make), hard_pair(unit), unit)
    assert result.sensitivity_used > (1.1 if half else 0.55)
    assert result.breaches() == ({Breach.INPUT, Breach.PRICE} if half else set())


@pytest.mark.parametrize("half", [False, True])
def test_prototypes_with_half_their_sensitivity(monkeypatch, half):
    if half:
        right = prototypes.plan_prototypes

        def wrong(*args, **options):
            plan = right(*args, **options)
            noise = plan.mechanism
            (space, curve) = noise.sensitivity.spaces[0]
            knots = tuple((r, moves / 2) for r, moves in curve.knots)
            table = {space: PiecewiseLinear(knots, curve.saturates)}
            return replace(
                plan, mechanism=Gaussian(noise.sigma, table, noise.dimension)
            )

        monkeypatch.setattr(prototypes, "plan_prototypes", wrong)
    data = classes_of()
    pair = (data, moved(data, np.array([0.3, 0.4])))
    unit = Ball(0.5, space=SPACE)
    result = audit(fitted(heads()["prototypes"]), pair, unit)
    assert result.breaches() == ({Breach.INPUT, Breach.PRICE} if half else set())
    assert result.sensitivity_used == pytest.approx(2.0 if half else 1.0, rel=1e-6)


def test_a_head_that_uses_rows_it_did_not_clip(monkeypatch):
    """smartnoise#622 in an engine: the bound is enforced on a copy."""
    right = inputs.prepare

    def wrong(estimator, X, y, **options):
        return right(estimator, X, y, **options)._replace(X=np.asarray(X))

    data = classes_of()
    pair = (data, moved(data, np.array([30.0, 40.0])))
    run = fitted(heads()["prototypes"])
    unit = Ball(2.0, space=SPACE)  # any two rows inside the norm bound
    assert audit(run, pair, unit).violations == ()
    monkeypatch.setattr(inputs, "prepare", wrong)
    assert Breach.INPUT in audit(run, pair, unit).breaches()


def test_a_head_that_says_its_classes_and_one_that_reads_them_off():
    """The label of one class goes: the class vanishes from what is published."""
    X, y = classes_of(n=30)
    y[:] = np.where(y == 2, 1, y)
    rare = y.copy()
    rare[-1] = 2
    pair = ((X, rare), (X, y))

    def make(source):
        return BallSoftmaxClassifier(epsilon=2.0, radius=0.5, lam=0.1, source=source)

    assert audit(fitted(make), pair, REPLACED).refuted


def test_private_radius():
    data = classes_of(n=40)
    pair = (data, moved(data, np.array([0.5, 0.5])))

    def run(given, source):
        return private_radius(*given, epsilon=1.0, norm_bound=2.0, source=source).value

    result = audit(run, pair, Ball(4.0, space=SPACE))
    assert result.violations == () and result.sensitivity_used == 1.0


def test_scores_that_move_by_two_are_found():
    values = np.linspace(0.0, 1.0, 9)
    pair = (values, np.append(values[:-1], 0.0))

    def run(copies):
        return lambda data, source: dp_quantile_exponential_mechanism(
            np.repeat(data, copies), 0.5, 1.0, grid=np.linspace(0, 1, 11), rng=source
        )

    assert not audit(run(1), pair).refuted
    assert audit(run(2), pair).breaches() == {Breach.INPUT, Breach.PRICE}


# -- reports ---------------------------------------------------------------------------

POINTS = np.array([[0.1, 0.9], [0.5, 0.5], [0.3, 0.2], [0.8, 0.8]])
REPORTS = {
    "BPM": BPM(epsilon=4.0, L=0.4, dimension=2),
    "Laplace": LaplaceReports(epsilon=4.0, dimension=2),
    "Gaussian": GaussianReports(epsilon=4.0, dimension=2),
}


def to(points, row, where):
    changed = points.copy()
    changed[row] = where
    return changed


def reported(mechanism, prepare=lambda points: points):
    def run(points, source):
        made = mechanism.privatize(prepare(points), ledger=None, source=source)
        return {"reports": made.value, "said": made.entry.declaration}

    return run


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("unit", [REPLACED, Ball(0.5, space="cube")])
def test_reports(name, unit):
    pair = (POINTS, to(POINTS, 2, [0.3 + 0.3, 0.2 + 0.4]))
    result = audit(reported(REPORTS[name]), pair, unit, f"cluster: {name}")
    assert result.violations == () and result.uses == 1


@pytest.mark.parametrize("name", REPORTS)
def test_a_row_that_moves_beyond_the_radius_is_found(name):
    pair = (POINTS, to(POINTS, 2, [0.9, 0.9]))
    result = audit(reported(REPORTS[name]), pair, Ball(0.5, space="cube"))
    assert Breach.INPUT in result.breaches()


@pytest.mark.parametrize("name", REPORTS)
def test_a_record_that_touches_two_rows(name):
    """Each row relative to the one before it: one record moves two of them."""
    pair = (POINTS, to(POINTS, 2, [0.31, 0.2]))

    def differenced(points):
        return (points - np.roll(points, 1, axis=0) + 1.0) / 2.0

    result = audit(reported(REPORTS[name], differenced), pair)
    assert result.breaches() == {Breach.INPUT}
    assert "number of rows" in result.violations[0].message


def test_a_scale_read_off_the_points():
    """The seed's min-max scaling: one record moves everybody's point."""
    pair = (POINTS, to(POINTS, 0, [0.0, 1.0]))

    def scaled(points):
        low, high = points.min(axis=0), points.max(axis=0)
        return (points - low) / (high - low)

    assert Breach.INPUT in audit(reported(REPORTS["BPM"], scaled), pair).breaches()


def test_people_with_two_rows():
    pair = (POINTS, to(to(POINTS, 2, [0.6, 0.6]), 3, [0.7, 0.7]))
    run = reported(REPORTS["BPM"])
    assert audit(run, pair, ReplaceOne(records_per_person=2)).violations == ()
    assert Breach.INPUT in audit(run, pair).breaches()


def job(tmp_path, change=lambda points: points):
    def run(points, source):
        given, names = tmp_path / "points.parquet", ["x", "y"]
        pq.write_table(pa.table(list(change(points).T), names=names), given)
        written = make_reports(
            PointTable(given, low=0.0, high=1.0),
            tmp_path / "reports.csv",
            epsilon=4.0,
            L=0.4,
            overwrite=True,
            source=source,
        )
        return {"reports": written.path.read_bytes(), "metadata": written.metadata}

    return run


@pytest.mark.parametrize("rows, batches", [(100, 1), (3, 2)])
def test_a_file_of_reports(tmp_path, monkeypatch, rows, batches):
    monkeypatch.setattr("demur.cluster.files.point_tables._MOST_ROWS", rows)
    pair = (POINTS, to(POINTS, 2, [0.9, 0.9]))
    result = audit(job(tmp_path), pair)
    assert result.violations == () and result.uses == batches


@pytest.mark.parametrize("rows", [100, 4])
def test_a_record_in_two_rows_of_a_file(tmp_path, monkeypatch, rows):
    """Of one batch or of two: batches of one key are counted together."""
    monkeypatch.setattr("demur.cluster.files.point_tables._MOST_ROWS", rows)
    pair = (POINTS, to(POINTS, 2, [0.3, 0.3]))
    twice = audit(job(tmp_path, lambda p: np.vstack([p, p])), pair)
    assert twice.breaches() == {Breach.INPUT}


# -- deletions -------------------------------------------------------------------------

DIM, LEARNED, GONE = 3, 40, 25
CONFIG = {"ogd": {}, "ridge": {}, "logistic": {"Lambda": 20.0, "tolerance": 0.01}}


def records(mode):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(LEARNED, DIM))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Y = np.sign(X @ [1.0, -1.0, 0.5])
    X[GONE], Y[GONE] = [0.0, 0.6, 0.8], 1.0
    return X, (Y > 0).astype(float) if mode == "logistic" else Y


def forgets(mode, *, scope="subject", make=None):
    """Learn all, forget one, learn on: what is published after the deletion.

    World 2 never learned the record: in its tick comes a blank one, whose gradient is
    0, and which is forgotten in turn (`Erasure`).
    """

    def run(data, source):
        X, Y = data
        odometer = PrivacyOdometer(
            1.0, 1e-5, 0.1, gamma=4.0, scope=scope, source=source
        )
        chosen = make() if make else mode
        options = {} if make else CONFIG[mode]
        model = MemoryPair(DIM, odometer, mode=chosen, **options)
        for i in range(10):
            model.calibrate_step(X[i], Y[i])
        stats = model.finalize_calibration(1.0)
        for i in range(10, 30):
            model.insert(X[i], Y[i], record_id=f"r{i}")
        if mode == "logistic":
            model.renew(X[:30], Y[:30])
        odometer.finalize_with(stats, T_estimate=100_000)
        model.delete(X[GONE], Y[GONE], record_id=f"r{GONE}")
        after = {"published": model.theta}
        if model.mode.publishes == "state":
            after["state"] = model.mode.state()
            after["later"] = model.insert_many(X[30:], Y[30:])
        return after

    return run


def blanked(data):
    X, Y = data
    X = X.copy()
    X[GONE] = 0.0
    return X, Y


@pytest.mark.parametrize("scope", ["subject", "joint"])
@pytest.mark.parametrize("mode", CONFIG)
def test_deletions(mode, scope):
    data = records(mode)
    result = audit(
        forgets(mode, scope=scope),
        (data, blanked(data)),
        Erasure(),
        f"unlearning: {mode}",
    )
    assert result.violations == ()
    # The noise is drawn on zeros, and added to the state: two uses. Ridge has none.
    assert result.uses == (0 if mode == "ridge" else 2)
    assert mode == "ridge" or 0.0 < result.sensitivity_used <= 1.0


def test_a_deletion_that_keeps_a_cache():
    """Noise goes into the weights; a memory of the record stays beside them."""

    class Cached(OGD):
        def insert(self, x, y):
            self.seen = getattr(self, "seen", 0.0) + np.asarray(x)
            return super().insert(x, y)

        def state(self):
            return super().state() | {"seen": np.asarray(getattr(self, "seen", 0.0))}

        def restore(self, state):
            self.seen = state["seen"]
            super().restore(state)

    data = records("ogd")
    result = audit(
        forgets("ogd", make=lambda: Cached(DIM, lam=0.1)),
        (data, blanked(data)),
        Erasure(),
    )
    assert result.breaches() == {Breach.RESULT}


@pytest.mark.slow
def test_a_deletion_that_claims_half_its_shift_or_less():
    """The pair uses a share of the bound; a claim below that share is refuted."""
    data = records("ogd")
    pair = (data, blanked(data))

    def claiming(share):
        class Claims(OGD):
            def shift_bound(self, records=1):
                return share * super().shift_bound(records)

        return audit(forgets("ogd", make=lambda: Claims(DIM, lam=0.1)), pair, Erasure())

    used = claiming(1.0).sensitivity_used
    assert not claiming(1.0).refuted and not claiming(used * 1.01).refuted
    assert Breach.INPUT in claiming(used * 0.99).breaches()


def test_a_deletion_without_noise():
    """The silence of the rehearsal, used in earnest."""

    class Silent(OGD):
        def forget_nothing(self, noise=None, *, grid=None):
            super().forget_nothing(np.zeros(DIM), grid=grid)

    data = records("ogd")
    result = audit(
        forgets("ogd", make=lambda: Silent(DIM, lam=0.1)),
        (data, blanked(data)),
        Erasure(),
    )
    assert result.breaches() == {Breach.RESULT}


def test_a_deletion_says_nothing_about_privacy():
    data = records("ogd")
    result = audit(forgets("ogd"), (data, blanked(data)), REPLACED)
    assert Breach.INPUT in result.breaches()
