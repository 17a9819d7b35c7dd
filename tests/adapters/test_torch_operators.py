"""Operators with torch's own values and derivatives, also where JAX has others."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from demur.adapters.torch import PrivateModule, modules
from tests.families import thinned
from tests.training.clipping.kit import QUICK_TO_COMPILE

pytestmark = pytest.mark.slow

ROW = np.random.default_rng(3).normal(size=(1, 6)).astype(np.float32)


class Body(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        h = self.layer(x)
        return self.function(h, h - h.detach())  # numbers, and zeros that have a slope


class Convolved(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.convolution = layer

    def forward(self, x):
        return self.convolution(x)


def loss(module, rows):
    value = module(rows).flatten()
    return (value * torch.cos(torch.arange(len(value)) * 1.3)).sum()


def apart(module, row=ROW):
    """The largest difference of value and gradient from torch's, relative."""
    by_torch = loss(module, torch.tensor(row))
    by_torch.backward()
    private = PrivateModule(module, loss)
    run = jax.jit(jax.value_and_grad(private.loss), compiler_options=QUICK_TO_COMPILE)
    value, found = run(private.params, jnp.asarray(row))
    off = [abs(float(value) - by_torch.item()) / max(1.0, abs(by_torch.item()))]
    for name, parameter in module.named_parameters():
        wanted = parameter.grad.numpy()
        gap = np.abs(np.asarray(found[name]) - wanted).max()
        off.append(gap / max(1e-3, np.abs(wanted).max()))
    return max(off) if np.isfinite(off).all() else np.inf


