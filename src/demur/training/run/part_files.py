"""Files of trained parts: adapters (LoRA), biases, heads, without their model.

A part belongs to one model: its file has a digest of what was frozen beside it, so that
it is not put on another by mistake. The digest is of public parameters. The format is
safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demur.core.release import Release
from demur.training.finetuning.parts import ModelPart, names_of
from demur.training.run.charges import tree_digest
from demur.training.tensor_files import read_tensors, write_tensors


def save_part(
    part: ModelPart,
    trained: Mapping[str, Any] | Release[Any],
    path: str | os.PathLike[str],
) -> None:
    """Write the trained parameters of a part, with the statement of a release.

    `load_part(part, path)` reads them, for a part that was made in the same way of the
    same model.
    """
    values = trained.value if isinstance(trained, Release) else trained
    part.check_names(values)
    texts = _terms(part)
    if isinstance(trained, Release):
        texts["statement"] = trained.statement()
    leaves = zip(names_of(values), jax.tree.leaves(values), strict=True)
    write_tensors(path, {name: np.asarray(leaf) for name, leaf in leaves}, texts)


def load_part(part: ModelPart, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The parameters that `save_part` wrote, in the structure of `part.params`.

    A file of another part, or of a part of another model, is a ValueError.
    """
    arrays, texts = read_tensors(path)
    for name, value in _terms(part).items():
        if texts.get(name) != value:
            raise ValueError(
                f"the file holds a part with another {name} than this one: make the"
                " part of the same model, in the same way, and load the file then"
            )
    names, (leaves, treedef) = names_of(part.params), jax.tree.flatten(part.params)
    kinds = {n: (a.dtype, a.shape) for n, a in zip(names, leaves, strict=True)}
    if {name: (a.dtype, a.shape) for name, a in arrays.items()} != kinds:
        raise ValueError(
            "the file holds other parameters than this part: make the part of the same"
            " model, in the same way, and load the file then"
        )
    return jax.tree.unflatten(treedef, [jnp.asarray(arrays[name]) for name in names])


def _terms(part: ModelPart) -> dict[str, str]:
    return {
        "demur": "part 1",
        "kind": json.dumps(dict(part.terms), sort_keys=True),
        "model": tree_digest(part.frozen),
    }
