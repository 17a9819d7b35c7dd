"""Text jobs of `demur train`: from a table of texts to a folder with a private model.

    [data]   texts and labels in a CSV or Parquet file
    [model]  kind = "text", an encoder in a local folder, what of it is trained

The other tables are those of `training.config_file`. The result is a folder that
transformers loads without demur, with a model card that carries the statement.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from demur.adapters.huggingface.encoders import LocalEncoder, load_encoder, silent
from demur.adapters.huggingface.model_cards import model_card
from demur.adapters.huggingface.texts import read_texts
from demur.adapters.torch.modules import PrivateModule
from demur.core import validate
from demur.durable.atomic_files import temporary_name
from demur.ledger import Ledger
from demur.training.config_file import (
    NEEDED,
    SETTINGS,
    RunResult,
    Tables,
    plan_of,
    read_config,
    train,
)
from demur.training.finetuning.parts import Choice
from demur.training.run.charges import tree_digest

_SETTINGS = SETTINGS | {
    "data": {"train", "test", "text", "label", "examples", "classes"},
    "model": {
        "kind",
        "encoder",
        "trainable",
        "rank",
        "alpha",
        "targets",
        "length",
        "seed",
    },
}
_NEEDED = NEEDED | {
    "data": {"train", "text", "label", "examples", "classes"},
    "model": {"kind", "encoder"},
}
_ATTENTION = "*attention*.weight"
_ROWS = 64  # of a test file at a time


def read_text_job(path: Path) -> Tables:
    """The tables of a text job, every name checked."""
    return read_config(path, _SETTINGS, _NEEDED)


def run_text_job(
    config: Tables, home: Path, *, open_ledger: Callable[[str], Ledger | None]
) -> RunResult:
    """Tokenise, plan, train, write; paths are relative to `home`.

    `open_ledger(dataset)` opens what `[output] ledger` names, or makes it, after all
    else was checked.
    """
    data, output = config["data"], config["output"]
    folder = home / output["model"]
    if folder.exists():
        raise ValueError(
            f"{output['model']} is there already: name another folder in [output]"
            " model, or move that one away. Nothing was spent."
        )
    if data["text"] == data["label"]:
        raise ValueError(
            f"[data] text and label are one column, {data['text']!r}: name the column"
            " of the texts and that of their labels. Nothing was spent."
        )
    classes, length = _classes(data), int(config["model"].get("length", 128))
    validate.count(length=length)
    encoder = load_encoder(
        home / config["model"]["encoder"],
        classes,
        seed=int(config["model"].get("seed", 0)),
    )
    encoder.check_length(length)
    rows = _rows(encoder, home / data["train"], data, length)
    test = _rows(encoder, home / data["test"], data, length) if "test" in data else None
    private = _private(encoder, config["model"])
    plan = plan_of(config)
    trained = train(config, home, plan, private, rows, open_ledger=open_ledger)
    released = trained.value if trained.average is None else trained.average
    module = private.to_module(released)
    accuracy = None if test is None else _accuracy(module, test)
    card = model_card(encoder, private, plan, config, trained.entry, accuracy)
    _write(folder, module, encoder, card)
    return RunResult(
        trained.entry, trained.statement(), folder, tree_digest(released), accuracy
    )


def _classes(data: dict[str, Any]) -> list[str]:
    classes = data["classes"]
    if not isinstance(classes, list) or len(set(map(str, classes))) < 2:
        raise ValueError(
            "[data] classes must list the labels, at least two, such as ['no', 'yes']:"
            " they are public. Nothing was spent."
        )
    if len(set(map(str, classes))) < len(classes):
        raise ValueError("[data] classes names a label twice. Nothing was spent.")
    return [str(name) for name in classes]


def _rows(
    encoder: LocalEncoder, path: Path, data: dict[str, Any], length: int
) -> dict[str, NDArray[Any]]:
    texts, labels = read_texts(path, data["text"], data["label"], _classes(data))
    if not texts:
        raise ValueError(f"{path.name} has no rows. Nothing was spent.")
    return encoder.tokens(texts, length) | {"labels": labels}


def _private(encoder: LocalEncoder, model: dict[str, Any]) -> PrivateModule:
    trainable: Choice = model.get("trainable", "lora")
    alpha = model.get("alpha")
    return PrivateModule(
        encoder.module,
        cross_entropy,
        trainable=trainable,
        rank=int(model.get("rank", 8)),
        alpha=None if alpha is None else float(alpha),
        targets=model.get("targets", _ATTENTION),
        also=None if trainable == "all" else encoder.is_new,
    )


def cross_entropy(module: nn.Module, batch: dict[str, Any]) -> Any:
    """The mean loss of a batch of tokens and labels."""
    inputs = {name: rows for name, rows in batch.items() if name != "labels"}
    scores = module(**inputs).logits
    return nn.functional.cross_entropy(scores, batch["labels"].long())


def _accuracy(module: nn.Module, rows: dict[str, NDArray[Any]]) -> float:
    """On a public test file, in parts."""
    labels, right = rows["labels"], 0
    names = [name for name in rows if name != "labels"]
    with torch.no_grad():
        for start in range(0, len(labels), _ROWS):
            part = slice(start, start + _ROWS)
            inputs = {name: torch.as_tensor(rows[name][part]) for name in names}
            found = module(**inputs).logits.argmax(-1).numpy()
            right += int((found == labels[part]).sum())
    return right / len(labels)


def _write(folder: Path, module: nn.Module, encoder: LocalEncoder, card: str) -> None:
    """The folder, which has its name when it is whole."""
    aside = temporary_name(folder)
    saved: Any = module
    saved.config._name_or_path = encoder.name  # not where it lay on this machine
    encoder.tokenizer.name_or_path = encoder.name
    try:
        with silent():
            saved.save_pretrained(aside)
            encoder.tokenizer.save_pretrained(aside)
        (aside / "README.md").write_text(card, encoding="utf-8")
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
