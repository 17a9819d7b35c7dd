"""The LLaMA shape of most layers that trains on one device, privately and not.

    python benchmarks/clipping_parts/deepest.py --results deepest.jsonl --until 180
    python benchmarks/clipping_parts/deepest.py --size tiny --pretend-failure

Layers of LLaMA-7B's width, scanned and rematerialised, in bfloat16: all parameters with
Adam, and LoRA of rank 16 on the attention. A step is the gradient (ours: the ordinary-
memory form), noise for ours, and the update, with parameters and state donated. Four
cases; each goes through two processes of its own:

1. Programs of two depths are compiled, all cases at a time. What a program takes is
   XLA's own figure; a straight line through the two gives the layers that fill 99, 96
   and 90% of the device, and those programs are compiled into a cache.
2. One case at a time, the deepest of the three is run for two steps. If that fails, the
   next is tried.

Lines are added to --results as they are known, and what is there is not done again.
After --until seconds nothing new begins. The size is asked for, not the speed: products
are not tuned, so that compiling is short.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from zoo import cross_entropy, rms_norm, self_attention

from demur.training import clipped_grad, gaussian_privatizer

SHARES = (0.99, 0.96, 0.90)  # of the device, by XLA's figure, that are tried in turn
OF_THE_CARD = 0.96  # that JAX takes; the rest is for the driver and its libraries
FLAGS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
PRETENDED = 2**24  # bytes of a device that does not say what it has


@dataclass(frozen=True)
class Shape:
    width: int
    inner: int
    heads: int
    words: int
    rank: int
    batch: int
    tokens: int
    depths: tuple[int, int]
    dtype: Any


SHAPES = {
    "full": Shape(4096, 11008, 32, 32000, 16, 4, 512, (4, 8), jnp.bfloat16),
    "tiny": Shape(32, 64, 2, 60, 4, 4, 8, (2, 3), jnp.float32),
}


def parameters(shape: Shape, layers: int, what: str) -> tuple[Any, Any]:
    """(trained, frozen), as shapes."""
    width, inner = shape.width, shape.inner

    def array(*size: int) -> Any:
        return jax.ShapeDtypeStruct(size, shape.dtype)

    whole = {
        "words": array(shape.words, width),
        "head": array(width, shape.words),
        "layers": {name: array(layers, width, width) for name in "qkvo"}
        | {name: array(layers, width, inner) for name in ("gate", "up")}
        | {"down": array(layers, inner, width)}
        | {name: array(layers, width) for name in ("norm1", "norm2")},
    }
    if what == "all":
        return whole, None
    low = {
        name: {
            "a": array(layers, width, shape.rank),
            "b": array(layers, shape.rank, width),
        }
        for name in "qv"
    }
    return low, whole


def loss_of(shape: Shape, what: str) -> Callable[..., Any]:
    def through(h: Any, weight: Any, pair: Any) -> Any:
        return h @ weight if pair is None else h @ weight + (h @ pair["a"]) @ pair["b"]

    def block(x: Any, both: Any) -> tuple[Any, None]:
        p, low = both
        h = rms_norm(x, p["norm1"])
        if low is None:
            x = (
                x
                + self_attention(h, p["q"], p["k"], p["v"], shape.heads, True) @ p["o"]
            )
        else:
            heads = (*h.shape[:2], shape.heads, -1)
            parts = [through(h, p[n], low.get(n)).reshape(heads) for n in "qkv"]
            mixed = jax.nn.dot_product_attention(*parts, is_causal=True)
            x = x + mixed.reshape(x.shape) @ p["o"]
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    def loss(trained: Any, ids: Any, frozen: Any) -> Any:
        whole, low = (trained, None) if what == "all" else (frozen, trained)
        x = whole["words"][ids]
        x, _ = jax.lax.scan(jax.checkpoint(block), x, (whole["layers"], low))
        logits = rms_norm(x, 1.0) @ whole["head"]
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return loss


@dataclass(frozen=True)
class Training:
    """A step of one kind, compiled for a number of layers."""

    shape: Shape
    what: str
    private: bool

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(1e-4)

    def step(self) -> Callable[..., Any]:
        loss = loss_of(self.shape, self.what)
        if self.private:
            clipped = clipped_grad(loss, l2_clip_norm=1.0, memory="ordinary")
            noise = gaussian_privatizer(1.0, 1000)

        def run(trained: Any, state: Any, ids: Any, frozen: Any, key: Any) -> Any:
            if self.private:
                total = clipped(trained, ids, frozen)
                noisy, _ = noise.update(total, noise.init(trained), key=key)
                # The sum is in float32; the moments keep the parameters' type.
                gradient = jax.tree.map(
                    lambda sum, leaf: sum.astype(leaf.dtype), noisy, trained
                )
            else:
                gradient = jax.grad(loss)(trained, ids, frozen)
            updates, state = self.optimizer.update(gradient, state, trained)
            return optax.apply_updates(trained, updates), state

        return run

    def arguments(self, layers: int) -> tuple[Any, ...]:
        trained, frozen = parameters(self.shape, layers, self.what)
        state = jax.eval_shape(self.optimizer.init, trained)
        ids = jax.ShapeDtypeStruct((self.shape.batch, self.shape.tokens), jnp.int32)
        keys = jax.ShapeDtypeStruct((len(jax.tree.leaves(trained)), 2), jnp.uint32)
        return trained, state, ids, frozen, keys

    def compiled(self, layers: int) -> tuple[Any, int]:
        """The program, and the bytes that it takes in all."""
        step = jax.jit(self.step(), donate_argnums=(0, 1))
        program = step.lower(*self.arguments(layers)).compile()
        stats = program.memory_analysis()
        taken = stats.temp_size_in_bytes + stats.argument_size_in_bytes
        return program, taken + stats.output_size_in_bytes - stats.alias_size_in_bytes

    def sizes(self, layers: int) -> dict[str, int]:
        trained, frozen = parameters(self.shape, layers, self.what)
        both = count_of(trained), count_of(frozen)
        return {"layers": layers, "parameters": sum(both), "trained": both[0]}

    def two_steps(self, layers: int) -> dict[str, Any]:
        """The time of the second, and what is true of the parameters after it."""
        program, taken = self.compiled(layers)
        trained, state, ids, frozen, key = self.arguments(layers)
        trained, frozen = jax.tree.map(spread, (trained, frozen))
        state, key = jax.tree.map(
            lambda one: jnp.zeros(one.shape, one.dtype), (state, key)
        )
        ids = (
            jnp.arange(ids.size, dtype=ids.dtype).reshape(ids.shape) % self.shape.words
        )
        before = jax.tree.map(first_of, trained)
        seconds = 0.0
        for _ in range(2):
            begun = time.perf_counter()
            trained, state = program(trained, state, ids, frozen, key)
            jax.block_until_ready(trained)
            seconds = time.perf_counter() - begun
        after = jax.tree.map(first_of, trained)
        moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
        stats = jax.devices()[0].memory_stats() or {}
        return {
            "program_gib": taken / 2**30,
            "peak_gib": stats.get("peak_bytes_in_use", 0) / 2**30,
            "second_step_s": seconds,
            "finite": all(bool(finite(leaf)) for leaf in jax.tree.leaves(trained)),
            "leaves_moved": sum(jax.tree.leaves(moved)),
            "leaves": len(jax.tree.leaves(moved)),
        }


def spread(one: Any) -> Any:
    """Numbers of weights' size that differ, made in place on the device."""

    def made() -> Any:
        where = [
            jax.lax.broadcasted_iota(jnp.float32, one.shape, i) for i in range(one.ndim)
        ]
        angle = sum(
            ((i + 1.3) * axis for i, axis in enumerate(where)), jnp.float32(0.7)
        )
        return (0.02 * jnp.sin(angle)).astype(one.dtype)

    return jax.block_until_ready(jax.jit(made)())


