"""Losses made of every kind of place a parameter can have, and how to compare sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from demur.training import clipped_grad

# These programs run once: most of a test's time would go into optimising them.
QUICK_TO_COMPILE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
AS_FLAGS = " ".join(f"--{n}={v}".lower() for n, v in QUICK_TO_COMPILE.items())


class Network(NamedTuple):
    params: dict[str, Any]
    loss: Callable[..., Any]
    batch: tuple[Any, ...]


def distance(first: Any, second: Any) -> float:
    """The largest relative distance between two leaves at one place; NaN is far."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    worst = 0.0
    for a, b in pairs:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        size = np.linalg.norm(b)
        apart = np.linalg.norm(a - b)
        far = apart / size if size > 0 else apart
        # max(0.0, nan) is 0.0: a NaN would pass for no distance at all.
        worst = max(worst, np.inf if np.isnan(far) else far)
    return worst


def length(tree: Any) -> float:
    """The l2 norm of a whole tree, in float64."""
    squares = [
        np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree)
    ]
    return float(np.sqrt(sum(squares)))


def both_methods(
    network: Network, memory: Any = None, **options: Any
) -> tuple[Any, Any]:
    """(sum, aux) by "auto", in the form of `memory`, and by "vmap"."""
    numbers = tuple(range(1, 1 + len(network.batch)))
    results = []
    for method in ("auto", "vmap"):
        grad = clipped_grad(
            network.loss,
            batch_argnums=numbers,
            return_grad_norms=True,
            method=method,
            memory=memory if method == "auto" else None,
            **{"l2_clip_norm": 0.5, **options},
        )
        run = jax.jit(grad, compiler_options=QUICK_TO_COMPILE)
        results.append(run(network.params, *network.batch))
    return results[0], results[1]


def ways(network: Network, **options: Any) -> dict[str, str]:
    """How "auto" finds the norms of each parameter, by its name."""
    numbers = tuple(range(1, 1 + len(network.batch)))
    grad = clipped_grad(
        network.loss, l2_clip_norm=1.0, batch_argnums=numbers, **options
    )
    found = grad.explain(network.params, *network.batch)
    return {leaf.name.strip("[]'"): leaf.method for leaf in found.leaves}


