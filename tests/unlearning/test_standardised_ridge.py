"""Least squares that standardises its own features, and forgets those numbers too."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from demur.cli import app
from demur.unlearning import (
    MemoryPair,
    PrivacyOdometer,
    RecordMismatch,
    UnknownRecord,
    UnlearningService,
    make_mode,
    verify_against_retrain,
)
from demur.unlearning.models import Ridge, StandardisedRidge
from demur.unlearning.models import standardised_kernels as kernels
from demur.unlearning.retrain.worlds import stream
from demur.unlearning.stream.losses import best_in_hindsight, loss_of

STEP = 2.0**24 / 2.0**48


def raw_rows(n, seed=0):
    """Features of very different units and offsets, one of them constant."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) * [1e-2, 1.0, 1e4, 0.0] + [0.0, 50.0, 1e6, 7.0]
    y = 30.0 * X[:, 0] - X[:, 1] + X[:, 2] / 1e4 + 0.1 * rng.normal(size=n)
    return X, y


def on_grid(values):
    return np.round(values / STEP) * STEP


def whole(sums):
    """The sums as Python's integers."""
    low, middle, high = (limb.astype(object) for limb in sums)
    return low + middle * 2**32 + high * 2**64


# -- the sums ----------------------------------------------------------------------


def test_sums_of_products_are_exact():
    rng = np.random.default_rng(1)
    rows = rng.integers(-(2**48), 2**48 + 1, size=(200, 4))
    rows[:4] = [[2**48, -(2**48), 2**48, -1], [0, 1, -1, 2**24]] * 2
    sums = np.zeros((3, 4, 4), dtype=np.int64)
    for k in rows:
        kernels.add(sums, k, 1)
    exact = rows.astype(object).T @ rows.astype(object)
    assert (np.tril(whole(sums)) == np.tril(exact)).all()
    with np.errstate(over="ignore"):
        wrapped = (rows.T @ rows).astype(object)
    assert (np.tril(wrapped) != np.tril(exact)).any(), "64 bits must not be enough"
    before = sums.copy()
    for k in (*rows[:50], *-rows[:50]):
        kernels.add(sums, k, 1)
        kernels.add(sums, k, -1)
    assert (sums == before).all()


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e7])
def test_means_and_deviations(offset):
    """Against fractions. Sums of floats lose the deviation at the large offset."""
    rng = np.random.default_rng(2)
    X = on_grid(offset + rng.normal(size=(300, 1)) * 1e-3)
    mode = StandardisedRidge(1)
    mode.insert_many(X, np.zeros(300))
    values = [Fraction(float(x)) for x in X[:, 0]]
    mean = sum(values) / 300
    variance = sum((v - mean) ** 2 for v in values) / 300
    means, deviations = mode.standardisation()
    assert means[0] == pytest.approx(float(mean), rel=1e-15)
    assert deviations[0] == pytest.approx(float(variance) ** 0.5, rel=1e-14)
    floats = np.sqrt(max(np.mean(X**2) - np.mean(X) ** 2, 0.0))
    if offset == 1e7:
        assert abs(floats - deviations[0]) > 1e-2 * deviations[0]


@pytest.mark.parametrize("classes", [None, 3])
@pytest.mark.parametrize("d", [4, 40])
def test_weights_are_those_of_standardised_least_squares(d, classes):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, d)) * np.geomspace(0.1, 1e3, d) + np.arange(d) * 10.0
    X[:, 2] = 5.0
    X = on_grid(X)
    y = rng.integers(0, 3, size=200) if classes else on_grid(X[:, 0] * 3.0 + X[:, 1])
    mode = StandardisedRidge(d, Lambda=2.5, classes=classes)
    mode.insert_many(X, y)
    spread = np.where(np.arange(d) == 2, 1.0, X.std(axis=0))
    Z = (X - X.mean(axis=0)) / spread
    targets = np.eye(3)[y] if classes else y[:, None]
    mean = targets.mean(axis=0)
    v = np.linalg.solve(Z.T @ Z + 2.5 * np.eye(d), Z.T @ (targets - mean))
    found = mode.published().reshape(-1, d + 1)
    np.testing.assert_allclose(found[:, :d] * spread, v.T, rtol=1e-9, atol=1e-12)
    scores = Z @ v + mean
    rows = X[:20]
    if classes:
        assert [mode.predict(x) for x in rows] == list(scores[:20].argmax(axis=1))
        assert mode.probabilities(rows[0]).sum() == pytest.approx(1.0)
    else:
        predictions = [mode.predict(x) for x in rows]
        np.testing.assert_allclose(predictions, scores[:20, 0], rtol=1e-9)
    assert (found[:, 2] == 0.0).all(), "a constant feature has no weight"


