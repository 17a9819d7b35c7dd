"""Dead parameters: those without a gradient, and those that a run did not move.

A run is paid for whether or not it learns. Two signs that it does not are told.

**No gradient.** The loss does not depend on a parameter: it is moved by noise alone.
This is a property of the program. It is read off the program, which can be sure of it,
or off the gradients of the made-up inputs of `separability`, which cannot: their whole
numbers are 0 and 1, and a label that they do not have may be what a parameter is for.
No example is looked at, so it is public, and it is told before anything is paid. A run
is refused only where the program is sure. (Whether the clipped sum of a batch is zero
is private, and is not looked at. The noisy sum never is zero.)

**Not moved.** A parameter ends as it began: no update reached it, because of a learning
rate of 0, a mask, or steps too small for its dtype. This compares the parameters that
were released with those that were given, which is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demur.training.clipping.ghost.explanation import named_leaves
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.run.sharded_state import placed


def unused(clipped: ClippedGrad, arguments: Sequence[Any]) -> list[bool]:
    """For each parameter, whether the loss has no use for it, from its program."""
    traced = clipped.with_(method="auto", pre_clipping_transform=None)
    return [leaf.method == "zero" for leaf in traced.explain(*arguments).leaves]


@dataclass(frozen=True)
class WithoutGradient:
    """Names of parameters: those that are `unused` by the program, and all `seen`."""

    unused: tuple[str, ...]
    seen: tuple[str, ...]

    def __str__(self) -> str:
        """What to say before a run that has such parameters."""
        perhaps = [name for name in self.seen if name not in self.unused]
        said = []
        if self.unused:
            said.append(
                f"the loss does not depend on {', '.join(self.unused)}: noise alone"
                " will move them. Use them in the loss, or leave them out of params."
            )
        if perhaps:
            said.append(
                f"{', '.join(perhaps)} had no gradient on made-up inputs (whole numbers"
                " are 0 and 1 there): if the loss does not depend on them, noise alone"
                " will move them."
            )
        return " ".join(said)


def without_gradient(
    params: PyTree, seen: Sequence[bool], unused: Sequence[bool]
) -> WithoutGradient:
    """Those without a gradient; a refusal, if the program has no use for any."""
    names = [name for name, _ in named_leaves(params)]
    if all(unused):
        raise ValueError(
            "the loss depends on no parameter, so noise is all that a run could add."
            " Compute the loss from `params`, the first argument. Nothing was spent."
        )
    return WithoutGradient(
        tuple(name for name, one in zip(names, unused, strict=True) if one),
        tuple(name for name, one in zip(names, seen, strict=True) if one),
    )


def unmoved(first: PyTree, last: PyTree) -> tuple[str, ...]:
    """The names of parameters that are, bit for bit, what they were."""
    names = [name for name, _ in named_leaves(last)]
    pairs = zip(names, jax.tree.leaves(first), jax.tree.leaves(last), strict=True)
    return tuple(name for name, old, new in pairs if _is_same(old, new))


def _is_same(old: Any, new: Any) -> bool:
    if not (new.is_fully_addressable or new.is_fully_replicated):
        # Every process takes part; each has some of the numbers.
        return bool(_same_bits(placed(old, new.sharding), new))
    after = np.asarray(new)
    before = np.asarray(jnp.asarray(old, after.dtype))
    return after.size > 0 and before.tobytes() == after.tobytes()


@jax.jit
def _same_bits(old: Any, new: Any) -> Any:
    words = f"u{new.dtype.itemsize}"
    return jnp.all(old.astype(new.dtype).view(words) == new.view(words))


def unmoved_text(names: Sequence[str], every: bool) -> str:
    """What to say after a run that left parameters as they were."""
    which = "any parameter" if every else ", ".join(names)
    return (
        f"the run did not move {which}: no update reached them. Look for a learning"
        " rate of 0, a mask, or steps too small for the dtype (bfloat16 drops what is"
        " below 0.4% of a weight). The charge stands."
    )
