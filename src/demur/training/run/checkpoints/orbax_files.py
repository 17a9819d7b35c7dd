"""Arrays in a folder through Orbax: every process writes and reads its own parts.

Orbax writes beside the folder's name and gives the name when all processes are done, so
a folder with its final name is whole. Which folder counts is said elsewhere
(`elastic`), by a note with a digest of every file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SUFFIX = ".orbax"
_BLOCK = 2**24


def _orbax() -> Any:
    return import_module("orbax.checkpoint")  # when it is needed: it takes a second


def check_installed() -> None:
    """Refuse, unpaid, where Orbax is missing."""
    try:
        _orbax()
    except ImportError as error:
        raise ImportError(
            "Checkpoint(elastic=True) writes through Orbax: pip install"
            " 'demur[orbax]'. Nothing was spent."
        ) from error


def write(folder: Path, leaves: Sequence[Any]) -> None:
    """Write the arrays, each process the parts it holds; all of them call this."""
    ocp = _orbax()
    # An array without numbers has nothing to be written.
    named = {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as files:
        files.save(folder.absolute(), args=ocp.args.PyTreeSave(named))


def read(folder: Path, like: Sequence[Any]) -> list[Any]:
    """The first arrays of a folder, laid out as those of `like`; all processes call it.

    `like` are arrays, of which dtype, shape and sharding count; what is no array of
    JAX's comes to the host.
    """
    ocp = _orbax()
    wanted = {str(i): leaf for i, leaf in enumerate(like) if leaf.size}
    how = {
        name: ocp.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        )
        if isinstance(leaf, jax.Array)
        else ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
        for name, leaf in wanted.items()
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as files:
        found = files.restore(
            folder.absolute(),
            args=ocp.args.PyTreeRestore(
                item=wanted, restore_args=how, partial_restore=True
            ),
        )
    return [found[str(i)] if leaf.size else leaf for i, leaf in enumerate(like)]


def kinds(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array of a folder, by its number."""
    ocp = _orbax()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as files:
        tree = files.metadata(folder.absolute()).item_metadata.tree
    return {
        name: (tuple(leaf.shape), jnp.dtype(leaf.dtype).name)
        for name, leaf in dict(tree).items()
    }


def files_in(root: Path, folders: Iterable[Path]) -> list[str]:
    """The files of `folders`, as paths below `root`, in order."""
    return sorted(
        path.relative_to(root).as_posix()
        for folder in folders
        for path in folder.rglob("*")
        if not path.is_dir()
    )


def digest(path: Path, *, durable: bool = False) -> bytes:
    """SHA-256 of a file; with `durable` its content is on the disk first."""
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        if durable:
            os.fsync(file.fileno())
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.digest()


def make_names_durable(folders: Iterable[Path]) -> None:
    """The names in each folder and in those below it are on the disk."""
    for folder in folders:
        for path in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
