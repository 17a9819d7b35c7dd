"""Torch's own rules of differentiation, while a module runs on JAX arrays.

JAX differentiates every operation that it traces. torch leaves out what runs under
`torch.no_grad()` and what was detached, also by `.data`: so does a module here.
Derivatives that a module brings along (hooks, `torch.autograd.Function`) or asks torch
for (`torch.autograd.grad`) would be passed over without a word, and are refused by
name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import torch
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as torch_tree

from demur.adapters.torch.refusals import only_here, refuse_call
from demur.adapters.torch.shared_memory import SharedMemory, is_write

# Without a device torch draws these itself, once for all examples and steps.
_DRAWING = (torch.rand, torch.randn, torch.randint)
# These draw by a key also where a tensor of torch's own says how.
_KEYED = frozenset(
    "bernoulli multinomial normal rand_like randn_like randint_like dropout".split()
)
# torchax differentiates through these, though not through the method of its tensors.
_DETACHING = (torch.detach, torch.Tensor.detach)
_SAID = "Nothing was spent."
_VALUES = (
    "the module looks at the values of its batch (an `if`, `.item()`, `.numpy()`, a"
    " shape that follows from them), which would be another program for each batch. Use"
    " torch.where and shapes that are fixed. Nothing was spent."
)


def refuse_hooks(module: nn.Module) -> None:
    """Refuse, by name, hooks on gradients: they would not run."""
    for name, layer in module.named_modules():
        if layer._backward_hooks or layer._backward_pre_hooks:
            _refuse(f"{name or 'the module'} ({type(layer).__name__}) has a hook")
    for name, parameter in module.named_parameters():
        after = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or after:
            _refuse(f"{name} has a hook")


def _refuse(who: str) -> None:
    raise TypeError(
        f"{who} on its gradient, which a private run does not call: remove it."
        " Nothing was spent."
    )


class _TorchRules(TorchFunctionMode):
    """What torch would not differentiate is a constant for JAX too.

    So is a tensor of torch's own: one that a module makes without naming a device, or
    that its loss holds (weights of classes).
    """

    def __init__(self, env: Any, torchax: Any) -> None:
        super().__init__()
        self._env = env
        self._known = (torchax.tensor.Tensor, torchax.view.View)
        self._memory = SharedMemory(
            torchax.view.View, lambda t: env.j2t_iso(env.t2j_iso(t))
        )

    def _constant(self, given: torch.Tensor) -> Any:
        if not isinstance(given, self._known):
            return given
        constant = jax.lax.stop_gradient(self._env.t2j_iso(given))
        return self._memory.shared(self._env.j2t_iso(constant), given)

    def _on_jax(self, given: torch.Tensor) -> Any:
        if isinstance(given, self._known):
            return given
        return self._env.j2t_iso(self._env.t2j_copy(given.detach()))

    def _read(self, given: Any) -> Any:
        """A slice that is written somewhere, as a tensor of its own."""
        if not isinstance(given, self._known[1]):
            return given
        return self._env.j2t_iso(self._env.t2j_iso(given))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        name = getattr(func, "__name__", "")
        leaves = torch_tree.tree_leaves((tuple(args), kwargs or {}))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if tensors and not any(isinstance(one, self._known) for one in tensors):
            if name not in _KEYED:
                # Constants stay torch's own, so that a write finds what it is for.
                refuse_call(name, args, kwargs or {})
                return func(*args, **(kwargs or {}))
        elif is_write(name) and args and not isinstance(args[0], self._known):
            _refuse_lost_write(name)
        with torch._C.DisableTorchFunction():
            args, kwargs = torch_tree.tree_map_only(
                torch.Tensor, self._on_jax, (tuple(args), kwargs or {})
            )
            self._memory.check(name, args, kwargs)
            refuse_call(name, args, kwargs)
            if is_write(name):
                args = (args[0], *torch_tree.tree_map(self._read, args[1:]))
        if func in _DRAWING:
            kwargs = {"device": "jax"} | kwargs
        try:
            value = func(*args, **kwargs)
        except TypeError as error:
            if isinstance(error, jax.errors.JAXTypeError) or _SAID in str(error):
                raise
            # torch's operators take a TypeError for "not mine", and drop its words.
            said = str(error).rstrip(".")
            raise ValueError(f"{name}: {said}. {_SAID}") from error
        with torch._C.DisableTorchFunction():
            value = self._memory.returned(value)
            if func in _DETACHING:
                given = args[0] if args else next(iter((kwargs or {}).values()))
                value = self._memory.shared(value, given)
        if name != "detach_" and func not in _DETACHING and torch.is_grad_enabled():
            return value
        if is_write(name):
            _refuse_unseen_write(name)
        return torch_tree.tree_map_only(torch.Tensor, self._constant, value)

    def detaching(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`detach` of torchax's tensors, which no mode of torch's sees."""
        return lambda tensor: self._memory.shared(real(tensor), tensor)

    def writing(self, real: Callable[..., None]) -> Callable[..., None]:
        """`__setitem__` of torchax's tensors, which no mode of torch's sees."""

        def checked(tensor: torch.Tensor, key: Any, value: Any) -> None:
            with torch._C.DisableTorchFunction():
                self._memory.check("__setitem__", (tensor,), {})
                value, key = torch_tree.tree_map_only(
                    torch.Tensor, self._on_jax, (value, key)
                )
            if not torch.is_grad_enabled():
                _refuse_unseen_write("__setitem__")
            real(tensor, key, value)

        return checked


