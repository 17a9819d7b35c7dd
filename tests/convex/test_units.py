"""Units of a head: calibrated where the promise is made, and what fits a ledger."""

import re

import numpy as np
import pytest

from demur import Promise
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    BallSoftmaxClassifier,
    Fit,
    HeadForm,
    load_head,
    save_head,
)
from demur.convex.heads.prototypes import plan_prototypes
from demur.convex.rows.class_sums import exact_sums
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.core.accounting.gaussian import gaussian_mu
from demur.core.adjacency import Ball, ReplaceOne, one_record
from demur.core.bounds import Bound, BoundSource
from demur.core.errors import BudgetExceeded
from demur.ledger import Budget, Ledger
from tests.convex.kit import blobs, into_ball

pytestmark = pytest.mark.slow

X, Y = blobs(400, 4, 2)
HEADS = {
    "prototypes": BallPrototypeClassifier,
    "logistic": BallLogisticRegression,
    "softmax": BallSoftmaxClassifier,
    "noisy gd": lambda **k: BallLogisticRegression(mechanism="noisy_gd", steps=5, **k),
}
UNITS = {
    "ball": Ball(0.3, space="minilm"),
    "ball of three records": Ball(0.3, space="minilm", records_per_person=3),
    "replacement": ReplaceOne(),
    "replacement of three records": ReplaceOne(records_per_person=3),
}
every_head = pytest.mark.parametrize("name", HEADS)


@every_head
@pytest.mark.parametrize("at", UNITS)
def test_a_head_is_calibrated_at_its_unit(name, at):
    """mu is that of (epsilon, delta) at the unit itself, neither more nor less."""
    unit = UNITS[at]
    head = HEADS[name](epsilon=2.0, unit=unit, classes=[0, 1]).fit(X, Y)
    mu = gaussian_mu(2.0, 1e-6)
    assert mu * (1 - 1e-4) < head.privacy_.mu <= mu
    assert head.entry_.epsilon(unit, 1e-6) <= 2.0
    assert head.privacy_.unit == unit
    assert head.privacy_.radius == (0.3 if isinstance(unit, Ball) else None)
    # One record of the same unit costs no more than the person's share of it.
    single = one_record(unit)
    share = mu / unit.records_per_person
    assert head.privacy_._event(single).multiplier >= 1.0 / (share * (1 + 1e-3))


@every_head
def test_a_radius_is_short_for_a_ball(name):
    short = HEADS[name](radius=0.3, space="minilm").fit(X, Y).privacy_
    long = HEADS[name](unit=Ball(0.3, space="minilm")).fit(X, Y).privacy_
    assert short.promise == long.promise and short.sigma == long.sigma


def test_a_person_with_k_records_moves_the_minimiser_k_times_and_the_solver_once():
    form = HeadForm("logistic", lam=0.01, norm_bound=1.0)
    fit = Fit(1000, tau=1e-3)
    one = erm_sensitivity(form, Ball(0.3, space="s"), fit).parts
    three = erm_sensitivity(form, Ball(0.3, space="s", records_per_person=3), fit).parts
    assert three.total == pytest.approx(3 * one.from_record + one.from_solver, rel=1e-6)
    assert three.total < 3 * one.total * 0.99


@every_head
def test_a_head_at_a_replacement_is_saved_with_its_unit(name, tmp_path):
    head = HEADS[name](epsilon=4.0, unit=ReplaceOne(), classes=[0, 1]).fit(X, Y)
    save_head(head, tmp_path / "head.npz")
    loaded = load_head(tmp_path / "head.npz")
    assert loaded.unit == ReplaceOne() and loaded.privacy_.unit == ReplaceOne()
    assert (loaded.predict(X) == head.predict(X)).all()
    assert loaded.privacy_.to_json() == head.privacy_.to_json()


# -- prototypes at a replacement -----------------------------------------------------


def counted_plan(counts, d=3, **more):
    promise = Promise(ReplaceOne(), 1.0, 1e-6)
    bound = Bound(1.0, BoundSource.ENFORCED)
    return plan_prototypes(
        np.asarray(counts), promise, dimension=d, lam=0.0, bound=bound,
        step=2.0**-44, **more,
    )  # fmt: skip


def shift_of(plan, one, two):
    """How far apart the two exact values are, in deviations of their noise."""
    values = []
    for rows, labels in (one, two):
        sums, _ = exact_sums(rows, labels, 4, 1.0)
        values.append(plan.value(sums, np.bincount(labels, minlength=4)))
    return float(np.linalg.norm((values[0] - values[1]) / plan.mechanism.sigma))


