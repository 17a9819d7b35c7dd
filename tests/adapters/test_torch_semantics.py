"""Torch's own meaning of a module: the same derivatives, or a refusal in words."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from demur.adapters.torch import (
    PrivateModule,
    derivatives,
    refusals,
    rematerialisation,
    shared_memory,
)
from tests.families import thinned

pytestmark = pytest.mark.slow

ROW = np.random.default_rng(3).normal(size=(1, 6)).astype(np.float32)
WEIGHT = torch.tensor(np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32))


class Body(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x):
        return self.function(self.layer(x))


def loss(module, batch):
    """A weighted sum, whose weights are torch's own tensor without a device."""
    value = module(batch["x"]).float().flatten()
    weights = torch.cos(torch.arange(len(value)) * 1.3)
    return (value * weights).sum() + 0 * module.layer(batch["x"]).sum()


def apart(function):
    """The largest difference of value and gradient from torch's, relative."""
    torch.manual_seed(0)
    module = Body(function)
    by_torch = loss(module, {"x": torch.tensor(ROW)})
    by_torch.backward()
    wanted = module.layer.weight.grad.numpy()
    private = PrivateModule(module, loss)
    value, found = jax.value_and_grad(private.loss)(
        private.params, {"x": jnp.asarray(ROW)}
    )
    gradient = np.abs(np.asarray(found["layer.weight"]) - wanted).max()
    return max(
        abs(float(value) - by_torch.item()) / max(1.0, abs(by_torch.item())),
        gradient / max(1e-3, np.abs(wanted).max()),
    )


# -- what torch does not differentiate -----------------------------------------------


def without_gradient(h):
    with torch.no_grad():
        constant = torch.tanh(h)
    return constant * h


