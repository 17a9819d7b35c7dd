"""Discovery of everything in a package that spends.

Every public module is loaded, and every public class and function it defines is
inspected. A new mechanism, estimator, plan or batch strategy is discovered without
being listed, and so is any other function or class that takes a ledger.
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
OPTIONAL = frozenset(
    ["jax", "jaxlib", "optax", "equinox", "safetensors"]
    + ["torch", "torchax", "transformers", "pyspark", "pandas"]
    + ["psycopg", "starlette", "uvicorn", "jinja2", "markupsafe"]
)


class SubjectKind(StrEnum):
    """The kind of a discovered class or function."""

    MECHANISM = "mechanism"
    ESTIMATOR = "estimator"
    PLAN = "plan"
    SELECTION = "batch selection"
    SPENDER = "takes a ledger"


@dataclass(frozen=True)
class Candidate:
    """A public class or function, its kind, and where it is defined."""

    kind: SubjectKind
    name: str
    definition: Any

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Discovery:
    """The candidates, and the modules left out because a framework is missing."""

    candidates: tuple[Candidate, ...]
    left_out: dict[str, str]


def discover(package: str = "demur") -> Discovery:
    """Everything in `package` that the contracts are about.

    >>> from demur.testing import discover
    >>> [each.name for each in discover("demur.mechanisms").candidates][:2]
    ['demur.mechanisms.bpm.mechanism:BPM', 'demur.mechanisms.exponential:GridQuantile']
    """
    candidates: list[Candidate] = []
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
        candidates += _in_module(module)
    return Discovery(tuple(candidates), left_out)


def kind_of(definition: Any) -> SubjectKind | None:
    """The kind of a class or function; None if the contracts do not apply to it.

    >>> from demur import Ledger
    >>> from demur.mechanisms import Gaussian
    >>> kind_of(Gaussian), kind_of(Ledger)
    (<SubjectKind.MECHANISM: 'mechanism'>, None)
    """
    if inspect.isclass(definition):
        if _is_interface(definition):
            return None
        if _can(definition, "batch_iterator"):
            return SubjectKind.SELECTION
        if _can(definition, "make") and _can(definition, "calibrate"):
            return SubjectKind.PLAN
        if _can(definition, "get_params") and "ledger" in _parameters(definition):
            return SubjectKind.ESTIMATOR
        if _can(definition, "declaration"):
            return SubjectKind.MECHANISM
        return SubjectKind.SPENDER if "ledger" in _parameters(definition) else None
    if inspect.isfunction(definition) and "ledger" in _parameters(definition):
        return SubjectKind.SPENDER
    return None


def _modules(package: str) -> list[str]:
    root = importlib.import_module(package)
    names = [package]
    if hasattr(root, "__path__"):
        # walk_packages would import every package, and hide its errors.
        for info in pkgutil.iter_modules(root.__path__, f"{package}."):
            if info.name.rsplit(".", 1)[1].startswith("_"):
                continue
            names += _modules(info.name) if info.ispkg else [info.name]
    return names


def _in_module(module: ModuleType) -> list[Candidate]:
    candidates = []
    for name, definition in sorted(vars(module).items()):
        if (
            name.startswith("_")
            or getattr(definition, "__module__", "") != module.__name__
        ):
            continue
        if getattr(definition, "__name__", name) != name:
            continue  # an alias
        kind = kind_of(definition)
        if kind is not None:
            candidates.append(Candidate(kind, f"{module.__name__}:{name}", definition))
    return candidates


def _is_interface(cls: type) -> bool:
    return inspect.isabstract(cls) or bool(getattr(cls, "_is_protocol", False))


def _can(cls: type, method: str) -> bool:
    return callable(getattr(cls, method, None))


def _parameters(definition: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(definition).parameters)
    except (TypeError, ValueError):  # builtins may have no signature
        return frozenset()
