"""Nothing is charged and no noise is drawn except through `Ledger.paid`.

A walk over the source: the steps of a payment are called inside `demur.ledger` alone,
and a key of noise is made in few places, each with its reason.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import demur

SOURCE = Path(demur.__file__).parent

# Steps of a payment: of the ledger itself, and what `paid` is made of.
STEPS = {"charge", "reserve", "_charge", "_key", "_commit", "_write_charge"}
# Who may make a key by hand, and why no release depends on it.
KEY_MAKERS = {
    "core/entropy.py": "defines it, and keys for randomness that is no release",
    "ledger/writer.py": "the door itself",
    "training/run/paid_run.py": "the key of a payment, told to the other processes",
    "training/batches/selection_key.py": "batches under a seed, not private",
    "testing/suite/ledger.py": "twins that draw without paying, under a seed",
    "testing/suite/cluster.py": "audits of noise alone, under a seed",
    "testing/suite/training.py": "audits of noise alone, under a seed",
    "testing/suite/convex.py": "audits of noise alone, under a seed",
}


def outside(name: str) -> bool:
    return not name.startswith("ledger/")


def violations(name: str, text: str) -> list[str]:
    """Calls in a module that by-pass the door, as "what at line"."""
    calls = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in STEPS:
            owner = called.value
            of_parent = (  # a ledger that watches itself (testing.ledgers)
                isinstance(owner, ast.Call)
                and isinstance(owner.func, ast.Name)
                and owner.func.id == "super"
            )
            if outside(name) and not of_parent:
                calls.append(f"{called.attr} at line {node.lineno}")
        kind = called_name(called)
        if kind == "NoiseKey" and name not in KEY_MAKERS:
            calls.append(f"NoiseKey at line {node.lineno}")
        if kind == "Binding" and name != "ledger/writer.py":
            calls.append(f"Binding at line {node.lineno}")
    return calls


def called_name(called: ast.expr) -> str | None:
    """The last name of what is called, as in `NoiseKey` or `entropy.NoiseKey`."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else None


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_every_release_goes_through_the_door():
    calls = {
        str(path.relative_to(SOURCE)): violations(
            str(path.relative_to(SOURCE)), path.read_text()
        )
        for path in modules()
    }
    assert {name: what for name, what in calls.items() if what} == {}


def test_the_list_of_key_makers_is_no_longer_than_it_must_be():
    makers = {
        str(path.relative_to(SOURCE))
        for path in modules()
        if any(
            isinstance(node, ast.Call) and called_name(node.func) in ("NoiseKey", "cls")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert set(KEY_MAKERS) <= makers


@pytest.mark.parametrize(
    "line",
    [
        "entry = ledger.charge(mechanism, label='x')",
        "reservation = self.ledger.reserve(mechanism, count=2, label='x')",
        "key = ledger._key(entry, digest)",
        "self._ledger._commit(entry, 'artefact')",
        "key = NoiseKey(os.urandom(32), private=True)",
        "key = entropy.NoiseKey(os.urandom(32), private=True)",
        "bound = Binding('anything')",
    ],
)
def test_the_walk_finds_a_second_door(line):
    """The twin: an engine that spends in a way of its own."""
    assert violations("convex/release.py", f"def release():\n    {line}\n")
