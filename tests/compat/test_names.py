"""Every name of the original is there, and is called in the same way."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from typing import Any

import pytest

from tests.compat import inventory


def signature_of(text: str) -> inspect.Signature:
    space: dict[str, Any] = {}
    exec(f"def wanted({text}): ...", space)
    return inspect.signature(space["wanted"])


def named(module: str, name: str):
    return getattr(import_module(f"{inventory.PACKAGE}.{module}"), name)


def cases(rows):
    """Rows of (module, name, signature); modules of torch need it to be loaded."""
    torch = pytest.mark.torch
    return [pytest.param(*row, marks=[torch] * ("torch" in row[0])) for row in rows]


@pytest.mark.parametrize("name", inventory.EXPORTS)
def test_the_package_exports(name):
    assert hasattr(import_module(inventory.PACKAGE), name)


@pytest.mark.parametrize(
    ("module", "name", "text"),
    cases(inventory.FUNCTIONS + inventory.DATACLASSES),
    ids=lambda value: value if isinstance(value, str) and "," not in value else "",
)
def test_signature(module, name, text):
    ours = list(inspect.signature(named(module, name)).parameters.values())
    theirs = list(signature_of(text).parameters.values())
    for mine, wanted in zip(ours, theirs, strict=False):
        assert (mine.name, mine.kind, mine.default) == (
            wanted.name,
            wanted.kind,
            wanted.default,
        )
    assert len(ours) >= len(theirs)
    for extra in ours[len(theirs) :]:
        assert extra.default is not inspect.Parameter.empty


@pytest.mark.parametrize(("module", "name", "text"), cases(inventory.DATACLASSES))
def test_fields(module, name, text):
    fields = [field.name for field in dataclasses.fields(named(module, name))]
    wanted = list(signature_of(text).parameters)
    assert fields[: len(wanted)] == wanted


@pytest.mark.parametrize(("module", "name", "text"), cases(inventory.FUNCTIONS))
def test_has_a_docstring(module, name, text):
    assert inspect.getdoc(named(module, name))
