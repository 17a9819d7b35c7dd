"""Entries: the sampler's slack, and the paragraph that an officer signs."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import mpmath as mp
import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Bound,
    Declaration,
    Entry,
    Erasure,
    LipschitzMap,
    Promise,
    ReplaceOne,
)
from demur.core import accounting
from demur.core.accounting.events import (
    Composed,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.bounds import BoundSource
from demur.core.cost import Cost, Fixed, GaussianOverBalls
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Mechanism
from demur.core.entry import epsilon_with_slack
from demur.core.rounding import printed_pair
from demur.errors import NotCovered
from tests.families import thinned

CURVE = PiecewiseLinear.linear(2.0, cap=4.0)
HEAD = Declaration(
    name="a softmax head",
    cost=Cost((GaussianOverBalls("minilm", CURVE, sigma=8.0),)),
    unprotected=("labels", "class counts"),
    bounds=(
        Bound(1.0, BoundSource.ENFORCED, "row norm"),
        Bound(0.25, BoundSource.DECLARED, "curvature"),
    ),
    assumptions=("the radius was chosen on public data",),
)


def entry(declaration=HEAD, **changes):
    values = {
        "id": "0123456789abcdef",
        "sequence": 7,
        "label": "head v1",
        "declaration": declaration,
        "count": 1,
        "noise": "os",
        "time": "2026-03-04T05:06:07Z",
        "dataset": "patients",
        "durable": True,
        "promises": (Promise(Ball(0.5, "minilm"), 2.0, 1e-6),),
    }
    return Entry(**(values | changes))


def deletion():
    return Declaration(
        name="a deletion", cost=Cost((Fixed(Erasure(), GaussianEvent(4.0)),))
    )


# ----------------------------------------------------------------- the sampler's slack


EVENTS = [
    GaussianEvent(1.0),
    Repeated(GaussianEvent(20.0), 100),
    Pure(0.5),
    Repeated(Pure(0.1), 50),
    Composed((GaussianEvent(2.0), Pure(0.3))),
    PoissonGaussian(0.05, 1.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "delta", "share"),
    thinned(product(EVENTS, [1e-3, 1e-6], [1e-9, 1e-3, 0.05]), 4),
    ids=str,
)
def test_slack_solves_its_inequality(event, delta, share):
    eta = delta * share
    epsilon = epsilon_with_slack(event, delta, eta)
    bare = accounting.price(event, delta)
    assert epsilon >= bare
    if math.isinf(epsilon):
        # Hopeless: already at the bare price nearly all of delta is gone.
        assert (1 + math.exp(bare)) * eta > 0.2 * delta
        return
    ideal = accounting.delta_of(event, epsilon)
    with mp.workdps(40):
        whole = mp.mpf(ideal) + (1 + mp.exp(mp.mpf(epsilon))) * mp.mpf(eta)
        assert whole <= mp.mpf(delta) * (1 + mp.mpf(1e-9))
    if share <= 1e-6:
        assert epsilon <= bare * (1 + 1e-3) + 1e-6


def test_the_same_check_catches_forgotten_slack():
    """A sabotaged twin: the bare price does not satisfy the inequality."""
    event, delta, eta = GaussianEvent(1.0), 1e-6, 1e-9
    bare = accounting.price(event, delta)
    assert accounting.delta_of(event, bare) + (1 + math.exp(bare)) * eta > delta


@pytest.mark.slow
def test_no_distance_is_no_slack():
    for event in EVENTS:
        assert epsilon_with_slack(event, 1e-6, 0.0) == accounting.price(event, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("event", thinned(EVENTS, 2, keep=(5,)), ids=str)
def test_slack_grows_with_the_distance(event):
    etas = [0.0, 1e-15, 1e-12, 1e-9, 1e-7, 1e-6]
    epsilons = [epsilon_with_slack(event, 1e-6, eta) for eta in etas]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == math.inf


def test_slack_is_infinite_when_hopeless():
    assert epsilon_with_slack(GaussianEvent(1.0), 1e-6, 1e-6) == math.inf
    assert epsilon_with_slack(GaussianEvent(1.0), 1e-6, 1.0) == math.inf
    assert epsilon_with_slack(Pure(0.5), 0.0, 1e-30) == math.inf
    assert epsilon_with_slack(Pure(800.0), 1e-6, 1e-30) == math.inf
    assert epsilon_with_slack(Pure(0.5), 0.0, 0.0) == 0.5
    assert epsilon_with_slack(GaussianEvent(1.0), 0.0, 0.0) == math.inf


# --------------------------------------------------------------------------- epsilon


def test_an_entry_is_read_at_a_unit_with_count_and_maps():
    single = entry().epsilon(Ball(0.5, "minilm"), 1e-6)
    assert single == pytest.approx(accounting.price(GaussianEvent(8.0), 1e-6), rel=1e-9)
    many = entry(count=16).epsilon(Ball(0.5, "minilm"), 1e-6)
    assert many == pytest.approx(accounting.price(GaussianEvent(2.0), 1e-6), rel=1e-9)
    with pytest.raises(NotCovered):
        entry().epsilon(ReplaceOne(), 1e-6)
    mapped = entry(maps=(LipschitzMap("pixels", "minilm", 0.5),))
    assert mapped.epsilon(Ball(1.0, "pixels"), 1e-6) == pytest.approx(single, rel=1e-9)


def test_the_distance_counts_once_for_each_run():
    sloppy = Declaration(name="m", cost=HEAD.cost, sampler_distance=1e-12)
    unit = Ball(0.5, "minilm")
    event = sloppy.cost.at(unit)
    epsilon = entry(sloppy, count=100).epsilon(unit, 1e-6)
    assert epsilon == epsilon_with_slack(Repeated(event, 100), 1e-6, 1e-10)
    assert epsilon > entry(count=100).epsilon(unit, 1e-6)


# ------------------------------------------------------------------------- statements


def test_a_statement_says_everything():
    text = entry().statement()
    epsilon = entry().epsilon(Ball(0.5, "minilm"), 1e-6)
    for part in (
        'Released: a softmax head ("head v1"), dataset "patients".',
        "a move of one record by at most 0.5 in the space 'minilm'",
        f"epsilon {epsilon:.3g}"[:12],
        "at delta 1e-06",
        "budget 2",
        "Not protected: labels, class counts.",
        "declared bounds: curvature <= 0.25",
        "It assumes that the radius was chosen on public data.",
        "operating system",
        "Recorded as entry 7 (01234567) on 2026-03-04.",
    ):
        assert part in text
    for part in ("NOT PRIVATE", "CONDITIONAL", "WARNING", "Not recorded", "row norm"):
        assert part not in text
    assert "\n" not in text


def test_a_statement_names_the_person():
    unit = Ball(0.5, "minilm", records_per_person=5)
    text = entry(promises=(Promise(unit, 2.0, 1e-6),)).statement()
    assert "all of a person's records (at most 5)" in text
    own = entry().epsilon(unit, 1e-6)
    assert own > 4 * entry().epsilon(Ball(0.5, "minilm"), 1e-6)


def test_estimated_bounds_make_it_conditional():
    weak = Bound(3.0, BoundSource.ESTIMATED, "gradient norm")
    declaration = Declaration(name="m", cost=HEAD.cost, bounds=(weak,))
    text = entry(declaration).statement()
    assert "CONDITIONAL on bounds estimated from the data: gradient norm <= 3" in text
    assert "declared bounds" not in text


def test_a_seeded_source_is_stamped_first():
    text = entry(noise="seeded").statement()
    assert text.startswith("NOT PRIVATE")
    assert "operating system" not in text
    assert not entry(noise="seeded").private
    assert not entry(noise="anything else").private
    assert entry().private


def test_an_unrecorded_entry_says_so():
    text = entry(durable=False).statement()
    assert "Not recorded: the ledger was in memory only." in text
    assert "Recorded as" not in text


def test_repetitions_are_said():
    text = entry(count=1600).statement()
    assert 'Released: 1,600 runs of a softmax head ("head v1")' in text
    assert "runs" not in entry().statement()
    steps = Declaration("DP-SGD training, 40 steps", HEAD.cost, draws=None)
    text = entry(steps, count=40).statement()
    assert 'DP-SGD training, 40 steps ("head v1"), 40 draws of noise, dataset' in text
    assert "runs" not in text


@pytest.mark.parametrize(
    ("records", "warned"),
    [(None, False), (10, False), (999_999, False), (1_000_000, True), (10**9, True)],
)
def test_delta_is_compared_with_one_over_n(records, warned):
    text = entry().statement(records=records)
    assert ("WARNING: delta 1e-06 is not below 1/n" in text) is warned


@pytest.mark.parametrize("records", [0, -1])
def test_n_is_a_count(records):
    with pytest.raises(ValueError, match="records"):
        entry().statement(records=records)
    with pytest.raises(TypeError, match="records"):
        entry().statement(records=True)


def test_a_deletion_is_not_called_a_protection():
    promises = (Promise(Erasure(), 1.0, 1e-5), Promise(AddOrRemoveOne(), 1.0, 1e-6))
    text = entry(deletion(), promises=promises).statement(records=1000)
    assert "After the deletion nobody can tell whether one record was learned" in text
    assert (
        "This entry states no cost at unit AddOrRemoveOne(): it was declared for"
        " Erasure() only." in text
    )
    assert "protects" not in text
    only = entry(deletion(), promises=(Promise(Erasure(), 1.0, 0.5),))
    assert "WARNING" not in only.statement(records=1000)


def test_a_deletion_that_another_entry_paid_for_states_no_cost_of_its_own():
    """Not "epsilon 1e-12": what holds for it is what that entry states."""
    free = Cost((Fixed(Erasure(), Pure(0.0)),))
    promises = (Promise(Erasure(), 0.8, 1e-5),)
    under = Declaration("a deletion", free, sampler_distance=1e-20)
    counted = Declaration("a deletion", free, draws=None)
    for declared in (under, counted):
        text = entry(declared, promises=promises).statement()
        assert "an earlier entry of this ledger states. That entry paid for it" in text
        assert "within the budget 0.8 at delta 1e-05" in text and "1e-12" not in text
        # With the entry that paid: its epsilon, in one rounding, and its number.
        payer = replace(entry(deletion(), promises=promises), sequence=7)
        paid = entry(declared, promises=promises).statement(paid_by=payer)
        shown = printed_pair(payer.epsilon(Erasure(), 1e-5), 0.8)
        assert (
            f"up to epsilon {shown[0]} at delta 1e-05 (budget {shown[1]}), paid by"
            " entry 7: this deletion has no cost of its own." in paid
        )
        # One that is itself paid for, or that states nothing there, is not quoted.
        for other in (entry(declared, promises=promises), entry()):
            again = entry(declared, promises=promises).statement(paid_by=other)
            assert again == text
        # What has a cost of its own states that, whoever is named.
        assert payer.statement(paid_by=entry(declared)) == payer.statement()
    exact = entry(Declaration("exact", free), promises=promises)
    assert "up to epsilon 0 at delta 1e-05 (budget 0.8)" in exact.statement()
    assert not exact.covered(Erasure()) and not entry().covered(ReplaceOne())


def test_several_promises_are_read_one_by_one():
    promises = (
        Promise(Ball(0.5, "minilm"), 2.0, 1e-6),
        Promise(Ball(1.0, "minilm"), 2.0, 1e-5),
        Promise(ReplaceOne(), 2.0, 1e-4),
    )
    text = entry(promises=promises).statement(records=10**5)
    assert text.count("It protects") == 2
    assert (
        "This entry states no cost at unit ReplaceOne(): it was declared for"
        " Ball(..., space='minilm') only." in text
    )
    assert "at delta 1e-05" in text
    assert "WARNING" in text


@pytest.mark.parametrize("z", [1.0, 1.7, 3.3, 7.77, 12.345])
def test_the_printed_epsilon_is_not_below_the_price(z):
    """A paragraph that is signed may round only to the private side."""
    declaration = Declaration(
        name="m", cost=Cost((Fixed(ReplaceOne(), GaussianEvent(z)),))
    )
    promise = Promise(ReplaceOne(), 9.0, 1e-6)
    signed = entry(declaration, promises=(promise,))
    printed = signed.statement().split("epsilon ")[1].split(" ")[0]
    assert Fraction(printed) >= Fraction(signed.epsilon(ReplaceOne(), 1e-6))


@pytest.mark.parametrize(
    ("epsilon", "weak"), [(7.99, False), (8.0, False), (8.01, True), (30.0, True)]
)
def test_above_epsilon_8_a_statement_says_that_it_is_weak(epsilon, weak):
    cost = Cost((Fixed(ReplaceOne(), Pure(epsilon)),))
    promises = (Promise(ReplaceOne(), 50.0, 0.0),)
    text = entry(Declaration("a table", cost), promises=promises).statement()
    assert ("This is a weak guarantee: epsilon is above 8." in text) is weak


def test_entries_are_frozen_and_reading_changes_nothing():
    """opacus#535: asking for epsilon popped the history."""
    frozen = entry()
    first = frozen.epsilon(Ball(0.5, "minilm"), 1e-6), frozen.statement()
    assert (frozen.epsilon(Ball(0.5, "minilm"), 1e-6), frozen.statement()) == first
    with pytest.raises(AttributeError):
        frozen.count = 0
    hash(frozen)


