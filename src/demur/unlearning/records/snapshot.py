"""Snapshots: states as bytes, and files that the next deletion destroys.

A state is a header (one line of JSON: names, types, shapes) and the numbers after it,
little-endian. A snapshot file is a state with the service, epoch and sequence it
belongs to. A state from before a deletion still holds what was deleted, so a deletion
overwrites and removes the snapshot files of its service, and `restore` refuses one
that comes back from elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demur.durable import private_files
from demur.durable.chain import canonical
from demur.unlearning.errors import ServiceDamaged, SnapshotRefused
from demur.unlearning.models.base import State

_MAGIC = "demur unlearning snapshot 1"
_SUFFIX = ".snapshot"
_KINDS = "biuf"


def encode(state: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """A state as bytes; equal states, equal bytes."""
    names = sorted(state)
    arrays = [np.asarray(state[name]) for name in names]
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"state {name!r} holds no numbers but {array.dtype}")
    little = [np.ascontiguousarray(a, a.dtype.newbyteorder("<")) for a in arrays]
    header = [
        [name, flat.dtype.str, list(array.shape)]
        for name, array, flat in zip(names, arrays, little, strict=True)
    ]
    return canonical(header).encode() + b"\n" + b"".join(a.tobytes() for a in little)


def decode(data: bytes) -> State:
    """The state that `encode` wrote; anything else is a ServiceDamaged."""
    line, _, rest = data.partition(b"\n")
    state: State = {}
    try:
        header = json.loads(line)
        if not isinstance(header, list):
            raise ValueError("its header is no list")
        for name, kind, shape in header:
            dtype = np.dtype(kind)
            if dtype.kind not in _KINDS:
                raise ValueError(f"not numbers: {kind!r}")
            size = dtype.itemsize * math.prod(shape)
            array = np.frombuffer(rest[:size], dtype).reshape(shape)
            state[name] = array.astype(dtype.newbyteorder("="))
            rest = rest[size:]
        if rest:
            raise ValueError("bytes are left over")
    except (ValueError, TypeError, RecursionError) as error:
        raise ServiceDamaged(f"a stored state cannot be read: {error}") from error
    return state


@dataclass(frozen=True)
class Snapshot:
    """A state and the point of the journal it belongs to."""

    service: str
    epoch: int
    sequence: int
    tick: int
    sealed: str
    state: bytes

    def to_bytes(self) -> bytes:
        """The file's content."""
        header = vars(self) | {"state": len(self.state), "format": _MAGIC}
        return canonical(header).encode() + b"\n" + self.state

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """The snapshot that `to_bytes` wrote; anything else is a SnapshotRefused."""
        line, _, state = data.partition(b"\n")
        try:
            header = json.loads(line)
            if header.pop("format") != _MAGIC or header.pop("state") != len(state):
                raise ValueError("its length or format is wrong")
            return cls(**header, state=state)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
            raise SnapshotRefused(
                f"this is no whole snapshot ({why!r:.80}). Nothing was changed."
            ) from why


class SnapshotFiles:
    """The snapshot files of one service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, snapshot: Snapshot) -> Path:
        """Write a snapshot aside and rename it: it is there whole or not at all."""
        private_files.make_folder(self._folder)
        path = self._folder / f"{snapshot.sequence:012d}{_SUFFIX}"
        aside = path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(snapshot.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        return path

    def paths(self) -> list[Path]:
        """The snapshots that are there, oldest first."""
        return sorted(self._folder.glob(f"*{_SUFFIX}"))

    def destroy(self, before: int) -> int:
        """Overwrite and remove every snapshot before a sequence; how many there were.

        Files that a crash left half-written, and copies under other names, go too.
        """
        destroyed = 0
        for path in sorted(self._folder.glob("*")):
            if not path.is_file():
                continue
            named = path.suffix == _SUFFIX and path.stem.isdecimal()
            if named and int(path.stem) >= before:
                continue
            with contextlib.suppress(FileNotFoundError):
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
                path.unlink()
                destroyed += 1
        return destroyed
