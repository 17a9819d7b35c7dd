"""Tensors that share their memory in torch, and what is written into them.

A view (`x.view(...)`, `x.T`, `x[:, 0]`) and its tensor are one memory: what is written
into one changes the other. On JAX arrays, which never change, torchax follows that for
slices and a few kinds of writing, and elsewhere goes on with the old numbers without a
word. So views are kept track of, and a write that it would not follow is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.utils import _pytree as torch_tree
from torch.utils.weak import WeakIdKeyDictionary

_OPERATORS = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ipow__ __ior__ __iand__"
    " __ixor__ __ifloordiv__ __imod__ __imatmul__".split()
)
# Written into a slice, torchax follows these.
_FOLLOWED = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ add_ sub_ mul_ div_ copy_"
    " clamp_ relu_ masked_fill_".split()
)
_NEVER = frozenset({"fill_diagonal_"})  # torchax leaves the tensor as it is


Wrap = Callable[[torch.Tensor], torch.Tensor]


class SharedMemory:
    """The tensors of one run, by what memory they would share in torch.

    `wrapped` makes a tensor of its own with the numbers of another one.
    """

    def __init__(self, slice_class: type[torch.Tensor], wrapped: Wrap) -> None:
        self._slice, self._wrapped = slice_class, wrapped
        self._groups: Any = WeakIdKeyDictionary()  # not by ==, which compares numbers

    def returned(self, value: Any) -> Any:
        """What a function has returned, with views remembered as such."""
        return torch_tree.tree_map_only(torch.Tensor, self._noted, value)

    def shared(self, other: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """`other`, remembered as having the memory of `tensor`."""
        return self._grouped(other, self._whole(tensor))

    def _whole(self, tensor: Any) -> torch.Tensor:
        while isinstance(tensor, self._slice):
            tensor = tensor.parent
        return tensor

    def _noted(self, view: torch.Tensor) -> torch.Tensor:
        if isinstance(view, self._slice):
            return self._grouped(view, self._whole(view))
        if view._is_view() and view._base is not None:
            # As a view it would keep its tensor alive, and who else has that tensor
            # could not be seen.
            return self._grouped(self._wrapped(view), view._base)
        return view

    def _grouped(self, view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        group: list[ReferenceType[torch.Tensor]] | None = self._groups.get(base)
        if group is None:
            group = self._groups[base] = [ref(base)]
        group.append(ref(view))
        self._groups[view] = group
        return view

    def check(self, name: str, args: Sequence[Any], named: dict[str, Any]) -> None:
        """Refuse a write that would not be followed."""
        if named.get("out") is not None:
            _refuse(f"{name} with out=")
        if not args or not isinstance(args[0], torch.Tensor):
            return
        if not is_write(name) and not named.get("inplace"):
            return
        alive = [each() for each in self._groups.get(args[0], ())]
        others = [t for t in alive if t is not None and t is not args[0]]
        base = [t for t in others if not isinstance(t, self._slice)]
        # A slice and the tensor that it is a slice of, or a tensor and its slices.
        is_slice = isinstance(args[0], self._slice)
        followed = name in _FOLLOWED and len(base) <= (1 if is_slice else 0)
        if name in _NEVER or (others and not followed):
            _refuse(name)


def is_write(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    return name in _OPERATORS or (name.endswith("_") and not name.endswith("__"))


def _refuse(name: str) -> None:
    # No TypeError: torch's `+=` would take it for an invitation to try `+`.
    raise ValueError(
        f"the module writes into a tensor in place ({name}) that shares its memory with"
        " another one: make a new tensor (y = x + 1 instead of x += 1, torch.where,"
        " torch.cat). Nothing was spent."
    )