# ----------------------------------------------------------------------- declarations


def test_declarations_round_trip():
    for declaration in (HEAD, deletion()):
        assert Declaration.from_json(declaration.to_json()) == declaration
        assert declaration.declaration() is declaration
        assert isinstance(declaration, Mechanism)


def test_declarations_do_not_keep_the_callers_lists():
    lines = ["labels"]
    declaration = Declaration(name="m", cost=HEAD.cost, unprotected=lines)
    lines.append("nothing")
    assert declaration.unprotected == ("labels",)
    hash(declaration)


def test_a_single_string_is_not_a_list_of_letters():
    with pytest.raises((TypeError, ValueError)):
        Declaration(name="m", cost=HEAD.cost, unprotected="labels")
    data = HEAD.to_json() | {"unprotected": "labels"}
    with pytest.raises(ValueError):
        Declaration.from_json(data)


def test_a_fingerprint_has_at_most_200_characters():
    longest = "f" * 200
    declaration = Declaration(name="m", cost=HEAD.cost, fingerprint=longest)
    assert declaration.fingerprint == longest
    for bad in (longest + "f", None, b"f"):
        with pytest.raises(TypeError, match="fingerprint"):
            Declaration(name="m", cost=HEAD.cost, fingerprint=bad)


@pytest.mark.parametrize("eta", [-1e-9, 1.1, math.nan, math.inf])
def test_bad_distances_are_refused(eta):
    with pytest.raises(ValueError, match="sampler_distance"):
        Declaration(name="m", cost=HEAD.cost, sampler_distance=eta)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": None},
        {"cost": {}},
        {"cost": None},
        {"sampler_distance": "0"},
        {"sampler_distance": math.nan},
        {"bounds": [{}]},
        {"bounds": None},
        {"bounds": 3},
        {"unprotected": [3]},
        {"unprotected": [""]},
        {"assumptions": [None]},
        {"extra": 1},
    ],
)
def test_bad_declarations_are_a_value_error(change):
    with pytest.raises(ValueError):
        Declaration.from_json(HEAD.to_json() | change)
    with pytest.raises(ValueError):
        Declaration.from_json(change)
