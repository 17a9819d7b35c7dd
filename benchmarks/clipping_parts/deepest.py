"""The LLaMA shape of most layers that trains on one device, privately and not.

    python benchmarks/clipping_parts/deepest.py --results deepest.jsonl --until 180
    python benchmarks/clipping_parts/deepest.py --size tiny --pretend-failure

Layers of LLaMA-7B's width, scanned and rematerialised, in bfloat16: all parameters with
Adam, and LoRA of rank 16 on the attention. A step is the gradient (ours: the ordinary-
memory form), noise for ours, and the update, with parameters and state donated. Four
cases; each goes through two processes of its own:

1. Programs of two depths are compiled, all cases at a time; a scan compiles as fast for
   many layers as for few. What a program takes is XLA's own figure; a straight line
   through the two gives the layers that fill 98.5, 95 and 88% of what JAX has of the
   device, and the first two of those programs are compiled into a cache.
2. One case at a time, the deepest of the three is run for two steps. If that fails, or
   the process dies of it, the next is tried.

Lines are added to --results as they are known, and what is there is not done again.
After 0.6 of --until seconds compiling ends, and after --until seconds everything. The
size is asked for, not the speed: products are not tuned, so that compiling is short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from zoo import cross_entropy, rms_norm, self_attention

from demur.training import clipped_grad, gaussian_privatizer

SHARES = (0.985, 0.95, 0.88)  # of the device, by XLA's figure, that are tried in turn
SMALL = (0.12, 0.3)  # of the depth whose arguments alone fill the device
LEAST = 0.7  # of the device: a smaller program says little
COMPILING = 0.6  # of the time, at most
OF_THE_CARD = 0.96  # that JAX takes; the rest is for the driver and its libraries
FLAGS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
PRETENDED = 2**24  # bytes of a device that does not say what it has
LATE = "took too long"
# What a try that was too large ends with; CUDA may abort the process.
OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory", "OUT_OF_MEMORY", "exit code -")


@dataclass(frozen=True)
class Shape:
    width: int
    inner: int
    heads: int
    words: int
    rank: int
    batch: int
    tokens: int
    dtype: Any


SHAPES = {
    "full": Shape(4096, 11008, 32, 32000, 16, 4, 512, jnp.bfloat16),
    "tiny": Shape(32, 64, 2, 60, 4, 4, 8, jnp.float32),
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

    def bytes_of_arguments(self, layers: int) -> int:
        leaves = jax.tree.leaves(self.arguments(layers))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    def sizes(self, layers: int) -> dict[str, int]:
        trained, frozen = parameters(self.shape, layers, self.what)
        both = count_of(trained), count_of(frozen)
        return {"layers": layers, "parameters": sum(both), "trained": both[0]}

    def two_steps(self, layers: int) -> dict[str, Any]:
        """The time of the second, and what is true of the parameters after it."""
        begun = time.perf_counter()
        program, _ = self.compiled(layers)
        ready = time.perf_counter()
        trained, state, ids, frozen, key = jax.jit(lambda: self.values(layers))()
        before = beginnings(trained)
        seconds = 0.0
        for _ in range(2):
            started = time.perf_counter()
            trained, state = program(trained, state, ids, frozen, key)
            jax.block_until_ready(trained)
            seconds = time.perf_counter() - started
        moved = [
            bool((a != b).any())
            for a, b in zip(before, beginnings(trained), strict=True)
        ]
        stats = jax.devices()[0].memory_stats() or {}
        return {
            "peak_gib": stats.get("peak_bytes_in_use", 0) / 2**30,
            "compiled_or_read_s": ready - begun,
            "second_step_s": seconds,
            "in_all_s": time.perf_counter() - begun,
            "finite": bool(finite(trained)),
            "leaves_moved": sum(moved),
            "leaves": len(moved),
        }

    def values(self, layers: int) -> tuple[Any, ...]:
        """Arguments, made in place on the device."""
        trained, state, ids, frozen, key = self.arguments(layers)
        trained, frozen = jax.tree.map(spread, (trained, frozen))
        state, key = jax.tree.map(
            lambda one: jnp.zeros(one.shape, one.dtype), (state, key)
        )
        ids = jnp.arange(ids.size, dtype=ids.dtype).reshape(ids.shape)
        return trained, state, ids % self.shape.words, frozen, key


def spread(one: Any) -> Any:
    """Numbers of weights' size that differ."""
    where = [
        jax.lax.broadcasted_iota(jnp.float32, one.shape, i) for i in range(one.ndim)
    ]
    angle = sum(((i + 1.3) * axis for i, axis in enumerate(where)), jnp.float32(0.7))
    return (0.02 * jnp.sin(angle)).astype(one.dtype)


