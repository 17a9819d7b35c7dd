"""Sums of clipped gradients: demur against an ordinary gradient and other libraries.

    python benchmarks/clipping.py [--case mlp cnn gpt-128x128 ...] [--rounds 20]
    python benchmarks/clipping.py --case zoo --size full --results zoo.jsonl --until 540

One script for a CPU and a GPU. Every figure is the median of rounds in which the
methods take turns, in one run; "times" is against the ordinary gradient of the summed
loss, which is not private. Temp memory is XLA's own figure for the compiled program
(torch: the peak above what was allocated before). jax-privacy runs at several micro-
batch sizes (read the best); Opacus with hooks and with ghost clipping, if installed.
--largest finds the largest batch of the transformer that fits the GPU.

The zoo (clipping_parts/zoo.py) has twelve networks in two sizes. With --results, lines
are added to a file as soon as they are known: one for each program that is compiled,
one for each network that is measured. What is in the file is not measured again, and
after --until seconds nothing new begins. So a run in pieces is one command, given
several times. --threads compiles that many programs at a time, all of them before
anything is measured; --peers last leaves the peers to the end, --peers no out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demur.training import clipped_grad
from demur.training.clipping import norms
from demur.training.clipping.ghost import layers as ghost_layers
from demur.training.clipping.ghost import routes

sys.path.insert(0, str(Path(__file__).parent / "clipping_parts"))
from zoo import ZOO, Case, build, cross_entropy

CLIP = 1.0


def normal(rng: np.random.Generator, *shape: int, scale: float, dtype: Any) -> Any:
    return jnp.asarray(rng.normal(scale=scale, size=shape), dtype)


def dense(rng: np.random.Generator, rows: int, columns: int, dtype: Any) -> Any:
    return normal(rng, rows, columns, scale=rows**-0.5, dtype=dtype)


def mlp(batch: int) -> Case:
    rng = np.random.default_rng(1)
    sizes = [784, 1024, 1024, 10]
    params = [
        {"w": dense(rng, a, b, jnp.float32), "b": jnp.zeros(b)}
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return cross_entropy(x @ params[-1]["w"] + params[-1]["b"], y)

    x = normal(rng, batch, 784, scale=1.0, dtype=jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, batch))
    sizes_tried = (None, 8, 64) if batch <= 1024 else (512, 2048)

    def torch_model() -> Any:
        nn = import_module("torch.nn")
        return nn.Sequential(
            nn.Linear(784, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, 10),
        )

    return Case(f"mlp, batch {batch}", params, loss, (x, y), sizes_tried, torch_model)


def cnn(batch: int) -> Case:
    rng = np.random.default_rng(2)

    def kernel(size: int, inputs: int, outputs: int) -> Any:
        scale = (size * size * inputs) ** -0.5
        return normal(rng, size, size, inputs, outputs, scale=scale, dtype=jnp.float32)

    params = {
        "k1": kernel(8, 1, 16),
        "b1": jnp.zeros(16),
        "k2": kernel(4, 16, 32),
        "b2": jnp.zeros(32),
        "w3": dense(rng, 512, 32, jnp.float32),
        "b3": jnp.zeros(32),
        "w4": dense(rng, 32, 10, jnp.float32),
        "b4": jnp.zeros(10),
    }

    def conv(x: Any, k: Any, pad: int) -> Any:
        return jax.lax.conv_general_dilated(
            x, k, (2, 2), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def pool(x: Any) -> Any:
        window = (1, 2, 2, 1)
        return jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, window, (1, 1, 1, 1), "VALID"
        )

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = pool(jnp.tanh(conv(x, params["k1"], 3) + params["b1"]))
        h = pool(jnp.tanh(conv(h, params["k2"], 0) + params["b2"]))
        h = h.reshape(h.shape[0], -1)
        h = jnp.tanh(h @ params["w3"] + params["b3"])
        return cross_entropy(h @ params["w4"] + params["b4"], y)

    x = normal(rng, batch, 28, 28, 1, scale=1.0, dtype=jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, batch))

    def torch_model() -> Any:
        nn = import_module("torch.nn")
        return nn.Sequential(
            nn.Unflatten(1, (1, 28)),
            nn.Conv2d(1, 16, 8, 2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.Tanh(),
            nn.Linear(32, 10),
        )

    tried = (None, 64) if batch <= 1024 else (2048, None)
    return Case(f"cnn, batch {batch}", params, loss, (x, y), tried, torch_model)


# Width, layers, heads, words; "7b": the width of such a model, 4 of its 32 layers.
GPT = {
    "small": (128, 2, 4, 1000),
    "gpt2": (768, 12, 12, 50257),
    "7b": (4096, 4, 32, 32000),
}


def gpt(batch: int, tokens: int, size: str = "gpt2") -> Case:
    """A transformer in the manner of GPT-2 with an untied head, in bfloat16."""
    rng = np.random.default_rng(3)
    width, depth, heads, words = GPT[size]
    dtype = jnp.bfloat16

    def block() -> dict[str, Any]:
        return {
            "norm1": jnp.ones(width, dtype),
            "shift1": jnp.zeros(width, dtype),
            "qkv": dense(rng, width, 3 * width, dtype),
            "qkv_b": jnp.zeros(3 * width, dtype),
            "out": dense(rng, width, width, dtype),
            "out_b": jnp.zeros(width, dtype),
            "norm2": jnp.ones(width, dtype),
            "shift2": jnp.zeros(width, dtype),
            "up": dense(rng, width, 4 * width, dtype),
            "up_b": jnp.zeros(4 * width, dtype),
            "down": dense(rng, 4 * width, width, dtype),
            "down_b": jnp.zeros(width, dtype),
        }

    params = {
        "words": normal(rng, words, width, scale=0.02, dtype=dtype),
        "places": normal(rng, 1024, width, scale=0.02, dtype=dtype),
        "blocks": [block() for _ in range(depth)],
        "norm": jnp.ones(width, dtype),
        "shift": jnp.zeros(width, dtype),
        "head": dense(rng, width, words, dtype),
    }

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide - wide.mean(-1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return wide.astype(dtype) * scale + shift

    def attention(x: Any, p: Any) -> Any:
        n, t, _ = x.shape
        qkv = (x @ p["qkv"] + p["qkv_b"]).reshape(n, t, 3, heads, width // heads)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("nthd,nshd->nhts", q, k).astype(jnp.float32)
        causal = jnp.tril(jnp.ones((t, t), bool))
        scores = jnp.where(causal, scores * (width // heads) ** -0.5, -1e30)
        weights = jax.nn.softmax(scores).astype(dtype)
        mixed = jnp.einsum("nhts,nshd->nthd", weights, v).reshape(n, t, width)
        return mixed @ p["out"] + p["out_b"]

    def loss(params: Any, ids: Any, targets: Any) -> Any:
        x = params["words"][ids] + params["places"][: ids.shape[1]]
        for p in params["blocks"]:
            x = x + attention(norm(x, p["norm1"], p["shift1"]), p)
            h = norm(x, p["norm2"], p["shift2"])
            x = x + jax.nn.gelu(h @ p["up"] + p["up_b"]) @ p["down"] + p["down_b"]
        return cross_entropy(
            norm(x, params["norm"], params["shift"]) @ params["head"], targets
        )

    ids = jnp.asarray(rng.integers(0, words, (batch, tokens)))
    targets = jnp.asarray(rng.integers(0, words, (batch, tokens)))
    tried = {"small": (None, 4), "gpt2": (16,), "7b": (1,)}[size]
    return Case(
        f"{size} shape, {batch} x {tokens}", params, loss, (ids, targets), tried
    )


def stack(batch: int, tokens: int, width: int, layers: int, dtype: Any) -> Case:
    """Gated blocks and attention, scanned over the layers and rematerialised."""
    rng = np.random.default_rng(4)
    words, inner, heads = 32000 if width > 256 else 512, 8 * width // 3, width // 64

    def stacked(rows: int, columns: int) -> Any:
        shape = (layers, rows, columns)
        return normal(rng, *shape, scale=rows**-0.5, dtype=dtype)

    params = {
        "words": normal(rng, words, width, scale=1.0, dtype=dtype),
        "head": dense(rng, width, words, dtype),
        "layers": {name: stacked(width, width) for name in "qkvo"}
        | {name: stacked(width, inner) for name in ("gate", "up")}
        | {"down": stacked(inner, width)}
        | {name: jnp.ones((layers, width), dtype) for name in ("norm1", "norm2")},
    }

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        size = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return (wide * size).astype(x.dtype) * scale

    def block(x: Any, p: Any) -> tuple[Any, None]:
        h = norm(x, p["norm1"])
        q, k, v = (
            (h @ p[name]).reshape(*h.shape[:2], heads, width // heads) for name in "qkv"
        )
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(x.shape) @ p["o"]
        h = norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    def loss(params: Any, ids: Any) -> Any:
        x = params["words"][ids]
        x, _ = jax.lax.scan(jax.checkpoint(block), x, params["layers"])
        return cross_entropy((norm(x, 1.0) @ params["head"])[:, :-1], ids[:, 1:])

    ids = jnp.asarray(rng.integers(0, words, (batch, tokens)))
    name = f"stack of {layers} x {width}, rematerialised, {batch} x {tokens}"
    return Case(name, params, loss, (ids,), (16,))


CASES: dict[str, Callable[[], Case]] = {
    "stack-small": lambda: stack(16, 64, 128, 8, jnp.float32),
    "stack": lambda: stack(64, 256, 1024, 24, jnp.bfloat16),
    "mlp": lambda: mlp(1024),
    "cnn": lambda: cnn(256),
    "gpt-small": lambda: gpt(8, 64, "small"),
    "mlp-8192": lambda: mlp(8192),
    "cnn-1024": lambda: cnn(1024),
    "cnn-8192": lambda: cnn(8192),
    "gpt-256x64": lambda: gpt(256, 64),
    "gpt-128x128": lambda: gpt(128, 128),
    "gpt-32x512": lambda: gpt(32, 512),
    "7b-16x512": lambda: gpt(16, 512, "7b"),
    "7b-8x1024": lambda: gpt(8, 1024, "7b"),
}
ON_CPU = ("mlp", "cnn", "gpt-small", "stack-small")
ON_GPU = (
    "stack",
    "mlp",
    "mlp-8192",
    "cnn-1024",
    "cnn-8192",
    "gpt-128x128",
    "gpt-32x512",
)


def ordinary(case: Case) -> Callable[..., Any]:
    """The gradient of the summed loss, for the same function of the same batch."""
    count = case.batch[0].shape[0]
    return jax.grad(lambda params, *rest: count * case.loss(params, *rest))


def batch_numbers(case: Case) -> tuple[int, ...]:
    return tuple(range(1, 1 + len(case.batch)))


def ours(case: Case, **more: Any) -> Callable[..., Any]:
    grad = clipped_grad(
        case.loss, l2_clip_norm=CLIP, batch_argnums=batch_numbers(case), **more
    )
    return lambda params, *batch: grad(params, *batch).value


# -- other rules, to be measured: nothing here is part of the library ------------------


def _kernels_formed(way: Any) -> bool:
    """Every kernel that is smaller than its patches by the convolution's own rule."""
    if type(way.layer).__name__ != "Convolution" or way.place.loops:
        return False
    positions, inputs, outputs = ghost_layers.form_of(way.layer, ())
    return inputs * outputs <= 2 * positions * (inputs + outputs)


