"""Small values that larger ones rest on: searched costs, laws, totals, digests."""

import copy
import dataclasses
import math
import pickle
from fractions import Fraction
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest

from demur import AddOrRemoveOne, Ball, Erasure, ReplaceOne, Sensitivity
from demur.core import display, recording
from demur.core.accounting import delta_of, prices, repetitions
from demur.core.accounting.estimates import rough_price
from demur.core.accounting.events import (
    AllocatedGaussian,
    ApproxDP,
    BestOf,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
    atoms,
    compose,
    single_atoms,
)
from demur.core.accounting.prices import price
from demur.core.accounting.repetitions import (
    BinomialRepetitions,
    NegativeBinomialRepetitions,
    PoissonRepetitions,
    default_repetitions,
    draw,
    law_from_json,
    law_to_json,
    uniform,
)
from demur.core.accounting.totals import as_event, event_of, total_of
from demur.core.accounting.translation import from_dp_event, to_relation
from demur.core.cost import Cost, Fixed, GaussianOverBalls, PureOverBalls, Searched
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration, Rebuilt, declaration_of, fingerprint_of
from demur.core.digest import (
    digest_of_array,
    digest_of_parts,
    digest_of_rows,
    digest_of_text,
    increasing,
    unchangeable,
)
from demur.errors import (
    ApprovalPending,
    BudgetExceeded,
    NotCovered,
    NotPriced,
)

UNIT = AddOrRemoveOne()
LAW = NegativeBinomialRepetitions.of_mean(4.0)
ONE, TWO = Cost((Fixed(UNIT, Pure(0.5)),)), Cost((Fixed(UNIT, Pure(0.25)),))


# -- searches -----------------------------------------------------------------------


def test_a_searched_cost_is_that_of_its_runs():
    term = Searched(((ONE, 1), (TWO, np.int64(3)), (ONE, 1)), LAW)
    assert term.runs == ((ONE, 1), (TWO, 3)) and type(term.runs[1][1]) is int
    event = term.at(UNIT)
    assert event == BestOf((Pure(0.5), Repeated(Pure(0.25), 3)), LAW)
    cost = Cost((term,))
    assert cost.basic_terms() == (*ONE.terms, *TWO.terms)
    assert Cost.from_json(cost.to_json()) == cost
    assert [*single_atoms(event)] == [Pure(0.5), Pure(0.25)]
    with pytest.raises(NotCovered):
        cost.at(ReplaceOne())


@pytest.mark.parametrize(
    "runs",
    [
        (),
        ((ONE, 0),),
        ((ONE, -1),),
        ((Cost((Fixed(Erasure(), Pure(0.5)),)), 1),),
        ((Cost((Searched(((ONE, 1),), LAW),)), 1),),
    ],
)
def test_a_search_of_nothing_of_deletions_or_of_searches_has_no_cost(runs):
    with pytest.raises(ValueError):
        Searched(runs, LAW)


def test_which_costs_are_those_of_deletions():
    deletion, both = (
        Cost((Fixed(Erasure(), Pure(0.5)),)),
        Cost((Fixed(Erasure(), Pure(0.5)), Fixed(UNIT, Pure(0.5)))),
    )
    assert [c.only_erasure() for c in (ONE, deletion, both)] == [False, True, False]
    assert [c.covers_erasure() for c in (ONE, deletion, both)] == [False, True, True]


def test_a_curve_is_for_its_own_space():
    line = PiecewiseLinear.linear(slope=2.0, cap=1.0)
    ball = Ball(0.25, space="x")
    pure = PureOverBalls("x", line, 4.0)
    assert pure.at(ball) == Pure(2.0) and pure.at(Ball(9.0, space="x")) == Pure(4.0)
    gaussian = GaussianOverBalls("x", line, 4.0)
    assert gaussian.at(ball) == GaussianEvent(8.0)
    for term in (pure, gaussian):
        assert term.at(Ball(0.25, space="y")) is None is term.at(UNIT)
        assert Cost.from_json(Cost((term,)).to_json()) == Cost((term,))


