"""docs/compat_memory_pair.md, line by line: each line of its two tables has a test."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import demur
from demur import Ledger
from demur.compat.memory_pair.src.calibrator import Calibrator
from demur.compat.memory_pair.src.memory_pair import MemoryPair, Phase
from demur.compat.memory_pair.src.odometer import PrivacyOdometer
from demur.core.accounting.gaussian import gaussian_epsilon
from demur.unlearning import CapacityExhausted
from demur.unlearning.models.seed import Seed
from tests.compat.memory_pair.seed_blocks import CALIBRATOR, ODOMETER
from tests.compat.memory_pair.test_memory_pair_blocks import run as run_block

PAGE = Path(demur.__file__).parents[2] / "docs" / "compat_memory_pair.md"
STATS = {"G": 2.3, "D": 1.7, "c": 0.5, "C": 3.0, "N_star": 10}


def family(kind, dim, scale, seed, n):
    """Gaussian rows with linear targets, or with labels of which a fifth is noise."""
    rng = np.random.default_rng(seed)
    X, w = scale * rng.normal(size=(n, dim)), rng.normal(size=dim)
    if kind == "linear":
        return X, X @ w + 0.1 * scale * rng.normal(size=n)
    noise = 0.5 * scale * math.sqrt(dim) * rng.normal(size=n)
    return X, np.where(X @ w + noise > 0, 1.0, -1.0)


def pair(dim=3, *, odometer=None, calibrator=None, **options):
    odometer = odometer or PrivacyOdometer(1.0, 1e-5, lambda_=0.1, gamma=5.0)
    return MemoryPair(dim, odometer, calibrator, **options)


def calibrated(records=60, gamma=1.0, dim=3, finalised=True, **options):
    model = pair(dim, **options)
    X, Y = family("linear", dim, 0.5, 0, records)
    for x, y in zip(X, Y, strict=True):
        model.calibrate_step(x, y)
    stats = model.finalize_calibration(gamma)
    if finalised:
        model.odometer.finalize_with(stats, T_estimate=20_000)
    return model, stats, X, Y


class PublishedStep:
    """The insert step of the published code, from its formulas."""

    def __init__(self, dim, step=1.0):
        self.w, self.step, self.pairs, self.most = np.zeros(dim), step, [], dim

    def direction(self, g):
        q, kept = g.copy(), []
        for s, y in reversed(self.pairs):
            rho = 1.0 / float(y @ s)
            kept.append((rho, rho * (s @ q)))
            q = q - kept[-1][1] * y
        if self.pairs:
            s, y = self.pairs[-1]
            q = float(s @ y) / float(y @ y) * q
        for (s, y), (rho, alpha) in zip(self.pairs, reversed(kept), strict=True):
            q = q + s * (alpha - rho * (y @ q))
        return -q

    def insert(self, x, y):
        before = float(self.w @ x)
        g = (before - y) * x
        s = self.step * self.direction(g)
        self.w = self.w + s
        change = (float(self.w @ x) - y) * x - g
        if change @ s > 1e-10:
            self.pairs = [*self.pairs, (s, change)][-self.most :]
        return before


# -- what is equal -----------------------------------------------------------------


def test_equal_prediction_and_observation():
    for safeguard in (True, False):
        model = pair(safeguard=safeguard)
        X, Y = family("linear", 3, 0.5, 0, 10)
        for x, y in zip(X, Y, strict=True):
            before = model.theta.copy()
            assert model.calibrate_step(x, y) == float(before @ x)
            norm = np.linalg.norm((float(before @ x) - y) * x)
            assert model.calibrator.grad_norms[-1] == norm
            assert model.calibrator.thetas[-1].tolist() == model.theta.tolist()


def test_equal_step_and_pairs():
    for dim in (2, 7):
        model = pair(dim)
        assert (model._seed.step, model.lbfgs.m_max) == (1.0, dim)
    model = pair(4, step=0.25, pairs=2)
    assert (model._seed.step, model.lbfgs.m_max) == (0.25, 2)
    assert not model.lbfgs.add_pair(np.full(4, 1e-6), np.full(4, 1e-6))  # y.s <= 1e-10


@pytest.mark.parametrize("step", [1.0, 0.5])
def test_equal_insert_without_the_safeguard(step):
    dim = 20  # where it does not diverge, and rounding does not grow
    model, published = pair(dim, step=step, safeguard=False), PublishedStep(dim, step)
    X, Y = family("linear", dim, 0.5, 1, 120)
    assert model.calibrate_step(X[0], Y[0]) == published.insert(X[0], Y[0])
    assert model.theta.tolist() == published.w.tolist()
    for x, y in zip(X[1:], Y[1:], strict=True):
        model.calibrate_step(x, y)
        published.insert(x, y)
        np.testing.assert_allclose(model.theta, published.w, rtol=1e-8, atol=1e-10)
    assert len(model.lbfgs) == len(published.pairs) == dim


@pytest.mark.parametrize("safeguard", [True, False])
def test_equal_constants_and_n_star(safeguard):
    ours, sketch = Calibrator(0.95), run_block(CALIBRATOR)["Calibrator"](0.95)
    model = pair(20, calibrator=ours, safeguard=safeguard)
    sketch.estimate_bounds = lambda model: model.lbfgs_bounds()
    for x, y in zip(*family("linear", 20, 0.1, 2, 80), strict=True):
        grad = (float(model.theta @ x) - y) * x
        model.calibrate_step(x, y)
        sketch.observe(grad, model.theta)
    for gamma in (0.01, 0.1, 1.0):
        wanted = sketch.finalize(gamma, model)
        assert ours.finalize(gamma, model) == pytest.approx(wanted, rel=1e-13)


def test_equal_capacity_and_noise():
    arguments = (1.0, 1e-5, 0.1, 0.05, 100000, 0.5)
    names = ("eps_total", "delta_total", "lambda_", "delta_B", "T", "gamma")
    sketch = run_block(ODOMETER)["PrivacyOdometer"](*arguments)
    vars(sketch).update(zip(names, arguments, strict=True))
    ours = PrivacyOdometer(*arguments)
    for odometer in (sketch, ours):
        odometer.finalize_with(STATS, 20_000)
    assert ours.deletion_capacity == sketch.deletion_capacity > 1
    for name in ("eps_step", "delta_step", "sigma_step"):
        assert getattr(ours, name) == pytest.approx(getattr(sketch, name), rel=1e-15)
    assert ours.noise_scale() == ours.sigma_step


@pytest.mark.parametrize("safeguard", [True, False])
def test_equal_deletion_step(safeguard):
    mode = Seed(3, safeguard=safeguard)
    X, Y = family("linear", 3, 0.5, 0, 30)
    mode.insert_many(X, Y)
    w, noise = mode.theta, np.array([30.0, -40.0, 0.5])  # out of any ball
    g = (float(w @ X[4]) - Y[4]) * X[4]
    wanted = w - mode.lbfgs.direction(g) + noise
    mode.delete(X[4], Y[4], noise)
    assert mode.theta.tolist() == wanted.tolist()


def test_equal_phases_and_flags():
    model, stats, X, Y = calibrated(records=5, gamma=0.02, finalised=False)
    assert model.phase is Phase.LEARNING and 5 < model.N_star == stats["N_star"]
    while model.inserts_seen < model.N_star:
        assert not (model.ready_to_predict or model.can_predict)
        model.insert(X[0], Y[0])
    assert model.ready_to_predict and model.can_predict
    assert model.phase.name == "INTERLEAVING"
    model.odometer.finalize_with(stats, T_estimate=20_000)
    model.delete(X[0], Y[0])
    counters = (model.events_seen, model.inserts_seen, model.deletes_seen)
    assert counters == (model.N_star + 1, model.N_star, 1)


def test_equal_refusal_past_the_capacity():
    odometer = PrivacyOdometer(1.0, 1e-5, lambda_=0.1, gamma=1e-9)
    model, _, X, Y = calibrated(odometer=odometer)
    assert odometer.deletion_capacity == 1 and odometer._status == "degenerate"
    model.delete(X[0], Y[0])
    assert not odometer.ready_to_delete
    with pytest.raises(RuntimeError, match="Odometer not finalized or capacity") as no:
        model.delete(X[1], Y[1])
    assert isinstance(no.value, CapacityExhausted) and model.deletes_seen == 1


def test_equal_two_gammas():
    small, large = (calibrated(gamma=g, finalised=False)[0] for g in (0.01, 1.0))
    assert small.N_star > large.N_star
    named = pair()
    for x, y in zip(*family("linear", 3, 0.5, 0, 60), strict=True):
        named.calibrate_step(x, y)
    assert named.finalize_calibration(gamma_learn=0.01)["N_star"] == small.N_star
    ways = [PrivacyOdometer(1.0, 1e-5, 0.1, gamma=0.5)]
    ways += [PrivacyOdometer(1.0, 1e-5, 0.1, gamma_priv=0.5)]
    for odometer in ways:
        odometer.finalize_with(STATS, 20_000)
    late = PrivacyOdometer(1.0, 1e-5, 0.1)
    late.finalize_with(STATS, 20_000, gamma_priv=0.5)
    assert {o.deletion_capacity for o in (*ways, late)} == {ways[0].deletion_capacity}
    assert ways[0].deletion_capacity > 1 and late.gamma_priv == 0.5
    with pytest.raises(ValueError, match="one target"):
        PrivacyOdometer(1.0, 1e-5, 0.1, gamma=0.2, gamma_priv=0.5)
    with pytest.raises(RuntimeError, match="finalised"):
        late.finalize_with(STATS, 20_000, gamma_priv=9.0)
    assert late.gamma == 0.5


def test_equal_finalisation_by_gamma_or_stats():
    twins = [pair(), pair(), pair()]
    for x, y in zip(*family("linear", 3, 0.5, 0, 60), strict=True):
        for model in twins:
            model.calibrate_step(x, y)
    by_gamma, by_stats, elsewhere = twins
    wanted = by_gamma.finalize_calibration(0.02)
    stats = by_stats.calibrator.finalize(0.02, by_stats)
    assert by_stats.phase is Phase.CALIBRATION
    assert by_stats.finalize_calibration(stats) == wanted == stats
    for model in (by_gamma, by_stats):
        assert model.phase is by_gamma.phase and model.N_star == wanted["N_star"]
        assert model.metrics().gamma_learn == 0.02
    for wrong in ((), (stats,), ({"G": 1.0},)):
        with pytest.raises((TypeError, ValueError), match=r"gamma_learn|N_star"):
            elsewhere.finalize_calibration(*wrong)
        assert elsewhere.phase is Phase.CALIBRATION
    assert elsewhere.finalize_calibration(stats, gamma_learn=0.02) == wanted


def test_equal_metric_names():
    model, stats, _, _ = calibrated()
    found = model.metrics().to_dict()
    names = """N_star_theory m_theory eps_step_theory delta_step_theory
        sigma_step_theory G_hat D_hat c_hat C_hat avg_regret_empirical phase eps_spent
        capacity_remaining gamma_learn gamma_priv quantile D_cap""".split()
    assert set(names) <= set(found) and None not in (found[name] for name in names)
    assert (found["G_hat"], found["D_hat"]) == (stats["G"], stats["D"])


# -- what behaves differently ------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "labels"])
def test_the_learner_learns(kind):
    for dim, seed in ((3, 0), (3, 1), (20, 2)):
        X, Y = family(kind, dim, 0.5, seed, 300)
        model = pair(dim)
        found = [model.calibrate_step(x, y) for x, y in zip(X, Y, strict=True)]
        losses = (np.array(found) - Y) ** 2
        assert np.mean(losses[150:]) < 0.8 * np.mean(Y[150:] ** 2)
        stats = model.finalize_calibration(0.5)
        assert stats["G"] < 20.0 and stats["D"] < 10.0 and stats["N_star"] < 10**6
    raw = Seed(3, safeguard=False)
    X, Y = family(kind, 3, 0.5, 0, 300)
    assert np.mean((raw.insert_many(X, Y) - Y) ** 2) > 100.0 * np.mean(Y**2)


def test_the_step_is_implicit_and_shrinks():
    mode = Seed(4, step=0.7)
    X, Y = family("linear", 4, 2.0, 3, 50)
    for t, (x, y) in enumerate(zip(X, Y, strict=True), 1):
        w = mode.theta
        residual = float(w @ x) - y
        d = mode.lbfgs.direction(residual * x)
        curvature = -float(d @ x) / residual
        eta = 0.7 / math.sqrt(t)
        mode.insert(x, y)
        np.testing.assert_allclose(mode.theta, w + eta / (1 + eta * curvature) * d)
        after = (float(mode.theta @ x) - y) / residual
        assert after == pytest.approx(1 / (1 + eta * curvature), abs=1e-9)


def test_weights_stay_within_d_cap():
    cap = Calibrator(D_cap=0.5)
    model = pair(calibrator=cap)
    X, Y = family("linear", 3, 0.5, 0, 100)
    for x, y in zip(X, Y, strict=True):
        model.calibrate_step(x, 10.0 * y)
        assert np.linalg.norm(model.theta) <= 0.5 * (1 + 1e-12)
    assert model.finalize_calibration(1.0)["D"] == 0.5
    free = Seed(3, radius=0.5, safeguard=False)
    free.insert(X[0], 10.0)
    assert np.linalg.norm(free.theta) > 0.5


def test_regret_in_theory_stands_beside_the_measured_one():
    model, stats, X, Y = calibrated(records=200)
    w = np.linalg.lstsq(X, Y, rcond=None)[0]
    found, odometer = model.metrics(), model.odometer
    R_ins = stats["G"] * stats["D"] * math.sqrt(stats["c"] * stats["C"] * 200)
    assert found.avg_regret_theory == pytest.approx(R_ins / 200, rel=1e-12)
    model.delete(X[0], Y[0])
    inner = 2 * math.log(1.25 / 1e-5) / 1.0 * 2 * math.log(1 / 0.05)
    R_del = stats["G"] / odometer.lambda_ * math.sqrt(inner)
    theory = model.metrics().avg_regret_theory
    assert theory == pytest.approx((R_ins + R_del) / 200, rel=1e-12)
    # Regret is measured against a comparator, and is negative against predicting 0.
    assert found.comparator == "zero" and found.avg_regret_empirical < 0.0
    best = calibrated(records=200, comparator=w)[0].metrics()
    assert best.comparator == "given" and best.avg_regret_empirical > 0.0


def test_regret_in_theory_is_no_bound():
    """sqrt(c C) grows with the square of the features, and a bound would not."""
    above = {}
    for scale in (0.1, 2.0):
        X, Y = family("linear", 3, scale, 0, 300)
        model = pair(comparator=np.linalg.lstsq(X, Y, rcond=None)[0])
        for x, y in zip(X, Y, strict=True):
            model.calibrate_step(x, y)
        model.finalize_calibration(1.0)
        found = model.metrics()
        above[scale] = found.avg_regret_empirical > found.avg_regret_theory
    assert above == {0.1: True, 2.0: False}


def test_quantile_is_that_of_section_six():
    assert Calibrator().quantile == 0.95


def test_the_caller_finalises_the_odometer():
    model, stats, X, Y = calibrated(finalised=False)
    assert not model.odometer.ready_to_delete
    with pytest.raises(RuntimeError, match="Odometer not finalized"):
        model.delete(X[0], Y[0])
    over_n_star = PrivacyOdometer(1.0, 1e-5, lambda_=0.1)
    over_n_star.finalize_with(stats, T_estimate=stats["N_star"])
    assert over_n_star._status == "degenerate"  # never room
    model.odometer.finalize_with(stats, T_estimate=20_000)
    assert model.odometer.ready_to_delete


def test_learning_ends_at_once_if_calibration_saw_enough():
    model, stats, _, _ = calibrated(gamma=10.0)
    assert stats["N_star"] <= 60 and model.phase is Phase.INTERLEAVING


def test_readiness_counts_inserts():
    model, _, X, Y = calibrated(records=5, gamma=0.02, finalised=False)
    assert model.events_seen == model.inserts_seen < model.N_star
    assert not model.can_predict


def test_deletions_wait_for_interleaving():
    model, _, X, Y = calibrated(records=5, gamma=0.02)
    assert model.odometer.ready_to_delete
    with pytest.raises(RuntimeError, match="not allowed in phase LEARNING"):
        model.delete(X[0], Y[0])
    assert model.odometer.eps_spent == 0.0


def test_a_second_finalisation_is_refused():
    model, stats, _, _ = calibrated()
    m = model.odometer.deletion_capacity
    with pytest.raises(RuntimeError, match="second budget"):
        model.odometer.finalize_with(stats, T_estimate=10**6)
    assert model.odometer.deletion_capacity == m


@pytest.mark.parametrize("records", [0, 1])
def test_too_few_observations_give_defaults(records):
    stats = calibrated(records=records, finalised=False)[1]
    assert stats == {"G": 1.0, "D": 1.0, "c": 1.0, "C": 1.0, "N_star": 1}


def test_gradients_and_n_star_are_cut():
    calibrator = Calibrator()
    for theta in (0.0, 9.0):
        calibrator.observe(np.array([1e9]), np.array([theta]))
    stats = calibrator.finalize(1e-6, None)
    assert (stats["G"], stats["N_star"]) == (100.0, 1_000_000)


def test_curvature_is_that_of_the_stored_pairs():
    model, stats, _, _ = calibrated()
    basis = np.eye(3)
    H = np.array([-model.lbfgs.direction(e) for e in basis])
    c, C = 1.0 / np.linalg.eigvalsh((H + H.T) / 2)[[-1, 0]]
    assert (stats["c"], stats["C"]) == pytest.approx((c, C), rel=1e-6)
    assert pair().lbfgs_bounds() == (1.0, 1.0)


def test_noise_is_the_operating_systems_and_charged():
    found = []
    for _ in range(2):
        np.random.seed(0)  # what the original draws from
        model, _, X, Y = calibrated()
        model.delete(X[0], Y[0])
        found.append(model.theta)
        odometer = model.odometer
        assert odometer.private and odometer._payment.reservation.drawn == 1
        assert odometer.entry.declaration.cost.at(demur.Erasure()) is not None
    assert not np.array_equal(*found)


def test_above_epsilon_eight_the_real_cost_is_recorded():
    arguments = (40.0, 1e-5, 0.1)
    own = PrivacyOdometer(*arguments)
    own.finalize_with(STATS, 1000)
    m, delta = own.deletion_capacity, 1e-5
    sigma = 2.3 / 0.1 * math.sqrt(2 * math.log(1.25 * m / delta)) / (40.0 / m)
    assert own.sigma_step == pytest.approx(sigma, rel=1e-12)
    real = gaussian_epsilon(math.sqrt(m) / own.z, delta)
    assert own.ledger.epsilon() == pytest.approx(real, rel=1e-6) and real > 40.0
    given = Ledger(demur.Budget(40.0, 1e-5), unit=demur.Erasure())
    declined = PrivacyOdometer(*arguments, ledger=given)
    with pytest.raises(demur.BudgetExceeded):
        declined.finalize_with(STATS, 1000)
    assert not declined.ready_to_delete and not given.entries()


@pytest.mark.parametrize("bad", [[math.nan] * 3, [math.inf, 0, 0], [1.0], "abc"])
def test_bad_records_change_nothing(bad):
    model, _, X, Y = calibrated()
    before = model.theta.tolist(), model.events_seen, model._seed.digest()
    for call in (model.insert, model.delete):
        for record in ((bad, 1.0), (X[0], math.nan)):
            with pytest.raises((ValueError, TypeError)):
                call(*record)
    assert (model.theta.tolist(), model.events_seen, model._seed.digest()) == before
    assert model.odometer.eps_spent == 0.0


# -- the page ----------------------------------------------------------------------


def test_every_line_of_the_tables_names_its_test():
    sections = PAGE.read_text().split("\n## ")
    named = []
    for title in ("What is equal", "What behaves differently"):
        (section,) = (s for s in sections if s.startswith(title))
        header, _, *rows = [s for s in section.splitlines() if s.startswith("|")]
        assert header.endswith("| test |") and len(rows) >= 10
        for row in rows:
            test = row.strip("| ").rsplit("|", 1)[1].strip(" `")
            assert callable(globals().get(f"test_{test}")), row
            named.append(f"test_{test}")
    tests = {name for name in globals() if name.startswith("test_")}
    others = {"test_every_line_of_the_tables_names_its_test", "test_families"}
    assert tests - set(named) == others


# -- families ----------------------------------------------------------------------


def ogd(X, Y, radius=10.0):
    """Online gradient descent with the steps D / sqrt(2 sum g^2), in the same ball."""
    w, total, losses = np.zeros(X.shape[1]), 0.0, np.empty(len(Y))
    for t, (x, y) in enumerate(zip(X, Y, strict=True)):
        residual = float(w @ x) - y
        losses[t] = residual**2
        g = residual * x
        total += float(g @ g)
        w = w - radius / math.sqrt(2.0 * total) * g
        w *= min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))
    return losses


@pytest.mark.deep
@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("dim", [3, 20])
@pytest.mark.parametrize("kind", ["linear", "labels"])
def test_families(kind, dim, scale):
    """Of 40 seeds, none is worse than predicting 0, and G, D and N* mean something."""
    for seed in range(40):
        X, Y = family(kind, dim, scale, seed, 1000)
        model = pair(dim)
        found = [model.calibrate_step(x, y) for x, y in zip(X, Y, strict=True)]
        losses, zero = (np.array(found) - Y) ** 2, float(np.mean(Y**2))
        assert losses.mean() < zero and losses[500:].mean() < np.mean(Y[500:] ** 2)
        assert losses.mean() < 2.5 * ogd(X, Y).mean()
        stats = model.finalize_calibration(zero / 4)  # half the loss of predicting 0
        assert 0.0 < stats["G"] < 100.0 and 0.0 < stats["D"] <= 10.0
        assert 0.0 < stats["c"] <= stats["C"] < math.inf
        # sqrt(c C) grows with the square of the features, and N* with the fourth power.
        assert 1 <= stats["N_star"] <= {0.1: 100, 0.5: 10**4, 2.0: 10**6}[scale]
