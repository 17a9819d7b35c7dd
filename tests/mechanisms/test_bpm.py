"""BPM: closed forms, the promise, charging, refusals."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demur.core.accounting.events import Pure
from demur.core.adjacency import AddOrRemoveOne, Ball, LipschitzMap, ReplaceOne, Unit
from demur.core.declaration import Declaration
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import (
    BudgetExceeded,
    IdempotencyConflict,
    NoiseReuse,
    NotCovered,
    NotPrivate,
)
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Reports
from demur.mechanisms.bpm.constants import log_gamma_p
from tests.keys import os_key

VECTORS = json.loads(
    (Path(__file__).parent.parent / "vectors" / "bpm.json").read_text()
)["rows"]
DIMENSIONS = [1, 2, 3, 7, 20, 64]
POINTS = [[0.1, 0.9], [0.5, 0.5], [0.0, 1.0]]


def seeded_key(seed: int) -> NoiseKey:
    return NoiseKey(Seeded(seed).new_key(), private=False)


def pure_ledger(epsilon: float = 10.0, radius: float = 0.2) -> Ledger:
    return Ledger(Budget(epsilon), unit=Ball(radius, space="cube"), filter="pure")


# -- closed forms ------------------------------------------------------------------


def exact(epsilon: float, L: float, d: int) -> dict[str, mp.mpf]:
    """The constants in 60 digits, from incomplete gamma functions by their series."""
    with mp.workdps(60):
        k, x = mp.mpf(epsilon), mp.mpf(epsilon) * mp.mpf(L)

        def lower(a: int) -> mp.mpf:  # log P(a, x)
            if x > a + 50 * mp.sqrt(a):
                return mp.mpf(0)
            series = mp.log(mp.hyp1f1(1, a + 1, x))
            return a * mp.log(x) - x - mp.loggamma(a + 1) + series

        half = mp.mpf(d) / 2
        whole = mp.loggamma(d + 1) + half * mp.log(mp.pi) - mp.loggamma(half + 1)
        whole -= d * mp.log(k)
        log_a, log_u = whole + lower(d + 1), -x + d * mp.log1p(2 * mp.mpf(L))
        top = max(log_a, log_u)
        log_mu = top + mp.log(mp.exp(log_a - top) + mp.exp(log_u - top))
        return {
            "log_lambda_L": -log_mu,
            "log_p_L": whole + lower(d) - log_mu,
            "log_alpha": log_a - log_mu,
        }


@pytest.mark.parametrize(
    "row", VECTORS, ids=lambda r: f"{r['epsilon']}-{r['L']}-{r['d']}"
)
def test_closed_forms_against_the_vectors(row: dict[str, Any]) -> None:
    epsilon, L, d = float(row["epsilon"]), float(row["L"]), row["d"]
    bpm = BPM(epsilon, L, d)
    # From d = 30 on the quadrature behind the vectors is itself good to 6e-5 alone
    # (`test_closed_forms_against_60_digits` has no such limit).
    tolerance = 1e-10 if d < 30 else 6e-5
    for name in ("log_lambda_L", "log_p_L", "log_alpha"):
        assert getattr(bpm, name) == pytest.approx(
            float(row[name]), abs=tolerance, rel=1e-13
        ), name
    assert bpm.p_L == pytest.approx(float(row["p_L"]), rel=tolerance)
    assert bpm.alpha == pytest.approx(float(row["alpha"]), rel=tolerance)
    x = epsilon * L
    inside = d * (d + 1) / epsilon**2
    inside *= math.exp(log_gamma_p(d + 2, x) - log_gamma_p(d, x))
    assert inside == pytest.approx(float(row["mean_r2_inside"]), rel=tolerance)


@pytest.mark.parametrize("d", [*DIMENSIONS, 200, 784, 10_000, 100_000])
@pytest.mark.parametrize(("epsilon", "L"), [(0.1, 0.05), (2, 0.3), (64, 65), (8, 1e4)])
def test_closed_forms_against_60_digits(d: int, epsilon: float, L: float) -> None:
    bpm, truth = BPM(epsilon, L, d), exact(epsilon, L, d)
    # Terms of size d log d are added: 1e-9 at d = 100,000.
    for name, value in truth.items():
        found = getattr(bpm, name)
        assert math.isfinite(found)
        assert found == pytest.approx(float(value), abs=2e-14 * d + 1e-13, rel=1e-13)


def test_the_numbers_that_the_seed_gets_wrong() -> None:
    assert round(BPM(2, 0.3, 2).p_L, 4) == 0.1329
    assert round(BPM(4, 0.5, 2).p_L, 3) == 0.349
    assert round(BPM(8, 1, 7).p_L, 4) == 0.0105


@pytest.mark.slow
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize(("epsilon", "L"), [(2.0, 0.3), (8.0, 1.0), (4.0, 3.0)])
def test_density_integrates_to_one_and_gives_p_and_mse(
    d: int, epsilon: float, L: float
) -> None:
    """By quadrature of `log_density` along a ray, from a corner of the cube."""
    bpm = BPM(epsilon, L, d)
    v = np.ones(d)
    ray = np.eye(d)[0]

    def f(r: float) -> mp.mpf:
        return mp.exp(mp.mpf(float(bpm.log_density(v, v - float(r) * ray))))

    with mp.workdps(20):
        half = mp.mpf(d) / 2
        volume = mp.pi**half / mp.gamma(half + 1)
        pieces = mp.linspace(0, mp.mpf(L), 4)

        def over_ball(power: int) -> mp.mpf:
            return d * volume * mp.quad(lambda r: r ** (d - 1 + power) * f(r), pieces)

        floor = f(L)
        side = 1 + 2 * mp.mpf(L)
        outside = floor * (side**d - volume * mp.mpf(L) ** d)
        assert float(over_ball(0) + outside) == pytest.approx(1.0, rel=1e-9)
        assert float(over_ball(0)) == pytest.approx(bpm.p_L, rel=1e-9)
        # E|x - v|^2: over the ball what exceeds the floor, over the cube the floor.
        excess = over_ball(2) - floor * d * volume * mp.mpf(L) ** (d + 2) / (d + 2)
        everywhere = floor * side**d * (d * side**2 / 12 + mp.mpf(d) / 4)
        assert float(excess + everywhere) == pytest.approx(float(bpm.mse(v)), rel=1e-9)


@pytest.mark.slow
def test_density_integrates_to_one_on_a_fine_grid_of_the_square() -> None:
    bpm, cells = BPM(4, 0.5, 2), 2000
    side = (np.arange(cells) + 0.5) / cells * 2.0 - 0.5
    x = np.stack(np.meshgrid(side, side), axis=-1)
    total = bpm.density([0.2, 0.9], x).sum() * (2.0 / cells) ** 2
    assert total == pytest.approx(1.0, abs=1e-4)
    assert bpm.density([0.2, 0.9], [[-0.51, 0.0], [1.51, 0.5]]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("d", [1, 2, 7, 64])
def test_infinite_L_is_the_multivariate_laplace_mechanism(d: int) -> None:
    epsilon = 3.0
    laplace = BPM(epsilon, math.inf, d)
    assert laplace.alpha == laplace.p_L == 1.0 and laplace.uniform_weight == 0.0
    # lambda = Gamma(d/2 + 1) k^d / (pi^(d/2) d!)
    expected = math.lgamma(d / 2 + 1) + d * math.log(epsilon)
    expected -= d / 2 * math.log(math.pi) + math.lgamma(d + 1)
    assert laplace.log_lambda_L == pytest.approx(expected, rel=1e-12)
    v = np.full(d, 0.3)
    assert laplace.mse(v) == pytest.approx(d * (d + 1) / epsilon**2)
    assert np.allclose(laplace.mean(v), v)
    near = BPM(epsilon, 100.0 + 10.0 * d, d)
    assert near.log_lambda_L == pytest.approx(laplace.log_lambda_L, abs=1e-9)
    assert near.mse(v) == pytest.approx(laplace.mse(v), rel=1e-9)


def test_L_zero_is_uniform_and_says_nothing() -> None:
    bpm = BPM(3.0, 0.0, 2)
    assert bpm.alpha == bpm.p_L == 0.0 and bpm.lambda_L == 1.0
    assert bpm.mse([0.5, 0.5]) == pytest.approx(1 / 6)
    assert bpm.event(ReplaceOne()) == Pure(0.0) == bpm.event(Ball(0.1, space="cube"))
    with pytest.raises(ValueError, match="say nothing"):
        bpm.unbiased([0.5, 0.5])
    reports = bpm.apply(POINTS, os_key(bpm))
    assert ((reports >= 0) & (reports <= 1)).all()


@given(
    epsilon=st.floats(1e-300, 1e300),
    L=st.floats(0, 1e300),
    d=st.integers(1, 100_000),
)
def test_everything_is_finite(epsilon: float, L: float, d: int) -> None:
    bpm = BPM(epsilon, L, d)
    assert math.isfinite(bpm.log_lambda_L) and math.isfinite(bpm.log_mu_L)
    assert 0.0 <= bpm.alpha <= 1.0 and 0.0 <= bpm.p_L <= 1.0
    assert bpm.alpha + bpm.uniform_weight == pytest.approx(1.0)
    assert bpm.alpha <= bpm.p_L * (1 + 1e-6) or bpm.alpha < 1e-300
    if L > 0:
        assert math.isfinite(bpm.log_alpha) and math.isfinite(bpm.log_p_L)


@pytest.mark.parametrize(
    ("epsilon", "d", "L"),
    [(1, 2, 8.56), (4, 2, 2.233), (8, 2, 1.166), (4, 10, 7.552), (64, 784, 64.73)],
)
def test_auto_is_the_smallest_L_with_alpha_of_99_percent(
    epsilon: float, d: int, L: float
) -> None:
    bpm = BPM(epsilon, "auto", d)
    assert pytest.approx(L, rel=1e-3) == bpm.L
    assert bpm.alpha >= 0.99 > BPM(epsilon, bpm.L * (1 - 1e-9), d).alpha


def test_auto_ends_at_the_smallest_and_largest_epsilon() -> None:
    """An L that has no float64 is an error, and not a search without end."""
    assert BPM(1e-307, "auto", 2).L == pytest.approx(8.41e307, rel=1e-3)
    assert BPM(1.7e308, "auto", 2).alpha >= 0.99
    for epsilon, d in ((5e-324, 1), (1e-308, 2), (1e-306, 100_000)):
        with pytest.raises(ValueError, match="epsilon is too small"):
            BPM(epsilon, "auto", d)


@pytest.mark.parametrize(
    ("epsilon", "L", "d"),
    [(1e-308, 1e308, 3), (5e-324, 1.7e308, 1), (1e-210, 1e200, 2), (2.0, 9e307, 7)],
)
def test_closed_forms_at_the_ends_of_float64(epsilon: float, L: float, d: int) -> None:
    bpm, truth = BPM(epsilon, L, d), exact(epsilon, L, d)
    for name, value in truth.items():
        assert getattr(bpm, name) == pytest.approx(float(value), rel=1e-12, abs=1e-12)
    # What has no float64 is infinite, and no error.
    v = np.full(d, 0.25)
    assert bpm.mse(v) > 0 and bpm.unbiased_mse(v) >= bpm.mse(v) * 0.99


def test_the_papers_criterion_for_L_is_degenerate() -> None:
    """E|x - v|^2 is least where reports are uniform; the unbiased error is not."""
    v = np.array([0.2, 0.7])
    choices = [BPM(2.0, L, 2) for L in (0.01, 0.1, 0.5, 1.0, 3.0, 10.0)]
    by_paper = min(choices, key=lambda b: float(b.mse(v)))
    by_error = min(choices, key=lambda b: float(b.unbiased_mse(v)))
    assert by_paper.L == 0.01 and by_paper.alpha < 1e-5
    assert by_error.L == 10.0


def test_unbiased_is_unbiased() -> None:
    bpm, v = BPM(4.0, 1.0, 3), np.array([0.1, 0.5, 0.9])
    assert np.allclose(bpm.unbiased(bpm.mean(v)), v)


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "1"},
        {"L": -0.1},
        {"L": math.nan},
        {"L": True},
        {"L": "best"},
        {"L": None},
        {"L": -math.inf},
        {"dimension": 0},
        {"dimension": 2.0},
        {"dimension": True},
    ],
)
def test_bad_parameters_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(arguments))):
        BPM(**({"epsilon": 1.0, "L": 0.3, "dimension": 2} | arguments))


def test_a_mechanism_is_frozen_and_compares() -> None:
    bpm = BPM(2, 1, 3)
    assert bpm == BPM(2.0, 1.0, 3) and hash(bpm) == hash(BPM(2.0, 1.0, 3))
    with pytest.raises(AttributeError):
        bpm.epsilon = 3.0  # type: ignore[misc]


@pytest.mark.parametrize("call", ["mean", "mse", "unbiased"])
def test_closed_forms_want_the_right_shape(call: str) -> None:
    with pytest.raises(ValueError, match="2 coordinates"):
        getattr(BPM(2, 1, 2), call)([0.1, 0.2, 0.3])


@pytest.mark.parametrize("call", ["mean", "mse", "unbiased", "unbiased_mse"])
def test_an_error_does_not_quote_the_point(call: str) -> None:
    with pytest.raises(ValueError, match="real numbers") as caught:
        getattr(BPM(2, 1, 2), call)([0.1, "patient 61"])
    assert "patient" not in str(caught.value) and caught.value.__suppress_context__


# -- the promise -------------------------------------------------------------------


def epsilon_at(bpm: BPM, unit: Ball | ReplaceOne, space: str = "cube") -> float:
    event = bpm.event(unit, space)
    assert isinstance(event, Pure)
    return event.epsilon


def test_cost_is_epsilon_times_distance_up_to_L() -> None:
    bpm = BPM(8.0, 0.3, 2)
    for radius, expected in [(0.01, 0.08), (0.2, 1.6), (0.3, 2.4), (5.0, 2.4)]:
        found = epsilon_at(bpm, Ball(radius, space="cube"))
        assert expected <= found <= expected * (1 + 1e-14)
    assert epsilon_at(bpm, ReplaceOne()) == pytest.approx(2.4)
    person = Ball(0.1, space="cube", records_per_person=3)
    assert epsilon_at(bpm, person) == pytest.approx(2.4)
    # Beyond the diagonal of the cube a larger L costs no more.
    wide = epsilon_at(BPM(8.0, 50.0, 2), ReplaceOne())
    assert wide == pytest.approx(8 * math.sqrt(2))
    assert epsilon_at(BPM(8.0, 50.0, 2), Ball(9.0, space="cube")) == wide
    laplace = BPM(8.0, math.inf, 2)
    assert epsilon_at(laplace, ReplaceOne()) == wide
    assert epsilon_at(laplace, Ball(0.5, space="cube")) == pytest.approx(4.0)


@pytest.mark.slow
@given(epsilon=st.floats(1e-6, 1e6), L=st.floats(1e-6, 1e6), d=st.integers(1, 10**6))
def test_any_replacement_is_charged_from_above(
    epsilon: float, L: float, d: int
) -> None:
    charged = Fraction(epsilon_at(BPM(epsilon, L, d), ReplaceOne()))
    exact = Fraction(epsilon) * Fraction(L)
    assert charged >= exact or charged**2 >= Fraction(epsilon) ** 2 * d
    assert charged <= exact * (1 + Fraction(2) ** -51)


def test_a_budget_of_exactly_epsilon_L_is_enough() -> None:
    ledger = Ledger(Budget(2.4), unit=ReplaceOne(), filter="pure")
    BPM(8.0, 0.3, 2).privatize(POINTS, ledger=ledger)
    assert ledger.epsilon() == 2.4


def test_the_cost_speaks_of_its_space_and_of_replacement_alone() -> None:
    bpm, elsewhere = BPM(8.0, 0.3, 2), Ball(0.1, space="else")
    assert bpm.event(elsewhere) == bpm.event(ReplaceOne())
    assert epsilon_at(bpm, elsewhere, space="else") < 1.0
    with pytest.raises(NotCovered):
        bpm.event(AddOrRemoveOne())


def test_no_statistical_distance_and_a_ledger_without_delta_takes_it() -> None:
    bpm = BPM(8.0, 0.3, 2)
    assert bpm.declaration().sampler_distance == 0.0
    for L in (0.3, math.inf):
        ledger = Ledger(Budget(12.0), unit=ReplaceOne(), filter="pure")
        BPM(8.0, L, 2).privatize(POINTS, ledger=ledger)
        assert ledger.reading().sampler_distance == 0.0


def test_declaration_survives_the_ledger() -> None:
    declaration = BPM(8.0, 0.3, 2).declaration("a space")
    assert Declaration.from_json(declaration.to_json()) == declaration


def test_the_statement_prints_both_promises() -> None:
    budgets: dict[Unit, Budget] = {
        Ball(0.2, space="cube"): Budget(2.0),
        ReplaceOne(): Budget(3.0),
    }
    release = BPM(8.0, 0.3, 2).privatize(
        POINTS, ledger=Ledger(budgets, filter="pure"), label="homes"
    )
    said = release.statement(records=3)
    assert "by at most 0.2 in the space 'cube'" in said and "epsilon 1.6 at" in said
    assert "any change to the content of one record, with epsilon 2.4" in said
    # A ledger with one of the units prints both too, in the mechanism's name.
    alone = BPM(8.0, 0.3, 2).privatize(POINTS, ledger=pure_ledger()).statement()
    assert "8 * min(r, 0.3)" in alone and "2.4 for any replacement" in alone


def test_n_reports_cost_as_much_as_one() -> None:
    ledger = pure_ledger(2.0)
    BPM(8.0, 0.3, 2).privatize(np.full((500, 2), 0.5), ledger=ledger)
    assert ledger.epsilon() == pytest.approx(1.6)


def test_a_lipschitz_map_carries_a_radius_into_the_cube() -> None:
    ledger = Ledger(
        Budget(2.0),
        unit=Ball(20.0, space="km"),
        filter="pure",
        maps=[LipschitzMap("km", "cube", 0.01)],
    )
    BPM(8.0, 0.3, 2).privatize(POINTS, ledger=ledger)
    assert ledger.epsilon() == pytest.approx(1.6)


def test_a_declined_charge_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a report was drawn for a declined charge")

    monkeypatch.setattr(BPM, "draw_rows", never)
    ledger = pure_ledger(1.5)
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        BPM(8.0, 0.3, 2).privatize(POINTS, ledger=ledger)
    assert ledger.entries() == []


def test_without_a_ledger_it_is_not_recorded() -> None:
    for L in (0.0, 0.3, math.inf):
        release = BPM(8.0, L, 2).privatize(POINTS, ledger=None)
        assert "Not recorded" in release.statement()


# -- refusals: nothing is spent ------------------------------------------------------


@pytest.mark.parametrize(
    "points",
    [
        [],
        [[]],
        [0.1, 0.2],
        [[0.1, 0.2, 0.3]],
        [[0.1], [0.2]],
        [[0.1, math.nan]],
        [[0.1, math.inf]],
        [[0.1, 1.0000000000000002]],
        [[-5e-324, 0.5]],
        [["a", "b"]],
        [[0.1, 0.2], [0.3]],
        [[[0.1, 0.2]]],
    ],
)
def test_bad_points_are_refused(points: list[Any]) -> None:
    ledger = pure_ledger()
    with pytest.raises(ValueError, match="points"):
        BPM(8.0, 0.3, 2).privatize(points, ledger=ledger)
    assert ledger.entries() == []


@pytest.mark.parametrize(
    ("row_ids", "why"),
    [
        ([1, 2, 1], "differ"),
        ([1, 2], "3 whole numbers"),
        ([[1, 2, 3]], "3 whole numbers"),
        ([1.0, 2.0, 3.0], "whole numbers"),
        ([True, False, True], "whole numbers"),
        (["a", "b", "c"], "whole numbers"),
        ([-1, 2, 3], "negative"),
        ([1, 2, 2**64], "whole numbers"),
    ],
)
def test_bad_row_ids_are_refused(row_ids: list[Any], why: str) -> None:
    ledger = pure_ledger()
    with pytest.raises(ValueError, match=why):
        BPM(8.0, 0.3, 2).privatize(POINTS, ledger=ledger, row_ids=row_ids)
    assert ledger.entries() == []


def test_what_cannot_be_drawn_is_refused_before_it_is_paid_for() -> None:
    ledger = Ledger(Budget(1e30), unit=ReplaceOne(), filter="pure")
    for epsilon, L in [(1e9, 1.0), (1e-30, 1e200), (1e300, 1e-3)]:
        with pytest.raises(ValueError, match="Nothing was spent"):
            BPM(epsilon, L, 2).privatize(POINTS, ledger=ledger)
    with pytest.raises(ValueError, match="no guarantee"):
        BPM(1e300, 1e300, 2**60).declaration()
    assert ledger.entries() == []


def test_reports_of_another_shape_or_range_are_refused() -> None:
    bpm = BPM(8.0, 0.3, 2)
    ids = np.arange(1, dtype=np.uint64)
    for values in ([[0.1, 1.31]], [[0.1]], [[0.1, math.nan]], [0.1]):
        with pytest.raises(ValueError, match=r"reports|row_ids"):
            Reports(np.array(values), ids, bpm)


def test_reports_are_read_only_and_an_array() -> None:
    bpm = BPM(8.0, 0.3, 2)
    reports = bpm.privatize(POINTS, ledger=pure_ledger()).value
    assert len(reports) == 3 and reports.mechanism == bpm
    assert np.asarray(reports).shape == (3, 2)
    with pytest.raises(ValueError, match="read-only"):
        reports.values[0, 0] = 0.0


def test_the_two_stage_sampler_takes_a_seed_alone() -> None:
    bpm = BPM(8.0, 0.3, 2)
    with pytest.raises(NotPrivate):
        bpm.apply_two_stage(POINTS, os_key(bpm))
    first, second = (bpm.apply_two_stage(POINTS, seeded_key(3)) for _ in range(2))
    assert np.array_equal(first, second)


def test_a_seeded_release_is_stamped() -> None:
    release = BPM(8.0, 0.3, 2).privatize(POINTS, ledger=pure_ledger(), source=Seeded(1))
    assert release.statement().startswith("NOT PRIVATE")


# -- a retried task ------------------------------------------------------------------


def test_a_retried_batch_repeats_its_reports_and_pays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, keys = tmp_path / "ledger.db", tmp_path / "keys"
    budgets: dict[Unit, Budget] = {Ball(0.2, space="cube"): Budget(2.0)}
    bpm = BPM(8.0, 2.0, 2)
    rng = np.random.default_rng(0)
    points, ids = rng.random((200, 2)), rng.permutation(2**40 + np.arange(200))
    drawn: list[np.ndarray] = []
    plain_draw = BPM.draw_rows

    def draw(self, *arguments) -> np.ndarray:
        drawn.append(plain_draw(self, *arguments))
        return drawn[-1]

    def new_ledger() -> Ledger:
        return Ledger.open(url, dataset="d", budgets=budgets, filter="pure", keys=keys)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BPM, "draw_rows", draw)
    with monkeypatch.context() as crash, new_ledger() as ledger:
        crash.setattr(Ledger, "_commit", die)
        with pytest.raises(KeyboardInterrupt):
            bpm.privatize(points, ledger=ledger, row_ids=ids, idempotency_key="t")
    assert any(keys.iterdir())
    order = rng.permutation(200)
    with new_ledger() as ledger:
        changed = points.copy()
        changed[0, 0] += 1e-9
        with pytest.raises(IdempotencyConflict, match="input"):
            bpm.privatize(changed, ledger=ledger, row_ids=ids, idempotency_key="t")
        with pytest.raises(IdempotencyConflict, match="input"):
            bpm.privatize(points, ledger=ledger, row_ids=ids + 1, idempotency_key="t")
        release = bpm.privatize(
            points[order], ledger=ledger, row_ids=ids[order], idempotency_key="t"
        )
        (entry,) = ledger.entries()
        assert ledger.epsilon() == pytest.approx(1.6)
        with pytest.raises(NoiseReuse, match="committed"):
            bpm.privatize(points, ledger=ledger, row_ids=ids, idempotency_key="t")
    assert np.array_equal(release.value.values, drawn[0][order])
    assert np.array_equal(release.value.row_ids, ids[order].astype(np.uint64))
    # The key is gone: of this entry nothing is left on the shelf.
    assert not list(keys.glob(f"*{entry.id}*"))


def test_another_entry_has_other_noise() -> None:
    bpm, ledger = BPM(8.0, 2.0, 2), pure_ledger()
    first, second = (
        bpm.privatize(POINTS, ledger=ledger).value.values for _ in range(2)
    )
    assert not np.array_equal(first, second)
