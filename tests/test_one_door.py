"""Nothing is charged and no noise is drawn except through `Ledger.paid`.

A walk over the source: the steps of a payment are named inside `demur.ledger` alone,
and keys of noise, their streams and other randomness are made in few places, each with
its reason. It is a check on what a developer writes, not on one who hides it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import demur

SOURCE = Path(demur.__file__).parent

# Steps of a payment, on anything: what `paid` is made of.
STEPS = {"charge", "reserve", "_charge", "_write_charge", "_draw_many", "_abandon"}
# The same under names that classes also use for what is their own (`self._key`).
STEPS_OF_OTHERS = {"_key", "_keys", "_commit", "_append", "_may_draw", "_binding"}
# What these modules alone may name, beside annotations, and why it is no release.
ALLOWED = {
    "NoiseKey": {
        "core/entropy.py": "defines it",
        "ledger/charging.py": "the door itself",
        "training/run/paid_run.py": "the key of a payment, told to the other processes",
        "training/batches/selection_key.py": "batches under a seed, not private",
        "training/noise/threefry.py": "noise without a payment, the user's to account",
        "training/noise/hardened.py": "the same, on the lattice",
        "training/canaries.py": "audits of noise alone, under a seed",
        "testing/selection.py": "batches of a check, not a release",
        "testing/audit_suite/ledger.py": "twins that draw without paying, seeded",
        "testing/audit_suite/cluster.py": "audits of noise alone, under a seed",
        "testing/audit_suite/training.py": "audits of noise alone, under a seed",
        "testing/audit_suite/convex.py": "audits of noise alone, under a seed",
        "testing/audit_suite/batches.py": "batches of an audit, under a seed",
        "testing/audit_suite/tuning.py": "how often a search runs, under a seed",
        "testing/neighbours.py": "outputs of a check, under a seed",
        "testing/sabotages/spending.py": "an error on purpose, under a seed",
    },
    "Binding": {
        "core/entropy.py": "defines it",
        "ledger/charging.py": "the door itself",
        "training/run/paid_run.py": "of a payment, told to the other processes",
    },
    "Payment": {"ledger/payment.py": "defines it", "ledger/writer.py": "the door"},
    "Stream": {"core/entropy.py": "keys make their streams"},
    "RowStreams": {
        "mechanisms/sampling/row_streams.py": "defines it",
        "mechanisms/reports.py": "streams of an authorised key",
        "adapters/spark/drawing.py": "streams of an authorised key, in a task",
        "cluster/rows/ranked_rows.py": "which reports are read: a choice, no noise",
    },
    "urandom": {
        "core/entropy.py": "the one source of keys",
        "durable/keys.py": "names of files, and the secret of input digests",
        "audit/one_run/canaries.py": "which canaries go in: the audit's own coins",
    },
    "handed_on": {
        "core/entropy.py": "defines it",
        "training/run/paid_run.py": "to the other processes of the same run",
    },
}
# The key itself, a context that holds Ctrl-C back while a ledger writes a charge, and
# the service's table, which enters what its clients charge and has no keys.
STEPPING = {
    "core/entropy.py",
    "cli/interrupts.py",
    "serve/api.py",
    "serve/routes.py",
}
_ANNOTATIONS = ("annotation", "returns")


@cache
def suspects() -> dict[str, ast.Module]:
    """Modules that name anything of this, in whatever way; the others need no walk."""
    words = re.compile("|".join(STEPS | STEPS_OF_OTHERS | ALLOWED.keys()))
    texts = {p: p.read_text() for p in sorted(SOURCE.rglob("*.py"))}
    return {
        p.relative_to(SOURCE).as_posix(): ast.parse(text)
        for p, text in texts.items()
        if words.search(text)
    }


def run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, without annotations."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in _ANNOTATIONS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from run_time(child)


def violations(module: str, tree: ast.Module) -> list[str]:
    """What by-passes the door in a module, as "name at line"."""
    uses = []
    inside = module.startswith("ledger/") or module in STEPPING
    for node in run_time(tree):
        step = None if inside else steps(node, module)
        if step:
            uses.append(f"{step} at line {node.lineno}")
        for name in named(node) & ALLOWED.keys():
            if module not in ALLOWED[name]:
                uses.append(f"{name} at line {node.lineno}")
    return uses


def named(node: ast.AST) -> set[str]:
    """Names that a node uses for more than a type: made, derived from, renamed."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance")):
            return set()
        case ast.Call(func=called, args=arguments):
            # Called, asked for a method of the class, or handed to a call.
            return {n for n in map(last_name, [called, *arguments]) if n} | owner(
                called
            )
        case ast.Attribute(attr=attr):
            return {attr} & {"handed_on", "urandom"}
        case ast.ClassDef(bases=bases):
            return {n for n in map(last_name, bases) if n}
        case ast.ImportFrom(names=aliases):
            return {a.name for a in aliases if a.asname not in (None, a.name)}
        case ast.Assign(value=value):
            return {last_name(value) or ""}
    return set()