@pytest.mark.parametrize("slope", [1e-300, 1e-3, 1.0, 1e3, 1e300])
def test_a_line_without_a_cap_ends_far_away_at_a_number(slope):
    line = PiecewiseLinear.linear(slope)
    (zero, (far, high)) = line.knots
    assert zero == (0.0, 0.0) and not line.saturates and math.isfinite(high)
    assert Fraction(high) >= Fraction(slope) * Fraction(far) > 0
    assert far == 1e150 * min(1.0, 1.0 / slope)


def test_a_line_with_a_cap_is_never_below_it():
    for slope, cap in ((0.3, 0.7), (3.0, 0.1), (1e-300, 1e300)):
        line = PiecewiseLinear.linear(slope, cap)
        assert line.saturates and line.knots[-1][1] == cap
        if len(line.knots) == 2:
            assert Fraction(line.knots[1][0]) <= Fraction(cap) / Fraction(slope)
    assert PiecewiseLinear.linear(1e300, 1e-300).knots == ((0.0, 1e-300),)
    for wrong in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="slope"):
            PiecewiseLinear.linear(wrong)
        with pytest.raises(ValueError, match="cap"):
            PiecewiseLinear.linear(1.0, wrong)


# -- laws of repetitions ------------------------------------------------------------

LAWS = [
    LAW,
    NegativeBinomialRepetitions(1.0, 0.25, 50),
    PoissonRepetitions(3.0),
    BinomialRepetitions(5, 0.5),
]


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_read_as_it_is_written(law):
    data = law_to_json(law)
    assert law_from_json(data) == law
    for wrong in (
        None,
        [],
        {},
        data | {"law": "geometric"},
        data | {"more": 1},
        {"law": data["law"]},
    ):
        with pytest.raises(ValueError, match="not a law of repetitions"):
            law_from_json(wrong)


@pytest.mark.parametrize("law", LAWS)
def test_numbers_are_drawn_by_the_weights_exactly(law):
    weights = [Fraction(float(weight)) for weight in law.weights]
    sums = repetitions._integers(law)
    assert sums[-1] > 0 and len(sums) == len(weights) == law.limit + 1
    parts = [b - a for a, b in zip((0, *sums), sums, strict=False)]
    for part, weight in zip(parts, weights, strict=True):
        assert Fraction(part, sums[-1]) == weight / sum(weights)
    size = ((sums[-1] - 1).bit_length() + 7) // 8
    shift = 8 * size - (sums[-1] - 1).bit_length()
    for k in {law.first, law.limit}:
        for place in (sums[k] - parts[k], sums[k] - 1):
            word = (place << shift).to_bytes(size, "big")
            if parts[k]:
                assert draw(law, lambda _, word=word: word) == k
    assert law.first == (1 if isinstance(law, NegativeBinomialRepetitions) else 0)


