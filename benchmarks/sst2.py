"""MiniLM on SST-2, fine-tuned privately: accuracy, time a step, one audited run.

    python benchmarks/sst2.py [--weights minilm] [--out sst2.jsonl] [--seconds 540]
    python benchmarks/sst2.py --report [--out sst2.jsonl]
    python benchmarks/sst2.py --tiny            # a try on a CPU: other model, few rows
    python benchmarks/sst2.py --convert FOLDER  # its float16 weights, into --weights

Data: $DEMUR_DATA/sst2.npz. `--weights` is a folder with config.json, vocab.txt and
model.safetensors (float16 will do; nothing is downloaded). Each result is a line of
--out, written when it is there; a run with the same --out goes on where the last one
stopped, and begins nothing that might last longer than --seconds. On a machine without
a network: put the folder of --weights (43 MiB in float16), sst2.npz (1.5 MiB) and the
file of results where they travel along, and bring that file back. `--cache` is a folder
for compiled programs. Two runs share the device: while one trains, the next is traced.

SST-2's training rows are the phrases of some 6,900 sentences, so that a row which is
held back at random shares its words with rows that are trained on, and a model that
learns these by heart gains there. Hence two larger slices beside the dev set: "held",
rows held back at random, and "apart", all phrases of sentences of which training sees
no phrase that belongs to them alone. Rates are chosen on such sentences too (others),
with the same number of trials for every way of training, private or not, by a seed that
is not used again; the rates of private ways are chosen at epsilon 3 and serve the other
epsilons too.

Batches and steps are not searched. Not private: 400 batches of 1,024. Private: 100
batches of 8,192, because what a private run learns from is sqrt(steps) * batch / noise
multiplier, which the plan tells before any data is seen, and at equal numbers of
examples few large batches have more of it (epsilon 3 and 8: 34,900 and 68,500; 33,200
and 60,100 for 200 batches of 4,096; 30,900 and 50,900 for 400 of 2,048; 36,600 and
76,400 for twice the examples, 200 of 8,192). Training reads the first 40 of 64
positions, private training 32 (2 and 5% of the training rows are longer), judging all;
products are bfloat16.

The head starts from words, without data: the difference between the pooled vectors of
"a great film", ... and "a terrible film", ... A head that starts at 0 hands the encoder
no gradient, and takes the whole clip norm for itself until it has grown.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
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
from demur.training import (
    CostModel,
    Reporting,
    Resources,
    clipped_grad,
    dp_sgd,
    fit,
)
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
# Ways of training, by importance: which parameters, which epsilon (None: not private).
MAIN = [
    ("all", None),
    ("all", 3.0),
    ("all", 8.0),
    ("lora", None),
    ("lora", 3.0),
    ("lora", 8.0),
]
WITH_ONE_SEED = [
    ("all", 1.0),
    ("lora", 1.0),
    ("bias", 3.0),
    ("head", 3.0),
    ("head", None),
]
JUDGED = ("dev", "apart", "held")
# Two rates each: as many for every way. Their range is that of earlier trials on other
# slices and batches (docs/benchmarks.md).
RATES = {
    ("all", False): (2e-4, 4e-4),
    ("lora", False): (1e-3, 2e-3),
    ("head", False): (3e-2, 1e-1),
    ("all", True): (2e-3, 3e-3),
    ("lora", True): (6e-3, 1e-2),
    ("bias", True): (1e-2, 2e-2),
    ("head", True): (3e-2, 1e-1),
}
# A program takes longer to compile than padding takes to compute: one size for all.
ONE_SIZE = CostModel(compile_s=60.0, per_example_s=2e-5, fixed_s=1e-3)
PRAISE = (
    "great wonderful good excellent brilliant delightful funny moving beautiful"
    " enjoyable"
)
BLAME = "terrible awful bad poor stupid boring dull disappointing ugly worthless"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the whole benchmark, or of a try."""

    steps: int = 400
    batch: int = 1024
    private_steps: int = 100
    private_batch: int = 8192
    positions: int = 40
    private_positions: int = 32
    tuning: int = 2000
    held: int = 5000
    apart: int = 5000
    rows: int | None = None
    trials: int = 2
    seeds: int = 3
    canaries: int = 2000
    audit_rows: int = 2048
    audit_steps: int = 8
    laps: int = 10
    at_once: int = 2


