"""Runs the audit suite, engine by engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec

from demur.testing.audit_suite.case import Case, Outcome, Size
from demur.testing.audit_suite.layouts import spark

# Loaded one by one, so that an audit of one engine needs no framework of another.
ENGINES = (
    "ledger",
    "accounting",
    "convex",
    "cluster",
    "unlearning",
    "training",
    "tuning",
    "defaults",
)
_NEEDS = {
    "training": ("jax", "optax", "equinox"),
    "defaults": ("jax", "optax", "equinox"),
}


def lacking(engine: str) -> str | None:
    """What must be installed before this engine can be audited; None if it can be."""
    for name in _NEEDS.get(engine, ()):
        if find_spec(name) is None:
            return f"{engine} needs JAX ({name} is missing): pip install 'demur[jax]'"
    return None


def left_out(engines: Iterable[str], size: Size) -> list[str]:
    """What of these engines cannot be audited here for lack of something, in words."""
    found = []
    for engine in engines:
        found.append(lacking(engine))
        if engine == "cluster" and size is not Size.QUICK:
            found.append(spark.lacking())
    return [lacks for lacks in found if lacks is not None]


def all_cases(
    engines: Iterable[str] = ENGINES, *, size: Size = Size.QUICK, twins: bool = True
) -> list[Case]:
    """The cases of these engines at a size, correct builds before twins."""
    cases: list[Case] = []
    for engine in engines:
        if engine not in ENGINES:
            raise ValueError(
                f"engines must be among {', '.join(ENGINES)}; got {engine!r:.40}"
            )
        lacks = lacking(engine)
        if lacks is not None:
            raise ModuleNotFoundError(lacks)
        module = import_module(f"demur.testing.audit_suite.{engine}")
        cases += [
            case
            for case in module.cases()
            if (twins or not case.broken) and not (case.full and size is Size.QUICK)
        ]
    return sorted(cases, key=lambda case: case.broken is not None)


def run_suite(
    size: Size = Size.QUICK,
    *,
    engines: Iterable[str] = ENGINES,
    twins: bool = True,
    random_state: int = 0,
    started: Callable[[Case], None] | None = None,
) -> Iterator[Outcome]:
    """The outcomes one by one; `started` is called with each case before it runs."""
    for case in all_cases(engines, size=size, twins=twins):
        if started is not None:
            started(case)
        yield case.audit(size, random_state)
