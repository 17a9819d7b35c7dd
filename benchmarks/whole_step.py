"""A whole step of `fit` against a plain optax loop of the same network.

    python benchmarks/whole_step.py --results steps.jsonl --until 540
    python benchmarks/whole_step.py --size tiny

An encoder of MiniLM's shape (6 layers of 384, 22.6M parameters, random weights) on
random texts of 64 tokens, 1,024 a step: all parameters, and LoRA of rank 16 on the
attention. The plain loop takes batches of exactly the mean size. `fit` samples, pads,
clips, adds noise and pays; its time is that of the steps, compiling left out, padding
in. "lattice" is the hardened noise, whose clipped sums are added up in float64; the
line "threefry, float64 sums" has the latter alone. Each line is added to --results when
it is known, and is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from demur.core.entropy import Seeded
from demur.training import Reporting, Resources, clipped_grad, dp_sgd, fit
from demur.training.clipping.accumulation import Accumulator
from demur.training.clipping.frozen_losses import FrozenLoss, frozen_of, loss_at
from demur.training.sizes.defaults import shapes_for
from demur.training.sizes.operations import loss_flops

WARM = 20  # steps that are not counted


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    words: int
    tokens: int
    batch: int
    examples: int
    steps: int


SHAPES = {
    "full": Shape(6, 384, 12, 30522, 64, 1024, 65536, 200),
    "tiny": Shape(2, 32, 2, 100, 8, 32, 2048, 60),
}


def encoder(shape: Shape, rank: int) -> tuple[Any, Any]:
    """(all parameters, LoRA's) with random entries."""
    rng = np.random.default_rng(0)

    def dense(rows: int, columns: int, scale: float = 1.0) -> Any:
        size = scale * rows**-0.5
        return jnp.asarray(rng.normal(size=(rows, columns)) * size, jnp.float32)

    width = shape.width

    def layer() -> dict[str, Any]:
        made = {name: dense(width, width) for name in "qkvo"}
        made |= {f"{name}_b": jnp.zeros(width) for name in "qkvo"}
        made |= {"up": dense(width, 4 * width), "up_b": jnp.zeros(4 * width)}
        made |= {"down": dense(4 * width, width), "down_b": jnp.zeros(width)}
        for name in ("norm1", "norm2"):
            made |= {name: jnp.ones(width), f"{name}_b": jnp.zeros(width)}
        return made

    base = {
        "words": dense(shape.words, width, scale=shape.words**0.5 * 0.05),
        "places": dense(shape.tokens, width, scale=0.1),
        "norm": jnp.ones(width),
        "norm_b": jnp.zeros(width),
        "layers": [layer() for _ in range(shape.layers)],
        "head": dense(width, 2),
        "head_b": jnp.zeros(2),
    }
    low = {
        "layers": [
            {
                name: {"a": dense(width, rank), "b": jnp.zeros((rank, width))}
                for name in "qkvo"
            }
            for _ in range(shape.layers)
        ],
        "head": base["head"],
        "head_b": base["head_b"],
    }
    return base, low


def logits_of(shape: Shape, p: Any, low: Any, ids: Any) -> Any:
    def norm(x: Any, scale: Any, shift: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return (
            x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale + shift
        )

    x = norm(p["words"][ids] + p["places"], p["norm"], p["norm_b"])
    for number, layer in enumerate(p["layers"]):

        def through(h: Any, name: str, layer: Any = layer, number: int = number) -> Any:
            y = h @ layer[name] + layer[f"{name}_b"]
            if low is None:
                return y
            pair = low["layers"][number][name]
            return y + (h @ pair["a"]) @ pair["b"]

        heads = (*x.shape[:2], shape.heads, -1)
        parts = [through(x, name).reshape(heads) for name in "qkv"]
        mixed = jax.nn.dot_product_attention(*parts).reshape(x.shape)
        x = norm(x + through(mixed, "o"), layer["norm1"], layer["norm1_b"])
        h = jax.nn.gelu(x @ layer["up"] + layer["up_b"])
        x = x + h @ layer["down"] + layer["down_b"]
        x = norm(x, layer["norm2"], layer["norm2_b"])
    head = p if low is None else low
    return x[:, 0] @ head["head"] + head["head_b"]


def problem(shape: Shape, what: str) -> tuple[Callable[..., Any], Any, Any]:
    """The loss, the parameters that are trained, and the data."""
    base, low = encoder(shape, 16)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, shape.words, (shape.examples, shape.tokens))
    data = (
        ids.astype(np.int32),
        rng.integers(0, 2, shape.examples).astype(np.int32),
    )

    def loss(whole: Any, part: Any, ids: Any, labels: Any) -> Any:
        logits = logits_of(shape, whole, part, ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    if what == "all":
        return lambda params, *batch: loss(params, None, *batch), base, data
    # What is frozen is an argument of the programs, and no constant in them.
    frozen = FrozenLoss(lambda low, base, *batch: loss(base, low, *batch), base)
    return frozen, low, data


def plain_ms(shape: Shape, what: str) -> float:
    loss, params, data = problem(shape, what)
    optimizer = optax.adam(1e-4)

    fixed = frozen_of(loss)

    @jax.jit
    def step(params: Any, state: Any, fixed: Any, ids: Any, labels: Any) -> Any:
        gradient = jax.grad(loss_at(loss, fixed))(params, ids, labels)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    rng = np.random.default_rng(2)
    state = optimizer.init(params)
    begun = 0.0
    for number in range(shape.steps):
        if number == WARM:
            jax.block_until_ready(params)
            begun = time.perf_counter()
        rows = rng.choice(shape.examples, shape.batch, replace=False)
        params, state = step(params, state, fixed, *(part[rows] for part in data))
    jax.block_until_ready(params)
    return (time.perf_counter() - begun) / (shape.steps - WARM) * 1e3


def private_ms(
    shape: Shape,
    what: str,
    noise: str,
    resources: Resources,
    accumulator: Accumulator = "float32",
) -> dict[str, Any]:
    loss, params, data = problem(shape, what)
    clipped = clipped_grad(
        loss,
        l2_clip_norm=1.0,
        batch_argnums=(1, 2),
        normalize_by=float(shape.batch),
        accumulator=accumulator,
    )
    plan = dp_sgd(
        iterations=shape.steps,
        sampling_prob=shape.batch / shape.examples,
        noise_multiplier=1.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        noise=noise,
    ).make(clipped)
    one = [jax.ShapeDtypeStruct((1, *part.shape[1:]), part.dtype) for part in data]
    shapes = shapes_for(
        plan.batch_selection_strategy,
        shape.examples,
        resources,
        flops=lambda: loss_flops(loss, params, *one),
    )
    sizes = [*shapes.sizes, shapes.microbatch_size, round(shapes.waste, 3)]
    times: list[float] = []
    begun = time.perf_counter()
    done = fit(
        plan,
        None,
        params,
        data,
        optimizer=optax.adam(1e-4),
        delta=1e-6,
        source=Seeded(3),
        resources=resources,
        reporting=Reporting(callback=lambda _: times.append(time.perf_counter())),
    )
    jax.block_until_ready(done.value)
    ended = time.perf_counter()
    return {
        "ms": (ended - times[WARM - 1]) / (shape.steps - WARM) * 1e3,
        "before_first_step_s": times[0] - begun,
        "sizes": sizes,
        "rounding": plan.noise_addition_transform.spec.sum_rounding,
    }


Measured = Callable[[], dict[str, Any]]


def lines(shape: Shape) -> dict[str, Measured]:
    """What is measured, by name: what the aims speak of first."""
    found: dict[str, Measured] = {}

    def private(
        what: str,
        noise: str,
        resources: Resources | None = None,
        accumulator: Accumulator = "float32",
    ) -> Measured:
        chosen = Resources() if resources is None else resources
        return lambda: private_ms(shape, what, noise, chosen, accumulator)

    def plain(what: str) -> Measured:
        return lambda: {"ms": plain_ms(shape, what)}

    for what in ("all", "lora"):
        found[f"{what}, plain"] = plain(what)
        for noise in ("threefry", "lattice"):
            found[f"{what}, {noise}"] = private(what, noise)
    eighth = Resources(microbatch_size=shape.batch // 8)
    for what in ("all", "lora"):
        float64_sums = private(what, "threefry", accumulator="float64")
        found[f"{what}, threefry, float64 sums"] = float64_sums
        found[f"{what}, threefry, microbatches"] = private(what, "threefry", eighth)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    gpu = jax.default_backend() == "gpu"
    parser.add_argument("--size", choices=SHAPES, default="full" if gpu else "tiny")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--only", nargs="*", help="the names of lines")
    parser.add_argument("--line", type=float, default=0.0, help="seconds for a line")
    options = parser.parse_args()
    device = jax.devices()[0].device_kind
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {options.size}")
    known: dict[str, dict[str, Any]] = {}
    if options.results is not None and options.results.exists():
        for line in options.results.read_text().splitlines():
            one = json.loads(line)
            if one["size"] == options.size:
                known[one["name"]] = one
    begun = time.perf_counter()
    every = lines(SHAPES[options.size])
    for name in every if options.only is None else options.only:
        measured = every[name]
        if name not in known:
            if time.perf_counter() - begun > options.until - options.line:
                print(f"stopped before {name!r}: give the same command again")
                return
            first = {"name": name, "size": options.size, "device": device}
            try:
                known[name] = first | measured()
            except Exception as error:  # the other lines are still wanted
                text = str(error).splitlines()[0][:200] if str(error) else repr(error)
                known[name] = first | {"failed": text, "ms": float("nan")}
            if options.results is not None:
                with options.results.open("a") as file:
                    file.write(json.dumps(known[name]) + "\n")
        if "failed" in known[name]:
            print(f"{name:32}failed: {known[name]['failed']}", flush=True)
        base = known.get(name.split(",")[0] + ", plain", {}).get("ms", float("nan"))
        ms, more = known[name]["ms"], known[name].get("sizes", "")
        print(f"{name:32}{ms:10.2f} ms{ms / base:8.2f} times  {more}", flush=True)


if __name__ == "__main__":
    main()