TINY = Sizes(3, 32, 2, 64, 16, 12, 40, 60, 60, 600, 1, 1, 500, 64, 2, 1)


class Classifier(nn.Module):
    """The mean of the last layer over the words, and a linear head."""

    def __init__(self, bert: nn.Module, canaries: int = 0) -> None:
        super().__init__()
        self.bert = bert
        self.head = nn.Linear(bert.config.hidden_size, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if canaries:
            self.canaries = nn.Embedding(canaries, 1)

    def pooled(self, ids: Any) -> Any:
        mask = (ids != 0).int()
        words = self.bert(
            input_ids=ids, attention_mask=mask, **self.more(ids)
        ).last_hidden_state
        weights = mask[..., None].to(words.dtype)
        return (words * weights).sum(1) / weights.sum(1).clamp(min=1.0)

    def forward(self, ids: Any) -> Any:
        return self.head(self.pooled(ids))

    def more(self, ids: Any) -> dict[str, Any]:
        return {}

    @torch.no_grad()
    def start_from_words(self, vocabulary: list[str], scale: float = 0.3) -> None:
        """The head tells praise from blame, by the encoder alone."""
        number = {word: i for i, word in enumerate(vocabulary)}

        def mean(words: str) -> Any:
            texts = [f"[CLS] a {word} film [SEP]".split() for word in words.split()]
            return self.pooled(torch.tensor([[number[w] for w in t] for t in texts]))

        good, bad = mean(PRAISE).mean(0), mean(BLAME).mean(0)
        way = 0.5 * scale * (good - bad)
        middle = 0.5 * (good + bad) @ way
        self.head.weight.copy_(torch.stack([-way, way]))
        self.head.bias.copy_(torch.stack([middle, -middle]))


class ForOpacus(Classifier):
    """With places and types for each example, which its rule for look-ups asks for."""

    def more(self, ids: Any) -> dict[str, Any]:
        places = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        return {"position_ids": places, "token_type_ids": torch.zeros_like(places)}


def loss(module: nn.Module, batch: Any) -> Any:
    return nn.functional.cross_entropy(module(batch["ids"]), batch["y"].long())


def classifier(weights: Path | None, kind: Any = Classifier, **more: Any) -> Classifier:
    """MiniLM from a folder, or a tiny one with random weights, and its head."""
    module = kind(encoder(weights), **more).eval()
    if weights is not None:
        words = (weights / "vocab.txt").read_text(encoding="utf-8").splitlines()
        module.start_from_words(words)
    return module


def encoder(weights: Path | None) -> nn.Module:
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
    for name in ("config.json", "vocab.txt"):
        (target / name).write_bytes((folder / name).read_bytes())
    print(f"{sum(a.nbytes for a in small.values()) / 2**20:.0f} MiB in {target}")


@cache
def slices(sizes: Sizes) -> dict[str, dict[str, np.ndarray]]:
    """Rows to train on, to choose on, apart, held back, and the dev set."""
    with np.load(DATA / "sst2.npz") as file:
        ids, y = file["train_ids"].astype(np.int32), file["train_y"].astype(np.int32)
        dev = {
            "ids": file["dev_ids"].astype(np.int32),
            "y": file["dev_y"].astype(np.int32),
        }
    ids, y = ids[: sizes.rows], y[: sizes.rows]
    rng = np.random.default_rng(22)
    first, last = sentences(ids)
    # Rows that belong to one sentence alone, by sentence, in a random order.
    place = rng.permutation(first.max() + 1)[first]
    own = np.flatnonzero(first == last)
    own = own[np.argsort(place[own], kind="stable")]
    tuning, apart, _ = np.split(own, [sizes.tuning, sizes.tuning + sizes.apart])
    # Training takes no row of a sentence that is judged on, whole or in part.
    judged = np.isin(first, np.union1d(first[tuning], first[apart]))
    rest = rng.permutation(np.flatnonzero(~(judged & (first == last))))
    cuts = {"tuning": tuning, "apart": apart}
    cuts |= {"held": rest[: sizes.held], "train": rest[sizes.held :]}
    return {n: {"ids": ids[c], "y": y[c]} for n, c in cuts.items()} | {"dev": dev}


def sentences(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row the first and the last sentence that it is part of.

    A sentence is a row that is part of no longer one. Where both numbers are equal,
    the row is part of one sentence alone.
    """
    rows: dict[tuple[int, ...], list[int]] = {}
    for number, (row, length) in enumerate(zip(ids, (ids != 0).sum(1), strict=True)):
        rows.setdefault(tuple(row[1 : length - 1].tolist()), []).append(number)
    first, last = np.full(len(ids), -1), np.full(len(ids), -1)
    count = 0
    for text in sorted(rows, key=len, reverse=True):
        if first[rows[text][0]] >= 0:
            continue
        ends = range(len(text) + 1)
        for part in {text[a:b] for a in ends for b in ends[a:]}:
            for number in rows.get(part, ()):
                first[number] = count if first[number] < 0 else first[number]
                last[number] = count
        count += 1
    return first, last


def private_module(
    module: Classifier, trained: str, function: Callable[..., Any] = loss
) -> PrivateModule:
    if trained == "lora":
        return PrivateModule(
            module,
            function,
            trainable="lora",
            rank=RANK,
            targets="bert.encoder.*weight",
            also="head.*",
            precision=torch.bfloat16,
        )
    choices = {"all": "all", "bias": ("*bias", "head.*"), "head": "head.*"}
    return PrivateModule(
        module, function, trainable=choices[trained], precision=torch.bfloat16
    )


def optimizer(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam with warm-up and a cosine.

    The rate is part of its state, so that one compiled program serves all rates.
    """
    warm = max(1, steps // 10)
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, warm, max(steps, warm + 1))
    return optax.chain(
        optax.scale_by_adam(),
        optax.scale_by_schedule(shape),
        optax.inject_hyperparams(optax.scale)(step_size=-rate),
    )


@cache
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


class Training:
    """A way of training: its module, and its compiled programs."""

    def __init__(self, module: Classifier, trained: str, sizes: Sizes) -> None:
        self.private, self.sizes = private_module(module, trained), sizes
        self.judge = Judge(module, trained)
        of_part = self.private.loss
        rule = optimizer(1.0, sizes.steps)

        @jax.jit
        def step(params: Any, state: Any, frozen: Any, batch: Any) -> Any:
            grads = jax.grad(of_part.at(frozen))(params, batch)
            updates, state = rule.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        self._step, self._frozen = step, of_part.frozen

    def privately(
        self,
        data: dict[str, np.ndarray],
        epsilon: float,
        rate: float,
        seed: int,
        started: Callable[[], None],
    ) -> Any:
        """Parameters of a private run; `started` is called when it is compiled."""
        data = data | {"ids": data["ids"][:, : self.sizes.private_positions]}
        trained = fit(
            plan_for(epsilon, len(data["y"]), self.sizes),
            self.private,
            data,
            optimizer=optimizer(rate, self.sizes.private_steps),
            delta=1 / (2 * len(data["y"])),
            source=Seeded(seed),
            resources=Resources(
                check_loss=False,
                shapes=ONE_SIZE,
                microbatch_size=max(1, self.sizes.private_batch // 4),
            ),
            reporting=Reporting(
                callback=lambda report: started() if report.step == 1 else None,
                progress=False,
            ),
        )
        return trained.value

    def plainly(
        self,
        data: dict[str, np.ndarray],
        rate: float,
        seed: int,
        started: Callable[[], None],
    ) -> Any:
        """Parameters of a run that is not private."""
        data = data | {"ids": data["ids"][:, : self.sizes.positions]}
        rng = np.random.default_rng(seed)
        params = self.private.params
        state = optimizer(rate, self.sizes.steps).init(params)
        size = min(self.sizes.batch, len(data["y"]))
        for number in range(self.sizes.steps):
            rows = rng.choice(len(data["y"]), size, replace=False)
            batch = {name: jnp.asarray(column[rows]) for name, column in data.items()}
            params, state = self._step(params, state, self._frozen, batch)
            if number % 4 == 0:
                jax.block_until_ready(params)
            if number == 0:
                started()
        return params


def _with_scores(module: nn.Module, ids: Any) -> Any:
    scores = module(ids)
    return scores.mean(), scores


class Judge:
    """Which rows released parameters classify as they should, by a compiled program."""

    def __init__(self, module: Classifier, trained: str) -> None:
        # The scores beside a "loss": the module's own code, as in training.
        part = private_module(module, trained, _with_scores)
        scorer = part.loss
        self._frozen = scorer.frozen
        self._run = jax.jit(
            lambda params, frozen, ids: scorer.at(frozen)(params, ids)[1]
        )
        self(part.params, {"ids": np.ones((1, 64), np.int32), "y": np.zeros(1)})

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
        self._longest, self._writing = 0.0, threading.Lock()
        self.known: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                told = json.loads(line)
                self.known[told.pop("name")] = told

    def forget(self, name: str, rate: float) -> None:
        """A run at another rate, from fewer trials, is made again."""
        with self._writing:
            if name in self.known and self.known[name]["rate"] != rate:
                del self.known[name]

    def get(
        self, name: str, compute: Callable[[], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """What is known of it, or computed now; None where there is no time left."""
        if name in self.known:
            return self.known[name]
        start = time.monotonic()
        if start + self._longest > self._end:
            print(f"no time for {name!r}: run it again to go on from here", flush=True)
            return None
        told = compute()
        with self._writing:
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


class Accuracies:
    """All runs in order of importance, two at a time (or one).

    A run holds `_turn` until its first step is done: tracing takes turns, and a run
    that trains leaves it to the next one.
    """

    def __init__(self, results: Results, module: Classifier, sizes: Sizes) -> None:
        self._results, self._module, self._sizes = results, module, sizes
        self._parts = slices(sizes)
        self._turn = threading.Lock()
        self._ways: dict[str, Training] = {}
        self._trials: dict[tuple[str, bool], list[tuple[float, Future[Any]]]] = {}

    def compute(self) -> None:
        with ThreadPoolExecutor(self._sizes.at_once) as self._pool:
            waiting = self._choose(MAIN)
            for seed in range(self._sizes.seeds):
                waiting += [self._final(*way, seed) for way in MAIN]
            waiting += self._choose(WITH_ONE_SEED)
            waiting += [self._final(*way, 0) for way in WITH_ONE_SEED]
            for future in waiting:
                future.result()

    def _choose(self, ways: list[tuple[str, float | None]]) -> list[Future[Any]]:
        """Trials of the ways that have none yet."""
        submitted = []
        for trained, epsilon in ways:
            kind = trained, epsilon is not None
            if kind in self._trials:
                continue
            at = None if epsilon is None else TUNED_AT
            self._trials[kind] = [
                (
                    rate,
                    self._pool.submit(
                        self._results.get,
                        f"{name_of(trained, at)}, rate {rate:g}",
                        lambda trained=trained, at=at, rate=rate: self._run(
                            trained, at, rate, TUNING_SEED, ("tuning",)
                        ),
                    ),
                )
                for rate in RATES[kind][: self._sizes.trials]
            ]
            submitted += [future for _, future in self._trials[kind]]
        return submitted

    def _final(self, trained: str, epsilon: float | None, seed: int) -> Future[Any]:
        trials = self._trials[trained, epsilon is not None]

        def run() -> Any:
            if any(future.result() is None for _, future in trials):
                return None
            tried = {rate: future.result()["tuning"] for rate, future in trials}
            best = max(tried, key=tried.__getitem__)
            name = f"{name_of(trained, epsilon)}, seed {seed}"
            self._results.forget(name, rate=best)
            return self._results.get(
                name, lambda: self._run(trained, epsilon, best, seed, JUDGED)
            )

        return self._pool.submit(run)

    def _run(
        self,
        trained: str,
        epsilon: float | None,
        rate: float,
        seed: int,
        at: tuple[str, ...],
    ) -> dict[str, Any]:
        mine = self._turn.acquire()

        def started() -> None:
            nonlocal mine
            if mine:
                mine = False
                self._turn.release()

        try:
            if trained not in self._ways:
                self._ways[trained] = Training(self._module, trained, self._sizes)
            way, data = self._ways[trained], self._parts["train"]
            if epsilon is None:
                params = way.plainly(data, rate, seed, started)
            else:
                params = way.privately(data, epsilon, rate, seed, started)
        finally:
            started()
        told: dict[str, Any] = {"rate": rate}
        for part in at:
            found = way.judge(params, self._parts[part])
            told |= {part: float(found.mean()), f"{part}_bits": packed(found)}
        return told


def report(results: Results, sizes: Sizes) -> None:
    counts = {part: len(slices(sizes)[part]["y"]) for part in JUDGED}
    print(f"\nrows: {counts}, trained on {len(slices(sizes)['train']['y'])}")
    columns = " | ".join([*JUDGED, *(f"less: {part}" for part in JUDGED)])
    print(f"| trained | | rate | seeds | {columns} |")
    print(f"|{'---|' * (4 + 2 * len(JUDGED))}")
    for trained, epsilon in MAIN + WITH_ONE_SEED:
        mine = _seeds(results, trained, epsilon)
        if not mine:
            continue
        cells = [f"{mine[0]['rate']:g}", str(len(mine))]
        cells += [f"{np.mean([r[part] for r in mine]):.4f}" for part in counts]
        base = _seeds(results, "all", None)
        is_base = (trained, epsilon) == ("all", None) or not base
        cells += [
            "-" if is_base else _paired(mine, base, *part) for part in counts.items()
        ]
        way = name_of(trained, epsilon).split(", ")[1]
        print(f"| {trained} | {way} | {' | '.join(cells)} |")
    base = _seeds(results, "lora", None)
    for epsilon in (3.0, 8.0):
        mine = _seeds(results, "lora", epsilon)
        if base and mine:
            told = {part: _paired(mine, base, part, n) for part, n in counts.items()}
            print(f"LoRA, epsilon {epsilon:g}, from LoRA not private: {told}")
    for name, found in results.known.items():
        if name.startswith(("time", "audit")) or ", rate " in name:
            shown = {k: v for k, v in found.items() if not k.endswith("_bits")}
            print(f"{name}: {shown}")


def _seeds(
    results: Results, trained: str, epsilon: float | None
) -> list[dict[str, Any]]:
    """Runs of a way, one for each seed, at the rate of the last of them."""
    way = f"{name_of(trained, epsilon)}, seed"
    found = {name: t for name, t in results.known.items() if name.startswith(way)}
    last = [told["rate"] for told in found.values()][-1:]
    return [found[name] for name in sorted(found) if found[name]["rate"] in last]


def _paired(mine: list[Any], base: list[Any], part: str, n: int) -> str:
    """Mean difference in points and its 95% interval, over rows and over seeds.

    Rows are paired: both models see the same ones. The variance of a mean over seeds
    is that over rows (seeds averaged) and that between seeds.
    """

    def right(found: dict[str, Any]) -> np.ndarray:
        return unpacked(found[f"{part}_bits"], n).astype(float)

    pairs = [right(a) - right(b) for a, b in zip(mine, base, strict=False)]
    rows = np.mean(pairs, axis=0)
    variance = rows.var(ddof=1) / n
    if len(pairs) > 1:
        variance += np.var([p.mean() for p in pairs], ddof=1) / len(pairs)
    half = 1.96 * np.sqrt(variance)
    return f"{100 * rows.mean():+.2f} ({100 * half:.2f})"


# -- time a step against the peers -----------------------------------------------------


def times(results: Results, module: Classifier, sizes: Sizes) -> None:
    rows = {"ids": np.random.default_rng(0).integers(1000, 2000, (sizes.batch, 64))}
    rows = {"ids": rows["ids"].astype(np.int32), "y": np.arange(sizes.batch) % 2}
    batch = jax.tree.map(jnp.asarray, rows)
    private = PrivateModule(module, loss)
    of_part = private.loss

    def in_jax(gradient: Callable[[Any, Any, Any], Any]) -> dict[str, float]:
        jitted = jax.jit(gradient)
        args = (private.params, of_part.frozen, batch)
        return lap(lambda: jax.block_until_ready(jitted(*args)), sizes.laps)

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
        # torchax makes itself torch's accelerator: where it is loaded, Opacus fails.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as child:
            task = tried(lambda: child.submit(ghost, module, rows, sizes.laps).result())
            results.get("time: Opacus ghost", task)


def lap(run: Callable[[], Any], laps: int) -> dict[str, float]:
    """The median of some laps, after one that counts for nothing."""
    taken = []
    for _ in range(laps + 1):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return {"ms": 1e3 * float(np.median(taken[1:]))}


def tried(compute: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """A peer that fails on this module is told, and ends nothing."""

    def run() -> dict[str, Any]:
        try:
            return compute()
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:200]}

    return run


def ghost(like: Classifier, rows: dict[str, np.ndarray], laps: int) -> dict[str, float]:
    """Steps of Opacus' ghost clipping on the same module and batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True  # as in JAX
    module = ForOpacus(copy.deepcopy(like.bert)).to(device).train()
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

    return lap(step, laps)


# -- one audited run -------------------------------------------------------------------


def audited(results: Results, like: Classifier, sizes: Sizes) -> None:
    """A real run with canaries among its rows, and the same with half the noise.

    A canary is a row whose gradient is four clip norms along a parameter of its own; a
    coin decides whether it is there. Plain SGD moves that parameter by the noisy sums,
    so what is scored is a difference of released parameters. Every row is in every step
    here: the claim is Gaussian, for which the audit is sharp.
    """
    parts = slices(sizes)["train"]
    texts = {name: column[: sizes.audit_rows] for name, column in parts.items()}
    texts["ids"] = texts["ids"][:, : sizes.positions]
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

    module = Classifier(like.bert, canaries=sizes.canaries).eval()
    module.head.load_state_dict(like.head.state_dict())
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
            resources=Resources(check_loss=False, shapes=ONE_SIZE),
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


PARTS: dict[str, Callable[[Results, Classifier, Sizes], None]] = {
    "accuracies": lambda *given: Accuracies(*given).compute(),
    "times": times,
    "audit": audited,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, default=Path("minilm"))
    parser.add_argument("--out", type=Path, default=Path("sst2.jsonl"))
    parser.add_argument("--seconds", type=float, default=86_400.0)
    parser.add_argument("--convert", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one-at-a-time", action="store_true", help="half the memory")
    parser.add_argument("--cache", type=Path, help="folder of compiled programs")
    parser.add_argument("--part", choices=list(PARTS), nargs="+", default=list(PARTS))
    asked = parser.parse_args()
    sizes = TINY if asked.tiny else Sizes()
    sizes = replace(sizes, at_once=1) if asked.one_at_a_time else sizes
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
    if asked.cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(asked.cache.absolute()))
    module = classifier(None if asked.tiny else asked.weights)
    for part in asked.part:
        PARTS[part](results, module, sizes)
    report(results, sizes)


if __name__ == "__main__":
    main()
