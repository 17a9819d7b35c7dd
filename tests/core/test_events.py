"""Events: what is refused when they are made, the multiset, the JSON schema."""

import json
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur import AddOrRemoveOne, Declaration
from demur.core.accounting import events
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
    atoms,
    compose,
    for_group,
    from_json,
    to_json,
)
from demur.core.cost import Fixed
from demur.errors import NotPriced
from demur.ledger import ledger_for

NOT_NUMBERS = [True, False, None, "1", 1j, [1.0], b"1"]
MAKERS = {
    "gaussian": lambda x: GaussianEvent(x),
    "pure": lambda x: Pure(x),
    "approx epsilon": lambda x: ApproxDP(x, 1e-6),
    "approx delta": lambda x: ApproxDP(1.0, x),
    "poisson q": lambda x: PoissonGaussian(x, 1.0),
    "poisson z": lambda x: PoissonGaussian(0.1, x),
    "truncated q": lambda x: TruncatedPoissonGaussian(100, x, 10, 1.0),
    "truncated z": lambda x: TruncatedPoissonGaussian(100, 0.1, 10, x),
}
COUNTED = {
    "repeated": lambda n: Repeated(GaussianEvent(1.0), n),
    "dataset": lambda n: TruncatedPoissonGaussian(n, 0.1, 10, 1.0),
    "batch": lambda n: TruncatedPoissonGaussian(100, 0.1, n, 1.0),
    "group": lambda n: for_group(GaussianEvent(1.0), n),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 10**400])
def test_no_event_is_made_of_bad_numbers(make, value):
    with pytest.raises(ValueError):
        make(value)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_no_event_is_made_of_what_is_no_number(make, value):
    with pytest.raises(TypeError):
        make(value)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("value", [np.float64("nan"), np.float32("inf")])
def test_numpy_numbers_are_checked_too(make, value):
    with pytest.raises(ValueError):
        make(value)


@pytest.mark.parametrize("name", ["gaussian", "poisson z", "truncated z"])
@pytest.mark.parametrize("value", [0.0, -0.0, Fraction(1, 10**400)])
def test_noise_is_positive(name, value):
    with pytest.raises(ValueError, match="multiplier"):
        MAKERS[name](value)


@pytest.mark.parametrize("name", ["approx delta", "poisson q", "truncated q"])
def test_probabilities_end_at_one(name):
    with pytest.raises(ValueError):
        MAKERS[name](math.nextafter(1.0, 2.0))
    MAKERS[name](1.0)


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("value", [True, 1.0, math.nan, "3", None])
def test_counts_are_whole(make, value):
    with pytest.raises(TypeError):
        make(value)


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("value", [0, -1, -(2**70)])
def test_counts_start_at_one(make, value):
    with pytest.raises(ValueError):
        make(value)


def test_a_count_has_an_end():
    Repeated(GaussianEvent(1.0), 2**62)
    with pytest.raises(ValueError, match="2\\^62"):
        Repeated(GaussianEvent(1.0), 2**62 + 1)


@pytest.mark.parametrize("who", ["everyone", "", None, 3, []])
def test_unknown_relations_are_refused(who):
    with pytest.raises(ValueError):
        PoissonGaussian(0.1, 1.0, who)


