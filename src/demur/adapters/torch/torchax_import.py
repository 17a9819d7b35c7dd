"""`import torchax` under torch 2.13, which lacks names that torchax 0.0.13 asks for.

torchax keeps a table from torch's operators to JAX's. Some entries are of overloads for
named tensors (`aten.prod.dim_Dimname`, `aten.norm.names_out`, ...), which torch 2.13
has dropped: looking them up raises AttributeError, and nothing can be imported. While
torchax is imported and makes its table, such a look-up is answered by an object that no
operator is equal to. Afterwards torch is as it was. A torchax that imports by itself
needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from demur.adapters.frameworks import missing


@contextmanager
def dropped_overloads() -> Iterator[None]:
    """Overloads for named tensors can be looked up, whether there are any or not."""
    packets: Any = torch._ops.OpOverloadPacket
    real = packets.__getattr__

    def found(packet: Any, name: str) -> Any:
        try:
            return real(packet, name)
        except AttributeError:
            if "name" not in name.lower() or name.startswith("__"):
                raise
            return object()

    packets.__getattr__ = found
    try:
        yield
    finally:
        packets.__getattr__ = real


def load_torchax() -> ModuleType:
    """torchax, with its table of operators made."""
    try:
        with dropped_overloads():
            torchax = import_module("torchax")
            torchax.default_env()
    except ImportError as error:
        raise missing("torchax", "torch,jax", error) from error
    return torchax