def test_units_and_offsets_do_not_matter():
    X, y = raw_rows(150)
    mode, other = StandardisedRidge(4), StandardisedRidge(4)
    mode.insert_many(X, y)
    units, offsets = np.array([64.0, 0.25, 2.0**-6, 1.0]), [3.0, -20.0, 5.0, 0.0]
    other.insert_many(X * units + offsets, y)
    one = np.array([mode.predict(x) for x in X])
    two = np.array([other.predict(x) for x in X * units + offsets])
    np.testing.assert_allclose(one, two, atol=1e-3)
    assert np.abs(one - y).mean() < 0.2
    plain = [Ridge(4, norm_bound=1e7, y_bound=1e3, bits=30) for _ in range(2)]
    plain[0].insert_many(X, y)
    plain[1].insert_many(X * units + offsets, y)
    worst = max(
        abs(plain[0].predict(a) - plain[1].predict(b))
        for a, b in zip(X, X * units + offsets, strict=True)
    )
    assert worst > 0.1, "without standardising they do"


# -- forgetting --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "config"),
    [(4, {}), (4, {"refresh": 7}), (40, {}), (4, {"classes": 3})],
)
def test_a_deletion_leaves_the_state_of_the_others(d, config):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(120, d)) * np.geomspace(1e-2, 1e5, d) + 1e3
    y = rng.integers(0, 3, size=120).astype(float)
    gone = set(rng.permutation(120)[:40].tolist())
    mode, replay = StandardisedRidge(d, **config), StandardisedRidge(d, **config)
    live: list[int] = []
    for t in range(120):
        mode.insert(X[t], y[t])
        if t not in gone:
            replay.insert(X[t], y[t])
        live.append(t)
        doomed = [i for i in live if i in gone and i < t - 3]
        if doomed:
            i = doomed[int(rng.integers(len(doomed)))]
            live.remove(i)
            mode.delete(X[i], y[i])
            replay.forget_nothing()
    for i in [i for i in live if i in gone]:
        mode.delete(X[i], y[i])
        replay.forget_nothing()
    assert mode.digest() == replay.digest()
    for key, value in mode.state().items():
        assert value.tobytes() == replay.state()[key].tobytes(), key
    survivors = [i for i in range(120) if i not in gone]
    fresh = StandardisedRidge(d, **config)
    fresh.insert_many(X[survivors[::-1]], y[survivors[::-1]])
    assert fresh.digest() == mode.digest()
    assert (fresh.published() == mode.published()).all()
    for one, two in zip(mode.standardisation(), fresh.standardisation(), strict=True):
        assert (one == two).all()


@pytest.mark.parametrize("refresh", [1, 7])
def test_nobody_is_left(refresh):
    """Nor the last one's means, in any array of the model."""
    X, y = raw_rows(5)
    mode = StandardisedRidge(4, refresh=refresh)
    mode.insert_many(X, y)
    for x, target in zip(X, y, strict=True):
        mode.delete(x, target)
    assert mode.digest() == StandardisedRidge(4, refresh=refresh).digest()
    assert not mode.published().any() and mode.records == 0
    own = {name for name, value in vars(mode).items() if isinstance(value, np.ndarray)}
    assert {"_system", "_spread", "_integers"} <= own
    assert not [n for n in own - {"_constants"} if getattr(mode, n).any()]


def test_an_interrupted_solve_is_done_again(monkeypatch):
    X, y = raw_rows(20)
    mode, whole = StandardisedRidge(4, refresh=7), StandardisedRidge(4, refresh=7)
    for one in (mode, whole):
        one.insert_many(X, y)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "solve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mode.predict(X[0])
    assert mode.predict(X[0]) == whole.predict(X[0])


