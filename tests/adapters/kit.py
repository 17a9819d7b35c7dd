"""Data and trained models that the adapters' tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from demur import Ball, Promise
from demur.convex import HeadForm, minimise, objective
from demur.core.bounds import clip_rows

N, D, K = 600, 6, 3
LAM = 0.05
BINARY = ("logistic", "squared_hinge", "huber")


def form_of(loss: str, **changes: Any) -> HeadForm:
    """The form of a head of these data; the number of classes is the model's."""
    return HeadForm(loss, **({"lam": LAM, "norm_bound": 1.0} | changes))


def promise_of(radius: float = 0.3, epsilon: float = 1.0, delta: float = 1e-6):
    return Promise(Ball(radius, space="records"), epsilon, delta)


def rows(seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(N, D)) + 0.3
    return clip_rows(X / 2.0, 1.0).data


def labels(loss: str, seed: int = 0) -> np.ndarray:
    X = rows(seed)
    noise = 0.2 * np.random.default_rng(seed + 1).normal(size=(N, K))
    if loss == "softmax":
        return np.argmax(X[:, :K] + noise, axis=1)
    return np.where(X[:, 0] + noise[:, 0] > 0.2, 1, -1)


def exact(loss: str, *, bias_scale: float = 1.0, lam: float = LAM) -> np.ndarray:
    """The minimiser, as demur.convex orders it."""
    num_classes = K if loss == "softmax" else 2
    form = HeadForm(loss, lam=lam, bias_scale=bias_scale, num_classes=num_classes)
    return minimise(objective(form, rows(), labels(loss)), tau=1e-10).theta


def torch_linear(theta: np.ndarray, *, dtype=torch.float64) -> torch.nn.Linear:
    """An nn.Linear with the parameters of theta, its bias last."""
    matrix = np.atleast_2d(theta)
    linear = torch.nn.Linear(matrix.shape[1] - 1, len(matrix), dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(torch.as_tensor(matrix[:, :-1]))
        linear.bias.copy_(torch.as_tensor(matrix[:, -1]))
    return linear


def state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}


def numbers_in(value: Any, seen: set[int] | None = None) -> list[float]:
    """Every float that hangs on a returned object, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        inner: list[Any] = [*value.parameters(), *value.buffers(), value.__dict__]
    elif isinstance(value, torch.Tensor):
        return value.detach().double().reshape(-1).tolist()
    elif isinstance(value, np.ndarray):
        if not np.issubdtype(value.dtype, np.number):
            return []
        return value.astype(np.float64).reshape(-1).tolist()
    elif isinstance(value, float):
        return [value]
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple | set):
        inner = list(value)
    elif hasattr(value, "__dict__"):
        inner = list(vars(value).values())
    elif hasattr(value, "__array__"):
        return numbers_in(np.asarray(value), seen)
    else:
        return []
    return [number for item in inner for number in numbers_in(item, seen)]
