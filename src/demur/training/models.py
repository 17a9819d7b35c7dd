"""Three plain models for the command line, the examples and the benchmarks.

A model is a frozen description with two functions: `init(key)` gives parameters (a
pytree of arrays), `logits(params, x)` the scores of a batch. No layer looks across
examples: there is nothing like batch normalisation, which per-example clipping has no
use for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from demur.core import validate
from demur.training.types import PyTree


class Model(Protocol):
    """What can be trained here."""

    def init(self, key: Any) -> PyTree:
        """Fresh parameters."""
        ...

    def logits(self, params: PyTree, x: Any) -> Any:
        """Scores of shape [batch, classes]."""
        ...


def _dense(key: Any, inputs: int, outputs: int) -> dict[str, Any]:
    scale = math.sqrt(1.0 / inputs)
    return {
        "w": scale * jax.random.normal(key, (inputs, outputs)),
        "b": jnp.zeros(outputs),
    }


def _apply(layer: PyTree, x: Any) -> Any:
    return x @ layer["w"] + layer["b"]


@dataclass(frozen=True)
class MLP:
    """Dense layers with tanh between them; no hidden layers is softmax regression.

    >>> model = MLP(inputs=784, hidden=(64,), classes=10)
    >>> params = model.init(jax.random.key(0))
    >>> model.logits(params, jnp.zeros((5, 28, 28))).shape
    (5, 10)
    """

    inputs: int
    hidden: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        validate.count(inputs=self.inputs, classes=self.classes)
        for width in self.hidden:
            validate.count(hidden=width)

    def init(self, key: Any) -> PyTree:
        """Weights of variance 1 / inputs; the last layer starts at zero."""
        widths = (self.inputs, *self.hidden, self.classes)
        keys = jax.random.split(key, len(widths))
        layers = [
            _dense(keys[i], widths[i], widths[i + 1]) for i in range(len(widths) - 1)
        ]
        layers[-1] = jax.tree.map(jnp.zeros_like, layers[-1])
        return layers

    def logits(self, params: PyTree, x: Any) -> Any:
        """Scores; trailing axes are flattened."""
        x = x.reshape(x.shape[0], -1)
        for layer in params[:-1]:
            x = jnp.tanh(_apply(layer, x))
        return _apply(params[-1], x)


@dataclass(frozen=True)
class CNN:
    """Two strided convolutions and two dense layers, with tanh: 26,010 parameters for
    28 x 28 images of one channel in ten classes.
    """

    height: int
    width: int
    channels: int
    classes: int

    def __post_init__(self) -> None:
        validate.count(height=self.height, width=self.width, channels=self.channels)
        validate.count(classes=self.classes)
        if min(self._rows(self.height), self._rows(self.width)) < 1:
            raise ValueError(
                "height and width must be at least 12 for this network; got"
                f" {self.height} x {self.width}"
            )

    @staticmethod
    def _rows(size: int) -> int:
        """Rows left after both convolutions and both pools."""
        pooled = (size + 6 - 8) // 2 + 1 - 1
        return (pooled - 4) // 2 + 1 - 1

    def init(self, key: Any) -> PyTree:
        """Weights of variance 1 / fan-in."""
        keys = jax.random.split(key, 4)
        flat = self._rows(self.height) * self._rows(self.width) * 32

        def filters(key: Any, size: int, inputs: int, outputs: int) -> PyTree:
            scale = math.sqrt(1.0 / (size * size * inputs))
            shape = (size, size, inputs, outputs)
            return {
                "w": scale * jax.random.normal(key, shape),
                "b": jnp.zeros(outputs),
            }

        return {
            "conv1": filters(keys[0], 8, self.channels, 16),
            "conv2": filters(keys[1], 4, 16, 32),
            "dense": _dense(keys[2], flat, 32),
            "out": _dense(keys[3], 32, self.classes),
        }

    def logits(self, params: PyTree, x: Any) -> Any:
        """Scores of images [batch, height, width(, channels)]."""
        x = x.reshape(x.shape[0], self.height, self.width, self.channels)
        x = _pool(jnp.tanh(_convolve(params["conv1"], x, 3)))
        x = _pool(jnp.tanh(_convolve(params["conv2"], x, 0)))
        x = x.reshape(x.shape[0], -1)
        return _apply(params["out"], jnp.tanh(_apply(params["dense"], x)))


def _convolve(layer: PyTree, x: Any, padding: int) -> Any:
    out = jax.lax.conv_general_dilated(
        x,
        layer["w"],
        window_strides=(2, 2),
        padding=[(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out + layer["b"]


def _pool(x: Any) -> Any:
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"
    )


@dataclass(frozen=True)
class Transformer:
    """A small encoder over tokens, read out by the mean over positions."""

    vocabulary: int
    length: int
    classes: int
    width: int = 64
    heads: int = 4
    layers: int = 2

    def __post_init__(self) -> None:
        validate.count(vocabulary=self.vocabulary, length=self.length)
        validate.count(classes=self.classes, width=self.width)
        validate.count(heads=self.heads, layers=self.layers)
        if self.width % self.heads:
            raise ValueError(f"heads must divide width={self.width}; got {self.heads}")

    def init(self, key: Any) -> PyTree:
        """Weights of variance 1 / fan-in."""
        d = self.width
        first, second, third, *rest = jax.random.split(key, 3 + self.layers)

        def block(key: Any) -> PyTree:
            a, b, c, e = jax.random.split(key, 4)
            return {
                "norm1": jnp.ones(d),
                "norm2": jnp.ones(d),
                "qkv": _dense(a, d, 3 * d),
                "proj": _dense(b, d, d),
                "up": _dense(c, d, 4 * d),
                "down": _dense(e, 4 * d, d),
            }

        return {
            "tokens": 0.02 * jax.random.normal(first, (self.vocabulary, d)),
            "places": 0.02 * jax.random.normal(second, (self.length, d)),
            "blocks": [block(one) for one in rest],
            "norm": jnp.ones(d),
            "out": _dense(third, d, self.classes),
        }

    def logits(self, params: PyTree, x: Any) -> Any:
        """Scores of token rows [batch, length]."""
        h = params["tokens"][x] + params["places"][: x.shape[1]]
        for block in params["blocks"]:
            h = h + self._attend(block, _scaled(block["norm1"], h))
            inner = jax.nn.gelu(_apply(block["up"], _scaled(block["norm2"], h)))
            h = h + _apply(block["down"], inner)
        return _apply(params["out"], _scaled(params["norm"], h).mean(axis=1))

    def _attend(self, block: PyTree, h: Any) -> Any:
        rows, length, width = h.shape
        split = (rows, length, self.heads, width // self.heads)
        q, k, v = (
            part.reshape(split) for part in jnp.split(_apply(block["qkv"], h), 3, -1)
        )
        scores = jnp.einsum("btnd,bsnd->bnts", q, k) / math.sqrt(split[-1])
        mixed = jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(scores), v)
        return _apply(block["proj"], mixed.reshape(h.shape))


def _scaled(scale: Any, x: Any) -> Any:
    """Normalised over features, within each position: no example sees another."""
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def cross_entropy(model: Model) -> Callable[[PyTree, Any], Any]:
    """The mean loss of a batch {"x": ..., "y": labels}."""

    def loss(params: PyTree, batch: Any) -> Any:
        scores = model.logits(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(
            scores, batch["y"]
        ).mean()

    return loss


def accuracy(model: Model, params: PyTree, x: Any, y: Any, rows: int = 2000) -> float:
    """The share of rows whose largest score is right, `rows` at a time.

    Exact: on the training data it is not private; on public test data it is nobody's.
    """
    score = jax.jit(lambda p, part: model.logits(p, part).argmax(-1))
    right = 0
    for start in range(0, len(y), rows):
        found = score(params, jnp.asarray(x[start : start + rows]))
        right += int((found == jnp.asarray(y[start : start + rows])).sum())
    return right / max(len(y), 1)