@pytest.mark.parametrize("classes", [None, 3])
def test_records_beyond_the_bounds_are_refused(classes):
    """Seconds since 1970, clipped, would be one constant feature."""
    X = 1.7e9 + 86_400.0 * np.arange(20.0)[:, None]
    y = np.arange(20.0) if classes is None else np.arange(20) % 3
    mode = StandardisedRidge(1, classes=classes)
    mode.insert([5.0], y[0])
    digest = mode.digest()
    for act in (
        lambda: mode.insert(X[0], y[0]),
        lambda: mode.insert_many(X, y),
        lambda: mode.predict(X[0]),
        lambda: mode.delete(X[0], y[0]),
        lambda: mode.check(X[0], y[0]),
    ):
        with pytest.raises(
            ValueError, match="beyond feature_bound.*Nothing"
        ) as refusal:
            act()
        assert "1.7e+09" not in str(refusal.value)
    if classes is None:
        for act in (lambda: mode.insert([1.0], 2e7), lambda: mode.check([1.0], -2e7)):
            with pytest.raises(ValueError, match="1 target.*beyond y_bound"):
                act()
        with pytest.raises(ValueError, match="2 target.*beyond y_bound"):
            mode.insert_many([[1.0], [2.0], [3.0]], [1.0, 2e7, -2e7])
    assert mode.digest() == digest
    wide = StandardisedRidge(1, feature_bound=2.0**31, classes=classes)
    wide.insert_many(X, y)
    if classes is None:
        assert wide.predict(X[7]) == pytest.approx(7.0, abs=0.5)


