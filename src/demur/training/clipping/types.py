"""Clipped sums and clipped gradients: the types between clipping and noise.

A sum of clipped gradients is not private. `ClippedGrad` returns it as a `ClippedSum`,
which carries the bound that was enforced on it and which a privatizer alone accepts.
Its numbers are sealed, so that no scaling, averaging or adding can happen between the
clip and the noise, neither by hand nor by a transformation of optax that is chained in
front of the noise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeAlias

import jax
import jax.numpy as jnp

from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit, ZeroOut
from demur.core.errors import NotCovered
from demur.core.validate import shorten
from demur.training.clipping.rounding import in_float64
from demur.training.clipping.sealed_arrays import is_sealed, seal, unsealed
from demur.training.devices.varying_axes import manual_axes, may_vary_over

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


_CHANGED = (
    "this ClippedSum was changed between clipping and noise, so its bound does not hold"
    " any more. Add noise first: what follows the noise may scale, average and add."
    " Nothing was drawn."
)


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


class _Origin(NamedTuple):
    """What a sum was when it was made; part of the pytree's structure."""

    l2_norm_bound: float
    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    sharded_over: frozenset[Any]
    row_rounding: float | None


@jax.tree_util.register_pytree_with_keys_class
class ClippedSum:
    """A sum of gradients, each of them at most `l2_norm_bound` long; not private.

    `value` is the sum over the examples divided by the public `normalize_by`, in
    float32 or wider. It has to be read by name, which gives up the guarantee: a
    privatizer takes the object whole.

    It is a pytree, so that it can cross `jit`, `scan` and `shard_map`, be donated and
    sharded. But its leaves are sealed (`sealed_arrays`): `jax.tree.map` reaches them
    and can do no arithmetic with them. And it remembers the shapes it was made with:
    a sum that was stacked (by `vmap`, by the outputs of a `scan` or of `pmap`), cut or
    repeated is refused by the privatizer. Parts of one batch are added by `join`,
    shards of one batch by `psum`; `members` takes a stack apart.
    """

    __slots__ = ("_origin", "_sealed")
    _origin: _Origin
    _sealed: PyTree

    def __init__(
        self,
        value: PyTree,
        l2_norm_bound: float,
        *,
        sharded_over: frozenset[Any] | None = None,
        row_rounding: float | None = None,
    ) -> None:
        """Seal `value`; the bound is the caller's claim about it.

        `sharded_over` are the mesh axes over which the examples are spread, by
        default those over which the value varies. `row_rounding` bounds the rounding of
        the sum, as a share of `l2_norm_bound` for each row (`accumulation`).
        """
        leaves, tree = jax.tree.flatten(value)
        if sharded_over is None:
            sharded_over = may_vary_over(leaves)
        shapes = tuple(_shape(leaf) for leaf in leaves)
        origin = _Origin(float(l2_norm_bound), tree, shapes, sharded_over, row_rounding)
        sealed = jax.tree.unflatten(tree, [seal(leaf) for leaf in leaves])
        object.__setattr__(self, "_origin", origin)
        object.__setattr__(self, "_sealed", sealed)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a ClippedSum cannot be changed")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ClippedSum is exact: it is not saved or sent anywhere")

    @property
    def l2_norm_bound(self) -> float:
        """The length of one example's contribution, at most."""
        return self._origin.l2_norm_bound

    @property
    def row_rounding(self) -> float | None:
        """What rounding adds for each row, in clip norms; None: no bound is known."""
        return self._origin.row_rounding

    @property
    def value(self) -> PyTree:
        """The exact sum. Computing with it is outside the guarantee."""
        leaves, tree = jax.tree.flatten(self._sealed)
        if not all(is_sealed(leaf) for leaf in leaves):
            raise TypeError(_CHANGED)
        return jax.tree.unflatten(tree, [unsealed(leaf) for leaf in leaves])

    def check_intact(self) -> None:
        """Refuse a sum that is not, leaf by leaf, as it was made."""
        leaves, tree = jax.tree.flatten(self._sealed)
        if tree != self._origin.tree or not all(is_sealed(leaf) for leaf in leaves):
            raise TypeError(_CHANGED)
        shapes = tuple(leaf.shape for leaf in leaves)
        if shapes == self._origin.shapes:
            return
        if self._is_stack(shapes):
            raise TypeError(
                "this ClippedSum is a stack of several sums, made by vmap, pmap or the"
                " outputs of a scan, and a plan pays for one. Take `total.members()`,"
                " and add noise to each with a payment and a key of its own."
                " Nothing was drawn."
            )
        raise TypeError(_CHANGED)

    def _is_stack(self, shapes: tuple[tuple[int, ...], ...]) -> bool:
        extra = {
            now[: len(now) - len(then)]
            for now, then in zip(shapes, self._origin.shapes, strict=True)
            if now[len(now) - len(then) :] == then
        }
        return len(extra) == 1 and extra != {()}

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
            part.check_intact()
        if len({id(part) for part in parts}) < len(parts):
            raise ValueError("join was given one part twice")
        bounds = {part.l2_norm_bound for part in parts}
        if len(bounds) > 1:
            raise ValueError(f"parts of one batch have one bound; got {sorted(bounds)}")
        values = [part.value for part in parts]
        added = jax.tree.map(
            in_float64(lambda *all_: reduce(operator.add, all_)), *values
        )
        spread = [part._origin.sharded_over for part in parts]
        rounded = [part.row_rounding for part in parts]
        known = [each for each in rounded if each is not None]
        return cls(
            added,
            parts[0].l2_norm_bound,
            sharded_over=reduce(and_, spread),
            row_rounding=max(known) if len(known) == len(rounded) else None,
        )

    def psum(self, axis_name: Any) -> ClippedSum:
        """The sum over the shards of a batch, inside `shard_map` or `pmap`.

        Every example must lie on one shard only. Where JAX says over which axes the
        batch varies, an axis over which it does not is refused.
        """
        self.check_intact()
        axes = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
        over = self._origin.sharded_over
        unknown = [axis for axis in axes if axis not in manual_axes()]
        if unknown:
            raise ValueError(
                f"psum is over mesh axes, inside shard_map; {unknown[0]!r} is none."
                " Parts of a batch are added by ClippedSum.join."
            )
        repeated = [axis for axis in axes if axis not in over]
        if repeated:
            raise ValueError(
                f"the shards along {repeated[0]!r} hold the same examples, or were"
                " added already: each example would count once for every shard. Shard"
                " the batch over that axis (in_specs), or leave the axis out."
            )
        value = in_float64(jax.lax.psum)(self.value, axes)
        return ClippedSum(
            value,
            self.l2_norm_bound,
            sharded_over=over - frozenset(axes),
            row_rounding=self.row_rounding,
        )

    def members(self) -> tuple[ClippedSum, ...]:
        """The sums in a stack along a new first axis, as `vmap` makes one.

        Each is a sum of its own: noise for one of them is one release.
        """
        leaves = jax.tree.leaves(self._sealed)
        sealed = all(is_sealed(leaf) for leaf in leaves)
        if not sealed or len(leaves) != len(self._origin.shapes):
            raise TypeError(_CHANGED)
        if not self._is_stack(tuple(leaf.shape for leaf in leaves)):
            raise ValueError("members takes apart a stack of sums, as vmap makes one")
        return tuple(
            jax.tree.map(itemgetter(i), self) for i in range(leaves[0].shape[0])
        )

    def tree_flatten_with_keys(self) -> tuple[Any, _Origin]:
        """For JAX: the sealed tree, and what the sum was when it was made."""
        key = jax.tree_util.GetAttrKey("value")
        return ((key, self._sealed),), self._origin

    def tree_flatten(self) -> tuple[Any, _Origin]:
        """The same without the key."""
        return (self._sealed,), self._origin

    @classmethod
    def tree_unflatten(cls, origin: _Origin, children: Any) -> ClippedSum:
        """For JAX: whatever leaves it has; `check_intact` judges them."""
        total = object.__new__(cls)
        object.__setattr__(total, "_origin", origin)
        object.__setattr__(total, "_sealed", children[0])
        return total

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

    def explain(
        self, params: PyTree, *batch: Any, compiled: bool = False, **kwargs: Any
    ) -> Any:
        """How the norms and the sum of each parameter are computed, and why.

        Only shapes and dtypes are looked at: arrays or `jax.ShapeDtypeStruct`. With
        `compiled`, XLA's figures for temporary memory too: the ordinary gradient and
        both forms of the clipped sum are compiled for that.
        """
        return self.account(params, *batch, compiled=compiled, **kwargs)

    def with_(self, **changes: Any) -> ClippedGrad:
        """The same function with some arguments changed."""
        return self.make(**{**self.arguments, **changes})


def _shape(leaf: Any) -> tuple[int, ...]:
    return tuple(leaf.shape if hasattr(leaf, "shape") else jnp.shape(leaf))


def _enum_name(relation: object) -> str | None:
    name = getattr(relation, "name", None)
    return name if isinstance(name, str) else None