@pytest.mark.parametrize("below", [1, 2, 3, 255, 256, 257, 65_536])
def test_a_uniform_number_is_the_first_that_fits(below):
    bits = (below - 1).bit_length()
    size = max(1, (bits + 7) // 8)
    shift = 8 * size - bits
    for number in {0, below - 1}:
        words = [number << shift]
        if below < 2**bits:
            words.insert(0, below << shift)
        asked = []

        def read(count, words=words, asked=asked):
            asked.append(count)
            return words.pop(0).to_bytes(count, "big")

        assert uniform(below, read) == number and words == []
        assert set(asked) == {size}
    with pytest.raises(ValueError, match="below"):
        uniform(0, lambda count: bytes(count))


@pytest.mark.parametrize(("settings", "mean"), [(1, 2.0), (7, 14.0), (5000, 1000.0)])
def test_a_search_makes_twice_as_many_runs_as_settings(settings, mean):
    law = default_repetitions(settings)
    assert law.eta == 4.0 and law == NegativeBinomialRepetitions.of_mean(mean, 4.0)
    with pytest.raises(ValueError, match="settings"):
        default_repetitions(0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: NegativeBinomialRepetitions(-1.0, 0.5), "eta must be above -1"),
        (lambda: NegativeBinomialRepetitions(100.5, 0.5), "eta must be above -1"),
        (lambda: NegativeBinomialRepetitions(1.0, 1.0), "gamma"),
        (lambda: NegativeBinomialRepetitions.of_mean(1.0), "mean must be above 1"),
        (lambda: NegativeBinomialRepetitions.of_mean(1000.5), "mean must be above 1"),
        (lambda: NegativeBinomialRepetitions.of_mean(2.0, 101.0), "eta must be above"),
        (lambda: PoissonRepetitions(0.0), "rate"),
        (lambda: PoissonRepetitions(1000.5), "rate must be at most 1000"),
        (lambda: PoissonRepetitions(900.0), "exactly one run must have a chance"),
        (lambda: PoissonRepetitions(3.0, 0), "limit"),
        (lambda: PoissonRepetitions(3.0, 10**9), "limit must be at most"),
        (lambda: BinomialRepetitions(0, 0.5), "trials"),
        (lambda: BinomialRepetitions(10**9, 0.5), "trials must be at most"),
        (lambda: BinomialRepetitions(5, 1.0), "probability"),
        (lambda: BinomialRepetitions(5000, 0.5), "exactly one run must have a chance"),
    ],
)
def test_laws_that_make_no_sense_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_laws_of_numpy_numbers_are_plain():
    for law, plain in (
        (
            BinomialRepetitions(np.int64(5), np.float32(0.5)),
            BinomialRepetitions(5, 0.5),
        ),
        (PoissonRepetitions(np.float32(3.0)), PoissonRepetitions(3.0)),
        (
            NegativeBinomialRepetitions(np.int64(1), np.float32(0.25), np.int64(50)),
            NegativeBinomialRepetitions(1.0, 0.25, 50),
        ),
    ):
        for field in dataclasses.fields(law):
            mine, other = getattr(law, field.name), getattr(plain, field.name)
            assert type(mine) is type(other) and mine == other


# -- totals and events --------------------------------------------------------------


def test_totals_add_up_equal_events_by_their_kind():
    sampled = PoissonGaussian(0.25, 2.0)
    whole = compose(
        [
            Repeated(GaussianEvent(2.0), 3),
            PoissonGaussian(1.0, 2.0),
            AllocatedGaussian(1, 2.0),
            Pure(0.0),
            PoissonGaussian(0.0, 2.0),
            Pure(0.5),
            Repeated(ApproxDP(0.5, 0.0), 2),
            Repeated(ApproxDP(0.25, 1e-6), 4),
            Repeated(sampled, 5),
            TruncatedPoissonGaussian(100, 0.25, 40, 2.0),
            BestOf((Pure(0.5),), LAW),
        ]
    )
    total = total_of(whole)
    gaussian = 3 + (2.0 / PoissonGaussian(1.0, 2.0).whole_multiplier) ** 2 + 1
    assert total.mu_squared == pytest.approx(gaussian / 4.0, rel=1e-15)
    assert total.pure == {0.5: 3} and total.approx == {(0.25, 1e-6): 4}
    assert total.sampled == {
        sampled: 5,
        TruncatedPoissonGaussian(100, 0.25, 40, 2.0): 1,
    }
    assert total.searches == {BestOf((Pure(0.5),), LAW): 1}
    again = total_of(event_of(total))
    assert dataclasses.replace(again, mu_squared=0.0) == dataclasses.replace(
        total, mu_squared=0.0
    )
    assert total.mu_squared <= again.mu_squared <= total.mu_squared * (1 + 1e-14)
    assert event_of(total_of(Pure(0.0))) == Pure(0.0)
    assert as_event([Pure(0.5), Pure(0.25)]) == compose([Pure(0.5), Pure(0.25)])
    assert as_event(Pure(0.5)) == Pure(0.5)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: BestOf((), LAW), ValueError, "must not be empty"),
        (lambda: BestOf((Pure(0.5),), "law"), TypeError, "law of repetitions"),
        (lambda: BestOf(("x",), LAW), TypeError, "event"),
        (
            lambda: BestOf((BestOf((Pure(0.5),), LAW),), LAW),
            ValueError,
            "inside of a search",
        ),
        (lambda: atoms("x"), TypeError, "not an event"),
    ],
)
def test_events_that_make_no_sense_are_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


