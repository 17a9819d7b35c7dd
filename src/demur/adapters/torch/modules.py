"""Torch modules as losses for `demur.training.fit`, and back.

torchax runs the module's own code on JAX arrays. So clipping, noise and accounting are
those of any other run, and nothing about the module has to be rewritten:

    private = PrivateModule(module, loss, trainable="lora")
    trained = fit(plan, private, data, optimizer=optimizer, ledger=ledger)
    module = private.to_module(trained)
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from demur.adapters.torch.derivatives import (
    differentiated_as_by_torch,
    refuse_hooks,
)
from demur.adapters.torch.operators import operators_of_torch
from demur.adapters.torch.refusals import (
    batch_norm_refused,
    changed_buffers_refused,
    copied,
    counters_refused,
    refuse_mixing,
    refuse_wide,
    unkeyed_draws_refused,
)
from demur.adapters.torch.rematerialisation import checkpoints_by_jax, use_in
from demur.adapters.torch.torchax_import import load_torchax
from demur.core.release import Release
from demur.training.clipping.frozen_losses import FrozenLoss
from demur.training.finetuning import ModelPart, Trainable, lora, select
from demur.training.finetuning.parts import Choice, chosen

_DRAWS = (
    "the module draws random numbers (dropout): pass random=True, and every example has"
    " a key of its own, or call .eval() on it. Nothing was spent."
)
# Examples are compared without randomness, to see that they do not interact.
_ALWAYS = (
    "the module draws random numbers in evaluation mode, too (F.dropout with"
    " training=True): write training=self.training, or draw only if self.training."
    " Nothing was spent."
)
# torch's functions are ours as long as a module runs: one module at a time.
_RUNNING = threading.RLock()
TorchLoss = Callable[[nn.Module, Any], Any]


class PrivateModule(Trainable):
    """A module, its loss, and which of its parameters are trained.

    `loss(module, batch)` is written in torch and gives a scalar, the mean or sum over
    the examples of `batch`, whose structure is that of the data.

    - `trainable` is "all" (what requires a gradient), "lora", "bias", a pattern of
      names, a function of name and array, or several of these. "lora" has matrices of
      rank `rank`, scaled by `alpha` / rank, beside those that `targets` selects, and
      trains what `also` selects (a new head) as it is.
    - `random` says whether the module draws numbers where its layers do not show it. A
      module in training mode has its dropout, with a key for each example.
    - `precision` (torch.bfloat16) computes in it; parameters, clipping and noise stay
      in their own.

    The module is copied as it is now, and is not changed.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: TorchLoss,
        *,
        trainable: Choice = "all",
        rank: int = 8,
        alpha: float | None = None,
        targets: Choice = "*.weight",
        also: Choice | None = None,
        random: bool | None = None,
        precision: torch.dtype | None = None,
    ) -> None:
        module = getattr(module, "_orig_mod", module)
        _check_arguments(module, loss, trainable)
        refuse_hooks(module)  # a copy has no hooks of parameters
        module = copied(module)
        refuse_mixing(module)
        self._torchax: Any = load_torchax()
        self._env = self._torchax.default_env()
        self._module = module
        self._whole = _Whole(_with_plain_lookups(module), loss)
        requires = {name for name, p in module.named_parameters() if p.requires_grad}
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        refuse_wide(state)
        with torch.no_grad():
            arrays = self._env.t2j_copy(state)
        names = {name for name, _ in module.named_parameters()}
        trainable, targets, also = (
            _of_parameters(choice, names) for choice in (trainable, targets, also)
        )
        self.part = _part(arrays, requires, trainable, rank, alpha, targets, also)
        self._random = _draws(module) if random is None else bool(random)
        self._still = self._whole
        if self._random:
            self._still = _Whole(_with_plain_lookups(module), loss).eval()
        self._precision = _precision(precision)

    @property
    def params(self) -> dict[str, Any]:
        """What is trained, by name, as JAX arrays."""
        return self.part.params

    @property
    def loss(self) -> FrozenLoss:
        """The loss of `params` and a batch, for `fit` and `clipped_grad`."""
        return self.part.loss(
            partial(self._call, self._whole),
            takes_key=self._random,
            still=partial(self._call, self._still) if self._random else None,
        )

    def _call(
        self, whole: nn.Module, state: Mapping[str, Any], batch: Any, key: Any = None
    ) -> Any:
        env = self._env
        if self._precision is not None:
            state, batch = jax.tree.map(self._narrowed, (dict(state), batch))
        tensors = env.j2t_iso({f"module.{name}": v for name, v in state.items()})
        rows = env.j2t_iso(batch)
        given = jax.random.key(0) if key is None else key
        with self._running(), env.override_property(prng=given):
            value = torch.func.functional_call(whole, tensors, (rows,))
            if key is None and env.prng_key is not given:
                raise TypeError(_ALWAYS if self._random else _DRAWS)
        if not isinstance(value, tuple) and getattr(value, "ndim", None) != 0:
            raise TypeError(_not_a_scalar(value))
        found = env.t2j_iso(value)
        return found if self._precision is None else jax.tree.map(_widened, found)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """torch's functions work on JAX arrays; what torchax lacks is named."""
        try:
            with (
                _RUNNING,
                unkeyed_draws_refused(),  # outside, where torch's own tensors are
                self._env,
                operators_of_torch(self._env),
                differentiated_as_by_torch(self._env, self._torchax),
                batch_norm_refused(),
                checkpoints_by_jax(self._env),
                warnings.catch_warnings(),
            ):
                # torch's indices are int64; JAX narrows them, and says so each time.
                warnings.filterwarnings("ignore", "Explicitly requested dtype")
                yield
        except self._torchax.tensor.OperatorNotFound as error:
            raise TypeError(
                f"the module uses an operation that torchax does not have ({error})."
                " Write that layer by other operations. Nothing was spent."
            ) from error

    def _narrowed(self, leaf: Any) -> Any:
        floats = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return leaf.astype(self._precision) if floats else leaf

    def to_module(self, trained: Mapping[str, Any] | Release[Any]) -> nn.Module:
        """A copy of the module with the trained parameters, in its own dtypes.

        `trained` is what `fit` returned, or parameters of a run (its average). LoRA's
        matrices are added to those that they belong to: the `state_dict` loads wherever
        the module came from.
        """
        found = trained.value if isinstance(trained, Release) else trained
        merged = self.part.merge(found)
        module = copy.deepcopy(self._module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name in self.part.names:  # all others stay as they are, bit for bit
                values = np.asarray(merged[name])
                if values.dtype.kind == "V":  # bfloat16, which torch cannot read
                    values = values.astype(np.float32)
                parameters[name].copy_(torch.tensor(values))
        return module


def _widened(leaf: Any) -> Any:
    floats = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return leaf.astype(jnp.float32) if floats else leaf


class _Whole(nn.Module):
    """The loss as a module, so that parameters can be handed in by name."""

    def __init__(self, module: nn.Module, loss: TorchLoss) -> None:
        super().__init__()
        self.module, self._loss = module, loss
        self._changed: set[str] = set()

    def forward(self, batch: Any) -> Any:
        with changed_buffers_refused(self), counters_refused(self, self._changed):
            return self._loss(self.module, batch)


def _with_plain_lookups(module: nn.Module) -> nn.Module:
    """A copy in which look-ups with a padding row are ordinary ones.

    torchax gives them a derivative rule of their own, behind which clipping sees no
    look-up: every example would have a gradient of the whole table. A row that is
    detached where it is padding has the same values and the same derivatives. Bags of
    rows, which it does not trace, are look-ups and a sum.
    """
    tensors = (*module.parameters(), *module.buffers())
    # Parameters are handed in by name: no copy of them is ever read.
    module = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    use_in(module)
    for layer in module.modules():
        if _is_plain_lookup(layer) and layer.padding_idx is not None:
            layer.forward = partial(_look_up, layer)
        if _is_plain_bag(layer):
            layer.forward = partial(_bag, layer)
    return module


def _is_plain_lookup(layer: nn.Module) -> TypeGuard[nn.Embedding]:
    """A look-up that runs torch's own code: others scale their rows, say."""
    own = type(layer).forward is nn.Embedding.forward
    return isinstance(layer, nn.Embedding) and own and "forward" not in vars(layer)


def _is_plain_bag(layer: nn.Module) -> TypeGuard[nn.EmbeddingBag]:
    own = type(layer).forward is nn.EmbeddingBag.forward
    return isinstance(layer, nn.EmbeddingBag) and own and "forward" not in vars(layer)


def _bag(
    layer: nn.EmbeddingBag,
    input: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    if offsets is not None or input.ndim != 2:
        raise TypeError(
            "EmbeddingBag with offsets has the words of all examples in one row: pass"
            " a row of words for each example, padded to one length with a"
            " padding_idx. Nothing was spent."
        )
    rows = nn.functional.embedding(input, layer.weight)
    counted = torch.ones_like(input)
    if layer.padding_idx is not None:
        counted = input != layer.padding_idx
    weights = counted.unsqueeze(-1).to(rows.dtype)
    if per_sample_weights is not None:
        weights = weights * per_sample_weights.unsqueeze(-1)
    if layer.mode == "max":
        largest = torch.where(weights > 0, rows, -torch.inf).amax(dim=1)
        return torch.where(weights.sum(dim=1) > 0, largest, 0.0)
    total = (rows * weights).sum(dim=1)
    return total if layer.mode == "sum" else total / weights.sum(dim=1).clamp(min=1.0)


def _look_up(layer: nn.Embedding, indices: torch.Tensor) -> torch.Tensor:
    rows = nn.functional.embedding(indices, layer.weight)
    is_padding = (indices == layer.padding_idx).unsqueeze(-1)
    return torch.where(is_padding, rows.detach(), rows)


class _OfParameters:
    """A choice that takes parameters alone: a buffer is not trained."""

    def __init__(self, choice: Choice, names: set[str]) -> None:
        self._choice, self._names = choice, names

    def __call__(self, name: str, leaf: Any) -> bool:
        return name in self._names and chosen([name], [leaf], self._choice)[0]

    def __repr__(self) -> str:
        return repr(self._choice)


def _of_parameters(choice: Any, names: set[str]) -> Any:
    if choice is None or choice in ("all", "lora"):
        return choice
    if isinstance(choice, str) or callable(choice):
        return _OfParameters("*bias" if choice == "bias" else choice, names)
    return [_of_parameters(one, names) for one in choice]


def _check_arguments(module: Any, loss: Any, trainable: Any) -> None:
    if not isinstance(module, nn.Module):
        kind = module.__name__ if isinstance(module, type) else type(module).__name__
        raise TypeError(
            "module must be a torch.nn.Module, an object and not its class; got"
            f" {kind}. Nothing was spent."
        )
    if not callable(loss):
        raise TypeError(
            "loss must be a function of module and batch, written in torch; got a"
            f" {type(loss).__name__}. Nothing was spent."
        )
    if not (callable(trainable) or isinstance(trainable, Iterable)):
        raise TypeError(
            'trainable must be "all", "lora", "bias", a pattern of names, a function or'
            f" several of these; got {trainable!r}. Nothing was spent."
        )


def _not_a_scalar(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return (
            f"the loss must be a scalar; got one of shape {tuple(value.shape)}: end"
            " with .mean(), over the examples. Nothing was spent."
        )
    return (
        f"the loss must return a scalar; got a {type(value).__name__}. Of a Hugging"
        " Face output that is .loss. Nothing was spent."
    )


def _part(
    arrays: dict[str, Any],
    requires: set[str],
    trainable: Choice,
    rank: int,
    alpha: float | None,
    targets: Choice,
    also: Choice | None,
) -> ModelPart:
    if trainable == "lora":
        return lora(arrays, rank=rank, alpha=alpha, targets=targets, also=also)
    if trainable == "all":
        if not requires:
            raise ValueError(
                "no parameter of the module requires a gradient: call"
                " .requires_grad_() on those to train, or name them by trainable=..."
            )
        return select(arrays, lambda name, _: name in requires)
    choices = (trainable,) if also is None else (trainable, also)
    return select(arrays, *choices)


def _precision(asked: torch.dtype | None) -> Any:
    known = {None: None, torch.bfloat16: jnp.bfloat16, torch.float16: jnp.float16}
    if asked not in known:
        raise TypeError(
            f"precision must be torch.bfloat16, torch.float16 or None; got {asked!r}."
            " Nothing was spent."
        )
    return known[asked]


def _draws(module: nn.Module) -> bool:
    """Whether the module draws numbers when it is called."""

    def drops(layer: nn.Module) -> bool:
        rates = (getattr(layer, name, 0.0) for name in ("p", "dropout", "drop_prob"))
        found = any(isinstance(rate, float) and rate > 0.0 for rate in rates)
        return layer.training and found

    return any(drops(layer) for layer in module.modules())
