"""Encoders of Hugging Face in a local folder, as classifiers of texts.

transformers is told to stay offline, and is given a folder that was looked at first. No
code of a folder is run: models of its own (`trust_remote_code`) and pickled weights are
refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn

from demur.adapters.frameworks import missing
from demur.core import validate

# Before transformers is imported, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import transformers
    from transformers.utils import logging as their_logging
except ImportError as error:
    raise missing("transformers", "huggingface,torch,jax", error) from error

_TOKENISERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
_NEEDED = (
    "config.json, model.safetensors and the tokeniser's files (tokenizer.json, or"
    " vocab.txt with tokenizer_config.json)"
)

_FEW = 0.25  # of an encoder's numbers may be missing


@dataclass(frozen=True, eq=False)
class LocalEncoder:
    """A classifier of texts around an encoder, and its tokeniser.

    `new` names the parameters that the folder had no weights for, and those of the
    head: they are to be trained whatever else is.
    """

    name: str
    module: nn.Module
    tokenizer: Any
    new: tuple[str, ...]

    def tokens(self, texts: Sequence[str], length: int) -> dict[str, NDArray[np.int32]]:
        """Each text by itself, cut or padded to `length` tokens."""
        found = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="np",
        )
        return {name: np.asarray(rows, np.int32) for name, rows in found.items()}

    def check_length(self, length: int) -> None:
        """Refuse a length of texts that the encoder has no positions for."""
        try:
            rows = self.tokens(["a text"], length)
            with torch.no_grad():
                self.module(
                    **{name: torch.as_tensor(row) for name, row in rows.items()}
                )
        except (IndexError, RuntimeError, ValueError) as error:
            most = getattr(self.module.config, "max_position_embeddings", None)
            raise ValueError(
                f"{self.name} cannot read texts of length = {length} tokens"
                f"{f' (it has {most} positions)' if most else ''}: give a smaller"
                " length. Nothing was spent."
            ) from error

    def is_new(self, name: str, _: Any = None) -> bool:
        """Whether a parameter is one of `new`."""
        return name in self.new


def load_encoder(
    folder: str | os.PathLike[str], classes: Sequence[str], *, seed: int = 0
) -> LocalEncoder:
    """The encoder in a folder with a new head for `classes`; nothing is downloaded.

    The module is in evaluation mode, so without dropout. `seed` is that of the head.
    """
    folder = Path(folder)
    validate.count(classes=len(classes))
    _check_folder(folder)
    try:
        labels = {i: str(name) for i, name in enumerate(classes)}
        with silent(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module, loaded = (
                transformers.AutoModelForSequenceClassification.from_pretrained(
                    str(folder),
                    num_labels=len(classes),
                    id2label=labels,
                    label2id={name: i for i, name in labels.items()},
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    ignore_mismatched_sizes=True,
                    dtype=torch.float32,
                    output_loading_info=True,
                )
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{folder.name} holds no encoder that transformers"
            f" {transformers.__version__} loads: put {_NEEDED} of one there, as"
            " save_pretrained writes them. Nothing was downloaded, and nothing was"
            " spent."
        ) from error
    _check_tokenizer(tokenizer, module, folder)
    inside = f"{module.base_model_prefix}."
    unread = {name for name in loaded["missing_keys"]}
    unread |= {found[0] for found in loaded["mismatched_keys"]}
    _check_weights(module, inside, unread, folder)
    new = tuple(
        name
        for name, _ in module.named_parameters()
        if name in unread or not name.startswith(inside)
    )
    return LocalEncoder(folder.name, module.eval(), tokenizer, new)


@contextmanager
def silent() -> Iterator[None]:
    """transformers shows no bars, and no warnings about new weights, meanwhile."""
    verbosity, bars = (
        their_logging.get_verbosity(),
        their_logging.is_progress_bar_enabled(),
    )
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.set_verbosity(verbosity)
        if bars:
            their_logging.enable_progress_bar()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {str(folder)!r} with an encoder: put {_NEEDED} of a"
            " Hugging Face encoder there. Nothing is downloaded, and nothing was spent."
        )
    files = {path.name for path in folder.iterdir()}
    has_weights = any(name.endswith(".safetensors") for name in files)
    has_tokens = any(name in files for name in _TOKENISERS)
    absent = [
        name
        for name, there in (
            ("config.json", "config.json" in files),
            ("model.safetensors", has_weights),
            ("tokenizer.json", has_tokens),
        )
        if not there
    ]
    if absent:
        raise ValueError(
            f"the folder {str(folder)!r} lacks {', '.join(absent)}: an encoder is"
            f" {_NEEDED}. Nothing is downloaded, and nothing was spent."
        )


def _check_weights(
    module: nn.Module, inside: str, unread: set[str], folder: Path
) -> None:
    """Refuse weights that are another model's: what is trained would be random."""
    sizes = {n: p.numel() for n, p in module.named_parameters() if n.startswith(inside)}
    absent = [name for name in sizes if name in unread]
    # Some encoders are kept without their last layer (BERT's pooler).
    if sum(sizes[name] for name in absent) > _FEW * sum(sizes.values()):
        raise ValueError(
            f"the weights in {folder.name} are not those of its config.json: they lack"
            f" {', '.join(absent[:3])} and others, or have them in other shapes. Put"
            " config.json and model.safetensors of one encoder there. Nothing was"
            " spent."
        )


def _check_tokenizer(tokenizer: Any, module: Any, folder: Path) -> None:
    words = len(tokenizer)
    rows = getattr(module.get_input_embeddings(), "num_embeddings", words)
    if words > rows:
        raise ValueError(
            f"the tokeniser of {folder.name} knows {words} words, and the encoder has a"
            f" row for {rows}: put the tokeniser there that belongs to it. Nothing was"
            " spent."
        )
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"the tokeniser of {folder.name} has no padding token, so that texts cannot"
            " have one length: set pad_token in its tokenizer_config.json. Nothing was"
            " spent."
        )