def _more_formed(positions: int, left: int, right: int, *_: Any) -> str:
    """Gradients are formed where they have up to four times the factors' numbers."""
    if positions == 1:
        return "one position"
    gram = 0 < 4 * positions * (left + right) <= left * right
    return "Gram" if gram else "instantiated"


def _in_three_products(first: Any, second: Any) -> Any:
    """Inner products of float32 by three products of TensorFloat-32.

    x = h + l, h with 10 bits of fraction, and x y = h h' + h l' + l h' up to 2^-20.
    """
    if first.dtype != jnp.float32:
        return INNER(first, second)

    def upper(x: Any) -> Any:
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        return jax.lax.bitcast_convert_type(bits & np.uint32(0xFFFFE000), jnp.float32)

    def times(a: Any, b: Any) -> Any:
        return jnp.einsum("bsti,bsri->bstr", a, b, precision=jax.lax.Precision.DEFAULT)

    h, g = upper(first), upper(second)
    return times(h, g) + (times(h, second - g) + times(first - h, g))


INNER = norms.inner
RULES: dict[str, list[tuple[Any, str, Any]]] = {
    "kernels formed": [(routes, "_is_better_formed_by_jax", _kernels_formed)],
    "more formed": [(norms, "norm_method", _more_formed)],
    "Gram in three": [(norms, "inner", _in_three_products)],
}


