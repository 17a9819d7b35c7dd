"""Errors of the originals that demur grew from: each test has one in its twin."""

import math

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from demur import (
    AddOrRemoveOne,
    Ball,
    Bound,
    Seeded,
    ZeroOut,
    gaussian_sigma,
    to_unit_cube,
)
from demur.cluster import PrivateKMeans
from demur.compat.bpm import clustering
from demur.convex import (
    BallLogisticRegression,
    Fit,
    HeadForm,
    compute_radius_policy,
)
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.core.accounting.gaussian import gaussian_delta
from demur.errors import NotCovered, NotPrivate
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian
from demur.unlearning.models import OGD
from tests.known_bugs.kit import UNIT, sound_and_twin


def two_blobs(n=40, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = rng.normal(size=(n, 2)) * 0.05 + np.where(y, 0.5, -0.5)[:, None]
    return X, y


@pytest.mark.slow
def test_seed_the_radius_is_read_off_the_private_data():
    """Whatever is published beside the noise is equal in two neighbouring worlds."""
    X, y = two_blobs()
    other = X.copy()
    other[0] = [0.1, -0.3]

    def publishes_the_same(public_numbers):
        assert public_numbers(X) == public_numbers(other)

    def nearest(rows):
        ends = NearestNeighbors(n_neighbors=2).fit(rows[y == 0])
        return float(np.median(ends.kneighbors(rows[y == 0])[0][:, 1]))

    def fit(rows, radius):
        head = BallLogisticRegression(
            radius=radius, lam=0.1, classes=(0, 1), source=Seeded(1)
        ).fit(rows, y)
        return head.privacy_.radius, head.privacy_.sigma

    sound_and_twin(
        publishes_the_same, lambda X: fit(X, 0.2), lambda X: fit(X, nearest(X))
    )
    with pytest.raises(NotPrivate):
        compute_radius_policy(X, y, norm_bound=1.0)
    with pytest.raises(ValueError, match="radius must be declared"):
        BallLogisticRegression().fit(X, y)


def test_seed_an_estimated_bound_passes_for_a_fact():
    """A number read off the data makes the statement conditional, in capitals."""

    def says_so(source):
        mechanism = Gaussian(1.0, {UNIT: 1.0}, bounds=(Bound(0.5, source, "radius"),))
        release = mechanism.release([0.0], ledger=_ledger(), label="x")
        assert "CONDITIONAL" in release.statement()

    sound_and_twin(says_so, "estimated", "declared")


def _ledger():
    return Ledger(Budget(9.0, 1e-6), unit=UNIT)


def test_seed_a_quantile_of_gradients_is_taken_for_their_bound():
    """One record in a thousand beyond the 95% quantile moves the model farther."""
    n, at = 1000, 400
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[:, -1] = 0.0
    Y = 0.05 * X[:, 0]
    X[at] = np.eye(5)[-1]
    Y[at] = 1e6

    def run(without):
        mode = OGD(5, lam=0.1)
        norms = []
        for i in range(n):
            if i == without:
                mode.skip()
                continue
            residual = abs(float(mode.published() @ X[i]) - Y[i])
            norms.append(min(residual, 1.0) * np.linalg.norm(X[i]))
            mode.insert(X[i], float(Y[i]))
        return mode, norms

    whole, norms = run(None)
    moved = np.linalg.norm(whole.published() - run(at)[0].published())

    def covers(bound):
        assert moved <= bound

    share = float(np.quantile(norms, 0.95)) / whole.gradient_bound
    assert share < 0.5
    sound_and_twin(covers, whole.shift_bound(), share * whole.shift_bound())
    assert moved > 0.5 * whole.shift_bound()


def test_seed_a_private_n_in_the_sensitivity():
    """Delta = G / (lam n) + ...: where n is secret, sigma would tell it."""

    def does_not_tell(cost_of):
        for unit in (AddOrRemoveOne(), ZeroOut()):
            stated = []
            for n in (100, 101):
                try:
                    stated.append(cost_of(n).at(unit))
                except NotCovered:
                    stated.append(None)
            assert stated[0] == stated[1]

    def ours(n):
        form = HeadForm("logistic", lam=0.1, norm_bound=1.0)
        unit = Ball(0.5, space="records")
        return erm_sensitivity(form, unit, Fit(n)).table.cost(1.0)

    def everywhere(n):
        moved = 2 / (0.1 * n)
        return Gaussian(1.0, {AddOrRemoveOne(): moved}).declaration().cost

    sound_and_twin(does_not_tell, ours, everywhere)
    for unit in (AddOrRemoveOne(), ZeroOut()):
        with pytest.raises(NotCovered):
            ours(100).at(unit)


@pytest.mark.parametrize("epsilon", [20.0, 50.0, 100.0])
def test_seed_the_classic_formula_above_epsilon_one(epsilon):
    def keeps_delta(sigma):
        assert gaussian_delta(1 / sigma, epsilon) <= 1e-6 * (1 + 1e-9)

    classic = math.sqrt(2 * math.log(1.25e6)) / epsilon
    sound_and_twin(keeps_delta, gaussian_sigma(epsilon, 1e-6), classic)
    with pytest.raises(ValueError, match="epsilon <= 1"):
        gaussian_sigma(epsilon, 1e-6, method="classic")


def test_seed_scaled_by_the_smallest_and_largest_value():
    """One record's report changes when that record does, and nobody else's."""
    rng = np.random.default_rng(0)
    X = rng.uniform(2.0, 3.0, size=(20, 2))
    other = X.copy()
    other[0] = [9.0, -5.0]

    def moves_one_report(scale):
        reports = [
            BPM(4.0, 0.5, 2).privatize(scale(rows), ledger=None, source=Seeded(7))
            for rows in (X, other)
        ]
        changed = (reports[0].value.values != reports[1].value.values).any(axis=1)
        assert changed.sum() <= 1

    def public_box(rows):
        return to_unit_cube(rows, -10.0, 10.0).data

    def min_max(rows):
        return (rows - rows.min(axis=0)) / (rows.max(axis=0) - rows.min(axis=0))

    sound_and_twin(moves_one_report, public_box, min_max)


@pytest.mark.parametrize(
    "act",
    [
        lambda X: BPM(4.0, 0.5, 2).privatize(X, ledger=None),
        lambda X: PrivateKMeans(2, epsilon=4.0).fit(X),
        lambda X: clustering.PrivateKMeans(2, 4.0, 0.5).fit(X),
    ],
)
def test_seed_rows_outside_the_cube_are_scaled_in_silence(act):
    X = np.random.default_rng(0).uniform(2.0, 3.0, size=(20, 2))
    with pytest.raises(ValueError, match="public bounds"):
        act(X)