@jax.jit
def beginnings(tree: Any) -> list[Any]:
    """A few numbers of each leaf."""
    return [
        leaf[(0,) * (leaf.ndim - 1)][:64].astype(jnp.float32)
        for leaf in jax.tree.leaves(tree)
    ]


@jax.jit
def finite(tree: Any) -> Any:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


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


def kind_of_device() -> str:
    return str(jax.devices()[0].device_kind)


def foresee(training: Training, case: str, lines: Lines) -> None:
    """The bytes of two small programs, and programs of the depths to try, compiled."""
    limit = limit_of_device()
    each = training.bytes_of_arguments(2) - training.bytes_of_arguments(1)
    fixed = training.bytes_of_arguments(1) - each
    most = max(4, (limit - fixed) // each)
    # As deep as can be without a program that XLA would have to squeeze.
    small = max(1, int(SMALL[0] * most))
    compile_all(training, case, lines, [small, max(small + 1, int(SMALL[1] * most))])
    for _ in range(2):  # a second time where programs are larger than foretold
        if not set(lines.tries(case)[:1]) & set(lines.sizes_of_programs(case)):
            compile_all(training, case, lines, lines.tries(case)[:2])


def compile_all(training: Training, case: str, lines: Lines, depths: list[int]) -> None:
    known = lines.sizes_of_programs(case)
    device = {"limit_gib": limit_of_device() / 2**30, "device": kind_of_device()}
    with ThreadPoolExecutor(len(depths)) as pool:
        running = {}
        for layers in depths:
            if layers not in known:
                running[pool.submit(timed, training, layers)] = layers
        for done in as_completed(running):
            values = {"layers": running[done]}
            try:
                taken, seconds = done.result()
            except Exception as error:
                if not any(sign in str(error) for sign in OF_MEMORY):
                    raise
                said = str(error).splitlines()[0][:300]
                lines.add("failed", case, **values, said=said)
                continue
            values |= {"program_gib": taken / 2**30}
            lines.add("compiled", case, **values, compiling_s=seconds, **device)


def timed(training: Training, layers: int) -> tuple[int, float]:
    begun = time.perf_counter()
    _, taken = training.compiled(layers)
    return taken, time.perf_counter() - begun


def child(options: argparse.Namespace, lines: Lines) -> None:
    training = cases(options.size)[options.case]
    if options.child == "foresee":
        foresee(training, options.case, lines)
        return
    layers = lines.tries(options.case)[0]
    if layers not in lines.sizes_of_programs(options.case):
        compile_all(training, options.case, lines, [layers])
        return  # what it takes may change what is tried next
    if options.pretend_failure:
        failed = len(lines.of("failed", options.case))
        if failed == 1:
            os.abort()
        if failed == 0:
            raise RuntimeError("RESOURCE_EXHAUSTED: pretended")
    found = training.two_steps(layers)
    found |= training.sizes(layers) | {"device": kind_of_device()}
    lines.add("ran", options.case, **found)


# -- all cases -------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    path: Path
    size: str

    def add(self, kind: str, case: str, **values: Any) -> None:
        # Nothing asks for the device here: the parent, too, adds lines, and must not
        # take the card from its children.
        line = {"kind": kind, "case": case, "size": self.size}
        with self.path.open("a") as file:
            file.write(json.dumps(line | {"jax": jax.__version__} | values) + "\n")

    def of(self, kind: str, case: str) -> list[dict[str, Any]]:
        text = self.path.read_text().splitlines() if self.path.exists() else []
        known = [json.loads(line) for line in text if line]
        asked = {"kind": kind, "case": case, "size": self.size}
        return [line for line in known if asked.items() <= line.items()]

    def sizes_of_programs(self, case: str) -> dict[int, float]:
        """GiB by layers."""
        lines = self.of("compiled", case)
        return {line["layers"]: line["program_gib"] for line in lines}

    def limit(self, case: str) -> float:
        return float(self.of("compiled", case)[0]["limit_gib"])

    def depth_of(self, case: str, gib: float) -> int:
        """The layers whose program takes so much, on a line through known programs."""
        known = sorted(self.sizes_of_programs(case).items())
        # The two beside it, or the last two.
        above = sum(size < gib for _, size in known[:-1])
        (first, small), (second, large) = known[max(0, above - 1) :][:2]
        if large <= small:
            return first
        return first + int((gib - small) / (large - small) * (second - first))

    def tries(self, case: str) -> list[int]:
        """Depths that have not failed and are not known to be too large.

        Those whose programs are compiled come first, the deepest before the others.
        """
        known = self.sizes_of_programs(case)
        if len(known) < 2:
            return []
        limit = self.limit(case)
        ran = max((line["layers"] for line in self.of("ran", case)), default=0)
        least = min((line["layers"] for line in self.of("failed", case)), default=10**9)
        ready = [n for n, gib in known.items() if gib < limit and n < least]
        ready = [n for n in ready if known[n] > LEAST * limit]
        foretold = [self.depth_of(case, share * limit) for share in SHARES]
        new = [n for n in foretold if n not in known and 0 < n < least]
        if ready and known[max(ready)] < SHARES[1] * limit:
            # Programs grow by less than the first two foretold: there may be room.
            deeper = [n for n in new if n > max(ready)]
            new = [n for n in new if n not in deeper]
            return [n for n in deeper + sorted(ready, reverse=True) + new if n > ran]
        return [n for n in sorted(ready, reverse=True) + new if n > ran]


def started(
    options: argparse.Namespace, what: str, case: str
) -> subprocess.Popen[bytes]:
    settings = {
        # A run has the card to itself; programs are compiled beside one another.
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
        command, env=os.environ | settings, stderr=log_of(options, case).open("w")
    )


def log_of(options: argparse.Namespace, case: str) -> Path:
    return Path(options.cache, f"{case.replace(', ', '_')}.log")


def waited(process: subprocess.Popen[bytes], log: Path, seconds: float) -> str:
    """How it failed, or nothing if it ended well or had to be ended."""
    try:
        process.wait(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return LATE
    if process.returncode == 0:
        return ""
    written = log.read_text(errors="replace").splitlines()
    # XLA follows its reason with a listing of its buffers.
    reasons = [line for line in written if "RESOURCE_EXHAUSTED" in line or "F1" in line]
    said = (reasons or written)[-1:] or ["nothing was said"]
    return f"exit code {process.returncode}: {said[0][:300]}"


def search(options: argparse.Namespace, lines: Lines) -> None:
    begun = time.perf_counter()

    def left(share: float = 1.0) -> float:
        return float(share * options.until - (time.perf_counter() - begun))

    names = list(cases(options.size))
    todo = [name for name in names if len(lines.sizes_of_programs(name)) < 4]
    children = {name: started(options, "foresee", name) for name in todo}
    for name, process in children.items():
        end = waited(process, log_of(options, name), left(COMPILING))
        sizes = {n: round(x, 1) for n, x in lines.sizes_of_programs(name).items()}
        print(f"{left():4.0f} s left; {name}: GiB by layers {sizes} {end}", flush=True)
    for name in names:
        while (tries := lines.tries(name)) and left() > 0:
            layers, known = tries[0], lines.sizes_of_programs(name)
            process = started(options, "run", name)
            end = waited(process, log_of(options, name), min(left(), options.longest))
            done = "ran" if layers in known else "compiled"
            print(
                f"{left():4.0f} s left; {name}, {layers} layers: {end or done}",
                flush=True,
            )
            if not end and lines.tries(name) == tries and layers in known:
                break
            if end and not any(sign in end for sign in OF_MEMORY):
                break  # a later call tries it again
            if end:
                lines.add("failed", name, layers=layers, said=end)
    report(lines, names)


def report(lines: Lines, names: list[str]) -> None:
    for name in names:
        known = lines.sizes_of_programs(name)
        if known:
            sizes = ", ".join(f"{n}: {gib:.1f}" for n, gib in sorted(known.items()))
            print(f"{name:16} GiB by layers {sizes}; of {lines.limit(name):.1f}")
        for line in lines.of("failed", name):
            print(f"{'':16} {line['layers']} layers failed: {line['said'][:90]}")
        for line in lines.of("ran", name)[-1:]:
            print(
                f"{'':16} {line['layers']} layers ran: "
                f"{line['parameters'] / 1e9:.2f}e9 parameters, "
                f"{line['trained'] / 1e9:.3f}e9 trained, "
                f"second step {line['second_step_s']:.2f} s, "
                f"program {known.get(line['layers'], 0.0):.1f} GiB, "
                f"peak {line['peak_gib']:.1f}, finite {line['finite']}, "
                f"{line['leaves_moved']} of {line['leaves']} leaves moved"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(SHAPES), default="full")
    parser.add_argument("--results", type=Path, default=Path("deepest.jsonl"))
    parser.add_argument("--cache", type=Path, help="a folder for compiled programs")
    parser.add_argument("--until", type=float, default=3600.0, help="seconds")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds a run")
    parser.add_argument(
        "--pretend-failure", action="store_true", help="of the first two tries"
    )
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
        options.cache.mkdir(parents=True, exist_ok=True)
        search(options, lines)


if __name__ == "__main__":
    main()
