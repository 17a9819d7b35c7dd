"""Torch modules against torch's own clipping, one by one: the table of the docs.

    python -m tools.torch_table [--only WORD] [--write]

Each row is a module with random weights, run unmodified through `PrivateModule` and
`clipped_grad`, beside torch's derivatives of one example at a time, clipped and added
up. "Equal" is the relative distance of the two sums; what is refused is refused by
name. Hugging Face models are made from small configurations; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from demur.adapters.torch import PrivateModule
from demur.training import clipped_grad

CLIP, ROWS, CLASSES = 0.05, 3, 3
PAGE = Path(__file__).parents[1] / "docs" / "torch_modules.md"
# Where programs are as short as these, compiling takes all the time.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}

Rows = dict[str, Any]
Loss = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Row:
    """A module, inputs for it, and its loss."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator], Rows]
    loss: Loss
    refused: bool = False


class Through(nn.Module):
    """A layer, its output averaged down to a vector, and a linear head."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """The scores."""
        out = self.layer(x)
        out = out[0] if isinstance(out, tuple) else out
        if out.ndim > 2:
            out = out.flatten(2).mean(2) if out.ndim > 3 else out.mean(1)
        return self.head(out)


class Attended(nn.Module):
    """Self-attention with a mask of padding, batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        """The scores."""
        out, _ = self.attention(x, x, x, need_weights=False)
        return self.head(out.mean(1))


class Sdpa(nn.Module):
    """`scaled_dot_product_attention` with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        """The scores."""
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(out.transpose(1, 2).flatten(2).mean(1))


class Tied(nn.Module):
    """Input and output embedding are one matrix; a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.output = nn.Linear(8, 11, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("places", torch.arange(5))
        self.positions = nn.Embedding(5, 8)

    def forward(self, tokens: Any) -> Any:
        """The scores."""
        h = self.embedding(tokens) + self.positions(self.places)
        return self.output(torch.tanh(h)).mean(dim=1)


class Functional(nn.Module):
    """Batch normalisation that no layer shows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        """The scores."""
        return self.head(functional.batch_norm(x, None, None, training=True))


def vectors(rng: np.random.Generator) -> Rows:
    """Rows of six numbers."""
    return {"x": rng.normal(size=(ROWS, 6)).astype(np.float32)}


def series(rng: np.random.Generator) -> Rows:
    """Five steps of eight numbers."""
    return {"x": rng.normal(size=(ROWS, 5, 8)).astype(np.float32)}


def lines(rng: np.random.Generator) -> Rows:
    """Four channels of twelve numbers."""
    return {"x": rng.normal(size=(ROWS, 4, 12)).astype(np.float32)}


def images(rng: np.random.Generator) -> Rows:
    """Four channels of 6 x 6."""
    return {"x": rng.normal(size=(ROWS, 4, 6, 6)).astype(np.float32)}


def volumes(rng: np.random.Generator) -> Rows:
    """Two channels of 4 x 4 x 4."""
    return {"x": rng.normal(size=(ROWS, 2, 4, 4, 4)).astype(np.float32)}


def tokens(rng: np.random.Generator) -> Rows:
    """Five words of eleven, the last two padding."""
    drawn = rng.integers(1, 11, size=(ROWS, 5))
    drawn[:, 3:] = 0
    return {"x": drawn}


def plain(module: nn.Module, batch: Any) -> Any:
    """Cross entropy of the module's scores."""
    return functional.cross_entropy(module(batch["x"]), batch["y"])


def _layer(name: str, layer: Callable[[], nn.Module], inputs: Any, width: int) -> Row:
    return Row(name, lambda: Through(layer(), width), inputs, plain)


def _head(name: str, activation: Callable[[], nn.Module]) -> Row:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, CLASSES))

    return Row(name, make, vectors, plain)


