"""Arguments of a run, checked before anything is paid."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from demur.training.batches.selection import FixedBatchSampling
from demur.training.batches.user_selection import base_of
from demur.training.clipping.types import ClippedGrad, PyTree
from demur.training.devices.caller_settings import compiles
from demur.training.devices.shardings import own_parts
from demur.training.finetuning.parts import Trainable
from demur.training.plans.plan import DPExecutionPlan

_TREES = {
    "equinox": "split it by eqx.partition(model, eqx.is_inexact_array), train the first"
    " part, and put both together by eqx.combine inside the loss",
    "flax.nnx": "take nnx.split(model, nnx.Param, ...), train the state of Params, and"
    " put it together by nnx.merge inside the loss",
    "flax.linen": "pass model.init(key, example)['params'], and call model.apply inside"
    " the loss",
    "torch": "make a demur.adapters.torch.PrivateModule(module, loss) of the module and"
    " its loss, and call fit(plan, it, data, ...)",
}


def check_called_plainly() -> None:
    """Refuse a run inside of a transformation, and one whose steps cannot compile."""
    with ThreadPoolExecutor(1) as elsewhere:  # a thread that has begun nothing
        outside = elsewhere.submit(core.get_opaque_trace_state).result()
    if core.get_opaque_trace_state() != outside:
        raise TypeError(
            "fit was called inside of jax.jit, vmap, grad or scan; it pays and draws on"
            " the host. Call it in a Python loop: each call is a run with a charge of"
            " its own. Nothing was spent."
        )
    if not compiles():
        raise ValueError(
            "fit compiles its steps before it pays, and jax.disable_jit() is on: call"
            " fit without it. Nothing was spent."
        )


def problem(
    plan: DPExecutionPlan,
    loss_fn: Callable[..., Any] | Trainable | None,
    params: PyTree,
    data: Any,
) -> tuple[Callable[..., Any] | None, PyTree, Any]:
    """Loss, parameters and data, where the first two may come as one; for a plan."""
    if not hasattr(plan, "gradient"):
        what = f"plan must be a plan that was made; got {type(plan).__name__}."
        made = " Call its .make(), or .calibrate(ledger).make()."
        raise TypeError(
            f"{what}{made if hasattr(plan, 'make') else ''} Nothing was spent."
        )
    if isinstance(loss_fn, Trainable):
        if params is not None and data is not None:
            raise TypeError(
                f"a {type(loss_fn).__name__} has its parameters with it: call"
                " fit(plan, it, data, ...). Nothing was spent."
            )
        data = params if data is None else data
        params, loss_fn = loss_fn.params, loss_fn.loss
    if params is None or data is None:
        torch = f" With torch, {_TREES['torch']}."
        raise TypeError(
            "fit takes a plan, a loss, parameters and data; one of them is missing."
            f"{torch if hasattr(loss_fn, 'state_dict') else ''} Nothing was spent."
        )
    return loss_fn, params, data


def check_params(params: PyTree) -> None:
    """Refuse anything but a tree of finite arrays of real numbers."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise TypeError("params must hold at least one array. Nothing was spent.")
    for leaf in leaves:
        dtype: Any = float if isinstance(leaf, float) else getattr(leaf, "dtype", None)
        is_array = isinstance(leaf, float | np.ndarray | np.generic | jax.Array)
        if not is_array or not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(_no_parameter(params, leaf))
        if not all(np.isfinite(part).all() for part in own_parts(leaf)):
            raise ValueError("params must be finite. Nothing was spent.")


def _no_parameter(params: PyTree, leaf: Any) -> str:
    found = getattr(leaf, "dtype", type(leaf).__name__)
    for kind in (type(params), type(leaf)):
        for parent in kind.__mro__:
            for library, remedy in _TREES.items():
                if parent.__module__.startswith(library):
                    return (
                        f"params must be a tree of real arrays; got a {kind.__name__}"
                        f" of {library}, which holds other things too: {remedy}."
                        " Nothing was spent."
                    )
    return (
        f"params must be a tree of real arrays; it holds {found}. Keep what is not"
        " trained out of it: close over it in the loss. Nothing was spent."
    )


def check_optimizer(optimizer: Any, params: PyTree) -> None:
    """Refuse an optimiser that needs more than noisy gradients, by its name."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            "optimizer must be one of optax's (optax.sgd(0.1), ...); got"
            f" {type(optimizer).__name__}. Nothing was spent."
        )

    def update(params: PyTree) -> int:
        optimizer.update(params, optimizer.init(params), params)
        return 0

    try:
        jax.eval_shape(update, params)
    except TypeError as error:
        missing = re.search(r"missing .*?keyword-only arguments?: (.*)$", str(error))
        if missing is None:
            raise
        name = str(error).partition(".<locals>")[0].rpartition(".")[2]
        raise TypeError(
            f"optimizer uses {name}, which needs {missing[1]} in every step: the loss"
            " of a batch is exact, and steps chosen by it would not be private. Take"
            " one that needs gradients alone (sgd, adam, ...), with a schedule that"
            " follows the step. Nothing was spent."
        ) from error


def check_count(plan: DPExecutionPlan, count: int, *, persons: bool) -> None:
    """Refuse a plan that was made for another number of records, or needs more."""
    what = "persons" if persons else "records"
    if plan.num_examples is not None and plan.num_examples != count:
        raise ValueError(
            f"num_examples={plan.num_examples} of the plan must be the number of"
            f" {what} in the data, {count}: the price rests on it. Make the plan anew"
            " with that number. Nothing was spent."
        )
    selection = base_of(plan.batch_selection_strategy)
    if isinstance(selection, FixedBatchSampling) and not selection.replace:
        if selection.batch_size > count:
            raise ValueError(
                f"batch_size={selection.batch_size} of the plan is more than the data"
                f" has {what}. Make the plan with smaller batches. Nothing was spent."
            )


def call_arguments(
    clipped: ClippedGrad, params: PyTree, batch: Any, key: Any
) -> list[Any]:
    """params, the batch in its places, and a key where the loss takes one."""
    options = clipped.arguments
    positions, key_position = options["batch_argnums"], options["prng_argnum"]
    placed: dict[int, Any] = {0: params}
    if isinstance(positions, tuple | list):
        placed.update(zip(positions, batch, strict=True))
    else:
        placed[positions] = batch
    if key_position is not None:
        placed[key_position] = (
            None if key is None else jax.random.wrap_key_data(key, impl="threefry2x32")
        )
    if sorted(placed) != list(range(len(placed))) or options["argnums"] != 0:
        raise ValueError(
            "fit takes a loss of (params, batch...) and possibly a key; the gradient"
            f" has argnums={options['argnums']!r}, batch_argnums={positions!r},"
            f" prng_argnum={key_position!r}. Nothing was spent."
        )
    return [placed[i] for i in range(len(placed))]