def test_a_truncated_sample_has_no_add_or_remove_form():
    with pytest.raises(ValueError, match="dataset_size is public"):
        TruncatedPoissonGaussian(100, 0.1, 10, 1.0, Neighbours.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize("value", ["x", 3, None, [GaussianEvent(1.0)]])
def test_only_events_are_repeated(value):
    with pytest.raises(TypeError):
        Repeated(value, 2)


@pytest.mark.parametrize("value", ["ab", [3], [None], [[GaussianEvent(1.0)]]])
def test_only_events_are_composed(value):
    with pytest.raises(TypeError):
        Composed(value)


def test_a_list_is_copied_and_events_are_frozen_and_hashable():
    """dp_accounting's ComposedDpEvent keeps the caller's list and cannot be hashed."""
    items = [GaussianEvent(1.0), Pure(0.5)]
    whole = Composed(items)
    before = hash(whole)
    items.append(Pure(100.0))
    assert whole.events == (GaussianEvent(1.0), Pure(0.5))
    assert hash(whole) == before
    assert whole == Composed((GaussianEvent(1.0), Pure(0.5)))
    for event in (whole, Repeated(whole, 2), *whole.events):
        with pytest.raises(AttributeError):
            event.count = 3
        hash(event)


def test_equal_events_are_equal_however_they_were_written():
    assert GaussianEvent(1) == GaussianEvent(1.0) == GaussianEvent(np.float64(1.0))
    assert PoissonGaussian(0.1, 1, "replace_one") == PoissonGaussian(
        0.1, 1.0, Neighbours.REPLACE_ONE
    )
    for event in (
        GaussianEvent(np.float32(2.0)),
        Pure(np.int64(1)),
        Pure(Fraction(1, 2)),
    ):
        assert all(type(value) is float for value in vars(event).values())


def test_numpy_counts_become_whole_numbers():
    event = Repeated(GaussianEvent(1.0), np.int64(5))
    assert type(event.count) is int
    json.dumps(to_json(event))
    plan = TruncatedPoissonGaussian(np.int64(100), 0.1, np.int32(10), 1.0)
    json.dumps(to_json(plan))
    twice = Repeated(Repeated(GaussianEvent(1.0), np.int64(2**40)), np.int64(2**40))
    assert atoms(twice) == {GaussianEvent(1.0): 2**80}


# ------------------------------------------------------------------------ multiset


def test_atoms_multiply_through_nesting():
    event = Composed(
        (
            Repeated(Composed((GaussianEvent(1.0), Repeated(Pure(0.5), 3))), 4),
            GaussianEvent(1.0),
            Composed(()),
        )
    )
    assert atoms(event) == {GaussianEvent(1.0): 5, Pure(0.5): 12}
    assert atoms(event, 10) == {GaussianEvent(1.0): 50, Pure(0.5): 120}


def test_counts_do_not_overflow():
    event = Repeated(Repeated(GaussianEvent(1.0), 2**62), 2**62)
    assert atoms(event) == {GaussianEvent(1.0): 2**124}


def test_a_merged_count_beyond_the_end_is_refused_not_cut():
    with pytest.raises(ValueError, match="2\\^62"):
        compose([Repeated(GaussianEvent(1.0), 2**62)] * 2)


def test_compose_runs_together_equal_events():
    assert compose([GaussianEvent(1.0)] * 1000) == Repeated(GaussianEvent(1.0), 1000)
    assert compose([GaussianEvent(1.0)]) == GaussianEvent(1.0)
    assert compose(e for e in [Pure(0.5), GaussianEvent(1.0), Pure(0.5)]) in (
        Composed((Repeated(Pure(0.5), 2), GaussianEvent(1.0))),
        Composed((GaussianEvent(1.0), Repeated(Pure(0.5), 2))),
    )
    assert atoms(compose([])) == {}


def test_atoms_of_what_is_no_event():
    for value in ("gaussian", None, 3.0, object()):
        with pytest.raises(TypeError, match="not an event"):
            atoms(value)


ATOMS = st.one_of(
    st.builds(GaussianEvent, st.floats(5e-324, 1e300, exclude_min=False)),
    st.builds(Pure, st.floats(0.0, 1e300)),
    st.builds(ApproxDP, st.floats(0.0, 1e300), st.floats(0.0, 1.0)),
    st.builds(
        PoissonGaussian,
        st.floats(0.0, 1.0),
        st.floats(1e-300, 1e300),
        st.sampled_from(list(Neighbours)),
    ),
    st.builds(
        TruncatedPoissonGaussian,
        st.integers(1, 10**9),
        st.floats(0.0, 1.0),
        st.integers(1, 10**6),
        st.floats(1e-300, 1e300),
        st.sampled_from([Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE]),
    ),
)
EVENTS = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds(Repeated, inner, st.integers(1, 2**7))
        | st.lists(inner, max_size=4).map(lambda events: Composed(tuple(events)))
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(EVENTS)
def test_the_multiset_survives_compose(event):
    assert atoms(compose([event])) == atoms(event)
    doubled = {atom: 2 * count for atom, count in atoms(event).items()}
    assert atoms(compose([event, event])) == doubled


@pytest.mark.slow
@given(st.floats(1e-300, 1e300), st.integers(1, 10**6))
def test_groups_round_to_the_private_side(z, k):
    assert Fraction(for_group(GaussianEvent(z), k).multiplier) * k <= Fraction(z)
    assert Fraction(for_group(Pure(z), k).epsilon) >= k * Fraction(z) or z * k > 1e308


def test_groups_of_sampled_events_are_refused():
    for event in (PoissonGaussian(0.1, 1.0), ApproxDP(1.0, 1e-6)):
        assert for_group(event, 1) == event
        with pytest.raises(NotPriced, match="Nothing was spent"):
            for_group(event, 2)


# --------------------------------------------------------------------------- JSON


@pytest.mark.slow
@given(EVENTS)
def test_json_round_trip(event):
    data = to_json(event)
    assert data["schema"] == events.SCHEMA_VERSION
    text = json.dumps(data, allow_nan=False)
    assert from_json(json.loads(text)) == event


def wrap(event, schema=1):
    return {"schema": schema, "event": event}


GAUSSIAN = {"type": "gaussian", "multiplier": 1.0}


@pytest.mark.parametrize("schema", [0, 2, -1, "1", None, True, 1.5, [], {}])
def test_other_versions_are_refused(schema):
    with pytest.raises(ValueError):
        from_json(wrap(GAUSSIAN, schema))


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "gaussian",
        b"{}",
        3,
        {},
        GAUSSIAN,
        {"event": GAUSSIAN},
        wrap(GAUSSIAN) | {"extra": 1},
        wrap(None),
        wrap([]),
        wrap("gaussian"),
        wrap({}),
        wrap({"type": None}),
        wrap({"type": []}),
        wrap({"type": "gaussian"}),
        wrap({"type": "Gaussian", "multiplier": 1.0}),
        wrap(GAUSSIAN | {"extra": 1}),
        wrap(GAUSSIAN | {3: 1}),
        wrap(GAUSSIAN | {"self": 1}),
        wrap({"type": "gaussian", "multiplier": "1"}),
        wrap({"type": "gaussian", "multiplier": math.nan}),
        wrap({"type": "gaussian", "multiplier": math.inf}),
        wrap({"type": "gaussian", "multiplier": True}),
        wrap({"type": "gaussian", "multiplier": None}),
        wrap({"type": "gaussian", "multiplier": 10**400}),
        wrap({"type": "gaussian", "multiplier": {"type": "gaussian"}}),
        wrap({"type": "repeated", "event": GAUSSIAN}),
        wrap({"type": "repeated", "event": GAUSSIAN, "count": 0}),
        wrap({"type": "repeated", "event": GAUSSIAN, "count": 1.0}),
        wrap({"type": "repeated", "event": GAUSSIAN, "count": True}),
        wrap({"type": "repeated", "event": GAUSSIAN, "count": 2**63}),
        wrap({"type": "repeated", "event": [GAUSSIAN], "count": 2}),
        wrap({"type": "composed", "events": GAUSSIAN}),
        wrap({"type": "composed", "events": "ab"}),
        wrap({"type": "composed", "events": [GAUSSIAN], "more": 1}),
        wrap({"type": "composed", "events": [3]}),
        wrap({"type": "poisson_gaussian", "probability": 2.0, "multiplier": 1.0}),
        wrap(
            {
                "type": "poisson_gaussian",
                "probability": 0.1,
                "multiplier": 1.0,
                "neighbours": ["zero_out"],
            }
        ),
    ],
)
def test_bad_data_is_a_value_error(data):
    with pytest.raises(ValueError):
        from_json(data)