LAYERS = [
    _head("Linear, ReLU", nn.ReLU),
    _head("GELU", nn.GELU),
    _head("SiLU", nn.SiLU),
    _head("PReLU", nn.PReLU),
    _head("LayerNorm", lambda: nn.LayerNorm(8)),
    _head("RMSNorm", lambda: nn.RMSNorm(8)),
    _layer("Bilinear", lambda: _Twice(), vectors, 5),
    _layer("Conv1d", lambda: nn.Conv1d(4, 6, 3), lines, 10),
    _layer("Conv2d", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), images, 6),
    _layer("Conv2d, groups", lambda: nn.Conv2d(4, 8, 3, groups=4), images, 8),
    _layer("Conv2d, dilated", lambda: nn.Conv2d(4, 6, 3, dilation=2), images, 6),
    _layer("Conv3d", lambda: nn.Conv3d(2, 4, 3), volumes, 4),
    _layer("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 3), images, 6),
    _layer(
        "ConvTranspose2d, groups",
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        images,
        6,
    ),
    _layer("GroupNorm", lambda: nn.GroupNorm(2, 4), images, 4),
    _layer("InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True), images, 4),
    _layer(
        "MaxPool2d, AvgPool2d",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(2), nn.AvgPool2d(2, 1)),
        images,
        4,
    ),
    _layer(
        "AdaptiveAvgPool2d",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1)),
        images,
        4,
    ),
    _layer(
        "BatchNorm2d in evaluation mode", lambda: nn.BatchNorm2d(4).eval(), images, 4
    ),
    _layer("Embedding", lambda: nn.Embedding(11, 8), tokens, 8),
    _layer(
        "Embedding with padding",
        lambda: nn.Embedding(11, 8, padding_idx=0),
        tokens,
        8,
    ),
    _layer("EmbeddingBag", lambda: nn.EmbeddingBag(11, 8, mode="mean"), tokens, 8),
    _layer("RNN", lambda: nn.RNN(8, 4, batch_first=True), series, 4),
    _layer("GRU", lambda: nn.GRU(8, 4, batch_first=True), series, 4),
    _layer("LSTM", lambda: nn.LSTM(8, 4, batch_first=True), series, 4),
    Row("MultiheadAttention", Attended, series, plain),
    Row("scaled_dot_product_attention", Sdpa, series, plain),
    _layer(
        "TransformerEncoderLayer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        series,
        8,
    ),
    Row("tied weights, buffers", Tied, tokens, plain),
    _layer(
        "weight_norm",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)),
        vectors,
        5,
    ),
]


class _Twice(nn.Module):
    """A bilinear layer of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(6, 6, 5)

    def forward(self, x: Any) -> Any:
        """The scores."""
        return self.both(x, x)


def _refused(name: str, layer: Callable[[], nn.Module], inputs: Any) -> Row:
    return Row(name, lambda: layer().train(), inputs, plain, refused=True)


REFUSED = [
    _refused("BatchNorm1d", lambda: Through(nn.BatchNorm1d(6), 6), vectors),
    _refused("BatchNorm2d", lambda: Through(nn.BatchNorm2d(4), 4), images),
    _refused("SyncBatchNorm", lambda: Through(nn.SyncBatchNorm(4), 4), images),
    _refused("functional.batch_norm", Functional, vectors),
    _refused(
        "InstanceNorm2d with running statistics",
        lambda: Through(nn.InstanceNorm2d(4, track_running_stats=True), 4),
        images,
    ),
    _refused(
        "Embedding with max_norm",
        lambda: Through(nn.Embedding(11, 8, max_norm=1.0), 8),
        tokens,
    ),
    _refused(
        "Embedding with scale_grad_by_freq",
        lambda: Through(nn.Embedding(11, 8, scale_grad_by_freq=True), 8),
        tokens,
    ),
    _refused("LazyLinear", lambda: nn.LazyLinear(CLASSES), vectors),
]


MODELS = (
    "BERT, eager attention",
    "BERT, SDPA",
    "DistilBERT",
    "RoBERTa",
    "GPT-2, next words, tied",
    "LLaMA, next words",
    "Mistral, sliding window",
    "T5, sequence to sequence",
    "ViT",
)


def hugging_face() -> list[Row]:
    """Models of transformers, which is an extra, from small configurations."""
    t = import_module("transformers")  # here: it takes seconds

    def words(rng: np.random.Generator) -> Rows:
        ids = rng.integers(3, 30, size=(ROWS, 6))
        mask = (np.arange(6) < rng.integers(3, 7, ROWS)[:, None]).astype(np.int64)
        return {"input_ids": np.where(mask, ids, 1), "attention_mask": mask}

    def pictures(rng: np.random.Generator) -> Rows:
        return {"pixel_values": rng.normal(size=(ROWS, 3, 8, 8)).astype(np.float32)}

    def scored(module: nn.Module, batch: Any) -> Any:
        inputs = {name: rows for name, rows in batch.items() if name != "y"}
        return functional.cross_entropy(module(**inputs).logits, batch["y"])

    def sequences(module: nn.Module, batch: Any) -> Any:
        """The mean over the tokens of each example: a mean over examples."""
        inputs = {name: rows for name, rows in batch.items() if name != "y"}
        scores = module(**inputs, decoder_input_ids=batch["input_ids"]).logits
        wanted = batch["input_ids"].long()
        return functional.cross_entropy(scores.transpose(1, 2), wanted)

    def following(module: nn.Module, batch: Any) -> Any:
        scores = module(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits
        wanted = batch["input_ids"][:, 1:].long()
        return functional.cross_entropy(scores[:, :-1].transpose(1, 2), wanted)

    none = {"attn_implementation": "eager"}
    small = {"vocab_size": 30, "num_labels": CLASSES}
    bert = small | {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
    }
    llama = bert | {"num_key_value_heads": 1, "pad_token_id": 1}
    sizes = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    gpt2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    t5 = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    vit = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 8,
        "patch_size": 4,
        "num_labels": CLASSES,
    }

    def row(name: str, kind: Any, config: Any, inputs: Any, loss: Loss) -> Row:
        return Row(name, lambda: kind(config), inputs, loss)

    return [
        row(
            "BERT, eager attention",
            t.BertForSequenceClassification,
            t.BertConfig(**bert, **none),
            words,
            scored,
        ),
        row(
            "BERT, SDPA",
            t.BertForSequenceClassification,
            t.BertConfig(**bert, attn_implementation="sdpa"),
            words,
            scored,
        ),
        row(
            "DistilBERT",
            t.DistilBertForSequenceClassification,
            t.DistilBertConfig(**small, **sizes, max_position_embeddings=16),
            words,
            scored,
        ),
        row(
            "RoBERTa",
            t.RobertaForSequenceClassification,
            t.RobertaConfig(**bert, pad_token_id=1),
            words,
            scored,
        ),
        row(
            "GPT-2, next words, tied",
            t.GPT2LMHeadModel,
            t.GPT2Config(vocab_size=30, **gpt2, bos_token_id=0, eos_token_id=0),
            words,
            following,
        ),
        row(
            "LLaMA, next words",
            t.LlamaForCausalLM,
            t.LlamaConfig(**llama),
            words,
            following,
        ),
        row(
            "Mistral, sliding window",
            t.MistralForCausalLM,
            t.MistralConfig(**llama, sliding_window=3),
            words,
            following,
        ),
        row(
            "T5, sequence to sequence",
            t.T5ForConditionalGeneration,
            t.T5Config(vocab_size=30, **t5, decoder_start_token_id=0),
            words,
            sequences,
        ),
        row(
            "ViT",
            t.ViTForImageClassification,
            t.ViTConfig(**vit),
            pictures,
            scored,
        ),
    ]


def made(row: Row) -> tuple[nn.Module, Rows]:
    """The module of a row, and a batch for it."""
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    batch = row.inputs(rng) | {"y": rng.integers(0, CLASSES, size=ROWS)}
    module = row.make()
    return (module if row.refused else module.eval()), batch


def clipped_by_torch(
    module: nn.Module, batch: Rows, loss: Loss
) -> dict[str, np.ndarray]:
    """Example by example, by torch's own derivatives, in float64."""
    total = {n: np.zeros(p.shape) for n, p in module.named_parameters()}
    for i in range(len(batch["y"])):
        row = {name: torch.tensor(rows[i : i + 1]) for name, rows in batch.items()}
        module.zero_grad()
        loss(module, row).backward()
        grads = {
            name: np.zeros(p.shape) if p.grad is None else p.grad.double().numpy()
            for name, p in module.named_parameters()
        }
        length = np.sqrt(sum((g**2).sum() for g in grads.values()))
        for name, g in grads.items():
            total[name] += g * min(1.0, CLIP / length)
    return total


