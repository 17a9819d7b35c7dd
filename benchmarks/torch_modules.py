"""A Hugging Face encoder in a clipped gradient, against its ordinary gradient.

    python benchmarks/torch_modules.py [--batch 1024] [--positions 64]
        [--attention eager | sdpa]

The module is a BertModel of MiniLM's shape with random weights and a linear head, built
from its configuration: nothing is downloaded. It needs transformers, torch and torchax.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from demur.adapters.torch import PrivateModule
from demur.training import clipped_grad

try:
    import transformers
except ImportError:
    transformers = None

CLIP = 0.1


class Classifier(nn.Module):
    """The mean of the last layer over the words, and a linear head."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        shape = transformers.BertConfig(
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            attn_implementation=attention,
        )
        self.bert = transformers.BertModel(shape, add_pooling_layer=False)
        self.head = nn.Linear(384, 2)

    def forward(self, tokens: Any, mask: Any) -> Any:
        words = self.bert(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(words.dtype)
        return self.head((words * weights).sum(1) / weights.sum(1))


def loss(module: nn.Module, batch: Any) -> Any:
    scores = module(batch["tokens"], batch["mask"])
    return nn.functional.cross_entropy(scores, batch["label"])


def rows(count: int, positions: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, positions + 1, count)
    mask = np.arange(positions) < lengths[:, None]
    return {
        "tokens": np.where(mask, rng.integers(1000, 30_000, mask.shape), 0),
        "mask": mask.astype(np.int32),
        "label": rng.integers(0, 2, count),
    }


def against_torch(module: nn.Module) -> float:
    """The relative distance to torch's own gradients, clipped one by one."""
    batch = rows(4, 16)
    private = PrivateModule(module, loss)
    with jax.default_matmul_precision("highest"):
        clipped = jax.jit(clipped_grad(private.loss, l2_clip_norm=CLIP))
        found = clipped(private.params, jax.tree.map(jnp.asarray, batch)).value
    wanted = {name: np.zeros(p.shape) for name, p in module.named_parameters()}
    for i in range(4):
        module.zero_grad()
        row = {name: torch.tensor(column[i : i + 1]) for name, column in batch.items()}
        loss(module, row).backward()
        grads = {n: p.grad.double().numpy() for n, p in module.named_parameters()}
        length = np.sqrt(sum((g**2).sum() for g in grads.values()))
        for name, g in grads.items():
            wanted[name] += g * min(1.0, CLIP / length)
    off = sum(((np.asarray(found[n], float) - w) ** 2).sum() for n, w in wanted.items())
    return float(np.sqrt(off / sum((w**2).sum() for w in wanted.values())))


def measure(function: Callable[..., Any], *args: Any) -> tuple[float, float, float]:
    """Seconds of the first call, milliseconds of a later one, GiB of temporaries."""
    jitted = jax.jit(function)
    start = time.perf_counter()
    program = jitted.lower(*args).compile()
    jax.block_until_ready(program(*args))
    first, laps = time.perf_counter() - start, []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        laps.append(time.perf_counter() - start)
    memory = program.memory_analysis().temp_size_in_bytes / 2**30
    return first, 1e3 * float(np.median(laps)), memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--attention", default="eager", choices=["eager", "sdpa"])
    asked = parser.parse_args()
    if transformers is None:
        print("transformers is not installed: nothing is measured")
        return
    versions = {m.__name__: m.__version__ for m in (jax, torch, transformers)}
    print(jax.devices()[0].device_kind, versions, flush=True)
    torch.manual_seed(0)
    module = Classifier(asked.attention).eval()
    print(f"relative distance to torch: {against_torch(module):.1e}", flush=True)
    print("| trained | gradient | first call, s | ms | times | GiB |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    batch = jax.tree.map(jnp.asarray, rows(asked.batch, asked.positions))
    for train in ("all", "lora", "bias"):
        private = PrivateModule(
            module, loss, trainable=train, rank=16, targets="*attention*.weight"
        )
        of_part = private.loss

        def ordinary(
            params: Any, frozen: Any, batch: Any, of_part: Any = of_part
        ) -> Any:
            return jax.grad(of_part.at(frozen))(params, batch)

        def clipped(
            params: Any, frozen: Any, batch: Any, of_part: Any = of_part
        ) -> Any:
            grad = clipped_grad(of_part.at(frozen), l2_clip_norm=CLIP)
            return grad(params, batch).value

        base = None
        for name, function in (("ordinary", ordinary), ("clipped", clipped)):
            first, ms, memory = measure(function, private.params, of_part.frozen, batch)
            base = ms if base is None else base
            print(
                f"| {train} | {name} | {first:.1f} | {ms:.1f} | {ms / base:.2f} |"
                f" {memory:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