@pytest.mark.parametrize(
    "name",
    [
        "antigravity",
        "this",
        "os.system",
        "dp_accounting.dp_event.GaussianDpEvent",
        "__import__('antigravity')",
        "demur.core.accounting.events.Gaussian",
        "__class__",
        "Gaussian",
        "../gaussian",
    ],
)
def test_nothing_named_in_the_data_is_imported(name):
    """dp_accounting's from_named_tuple does importlib.import_module(name)."""
    before = set(sys.modules)
    for data in (
        wrap({"type": name}),
        wrap({"type": name, "multiplier": 1.0, "module": name, "__class__": name}),
        wrap({"type": "gaussian", "multiplier": 1.0, "__module__": name}),
        {"schema": name, "event": GAUSSIAN},
    ):
        with pytest.raises(ValueError):
            from_json(data)
    assert set(sys.modules) == before


def nested(depth):
    data = GAUSSIAN
    for _ in range(depth):
        data = {"type": "repeated", "event": data, "count": 1}
    return wrap(data)


def test_depth_is_limited():
    from_json(nested(10))
    for depth in (16, 100, 900):
        with pytest.raises(ValueError, match="deep"):
            from_json(nested(depth))


def test_very_deep_data_is_a_value_error():
    deep: list = []
    for _ in range(20_000):
        deep = [deep]
    for data in (deep, {"schema": deep, "event": 1}, wrap(deep), wrap({"type": deep})):
        with pytest.raises(ValueError):
            from_json(data)


