"""MiniLM on SST-2, fine-tuned privately: accuracy, time a step, one audited run.

    python benchmarks/sst2.py [--weights minilm] [--out sst2.jsonl] [--seconds 540]
    python benchmarks/sst2.py --report [--out sst2.jsonl]
    python benchmarks/sst2.py --tiny            # a try on a CPU: other model, few rows
    python benchmarks/sst2.py --convert FOLDER  # its float16 weights, into --weights

Data: $DEMUR_DATA/sst2.npz. `--weights` is a folder with config.json and
model.safetensors (float16 will do; nothing is downloaded). Each result is a line of
--out, written when it is there; a run with the same --out goes on where the last one
stopped, and ends by itself before --seconds are over (it leaves room for as long as the
longest part has taken). On a machine without a network: put the folder of --weights
(43 MiB in float16), sst2.npz (1.5 MiB) and the file of results where they travel along,
and bring that file back.

The training set is cut by a fixed permutation into rows to train on, a slice on which
settings are chosen, and a slice that is held back for the comparison. SST-2 has phrases
of one sentence as rows of their own, so the slices share phrases with the rest: read
figures on them as differences between ways of training, not as accuracies on new text.
Rates are chosen on the first slice with the same number of trials for every way of
training, private or not, by a seed that is not used again; the rates of private ways
are chosen at epsilon 3 and serve the other epsilons too.

Batches and steps are not searched. Not private: 400 batches of 1,024. Private: 200
batches of 4,096, because what a private run learns from is sqrt(steps) * batch / noise
multiplier, which the plan tells before any data is seen, and at equal numbers of
examples few large batches have more of it (epsilon 3: 34,300; 31,700 for 400 batches of
2,048; 28,200 for 800 of 1,024). Training reads the first 48 of 64 positions (a half
percent of the training rows is longer), judging all; products are bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

from demur import Seeded
from demur.adapters.torch import PrivateModule
from demur.audit import Claim, audit_canaries, flip_coins
from demur.training import Reporting, Resources, clipped_grad, dp_sgd, fit
from demur.training.tensor_files import read_tensors, write_tensors

try:
    import transformers
except ImportError:
    transformers = None
try:
    import opacus
except ImportError:
    opacus = None
try:
    from jax_privacy import clipping as their_clipping
except ImportError:
    their_clipping = None

DATA = Path(os.environ.get("DEMUR_DATA", "../shared/data"))
CLIP, RANK, ALL_SEEDS, TUNING_SEED, TUNED_AT = 0.1, 16, (0, 1, 2), 100, 3.0
# Ways of training: which parameters, which epsilon (None: not private), which seeds.
WAYS = [
    ("all", None, ALL_SEEDS),
    ("lora", None, ALL_SEEDS),
    ("all", 3.0, ALL_SEEDS),
    ("lora", 3.0, ALL_SEEDS),
    ("all", 8.0, ALL_SEEDS),
    ("lora", 8.0, ALL_SEEDS),
    ("all", 1.0, (0,)),
    ("lora", 1.0, (0,)),
    ("bias", 3.0, (0,)),
    ("head", 3.0, (0,)),
    ("head", None, (0,)),
]
# Three rates each, around the anchors that were known: as many trials for every way.
RATES = {
    ("all", False): (5e-5, 1e-4, 2e-4),
    ("lora", False): (3e-4, 1e-3, 3e-3),
    ("bias", False): (3e-4, 1e-3, 3e-3),
    ("head", False): (3e-3, 1e-2, 3e-2),
    ("all", True): (5e-4, 1e-3, 2e-3),
    ("lora", True): (1e-3, 3e-3, 6e-3),
    ("bias", True): (1e-3, 2e-3, 5e-3),
    ("head", True): (3e-3, 1e-2, 3e-2),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the whole benchmark, or of a try."""

    steps: int = 400
    batch: int = 1024
    private_steps: int = 200
    private_batch: int = 4096
    positions: int = 48
    tuning: int = 3000
    held: int = 8000
    rows: int | None = None
    trials: int = 3
    seeds: int = 3
    canaries: int = 2000
    audit_rows: int = 2048
    audit_steps: int = 8
    laps: int = 10


TINY = Sizes(3, 32, 2, 64, 16, 40, 60, 400, 1, 1, 500, 64, 2, 1)


