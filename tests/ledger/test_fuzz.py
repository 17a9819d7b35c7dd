"""Hostile data: every reader answers with ValueError, soon, and imports nothing."""

import copy
import json
import sys
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from demur import (
    Ball,
    Bound,
    Budget,
    Declaration,
    Erasure,
    Filter,
    LipschitzMap,
    ReplaceOne,
    Tip,
)
from demur.core import accounting
from demur.core.accounting import events
from demur.core.accounting.events import (
    ApproxDP,
    Composed,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
    TruncatedPoissonGaussian,
)
from demur.core.accounting.stored_profile import Profile
from demur.core.bounds import BoundSource
from demur.core.cost import Cost, Fixed, GaussianOverBalls, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.ledger.rules import amounts
from demur.ledger.rules.terms import Terms
from tests.families import thinned
from tests.ledger.kit import UNIT

EVENT = Composed(
    (
        Repeated(GaussianEvent(2.0), 3),
        Pure(0.5),
        ApproxDP(0.1, 1e-9),
        PoissonGaussian(0.01, 1.0),
        TruncatedPoissonGaussian(1000, 0.01, 20, 1.0),
    )
)
CURVE = PiecewiseLinear(((0.0, 0.0), (1.0, 2.0)), saturates=True)
COST = Cost(
    (
        Fixed(UNIT, Composed(EVENT.events[:-1])),
        Fixed(Erasure(), GaussianEvent(1.0)),
        GaussianOverBalls("cube", CURVE, 3.0),
        PureOverBalls("cube", CURVE, 3.0),
    )
)
DECLARATION = Declaration(
    "a mechanism",
    COST,
    1e-30,
    bounds=(Bound(1.0, BoundSource.ENFORCED, "norm"),),
    unprotected=("labels",),
    assumptions=("the moon",),
)
TERMS = Terms.make(
    dataset="people",
    budgets={ReplaceOne(): Budget(1.0, 1e-6), Ball(1.0, "cube"): Budget(2.0, 1e-6)},
    filter=Filter.gaussian(blocks=0.5),
    maps=[LipschitzMap("a", "b", 2.0)],
)
AMOUNTS = '{"block delta":"0","mu squared":"17/1024","renyi 8":null}'

READERS = {
    "event": (events.from_json, events.to_json(EVENT)),
    "cost": (Cost.from_json, COST.to_json()),
    "declaration": (Declaration.from_json, DECLARATION.to_json()),
    "terms": (lambda d: Terms.from_text(as_text(d)), json.loads(TERMS.to_text())),
    "amounts": (lambda d: amounts.from_text(as_text(d)), [json.loads(AMOUNTS)]),
}


def as_text(data):
    return json.dumps(data)


def answers(read, data):
    """Whether `read` takes `data`; anything but ValueError is a failure."""
    modules = set(sys.modules)
    try:
        read(data)
    except ValueError as error:
        assert len(str(error)) < 5000
        taken = False
    else:
        taken = True
    # The json module looks for UTF-16 and -32 in bytes, and loads those codecs.
    new = {m for m in set(sys.modules) - modules if not m.startswith("encodings.")}
    assert not new
    return taken


numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from(
        [0, -1, 1, 2**62, 2**63, 10**400, 1e308, 5e-324, -0.0, float("nan"), True]
        + [float("inf"), 1e-320]
    )
)
texts = st.text(max_size=20) | st.sampled_from(
    ["os.system", "__class__", "builtins.eval", "1/0", "1e999999999", "-1", "\x00"]
    + ["renyi 8", "renyi 0", "mu squared", "gaussian", "9" * 5000, "1/3", "²", "١"]
)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
    ),
    max_leaves=12,
)
relaxed = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def paths(data, at=()):
    """Every place in a JSON value."""
    yield at
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths(value, (*at, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from paths(value, (*at, index))


def with_change(data, path, change, value):
    """The data with one place replaced, removed, doubled or added to."""
    if not path:
        return value
    data = copy.deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    last = path[-1]
    if change == "remove":
        del inner[last]
    elif change == "add" and isinstance(inner, dict):
        inner["surplus"] = value
    elif change == "add":
        inner.append(value)
    else:
        inner[last] = value
    return data


def deep(depth, kind):
    data: Any = 1
    for _ in range(depth):
        data = [data] if kind == "list" else {"type": "repeated", "event": data}
    return data


@pytest.mark.parametrize("name", READERS)
def test_what_was_written_is_read(name):
    read, valid = READERS[name]
    assert answers(read, valid)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_any_json(name):
    read, _ = READERS[name]

    @relaxed
    @given(values)
    def fuzz(data):
        answers(read, data)

    fuzz()


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("value", ["9" * 6000, {"9" * 6000: None}, ["9" * 6000] * 40])
def test_no_message_repeats_a_long_value(name, value):
    read, valid = READERS[name]
    for path in paths(valid):
        answers(read, with_change(valid, path, "replace", value))
        answers(read, with_change(valid, path, "add", value))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_one_change_to_valid_data(name):
    read, valid = READERS[name]
    places = list(paths(valid))

    @relaxed
    @given(
        st.sampled_from(places),
        st.sampled_from(["replace", "remove", "add"]),
        values | st.just({}) | st.just([]),
    )
    @example(places[-1], "replace", 10**400)
    @example(places[-1], "replace", float("nan"))
    def fuzz(path, change, value):
        answers(read, with_change(valid, path, change, value))

    fuzz()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("depth", thinned([17, 100, 900, 100_000], 3))
@pytest.mark.parametrize("name", ["event", "cost", "declaration"])
def test_deep_nesting(name, depth, kind):
    read, valid = READERS[name]
    assert not answers(read, deep(depth, kind))
    inside = copy.deepcopy(valid)
    if name == "event":
        inside["event"] = deep(depth, kind)
    elif name == "cost":
        inside["terms"] = [deep(depth, kind)]
    else:
        inside["cost"] = deep(depth, kind)
    assert not answers(read, inside)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"dataset":', '{"budgets":['])
@pytest.mark.parametrize("read", [Terms.from_text, amounts.from_text])
def test_deep_text(read, opening):
    assert not answers(read, opening * 100_000)


@pytest.mark.slow
def test_wide_events_end():
    wide = {"type": "composed", "events": [{"type": "pure", "epsilon": 0.1}] * 100_001}
    assert not answers(events.from_json, {"schema": 1, "event": wide})


@pytest.mark.slow
@relaxed
@given(st.binary(max_size=200))
@example(b"")
@example((2**32 - 1).to_bytes(4, "little"))
def test_profile_of_random_bytes(data):
    assert not answers(Profile.from_bytes, data)


@pytest.mark.slow
def test_profile_with_changed_bytes():
    kept = accounting.profile_of(PoissonGaussian(0.1, 5.0))
    assert kept is not None
    profile = kept.to_bytes()

    @relaxed
    @given(st.integers(0, len(profile) - 1), st.binary(min_size=1, max_size=8))
    def fuzz(at, change):
        answers(Profile.from_bytes, profile[:at] + change + profile[at + len(change) :])

    fuzz()


@pytest.mark.slow
@relaxed
@given(
    st.dictionaries(
        st.sampled_from(["format", "exponent", "first", "dots"]), values, max_size=4
    ),
    st.binary(max_size=64),
)
@example({"format": 1, "dots": 2**22, "exponent": 13, "first": 0}, b"")
@example({"format": 1, "dots": 2.5, "exponent": 13, "first": 0}, b"")
@example({"format": 1, "dots": 2, "exponent": "13", "first": None}, b"x\x9c")
def test_profile_with_any_header(header, body):
    tip = json.dumps({"format": 1, "exponent": 1, "first": 0, "dots": 2} | header)
    data = len(tip).to_bytes(4, "little") + tip.encode() + body
    answers(Profile.from_bytes, data)


@pytest.mark.slow
def test_profile_that_unpacks_to_a_bomb():
    tip = json.dumps({"format": 1, "exponent": 1, "first": 0, "dots": 2}).encode()
    bomb = zlib.compress(bytes(50_000_000), 9)
    assert not answers(Profile.from_bytes, len(tip).to_bytes(4, "little") + tip + bomb)


@pytest.mark.slow
@relaxed
@given(st.text(max_size=90) | st.from_regex(r"[0-9]{1,30}:[0-9a-f]{64}"))
@example("9" * 5000 + ":" + "a" * 64)
@example("²:" + "a" * 64)
@example("1:" + "z" * 64)
def test_tip(text):
    answers(Tip.parse, text)


@pytest.mark.slow
@relaxed
@given(st.text(max_size=100))
@example('{"a":"1/0"}')
@example('{"a":"1e999999999"}')
@example('{"a":"-1"}')
@example('{"a":"' + "9" * 5000 + '"}')
def test_amounts_from_any_text(text):
    assert not answers(amounts.from_text, text) or json.loads(text) is not None


@pytest.mark.parametrize("text", ["1/0", "1e9", "-1", "0x1", "1/-2", "nan", "", "1.5"])
def test_amounts_are_plain_fractions(text):
    assert not answers(amounts.from_text, json.dumps([{"a": text}]))


@pytest.mark.parametrize(
    "wrong", [{"signer": 5}, {"signer": "zz"}, {"testing": "yes"}, {"testing": []}]
)
def test_terms_have_types(wrong):
    text = json.dumps(json.loads(TERMS.to_text()) | wrong)
    assert not answers(Terms.from_text, text)


def test_a_tip_is_hexadecimal():
    assert not answers(Tip.parse, "1:" + "z" * 64)
