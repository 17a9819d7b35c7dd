"""What a package offers that spends: found by looking, not listed.

Every public module is loaded and every public class and function it defines is asked
what it can do. A new mechanism, estimator, plan or batch strategy is found on its first
day, and so is any other function or class that takes a ledger.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any

# Frameworks that an installation may lack; modules that need them are left out then.
OPTIONAL = frozenset({"jax", "jaxlib", "optax", "equinox", "torch", "psycopg"})


class Kind(StrEnum):
    """What a discovered thing can do."""

    MECHANISM = "mechanism"
    ESTIMATOR = "estimator"
    PLAN = "plan"
    SELECTION = "batch selection"
    SPENDER = "takes a ledger"


@dataclass(frozen=True)
class Found:
    """A public class or function, what it is, and where it is defined."""

    kind: Kind
    name: str
    what: Any

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Discovery:
    """What was found, and which modules could not be loaded for want of a framework."""

    found: tuple[Found, ...]
    left_out: dict[str, str]


def discover(package: str = "demur") -> Discovery:
    """Everything in `package` that the contracts are about.

    >>> from demur.testing import discover
    >>> [found.name for found in discover("demur.mechanisms").found][:2]
    ['demur.mechanisms.bpm.mechanism:BPM', 'demur.mechanisms.gaussian:Gaussian']
    """
    found: list[Found] = []
    left_out: dict[str, str] = {}
    for name in _modules(package):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            missing = (error.name or "").split(".")[0]
            if missing not in OPTIONAL:
                raise
            left_out[name] = f"{missing} is not installed"
            continue
        found += _in_module(module)
    return Discovery(tuple(found), left_out)


def kind_of(what: Any) -> Kind | None:
    """What a class or function is to the contracts; None if it does not concern them.

    >>> from demur import Ledger
    >>> from demur.mechanisms import Gaussian
    >>> kind_of(Gaussian), kind_of(Ledger)
    (<Kind.MECHANISM: 'mechanism'>, None)
    """
    if inspect.isclass(what):
        if _is_interface(what):
            return None
        if _can(what, "batch_iterator"):
            return Kind.SELECTION
        if _can(what, "make") and _can(what, "calibrate"):
            return Kind.PLAN
        if _can(what, "get_params") and "ledger" in _parameters(what):
            return Kind.ESTIMATOR
        if _can(what, "declaration"):
            return Kind.MECHANISM
        return Kind.SPENDER if "ledger" in _parameters(what) else None
    if inspect.isfunction(what) and "ledger" in _parameters(what):
        return Kind.SPENDER
    return None


def _modules(package: str) -> list[str]:
    root = importlib.import_module(package)
    names = [package]
    if hasattr(root, "__path__"):
        # walk_packages would import (and swallow errors of) every package on its way.
        for info in pkgutil.iter_modules(root.__path__, f"{package}."):
            if info.name.rsplit(".", 1)[1].startswith("_"):
                continue
            names += _modules(info.name) if info.ispkg else [info.name]
    return names


def _in_module(module: ModuleType) -> list[Found]:
    found = []
    for name, what in sorted(vars(module).items()):
        if name.startswith("_") or getattr(what, "__module__", "") != module.__name__:
            continue
        if getattr(what, "__name__", name) != name:
            continue  # another name for something that is found under its own
        kind = kind_of(what)
        if kind is not None:
            found.append(Found(kind, f"{module.__name__}:{name}", what))
    return found


def _is_interface(cls: type) -> bool:
    return inspect.isabstract(cls) or bool(getattr(cls, "_is_protocol", False))


def _can(cls: type, method: str) -> bool:
    return callable(getattr(cls, method, None))


def _parameters(what: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(what).parameters)
    except (TypeError, ValueError):  # builtins do not tell
        return frozenset()
