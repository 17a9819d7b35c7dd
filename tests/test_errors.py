"""Every error that a user may have to catch has a public name."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

import demur
from demur import errors

SOURCE = Path(demur.__file__).parent
# Inside one module or one service alone: never seen by a caller.
INNER = {"_Fork", "_WentOn", "Interrupted", "Refused"}
ENGINES = [
    "adapters",
    "audit",
    "cluster",
    "convex",
    "testing",
    "training",
    "unlearning",
]


@cache
def defined() -> dict[str, str]:
    """Exception classes of the source, with their modules."""
    homes: dict[str, str] = {}
    # First those that others derive from: a class counts as an error by its bases.
    for path in sorted(SOURCE.rglob("*.py"), key=lambda p: p.name != "errors.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(
                name.endswith(("Error", "Exception")) or name in homes
                for name in map(ast.unparse, node.bases)
            ):
                homes[node.name] = path.relative_to(SOURCE).as_posix()
    return homes


def test_every_error_is_exported():
    missing = {
        name: where
        for name, where in defined().items()
        if name not in INNER and not hasattr(errors, name)
    }
    assert missing == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_errors_are_exported_beside_their_engine(engine):
    package = importlib.import_module(f"demur.{engine}")
    own = [n for n, where in defined().items() if where == f"{engine}/errors.py"]
    assert own and set(own) <= set(package.__all__)
    for name in own:
        assert getattr(package, name) is getattr(errors, name)


def test_the_search_sees_errors():
    assert {"BudgetExceeded", "LossNotSeparable", "CapacityExhausted"} <= set(defined())
