"""Bugs of bounds and sensitivities: each test is named after one, its twin has it.

The tests replay: two neighbouring worlds, equal noise, and the value under the noise
must not move farther than was declared.
"""

import math

import numpy as np
import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    ReplaceOne,
    Seeded,
    Sensitivity,
    clip_rows,
    to_unit_cube,
)
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
)
from demur.core.accounting.events import GaussianEvent
from demur.errors import BudgetExceeded, NotCovered
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian, GaussianReports
from demur.unlearning.models import OGD
from tests.known_bugs.kit import UNIT, says, sound_and_twin

BOXES = [(0.0, 5.0), (-1.0, 9.0), (2.0, 3.0), (-7.0, 0.0), (-3.0, -2.5)]


@pytest.mark.parametrize(("low", "high"), BOXES)
def test_row_05_the_lower_bound_used_twice(low, high):
    """A column in [low, high] is high - low wide, whatever the two numbers are."""
    rng = np.random.default_rng(0)
    pairs = rng.uniform(low, high, size=(200, 2, 1))
    pairs[0, :, 0] = low, high
    cube = to_unit_cube(pairs.reshape(-1, 1), low, high, space="column")
    images = cube.data.reshape(-1, 2)

    def is_stretched_no_more(constant):
        for (one, two), (here, there) in zip(pairs[..., 0], images, strict=True):
            assert abs(here - there) <= constant * abs(one - two) * (1 + 1e-12)

    def widest(lower, upper):
        """max(|lower|, |upper|) with the lower one in both places."""
        return max(abs(lower), abs(lower))

    twin = 1 / widest(low, high) if widest(low, high) else 0.0
    is_stretched_no_more(cube.space.from_source.constant)
    # Where low is far from 0, the wrong width is too large and the constant too small.
    if twin < 1 / (high - low):
        with pytest.raises(AssertionError):
            is_stretched_no_more(twin)
    # And the price of a report follows the stretched radius.
    price = BPM(2.0, math.inf, 1).declaration(cube.space.name).cost
    unit = Ball(high - low, space="column")
    charged = price.at(unit, (cube.space.from_source,)).epsilon
    assert charged >= 2.0 * (images.max() - images.min()) * (1 - 1e-12)
    assert (images.min(), images.max()) == (0.0, 1.0)


def separable(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True), (X[:, 0] > 0).astype(int)


def released(make, X, y):
    head = make().fit(X, y)
    return np.append(getattr(head, "coef_", 0.0), getattr(head, "prototypes_", 0.0))