class Draw:
    """Random arrays whose size keeps activations near one."""

    def __init__(self, seed: int, dtype: Any = jnp.float32) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype

    def array(self, *shape: int, fan_in: int = 1) -> Any:
        values = self.rng.normal(size=shape) / np.sqrt(fan_in)
        return jnp.asarray(values, self.dtype)

    def whole(self, below: int, *shape: int) -> Any:
        return jnp.asarray(self.rng.integers(0, below, shape))


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("...td,...sd->...ts", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("...ts,...sd->...td", jax.nn.softmax(scores), v)


def standardised(x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)


def dense(draw: Draw, batch: int = 6) -> Network:
    params = {
        "w1": draw.array(7, 9, fan_in=7),
        "b1": draw.array(9),
        "w2": draw.array(5, 9, fan_in=9),
        "b2": draw.array(5),
    }

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jax.nn.gelu(x @ p["w1"] + p["b1"]) @ p["w2"].T + p["b2"]
        picked = jnp.take_along_axis(h, y[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(h, axis=-1) - picked)

    return Network(params, loss, (draw.array(batch, 7), draw.whole(5, batch)))


def convolutions(draw: Draw, batch: int = 5) -> Network:
    params = {
        "plain": draw.array(3, 3, 3, 4, fan_in=27),
        "b": draw.array(4),
        "grouped": draw.array(3, 2, 2, 6, fan_in=12),
        "deep": draw.array(40, 6, 2, 2, fan_in=24),
        "line": draw.array(3, 40, 8, fan_in=120),
    }

    def loss(p: Any, x: Any) -> Any:
        nhwc = ("NHWC", "HWIO", "NHWC")
        conv = jax.lax.conv_general_dilated
        h = jnp.tanh(conv(x, p["plain"], (2, 2), "SAME", dimension_numbers=nhwc))
        h = conv(
            h + p["b"],
            p["grouped"],
            (1, 2),
            ((1, 2), (2, -1)),
            lhs_dilation=(2, 1),
            rhs_dilation=(1, 2),
            feature_group_count=2,
            dimension_numbers=nhwc,
        )
        h = jnp.tanh(conv(jnp.moveaxis(h, 3, 1), p["deep"], (3, 1), "SAME"))
        h = h.reshape(h.shape[0], 40, -1)
        h = conv(h, p["line"], (1,), "SAME", dimension_numbers=("NCH", "HIO", "NHC"))
        return jnp.mean(jnp.sin(h))

    return Network(params, loss, (draw.array(batch, 9, 8, 3),))


def transformer(draw: Draw, batch: int = 4, tokens: int = 6) -> Network:
    width, words = 12, 17
    params = {
        "words": draw.array(words, width),
        "places": draw.array(tokens + 3, width),
        "q": draw.array(width, 2, 6, fan_in=width),
        "k": draw.array(width, 2, 6, fan_in=width),
        "v": draw.array(2, 6, width, fan_in=width),
        "o": draw.array(2, 6, width, fan_in=width),
        "scale": 1 + draw.array(width, fan_in=10),
        "shift": draw.array(width, fan_in=10),
        "up": draw.array(width, 40, fan_in=width),
        "down": draw.array(40, width, fan_in=40),
        "head": draw.array(width, words, fan_in=width),
    }

    def loss(p: Any, ids: Any) -> Any:
        x = p["words"][ids] + p["places"][: ids.shape[-1]]
        h = standardised(x) * p["scale"] + p["shift"]
        q = jnp.einsum("ntd,dhe->nhte", h, p["q"])
        k = jnp.einsum("ntd,dhe->nhte", h, p["k"])
        v = jnp.einsum("ntd,hed->nhte", h, p["v"])
        x = x + jnp.einsum("nhte,hed->ntd", attention(q, k, v), p["o"])
        x = x + jax.nn.gelu(standardised(x) @ p["up"]) @ p["down"]
        logits = standardised(x) @ p["head"]
        picked = jnp.take_along_axis(logits[:, :-1], ids[:, 1:, None], -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1)) - jnp.mean(picked)

    return Network(params, loss, (draw.whole(words, batch, tokens),))


def scanned(draw: Draw, batch: int = 4) -> Network:
    def layers() -> dict[str, Any]:
        return {
            "w": draw.array(3, 8, 16, fan_in=8),
            "b": draw.array(3, 16),
            "v": draw.array(3, 16, 8, fan_in=16),
        }

    params = {
        "layers": layers(),
        "saved": layers(),
        "recurrent": draw.array(8, 8, fan_in=8),
        "input": draw.array(8, 8, fan_in=8),
        "start": draw.array(8),
        "nested": draw.array(2, 3, 8, 8, fan_in=8),
    }

    def block(x: Any, p: Any) -> tuple[Any, None]:
        return x + jnp.tanh(x @ p["w"] + p["b"]) @ p["v"], None

    def loss(p: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(block, x, p["layers"])
        x, _ = jax.lax.scan(jax.checkpoint(block), x, p["saved"], reverse=True)

        def outer(x: Any, ws: Any) -> tuple[Any, None]:
            return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0], None

        x, _ = jax.lax.scan(outer, x, p["nested"])

        def turn(state: Any, step: Any) -> tuple[Any, Any]:
            state = jnp.tanh(state @ p["recurrent"] + step @ p["input"])
            return state, state

        _, states = jax.lax.scan(turn, p["start"], jnp.moveaxis(x, 1, 0)[:, 0])
        return jnp.mean(states**2) + jnp.mean(x)

    return Network(params, loss, (draw.array(batch, 5, 8),))


def awkward(draw: Draw, batch: int = 4) -> Network:
    """Parameters without a rule of their own, and tied ones."""
    params = {
        "twice": draw.array(8, 8, fan_in=8),
        "tied": draw.array(8, 11, fan_in=8),
        "rows": draw.array(11, 8),
        "base": draw.array(8, 8, fan_in=8),
        "low": draw.array(8, 2, fan_in=8),
        "rank": draw.array(2, 8, fan_in=2),
        "masked": draw.array(8, 8, fan_in=8),
        "slope": draw.array(8),
        "power": jnp.asarray(0.7, draw.dtype),
        "token": draw.array(8),
        "penalised": draw.array(8, 3, fan_in=8),
        "unused": draw.array(3),
    }

    @jax.custom_jvp
    def smooth(x: Any, slope: Any) -> Any:
        return x * jax.nn.sigmoid(x * slope)

    @smooth.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        x, slope = primals
        gate = jax.nn.sigmoid(x * slope)
        change = x * gate * (1 - gate)
        return x * gate, tangents[0] * (gate + change * slope) + tangents[
            1
        ] * x * change

    def loss(p: Any, ids: Any) -> Any:
        x = p["rows"][ids] + jnp.take(p["tied"].T, ids, axis=0)
        x = jnp.concatenate([jnp.broadcast_to(p["token"], (len(x), 1, 8)), x], axis=1)
        x = jnp.tanh(jnp.tanh(x @ p["twice"]) @ p["twice"])
        x = x @ (p["base"] + p["low"] @ p["rank"])
        x = smooth(x @ (p["masked"] * jnp.tri(8, dtype=x.dtype)), p["slope"])
        x = jnp.sign(x) * (jnp.abs(x) + 0.1) ** p["power"]
        logits = x @ p["tied"]
        z = jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x @ p["penalised"])
        return (
            jnp.mean(jax.nn.logsumexp(logits, -1))
            + jnp.mean(z)
            + 0.1 * jnp.sum(p["penalised"] ** 2)
        )

    return Network(params, loss, (draw.whole(11, batch, 5),))


EVERY_NETWORK = {
    "dense": dense,
    "convolutions": convolutions,
    "transformer": transformer,
    "scanned": scanned,
    "awkward": awkward,
}