def with_rule(case: Case, rule: str) -> Timed:
    """The fast form, compiled with one of the rules in place of the library's."""
    before = [(where, name, getattr(where, name)) for where, name, _ in RULES[rule]]
    try:
        for where, name, other in RULES[rule]:
            setattr(where, name, other)
        return compiled(f"demur, {rule}", ours(case, memory="fast"), case)
    finally:
        for where, name, own in before:
            setattr(where, name, own)


def jax_privacy(case: Case, microbatch: int | None) -> Callable[..., Any]:
    clipping = import_module("jax_privacy.clipping")
    return clipping.clipped_grad(
        case.loss,
        l2_clip_norm=CLIP,
        batch_argnums=batch_numbers(case),
        microbatch_size=microbatch,
        dtype=jnp.float32,
    )


@dataclass
class Timed:
    """A method; `call(n)` runs it n times and waits once, as a training loop would."""

    label: str
    call: Callable[[int], None] | None
    temp: float | None
    note: str = ""
    repeat: int = 1
    seconds: float = float("nan")
    compiling: float | None = None


def compiled(label: str, function: Callable[..., Any], case: Case) -> Timed:
    """A program that is compiled and has not run, with its temp memory in GiB."""
    started = time.perf_counter()
    try:
        arguments = (case.params, *case.batch, *case.fixed)
        program = jax.jit(function).lower(*arguments).compile()
        taken = time.perf_counter() - started
        temp = program.memory_analysis().temp_size_in_bytes / 2**30
    except Exception as error:
        return Timed(label, None, None, str(error).splitlines()[0][:60])

    def call(times: int) -> None:
        for _ in range(times):
            result = program(*arguments)
        jax.block_until_ready(result)

    return Timed(label, call, temp, f"compile {taken:.0f} s", compiling=taken)


