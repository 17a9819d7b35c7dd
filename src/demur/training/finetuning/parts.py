"""Parts of a model: what is trained, and the rest, which is kept.

Noise, clipping, optimiser states and checkpoints are of the trained part alone. The
rest is an argument of every program (`FrozenLoss`): it is neither copied nor noised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from demur.core import validate
from demur.training.clipping.frozen_losses import FrozenLoss
from demur.training.clipping.types import PyTree

Choice: TypeAlias = str | Callable[[str, Any], bool] | Sequence["Choice"]


def names_of(tree: PyTree) -> list[str]:
    """The names of the leaves, their keys joined by dots.

    >>> names_of({"layers": [{"w": 1.0}, {"w": 2.0}]})
    ['layers.0.w', 'layers.1.w']
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [".".join(_key(part) for part in path) or "params" for path, _ in paths]


def _key(part: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(part, name):
            return str(getattr(part, name))
    return str(part)


def chosen(names: Sequence[str], leaves: Sequence[Any], choice: Choice) -> list[bool]:
    """For each leaf, whether a pattern matches its name, or a function takes it.

    Of several patterns or functions any will do, but each has to take some leaf.
    """
    if isinstance(choice, str):
        return [fnmatchcase(name, choice) for name in names]
    if callable(choice):
        return [bool(choice(n, leaf)) for n, leaf in zip(names, leaves, strict=True)]
    takes = [False] * len(names)
    for one in choice:
        found = chosen(names, leaves, one)
        if not any(found):
            raise ValueError(
                f"{one!r} selects no parameter; there are {', '.join(names[:8])}"
                f"{', ...' if len(names) > 8 else ''}"
            )
        takes = [a or b for a, b in zip(takes, found, strict=True)]
    return takes


class Trainable(ABC):
    """Parameters and their loss in one: `fit(plan, trainable, data, ...)` takes it."""

    @property
    @abstractmethod
    def params(self) -> PyTree:
        """What is trained."""

    @property
    @abstractmethod
    def loss(self) -> Callable[..., Any]:
        """The loss of `params` and a batch."""


@dataclass(frozen=True)
class ModelPart:
    """What is trained of a model: `params`, by name; `merge` puts the model together.

    `fit(plan, part.loss(loss_fn), part.params, data, ...)` trains it, and
    `part.merge(trained.value)` is the whole model.
    """

    params: dict[str, Any]
    frozen: PyTree = field(repr=False)
    join: Callable[[Mapping[str, Any], PyTree], PyTree] = field(repr=False)
    call: Callable[..., Any] | None = field(default=None, repr=False)
    terms: Mapping[str, Any] = field(default_factory=lambda: {"kind": "select"})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model's parameters that are trained, or added to."""
        return tuple(self.params)

    def loss(
        self,
        loss_fn: Callable[..., Any],
        *,
        takes_key: bool = False,
        still: Callable[..., Any] | None = None,
    ) -> FrozenLoss:
        """`loss_fn(model, batch)` as a loss of `params`; with a key if it takes one.

        `still(model, batch)` is then the same without randomness (dropout), by which
        `fit` checks that examples do not interact.
        """
        of_part = partial(self._of_part, loss_fn)
        quiet = None if still is None else partial(self._of_part, still)
        return FrozenLoss(of_part, self.frozen, takes_key=takes_key, still=quiet)

    def _of_part(
        self,
        loss_fn: Callable[..., Any],
        trained: Mapping[str, Any],
        frozen: PyTree,
        *batch: Any,
    ) -> Any:
        if self.call is not None:
            return self.call(loss_fn, trained, frozen, *batch)
        return loss_fn(self.join(trained, frozen), *batch)

    def with_loss(
        self, loss_fn: Callable[..., Any], *, takes_key: bool = False
    ) -> Trainable:
        """The part and its loss in one, for `fit(plan, part.with_loss(loss_fn), data)`.

        >>> part = select({"w": jnp.ones(2), "b": jnp.zeros(2)}, "b")
        >>> one = part.with_loss(lambda model, x: (model["w"] * x + model["b"]).sum())
        >>> float(one.loss(one.params, jnp.ones(2)))
        2.0
        """
        return _PartWithLoss(self, self.loss(loss_fn, takes_key=takes_key))

    def merge(self, trained: Mapping[str, Any]) -> PyTree:
        """The model's parameters with these trained ones; `part.params` gives it back.

        The result has the structure of the model that the part was made of.
        """
        self.check_names(trained)
        return self.join(trained, self.frozen)

    def check_names(self, trained: Mapping[str, Any]) -> None:
        """Refuse parameters of another part."""
        if set(trained) != set(self.params):
            raise ValueError(
                f"trained must have the names of the part ({', '.join(self.names)});"
                f" got {', '.join(map(str, trained)) or 'none'}"
            )


class _PartWithLoss(Trainable):
    def __init__(self, part: ModelPart, loss: FrozenLoss) -> None:
        self._part, self._loss = part, loss

    @property
    def params(self) -> PyTree:
        return self._part.params

    @property
    def loss(self) -> FrozenLoss:
        return self._loss


def select(params: PyTree, *choices: Choice) -> ModelPart:
    """The leaves that a pattern matches ("*.bias"), or that a function accepts.

    A function is called with name and leaf. Names are keys joined by dots.

    >>> part = select({"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}, "b")
    >>> sorted(part.merge({"b": jnp.ones(2)}))
    ['b', 'w']
    """
    leaves, treedef = jax.tree.flatten(params)
    names = names_of(params)
    if not choices:
        raise ValueError('select takes patterns, such as "*.bias", or functions')
    takes = chosen(names, leaves, choices)
    check_floats(names, leaves, takes)
    check_distinct(names, takes)
    rest = [leaf for leaf, taken in zip(leaves, takes, strict=True) if not taken]

    def join(trained: Mapping[str, Any], frozen: PyTree) -> PyTree:
        others = iter(frozen)
        whole = [
            trained[name] if taken else next(others)
            for name, taken in zip(names, takes, strict=True)
        ]
        return jax.tree.unflatten(treedef, whole)

    trained = {
        name: leaf
        for name, leaf, taken in zip(names, leaves, takes, strict=True)
        if taken
    }
    return ModelPart(trained, rest, join)


def last_layers(params: PyTree, count: int, *also: Choice) -> ModelPart:
    """The last `count` of numbered layers, and what `also` selects (the head).

    A layer's number is the first whole number among the keys of a name.

    >>> stack = {"layers": [jnp.ones(1), jnp.ones(1)], "head": jnp.ones(1)}
    >>> last_layers(stack, 1, "head").names
    ('head', 'layers.1')
    """
    validate.count(count=count)
    numbers = {name: _number(name) for name in names_of(params)}
    layers = sorted({n for n in numbers.values() if n is not None})
    if len(layers) < count:
        raise ValueError(
            f"the parameters have {len(layers)} numbered layers; count is {count}"
        )
    last = set(layers[-count:])
    return select(params, lambda name, _: numbers[name] in last, *also)


def _number(name: str) -> int | None:
    return next((int(key) for key in name.split(".") if key.isdecimal()), None)


def check_distinct(names: Sequence[str], takes: Sequence[bool]) -> None:
    """Refuse a chosen name that another parameter has: one would take both places."""
    for name, taken in zip(names, takes, strict=True):
        if taken and names.count(name) > 1:
            raise ValueError(
                f"several parameters have the name {name}, since names are keys joined"
                " by dots: rename a key that has a dot in it"
            )


def check_floats(
    names: Sequence[str], leaves: Sequence[Any], takes: Sequence[bool]
) -> None:
    """Refuse leaves that are taken and have no gradient."""
    for name, leaf, taken in zip(names, leaves, takes, strict=True):
        if taken and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"{name} holds {jnp.result_type(leaf)}, which has no gradient: select"
                " parameters of floating numbers"
            )
