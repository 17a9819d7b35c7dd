"""Losses with frozen arrays, which are arguments of a program and no constants in it.

A function that refers to an array makes it a constant of every program that is compiled
from the function: a copy for each batch size, folded into others for minutes, and kept
in a compilation cache. A `FrozenLoss` names its frozen arrays, and whoever compiles
hands them in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from demur.training.clipping.types import ClippedGrad, PyTree


class FrozenLoss:
    """`fun(params, frozen, *batch)` as a loss of `params` and a batch.

    With `takes_key` a key comes last, which is another one for each example. `still` is
    such a function without its randomness (dropout): what is checked in its place.

    >>> loss = FrozenLoss(lambda w, scale, x: scale * w * x, 3.0)
    >>> loss(2.0, 5.0)
    30.0
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        frozen: PyTree,
        *,
        takes_key: bool = False,
        still: Callable[..., Any] | None = None,
    ) -> None:
        self.fun, self.frozen, self.takes_key = fun, frozen, takes_key
        self.still = still if takes_key else fun

    def __call__(self, params: PyTree, *batch: Any) -> Any:
        """The loss, as any other."""
        return self.fun(params, self.frozen, *batch)

    def at(self, frozen: PyTree) -> FrozenLoss:
        """The same loss with other frozen arrays: those that are being traced."""
        still = self.still if self.takes_key else None
        return FrozenLoss(self.fun, frozen, takes_key=self.takes_key, still=still)

    def without_key(self) -> FrozenLoss | None:
        """The loss without its randomness, where that is known."""
        return None if self.still is None else FrozenLoss(self.still, self.frozen)


def frozen_of(fun: Callable[..., Any]) -> PyTree:
    """What is frozen in a loss; None, which is an empty tree, for any other loss."""
    return fun.frozen if isinstance(fun, FrozenLoss) else None


def loss_at(fun: Callable[..., Any], frozen: PyTree) -> Callable[..., Any]:
    """The loss with `frozen` in place of what it holds."""
    return fun.at(frozen) if isinstance(fun, FrozenLoss) else fun


def gradient_at(clipped: ClippedGrad, frozen: PyTree) -> ClippedGrad:
    """The clipped gradient of the loss with `frozen` in place of what it holds."""
    fun = clipped.arguments["fun"]
    if not isinstance(fun, FrozenLoss):
        return clipped
    return clipped.with_(fun=fun.at(frozen))