KINDS = {
    "pure": Pure(0.75),
    "Gaussian": Repeated(GaussianEvent(4.0), 3),
    "sampled": Repeated(PoissonGaussian(0.1, 1.0), 5),
    "pairs": Repeated(ApproxDP(0.25, 1e-4), 2),
    "pure and Gaussian": compose([Pure(0.25), GaussianEvent(4.0)]),
    "sampled and pure": compose([PoissonGaussian(0.1, 1.0), Pure(0.25)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_rests_on_the_deltas_of_its_runs(kind):
    """Read point by point in another way; none is free."""
    epsilons = np.array([0.0, 0.2, 0.5, 1.0])
    told = prices._deltas(KINDS[kind], epsilons)
    exact = np.array([delta_of(KINDS[kind], float(e)) for e in epsilons])
    assert (told > 0.0).all() or kind == "pure"
    np.testing.assert_allclose(told, exact, rtol=0.02, atol=1e-9)
    least = price(KINDS[kind], 1e-2)
    assert least < price(BestOf((KINDS[kind],), LAW), 1e-2) < math.inf


def test_a_search_names_each_alternative_once():
    assert BestOf((Pure(0.5), Pure(0.25), Pure(0.5)), LAW).events == (
        Pure(0.5),
        Pure(0.25),
    )


@pytest.mark.parametrize(
    ("count", "delta"), [(100, 1e-6), (1000, 1e-5), (1, 1e-6), (10, 1e-3)]
)
def test_a_rough_price_is_near_the_price(count, delta):
    event = PoissonGaussian(0.02, 1.5)
    rough = rough_price(event, count, delta)
    assert rough == pytest.approx(price(Repeated(event, count), delta), rel=0.03)
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="delta"):
            rough_price(event, count, wrong)


def test_events_of_another_library_are_read():
    one, other = Neighbours.ADD_OR_REMOVE_ONE, Neighbours.REPLACE_ONE
    plain = dpa.GaussianDpEvent(2.0)
    assert from_dp_event(plain, one) == GaussianEvent(2.0)
    halved = from_dp_event(plain, other).multiplier
    assert 1.0 - 1e-15 < halved < 1.0
    assert from_dp_event(dpa.NoOpDpEvent(), one) == Pure(0.0)
    sampled = dpa.PoissonSampledDpEvent(0.25, plain)
    for neighbours in (one, other):
        assert from_dp_event(sampled, neighbours) == PoissonGaussian(
            0.25, 2.0, neighbours
        )
    many = dpa.SelfComposedDpEvent(sampled, 7)
    assert from_dp_event(many, one) == Repeated(PoissonGaussian(0.25, 2.0), 7)
    both = from_dp_event(dpa.ComposedDpEvent([plain, many]), one)
    assert atoms(both) == {GaussianEvent(2.0): 1, PoissonGaussian(0.25, 2.0): 7}
    cut = dpa.dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.25, 40, 2.0)
    zero = Neighbours.ZERO_OUT
    assert from_dp_event(cut, zero) == TruncatedPoissonGaussian(
        100, 0.25, 40, 2.0, zero
    )
    for strange in (dpa.UnsupportedDpEvent(), dpa.LaplaceDpEvent(1.0)):
        with pytest.raises(NotPriced, match="no counterpart here"):
            from_dp_event(strange, one)
    relations = [to_relation(each) for each in Neighbours]
    assert len(set(relations)) == len(relations) == 3
    assert to_relation(other) == dpa.NeighboringRelation.REPLACE_ONE


# -- declarations, sensitivities, digests -------------------------------------------


def test_a_fingerprint_tells_parameters_apart():
    array = np.array([1.0, 2.0])
    made = [
        fingerprint_of("a", 1.0, 2),
        fingerprint_of("b", 1.0, 2),
        fingerprint_of("a", 1.0),
        fingerprint_of("a", 2, 1.0),
        fingerprint_of("a", 1, 2),
        fingerprint_of("a", "1.0", 2),
        fingerprint_of("a", array),
        fingerprint_of("a", array.astype(np.float32)),
        fingerprint_of("a", array.reshape(1, 2)),
        fingerprint_of("a", [1.0, 2.0]),
        fingerprint_of("a", {"x": 1, "y": 2}),
    ]
    assert len(set(made)) == len(made) and {len(each) for each in made} == {64}
    assert made[-1] == fingerprint_of("a", {"y": 2, "x": 1})
    assert made[6] == fingerprint_of("a", array.copy())


def test_copies_run_the_constructor_again():
    @dataclasses.dataclass(frozen=True)
    class Halved(Rebuilt):
        whole: float
        half: float = dataclasses.field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "half", self.whole / 2)

    one = Halved(4.0)
    object.__setattr__(one, "half", 99.0)
    for twin in (copy.copy(one), copy.deepcopy(one)):
        assert twin.half == 2.0 and type(twin) is Halved