def first_of(leaf: Any) -> Any:
    """A few numbers of it, copied."""
    return jnp.array(leaf[(0,) * (leaf.ndim - 1)][:64])


finite = jax.jit(lambda leaf: jnp.isfinite(leaf).all())


def count_of(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def cases(size: str) -> dict[str, Training]:
    return {
        f"{what}, {'demur' if private else 'ordinary'}": Training(
            SHAPES[size], what, private
        )
        for what in ("lora", "all")
        for private in (True, False)
    }


# -- one case, in a process of its own -------------------------------------------------


def limit_of_device() -> int:
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", PRETENDED))


def foresee(training: Training) -> dict[str, Any]:
    """Bytes a layer from two programs, and the depths to try, which are compiled."""
    limit = limit_of_device()
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(SHARES)) as pool:
        known = dict(
            zip(
                training.shape.depths,
                pool.map(lambda n: training.compiled(n)[1], training.shape.depths),
                strict=True,
            )
        )
        (first, small), (second, large) = known.items()
        each = (large - small) / (second - first)
        tries = [int((share * limit - small) / each) + first for share in SHARES]
        figures = list(pool.map(lambda n: training.compiled(n)[1], tries))
    return {
        "limit_gib": limit / 2**30,
        "gib_a_layer": each / 2**30,
        "gib_besides": (small - first * each) / 2**30,
        "tries": tries,
        "program_gib": [figure / 2**30 for figure in figures],
        "compiling_s": time.perf_counter() - begun,
    }


def child(options: argparse.Namespace, lines: Lines) -> None:
    training = cases(options.size)[options.case]
    if options.child == "foresee":
        lines.add("foreseen", options.case, **foresee(training))
        return
    for number, layers in enumerate(lines.tries_left(options.case)):
        lines.add("begun", options.case, layers=layers)
        try:
            if options.pretend_failure and number == 0:
                raise RuntimeError("RESOURCE_EXHAUSTED: pretended")
            found = training.two_steps(layers)
        except Exception as error:
            said = str(error).splitlines()[0][:160]
            lines.add("failed", options.case, layers=layers, said=said)
            continue
        lines.add("ran", options.case, **training.sizes(layers), **found)
        return


