"""Small runs for the trainer's tests."""

from dataclasses import fields
from functools import cache

import jax.numpy as jnp
import numpy as np
import optax

from demur.training import (
    BandMFExecutionPlanConfig,
    Reporting,
    Resources,
    ShapePlan,
    dp_sgd,
    fit,
)

N, D = 200, 4
# One physical size: one program to compile.
ONE = ShapePlan((64,), None, 12, 0.0, 0.0, 0.0)
SGD = optax.sgd(0.5)


def make_data(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)).astype(np.float32)
    y = (x @ np.arange(1, D + 1) > 0).astype(np.int32)
    return {"x": x, "y": y}


def make_params():
    return {"w": jnp.zeros((D, 2)), "b": jnp.zeros(2)}


def loss(params, batch):
    logits = batch["x"] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


@cache
def make_plan(iterations=12, bands=1, **options):
    config = {
        "sampling_prob": 0.1 * bands,
        "noise_multiplier": 4.0,  # little is quick to price
        "neighboring_relation": "ADD_OR_REMOVE_ONE",
        "l2_clip_norm": 1.0,
        "normalize_by": 20.0,
    } | options
    if bands == 1:
        return dp_sgd(iterations=iterations, **config).make()
    return BandMFExecutionPlanConfig(
        iterations=iterations, num_bands=bands, **config
    ).make()


def train(plan, data=None, **options):
    """`fit` on the small problem, with one program and no check of the loss.

    Options of resources and reporting may be given by themselves.
    """
    given = {
        "optimizer": SGD,
        "shapes": ONE,
        "check_loss": False,
        "delta": 1e-5,
    } | options
    groups = {}
    for name, kind in {"resources": Resources, "reporting": Reporting}.items():
        mine = {field.name for field in fields(kind)} & set(given)
        groups[name] = kind(**{option: given.pop(option) for option in mine})
    return fit(
        plan,
        given.pop("loss", loss),
        given.pop("params", None) or make_params(),
        make_data() if data is None else data,
        **groups,
        **given,
    )