def test_any_replacement_is_one_shift_of_at_most_mu():
    """Labels change too, down to classes that lose their only record."""
    rng = np.random.default_rng(1)
    mu = gaussian_mu(1.0, 1e-6)
    labels = np.repeat(np.arange(4), [1, 2, 5, 40])
    same, other = 0.0, 0.0
    for trial in range(60):
        rows = into_ball(rng.normal(size=(len(labels), 3)) * 3.0, 1.0)
        j = trial % len(labels)
        moved, relabelled = rows.copy(), labels.copy()
        if trial % 2:
            moved[j] = -rows[j]
            relabelled[j] = rng.integers(4)
        else:
            moved[j] = into_ball(rng.normal(size=3) * 3.0, 1.0)
            relabelled[j] = (labels[j] + 1) % 4
        plan = counted_plan(np.bincount(labels))
        shift = shift_of(plan, (rows, labels), (moved, relabelled))
        changed = relabelled[j] != labels[j]
        same, other = (
            (same, max(other, shift)) if changed else (max(same, shift), other)
        )
        # Twin: exact counts would show a change of label with certainty.
        if changed:
            assert (np.bincount(labels, minlength=4)
                    != np.bincount(relabelled, minlength=4)).any()  # fmt: skip
    assert mu * (1 - 1e-4) < same <= mu
    assert mu * (1 - 1e-4) < other <= mu


def test_the_noise_at_a_replacement_depends_on_n_alone():
    """Its parameters are public: class counts must not show in them."""
    one, two = counted_plan([1, 2, 5, 40]), counted_plan([12, 12, 12, 12])
    assert np.array_equal(one.mechanism.sigma, two.mechanism.sigma)
    assert one.mechanism.fingerprint == two.mechanism.fingerprint
    assert one.counts is None and one.denominators is None


def test_released_counts_are_positive_and_near():
    plan = counted_plan([5, 500, 20_000])
    rng = np.random.default_rng(2)
    sums = np.ones((3, 3))
    noisy = plan.value(sums, np.array([5, 500, 20_000]))
    known = plan.read(noisy + plan.mechanism.sigma * rng.normal(size=len(noisy)))
    assert (known.counts > 0).all()
    assert known.counts[1:] == pytest.approx([500, 20_000], abs=50)
    assert known.sigma == pytest.approx(plan.width / np.maximum(known.counts, 1.0))


# -- what fits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("prototypes", Ball(0.3, space="minilm")),
        pytest.param("logistic", ReplaceOne()),
        pytest.param("noisy gd", Ball(0.3, space="minilm")),
    ],
)
def test_a_decline_names_the_epsilon_that_fits(name, asked):
    wider = Ball(0.6, space="minilm") if isinstance(asked, Ball) else ReplaceOne()
    ledger = Ledger(Budget(1.0, 1e-6), unit=wider)
    head = HEADS[name](epsilon=3.0, unit=asked, classes=[0, 1], ledger=ledger)
    with pytest.raises(BudgetExceeded, match="would have fitted") as declined:
        head.fit(X, Y)
    assert str(asked) in str(declined.value) and not ledger.entries()
    found = re.search(r"With epsilon=([\d.e-]+) at", str(declined.value))
    assert found is not None
    fitting = float(found[1])
    with pytest.raises(BudgetExceeded):
        head.set_params(epsilon=fitting * 1.02).fit(X, Y)
    head.set_params(epsilon=fitting).fit(X, Y)


def test_a_decline_says_that_nothing_fits():
    ledger = Ledger(Budget(1.0, 1e-6), unit=Ball(0.3, space="records"))
    head = BallPrototypeClassifier(radius=0.3, ledger=ledger).fit(X, Y)
    with pytest.raises(BudgetExceeded, match="No epsilon from 0.001 at Ball"):
        head.fit(X, Y)


def test_whether_a_charge_would_fit_is_asked_without_a_charge():
    unit = Ball(0.3, space="records")
    ledger = Ledger(Budget(1.0, 1e-6), unit=unit)
    plan = plan_prototypes(
        np.array([10, 10]), Promise(unit, 0.8, 1e-6), dimension=3, lam=0.0,
        bound=Bound(1.0, BoundSource.ENFORCED), step=2.0**-44,
    )  # fmt: skip
    before = ledger.tip()
    assert ledger.would_fit(plan.mechanism) and ledger.tip() == before
    plan.mechanism.release(np.zeros(6), ledger=ledger)
    assert not ledger.would_fit(plan.mechanism) and len(ledger.entries()) == 1