@pytest.mark.parametrize("d", [2, 40])
def test_a_tiny_Lambda_is_lost_among_collinear_features(d):
    """What the docstring says: kept at 1e-9 n, lost below 1e-12 n, answers good."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, d))
    X[:, 1] = X[:, 0]
    y = 3.0 * X[:, 0]
    for share, kept in ((1e-9, True), (1e-22, False)):
        mode = StandardisedRidge(d, Lambda=share * 60)
        mode.insert_many(X, y)
        halves = np.abs(mode.published()[:2] - 1.5).max()
        assert (halves < 1e-3) == kept
        assert max(abs(mode.predict(x) - t) for x, t in zip(X, y, strict=True)) < 1e-4


def test_strangers_are_refused_where_they_can_be_seen():
    X, y = raw_rows(50)
    mode = StandardisedRidge(4)
    mode.insert_many(X, y)
    before = mode.state()
    strangers = [
        (X[3] + [0.0, 0.0, 1e7, 0.0], y[3]),  # more than all squares together
        (X[3] + [0.0, 0.0, 0.0, 50.0], y[3]),  # what is left has a negative variance
    ]
    for x, target in strangers:
        with pytest.raises(ValueError, match="not among the live ones"):
            mode.delete(x, target)
    assert all((mode.state()[key] == before[key]).all() for key in before)
    with pytest.raises(ValueError, match="51 record"):
        mode.delete(np.vstack([X, X[:1]]), np.append(y, y[0]), records=51)


def test_ids_refuse_strangers_and_second_deletions():
    X, y = raw_rows(30)
    odometer = PrivacyOdometer(1.0, 1e-5, lam=0.1)
    pair = MemoryPair(4, odometer, mode="standardised_ridge")
    odometer.finalize_with(pair.finalize_calibration(1.0), T_estimate=1000)
    for i in range(30):
        pair.insert(X[i], float(y[i]), record_id=f"r{i}")
    digest = pair.mode.digest()
    with pytest.raises(RecordMismatch):
        pair.delete(X[4], y[4], record_id="r3")
    assert pair.mode.digest() == digest
    pair.delete(X[3], y[3], record_id="r3")
    with pytest.raises(UnknownRecord):
        pair.delete(X[3], y[3], record_id="r3")
    with pytest.raises(UnknownRecord):
        pair.delete(X[5], y[5])  # by content, but all have ids
    fresh = make_mode("standardised_ridge", 4)
    fresh.insert_many(np.delete(X, 3, axis=0), np.delete(y, 3))
    assert pair.mode.digest() == fresh.digest()


class ScaledFirst(Ridge):
    """The twin: rows are scaled by running statistics, then learned exactly.

    It does the best one can do: it knows which row was learned for a record, subtracts
    that very row, and takes the record back from its statistics.
    """

    def __init__(self, dimension, **config):
        super().__init__(dimension, **config)
        self.learned: dict[bytes, np.ndarray] = {}
        self.moments = np.zeros((2, dimension))
        self.seen = 0

    def scaled(self, x):
        self.seen += 1
        self.moments += [x, np.square(x)]
        mean, square = self.moments / self.seen
        deviation = np.sqrt(np.maximum(square - mean**2, 1e-12))
        return (x - mean) / deviation / 4.0

    def insert(self, x, y):
        x = np.asarray(x, dtype=float)
        row = self.scaled(x)
        self.learned[x.tobytes()] = row
        return super().insert(row, y)

    def insert_many(self, X, Y):
        return np.array([self.insert(x, y) for x, y in zip(X, Y, strict=True)])

    def delete(self, x=None, y=None, noise=None, *, records=1, grid=None):
        for record in np.atleast_2d(x):
            self.moments -= [record, np.square(record)]
            self.seen -= 1
        rows = [self.learned.pop(r.tobytes()) for r in np.atleast_2d(x)]
        super().delete(np.array(rows), y, noise, records=records)

    def copy(self):
        twin = super().copy()
        twin.learned = dict(self.learned)
        twin.moments, twin.seen = self.moments.copy(), self.seen
        return twin


@pytest.mark.slow
def test_the_retrain_test_tells_them_apart():
    X, _ = raw_rows(60, seed=5)
    X[20] *= 3.0
    events = stream(X, np.sign(X[:, 0]), {40: 20, 55: 31})
    report = verify_against_retrain(StandardisedRidge(4), events, trials=100)
    assert report.passed, report.failures
    broken = verify_against_retrain(ScaledFirst(4), events, trials=100)
    assert not broken.passed
    assert any(failure.startswith("digest") for failure in broken.failures)


@pytest.mark.slow
def test_a_service_standardises_too(tmp_path):
    X, y = raw_rows(12)
    address = tmp_path / "service"
    with UnlearningService.open(
        address, mode="standardised_ridge", dimension=4
    ) as service:
        for i in range(12):
            service.insert(X[i], float(y[i]), record_id=f"r{i}")
        certificate = service.delete("r5", X[5], float(y[5]))
        assert certificate.theorem == "standardised-exact"
    fresh = StandardisedRidge(4)
    fresh.insert_many(np.delete(X, 5, axis=0), np.delete(y, 5))
    with UnlearningService.open(address) as service:
        assert service.predict(X[5]) == fresh.predict(X[5])
        assert service.status().live == 11


def test_options_are_checked():
    for options, message in (
        ({"feature_bound": 0.0}, "feature_bound"),
        ({"feature_bound": 1e60}, "between"),
        ({"y_bound": -1.0}, "y_bound"),
        ({"Lambda": 0.0}, "Lambda"),
        ({"classes": 1}, "at least 2"),
        ({"classes": 2, "y_bound": 1.0}, "leave it out"),
        ({"refresh": 0}, "refresh"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            StandardisedRidge(3, **options)
    mode = StandardisedRidge(2, feature_bound=10.0, y_bound=1.0)
    row, target = mode.check([10.0, -3.0], -1.0)
    assert list(row) == [10.0, -3.0] and target == -1.0
    with pytest.raises(ValueError, match="NaN"):
        mode.insert([np.nan, 1.0], 0.0)
    with pytest.raises(ValueError, match="no noise"):
        mode.delete([1.0, 1.0], 0.0, np.zeros(3))
    with pytest.raises(ValueError, match="needs the record"):
        mode.delete()
    with pytest.raises(ValueError, match="not a state"):
        mode.restore(StandardisedRidge(3).state() | {"w": np.zeros(3)})


# -- in a stream -------------------------------------------------------------------


def paired(d=4, **options):
    odometer = PrivacyOdometer(1.0, 1e-5, lam=0.1)
    return MemoryPair(d, odometer, mode="standardised_ridge", **options)


@pytest.mark.parametrize("classes", [None, 3])
def test_regret_against_a_comparator_with_an_intercept(classes):
    X, y = raw_rows(30)
    y = np.arange(30) % 3 if classes else y
    u = np.random.default_rng(8).normal(size=5 * (classes or 1)) / 1e6
    options = {} if classes is None else {"classes": classes}
    with pytest.raises(ValueError, match=f"comparator must be {u.size} finite"):
        paired(comparator=u[1:], **options)  # before anything is learned
    pair = paired(comparator=u, **options)
    for x, target in zip(X[:10], y[:10], strict=True):
        pair.calibrate_step(x, float(target))
    pair.finalize_calibration(1.0)
    for at in range(10, 30):
        pair.insert(X[at], float(y[at]), record_id=f"r{at}")
    scores = np.column_stack([X, np.ones(30)]) @ u.reshape(-1, 5).T
    own = scores[np.arange(30), y] - 1.0 if classes else scores[:, 0] - y
    found = pair.metrics()
    expected = found.avg_loss_empirical - (own**2 / 2.0).mean()
    assert found.avg_regret_empirical == pytest.approx(expected, rel=1e-9)


def test_the_best_in_hindsight_has_an_intercept():
    X, y = raw_rows(200)
    loss = loss_of(StandardisedRidge(4))
    u = best_in_hindsight(loss, X, y)
    rows = np.column_stack([X[:, :3], np.ones(200)])
    exact = rows @ np.linalg.lstsq(rows, y, rcond=None)[0]
    found = [loss.of_parameters(u, x, 0.0) for x in X]
    np.testing.assert_allclose(found, exact, atol=1e-3)
    assert u[3] == 0.0 and len(u) == StandardisedRidge(4).size


def test_calibration_does_not_depend_on_units():
    """In raw units G would be at its cap and N* a million: no deletion for ever."""
    X, y = raw_rows(80)
    units, offsets = np.array([64.0, 0.25, 2.0**-6, 1.0]), [3.0, -20.0, 5.0, 0.0]
    stats = []
    for rows, targets in ((X, y), (X * units + offsets, y * 4096.0 - 1e6)):
        pair = paired()
        for x, target in zip(rows[:40], targets[:40], strict=True):
            pair.calibrate_step(x, float(target), record_id=f"c{len(pair.registry)}")
        stats.append(pair.finalize_calibration(1.0))
        pair.insert_many(rows[40:], targets[40:])
        assert pair.ready_to_predict
        pair.odometer.finalize_with(pair.stats, T_estimate=1000)
        pair.delete(rows[20], targets[20], record_id="c20")
        assert pair.calibrator.observations == 20
    assert stats[0].G == pytest.approx(stats[1].G, rel=1e-3) and stats[0].G < 20.0
    assert stats[0].D == pytest.approx(stats[1].D, rel=1e-3) and 0.1 < stats[0].D < 2.0
    assert stats[0].N_star < 80


@pytest.mark.parametrize("classes", [None, 2])
def test_planning_units(classes):
    """Against differences of the loss by standardised weights."""
    X, y = raw_rows(50)
    mode = StandardisedRidge(4, classes=classes)
    mode.insert_many(X, np.arange(50) % 2 if classes else y)
    means, deviations = X.mean(axis=0), X.std(axis=0)
    unit = 1.0 if classes else y.std()
    own = mode.published()[:5]
    planned = own[:4] * deviations / unit
    np.testing.assert_allclose(mode.planned_parameters()[:4], planned, rtol=1e-5)
    target = 1.0 if classes else y[7]

    def loss(v, level):
        w = np.divide(v * unit, deviations, out=np.zeros(4), where=deviations > 0)
        score = w @ (X[7] - means) + level * unit + own[4] + own[:4] @ means
        return (score - target) ** 2 / 2.0 / unit**2

    raw = (own[:4] @ X[7] + own[4] - target) * np.append(X[7], 1.0)
    found = mode.planned_gradient(raw)
    for j in range(5):
        step = np.eye(5)[j] * 1e-4
        ahead, behind = (loss(planned + s[:4], s[4]) for s in (step, -step))
        assert found[j] == pytest.approx((ahead - behind) / 2e-4, abs=1e-5)


@pytest.mark.slow
def test_the_command_line_has_it(tmp_path):
    X, y = raw_rows(60)
    lines = ["op,id,y,a,b,c,e"]
    for i, (x, target) in enumerate(zip(X, y, strict=True)):
        lines.append(f"insert,r{i},{target},{','.join(map(str, x))}")
        lines += [f"delete,r{i - 20},,,,,"] if i >= 50 else []
    table, weights = tmp_path / "stream.csv", tmp_path / "w.npz"
    table.write_text("\n".join(lines))
    mode = ["--mode", "standardised_ridge"]
    ran = CliRunner().invoke(
        app,
        [
            "unlearn",
            "run",
            str(table),
            *mode,
            "--calibration",
            "20",
            "-o",
            str(weights),
        ],
    )
    assert ran.exit_code == 0, ran.output
    with np.load(weights) as file:
        saved = dict(file)
    assert list(saved["features"]) == ["a", "b", "c", "e", "intercept"]
    fresh = StandardisedRidge(4, Lambda=0.1 * 60)
    kept = [i for i in range(60) if not 30 <= i < 40]
    fresh.insert_many(X[kept], y[kept])
    assert (saved["weights"] == fresh.published()).all()
    opened = CliRunner().invoke(
        app, ["unlearn", "open", str(tmp_path / "s"), *mode, "--dimension", "4"]
    )
    assert opened.exit_code == 0 and "standardised_ridge" in opened.output