CONSTANTS = {
    "no_grad": without_gradient,
    "no_grad of a slice": lambda h: torch.no_grad()(lambda: h[:, 1:3])() * h[:, :2],
    "detach": lambda h: h.detach() * h,
    "torch.detach": lambda h: torch.detach(h) * h,
    "data": lambda h: h.data * h,
    "straight through": lambda h: h + (torch.sign(h) - h).detach(),
    "a constant without a device": lambda h: h * torch.arange(6) + torch.tensor(0.5),
    "a constant of the loss": lambda h: functional.linear(h, WEIGHT),
    "another type": lambda h: h.type_as(torch.zeros(1, dtype=torch.bfloat16)) + h,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_torch_leaves_out_is_left_out(name):
    assert apart(CONSTANTS[name]) < (1e-2 if name == "another type" else 1e-5)


def test_without_torchs_rules_the_gradient_is_another_one(monkeypatch):
    def any_value(rules, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

    monkeypatch.setattr(derivatives._TorchRules, "__torch_function__", any_value)
    for twin in ("no_grad", "torch.detach"):
        with pytest.raises((AssertionError, TypeError)):  # "mixed math", or another sum
            assert apart(CONSTANTS[twin]) < 1e-2


# -- what is refused by name ---------------------------------------------------------


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g


def inner_gradient(h):
    x = torch.ones(1, 6, requires_grad=True)
    (found,) = torch.autograd.grad((x * h).sum(), x, create_graph=True)
    return found


def in_place_without_gradient(h):
    with torch.no_grad():
        h.clamp_(min=0.0)
    return h


def kept(h):
    """Both change in torch, and one of them here."""
    before = h.detach()
    h.add_(1.0)
    return h + before


def assigned(h):
    h.data = h.data.clamp(-0.1, 0.1)
    return h


REFUSED = {
    "a derivative of its own": (StraightThrough.apply, "StraightThrough, a torch.auto"),
    "a gradient inside": (inner_gradient, "calls torch.autograd.grad itself"),
    "a branch": (lambda h: h if h.sum() > 0 else -h, "looks at the values"),
    "a number": (lambda h: h * h.abs().max().item(), "looks at the values"),
    "an array": (lambda h: h * float(h.detach().numpy()[0, 0]), "looks at the values"),
    "a write": (in_place_without_gradient, "in place without a gradient"),
    "detach_": ((lambda h: (h * 1).detach_() * h), "in place without a gradient"),
    "a write behind detach": (
        lambda h: (h.detach().clamp_(min=0.0), h)[1],
        "shares its memory",
    ),
    "a write behind torch.detach": (
        lambda h: (torch.detach(h).clamp_(min=0.0), h)[1],
        "shares its memory",
    ),
    "a write behind data": (lambda h: (h.data.mul_(2.0), h)[1], "shares its memory"),
    "a write into what is kept": (kept, "shares its memory"),
    "data": (assigned, "assigns to .data"),
    "an imported checkpoint": (
        lambda h: checkpoint(torch.tanh, h, use_reentrant=True),
        "by its full name",
    ),
    "out": (lambda h: torch.add(h, 1.0, out=torch.empty(1, 6)), "add with out="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_passed_over_is_refused(name):
    function, words = REFUSED[name]
    private = PrivateModule(Body(function), loss)
    with pytest.raises((TypeError, ValueError), match=f"{words}(.|\n)*Nothing was sp"):
        jax.make_jaxpr(private.loss)(private.params, {"x": jnp.asarray(ROW)})
    assert torch.autograd.function._is_setup_context_defined is not derivatives._custom
    assert torch.autograd.grad.__module__ == "torch.autograd"


HOOKS = {
    "parameter": lambda m: m.layer.weight.register_hook(lambda g: 0 * g),
    "accumulated": lambda m: m.layer.bias.register_post_accumulate_grad_hook(print),
    "layer": lambda m: m.layer.register_full_backward_hook(lambda *a: None),
    "before": lambda m: m.register_full_backward_pre_hook(lambda *a: None),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_on_gradients_is_refused(hook):
    module = Body(torch.tanh)
    HOOKS[hook](module)
    with pytest.raises(TypeError, match=r"has a hook.*remove it. Nothing was spent"):
        PrivateModule(module, loss)


# -- writing in place ----------------------------------------------------------------

WRITES = {
    "add_": lambda t: t.add_(0.3),
    "mul_": lambda t: t.mul_(3.0),
    "div_": lambda t: t.div_(3.0),
    "clamp_": lambda t: t.clamp_(-0.1, 0.1),
    "relu_": lambda t: t.relu_(),
    "tanh_": lambda t: t.tanh_(),
    "pow_": lambda t: t.pow_(2),
    "fill_": lambda t: t.fill_(2.0),
    "zero_": lambda t: t.zero_(),
    "masked_fill_": lambda t: t.masked_fill_(t > 0, 1.0),
    "copy_": lambda t: t.copy_(t.flip(-1) * 2),
    "index_fill_": lambda t: t.index_fill_(1, torch.tensor([0]), 2.0),
    "index_add_": lambda t: t.index_add_(1, torch.tensor([0]), t[:, :1].clone()),
    "scatter_": lambda t: t.scatter_(1, torch.tensor([[0]]), 3.0),
    "addcmul_": lambda t: t.addcmul_(t.clone(), t.clone(), value=0.5),
    "tril_": lambda t: t.tril_(),
    "fill_diagonal_": lambda t: t.fill_diagonal_(1.0),
    "+=": lambda t: t.__iadd__(1.0),
    "t[...] =": lambda t: t.__setitem__((slice(None), 0), 1.0),
    "relu(inplace)": lambda t: functional.relu(t, inplace=True),
    "elu(inplace)": lambda t: functional.elu(t, inplace=True),
}
VIEWS = {
    "the tensor": lambda t: t,
    "a slice": lambda t: t[:, 1:4],
    "one column": lambda t: t[:, 1:2],
    "view": lambda t: t.view(-1, 6),
    "flatten": lambda t: t.flatten().unflatten(0, (1, 6)),
    "transposed": lambda t: t.view(-1, 2, 3).transpose(1, 2)[:, :, 0],
    "narrow": lambda t: t.narrow(1, 0, 3),
    "select": lambda t: t.select(0, 0)[None],
    "the transpose": lambda t: t.T.T,
    "contiguous": lambda t: t.contiguous(),
    "to": lambda t: t.to(torch.float32),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
}
CASES = [(write, view) for write in WRITES for view in VIEWS]


def written(write, view):
    def function(h):
        whole = h * 1
        WRITES[write](VIEWS[view](whole))
        return whole

    return function


@pytest.mark.parametrize(("write", "view"), thinned(CASES, 7))
def test_a_write_is_followed_or_refused(write, view):
    try:
        assert apart(written(write, view)) < 1e-5
    except (TypeError, ValueError) as error:
        assert "Nothing was spent" in str(error)  # in place, or unknown to torchax
        assert view != "the tensor" or write == "fill_diagonal_"


@pytest.mark.parametrize("view", ["view", "transposed", "select"])
def test_without_the_check_a_write_is_lost(view, monkeypatch):
    monkeypatch.setattr(shared_memory.SharedMemory, "check", lambda *a: None)
    assert apart(written("mul_", view)) > 0.1


def made_without_a_device(h):
    """Written into a copy, it was left at zero without a word."""
    made = torch.zeros(1, 6)
    for place in range(6):
        made[:, place] = h[:, 5 - place]
    return made


INTO_CONSTANTS = {
    "entries": made_without_a_device,
    "sum": lambda h: torch.zeros(1, 6).add_(h),
    "slice": lambda h: torch.zeros(1, 6)[:, :3].copy_(h[:, 3:]),
}


@pytest.mark.parametrize("name", INTO_CONSTANTS)
def test_a_write_into_a_constant_is_refused(name):
    with pytest.raises(ValueError, match=r"without a device.*x.new_zeros.*Nothing"):
        apart(INTO_CONSTANTS[name])


def test_constants_are_written_as_in_torch():
    """And what is made like a tensor, slice by slice."""

    def function(h):
        mask = torch.zeros(6, 6)
        mask.fill_diagonal_(1.0)
        mask[0] = 2.0
        mask[:, 1].mul_(3.0)
        mask.view(-1)[3] = 5.0
        made = torch.zeros_like(h)
        for place in range(6):
            made[:, place] = h[:, 5 - place]
        return made.copy_(made[:, :] * 2) @ mask

    assert apart(function) < 1e-5


def test_ordinary_code_writes_in_place():
    """A residual block, and a slice that is scaled, as people write them."""

    def block(h):
        out = h * 2
        out += h
        out[:, :2] *= 3.0
        out[:, 4] = 0.5
        out = out.view(-1, 2, 3).flatten(1)
        return functional.relu(out, inplace=True)

    assert apart(block) < 1e-5


# -- other threads -------------------------------------------------------------------


def backward_elsewhere(h):
    """What another thread does with torch while a module runs."""

    def work():
        x = torch.ones(4, 3, requires_grad=True)
        functional.batch_norm(
            checkpoint(torch.tanh, x, use_reentrant=True), None, None, training=True
        )
        (x**2).sum().backward()
        return x.grad

    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(work).result().shape == (4, 3)
    return torch.tanh(h)


def test_torch_is_itself_in_other_threads():
    assert apart(backward_elsewhere) < 1e-5


def test_without_the_thread_it_is_not(monkeypatch):
    for module in (derivatives, refusals, rematerialisation):
        monkeypatch.setattr(module, "only_here", lambda ours, real: ours)
    with pytest.raises(TypeError, match="Nothing was spent"):
        apart(backward_elsewhere)


def test_modules_run_one_after_the_other():
    """Each puts back what it has replaced: in turns they would leave it replaced."""
    before = functional.batch_norm
    privates = [PrivateModule(Body(torch.tanh), loss) for _ in range(4)]

    def trace(private):
        batch = {"x": jnp.asarray(ROW)}
        return len(jax.make_jaxpr(private.loss)(private.params, batch).eqns)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(trace, privates * 3))
    assert functional.batch_norm is before