# Of numbers h and zeros z: at a kink, at a tie, or where JAX divides by zero.
EDGES = {
    "abs": lambda h, z: h + z.abs(),
    "L1 loss": lambda h, z: h + functional.l1_loss(z, torch.zeros_like(z)),
    "clamp": lambda h, z: h + z.clamp(min=0.0) + z.clamp(-1.0, 0.0),
    "clamp by tensors": lambda h, z: h + h.clamp(z, z + 0.3),
    "clamp, then sqrt": lambda h, z: torch.where(h > 0, h.clamp(min=0.0).sqrt(), h),
    "clamp, then log": lambda h, z: torch.where(h > 0, h.clamp(min=0.0).log(), h),
    "hardtanh": lambda h, z: h + functional.hardtanh(z + 1.0),
    "relu6": lambda h, z: h + functional.relu6(z + 6.0) + functional.relu6(z),
    "relu6 in place": lambda h, z: h + functional.relu6(z * 1, inplace=True),
    "hardswish": lambda h, z: h + functional.hardswish(z + 3.0),
    "hardsigmoid": lambda h, z: h + functional.hardsigmoid(z - 3.0),
    "leaky_relu": lambda h, z: h + functional.leaky_relu(z, 0.3),
    "leaky_relu in place": lambda h, z: h + functional.leaky_relu(z * 1, 0.3, True),
    "norm": lambda h, z: h + z.norm(dim=-1, keepdim=True),
    "norm of third powers": lambda h, z: h + torch.linalg.vector_norm(z, 3),
    "normalize": lambda h, z: h + functional.normalize(z, dim=-1) * 1e-9,
    "cosine": lambda h, z: h + functional.cosine_similarity(z, torch.ones(6)),
    "std": lambda h, z: h + z.std(-1, keepdim=True),
    "std_mean": lambda h, z: h + torch.std_mean(z, dim=-1, correction=0)[0],
    "cdist": lambda h, z: h + torch.cdist(z, torch.cat([z, z + 1.0]))[:, :1],
    "max of an axis": lambda h, z: h + z.max(-1, keepdim=True).values,
    "min of an axis": lambda h, z: h + z.min(-1, keepdim=True).values,
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_are_those_of_torch(name):
    torch.manual_seed(0)
    assert apart(Body(EDGES[name])) < 1e-5


# In JAX these are torch's too, at these numbers.
SAME = ("cdist", "clamp by tensors", "normalize")
OTHER = [name for name in EDGES if name not in SAME]


@pytest.mark.parametrize("name", thinned(OTHER, 3))
def test_without_torchs_operators_edges_differ(name, monkeypatch):
    monkeypatch.setattr(modules, "operators_of_torch", lambda env: nullcontext())
    torch.manual_seed(0)
    try:
        assert apart(Body(EDGES[name])) > 1e-2
    except TypeError as error:  # torchax has no such operator
        assert "torchax does not have" in str(error)


# Ordinary numbers: an operator of ours must still be what torchax' own was.
PLAIN = {
    "clamp of whole numbers": lambda h, z: h * torch.arange(6).clamp(min=1.5),
    "clip": lambda h, z: h.clip(max=0.2),
    "hardtanh of whole numbers": lambda h, z: (
        h * functional.hardtanh(torch.arange(6), 1, 3)
    ),
    "floor_": lambda h, z: h * (h * 3).detach().floor_(),
    "std of all": lambda h, z: h / (1 + h.std(unbiased=False)),
    "std_mean": lambda h, z: h / (1 + torch.std_mean(h, dim=(0, 1), keepdim=True)[0]),
    "norm of all": lambda h, z: h / h.norm(),
    "norm, p = 0": lambda h, z: h * h.norm(p=0, dim=-1, keepdim=True),
    "norm, p = 0.5": lambda h, z: h + torch.linalg.vector_norm(h, 0.5),
    "norm, p = 1": lambda h, z: h / h.norm(p=1, dim=[0, 1], keepdim=True),
    "norm, p = inf": lambda h, z: h / h.norm(p=float("inf"), dim=-1, keepdim=True),
    "norm, p = -inf": lambda h, z: h + torch.linalg.vector_norm(h, -float("inf")),
    "norm, wider": lambda h, z: h * torch.linalg.vector_norm(h, dtype=torch.float32),
    "places of the largest": lambda h, z: h * h.max(-1, keepdim=True).indices,
    "max of a number": lambda h, z: h * h.mean().max(0).values,
    "cdist, p = 1": lambda h, z: torch.cdist(h, torch.eye(6), p=1.0),
    "cdist of many": lambda h, z: torch.cdist(h, torch.eye(6).repeat(6, 1)),
    "complex": lambda h, z: torch.view_as_complex(h.view(3, 2)).abs(),
}


@pytest.mark.parametrize("name", thinned(list(PLAIN), 3))
def test_other_numbers_are_those_of_torch_too(name):
    torch.manual_seed(0)
    assert apart(Body(PLAIN[name])) < 1e-5


class Attended(nn.Module):
    def __init__(self, mask, **options):
        super().__init__()
        self.layer, self.mask, self.options = nn.Linear(6, 6), mask, options

    def forward(self, x):
        h = self.layer(x).view(1, 2, 3, 1) * torch.ones(4)
        attend = functional.scaled_dot_product_attention
        return attend(h, h * 2, h + 1, self.mask, **self.options)


PAIRS = torch.ones(3, 3, dtype=torch.bool).tril()
LEFT = PAIRS & torch.tensor([False, True, True])  # padding on the left
ATTENTIONS = {
    "none": (None, {}),
    "causal": (None, {"is_causal": True}),
    "another scale": (PAIRS, {"scale": 0.3}),
    "hidden": (PAIRS, {}),
    "nothing to see": (LEFT, {}),
    "nothing to see, in numbers": (torch.where(LEFT, 0.0, -torch.inf), {}),
    "for each head": (torch.stack([PAIRS, LEFT])[None], {}),
    "in numbers": (torch.arange(9.0).view(3, 3), {}),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_torchs(name):
    mask, options = ATTENTIONS[name]
    torch.manual_seed(0)
    assert apart(Attended(mask, **options)) < 1e-5


@pytest.mark.parametrize("mask", [LEFT, torch.where(LEFT, 0.0, -torch.inf)])
def test_without_torchs_attention_padding_on_the_left_is_no_number(mask, monkeypatch):
    """And an example whose gradient is not finite is left out of the training."""
    monkeypatch.setattr(modules, "operators_of_torch", lambda env: nullcontext())
    torch.manual_seed(0)
    assert apart(Attended(mask)) == np.inf


TRANSPOSED = [
    (kind, {"groups": groups, "stride": stride, "padding": 1, "dilation": dilation})
    for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    for groups in (1, 2, 4)
    for stride in (1, 2)
    for dilation in (1, 2)
]


def convolved(kind, options):
    torch.manual_seed(0)
    axes = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}[kind]
    shape = (1, 4, *[4] * axes)
    row = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return apart(Convolved(kind(4, 8, 2, **options)), row)


@pytest.mark.parametrize(("kind", "options"), thinned(TRANSPOSED, 5))
def test_transposed_convolutions_in_groups(kind, options):
    """torchax takes their filters in another order: another model, without a word."""
    assert convolved(kind, options) < 1e-5


def test_without_the_order_of_filters_they_differ(monkeypatch):
    monkeypatch.setattr(modules, "operators_of_torch", lambda env: nullcontext())
    assert convolved(nn.ConvTranspose2d, {"groups": 2}) > 0.1


def test_torchax_is_as_it_was_afterwards():
    private = PrivateModule(Body(EDGES["norm"]), loss)
    before = dict(private._env._ops)
    jax.make_jaxpr(private.loss)(private.params, jnp.asarray(ROW))
    assert private._env._ops == before
    with pytest.raises(ZeroDivisionError):
        PrivateModule(Body(lambda h, z: 1 / 0), loss).loss(
            private.params, jnp.asarray(ROW)
        )
    assert private._env._ops == before
