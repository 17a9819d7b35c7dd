"""Twelve networks of today, each as a loss of a batch: full size, or tiny for tests.

`build(name, "tiny" | "full")` gives a `Case`. Full sizes fill one large GPU; tiny ones
are for comparisons with the plain method and for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass
class Case:
    """A loss of (params, *batch, *fixed); `fixed` have no batch axis."""

    name: str
    params: Any
    loss: Callable[..., Any]
    batch: tuple[Any, ...]
    microbatches: tuple[int | None, ...]
    torch: Callable[[], Any] | None = None
    fixed: tuple[Any, ...] = ()


class Draw:
    """Random arrays whose size keeps activations near one."""

    def __init__(self, seed: int, dtype: Any = jnp.float32) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), dtype

    def normal(self, *shape: int, scale: float = 1.0) -> Any:
        values = self.rng.standard_normal(shape, dtype=np.float32) * scale
        return jnp.asarray(values, self.dtype)

    def dense(self, *shape: int) -> Any:
        """The last axis but one is summed over."""
        return self.normal(*shape, scale=shape[-2] ** -0.5)

    def kernel(self, size: int, inputs: int, outputs: int) -> Any:
        scale = (size * size * inputs) ** -0.5
        return self.normal(size, size, inputs, outputs, scale=scale)

    def whole(self, below: int, *shape: int) -> Any:
        return jnp.asarray(self.rng.integers(0, below, shape))


def cross_entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    size = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * size).astype(x.dtype) * scale


def layer_norm(x: Any, p: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return wide.astype(x.dtype) * p["scale"] + p["shift"]


def group_norm(x: Any, p: Any, groups: int) -> Any:
    n, h, w, c = x.shape
    g = x.reshape(n, h, w, groups, c // groups)
    g = g - g.mean((1, 2, 4), keepdims=True)
    g = g * jax.lax.rsqrt(jnp.mean(g * g, (1, 2, 4), keepdims=True) + 1e-5)
    return g.reshape(x.shape) * p["scale"] + p["shift"]


def norm_params(width: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {"scale": jnp.ones(width, dtype), "shift": jnp.zeros(width, dtype)}


def conv(x: Any, k: Any, stride: int = 1, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x,
        k,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def self_attention(h: Any, q: Any, k: Any, v: Any, heads: int, causal: bool) -> Any:
    shape = (*h.shape[:2], heads, -1)
    parts = [(h @ w).reshape(shape) for w in (q, k, v)]
    mixed = jax.nn.dot_product_attention(*parts, is_causal=causal)
    return mixed.reshape(*h.shape[:2], -1)


# -- language --------------------------------------------------------------------------


def _llama_params(draw: Draw, layers: int, width: int, words: int) -> dict[str, Any]:
    inner = 8 * width // 3 // 8 * 8
    return {
        "words": draw.normal(words, width),
        "layers": {name: draw.dense(layers, width, width) for name in "qkvo"}
        | {name: draw.dense(layers, width, inner) for name in ("gate", "up")}
        | {"down": draw.dense(layers, inner, width)}
        | {name: jnp.ones((layers, width), draw.dtype) for name in ("norm1", "norm2")},
        "norm": jnp.ones(width, draw.dtype),
    }


def _llama_block(heads: int) -> Callable[[Any, Any], Any]:
    def block(x: Any, p: Any) -> Any:
        h = rms_norm(x, p["norm1"])
        x = x + self_attention(h, p["q"], p["k"], p["v"], heads, True) @ p["o"]
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    return block


def llama(full: bool, tied: bool = False) -> Case:
    """Scanned over the layers and rematerialised, in bfloat16."""
    layers, width, words = (24, 1024, 32000) if full else (2, 32, 60)
    draw = Draw(1, jnp.bfloat16 if full else jnp.float32)
    params = _llama_params(draw, layers, width, words)
    if not tied:
        params["head"] = draw.dense(width, words)
    block = _llama_block(width // (64 if full else 16))

    def loss(p: Any, ids: Any) -> Any:
        x = p["words"][ids] * width**-0.5 if tied else p["words"][ids]
        step = jax.checkpoint(lambda x, layer: (block(x, layer), None))
        x, _ = jax.lax.scan(step, x, p["layers"])
        head = p["words"].T if tied else p["head"]
        return cross_entropy((rms_norm(x, p["norm"]) @ head)[:, :-1], ids[:, 1:])

    batch = (draw.whole(words, 64, 256) if full else draw.whole(words, 4, 6),)
    return Case("", params, loss, batch, (16,) if full else (2,))


def lora(full: bool) -> Case:
    """Rank 16 on the attention of the LLaMA shape; what is frozen is an argument."""
    layers, width, words, rank = (24, 1024, 32000, 16) if full else (2, 32, 60, 4)
    draw = Draw(2, jnp.bfloat16 if full else jnp.float32)
    frozen = _llama_params(draw, layers, width, words)
    frozen["head"] = draw.dense(width, words)
    params = {
        name: {
            "a": draw.dense(layers, width, rank),
            "b": draw.normal(layers, rank, width, scale=0.01),
        }
        for name in "qkvo"
    }
    heads = width // (64 if full else 16)

    def loss(p: Any, ids: Any, frozen: Any) -> Any:
        def block(x: Any, both: Any) -> tuple[Any, None]:
            base, low = both

            def through(h: Any, name: str) -> Any:
                return h @ base[name] + (h @ low[name]["a"]) @ low[name]["b"]

            h = rms_norm(x, base["norm1"])
            shape = (*h.shape[:2], heads, -1)
            parts = [through(h, name).reshape(shape) for name in "qkv"]
            mixed = jax.nn.dot_product_attention(*parts, is_causal=True)
            x = x + through(mixed.reshape(x.shape), "o")
            h = rms_norm(x, base["norm2"])
            gated = jax.nn.silu(h @ base["gate"]) * (h @ base["up"])
            return x + gated @ base["down"], None

        x = frozen["words"][ids]
        x, _ = jax.lax.scan(jax.checkpoint(block), x, (frozen["layers"], p))
        logits = rms_norm(x, frozen["norm"]) @ frozen["head"]
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    batch = (draw.whole(words, 64, 256) if full else draw.whole(words, 4, 6),)
    return Case("", params, loss, batch, (16,) if full else (2,), fixed=(frozen,))


def experts(full: bool) -> Case:
    """A transformer whose feed-forward layers mix eight experts by a soft gate."""
    width, inner, layers, count = (512, 1024, 4, 8) if full else (16, 24, 2, 3)
    batch, tokens, words = (64, 128, 8000) if full else (4, 5, 40)
    draw = Draw(3, jnp.bfloat16 if full else jnp.float32)
    params = {
        "words": draw.normal(words, width),
        "layers": [
            {
                "qkv": draw.dense(width, 3 * width),
                "o": draw.dense(width, width),
                "gate": draw.dense(width, count),
                "up": draw.dense(count, width, inner),
                "down": draw.dense(count, inner, width),
                "norm1": jnp.ones(width, draw.dtype),
                "norm2": jnp.ones(width, draw.dtype),
            }
            for _ in range(layers)
        ],
        "head": draw.dense(width, words),
    }

    def loss(p: Any, ids: Any) -> Any:
        x = p["words"][ids]
        for layer in p["layers"]:
            heads = max(1, width // 64)
            shape = (*x.shape[:2], 3, heads, width // heads)
            qkv = (rms_norm(x, layer["norm1"]) @ layer["qkv"]).reshape(shape)
            mixed = jax.nn.dot_product_attention(
                qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True
            )
            x = x + mixed.reshape(x.shape) @ layer["o"]
            h = rms_norm(x, layer["norm2"])
            gates = jax.nn.softmax(h @ layer["gate"])
            up = jax.nn.gelu(jnp.einsum("ntd,edf->netf", h, layer["up"]))
            down = jnp.einsum("netf,efd->netd", up, layer["down"])
            x = x + jnp.einsum("netd,nte->ntd", down, gates)
        return cross_entropy((rms_norm(x, 1.0) @ p["head"])[:, :-1], ids[:, 1:])

    return Case("", params, loss, (draw.whole(words, batch, tokens),), (8,))


def lstm(full: bool) -> Case:
    width, steps, batch, words = (512, 128, 256, 8000) if full else (8, 5, 4, 30)
    draw = Draw(4)
    params = {
        "words": draw.normal(words, width),
        "input": draw.dense(width, 4 * width),
        "state": draw.dense(width, 4 * width),
        "bias": jnp.zeros(4 * width),
        "head": draw.dense(width, 16),
        "shift": jnp.zeros(16),
    }

    def loss(p: Any, ids: Any, labels: Any) -> Any:
        inputs = p["words"][ids] @ p["input"] + p["bias"]

        def turn(carry: Any, x: Any) -> tuple[Any, None]:
            h, c = carry
            i, f, g, o = jnp.split(x + h @ p["state"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        start = jnp.zeros((len(ids), width))
        (h, _), _ = jax.lax.scan(turn, (start, start), jnp.moveaxis(inputs, 1, 0))
        return cross_entropy(h @ p["head"] + p["shift"], labels)

    data = (draw.whole(words, batch, steps), draw.whole(16, batch))
    return Case("", params, loss, data, (32,))


def mamba(full: bool) -> Case:
    """A selective scan: decay and input depend on the token."""
    width, inner, states, layers = (512, 1024, 16, 4) if full else (8, 12, 3, 2)
    batch, tokens, words = (32, 256, 8000) if full else (3, 5, 30)
    draw = Draw(5)
    params = {
        "words": draw.normal(words, width),
        "layers": [
            {
                "in": draw.dense(width, 2 * inner),
                "conv": draw.normal(4, 1, inner, scale=0.5),
                "select": draw.dense(inner, 2 * states + 1),
                "step": draw.normal(inner, scale=0.1),
                "decay": jnp.log(1 + draw.rng.random((inner, states), np.float32)),
                "skip": jnp.ones(inner),
                "out": draw.dense(inner, width),
                "norm": jnp.ones(width),
            }
            for _ in range(layers)
        ],
        "head": draw.dense(width, words),
    }

    def selective(x: Any, p: Any) -> Any:
        picked = x @ p["select"]
        b, c = picked[..., :states], picked[..., states : 2 * states]
        step = jax.nn.softplus(picked[..., -1:] + p["step"])
        decay = jnp.exp(-step[..., None] * jnp.exp(p["decay"]))
        fed = (step * x)[..., None] * b[..., None, :]

        def join(first: Any, second: Any) -> tuple[Any, Any]:
            return first[0] * second[0], second[0] * first[1] + second[1]

        _, h = jax.lax.associative_scan(join, (decay, fed), axis=1)
        return jnp.einsum("ntds,nts->ntd", h, c) + x * p["skip"]

    def loss(p: Any, ids: Any) -> Any:
        x = p["words"][ids]
        for layer in p["layers"]:
            h, gate = jnp.split(rms_norm(x, layer["norm"]) @ layer["in"], 2, axis=-1)
            h = jax.lax.conv_general_dilated(
                h,
                layer["conv"],
                (1,),
                [(3, 0)],
                dimension_numbers=("NHC", "HIO", "NHC"),
                feature_group_count=inner,
            )
            x = (
                x
                + (selective(jax.nn.silu(h), layer) * jax.nn.silu(gate)) @ layer["out"]
            )
        return cross_entropy((rms_norm(x, 1.0) @ p["head"])[:, :-1], ids[:, 1:])

    return Case("", params, loss, (draw.whole(words, batch, tokens),), (4,))


# -- images ----------------------------------------------------------------------------


def vit(full: bool) -> Case:
    """ViT-S/16 in float32: 197 positions."""
    width, layers, patch, image, batch = (
        (384, 12, 16, 224, 256) if full else (16, 2, 4, 8, 3)
    )
    draw = Draw(6)
    places = (image // patch) ** 2 + 1
    params = {
        "patch": draw.dense(patch * patch * 3, width),
        "class": draw.normal(width, scale=0.02),
        "places": draw.normal(places, width, scale=0.02),
        "layers": [
            {
                "norm1": norm_params(width),
                "qkv": draw.dense(width, 3 * width),
                "qkv_b": jnp.zeros(3 * width),
                "o": draw.dense(width, width),
                "o_b": jnp.zeros(width),
                "norm2": norm_params(width),
                "up": draw.dense(width, 4 * width),
                "up_b": jnp.zeros(4 * width),
                "down": draw.dense(4 * width, width),
                "down_b": jnp.zeros(width),
            }
            for _ in range(layers)
        ],
        "norm": norm_params(width),
        "head": draw.dense(width, 100),
        "head_b": jnp.zeros(100),
    }
    heads = max(1, width // 64)

    def loss(p: Any, x: Any, y: Any) -> Any:
        n, side = len(x), image // patch
        x = x.reshape(n, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, side * side, -1) @ p["patch"]
        first = jnp.broadcast_to(p["class"], (n, 1, width))
        x = jnp.concatenate([first, x], axis=1) + p["places"]
        for layer in p["layers"]:
            h = layer_norm(x, layer["norm1"])
            qkv = (h @ layer["qkv"] + layer["qkv_b"]).reshape(
                n, -1, 3, heads, width // heads
            )
            mixed = jax.nn.dot_product_attention(
                qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
            )
            x = x + mixed.reshape(x.shape) @ layer["o"] + layer["o_b"]
            h = layer_norm(x, layer["norm2"])
            h = jax.nn.gelu(h @ layer["up"] + layer["up_b"])
            x = x + h @ layer["down"] + layer["down_b"]
        return cross_entropy(
            layer_norm(x[:, 0], p["norm"]) @ p["head"] + p["head_b"], y
        )

    data = (draw.normal(batch, image, image, 3), draw.whole(100, batch))
    return Case("", params, loss, data, (16,))


def resnet(full: bool) -> Case:
    """ResNet-18 with GroupNorm on 32 x 32 images."""
    widths, depth, image, batch = (
        ((64, 128, 256, 512), 2, 32, 2048) if full else ((8, 12), 1, 8, 3)
    )
    groups = 16 if full else 4
    draw = Draw(7)

    def block(inputs: int, outputs: int) -> dict[str, Any]:
        made = {
            "k1": draw.kernel(3, inputs, outputs),
            "n1": norm_params(outputs),
            "k2": draw.kernel(3, outputs, outputs),
            "n2": norm_params(outputs),
        }
        if inputs != outputs:
            made["k3"] = draw.kernel(1, inputs, outputs)
        return made

    sizes = [widths[0], *widths]
    params = {
        "stem": draw.kernel(3, 3, widths[0]),
        "norm": norm_params(widths[0]),
        "stages": [
            [block(a if i == 0 else b, b) for i in range(depth)]
            for a, b in zip(sizes, widths, strict=False)
        ],
        "head": draw.dense(widths[-1], 10),
        "head_b": jnp.zeros(10),
    }

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = jax.nn.relu(group_norm(conv(x, p["stem"]), p["norm"], groups))
        for number, stage in enumerate(p["stages"]):
            for place, b in enumerate(stage):
                stride = 2 if number and not place else 1
                h = jax.nn.relu(group_norm(conv(x, b["k1"], stride), b["n1"], groups))
                h = group_norm(conv(h, b["k2"]), b["n2"], groups)
                x = conv(x, b["k3"], stride) if "k3" in b else x
                x = jax.nn.relu(x + h)
        return cross_entropy(x.mean((1, 2)) @ p["head"] + p["head_b"], y)

    def torch_model() -> Any:
        nn = import_module("torch.nn")

        class Block(nn.Module):
            def __init__(self, inputs: int, outputs: int, stride: int) -> None:
                super().__init__()
                self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
                self.b = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
                self.m, self.n = (nn.GroupNorm(groups, outputs) for _ in range(2))
                self.c = None
                if inputs != outputs:
                    self.c = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

            def forward(self, x: Any) -> Any:
                h = self.n(self.b(self.m(self.a(x)).relu()))
                return (h + (x if self.c is None else self.c(x))).relu()

        layers = [
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
            nn.GroupNorm(groups, widths[0]),
            nn.ReLU(),
        ]
        for number, (a, b) in enumerate(zip(sizes, widths, strict=False)):
            layers += [
                Block(a if i == 0 else b, b, 2 if number and not i else 1)
                for i in range(depth)
            ]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
        return nn.Sequential(*layers)

    data = (draw.normal(batch, image, image, 3), draw.whole(10, batch))
    return Case("", params, loss, data, (64,), torch_model)


def convnext(full: bool) -> Case:
    width, layers, image, batch = (96, 6, 56, 256) if full else (8, 2, 6, 3)
    draw = Draw(8)
    params = {
        "stem": draw.kernel(1, 3, width),
        "layers": [
            {
                "deep": draw.normal(7, 7, 1, width, scale=1 / 7),
                "deep_b": jnp.zeros(width),
                "norm": norm_params(width),
                "up": draw.dense(width, 4 * width),
                "up_b": jnp.zeros(4 * width),
                "down": draw.dense(4 * width, width),
                "down_b": jnp.zeros(width),
                "scale": jnp.full(width, 0.1),
            }
            for _ in range(layers)
        ],
        "head": draw.dense(width, 10),
    }

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = conv(x, p["stem"])
        for b in p["layers"]:
            h = conv(x, b["deep"], groups=width) + b["deep_b"]
            h = jax.nn.gelu(layer_norm(h, b["norm"]) @ b["up"] + b["up_b"])
            x = x + (h @ b["down"] + b["down_b"]) * b["scale"]
        return cross_entropy(x.mean((1, 2)) @ p["head"], y)

    data = (draw.normal(batch, image, image, 3), draw.whole(10, batch))
    return Case("", params, loss, data, (32,))


def unet(full: bool) -> Case:
    """One level down and up again, with a skip connection: images to images."""
    width, image, batch = (64, 64, 128) if full else (4, 8, 3)
    groups = 8 if full else 2
    draw = Draw(9)

    def double(inputs: int, outputs: int) -> dict[str, Any]:
        return {
            "k1": draw.kernel(3, inputs, outputs),
            "n1": norm_params(outputs),
            "k2": draw.kernel(3, outputs, outputs),
            "n2": norm_params(outputs),
        }

    params = {
        "first": double(3, width),
        "down": double(width, 2 * width),
        "wide": draw.normal(2, 2, 2 * width, width, scale=(8 * width) ** -0.5),
        "up": double(2 * width, width),
        "last": draw.kernel(1, width, 3),
        "last_b": jnp.zeros(3),
    }

    def twice(x: Any, p: Any) -> Any:
        for number in "12":
            x = group_norm(conv(x, p["k" + number]), p["n" + number], groups)
            x = jax.nn.silu(x)
        return x

    def loss(p: Any, x: Any) -> Any:
        skip = twice(x, p["first"])
        pooled = jax.lax.reduce_window(
            skip, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        h = jax.lax.conv_transpose(twice(pooled, p["down"]), p["wide"], (2, 2), "SAME")
        h = twice(jnp.concatenate([skip, h], axis=-1), p["up"])
        return jnp.mean((conv(h, p["last"]) + p["last_b"] - x) ** 2)

    return Case("", params, loss, (draw.normal(batch, image, image, 3),), (16,))


# -- graphs and tables -----------------------------------------------------------------


def graph(full: bool) -> Case:
    """Messages along edges, added up by scatter; every example is a graph."""
    width, layers, nodes, edges, batch = (
        (256, 4, 64, 256, 512) if full else (6, 2, 5, 9, 3)
    )
    draw = Draw(10)
    params = {
        "atoms": draw.normal(40, width),
        "bonds": draw.normal(8, width),
        "layers": [
            {
                "message": draw.dense(2 * width, width),
                "message_b": jnp.zeros(width),
                "update": draw.dense(2 * width, width),
                "update_b": jnp.zeros(width),
                "norm": norm_params(width),
            }
            for _ in range(layers)
        ],
        "head": draw.dense(width, 2),
    }

    def one(p: Any, atoms: Any, ends: Any, bonds: Any) -> Any:
        x, kinds = p["atoms"][atoms], p["bonds"][bonds]
        source, target = ends[:, 0], ends[:, 1]
        for layer in p["layers"]:
            pair = jnp.concatenate([x[source], kinds], axis=-1)
            sent = jax.nn.relu(pair @ layer["message"] + layer["message_b"])
            taken = jax.ops.segment_sum(sent, target, nodes)
            h = jnp.concatenate([x, taken], axis=-1)
            h = jax.nn.relu(h @ layer["update"] + layer["update_b"])
            x = layer_norm(x + h, layer["norm"])
        return x.mean(0) @ p["head"]

    def loss(p: Any, atoms: Any, ends: Any, bonds: Any, labels: Any) -> Any:
        logits = jax.vmap(one, (None, 0, 0, 0))(p, atoms, ends, bonds)
        return cross_entropy(logits, labels)

    data = (
        draw.whole(40, batch, nodes),
        draw.whole(nodes, batch, edges, 2),
        draw.whole(8, batch, edges),
        draw.whole(2, batch),
    )
    return Case("", params, loss, data, (64,))


def dlrm(full: bool) -> Case:
    """Large tables looked up several times, and products of what was found."""
    tables, rows, width, hot, batch = (
        (8, 1_000_000, 64, 4, 4096) if full else (3, 20, 6, 2, 4)
    )
    draw = Draw(11)
    bottom = [13, 256, width] if full else [13, 8, width]
    pairs = (tables + 1) * tables // 2
    top = [width + pairs, 256, 1] if full else [width + pairs, 8, 1]

    def stack(sizes: list[int]) -> list[dict[str, Any]]:
        return [
            {"w": draw.dense(a, b), "b": jnp.zeros(b)}
            for a, b in zip(sizes, sizes[1:], strict=False)
        ]

    params = {
        "tables": [draw.normal(rows, width, scale=0.1) for _ in range(tables)],
        "bottom": stack(bottom),
        "top": stack(top),
    }

    def through(x: Any, layers: Any) -> Any:
        for layer in layers[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ layers[-1]["w"] + layers[-1]["b"]

    def loss(p: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
        dense = through(numbers, p["bottom"])
        found = [table[ids[:, place]].sum(1) for place, table in enumerate(p["tables"])]
        each = jnp.stack([dense, *found], axis=1)
        products = jnp.einsum("nid,njd->nij", each, each)
        first, second = np.triu_indices(tables + 1, 1)
        joined = jnp.concatenate([dense, products[:, first, second]], axis=1)
        logits = through(joined, p["top"])[:, 0]
        return jnp.mean(jax.nn.softplus(logits) - clicked * logits)

    data = (
        draw.normal(batch, 13),
        draw.whole(rows, batch, tables, hot),
        draw.whole(2, batch).astype(jnp.float32),
    )
    return Case("", params, loss, data, (8,))


ZOO: dict[str, Callable[[bool], Case]] = {
    "llama": llama,
    "vit": vit,
    "resnet": resnet,
    "experts": experts,
    "llama-tied": lambda full: llama(full, tied=True),
    "lora": lora,
    "mamba": mamba,
    "convnext": convnext,
    "unet": unet,
    "lstm": lstm,
    "graph": graph,
    "dlrm": dlrm,
}


def build(name: str, size: str) -> Case:
    """One network of the zoo."""
    case = ZOO[name](size == "full")
    case.name = f"{name}, {size}"
    if size == "tiny":
        case.microbatches = (None,)
    return case
