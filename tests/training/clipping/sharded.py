"""Run by test_sharded in a process of its own, with eight host devices.

Prints, for the clipped sum of one batch: how far each way of computing it on eight
devices is from one device, and the largest per-example norm that each reports. And for
a whole run: how far its result is from that of one device, and where it lies.
"""

from __future__ import annotations

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax_privacy import clipping as peer

from demur.core.entropy import Seeded
from demur.training import ClippedSum, clipped_grad
from demur.training.clipping.ghost.two_passes import _SLACK
from tests.training.clipping.kit import EVERY_NETWORK, Draw, distance
from tests.training.kit import make_plan, train

warnings.filterwarnings("ignore", category=DeprecationWarning)
OPTIONS = {"l2_clip_norm": 0.05, "return_grad_norms": True}


def sharded(grad, mesh, sharded_values):
    """Replicated parameters, a share of the batch on each device, sums added up."""
    spec = PartitionSpec("data")

    def share(params, *batch):
        total, aux = grad(params, *batch)
        if isinstance(total, ClippedSum):
            return total.psum("data"), aux.grad_norms
        return jax.lax.psum(total, "data"), aux.grad_norms

    # Added up by psum: the same everywhere.
    return jax.jit(
        jax.shard_map(
            share,
            mesh=mesh,
            in_specs=(PartitionSpec(), *[spec] * sharded_values),
            out_specs=(PartitionSpec(), spec),
        )
    )


def whole_run() -> dict[str, float]:
    mesh = jax.make_mesh((4, 2), ("a", "b"))  # its axes are explicit
    one, eight = (
        train(make_plan(bands=3), source=Seeded(3), mesh=m) for m in (None, mesh)
    )
    return {
        "apart": float(np.abs(np.subtract(one.value["w"], eight.value["w"])).max()),
        "size": float(np.abs(one.value["w"]).max()),
        "devices": len(eight.value["w"].sharding.device_set),
    }


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    assert jax.device_count() == 8
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    found: dict[str, dict[str, float]] = {}
    for name in ("dense", "transformer"):
        network = EVERY_NETWORK[name](Draw(1), batch=16)
        count = len(network.batch)
        numbers = tuple(range(1, 1 + count))
        ways = {
            "auto": clipped_grad(network.loss, batch_argnums=numbers, **OPTIONS),
            "microbatches": clipped_grad(
                network.loss, batch_argnums=numbers, microbatch_size=1, **OPTIONS
            ),
            "ordinary": clipped_grad(
                network.loss,
                batch_argnums=numbers,
                memory="ordinary",
                **OPTIONS | {"l2_clip_norm": OPTIONS["l2_clip_norm"] / (1 - _SLACK)},
            ),
            "vmap": clipped_grad(
                network.loss, batch_argnums=numbers, method="vmap", **OPTIONS
            ),
        }
        if name != "dense":
            ways = {"auto": ways["auto"]}
        alone, aux = jax.jit(ways.get("vmap", ways["auto"]))(
            network.params, *network.batch
        )
        true_norm = float(np.max(aux.grad_norms))
        for label, grad in ways.items():
            total, norms = sharded(grad, mesh, count)(network.params, *network.batch)
            found[f"{name} {label}"] = {
                "apart": distance(total.value, alone.value),
                "norm": float(np.max(norms)) / true_norm,
            }
        if name == "dense":
            placed = jax.device_put(
                network.batch, NamedSharding(mesh, PartitionSpec("data"))
            )
            total, aux = jax.jit(ways["auto"])(network.params, *placed)
            found[f"{name} jit"] = {
                "apart": distance(total.value, alone.value),
                "norm": float(np.max(aux.grad_norms)) / true_norm,
            }
            other = peer.clipped_grad(network.loss, batch_argnums=numbers, **OPTIONS)
            total, norms = sharded(other, mesh, count)(network.params, *network.batch)
            found["peer"] = {
                "apart": distance(total, alone.value),
                "norm": float(np.max(norms)) / true_norm,
            }
    assert jnp.zeros(1).dtype == jnp.float32
    print(json.dumps({"sums": found, "run": whole_run()}))


if __name__ == "__main__":
    main()