@pytest.mark.parametrize("thing", [None, object(), 5, lambda: 1])
def test_what_declares_nothing_is_refused(thing):
    with pytest.raises(TypeError, match=r"mechanism must have a declaration\(\)"):
        declaration_of(thing)
    own = Declaration("mine", ONE)
    assert declaration_of(own) == own


def test_a_sensitivity_is_the_smallest_that_is_implied():
    line = PiecewiseLinear.linear(slope=2.0, cap=1.0)
    half: Any = np.float32(0.5)
    table = Sensitivity.of({ReplaceOne(): 1.0, UNIT: half, "x": line})
    assert table.at(UNIT) == 0.5 and table.at(ReplaceOne()) == 1.0
    assert all(type(moved) is float for _, moved in table.units)
    assert table.at(Ball(0.25, space="x")) == 0.5
    assert table.at(Ball(9.0, space="x")) == 1.0 == table.at(Ball(0.1, space="y"))
    with pytest.raises(NotCovered, match="the table has AddOrRemoveOne"):
        Sensitivity.of({UNIT: 1.0}).at(Ball(0.1, space="x"))
    for wrong in ({}, [], None, {UNIT: line}, {"x": 1.0}, {3: 1.0}):
        with pytest.raises(TypeError, match="sensitivity must"):
            Sensitivity.of(wrong)
    for value in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="sensitivity at AddOrRemoveOne"):
            Sensitivity.of({UNIT: value})


def test_digests_tell_things_apart():
    assert digest_of_text("ü") == digest_of_text("ü".encode())
    assert digest_of_parts("a", "b") != digest_of_parts("ab")
    assert digest_of_parts("a", "b") != digest_of_parts("b", "a")
    assert digest_of_parts(1, 2.5) == digest_of_parts("1", "2.5")
    plain = np.array([[1.0, 2.0], [3.0, 4.0]])
    for wrong in (
        np.array([object()]),
        np.zeros(2, dtype=[("a", "f8")]),
        np.ma.masked_array([1.0], [True]),
    ):
        with pytest.raises(TypeError, match="has no digest"):
            digest_of_array(wrong)
    assert digest_of_array(plain) == digest_of_array(np.asfortranarray(plain))
    assert digest_of_array(plain) != digest_of_array(plain.T)
    fixed = unchangeable(plain.T)
    assert np.array_equal(fixed, plain.T) and not fixed.flags.writeable


