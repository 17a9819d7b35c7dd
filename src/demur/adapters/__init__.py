"""Borders to the frameworks: a model comes in, a private copy goes out.

Each name is loaded when it is first used, so that `import demur.adapters` needs no
framework. A missing one is an ImportError that says which extra to install.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.adapters import equinox as equinox
    from demur.adapters import equinox_heads as equinox_heads
    from demur.adapters import random_features as random_features
    from demur.adapters import torch as torch
    from demur.adapters import torch_embeddings as torch_embeddings
    from demur.adapters import torch_heads as torch_heads
    from demur.adapters.equinox import release_equinox as release_equinox
    from demur.adapters.torch import release_torch as release_torch

_MODULES = (
    "equinox",
    "equinox_heads",
    "random_features",
    "torch",
    "torch_embeddings",
    "torch_heads",
)
_HOME = {"release_equinox": "equinox", "release_torch": "torch"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"demur.adapters.{name}")
    if name in _HOME:
        return getattr(import_module(f"demur.adapters.{_HOME[name]}"), name)
    raise AttributeError(f"module 'demur.adapters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_HOME])
