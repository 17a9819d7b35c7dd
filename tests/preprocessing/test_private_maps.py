"""Private standardisation and PCA: what one record moves, what is paid and kept."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from demur.core import recording
from demur.core.accounting.gaussian import gaussian_mu
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.entropy import Seeded
from demur.core.errors import BudgetExceeded, NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from demur.preprocessing import PrivatePCA, PrivateStandardScaler

pytestmark = pytest.mark.slow

MAPS = {
    "scaler": PrivateStandardScaler(radius=0.2),
    "pca": PrivatePCA(n_components=2, radius=0.2),
}
every_map = pytest.mark.parametrize("name", MAPS)
X = np.random.default_rng(0).normal(size=(200, 3)) * [0.1, 0.3, 0.5] + [0.2, 0.0, -0.1]


def of(name, **parameters):
    return clone(MAPS[name]).set_params(**parameters)


def moments(name, rows, monkeypatch, **parameters):
    """The exact value that noise is added to, and the mechanism that adds it."""
    seen = []
    real = Gaussian.release

    def spy(self, value, **named):
        seen.append((np.array(value), self))
        return real(self, value, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Gaussian, "release", spy)
        of(name, **parameters).fit(rows)
    return seen[0]


def pairs(r, B, trials=12):
    """Neighbours: a record of two moves by r inside the ball, often where it counts."""
    rng = np.random.default_rng(1)
    for trial in range(trials):
        rows = rng.normal(size=(2, 3))
        x = rng.normal(size=3)
        x *= B / np.linalg.norm(x) * (1.0 if trial % 2 else rng.uniform())
        if trial % 3 == 0:
            x = np.array([B, 0.0, 0.0])
        away = rng.normal(size=3) if trial % 3 else np.array([-1.0, 1e-3, 0.0])
        other = x + r * away / np.linalg.norm(away)
        other *= min(1.0, B / np.linalg.norm(other))
        yield np.vstack([rows, x]), np.vstack([rows, other])


@every_map
@pytest.mark.parametrize("unit", [Ball(0.2, space="records"), ReplaceOne()])
def test_one_record_moves_the_moments_by_at_most_mu(name, unit, monkeypatch):
    B, mu = 1.0, gaussian_mu(1.0, 1e-6)
    r = unit.radius if isinstance(unit, Ball) else 2.0 * B
    largest = 0.0
    for one, two in pairs(r, B):
        given = {"unit": unit, "radius": None, "epsilon": 1.0, "norm_bound": B}
        (a, mechanism), (b, _) = (
            moments(name, rows, monkeypatch, **given) for rows in (one, two)
        )
        largest = max(largest, float(np.linalg.norm(a - b) / mechanism.sigma))
    assert largest <= mu
    # Twin: less noise would be caught, and the bound is attained at a ball.
    assert largest > (0.999 if isinstance(unit, Ball) else 0.6) * mu


@every_map
def test_it_is_calibrated_charged_once_and_declined(name):
    unit = Ball(0.2, space="records")
    ledger = Ledger(Budget(1.0, 1e-6), unit=unit)
    fitted = of(name, ledger=ledger).fit(X)
    assert len(ledger.entries()) == 1 and 0.99 < ledger.epsilon() <= 1.0
    assert fitted.entry_.id == ledger.entries()[0].id
    before = dict(vars(fitted))
    with pytest.raises(BudgetExceeded):
        fitted.fit(X)
    assert dict(vars(fitted)) == before and len(ledger.entries()) == 1
    fresh = of(name, ledger=ledger)
    with pytest.raises(BudgetExceeded):
        fresh.fit(X)
    assert not hasattr(fresh, "n_features_in_")


@every_map
def test_only_released_numbers_are_kept(name, monkeypatch):
    exact, _ = moments(name, X, monkeypatch)
    fitted = of(name).fit(X)
    kept = pickle.dumps(fitted)
    own = {"mean_", "scale_"} if name == "scaler" else {"components_"}
    attributes = {key for key in vars(fitted) if key.endswith("_")}
    assert attributes == own | {"entry_", "n_features_in_"}
    for value in exact:
        assert value.tobytes() not in kept
    assert next(iter(getattr(fitted, min(own)).ravel())).tobytes() in kept


@every_map
def test_every_draw_is_paid_for(name):
    tape = recording.Tape()
    with recording.watching(tape):
        of(name, source=Seeded(1)).fit(X)
    assert len(tape.charges) == 1 and len(tape.uses) == 1


def test_a_scaler_learns_where_the_noise_lets_it():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(20_000, 3)) * [0.05, 0.2, 0.1] + [0.3, -0.2, 0.0]
    fitted = PrivateStandardScaler(epsilon=4.0, radius=0.5).fit(rows)
    assert fitted.mean_ == pytest.approx([0.3, -0.2, 0.0], abs=0.01)
    assert fitted.scale_ == pytest.approx([0.05, 0.2, 0.1], rel=0.1)
    # Little data: deviations that cannot be told from noise are not divided by.
    poor = PrivateStandardScaler(epsilon=0.1, unit=ReplaceOne()).fit(rows[:50])
    assert (poor.scale_ > 0.5).all()


def test_a_pca_finds_the_plane():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(20_000, 2)) @ rng.normal(size=(2, 6)) * 0.1
    rows += 0.01 * rng.normal(size=rows.shape)
    fitted = PrivatePCA(2, epsilon=2.0, unit=ReplaceOne()).fit(rows)
    gram = fitted.components_ @ fitted.components_.T
    assert gram == pytest.approx(np.eye(2), abs=1e-12)
    inside = rows * np.minimum(1.0, 1.0 / np.linalg.norm(rows, axis=1))[:, None]
    left = inside - inside @ fitted.components_.T @ fitted.components_
    assert np.linalg.norm(left) < 0.2 * np.linalg.norm(inside)


@every_map
def test_wrong_parameters_cost_nothing(name):
    ledger = Ledger(Budget(1.0, 1e-6), unit=Ball(0.2, space="records"))
    for wrong, words in (
        ({"radius": None}, "radius must be declared"),
        ({"unit": ReplaceOne()}, "both given"),
        ({"unit": AddOrRemoveOne(), "radius": None}, "number of records is public"),
        ({"norm_bound": 0.0}, "norm_bound must be positive"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            of(name, ledger=ledger, **wrong).fit(X)
    with pytest.raises(ValueError, match="at most 3"):
        PrivatePCA(4, radius=0.2, ledger=ledger).fit(X)
    assert not ledger.entries()


def test_clones_share_a_ledger_pickles_leave_it_and_seeds_are_stamped():
    ledger = Ledger(Budget(1.0, 1e-6), unit=Ball(0.2, space="records"))
    one = of("scaler", ledger=ledger)
    assert clone(one).ledger is ledger
    with pytest.raises(NotPrivate, match="stayed behind"):
        pickle.loads(pickle.dumps(one)).fit(X)
    seeded = of("scaler", source=Seeded(1)).fit(X)
    assert "NOT PRIVATE" in seeded.entry_.statement()


@pytest.mark.parametrize("kind", [PrivateStandardScaler, PrivatePCA])
def test_a_row_that_is_refused_is_a_condition_of_the_statement(kind):
    rows = np.random.default_rng(0).normal(size=(30, 3))
    with pytest.raises(ValueError, match="some rows hold NaN"):
        kind(radius=0.2).fit(np.where(np.arange(90).reshape(30, 3) == 7, np.nan, rows))
    assumptions = kind(radius=0.2).fit(rows).entry_.declaration.assumptions
    assert any("every record is a row of finite numbers" in one for one in assumptions)