def first_run(one: Timed) -> None:
    """Run a program once and find how often it has to run to be measured."""
    if one.call is None:
        return
    try:
        one.call(1)
        one.repeat = repeats(one.call)
    except Exception as error:
        one.call, one.note = None, str(error).splitlines()[0][:60]


def repeats(call: Callable[[int], None]) -> int:
    """So many calls that waiting for the last one is not what is measured."""
    started = time.perf_counter()
    call(1)
    return max(1, min(20, int(0.02 / (time.perf_counter() - started))))


def measure(timed: list[Timed], rounds: int, longest: float) -> None:
    """Median seconds of calls that take turns."""
    for one in timed:
        first_run(one)
    ready = [one for one in timed if one.call is not None]
    found: dict[str, list[float]] = {one.label: [] for one in ready}
    started = time.perf_counter()
    for _ in range(rounds):
        for one in ready:
            assert one.call is not None
            before = time.perf_counter()
            one.call(one.repeat)
            found[one.label].append((time.perf_counter() - before) / one.repeat)
        if time.perf_counter() - started > longest:
            break
    for one in ready:
        one.seconds = statistics.median(found[one.label])


def table(case: Case, rows: list[Timed], base: float | None = None) -> None:
    base = rows[0].seconds if base is None else base
    print(f"\n{case.name}")
    print(f"  {'':32}{'ms':>10}{'times':>8}{'temp GiB':>10}")
    for row in rows:
        if row.call is None:
            print(f"  {row.label:32}{'failed: ' + row.note}")
            continue
        temp = "" if row.temp is None else f"{row.temp:10.3f}"
        print(
            f"  {row.label:32}{row.seconds * 1e3:10.3f}{row.seconds / base:8.2f}"
            f"{temp:>10}  {row.note}"
        )
    sys.stdout.flush()