def clipped_by_demur(
    module: nn.Module, batch: Rows, loss: Loss
) -> dict[str, np.ndarray]:
    """The same sum by `clipped_grad`."""
    private = PrivateModule(module, loss)
    clipped = clipped_grad(private.loss, l2_clip_norm=CLIP)
    run = jax.jit(clipped, compiler_options=QUICK)
    found = run(private.params, jax.tree.map(jnp.asarray, batch)).value
    return {name: np.asarray(leaf, np.float64) for name, leaf in found.items()}


def distance(row: Row) -> float:
    """How far the two sums are apart, relative to their length."""
    module, batch = made(row)
    found = clipped_by_demur(module, batch, row.loss)
    wanted = clipped_by_torch(module, batch, row.loss)
    assert found.keys() == wanted.keys()
    apart = sum(((found[n] - w) ** 2).sum() for n, w in wanted.items())
    return float(np.sqrt(apart / sum((w**2).sum() for w in wanted.values())))


def refusal(row: Row) -> str:
    """What a module that must not run is told."""
    module, batch = made(row)
    try:
        clipped_by_demur(module, batch, row.loss)
    except TypeError as error:
        return str(error)
    raise AssertionError(f"{row.name} was not refused")


def line(row: Row) -> str:
    """The row of the table."""
    if row.refused:
        told = refusal(row).removesuffix(" Nothing was spent.")
        return f"| {row.name} | refused: {told} |"
    return f"| {row.name} | equal to {distance(row):.0e} |"


def main() -> None:
    """Print the table, and put it into the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    lines_ = ["| module | clipped sums |", "|---|---|"]
    for row in [*LAYERS, *hugging_face(), *REFUSED]:
        if asked.only.lower() in row.name.lower():
            try:
                lines_.append(line(row))
            except Exception as error:
                lines_.append(
                    f"| {row.name} | FAILED {type(error).__name__}: {error} |"
                )
            print(lines_[-1][:300], flush=True)
    if asked.write:
        page = PAGE.read_text()
        table = "\n".join(lines_)
        marks = r"(<!-- table -->\n).*?(\n<!-- end -->)"
        PAGE.write_text(re.sub(marks, rf"\g<1>{table}\g<2>", page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