HEADS = {
    "prototypes": lambda: BallPrototypeClassifier(
        epsilon=5.0, radius=0.5, lam=0.1, classes=(0, 1), source=Seeded(1)
    ),
    "logistic": lambda: BallLogisticRegression(
        epsilon=5.0, radius=0.5, lam=0.1, classes=(0, 1), source=Seeded(1)
    ),
    "noisy descent": lambda: BallLogisticRegression(
        epsilon=5.0,
        radius=0.5,
        lam=0.1,
        classes=(0, 1),
        mechanism="noisy_gd",
        steps=5,
        source=Seeded(1),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_row_06_clipped_and_then_the_raw_rows_used(name):
    """A row of any length counts as its projection: the same noise, the same head."""
    X, y = separable()
    wild = X.copy()
    wild[7] *= 1e6

    def uses_the_clipped(fit):
        np.testing.assert_allclose(fit(wild), fit(X), rtol=1e-6, atol=1e-9)

    def ours(rows):
        return released(HEADS[name], rows, y)

    def raw_after_all(rows):
        clip_rows(rows, 1.0)  # clipped, and forgotten
        return rows[y == 1].mean(axis=0)

    sound_and_twin(uses_the_clipped, ours, raw_after_all)


def test_row_06_unlearning_uses_the_clipped_rows():
    X, y = separable()

    def learn(rows):
        mode = OGD(3)
        mode.insert_many(rows, y.astype(float))
        return mode.published()

    wild = X.copy()
    wild[7] *= 1e6
    np.testing.assert_allclose(learn(wild), learn(X), rtol=1e-9)


def test_row_21_one_person_with_many_rows():
    """A person who owns k rows moves the sum by k rows, and is charged for them."""
    rows = 50
    person = np.full((rows, 1), 1.0)
    everyone = np.zeros((10, 1))

    def total(world):
        return float(clip_rows(world, 1.0).data.sum())

    moved = abs(total(np.vstack([everyone, person])) - total(everyone))
    cost = Gaussian(10.0, {AddOrRemoveOne(): 1.0}).declaration().cost

    def charges_for_the_person(unit):
        assert 10.0 / cost.at(unit).multiplier >= moved

    sound_and_twin(
        charges_for_the_person,
        AddOrRemoveOne(records_per_person=rows),
        AddOrRemoveOne(),
    )
    # A ledger for persons declines what it would allow for rows.
    budget = Budget(3.0, 1e-6)
    Ledger(budget, unit=UNIT).charge(says(GaussianEvent(10.0)), label="rows")
    persons = Ledger(budget, unit=AddOrRemoveOne(records_per_person=rows))
    with pytest.raises(BudgetExceeded):
        persons.charge(says(GaussianEvent(10.0)), label="persons")
    # And what was stated for rows alone says nothing about larger persons.
    stated = AddOrRemoveOne(records_per_person=2)
    with pytest.raises(NotCovered):
        says(GaussianEvent(10.0), stated).cost.at(AddOrRemoveOne(records_per_person=3))


@pytest.mark.parametrize("moved", [0.0, -0.0, -1.0])
def test_row_27_a_sensitivity_of_zero(moved):
    """A query that "does not move" would be released without noise, for nothing."""

    def refuses(make):
        try:
            sigma = make(moved)
        except ValueError:
            return
        raise AssertionError(f"noise of {sigma} for a sensitivity of {moved}")

    sound_and_twin(
        refuses,
        lambda s: Sensitivity.of({UNIT: s}),
        lambda s: s * math.sqrt(2 * math.log(1.25e6)),
    )
    sound_and_twin(
        refuses,
        lambda s: (
            Gaussian.calibrated(
                epsilon=1.0, delta=1e-6, sensitivity={UNIT: s}, unit=UNIT
            ).sigma
        ),
        lambda s: 4.22 * s,
    )


def test_row_27_the_domain_read_off_the_data():
    """np.unique of the labels tells who is there: such a head is silent about it."""
    X, y = separable()
    other = y.copy()
    other[0] = 2  # one record replaced: the only one of its class

    def is_silent(fit):
        here, there = fit(y), fit(other)
        if list(here.classes_) == list(there.classes_):
            return
        for head in (here, there):
            try:
                head.cost.at(ReplaceOne())
            except NotCovered:
                continue
            raise AssertionError("promises what its classes give away")

    class Ours:
        def __init__(self, labels):
            head = BallSoftmaxClassifier(radius=0.5, lam=0.1).fit(X, labels)
            self.classes_ = head.classes_
            self.cost = head.privacy_.entry.declaration.cost
            self.text = head.privacy_.statement()

    class Careless:
        def __init__(self, labels):
            self.classes_ = np.unique(labels)
            self.cost = Gaussian(9.0, {ReplaceOne(): 1.0}).declaration().cost

    sound_and_twin(is_silent, Ours, Careless)
    assert "read off the labels" in Ours(y).text


BAD = [math.nan, math.inf, -math.inf]
TAKES_ROWS = {
    "clip_rows": lambda X: clip_rows(X, 1.0),
    "to_unit_cube": lambda X: to_unit_cube(X, 0.0, 1.0),
    "BPM": lambda X: BPM(1.0, 0.5, 3).privatize(X, ledger=None),
    "GaussianReports": lambda X: GaussianReports(1.0, 3).privatize(X, ledger=None),
    "head": lambda X: HEADS["logistic"]().fit(X, separable()[1]),
    "OGD": lambda X: OGD(3).insert_many(X, np.zeros(len(X))),
    "Gaussian": lambda X: Gaussian(1.0, {UNIT: 1.0}, X.size).check(X),
}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("door", TAKES_ROWS)
def test_row_27_nan_passes_the_clip(door, value):
    X = np.abs(separable()[0])
    X[3, 1] = value

    def stops(act):
        try:
            act(X)
        except ValueError:
            return
        raise AssertionError("went through")

    def clips(rows):
        """np.clip(nan, 0, 1) is nan, and so is the sum that was to be at most n."""
        return float(np.clip(rows, 0.0, 1.0).sum())

    sound_and_twin(stops, TAKES_ROWS[door], clips)
