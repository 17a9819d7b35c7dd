"""The LLaMA shape of most layers that trains on one device, privately and not.

Layers of LLaMA-7B's width, scanned and rematerialised, in bfloat16: all parameters with
Adam, and LoRA of rank 16 on the attention. A step is the gradient (ours: the ordinary-
memory form), noise for ours, and the update, with parameters and state donated. What a
program takes is XLA's own figure for two depths; a straight line through them gives the
depth that fills 97% of the device, and that depth is then run for two steps (fewer
layers are tried if it fails).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from zoo import cross_entropy, rms_norm, self_attention

from demur.training import clipped_grad, gaussian_privatizer

SAFE = 0.97


@dataclass(frozen=True)
class Shape:
    width: int
    inner: int
    heads: int
    words: int
    rank: int
    batch: int
    tokens: int
    depths: tuple[int, int]
    dtype: Any


SHAPES = {
    "full": Shape(4096, 11008, 32, 32000, 16, 4, 512, (4, 8), jnp.bfloat16),
    "tiny": Shape(32, 64, 2, 60, 4, 4, 8, (2, 3), jnp.float32),
}


def parameters(shape: Shape, layers: int, what: str) -> tuple[Any, Any]:
    """(trained, frozen), as shapes."""
    width, inner = shape.width, shape.inner

    def array(*size: int) -> Any:
        return jax.ShapeDtypeStruct(size, shape.dtype)

    whole = {
        "words": array(shape.words, width),
        "head": array(width, shape.words),
        "layers": {name: array(layers, width, width) for name in "qkvo"}
        | {name: array(layers, width, inner) for name in ("gate", "up")}
        | {"down": array(layers, inner, width)}
        | {name: array(layers, width) for name in ("norm1", "norm2")},
    }
    if what == "all":
        return whole, None
    low = {
        name: {
            "a": array(layers, width, shape.rank),
            "b": array(layers, shape.rank, width),
        }
        for name in "qv"
    }
    return low, whole


def loss_of(shape: Shape, what: str) -> Callable[..., Any]:
    def through(h: Any, weight: Any, pair: Any) -> Any:
        return h @ weight if pair is None else h @ weight + (h @ pair["a"]) @ pair["b"]

    def block(x: Any, both: Any) -> tuple[Any, None]:
        p, low = both
        h = rms_norm(x, p["norm1"])
        if low is None:
            x = (
                x
                + self_attention(h, p["q"], p["k"], p["v"], shape.heads, True) @ p["o"]
            )
        else:
            heads = (*h.shape[:2], shape.heads, -1)
            parts = [through(h, p[n], low.get(n)).reshape(heads) for n in "qkv"]
            mixed = jax.nn.dot_product_attention(*parts, is_causal=True)
            x = x + mixed.reshape(x.shape) @ p["o"]
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    def loss(trained: Any, ids: Any, frozen: Any) -> Any:
        whole, low = (trained, None) if what == "all" else (frozen, trained)
        x = whole["words"][ids]
        x, _ = jax.lax.scan(jax.checkpoint(block), x, (whole["layers"], low))
        logits = rms_norm(x, 1.0) @ whole["head"]
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return loss


@dataclass(frozen=True)
class Training:
    """A step of one kind, compiled for a number of layers."""

    shape: Shape
    what: str
    private: bool

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(1e-4)

    def step(self) -> Callable[..., Any]:
        loss = loss_of(self.shape, self.what)
        if self.private:
            clipped = clipped_grad(loss, l2_clip_norm=1.0, memory="ordinary")
            noise = gaussian_privatizer(1.0, 1000)

        def run(trained: Any, state: Any, ids: Any, frozen: Any, key: Any) -> Any:
            if self.private:
                total = clipped(trained, ids, frozen)
                gradient, _ = noise.update(total, noise.init(trained), key=key)
            else:
                gradient = jax.grad(loss)(trained, ids, frozen)
            updates, state = self.optimizer.update(gradient, state, trained)
            return optax.apply_updates(trained, updates), state

        return run

    def arguments(self, layers: int) -> tuple[Any, ...]:
        trained, frozen = parameters(self.shape, layers, self.what)
        state = jax.eval_shape(self.optimizer.init, trained)
        ids = jax.ShapeDtypeStruct((self.shape.batch, self.shape.tokens), jnp.int32)
        keys = jax.ShapeDtypeStruct((len(jax.tree.leaves(trained)), 2), jnp.uint32)
        return trained, state, ids, frozen, keys

    def compiled(self, layers: int) -> tuple[Any, int]:
        """The program, and the bytes that it takes in all."""
        step = jax.jit(self.step(), donate_argnums=(0, 1))
        program = step.lower(*self.arguments(layers)).compile()
        stats = program.memory_analysis()
        taken = stats.temp_size_in_bytes + stats.argument_size_in_bytes
        return program, taken + stats.output_size_in_bytes - stats.alias_size_in_bytes

    def seconds(self, layers: int) -> float:
        """Of the second step, with parameters that are filled on the device."""
        program, _ = self.compiled(layers)
        # Filled in their own dtype: a copy of the largest leaf would not fit.
        trained, state, ids, frozen, key = jax.tree.map(
            lambda one: jnp.full(
                one.shape, 0.01 if one.dtype == self.shape.dtype else 1, one.dtype
            ).block_until_ready(),
            self.arguments(layers),
        )
        taken = 0.0
        for _ in range(2):
            begun = time.perf_counter()
            trained, state = program(trained, state, ids, frozen, key)
            jax.block_until_ready(trained)
            taken = time.perf_counter() - begun
        return taken


def count_of(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def line_of(training: Training, limit: float) -> dict[str, Any]:
    """Bytes for each layer and the depth that fits, from two programs."""
    first, second = training.shape.depths
    small, large = (training.compiled(layers)[1] for layers in (first, second))
    each = (large - small) / (second - first)
    layers = int((SAFE * limit - small) / each) + first
    trained, frozen = parameters(training.shape, layers, training.what)
    return {
        "gib_a_layer": each / 2**30,
        "gib_besides": (small - first * each) / 2**30,
        "layers": layers,
        "parameters": count_of(trained) + count_of(frozen),
        "trained": count_of(trained),
    }


def deepest(size: str, lines: Any, until: float, begun: float) -> None:
    """Private runs first; what was found is added to the lines."""
    shape = SHAPES[size]
    stats = jax.devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit", 2**24)
    print(f"\nlargest LLaMA shape, {limit / 2**30:.2f} GiB")
    todo = {
        f"{what}, {'demur' if private else 'ordinary'}": Training(shape, what, private)
        for private in (True, False)
        for what in ("lora", "all")
    }
    todo = {name: one for name, one in todo.items() if not lines.has(name, "deepest")}
    if time.perf_counter() - begun > until:
        print("stopped before the largest shape: give the same command again")
        return
    with ThreadPoolExecutor(4) as pool:
        found = dict(
            zip(
                todo,
                pool.map(lambda one: line_of(one, limit), todo.values()),
                strict=True,
            )
        )
    for name, training in todo.items():
        line = found[name]
        for _ in range(3):
            if time.perf_counter() - begun > until:
                print(f"stopped before {name!r} ran")
                break
            try:
                line["second_step_s"] = training.seconds(line["layers"])
                break
            except Exception as error:
                line.setdefault("failed", []).append(
                    [line["layers"], str(error).splitlines()[0][:80]]
                )
                line["layers"] = int(0.96 * line["layers"])
        trained, frozen = parameters(shape, line["layers"], training.what)
        line["parameters"] = count_of(trained) + count_of(frozen)
        line["trained"] = count_of(trained)
        lines.add(kind="deepest", case=name, limit_gib=limit / 2**30, **line)
        print(f"  {name:16}{line}")
        sys.stdout.flush()
