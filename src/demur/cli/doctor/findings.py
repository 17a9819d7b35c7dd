"""What is installed, the entropy, the devices, and folders that can be written."""

from __future__ import annotations

import importlib.metadata
import platform
import sqlite3
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from demur import __version__
from demur.core.entropy import OsEntropy
from demur.durable.keys import keys_folder

# Packages by what needs them; those of the first line demur does not run without.
_PACKAGES = {
    "demur": ("numpy", "scipy", "scikit-learn", "pyarrow", "cryptography",
              "dp-accounting"),
    "jax": ("jax", "optax"),
    "orbax": ("orbax-checkpoint",),
    "torch": ("torch", "torchax"),
    "huggingface": ("transformers",),
    "postgres": ("psycopg",),
    "serve": ("starlette", "uvicorn"),
    "spark": ("pyspark",),
}  # fmt: skip


@dataclass(frozen=True)
class MachineFact:
    """One thing that was looked at; `ok` is None where it is neither good nor bad."""

    subject: str
    state: str
    ok: bool | None = None


def findings() -> list[MachineFact]:
    """Everything that a report of a problem should begin with."""
    return [
        MachineFact("demur", __version__),
        _python(),
        MachineFact("system", f"{platform.system()} {platform.machine()}"),
        _entropy(),
        MachineFact("SQLite", sqlite3.sqlite_version),
        *(_extra(name, packages) for name, packages in _PACKAGES.items()),
        _devices(),
        _writable("this folder", Path.cwd()),
        _writable("temporary files", Path(tempfile.gettempdir())),
        _writable("noise keys of servers' ledgers", keys_folder()),
    ]


def _python() -> MachineFact:
    version = platform.python_version()
    return MachineFact(
        "Python", f"{version}, {sys.executable}", sys.version_info >= (3, 11)
    )


def _entropy() -> MachineFact:
    """Whether the operating system gives keys, two different ones at that."""
    try:
        first, second = OsEntropy().new_key(), OsEntropy().new_key()
    except OSError as error:
        return MachineFact(
            "entropy", f"the operating system gives none: {error}", False
        )
    return MachineFact("entropy", "the operating system's", first != second)


def _extra(name: str, packages: tuple[str, ...]) -> MachineFact:
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    missing = [package for package, version in found.items() if version is None]
    installed = ", ".join(f"{p} {v}" for p, v in found.items() if v is not None)
    subject = "packages" if name == "demur" else f"extra {name}"
    if not missing:
        return MachineFact(subject, installed, True)
    if name == "demur":
        return MachineFact(subject, f"missing: {', '.join(missing)}", False)
    state = f"not installed (pip install 'demur[{name}]')"
    return MachineFact(subject, state if not installed else f"{installed}; {state}")


def _devices() -> MachineFact:
    try:
        devices = import_module("jax").devices()
    except ImportError:
        return MachineFact("devices of JAX", "JAX is not installed")
    except RuntimeError as error:
        return MachineFact("devices of JAX", f"none: {str(error)[:120]}", False)
    kinds = [f"{device.platform} ({device.device_kind})" for device in devices]
    return MachineFact("devices of JAX", ", ".join(sorted(set(kinds))), True)


def _writable(subject: str, folder: Path) -> MachineFact:
    """Whether a file can be made there, or in the nearest folder that exists."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return MachineFact(subject, f"{folder}: {error.strerror or error}", False)
    return MachineFact(subject, str(folder), True)
