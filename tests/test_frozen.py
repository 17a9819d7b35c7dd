"""What has been checked and handed out cannot be changed afterwards."""

import dataclasses
import importlib
import pkgutil

import pytest

import demur.convex
import demur.core
import demur.ledger
import demur.mechanisms
import demur.unlearning.models

GATHERS = {"demur.core.recording"}  # a recording grows while it is made


def values(package):
    for listed in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if listed.name in GATHERS:
            continue
        module = importlib.import_module(listed.name)
        for kind in vars(module).values():
            own = getattr(kind, "__module__", None) == listed.name
            if own and isinstance(kind, type) and dataclasses.is_dataclass(kind):
                yield kind


def changeable(kinds):
    return [k.__qualname__ for k in kinds if not k.__dataclass_params__.frozen]


@pytest.mark.parametrize(
    "package",
    [
        demur.core,
        demur.ledger,
        demur.mechanisms,
        demur.convex,
        demur.unlearning.models,
    ],
    ids=lambda package: package.__name__,
)
def test_every_value_is_frozen(package):
    kinds = list(values(package))
    assert len(kinds) >= 2
    assert changeable(kinds) == []
    # One that compares by value is a key of a dictionary too.
    assert [k for k in kinds if k.__dataclass_params__.eq and not k.__hash__] == []


def test_the_check_sees_a_class_that_is_not_frozen():
    @dataclasses.dataclass
    class Loose:
        number: int

    assert changeable([Loose])