def relative_error(case: Case) -> float:
    """How far ours is from the plain method, on the first examples, in float32."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), case.params)
    batch = tuple(part[:8] for part in case.batch)
    with jax.default_matmul_precision("highest"):
        both = [
            jax.jit(ours(case, method=method))(params, *batch, *case.fixed)
            for method in ("auto", "vmap")
        ]
    pairs = list(zip(*map(jax.tree.leaves, both), strict=True))
    apart = sum(float(jnp.sum((a - b) ** 2)) for a, b in pairs)
    return float((apart / sum(float(jnp.sum(b**2)) for _, b in pairs)) ** 0.5)


def opacus_rows(case: Case, rounds: int, longest: float) -> list[Timed]:
    """Opacus' own ratio: against the same torch model without privacy."""
    if case.torch is None or importlib.util.find_spec("opacus") is None:
        return []
    torch = import_module("torch")
    grad_sample = import_module("opacus.grad_sample")
    optimizers = import_module("opacus.optimizers")
    fast = import_module("opacus.utils.fast_gradient_clipping_utils")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.tensor(np.asarray(case.batch[0]))
    if "cnn" in case.name:
        x = x.reshape(-1, 28, 28)
    elif x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    x = x.to(device)
    y = torch.tensor(np.asarray(case.batch[1])).long().to(device)
    size = len(y)

    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def plain() -> Callable[[int], None]:
        model = case.torch().to(device)
        loss = torch.nn.CrossEntropyLoss(reduction="sum")

        def call(times: int) -> None:
            for _ in range(times):
                model.zero_grad()
                loss(model(x), y).backward()
            finish()

        return call

    def hooks() -> Callable[[int], None]:
        model = grad_sample.GradSampleModule(case.torch().to(device))
        loss = torch.nn.CrossEntropyLoss(reduction="sum")
        steps = optimizers.DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=CLIP,
            expected_batch_size=size,
            loss_reduction="sum",
        )

        def call(times: int) -> None:
            for _ in range(times):
                steps.zero_grad()
                loss(model(x), y).backward()
                steps.clip_and_accumulate()
            finish()

        return call

    def ghost() -> Callable[[int], None]:
        model = grad_sample.GradSampleModuleFastGradientClipping(
            case.torch().to(device),
            max_grad_norm=CLIP,
            use_ghost_clipping=True,
            loss_reduction="sum",
        )
        steps = optimizers.DPOptimizerFastGradientClipping(
            torch.optim.SGD(model.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=CLIP,
            expected_batch_size=size,
            loss_reduction="sum",
        )
        loss = fast.DPLossFastGradientClipping(
            model, steps, torch.nn.CrossEntropyLoss(reduction="sum"), "sum"
        )

        def call(times: int) -> None:
            for _ in range(times):
                steps.zero_grad()
                loss(model(x), y).backward()
            finish()

        return call

    rows = []
    for label, make in (("torch", plain), ("Opacus hooks", hooks), ("ghost", ghost)):
        try:
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            call = make()
            call(1)
            temp = None
            if device == "cuda":
                temp = (torch.cuda.max_memory_allocated() - before) / 2**30
            rows.append(Timed(label, call, temp))
        except Exception as error:
            rows.append(Timed(label, None, None, str(error).splitlines()[0][:60]))
    measure(rows, rounds, longest)
    return rows


# -- a run in stages, with lines in a file ---------------------------------------------


@dataclass
class Lines:
    """A file of results: what it holds is not measured again."""

    path: Path | None
    size: str
    known: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            text = self.path.read_text().splitlines()
            self.known = [json.loads(line) for line in text if line]

    def add(self, **line: Any) -> None:
        device = jax.devices()[0].device_kind
        whole = {"size": self.size, "device": device, "jax": jax.__version__, **line}
        self.known.append(whole)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(whole) + "\n")

    def has(self, case: str, kind: str, label: str | None = None) -> bool:
        return any(
            line.get("case") == case
            and line["kind"] == kind
            and line["size"] == self.size
            and label in (None, line.get("label"))
            for line in self.known
        )