def _refuse_lost_write(name: str) -> None:
    raise ValueError(
        f"the module writes ({name}) into a tensor that it made without a device, where"
        " no gradient would follow: make it by x.new_zeros(...), torch.zeros_like(x) or"
        " with device=x.device. Nothing was spent."
    )


def _refuse_unseen_write(name: str) -> None:
    raise ValueError(
        f"the module changes a tensor in place without a gradient ({name}): make a new"
        " one, as .detach() does. Nothing was spent."
    )


def _refuse_assigned(tensor: torch.Tensor, value: Any) -> None:
    raise ValueError(
        "the module assigns to .data of a tensor, which no gradient would see and which"
        " nothing protects: compute from a new tensor (torch.clamp(weight, -1, 1))"
        " instead. Nothing was spent."
    )


@contextmanager
def differentiated_as_by_torch(env: Any, torchax: Any) -> Iterator[None]:
    """A module runs by torch's rules of differentiation, or is refused in words.

    Methods of torchax's tensors are mended on the way: `data` is the tensor itself,
    `type_as` changes the tensor that it is called on, `flatten` hides a view.
    """
    home: Any = torch.autograd
    given, view = torchax.tensor.Tensor, torchax.view.View
    rules = _TorchRules(env, torchax)
    own: dict[tuple[Any, str], Any] = {
        (given, "__setitem__"): rules.writing(given.__setitem__),
        (view, "__setitem__"): rules.writing(view.__setitem__),
        (given, "detach"): rules.detaching(given.detach),
        (given, "data"): property(lambda self: self.detach(), _refuse_assigned),
        (given, "type_as"): lambda self, other: self.to(other.dtype),
        (given, "flatten"): lambda self, *dims, **named: torch.flatten(
            self, *dims, **named
        ),
        # `apply` asks this first, also where a module has kept `apply` itself.
        (home.function, "_is_setup_context_defined"): _custom,
        (home, "grad"): _inner("grad"),
        (home, "backward"): _inner("backward"),
    }
    real = {(where, name): vars(where)[name] for where, name in own}
    for (where, name), function in own.items():
        shared = where in (home, home.function)
        setattr(
            where, name, only_here(function, real[where, name]) if shared else function
        )
    try:
        with rules:
            yield
    except (
        jax.errors.JAXTypeError,
        jax.errors.NonConcreteBooleanIndexError,
    ) as error:
        raise TypeError(_VALUES) from error
    finally:
        for (where, name), function in real.items():
            setattr(where, name, function)


def _custom(setup_context: Any) -> bool:
    del setup_context
    function = sys._getframe(2).f_locals.get("cls")
    if function is torch.utils.checkpoint.CheckpointFunction:
        raise TypeError(
            "the module checkpoints by a function that it imported: call"
            " torch.utils.checkpoint.checkpoint(...) by its full name, which is"
            " jax.checkpoint here, or with use_reentrant=False. Nothing was spent."
        )
    raise TypeError(
        "the module has a derivative of its own"
        f" ({getattr(function, '__name__', 'unnamed')}, a"
        " torch.autograd.Function), which a private run would not use: write it by"
        " operations (x + (f(x) - x).detach() passes gradients straight through)."
        " Nothing was spent."
    )


def _inner(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **named: Any) -> Any:
        raise TypeError(
            f"the module calls torch.autograd.{name} itself, for which there is no"
            " graph of torch's here. Nothing was spent."
        )

    return refuse
