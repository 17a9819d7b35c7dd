"""Values that are false and still mean something: row 23 of the list."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

import demur
from demur import (
    AddOrRemoveOne,
    Ball,
    LipschitzMap,
    Promise,
    Seeded,
    clip_rows,
    gaussian_mu,
    gaussian_sigma,
    price,
)
from demur.cluster import PrivateKMeans
from demur.convex import (
    BallLogisticRegression,
    BallPrototypeClassifier,
    Fit,
    HeadForm,
    private_radius,
    release_head,
)
from demur.core.accounting.events import GaussianEvent, PoissonGaussian, Pure, Repeated
from demur.core.curve import PiecewiseLinear
from demur.errors import BudgetExceeded, DemurError
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms import BPM
from demur.mechanisms import Gaussian as GaussianMechanism
from demur.training import clipped_grad, dp_sgd
from demur.unlearning import PrivacyOdometer
from demur.unlearning.models import OGD
from demur.unlearning.pricing import capacity
from tests.known_bugs.kit import UNIT, says, sound_and_twin
from tests.training.kit import make_plan, train

X = np.random.default_rng(0).normal(size=(40, 2)) / 4
Y = (X[:, 0] > 0).astype(int)
SOURCE = Path(demur.__file__).parent


def plan(**changes):
    parameters = {
        "iterations": 3,
        "sampling_prob": 0.1,
        "noise_multiplier": 1.0,
        "neighboring_relation": "ADD_OR_REMOVE_ONE",
        "l2_clip_norm": 1.0,
    }
    return dp_sgd(**(parameters | changes)).make()


def target(**changes):
    return plan(noise_multiplier=None, **({"epsilon": 1.0, "delta": 1e-5} | changes))


def head(*, lam=0.1, radius=0.5, epsilon=1.0, delta=1e-6, n=100):
    form = HeadForm("logistic", lam=lam, norm_bound=1.0)
    promise = Promise(Ball(radius, space="records"), epsilon, delta)
    return release_head([0.5, 0.1], form, promise, Fit(n, gradient_norm=0.0))


# 0 is a number that was given. Where it is meaningless it is refused, by name.
ZERO_IS_REFUSED = {
    "Budget epsilon": lambda: Budget(0),
    "Gaussian multiplier": lambda: GaussianEvent(0),
    "PoissonGaussian multiplier": lambda: PoissonGaussian(0.1, 0),
    "Repeated count": lambda: Repeated(Pure(1.0), 0),
    "records per person": lambda: AddOrRemoveOne(records_per_person=0),
    "radius of a ball": lambda: Ball(0.0, space="s"),
    "Lipschitz constant": lambda: LipschitzMap("a", "b", 0.0),
    "slope": lambda: PiecewiseLinear.linear(0.0),
    "cap": lambda: PiecewiseLinear.linear(1.0, cap=0.0),
    "clip norm": lambda: clip_rows([[1.0]], 0.0),
    "gaussian_mu epsilon": lambda: gaussian_mu(0.0, 1e-6),
    "gaussian_mu delta": lambda: gaussian_mu(1.0, 0.0),
    "gaussian_sigma delta": lambda: gaussian_sigma(1.0, 0.0),
    "mechanism sigma": lambda: GaussianMechanism(0.0, {UNIT: 1.0}),
    "mechanism dimension": lambda: GaussianMechanism(1.0, {UNIT: 1.0}, 0),
    "BPM epsilon": lambda: BPM(0.0, 0.3, 2),
    "block_delta": lambda: Ledger(
        Budget(9.0, 1e-5), unit=UNIT, filter=Filter.pure()
    ).charge(says(Repeated(PoissonGaussian(0.1, 1.0), 3)), label="x", block_delta=0.0),
    "reservation count": lambda: Ledger(Budget(1.0), unit=UNIT).reserve(
        says(Pure(0.1)), count=0, label="x"
    ),
    "label": lambda: Ledger(Budget(1.0), unit=UNIT).charge(says(Pure(0.1)), label=""),
    "idempotency_key": lambda: Ledger(Budget(1.0), unit=UNIT).charge(
        says(Pure(0.1)), label="x", idempotency_key=""
    ),
    "digest": lambda: Ledger(Budget(1.0), unit=UNIT).charge(
        says(Pure(0.1)), label="x", digest=""
    ),
    "head epsilon": lambda: head(epsilon=0.0),
    "head delta": lambda: head(delta=0.0),
    "head radius": lambda: head(radius=0.0),
    "head lam": lambda: head(lam=0.0),
    "head n": lambda: head(n=0),
    "estimator epsilon": lambda: BallLogisticRegression(epsilon=0, radius=1).fit(X, Y),
    "estimator delta": lambda: BallLogisticRegression(delta=0, radius=1).fit(X, Y),
    "estimator radius": lambda: BallPrototypeClassifier(radius=0).fit(X, Y),
    "estimator classes": lambda: BallPrototypeClassifier(radius=1, classes=()).fit(
        X, Y
    ),
    "private_radius": lambda: private_radius(X, Y, epsilon=0, norm_bound=1.0),
    "private_radius grid": lambda: private_radius(
        X, Y, epsilon=1.0, norm_bound=1.0, grid=()
    ),
    "kmeans epsilon": lambda: PrivateKMeans(2, epsilon=0).fit(np.abs(X) % 1),
    "kmeans clusters": lambda: PrivateKMeans(0, epsilon=1.0).fit(np.abs(X) % 1),
    "noise_multiplier": lambda: plan(noise_multiplier=0.0),
    "plan iterations": lambda: plan(iterations=0),
    "plan clip norm": lambda: plan(l2_clip_norm=0.0),
    "plan normalize_by": lambda: plan(normalize_by=0.0),
    "target epsilon": lambda: target(epsilon=0.0),
    "target delta": lambda: target(delta=0.0),
    "num_examples": lambda: plan(num_examples=0),
    "microbatch_size": lambda: clipped_grad(
        lambda w, x: w * x, l2_clip_norm=1.0, microbatch_size=0
    ),
    "fit delta": lambda: train(make_plan(iterations=2), delta=0.0),
    "fit delta with a ledger": lambda: train(
        make_plan(iterations=2),
        delta=0.0,
        ledger=Ledger(Budget(50.0, 1e-5), unit=UNIT, filter=Filter.pure()),
    ),
    "fit minibatch_size": lambda: train(
        make_plan(iterations=2), shapes=None, minibatch_size=0
    ),
    "fit average": lambda: train(make_plan(iterations=2), average=0.0),
    "capacity z": lambda: capacity.capacity(0.0, 1.0, 1e-6),
    "capacity delta": lambda: capacity.capacity(1.0, 1.0, 0.0),
    "OGD lambda": lambda: OGD(2, lam=0.0),
    "OGD t0": lambda: OGD(2, t0=0.0),
    "OGD radius": lambda: OGD(2, radius=0.0),
    "odometer epsilon": lambda: PrivacyOdometer(0.0, 1e-5, 0.1),
    "odometer delta": lambda: PrivacyOdometer(1.0, 0.0, 0.1),
}


@pytest.mark.parametrize("place", ZERO_IS_REFUSED)
def test_row_23_zero_is_taken_for_nothing_given(place):
    def refuses(act):
        try:
            act()
        except (ValueError, DemurError):
            return
        raise AssertionError("0 was replaced by a default")

    def coerced(epsilon=0.0):
        return epsilon or math.inf

    sound_and_twin(refuses, ZERO_IS_REFUSED[place], coerced)


def test_row_23_a_delta_of_zero_is_a_delta():
    """Gaussian noise has no epsilon there: infinite, never that of a default."""

    def is_infinite(read):
        assert read(0.0) == math.inf

    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    ledger.charge(says(GaussianEvent(9.0)), label="x")

    def with_a_default(delta):
        return ledger.epsilon(delta=delta or 1e-6)

    sound_and_twin(is_infinite, lambda d: ledger.epsilon(delta=d), with_a_default)
    is_infinite(lambda delta: price(GaussianEvent(9.0), delta))
    is_infinite(lambda delta: ledger.entries()[0].epsilon(UNIT, delta))


def test_row_23_an_empty_ledger_is_a_ledger():
    """No length, no falsehood: `ledger or own` would throw a fresh ledger away."""
    ledger = Ledger(Budget(1.0, 1e-6), unit=Ball(0.5, space="records"))
    assert bool(ledger)
    fitted = BallLogisticRegression(radius=0.5, lam=0.1, ledger=ledger).fit(X, Y)
    assert [entry.id for entry in ledger.entries()] == [fitted.privacy_.entry.id]
    with pytest.raises(BudgetExceeded):
        fitted.fit(X, Y)


@pytest.mark.parametrize("seed", [0, -1, 2**70])
def test_row_23_seed_zero_is_a_seed(seed):
    """Two sources of one seed agree, and seed 0 is neither 1 nor the system's."""
    assert Seeded(seed).new_key() == Seeded(seed).new_key()
    assert Seeded(seed).new_key() != Seeded(seed + 1).new_key()
    heads = [
        BallLogisticRegression(radius=0.5, lam=0.1, source=Seeded(seed)).fit(X, Y)
        for _ in range(2)
    ]
    assert np.array_equal(heads[0].coef_, heads[1].coef_)
    assert "NOT PRIVATE" in heads[0].privacy_.statement()


