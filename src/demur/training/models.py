"""Models for the command line, examples and benchmarks: MLP, CNN, transformer.

A model is a frozen description with two functions: `init(key)` gives parameters (a
pytree of arrays), `logits(params, x)` the scores of a batch. No layer looks across
examples: there is nothing like batch normalisation, whose loss is not separable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from demur.core import validate
from demur.training.clipping.types import PyTree


class Model(Protocol):
    """A model: initial parameters and forward pass."""

    def init(self, key: Any) -> PyTree:
        """Fresh parameters."""
        ...

    def logits(self, params: PyTree, x: Any) -> Any:
        """Scores of shape [batch, classes]."""
        ...


def _generator(key: Any) -> np.random.Generator:
    """First weights come from NumPy: jax.random compiles for each of their shapes.

    A whole number may stand for a key.
    """
    if isinstance(key, int):
        key = jax.random.key(key)
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Any:
    return jnp.asarray(scale * rng.standard_normal(shape, np.float32))


def _dense(rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, Any]:
    return {
        "w": _normal(rng, (inputs, outputs), math.sqrt(1.0 / inputs)),
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
        rng = _generator(key)
        layers = [_dense(rng, *pair) for pair in pairwise(widths)]
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
        rng = _generator(key)
        flat = self._rows(self.height) * self._rows(self.width) * 32

        def filters(size: int, inputs: int, outputs: int) -> PyTree:
            scale = math.sqrt(1.0 / (size * size * inputs))
            shape = (size, size, inputs, outputs)
            return {"w": _normal(rng, shape, scale), "b": jnp.zeros(outputs)}

        return {
            "conv1": filters(8, self.channels, 16),
            "conv2": filters(4, 16, 32),
            "dense": _dense(rng, flat, 32),
            "out": _dense(rng, 32, self.classes),
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
    """The largest of each 2 x 2; XLA's gradient of a window takes longer on a CPU."""
    rows = jnp.maximum(x[:, 1:], x[:, :-1])
    return jnp.maximum(rows[:, :, 1:], rows[:, :, :-1])


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
        rng = _generator(key)

        def block() -> PyTree:
            return {
                "norm1": jnp.ones(d),
                "norm2": jnp.ones(d),
                "qkv": _dense(rng, d, 3 * d),
                "proj": _dense(rng, d, d),
                "up": _dense(rng, d, 4 * d),
                "down": _dense(rng, 4 * d, d),
            }

        return {
            "tokens": _normal(rng, (self.vocabulary, d), 0.02),
            "places": _normal(rng, (self.length, d), 0.02),
            "blocks": [block() for _ in range(self.layers)],
            "norm": jnp.ones(d),
            "out": _dense(rng, d, self.classes),
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
        attended = jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(scores), v)
        return _apply(block["proj"], attended.reshape(h.shape))


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

    Exact: not private on the training data, harmless on public test data.
    """
    score = jax.jit(lambda p, part: model.logits(p, part).argmax(-1))
    right = 0
    for start in range(0, len(y), rows):
        classes = score(params, jnp.asarray(x[start : start + rows]))
        right += int((classes == jnp.asarray(y[start : start + rows])).sum())
    return right / max(len(y), 1)
