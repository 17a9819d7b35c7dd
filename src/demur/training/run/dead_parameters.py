"""Dead parameters: those without a gradient, and those that a run did not move.

A run is paid for whether or not it learns. Two signs that it does not are told.

**No gradient.** The loss does not depend on a parameter: it is moved by noise alone.
This is a property of the program. It is read off the program, or off the gradients of
the made-up inputs of `separability`; no example is looked at, so it is public, and it
is told before anything is paid. (Whether the clipped sum of a batch is zero is private,
and is not looked at. The noisy sum never is zero.)

**Not moved.** A parameter ends as it began: no update reached it, because of a learning
rate of 0, a mask, or steps too small for its dtype. This compares the parameters that
were released with those that were given, which is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demur.training.clipping.ghost.explanation import named_leaves
from demur.training.clipping.types import ClippedGrad, PyTree


def unused(clipped: ClippedGrad, arguments: Sequence[Any]) -> list[bool]:
    """For each parameter, whether the loss has no use for it, from its program."""
    traced = clipped.with_(method="auto", pre_clipping_transform=None)
    return [leaf.method == "zero" for leaf in traced.explain(*arguments).leaves]


def without_gradient(params: PyTree, dead: Sequence[bool]) -> tuple[str, ...]:
    """The names of the dead ones; if there are no others, nothing could be learned."""
    names = [name for name, _ in named_leaves(params)]
    if all(dead):
        raise ValueError(
            "the loss depends on no parameter, so noise is all that a run could add."
            " Compute the loss from `params`, the first argument. Nothing was spent."
        )
    return tuple(name for name, is_dead in zip(names, dead, strict=True) if is_dead)


def unmoved(first: PyTree, last: PyTree) -> tuple[str, ...]:
    """The names of parameters that are, bit for bit, what they were."""
    names = [name for name, _ in named_leaves(last)]
    pairs = zip(names, jax.tree.leaves(first), jax.tree.leaves(last), strict=True)
    return tuple(name for name, old, new in pairs if _is_same(old, new))


def _is_same(old: Any, new: Any) -> bool:
    after = np.asarray(new)
    before = np.asarray(jnp.asarray(old, after.dtype))
    return after.size > 0 and before.tobytes() == after.tobytes()


def no_gradient_text(names: Sequence[str]) -> str:
    """What to say before a run that has such parameters."""
    return (
        f"the loss does not depend on {', '.join(names)}: noise alone will move them."
        " Use them in the loss, or leave them out of params."
    )


def unmoved_text(names: Sequence[str], every: bool) -> str:
    """What to say after a run that left parameters as they were."""
    which = "any parameter" if every else ", ".join(names)
    return (
        f"the run did not move {which}: no update reached them. Look for a learning"
        " rate of 0, a mask, or steps too small for the dtype (bfloat16 drops what is"
        " below 0.4% of a weight). The charge stands."
    )