class Classifier(nn.Module):
    """The mean of the last layer over the words, and a linear head that starts at 0."""

    def __init__(self, bert: nn.Module, canaries: int = 0) -> None:
        super().__init__()
        self.bert = bert
        self.head = nn.Linear(bert.config.hidden_size, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if canaries:
            self.canaries = nn.Embedding(canaries, 1)

    def forward(self, ids: Any) -> Any:
        mask = (ids != 0).int()
        words = self.bert(
            input_ids=ids, attention_mask=mask, **self.more(ids)
        ).last_hidden_state
        weights = mask[..., None].to(words.dtype)
        return self.head((words * weights).sum(1) / weights.sum(1).clamp(min=1.0))

    def more(self, ids: Any) -> dict[str, Any]:
        return {}


class ForOpacus(Classifier):
    """With places and types for each example, which its rule for look-ups asks for."""

    def more(self, ids: Any) -> dict[str, Any]:
        places = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        return {"position_ids": places, "token_type_ids": torch.zeros_like(places)}


def loss(module: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(module(batch["ids"]), batch["y"].long())


def encoder(weights: Path | None) -> nn.Module:
    """MiniLM from a folder, or a tiny one with random weights."""
    torch.manual_seed(0)
    if weights is None:
        shape = transformers.BertConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            attn_implementation="eager",
        )
        return transformers.BertModel(shape, add_pooling_layer=False).eval()
    shape = transformers.BertConfig.from_json_file(str(weights / "config.json"))
    shape._attn_implementation = "eager"
    bert = transformers.BertModel(shape, add_pooling_layer=False)
    arrays, _ = read_tensors(weights / "model.safetensors")
    names = {name.removeprefix("bert."): array for name, array in arrays.items()}
    wanted = dict(bert.named_parameters())
    missing = sorted(set(wanted) - set(names))
    if missing:
        raise SystemExit(f"{weights}/model.safetensors lacks {missing[:3]}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(torch.tensor(names[name].astype(np.float32)))
    return bert.eval()


def convert(folder: Path, target: Path) -> None:
    """The weights of a folder in float16, to be carried along."""
    arrays, _ = read_tensors(folder / "model.safetensors")
    target.mkdir(parents=True, exist_ok=True)
    small = {n: a.astype(np.float16) for n, a in arrays.items() if a.dtype.kind == "f"}
    write_tensors(target / "model.safetensors", small)
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    print(f"{sum(a.nbytes for a in small.values()) / 2**20:.0f} MiB in {target}")


def slices(sizes: Sizes) -> dict[str, dict[str, np.ndarray]]:
    """Rows to train on, to choose on, held back, and the dev set."""
    with np.load(DATA / "sst2.npz") as file:
        ids, y = file["train_ids"].astype(np.int32), file["train_y"].astype(np.int32)
        dev = {
            "ids": file["dev_ids"].astype(np.int32),
            "y": file["dev_y"].astype(np.int32),
        }
    order = np.random.default_rng(22).permutation(len(y))[: sizes.rows]
    cuts = np.split(order, [sizes.tuning, sizes.tuning + sizes.held])
    names = ("tuning", "held", "train")
    parts = {n: {"ids": ids[c], "y": y[c]} for n, c in zip(names, cuts, strict=True)}
    return parts | {"dev": dev}


def private_module(
    bert: nn.Module, trained: str, function: Callable[..., Any] = loss
) -> PrivateModule:
    module = Classifier(bert).eval()
    if trained == "lora":
        return PrivateModule(
            module,
            function,
            trainable="lora",
            rank=RANK,
            targets="bert.*attention*.weight",
            also="head.*",
            precision=torch.bfloat16,
        )
    choices = {"all": "all", "bias": ("*bias", "head.*"), "head": "head.*"}
    return PrivateModule(
        module, function, trainable=choices[trained], precision=torch.bfloat16
    )


def optimizer(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam with warm-up and a cosine."""
    warm = max(1, steps // 10)
    return optax.adam(
        optax.warmup_cosine_decay_schedule(0.0, rate, warm, max(steps, warm + 1))
    )


def plan_for(epsilon: float, rows: int, sizes: Sizes) -> Any:
    return dp_sgd(
        iterations=sizes.private_steps,
        sampling_prob=min(1.0, sizes.private_batch / rows),
        epsilon=epsilon,
        delta=1 / (2 * rows),
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=CLIP,
        normalize_by=float(sizes.private_batch),
    ).make()


def train(
    private: PrivateModule,
    data: dict[str, np.ndarray],
    epsilon: float | None,
    rate: float,
    seed: int,
    sizes: Sizes,
) -> tuple[Any, float]:
    """Trained parameters, and milliseconds a step (compiling left out)."""
    data = data | {"ids": data["ids"][:, : sizes.positions]}
    if epsilon is not None:
        rates: list[float] = []
        trained = fit(
            plan_for(epsilon, len(data["y"]), sizes),
            private,
            data,
            optimizer=optimizer(rate, sizes.private_steps),
            delta=1 / (2 * len(data["y"])),
            source=Seeded(seed),
            resources=Resources(check_loss=False),
            reporting=Reporting(
                callback=lambda report: rates.append(report.steps_per_second),
                progress=False,
            ),
        )
        return trained.value, 1e3 / rates[-1]
    rule, of_part = optimizer(rate, sizes.steps), private.loss

    @jax.jit
    def step(params: Any, state: Any, frozen: Any, batch: Any) -> Any:
        grads = jax.grad(of_part.at(frozen))(params, batch)
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    rng = np.random.default_rng(seed)
    params, state = private.params, rule.init(private.params)
    marks = []
    for _ in range(sizes.steps):
        rows = rng.choice(len(data["y"]), min(sizes.batch, len(data["y"])), False)
        batch = {name: jnp.asarray(column[rows]) for name, column in data.items()}
        params, state = step(params, state, of_part.frozen, batch)
        jax.block_until_ready(params)
        marks.append(time.perf_counter())
    return params, 1e3 * float(np.median(np.diff(marks)))


class Judge:
    """Which rows released parameters classify as they should, by a compiled program."""

    def __init__(self, bert: nn.Module, trained: str) -> None:
        # A "loss" that is the scores: the module's own code, as in training.
        scorer = private_module(bert, trained, lambda module, ids: module(ids)).loss
        self._frozen = scorer.frozen
        self._run = jax.jit(lambda params, frozen, ids: scorer.at(frozen)(params, ids))

    def __call__(self, params: Any, data: dict[str, Any], size: int = 512) -> Any:
        found = []
        for start in range(0, len(data["y"]), size):
            ids = data["ids"][start : start + size]
            padded = np.zeros((size, ids.shape[1]), np.int32)
            padded[: len(ids)] = ids
            scores = self._run(params, self._frozen, padded)
            found.append(np.asarray(scores)[: len(ids)].argmax(-1))
        return np.concatenate(found) == data["y"]


# -- results ---------------------------------------------------------------------------


class Results:
    """Lines of a file, by name; what is there is not computed again."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self._end = path, time.monotonic() + seconds
        self._longest = 0.0
        self.known: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                told = json.loads(line)
                self.known[told.pop("name")] = told

    def get(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name in self.known:
            return self.known[name]
        if time.monotonic() + self._longest > self._end:
            raise SystemExit(f"no time for {name!r}: run it again to go on from here")
        start = time.monotonic()
        told = compute()
        self._longest = max(self._longest, time.monotonic() - start)
        with self.path.open("a") as file:
            file.write(json.dumps({"name": name} | told) + "\n")
        self.known[name] = told
        shown = {k: v for k, v in told.items() if not k.endswith("_bits")}
        print(f"{time.monotonic() - start:6.1f} s  {name}: {shown}", flush=True)
        return told


def packed(bits: np.ndarray) -> str:
    return np.packbits(bits).tobytes().hex()


def unpacked(text: str, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count]


def name_of(trained: str, epsilon: float | None) -> str:
    return f"{trained}, {'not private' if epsilon is None else f'epsilon {epsilon:g}'}"


def accuracies(
    results: Results, bert: nn.Module, sizes: Sizes, only: str | None
) -> None:
    parts = slices(sizes)
    for trained, epsilon, seeds in WAYS:
        if only is not None and trained != only:
            continue
        private, judge = private_module(bert, trained), Judge(bert, trained)
        way = name_of(trained, epsilon)
        searched = None if epsilon is None else TUNED_AT

        def run(
            rate: float,
            seed: int,
            at: tuple[str, ...],
            private: PrivateModule = private,
            judge: Judge = judge,
            epsilon: float | None = epsilon,
        ) -> dict[str, Any]:
            params, ms = train(private, parts["train"], epsilon, rate, seed, sizes)
            told: dict[str, Any] = {"rate": rate, "ms": ms}
            for part in at:
                found = judge(params, parts[part])
                told |= {part: float(found.mean()), f"{part}_bits": packed(found)}
            return told

        tried = {
            rate: results.get(
                f"{name_of(trained, searched)}, rate {rate:g}",
                lambda rate=rate, at=searched: run(
                    rate, TUNING_SEED, ("tuning",), epsilon=at
                ),
            )["tuning"]
            for rate in RATES[trained, epsilon is not None][: sizes.trials]
        }
        best = max(tried, key=tried.__getitem__)
        for seed in seeds[: sizes.seeds]:
            results.get(
                f"{way}, seed {seed}",
                lambda seed=seed, best=best: run(best, seed, ("dev", "held")),
            )


def report(results: Results, sizes: Sizes) -> None:
    counts = {"dev": 872, "held": sizes.held}
    print("\n| trained | | dev | held back | from not private, held back | ms a step |")
    print("|---|---|---|---|---|---|")
    for trained, epsilon, _ in WAYS:
        way = name_of(trained, epsilon)
        mine = _seeds(results, way)
        base = _seeds(results, name_of(trained, None)) or _seeds(
            results, name_of("all", None)
        )
        if not mine:
            continue
        cells = [f"{np.mean([r[part] for r in mine]):.4f}" for part in counts]
        paired = "-" if epsilon is None or not base else _paired(mine, base, counts)
        ms = np.median([r["ms"] for r in mine])
        print(f"| {trained} | {way.split(', ')[1]} | {' | '.join(cells)} | {paired}"
              f" | {ms:.1f} |")  # fmt: skip


def _seeds(results: Results, way: str) -> list[dict[str, Any]]:
    return [
        results.known[k] for k in sorted(results.known) if k.startswith(f"{way}, seed")
    ]


def _paired(mine: list[Any], base: list[Any], counts: dict[str, int]) -> str:
    """Mean difference in points and its 95% interval, over rows and over seeds.

    Rows are paired: both models see the same ones. The variance of a mean over seeds
    is that over rows (seeds averaged) and that between seeds.
    """
    n = counts["held"]
    pairs = [
        unpacked(a["held_bits"], n).astype(float) - unpacked(b["held_bits"], n)
        for a, b in zip(mine, base, strict=False)
    ]
    rows = np.mean(pairs, axis=0)
    variance = rows.var(ddof=1) / n
    if len(pairs) > 1:
        variance += np.var([p.mean() for p in pairs], ddof=1) / len(pairs)
    half = 1.96 * np.sqrt(variance)
    return f"{100 * rows.mean():+.2f} ({100 * half:.2f})"


# -- time a step against the peers -----------------------------------------------------


def times(results: Results, bert: nn.Module, sizes: Sizes) -> None:
    rows = {"ids": np.random.default_rng(0).integers(1000, 2000, (sizes.batch, 64))}
    rows = {"ids": rows["ids"].astype(np.int32), "y": np.arange(sizes.batch) % 2}
    batch = jax.tree.map(jnp.asarray, rows)
    private = PrivateModule(Classifier(bert).eval(), loss)
    of_part = private.loss

    def lap(run: Callable[[], Any]) -> dict[str, float]:
        run()
        laps = []
        for _ in range(sizes.laps):
            start = time.perf_counter()
            run()
            laps.append(time.perf_counter() - start)
        return {"ms": 1e3 * float(np.median(laps))}

    def in_jax(gradient: Callable[[Any, Any, Any], Any]) -> dict[str, float]:
        jitted = jax.jit(gradient)
        args = (private.params, of_part.frozen, batch)
        return lap(lambda: jax.block_until_ready(jitted(*args)))

    results.get(
        "time: ordinary",
        lambda: in_jax(lambda p, f, b: jax.grad(of_part.at(f))(p, b)),
    )
    results.get(
        "time: clipped",
        lambda: in_jax(
            lambda p, f, b: clipped_grad(of_part.at(f), l2_clip_norm=CLIP)(p, b).value
        ),
    )
    if their_clipping is not None:
        micro = min(64, sizes.batch)

        def theirs(p: Any, f: Any, b: Any) -> Any:
            gradient = their_clipping.clipped_grad(
                of_part.at(f), l2_clip_norm=CLIP, microbatch_size=micro
            )
            return gradient(p, b)

        results.get(
            "time: jax-privacy, microbatches of 64", tried(lambda: in_jax(theirs))
        )
    if opacus is not None:
        results.get("time: Opacus ghost", tried(lambda: lap(_ghost_step(bert, rows))))


def tried(compute: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """A peer that fails on this module is told, and ends nothing."""

    def run() -> dict[str, Any]:
        try:
            return compute()
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:200]}

    return run


def _ghost_step(bert: nn.Module, rows: dict[str, np.ndarray]) -> Callable[[], Any]:
    """A step of Opacus' ghost clipping on the same module and batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = ForOpacus(copy.deepcopy(bert)).to(device).train()
    rule = torch.optim.SGD(module.parameters(), lr=0.0)
    data = torch.utils.data.TensorDataset(*(torch.as_tensor(c) for c in rows.values()))
    loader = torch.utils.data.DataLoader(data, batch_size=len(data))
    module, rule, criterion, _ = opacus.PrivacyEngine().make_private(
        module=module,
        optimizer=rule,
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        grad_sample_mode="ghost",
        poisson_sampling=False,
    )
    ids, y = (torch.as_tensor(column).to(device) for column in rows.values())

    def step() -> None:
        rule.zero_grad()
        criterion(module(ids), y.long()).backward()
        rule.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


# -- one audited run -------------------------------------------------------------------


def audited(results: Results, bert: nn.Module, sizes: Sizes) -> None:
    """A real run with canaries among its rows, and the same with half the noise.

    A canary is a row whose gradient is four clip norms along a parameter of its own; a
    coin decides whether it is there. Plain SGD moves that parameter by the noisy sums,
    so what is scored is a difference of released parameters. Every row is in every step
    here: the claim is Gaussian, for which the audit is sharp.
    """
    parts = slices(sizes)["train"]
    texts = {name: column[: sizes.audit_rows] for name, column in parts.items()}
    coins = flip_coins(sizes.canaries, random_state=0)
    there = np.flatnonzero(coins)
    rows = {
        "ids": np.concatenate(
            [texts["ids"], np.tile(texts["ids"][:1], (len(there), 1))]
        ),
        "y": np.concatenate([texts["y"], np.zeros(len(there), np.int32)]),
        "canary": np.concatenate(
            [np.full(len(texts["y"]), -1, np.int32), there.astype(np.int32)]
        ),
    }

    def with_canaries(module: nn.Module, batch: Any) -> Any:
        number = batch["canary"]
        told = nn.functional.cross_entropy(
            module(batch["ids"]), batch["y"].long(), reduction="none"
        )
        own = 4 * CLIP * module.canaries(number.clamp(min=0)).squeeze(-1)
        return torch.where(number >= 0, own, told).mean()

    module = Classifier(bert, canaries=sizes.canaries).eval()
    private = PrivateModule(module, with_canaries)
    honest = _audit_plan(sizes, 1.0)

    def run(noise: float) -> dict[str, Any]:
        trained = fit(
            _audit_plan(sizes, noise),
            private,
            rows,
            optimizer=optax.sgd(1.0),
            delta=1e-6,
            source=Seeded(7),
            resources=Resources(check_loss=False, minibatch_size=sizes.batch),
            reporting=Reporting(progress=False),
        )
        name = "canaries.weight"
        moved = np.asarray(private.params[name]) - np.asarray(trained.value[name])
        found = audit_canaries(
            moved.reshape(-1), coins, Claim.of(honest.event(), unit=honest.unit)
        )
        return {"refuted": [result.refuted for result in found]}

    results.get("audit: the run", lambda: run(1.0))
    results.get("audit: twin with half the noise", lambda: run(0.5))


def _audit_plan(sizes: Sizes, share: float) -> Any:
    """Epsilon 3 at 1e-6 for so many full batches, times a share of its noise."""
    config = {
        "iterations": sizes.audit_steps,
        "sampling_prob": 1.0,
        "neighboring_relation": "ADD_OR_REMOVE_ONE",
        "l2_clip_norm": CLIP,
        "normalize_by": float(sizes.audit_rows),
    }
    noise = dp_sgd(**config, epsilon=3.0, delta=1e-6).make().noise_multiplier
    return dp_sgd(**config, noise_multiplier=share * noise).make()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, default=Path("minilm"))
    parser.add_argument("--out", type=Path, default=Path("sst2.jsonl"))
    parser.add_argument("--seconds", type=float, default=86_400.0)
    parser.add_argument("--convert", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", choices=["all", "lora", "bias", "head"])
    asked = parser.parse_args()
    sizes = TINY if asked.tiny else Sizes()
    if asked.convert is not None:
        convert(asked.convert, asked.weights)
        return
    results = Results(asked.out, asked.seconds)
    if asked.report:
        report(results, sizes)
        return
    if transformers is None or not (DATA / "sst2.npz").exists():
        print(f"needs transformers and {DATA}/sst2.npz: nothing is measured")
        return
    if not asked.tiny and not asked.weights.is_dir():
        print(f"no folder {asked.weights} with MiniLM's weights: nothing is measured")
        return
    versions = {m.__name__: m.__version__ for m in (jax, torch, transformers)}
    print(jax.devices()[0].device_kind, versions, flush=True)
    bert = encoder(None if asked.tiny else asked.weights)
    times(results, bert, sizes)
    audited(results, bert, sizes)
    accuracies(results, bert, sizes, asked.only)
    report(results, sizes)
    for name, told in results.known.items():
        if name.startswith(("time", "audit")):
            print(f"{name}: {told}")


if __name__ == "__main__":
    main()
