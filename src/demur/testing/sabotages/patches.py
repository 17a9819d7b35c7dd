"""A sabotage: a small patch of a named place, inside a `with` block.

`Sabotage.applied()` replaces one function, method or number wherever demur holds it:
`from place import name` leaves copies of a name in other modules, and all of them are
replaced. Programs that were compiled before keep what they had, so a sabotage is
applied in a process of its own, before anything runs (`demur.testing.sabotages.run`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any


class Category(StrEnum):
    """What kind of error a sabotage is."""

    SCALE = "scale"
    LAW = "law"
    INDEPENDENCE = "independence"
    ORDER = "order"
    ACCOUNTING = "accounting"
    SENSITIVITY = "sensitivity"
    SAMPLING = "sampling"
    PERSONS = "persons"
    STATE = "state"
    SECRETS = "secrets"


@dataclass(frozen=True)
class Sabotage:
    """One error: what is wrong, where, and whether the quick audit must refute it.

    `wrong(right)` makes what takes the place of `right`, which is at each of `places`
    ("module:name" or "module:Class.name"). `engine` is where the audit looks first;
    `quick` says that `demur audit --quick` refutes it, otherwise `why_not` says why
    that cannot be asked of it and what finds it instead: `demur audit`, where `full`.
    """

    name: str
    category: Category
    engine: str
    places: tuple[str, ...]
    wrong: Callable[[Any], Any]
    quick: bool = True
    why_not: str = ""
    full: bool = False
    copies: bool = True  # replaced too, where other modules imported the name

    @contextmanager
    def applied(self) -> Iterator[None]:
        """demur with this error, inside the block."""
        undo: list[tuple[Any, str, Any]] = []
        try:
            for place in self.places:
                owner, name = _found(place)
                right = owner.__dict__[name]
                bad = _wrapped(right, self.wrong)
                holders = _holders(owner, name, right) if self.copies else [owner]
                for holder in holders:
                    undo.append((holder, name, right))
                    setattr(holder, name, bad)
            yield
        finally:
            for holder, name, right in reversed(undo):
                setattr(holder, name, right)

    def __str__(self) -> str:
        return f"{self.category}: {self.name}"


@contextmanager
def in_children(name: str) -> Iterator[None]:
    """The sabotage with this name in every Python that is started inside the block."""
    before = {key: os.environ.get(key) for key in ("DEMUR_SABOTAGE", "PYTHONPATH")}
    folder = str(Path(__file__).parent / "children")
    paths = [folder, *filter(None, [before["PYTHONPATH"]])]
    os.environ |= {"DEMUR_SABOTAGE": name, "PYTHONPATH": os.pathsep.join(paths)}
    sys.path.insert(0, folder)  # some hand on their own path
    try:
        yield
    finally:
        sys.path.remove(folder)
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _found(place: str) -> tuple[Any, str]:
    module, _, path = place.partition(":")
    owner: Any = import_module(module)
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    return owner, name


def _wrapped(right: Any, wrong: Callable[[Any], Any]) -> Any:
    """The replacement in the form of the original: property and class method stay."""
    if isinstance(right, property):
        return property(wrong(right.fget))
    if isinstance(right, classmethod | staticmethod):
        return type(right)(wrong(right.__func__))
    return wrong(right)


def _holders(owner: Any, name: str, right: Any) -> list[Any]:
    """The owner, and every module of demur that imported the name from it."""
    others = [
        module
        for key, module in list(sys.modules.items())
        if key.split(".")[0] == "demur"
        and module is not owner
        and getattr(module, "__dict__", {}).get(name) is right
        and not isinstance(right, int | float | str | bool)
    ]
    return [owner, *others]