# -- `x or default`, by reading the source ---------------------------------------------

NUMBERS = ("float", "int", "float | None", "int | None", "Optional[float]")
# Where 0 and nothing are the same, or 0 was refused before.
ZERO_IS_NOTHING = {
    ("audit/black_box.py", "runs"): "a count that is shown; no audit has 0 runs",
    ("mechanisms/correlated/buffered.py", "buffers"): "a count, checked above",
    ("training/optimizers.py", "momentum"): "no momentum is momentum 0",
    ("training/sizes/defaults.py", "flops"): "unknown is no time, as 0 operations",
    ("unlearning/models/ogd.py", "grid"): "no grid moves nothing, as a grid of 0",
    (
        "training/sizes/defaults.py",
        "microbatch_size",
    ): "a count, checked by clipped_grad",
}


def coerced_numbers(text):
    """Names of numeric arguments that stand before an `or` whose value is used."""
    names = set()
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = function.args
        numeric = {
            one.arg
            for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)
            if one.annotation is not None and _is_number(ast.unparse(one.annotation))
        }
        for node in ast.walk(function):
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
                for value in node.values[:-1]:
                    if isinstance(value, ast.Name) and value.id in numeric:
                        names.add(value.id)
    return names


def _is_number(annotation):
    inner = annotation.removeprefix("Annotated[").split(",")[0]
    return annotation in NUMBERS or inner in NUMBERS


@pytest.mark.slow
def test_row_23_a_number_before_an_or():
    def has_none(files):
        names = {(name, one) for name in files for one in coerced_numbers(files[name])}
        assert not names - set(ZERO_IS_NOTHING)

    files = {
        str(path.relative_to(SOURCE)): path.read_text()
        for path in sorted(SOURCE.rglob("*.py"))
    }
    bug = "def fit(epsilon: float | None = None):\n    return epsilon or 8.0\n"
    sound_and_twin(has_none, files, {"x.py": bug})