@pytest.mark.slow
def test_width_is_limited():
    few = wrap({"type": "composed", "events": [GAUSSIAN] * 1000})
    assert atoms(from_json(few)) == {GaussianEvent(1.0): 1000}
    many = wrap({"type": "composed", "events": [GAUSSIAN] * 100_001})
    with pytest.raises(ValueError, match="wide"):
        from_json(many)


def test_the_error_does_not_repeat_huge_data():
    for data in ("x" * 10**6, wrap({"type": "x" * 10**6}), wrap("y" * 10**6)):
        with pytest.raises(ValueError) as caught:
            from_json(data)
        assert len(str(caught.value)) < 1000


KEYS = st.sampled_from(
    ["schema", "event", "type", "events", "count", "multiplier", "epsilon", "delta"]
)
WORDS = st.sampled_from(
    ["gaussian", "pure", "approx_dp", "repeated", "composed", "poisson_gaussian"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(JSON)
def test_fuzzed_data_is_an_event_or_a_value_error(data):
    for record in (data, wrap(data)):
        try:
            event = from_json(record)
        except ValueError:
            continue
        assert from_json(to_json(event)) == event


@pytest.mark.slow
@settings(max_examples=300)
@given(EVENTS, st.data())
def test_mutated_records_are_an_event_or_a_value_error(event, data):
    text = json.dumps(to_json(event)).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.integers(0, 255))
    mutated = text[:at] + bytes([byte]) + text[at + 1 :]
    try:
        parsed = from_json(json.loads(mutated))
    except ValueError:  # json's own errors are ValueErrors as well
        return
    assert from_json(to_json(parsed)) == parsed


@pytest.mark.slow
@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_error(raw):
    with pytest.raises(ValueError):
        from_json(json.loads(raw))
    with pytest.raises(ValueError):
        from_json(raw)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Declaration("x", 1.0), r"Cost\(\(Fixed\(unit, event\),\)\); got 1\.0"),
        (lambda: Fixed(AddOrRemoveOne(), 1.0), r"not an event: 1\.0\. Give Pure"),
        (
            lambda: ledger_for(None, {"epsilon": 1}),
            "mechanism's declaration.. returns",
        ),
    ],
)
def test_what_a_first_mechanism_gets_wrong_is_told_in_words(make, said):
    with pytest.raises(TypeError, match=said):
        make()
