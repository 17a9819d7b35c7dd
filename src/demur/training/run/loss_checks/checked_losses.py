"""Checks of a run's loss before anything is paid, and what it costs to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demur.training.clipping.frozen_losses import FrozenLoss, frozen_of, loss_at
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.run.arguments import call_arguments
from demur.training.run.examples import RunExamples
from demur.training.run.loss_checks import dead_parameters
from demur.training.run.loss_checks.dead_parameters import WithoutGradient
from demur.training.run.loss_checks.separability import check_separable
from demur.training.sizes.operations import loss_flops


def _takes_batches(clipped: ClippedGrad) -> bool:
    """Whether the loss takes a batch, and the same batch has the same loss again.

    Without the batch axis a loss sees one example alone; with a key it is random.
    """
    options = clipped.arguments
    return options["keep_batch_dim"] and options["prng_argnum"] is None


def _quiet(clipped: ClippedGrad) -> Callable[..., Any] | None:
    """The loss of a batch without randomness, if there is one that can be checked."""
    options = clipped.arguments
    fun: Callable[..., Any] = options["fun"]
    if _takes_batches(clipped):
        return fun
    if isinstance(fun, FrozenLoss) and options["keep_batch_dim"]:
        return fun.without_key()
    return None


def check_loss(
    clipped: ClippedGrad, params: PyTree, examples: RunExamples, separable: bool
) -> WithoutGradient:
    """Check that the loss is separable; the parameters it does not depend on."""
    options, structs = clipped.arguments, examples.structs(2)
    seen: list[bool] | None = None
    fun = _quiet(clipped)
    if separable and fun is not None:
        quiet = clipped.with_(fun=fun, prng_argnum=None)
        arguments = call_arguments(quiet, params, structs, None)[1:]
        depends = check_separable(
            fun, params, tuple(arguments), has_aux=options["has_aux"]
        )
        seen = [not one for one in depends]
        if not any(seen):
            return WithoutGradient((), ())
    arguments = call_arguments(clipped, params, structs, np.zeros(2, np.uint32))
    unused = dead_parameters.unused(clipped, arguments)
    return dead_parameters.without_gradient(params, seen or unused, unused)


def flops(clipped: ClippedGrad, params: PyTree, examples: RunExamples) -> float | None:
    """Operations for the loss of one example; None where they cannot be counted."""
    if not _takes_batches(clipped):
        return None
    options = clipped.arguments

    def value(frozen: PyTree, *arguments: Any) -> Any:
        result = loss_at(options["fun"], frozen)(*arguments)
        return result[0] if options["has_aux"] else result

    structs = call_arguments(clipped, params, examples.structs(1), None)
    return loss_flops(value, frozen_of(options["fun"]), *structs)
