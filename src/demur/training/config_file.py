"""Config files of training runs: their tables, checked, and the run they describe.

`demur train CONFIG.toml` is a thin shell around `read_config` and `run`.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from demur.core.entry import Entry
from demur.ledger import Ledger
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
from demur.training.run.checkpoints.checkpoint import Checkpoint
from demur.training.run.trainer import Trained, fit
from demur.training.sizes.resources import Resources

Tables = dict[str, dict[str, Any]]
# The names of each table. Anything else is a spelling mistake, and a spelling mistake
# in a privacy parameter must not be ignored.
SETTINGS = {
    "data": {
        "train",
        "test",
        "features",
        "label",
        "id",
        "examples",
        "classes",
        "divide_by",
    },
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
NEEDED = {
    "data": {"train", "features", "label", "examples", "classes"},
    "model": {"kind"},
    "privacy": {"epsilon", "delta", "unit"},
    "training": {"steps", "batch_size", "learning_rate"},
    "output": {"model"},
}


def _read(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except ValueError as error:  # no TOML, or no text
            raise ValueError(
                f"{path} is no TOML file: {error}. A training is described in TOML, as"
                " [data], [model], [privacy], [training] and [output]; a table of data"
                " is named in it, under [data] train. Nothing was spent."
            ) from error


def kind_of_model(path: Path) -> str | None:
    """The kind of model that the file names, if it names one."""
    model = _read(path).get("model")
    return model.get("kind") if isinstance(model, dict) else None


def read_config(
    path: Path,
    settings: Mapping[str, set[str]] = SETTINGS,
    needed: Mapping[str, set[str]] = NEEDED,
) -> Tables:
    """The tables of the file, every name checked."""
    config = _read(path)
    for table, names in config.items():
        known = settings.get(table)
        if known is None or not isinstance(names, dict):
            raise ValueError(f"[{table}] is not a table of {sorted(settings)}")
        unknown = set(names) - known
        if unknown:
            raise ValueError(
                f"[{table}] has no settings {sorted(unknown)}; it has {sorted(known)}."
                " Nothing was spent."
            )
    for table, names_needed in needed.items():
        missing = names_needed - set(config.get(table, {}))
        if missing:
            raise ValueError(
                f"[{table}] needs the settings {sorted(missing)}. Nothing was spent."
            )
    return {table: config.get(table, {}) for table in settings}


@dataclass(frozen=True)
class RunResult:
    """The result of a run from a config file; the accuracy is that on its test file.

    `entry` is the ledger entry that paid.
    """

    entry: Entry
    statement: str
    model: Path
    digest: str
    test_accuracy: float | None


def run(
    config: Tables,
    home: Path,
    *,
    open_ledger: Callable[[str], Ledger | None],
) -> RunResult:
    """Load, plan, train, write; paths are relative to `home`.

    `open_ledger(dataset)` opens what `[output] ledger` names, or makes it, after all
    else was checked.
    """
    data = config["data"]
    rows = config_rows(home / data["train"], data)
    test = config_rows(home / data["test"], data) if "test" in data else None
    model = config_model(config["model"], data, rows["x"].shape[1:])
    plan = plan_of(config)
    model_place(config, home)
    what = cross_entropy(model), first_parameters(config, model), rows
    trained = train(config, home, plan, *what, open_ledger=open_ledger)
    return write_model(config, home, model, trained, test)


def train(
    config: Tables,
    home: Path,
    plan: DPExecutionPlan,
    *what: Any,
    open_ledger: Callable[[str], Ledger | None],
) -> Trained:
    """The run that the tables describe; `what` is trained, as `fit` takes it."""
    output = config["output"]
    optimizer, checkpoint = optimizer_of(config), checkpoint_of(config, home)
    name = output.get("dataset", Path(config["data"]["train"]).stem)
    ledger = open_ledger(name)
    try:
        return fit(
            plan,
            *what,
            optimizer=optimizer,
            ledger=ledger,
            label=output.get("label", f"training of {Path(output['model']).stem}"),
            average=config["training"].get("average"),
            checkpoint=checkpoint,
            resources=resources_of(config),
        )
    finally:
        if ledger is not None:
            ledger.close()


def write_model(
    config: Tables, home: Path, model: Model, trained: Trained, test: Any
) -> RunResult:
    """Write the released parameters, and judge them on the public test rows."""
    released = trained.value if trained.average is None else trained.average
    leaves = jax.tree_util.tree_flatten_with_path(released)[0]
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    place = home / config["output"]["model"]
    with open(place, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    test_accuracy = None
    if test is not None:
        test_accuracy = accuracy(model, released, test["x"], test["y"])
    return RunResult(
        trained.entry,
        trained.statement(),
        place,
        tree_digest(released),
        test_accuracy,
    )


def model_place(config: Tables, home: Path) -> Path:
    """Where the model is to be written, in a folder that is there."""
    place = home / config["output"]["model"]
    folder = place.parent
    if not folder.is_dir() or place.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            "[output] model must name a file that can be written, in a folder that"
            f" exists; got {place}. Nothing was spent."
        )
    return place


def first_parameters(config: Tables, model: Model) -> Any:
    """The parameters that a run of this config begins with."""
    return model.init(jax.random.key(int(config["model"].get("seed", 0))))


def config_rows(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The features and labels of a file that a config names."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}. Nothing was spent.")
    columns = as_data(path, columns=[data["features"], data["label"]]).columns
    x, y = columns[data["features"]], np.asarray(columns[data["label"]]).reshape(-1)
    if y.dtype.kind not in "iu":
        raise ValueError(
            f"the label must be whole numbers from 0; got {y.dtype}. Nothing was spent."
        )
    # By a rule that does not look at other rows: unknown classes are class 0.
    y = np.where((y >= 0) & (y < data["classes"]), y, 0).astype(np.int32)
    if "divide_by" in data:
        x = np.asarray(x, np.float32) / float(data["divide_by"])
    return {"x": x, "y": y}


def config_model(
    options: dict[str, Any], data: dict[str, Any], shape: tuple[int, ...]
) -> Model:
    """The model of a config."""
    classes = int(data["classes"])
    match options["kind"]:
        case "mlp":
            hidden = tuple(options.get("hidden", (256,)))
            return MLP(math.prod(shape), hidden, classes)
        case "cnn":
            height, width, *rest = options.get("shape", shape)
            return CNN(height, width, rest[0] if rest else 1, classes)
        case "transformer":
            if "vocabulary" not in options:
                raise ValueError(
                    "[model] must have vocabulary for a transformer. Nothing was spent."
                )
            names = [k for k in ("width", "heads", "layers") if k in options]
            sizes = {name: options[name] for name in names}
            return Transformer(options["vocabulary"], shape[0], classes, **sizes)
    raise ValueError(
        f"[model] kind must be mlp, cnn, transformer or text; got {options['kind']!r}."
        " Nothing was spent."
    )


def optimizer_of(config: Tables) -> optax.GradientTransformation:
    """The optimiser of [training]."""
    training = config["training"]
    return named_optimizer(
        training.get("optimizer", "sgd"),
        float(training["learning_rate"]),
        momentum=float(training.get("momentum", 0.0)),
    )


def checkpoint_of(config: Tables, home: Path) -> Checkpoint | None:
    """The checkpoint that [output] names, if it names one."""
    output = config["output"]
    if "checkpoint" not in output:
        return None
    every = int(output.get("checkpoint_every", 100))
    return Checkpoint(home / output["checkpoint"], every=every)


def resources_of(config: Tables) -> Resources:
    """What is computed at once, as [training] says."""
    training = config["training"]
    return Resources(training.get("minibatch_size"), training.get("microbatch_size"))


def plan_of(config: Tables) -> DPExecutionPlan:
    """The plan of [privacy], for the batches of [training] and [data]."""
    privacy, training = config["privacy"], config["training"]
    bands = int(privacy.get("bands", 1))
    examples, batch = int(config["data"]["examples"]), int(training["batch_size"])
    rate = bands * batch / examples
    if not 0 < rate <= 1:
        raise ValueError(
            f"batch_size times bands must be at most examples={examples}; got"
            f" {batch} times {bands}. Nothing was spent."
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