def test_a_digest_of_rows_follows_the_ids_and_not_their_order():
    ids, rows = np.array([5, 2, 9], dtype=np.uint64), np.arange(6.0).reshape(3, 2)
    first = digest_of_rows("points", rows, ids)
    for order in ([1, 0, 2], [2, 1, 0]):
        assert digest_of_rows("points", rows[order], ids[order]) == first
    assert digest_of_rows("points", rows, ids + np.uint64(1)) != first
    assert digest_of_rows("points", rows[[1, 0, 2]], ids) != first
    assert digest_of_rows("others", rows, ids) != first
    assert increasing(np.array([1, 2, 5], dtype=np.uint64))
    assert increasing(np.array([], dtype=np.uint64))
    for not_so in ([1, 1], [2, 1], [1, 3, 2]):
        assert not increasing(np.array(not_so, dtype=np.uint64))


# -- words --------------------------------------------------------------------------


def test_an_error_in_a_notebook_is_its_message_in_lines(monkeypatch):
    monkeypatch.delenv("DEMUR_TRACEBACK", raising=False)
    error = BudgetExceeded("word " * 60)
    error.add_note("and a note")
    lines = error._render_traceback_()
    assert lines[0].startswith("BudgetExceeded: word word")
    assert 1 < len(lines) and max(map(len, lines)) <= 120
    assert lines[-1].endswith("and a note")
    monkeypatch.setenv("DEMUR_TRACEBACK", "1")
    assert error._render_traceback_()[-1] == "and a note"
    assert ApprovalPending("x", 7).number == 7 and ApprovalPending("x").number is None
    assert str(pickle.loads(pickle.dumps(BudgetExceeded("x")))) == "x"


def test_what_a_notebook_shows_is_looked_up_when_it_is_asked_for(monkeypatch):
    asked = []

    class Module:
        def html(self, shown):
            asked.append(shown)
            return "<p>"

        def plot(self, shown, axes):
            asked.append((shown, axes))
            return "axes"

    names = []

    def imported(name):
        names.append(name)
        return Module()

    monkeypatch.setattr(display, "import_module", imported)

    class Result(display.Displayed):
        pass

    result = Result()
    assert result._repr_html_() == "<p>" and result.plot("mine") == "axes"
    assert result.plot() == "axes"
    assert asked == [result, (result, "mine"), (result, None)]
    assert names == ["demur.report.views", *["demur.report.pictures"] * 2]


@pytest.mark.parametrize(
    ("wanted", "notebook", "announced"),
    [
        ("", False, False),
        ("", True, True),
        ("1", False, True),
        ("1", True, True),
        ("0", True, False),
        ("0", False, False),
        ("yes", True, True),
        ("yes", False, False),
    ],
)
def test_a_line_after_each_charge_is_for_notebooks(
    monkeypatch, wanted, notebook, announced
):
    monkeypatch.setenv("DEMUR_ANNOUNCE", wanted)
    monkeypatch.setattr(display, "in_notebook", lambda: notebook)
    assert display.announcing() is announced


def test_a_bar_is_drawn_once_and_then_changed(monkeypatch):
    pages, changed = [], []

    class Handle:
        def update(self, page):
            changed.append(page)

    class Tools:
        @staticmethod
        def HTML(text):
            return text

        @staticmethod
        def display(page, display_id):
            assert display_id is True
            pages.append(page)
            return Handle()

    monkeypatch.setattr(display, "import_module", lambda name: Tools)
    bar = display.NotebookBar(8)
    for step in (2, 4, 99):
        bar.show(step, "a <b>")
    assert len(pages) == 1 and len(changed) == 2
    assert 'aria-valuenow="25"' in pages[0] and "width:25.0%" in pages[0]
    assert "step 2 of 8, a &lt;b&gt;" in pages[0]
    assert "width:50.0%" in changed[0] and "width:100.0%" in changed[1]
    assert display.NotebookBar(0).total == 1


def test_what_a_recording_holds_is_frozen_but_for_whether_it_was_paid():
    changeable = [
        name
        for name, kind in vars(recording).items()
        if dataclasses.is_dataclass(kind)
        and kind.__module__ == recording.__name__
        and not kind.__dataclass_params__.frozen
    ]
    assert changeable == ["Charge"]
    charge = recording.Charge(Declaration("mine", ONE), 1, "x")
    assert charge.paid is False