# -- all cases -------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    path: Path
    size: str

    def add(self, kind: str, case: str, **values: Any) -> None:
        device = jax.devices()[0].device_kind
        line = {"kind": kind, "case": case, "size": self.size, "device": device}
        with self.path.open("a") as file:
            file.write(json.dumps(line | {"jax": jax.__version__} | values) + "\n")

    def of(self, kind: str, case: str) -> list[dict[str, Any]]:
        text = self.path.read_text().splitlines() if self.path.exists() else []
        known = [json.loads(line) for line in text if line]
        asked = {"kind": kind, "case": case, "size": self.size}
        return [line for line in known if asked.items() <= line.items()]

    def tries_left(self, case: str) -> list[int]:
        """Depths that have not been begun; none after one that ran."""
        foreseen = self.of("foreseen", case)
        if not foreseen or self.of("ran", case):
            return []
        begun = {line["layers"] for line in self.of("begun", case)}
        return [layers for layers in foreseen[-1]["tries"] if layers not in begun]


def started(
    options: argparse.Namespace, what: str, case: str
) -> subprocess.Popen[bytes]:
    settings = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true" if what == "run" else "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": str(OF_THE_CARD),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip(),
        "JAX_COMPILATION_CACHE_DIR": str(options.cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }
    command = [sys.executable, __file__, "--child", what, "--case", case]
    command += ["--size", options.size, "--results", str(options.results)]
    if options.pretend_failure:
        command.append("--pretend-failure")
    return subprocess.Popen(
        command,
        env=os.environ | settings,
        stderr=log_of(options, case).open("w"),
        start_new_session=True,
    )


def log_of(options: argparse.Namespace, case: str) -> Path:
    return Path(options.cache, f"{case}.log")


def waited(process: subprocess.Popen[bytes], log: Path, seconds: float) -> str:
    """Whether it ended well, or in what other way."""
    try:
        process.wait(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "took too long"
    if process.returncode == 0:
        return "ended"
    said = log.read_text(errors="replace").splitlines()[-3:]
    return f"exit code {process.returncode}: " + " | ".join(said)


def search(options: argparse.Namespace, lines: Lines) -> None:
    begun = time.perf_counter()

    def left() -> float:
        return float(options.until - (time.perf_counter() - begun))

    names = list(cases(options.size))
    todo = [name for name in names if not lines.of("foreseen", name)]
    children = {name: started(options, "foresee", name) for name in todo}
    for name, process in children.items():
        print(
            f"foreseen, {name}: {waited(process, log_of(options, name), left())}",
            flush=True,
        )
    for name in names:
        while (tries := lines.tries_left(name)) and left() > 0:
            most = min(left(), options.longest)
            process = started(options, "run", name)
            end = waited(process, log_of(options, name), most)
            print(f"run, {name}: {end}, {left():.0f} s are left", flush=True)
            if lines.tries_left(name) == tries:
                break  # it did not come as far as to begin
    report(lines, names)


def report(lines: Lines, names: list[str]) -> None:
    for name in names:
        for line in lines.of("foreseen", name)[-1:]:
            print(
                f"{name:16} {line['gib_a_layer']:.3f} GiB a layer, "
                f"{line['gib_besides']:.2f} besides, of {line['limit_gib']:.1f}; "
                f"tries {line['tries']}, programs "
                + ", ".join(f"{figure:.1f}" for figure in line["program_gib"])
                + f" GiB ({line['compiling_s']:.0f} s)"
            )
        for line in lines.of("failed", name):
            print(f"{'':16} {line['layers']} layers failed: {line['said'][:90]}")
        for line in lines.of("ran", name):
            print(
                f"{'':16} {line['layers']} layers ran: "
                f"{line['parameters'] / 1e9:.2f}e9 parameters, "
                f"{line['trained'] / 1e9:.3f}e9 trained, "
                f"second step {line['second_step_s']:.2f} s, "
                f"program {line['program_gib']:.1f} GiB, peak {line['peak_gib']:.1f}, "
                f"finite {line['finite']}, {line['leaves_moved']} of "
                f"{line['leaves']} leaves moved"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(SHAPES), default="full")
    parser.add_argument("--results", type=Path, default=Path("deepest.jsonl"))
    parser.add_argument("--cache", type=Path, help="a folder for compiled programs")
    parser.add_argument("--until", type=float, default=3600.0, help="seconds")
    parser.add_argument("--longest", type=float, default=60.0, help="seconds a process")
    parser.add_argument("--pretend-failure", action="store_true", help="of first tries")
    parser.add_argument("--child", choices=("foresee", "run"), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    lines = Lines(options.results, options.size)
    if options.child:
        child(options, lines)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.cache is None:
            options.cache = Path(folder)
        search(options, lines)


if __name__ == "__main__":
    main()
