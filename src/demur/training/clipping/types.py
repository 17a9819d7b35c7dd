"""Clipped sums and clipped gradients: the types between clipping and noise.

A sum of clipped gradients is not private. `ClippedGrad` returns it as a `ClippedSum`,
which carries the bound that was enforced on it and which a privatizer alone accepts, so
that no scaling, averaging or adding can happen unseen between the clip and the noise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeAlias

import jax

from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit, ZeroOut
from demur.core.errors import NotCovered
from demur.core.validate import shorten

PyTree: TypeAlias = Any

# By how many contributions the sum moves when one record is added or removed, blanked,
# or replaced. The names are those of dp_accounting's NeighboringRelation, so that its
# members are understood without importing it.
_MOVED = {"ADD_OR_REMOVE_ONE": 1, "REPLACE_SPECIAL": 1, "REPLACE_ONE": 2}
_RELATION: dict[type, str] = {
    AddOrRemoveOne: "ADD_OR_REMOVE_ONE",
    ZeroOut: "REPLACE_SPECIAL",
    ReplaceOne: "REPLACE_ONE",
    Ball: "REPLACE_ONE",
}


class Aux(NamedTuple):
    """Exact per-example outputs: private data, not to be released.

    A field that was not asked for is None. Rows of padding are zero.
    """

    values: Any = None
    grad_norms: Any = None
    aux: Any = None

    def __repr__(self) -> str:
        held = [name for name in self._fields if getattr(self, name) is not None]
        return f"Aux({', '.join(held)}; exact, not private)"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False, eq=False)
class ClippedSum:
    """A sum of gradients, each of them at most `l2_norm_bound` long; not private.

    `value` is the sum over the examples divided by the public `normalize_by`, in
    float32 or wider. It has to be read by name: arithmetic, truth and conversion to an
    array are refused, and a privatizer takes the object whole. It is a pytree, so
    that it can cross `jit` and `jax.lax.psum` over shards that hold different
    examples; parts of one batch are added by `join`.
    """

    value: PyTree
    l2_norm_bound: float = field(metadata={"static": True})

    def __repr__(self) -> str:
        return f"ClippedSum(l2_norm_bound={self.l2_norm_bound!r}; exact, not private)"

    @classmethod
    def join(cls, parts: Iterable[ClippedSum]) -> ClippedSum:
        """The sum over a batch that was processed in parts.

        Every example must lie in one part only: then its contribution is still at most
        the common bound, which the result carries.
        """
        parts = tuple(parts)
        if not parts:
            raise ValueError("join needs at least one part of the batch")
        for part in parts:
            if not isinstance(part, ClippedSum):
                raise TypeError(f"join takes ClippedSum parts; got {type(part)}")
        if len({id(part) for part in parts}) < len(parts):
            raise ValueError("join was given one part twice")
        bounds = {part.l2_norm_bound for part in parts}
        if len(bounds) > 1:
            raise ValueError(f"parts of one batch have one bound; got {sorted(bounds)}")
        values = [part.value for part in parts]
        added = jax.tree.map(lambda *leaves: reduce(operator.add, leaves), *values)
        return cls(added, parts[0].l2_norm_bound)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "a ClippedSum is exact, and its bound holds for it unchanged: pass it to a"
            " privatizer, or read `.value`, which gives up the guarantee"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __neg__ = _refuse
    __pow__ = __rpow__ = __mod__ = __floordiv__ = __abs__ = __pos__ = _refuse
    __bool__ = __float__ = __int__ = __array__ = __jax_array__ = _refuse
    __len__ = __iter__ = __getitem__ = _refuse


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ClippedGrad:
    """A function from parameters and a batch to a `ClippedSum`; see `clipped_grad`.

    `arguments` are those it was made with, `fun` among them; `with_` makes another one.
    """

    l2_norm_bound: float
    has_aux: bool
    arguments: Mapping[str, Any]
    run: Callable[..., Any]
    make: Callable[..., ClippedGrad]
    account: Callable[..., Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", MappingProxyType(dict(self.arguments)))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={shorten(value)}"
            for name, value in self.arguments.items()
            if name not in ("fun", "pre_clipping_transform")
        )
        return f"ClippedGrad({shown})"

    def __call__(
        self,
        *args: Any,
        is_padding_example: Any = None,
        num_real: Any = None,
        **kwargs: Any,
    ) -> Any:
        """A `ClippedSum`, or with `has_aux` the pair `(ClippedSum, Aux)`.

        Padding is marked by a mask (`is_padding_example`, one truth per example) or by
        the number of real examples, which come first (`num_real`).
        """
        return self.run(
            *args, is_padding_example=is_padding_example, num_real=num_real, **kwargs
        )

    def sensitivity(self, neighboring_relation: Unit | Any) -> float:
        """The l2 distance between the sums of two neighbouring batches, at most.

        Takes a unit of demur, dp_accounting's NeighboringRelation, or its name. One
        contribution for add-or-remove and for a blanked record, two for a replaced
        one; a person with k records moves k times as much.
        """
        relation = neighboring_relation
        name = _RELATION.get(type(relation), None)
        if name is None:
            name = relation if isinstance(relation, str) else _enum_name(relation)
        if name not in _MOVED:
            raise NotCovered(
                "a clipped sum has a sensitivity under ADD_OR_REMOVE_ONE,"
                f" REPLACE_SPECIAL or REPLACE_ONE; got {shorten(relation)}"
            )
        records = int(getattr(relation, "records_per_person", 1))
        return _MOVED[name] * records * self.l2_norm_bound

    def explain(self, params: PyTree, *batch: Any, **kwargs: Any) -> Any:
        """How the norms and the sum of each parameter are computed, and why.

        Only shapes and dtypes are looked at: arrays or `jax.ShapeDtypeStruct`.
        """
        return self.account(params, *batch, **kwargs)

    def with_(self, **changes: Any) -> ClippedGrad:
        """The same function with some arguments changed."""
        return self.make(**{**self.arguments, **changes})


def _enum_name(relation: object) -> str | None:
    name = getattr(relation, "name", None)
    return name if isinstance(name, str) else None
