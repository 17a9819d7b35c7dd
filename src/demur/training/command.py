"""A run described by a file: tables of plain values in, parameters and a statement out.

`demur train CONFIG.toml` is a thin shell around `read_config` and `run`.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from demur.core.errors import LedgerMismatch
from demur.ledger import Budget, Filter, Ledger
from demur.training.data import as_data
from demur.training.models import (
    CNN,
    MLP,
    Model,
    Transformer,
    accuracy,
    cross_entropy,
)
from demur.training.optimizers import named_optimizer
from demur.training.plans.config import BandMFExecutionPlanConfig
from demur.training.plans.plan import DPExecutionPlan
from demur.training.run.charges import tree_digest
from demur.training.run.checkpoint import Checkpoint
from demur.training.run.trainer import fit

Tables = dict[str, dict[str, Any]]
# What each table of the file may say. Anything else is a spelling mistake, and a
# spelling mistake in a privacy parameter must not be passed over.
_KNOWN = {
    "data": {"train", "test", "features", "label", "examples", "classes", "divide_by"},
    "model": {
        "kind",
        "hidden",
        "shape",
        "vocabulary",
        "width",
        "heads",
        "layers",
        "seed",
    },
    "privacy": {
        "epsilon",
        "delta",
        "unit",
        "clip_norm",
        "bands",
        "noise",
        "truncated_batch_size",
    },
    "training": {
        "steps",
        "batch_size",
        "learning_rate",
        "momentum",
        "average",
        "optimizer",
        "minibatch_size",
        "microbatch_size",
    },
    "output": {"model", "ledger", "dataset", "label", "checkpoint", "checkpoint_every"},
}
_NEEDED = {
    "data": {"train", "features", "label", "examples", "classes"},
    "model": {"kind"},
    "privacy": {"epsilon", "delta", "unit"},
    "training": {"steps", "batch_size", "learning_rate"},
    "output": {"model"},
}


def read_config(path: Path) -> Tables:
    """The tables of the file, every name checked."""
    with open(path, "rb") as file:
        said = tomllib.load(file)
    for table, names in said.items():
        known = _KNOWN.get(table)
        if known is None or not isinstance(names, dict):
            raise ValueError(f"[{table}] is not a table of {sorted(_KNOWN)}")
        unknown = set(names) - known
        if unknown:
            raise ValueError(
                f"[{table}] does not know {sorted(unknown)}; it knows {sorted(known)}."
                " Nothing was spent."
            )
    for table, needed in _NEEDED.items():
        missing = needed - set(said.get(table, {}))
        if missing:
            raise ValueError(f"[{table}] must say {sorted(missing)}")
    return {table: said.get(table, {}) for table in _KNOWN}


@dataclass(frozen=True)
class Done:
    """What a run from a file ends with; the accuracy is that on the test file."""

    statement: str
    model: Path
    digest: str
    test_accuracy: float | None


def run(said: Tables, home: Path) -> Done:
    """Load, plan, train, write; paths are relative to `home`."""
    data, output, training = said["data"], said["output"], said["training"]
    rows = _rows(home / data["train"], data)
    held = _rows(home / data["test"], data) if "test" in data else None
    model = _model(said["model"], data, rows["x"].shape[1:])
    plan = _plan(said)
    params = model.init(jax.random.key(int(said["model"].get("seed", 0))))
    optimizer = named_optimizer(
        training.get("optimizer", "sgd"),
        float(training["learning_rate"]),
        momentum=float(training.get("momentum", 0.0)),
    )
    kept = None
    if "checkpoint" in output:
        every = int(output.get("checkpoint_every", 100))
        kept = Checkpoint(home / output["checkpoint"], every=every)
    ledger = _ledger(said, home, plan)
    try:
        done = fit(
            plan,
            cross_entropy(model),
            params,
            rows,
            optimizer=optimizer,
            ledger=ledger,
            label=output.get("label", f"training of {Path(output['model']).stem}"),
            minibatch_size=training.get("minibatch_size"),
            microbatch_size=training.get("microbatch_size"),
            average=training.get("average"),
            checkpoint=kept,
        )
    finally:
        if ledger is not None:
            ledger.close()
    released = done.value if done.average is None else done.average
    leaves = jax.tree_util.tree_flatten_with_path(released)[0]
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    with open(home / output["model"], "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    found = None
    if held is not None:
        found = accuracy(model, released, held["x"], held["y"])
    return Done(done.statement(), home / output["model"], tree_digest(released), found)


def _rows(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}. Nothing was spent.")
    found = as_data(path, columns=[data["features"], data["label"]]).columns
    x, y = found[data["features"]], np.asarray(found[data["label"]]).reshape(-1)
    if y.dtype.kind not in "iu":
        raise ValueError(f"the label must be whole numbers from 0; got {y.dtype}")
    # By a rule that does not look at other rows: unknown classes are class 0.
    y = np.where((y >= 0) & (y < data["classes"]), y, 0).astype(np.int32)
    if "divide_by" in data:
        x = np.asarray(x, np.float32) / float(data["divide_by"])
    return {"x": x, "y": y}


def _model(said: dict[str, Any], data: dict[str, Any], shape: tuple[int, ...]) -> Model:
    classes = int(data["classes"])
    match said["kind"]:
        case "mlp":
            hidden = tuple(said.get("hidden", (256,)))
            return MLP(math.prod(shape), hidden, classes)
        case "cnn":
            height, width, *rest = said.get("shape", shape)
            return CNN(height, width, rest[0] if rest else 1, classes)
        case "transformer":
            if "vocabulary" not in said:
                raise ValueError("[model] must say vocabulary for a transformer")
            chosen = {k: said[k] for k in ("width", "heads", "layers") if k in said}
            return Transformer(said["vocabulary"], shape[0], classes, **chosen)
    raise ValueError(
        f"[model] kind must be mlp, cnn or transformer; got {said['kind']!r}"
    )


def _plan(said: Tables) -> DPExecutionPlan:
    privacy, training = said["privacy"], said["training"]
    bands = int(privacy.get("bands", 1))
    examples, batch = int(said["data"]["examples"]), int(training["batch_size"])
    rate = bands * batch / examples
    if not 0 < rate <= 1:
        raise ValueError(
            f"batch_size times bands must be at most examples={examples}; got"
            f" {batch} times {bands}"
        )
    alone = privacy["unit"] == "add_or_remove_one"
    return BandMFExecutionPlanConfig(
        iterations=int(training["steps"]),
        num_bands=bands,
        sampling_prob=rate,
        epsilon=float(privacy["epsilon"]),
        delta=float(privacy["delta"]),
        neighboring_relation=privacy["unit"],
        l2_clip_norm=float(privacy.get("clip_norm", 1.0)),
        normalize_by=float(batch),
        noise=privacy.get("noise", "threefry"),
        truncated_batch_size=privacy.get("truncated_batch_size"),
        num_examples=None if alone else examples,
    ).make()


def _ledger(said: Tables, home: Path, plan: DPExecutionPlan) -> Ledger | None:
    output, privacy = said["output"], said["privacy"]
    if "ledger" not in output:
        return None
    place = (
        home / output["ledger"] if "://" not in output["ledger"] else output["ledger"]
    )
    try:
        return Ledger.open(place)
    except LedgerMismatch:
        return Ledger.open(
            place,
            dataset=output.get("dataset", Path(said["data"]["train"]).stem),
            budgets={plan.unit: Budget(privacy["epsilon"], privacy["delta"])},
            filter=Filter.pure(),
        )
