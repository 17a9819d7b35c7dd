"""Two results are equal in every bit, or the place where they differ is named."""

import enum
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from demur import ReplaceOne, Seeded
from demur.audit.equality import copied, differences
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, eq=False)
class Held:
    value: object


class Plain:
    def __init__(self, value):
        self.value = value


def places(one, two):
    return list(differences(one, two))


def example():
    """Of every kind something, all of it new."""
    ring = [1]
    ring.append(ring)
    return {
        "array": np.arange(3.0),
        "nan": float("nan"),
        "text": "x",
        "held": Held(Plain([None, b"y", (1, 2.5, True)])),
        "device": jnp.ones(2),
        "scalar": np.float32(2.0),
        "objects": np.array(["a", None], dtype=object),
        "enum": Colour.RED,
        "path": Path("a/b"),
        "type": int,
        "set": {1, 2},
        "ring": ring,
        "unit": ReplaceOne(),
        "function": np.sum,
    }


def test_equal_things_are_equal():
    assert places(example(), example()) == []


@pytest.mark.parametrize(
    "one, two, where",
    [
        (np.zeros(2), -np.zeros(2), "result"),  # the sign of a zero is a bit
        (0.0, -0.0, "result"),
        (np.nextafter(1.0, 2.0), np.float64(1.0), "result"),
        (np.zeros(2), np.zeros(3), "result (shape)"),
        (np.zeros(2), np.zeros(2, np.float32), "result (dtype)"),
        (1, 1.0, "result (type)"),
        (True, 1, "result (type)"),
        ([1, 2], [1, 2, 3], "result (length)"),
        ((1, 2), [1, 2], "result (type)"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "result (keys, or their order)"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "result['a']['b'][1]"),
        (Held(np.ones(2)), Held(np.zeros(2)), "result.value"),
        (Plain("a"), Plain("b"), "result.value"),
        (Colour.RED, Colour.BLUE, "result"),
        ({1, 2}, {1, 3}, "result"),
        (np.array([None, "a"]), np.array([None, "b"]), "result[1]"),
        (jnp.ones(2), jnp.zeros(2), "result"),
        ({12345.678: 1.0}, {12345.678: 2.0}, "result[...]"),
        (lambda: 1, lambda: 1, "result"),
        (ReplaceOne(), ReplaceOne(2), "result.records_per_person"),
    ],
)
def test_a_difference_is_found_and_its_place_is_named(one, two, where):
    assert places(one, two) == [where]


def test_attributes_that_one_world_alone_has():
    more = Plain(1)
    more.extra = 2
    assert places(Plain(1), more) == ["result (attributes)"]


def test_entries_and_ledgers_are_compared_by_what_they_say():
    def recorded(sigma=5.0):
        ledger = Ledger(Budget(10.0, 1e-6), unit=ReplaceOne())
        noise = Gaussian(sigma, {ReplaceOne(): 1.0})
        return noise.release([0.0], ledger=ledger, label="x", source=Seeded(1)), ledger

    (one, first), (two, second) = recorded(), recorded()
    assert one.entry.id != two.entry.id
    assert places([one, first], [two, second]) == []
    other, third = recorded(6.0)
    assert any("entry.declaration" in place for place in places(one, other))
    assert places(first, third)


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Text(str):
    pass


class Number(float):
    pass


class Table(dict):
    pass


class Listed(list):
    pass


class Grid(np.ndarray):
    pass


@dataclass
class Fields:
    value: int = 1


def carrying(example, exact):
    example.beside = exact
    return example


CARRIERS = {
    "text": lambda exact: carrying(Text("x"), exact),
    "number": lambda exact: carrying(Number(1.0), exact),
    "mapping": lambda exact: carrying(Table(), exact),
    "list": lambda exact: carrying(Listed(), exact),
    "array": lambda exact: carrying(np.zeros(2).view(Grid), exact),
    "dataclass": lambda exact: carrying(Fields(), exact),
    "mask": lambda exact: np.ma.masked_array([1.0, 2.0], mask=[False, exact > 0.5]),
    "slots": Slots,
    "partial": lambda exact: functools.partial(max, exact),
}


@pytest.mark.parametrize("kind", CARRIERS)
def test_what_is_carried_beside_the_value_is_compared(kind):
    make = CARRIERS[kind]
    assert places(make(0.25), make(0.25)) == []
    assert places(make(0.25), make(0.75))


class Lazy:
    def __init__(self):
        self.base = 1

    @functools.cached_property
    def derived(self):
        return self.base + 1


def test_what_was_only_computed_on_demand_is_no_difference():
    asked, other = Lazy(), Lazy()
    assert asked.derived == 2
    assert places(asked, other) == []


def test_a_copy_does_not_follow_what_is_written_later() -> None:
    ledger = Ledger(Budget(1.0, 1e-6), unit=ReplaceOne())  # cannot be copied
    example: dict[str, Any] = {
        "model": Plain([np.zeros(1), ledger]),
        "pair": (ledger, [1]),
    }
    example["ring"] = example
    snapshot = copied(example)
    assert snapshot["model"].value[1] is ledger and places(snapshot, example) == []
    example["model"].value[0][0] = 1.0
    example["pair"][1].append(2)
    assert places(snapshot, example) == [
        "result['model'].value[0]",
        "result['pair'][1] (length)",
    ]