def own_methods(case: Case) -> dict[str, Callable[..., Any]]:
    return {
        "ordinary gradient": ordinary(case),
        "demur": ours(case, memory="fast"),
        "demur, ordinary memory": ours(case, memory="ordinary"),
    }


def peer_methods(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """jax-privacy at its microbatch sizes; it is None where it is not installed."""
    if importlib.util.find_spec("jax_privacy") is None:
        return {}
    sizes = options.microbatch or case.microbatches
    return {f"jax-privacy, microbatch {n}": jax_privacy(case, n) for n in sizes}


@dataclass
class Stage:
    """Cases of which the same methods are compiled, then measured."""

    kind: str  # own, peers or all
    options: argparse.Namespace
    lines: Lines
    begun: float

    def left(self) -> float:
        return self.options.until - (time.perf_counter() - self.begun)

    def programs(self, case: Case) -> dict[str, Callable[..., Any]]:
        own = {} if self.kind == "peers" else own_methods(case)
        return own | ({} if self.kind == "own" else peer_methods(case, self.options))

    def compile(self, name: str, label: str, function: Any, case: Case) -> Timed | None:
        # What is compiled has to be measured too, within the time that is left.
        if self.left() < self.options.longest:
            return None
        one = compiled(label, function, case)
        if not self.lines.has(name, "compiled", label):
            self.lines.add(
                kind="compiled",
                case=name,
                label=label,
                compile_s=one.compiling,
                temp_gib=one.temp,
                threads=self.options.threads,
                failed=one.note if one.call is None else None,
            )
        return one

    def run(self, names: list[str]) -> None:
        """Compile everything, then measure case by case."""
        open_ones = [one for one in names if not self.lines.has(one, self.kind)]
        for start in range(0, len(open_ones), self.options.together):
            self.run_together(open_ones[start : start + self.options.together])

    def run_together(self, names: list[str]) -> None:
        if self.left() < self.options.longest:
            print(f"stopped before {', '.join(names)}: give the same command again")
            return
        cases: dict[str, Case] = {}
        with ThreadPoolExecutor(self.options.threads) as pool:
            for name, case in zip(names, pool.map(self.build, names), strict=True):
                cases[name] = case
        pool = ThreadPoolExecutor(self.options.threads)
        tasks: dict[str, list[Future[Timed | None]]] = {}
        for name, case in cases.items():
            tasks[name] = [
                pool.submit(self.compile, name, label, function, case)
                for label, function in self.programs(case).items()
            ]
        every = [task for several in tasks.values() for task in several]
        reserve = self.options.longest * len(names) / 2
        limit = None if self.left() == float("inf") else max(0, self.left() - reserve)
        wait(every, timeout=limit)
        for task in every:
            task.cancel()
        for name, several in tasks.items():
            rows = [task.result() for task in several if is_done(task)]
            self.measure(name, cases.pop(name), [row for row in rows if row])
            tasks[name] = []
        pool.shutdown(wait=False, cancel_futures=True)

    def seconds_of_ordinary(self, name: str) -> float | None:
        """As the first stage found it, where the peers come in a second one."""
        if self.kind != "peers":
            return None
        for line in self.lines.known:
            if line.get("case") == name and line["kind"] == "own":
                return float(line["rows"]["ordinary gradient"]["ms"]) / 1e3
        return None

    def build(self, name: str) -> Case:
        return build(name, self.options.size) if name in ZOO else CASES[name]()

    def measure(self, name: str, case: Case, rows: list[Timed]) -> None:
        options = self.options
        complete = len(rows) == len(self.programs(case))
        if self.left() < 0 or (not rows and self.kind != "peers"):
            print(f"stopped before {name} was measured: give the same command again")
            return
        rows += [with_rule(case, rule) for rule in options.rule]
        measure(rows, options.rounds, options.longest)
        if rows:
            table(case, rows, self.seconds_of_ordinary(name))
        if options.check and self.kind != "peers":
            print(
                f"  against the plain method (8 examples): {relative_error(case):.1e}"
            )
        if self.kind != "own" and options.peers != "no":
            others = opacus_rows(case, options.rounds, options.longest)
            if others:
                table(case, others)
            rows += others
        kind = self.kind if complete else f"{self.kind}, cut short"
        self.lines.add(kind=kind, case=name, rows=as_rows(rows))


def is_done(task: Future[Any]) -> bool:
    return task.done() and not task.cancelled()


def as_rows(rows: list[Timed]) -> dict[str, dict[str, Any]]:
    """Every method's milliseconds, memory and compile time."""
    return {
        row.label: {
            "ms": None if row.call is None else row.seconds * 1e3,
            "temp_gib": row.temp,
            "compile_s": row.compiling,
            "failed": row.note if row.call is None else None,
        }
        for row in rows
    }


def run_all(options: argparse.Namespace, lines: Lines, begun: float) -> None:
    names = [
        one for name in options.case for one in (ZOO if name == "zoo" else (name,))
    ]
    kinds = {"no": ["own"], "last": ["own", "peers"], "yes": ["all"]}[options.peers]
    for kind in kinds:
        Stage(kind, options, lines, begun).run(names)


def largest(tokens: int, microbatch_of_peer: int | None) -> None:
    """The largest batch whose program fits, from a straight line through two sizes."""
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    print(f"\nlargest batch at {tokens} tokens, {limit / 2**30:.0f} GiB")
    for label in ("ordinary gradient", "demur", "jax-privacy"):
        needed = []
        for batch in (16, 32):
            case = gpt(batch, tokens)
            function = {
                "ordinary gradient": ordinary,
                "demur": ours,
                "jax-privacy": lambda case: jax_privacy(case, microbatch_of_peer),
            }[label](case)
            program = jax.jit(function).lower(case.params, *case.batch).compile()
            stats = program.memory_analysis()
            needed.append(
                stats.temp_size_in_bytes
                + stats.output_size_in_bytes
                + stats.argument_size_in_bytes
            )
        each = (needed[1] - needed[0]) / 16
        fits = int((0.97 * limit - needed[0]) / each) + 16
        print(f"  {label:24}{each / 2**30:8.3f} GiB an example{fits:8d} examples")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    gpu = jax.default_backend() == "gpu"
    parser.add_argument("--case", nargs="*", default=ON_GPU if gpu else ON_CPU)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds a case")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--peers", choices=("yes", "last", "no"), default="yes")
    parser.add_argument("--microbatch", type=int, nargs="*", help="of jax-privacy")
    parser.add_argument("--rule", nargs="*", choices=RULES, default=[])
    parser.add_argument("--size", choices=("tiny", "full"), help="of the zoo")
    parser.add_argument("--results", type=Path, help="a file that lines are added to")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--threads", type=int, default=1, help="that compile")
    parser.add_argument("--together", type=int, help="cases that are held at a time")
    parser.add_argument("--largest", type=int, default=0, metavar="TOKENS")
    parser.set_defaults(size="full" if gpu else "tiny")
    options = parser.parse_args()
    begun = time.perf_counter()
    if options.together is None:
        options.together = 1 if options.threads == 1 else 100
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, {device.device_kind}, {platform.machine()}")
    if importlib.util.find_spec("jax_privacy") is None:
        print("jax-privacy is not installed: its rows are left out")
    lines = Lines(options.results, options.size)
    run_all(options, lines, begun)
    if options.largest:
        largest(options.largest, None)
    # A program that is still being compiled would be waited for.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
