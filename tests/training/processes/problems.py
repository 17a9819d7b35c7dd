"""The problem that the processes train on: the small one, or one with cut parameters.

`DEMUR_SHARDED=1` in the environment of a process makes every run of it cut parameters,
optimiser, sums and noise over all devices: the same scenarios, with sharding on.
"""

from __future__ import annotations

import os

import jax.numpy as jnp
import numpy as np
import optax

from tests.training import kit

SHARDED = os.environ.get("DEMUR_SHARDED") == "1"
OPTIONS = {"shard_parameters": True} if SHARDED else {}
_WIDTH = 24


def make_params():
    """Leaves that eight devices divide, and one that they do not."""
    if not SHARDED:
        return kit.make_params()
    rng = np.random.default_rng(5)
    first = rng.normal(size=(kit.D, _WIDTH)) / kit.D**0.5
    return {
        "v": jnp.asarray(first, jnp.float32),
        "w": jnp.zeros((_WIDTH, 2)),
        "b": jnp.zeros(2),
    }


def loss(params, batch):
    """The loss of the small problem, behind one layer more where that is cut."""
    if "v" not in params:
        return kit.loss(params, batch)
    hidden = jnp.tanh(batch["x"] @ params["v"])
    logits = hidden @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