def owner(called: ast.expr) -> set[str]:
    name = last_name(called.value) if isinstance(called, ast.Attribute) else None
    return {name} if name else set()


def last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def steps(node: ast.AST, module: str) -> str | None:
    """A step of a payment that a node names, called or not."""
    match node:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
            # A ledger that watches itself.
            return None if module == "testing/ledgers.py" else attr * (attr in STEPS)
        case ast.Attribute(attr=attr) if attr in STEPS:
            return attr
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return None
        case ast.Attribute(attr=attr) if attr in STEPS_OF_OTHERS:
            return attr
        case ast.Call(
            func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]
        ):
            return name if name in STEPS | STEPS_OF_OTHERS else None
    return None


def test_every_release_goes_through_the_door():
    uses = {name: violations(name, tree) for name, tree in suspects().items()}
    assert {name: what for name, what in uses.items() if what} == {}


def test_the_lists_are_no_longer_than_they_must_be():
    used = {name: names_of(tree) for name, tree in suspects().items()}
    for name, modules in ALLOWED.items():
        assert all(name in used[module] for module in modules), name


def names_of(tree: ast.Module) -> set[str]:
    """What a module uses, and what it defines."""
    names = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    return names.union(*map(named, run_time(tree)))


@pytest.mark.parametrize(
    "line",
    [
        "entry = ledger.charge(mechanism, label='x')",
        "spend = ledger.charge",
        "spend = functools.partial(ledger.charge, label='x')",
        "entries = list(map(ledger.charge, mechanisms))",
        "entry = getattr(ledger, 'charge')(mechanism, label='x')",
        "super().charge(mechanism, label='x')",
        "reservation = self.ledger.reserve(mechanism, count=2, label='x')",
        "draws = ledger._draw_many(entry, 3)",
        "key = ledger._key(entry, digest)",
        "key = ledger._keys.take(entry.id, keep=True)",
        "self._ledger._commit(entry, 'artefact')",
        "key = NoiseKey(os.urandom(32), private=True)",
        "key = entropy.NoiseKey(os.urandom(32), private=True)",
        "key = NoiseKey.free(OsEntropy())",
        "key = object.__new__(NoiseKey)",
        "Key = NoiseKey",
        "from demur.core.entropy import NoiseKey as Key",
        "class Key(NoiseKey): pass",
        "key._may_draw = True",
        "stream = Stream(secret)",
        "streams = RowStreams(secret)",
        "secret = payment.key.handed_on()",
        "payment = Payment(ledger, entry, None)",
        "bound = Binding('anything')",
        "bound = replace(key._binding, draws=100)",
    ],
)
def test_the_walk_finds_a_second_door(line):
    """The twin: an engine that spends in a way of its own."""
    tree = ast.parse(f"def release(self):\n    {line}\n")
    assert violations("convex/release.py", tree)


@pytest.mark.parametrize(
    "line",
    [
        "def f(key: NoiseKey) -> Payment: ...",
        "if isinstance(key, NoiseKey): pass",
        "self._key = payment.key",
        "with ledger.paid(mechanism, label='x') as payment: pass",
    ],
)
def test_the_walk_leaves_the_door_alone(line):
    assert violations("convex/release.py", ast.parse(line)) == []
