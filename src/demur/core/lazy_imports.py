"""Lazy imports: the public names of a package are loaded when they are first used.

A package lists its names once, in the `if TYPE_CHECKING:` block of its `__init__`. Type
checkers read that block, and so does this module. Importing the package stays quick,
and an error class can be caught without loading the engine that raises it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the `__init__` that calls this."""
    homes = _homes(Path(file).read_text(encoding="utf-8"))
    module, names = sys.modules[package], sorted(homes)

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *names}), names


def _homes(text: str) -> dict[str, str]:
    """The module that defines each name, read from the `TYPE_CHECKING` block."""
    return {
        alias.name: line.module
        for block in ast.parse(text).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for line in block.body
        if isinstance(line, ast.ImportFrom) and line.module
        for alias in line.names
    }
