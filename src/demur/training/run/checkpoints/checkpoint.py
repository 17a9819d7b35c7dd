"""Checkpoints: runs that can be resumed, without a second draw of any noise.

    FOLDER/model-<step>.npz      parameters and optimiser state: may be shown
    FOLDER/secret/               owner only
        run.json                 the run's name in the ledger
        noise-<step>.npz         the memory of correlated noise
        latest.json              step, digest and seal of the last pair

No key is stored here: the ledger's key store keeps the entry's key until the run is
committed, and hands it out again for the identical input alone. Noise and batches of
step t are a function of that key and of t, so a step that was cut short is repeated
exactly.

That is safe only if everything else is the same: the same noise on another sum would
reveal the difference. The entry is bound to a digest of the data, the first parameters,
the program and the machine, whose compiler decides how a sum is rounded
(`agreement.machines`). A checkpoint carries a seal (HMAC under a key derived from the
entry's), so that neither changed data nor edited parameters are continued.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from numpy.typing import NDArray

from demur.core import validate
from demur.durable import private_files
from demur.training.errors import CheckpointRefused
from demur.training.run.checkpoints import orbax_files
from demur.training.run.checkpoints.orbax_files import make_names_durable


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a resumable run, and after how many steps it is written.

    With `elastic` it is written by all processes through Orbax (`demur[orbax]`), each
    its own parts, into a folder that all of them reach, and the run may go on with
    other devices: steps that may have been seen are not repeated there (`elastic`).

    >>> Checkpoint("run", every=20).elastic
    False
    """

    folder: str | os.PathLike[str]
    every: int = 100
    elastic: bool = False

    def __post_init__(self) -> None:
        validate.count(every=self.every)
        if not isinstance(self.elastic, bool):
            raise TypeError(f"elastic must be True or False; got {self.elastic!r:.80}")


@dataclass(frozen=True)
class SavedState:
    """A checkpoint as read: the step, and trees of arrays."""

    step: int
    model: Any
    noise: Any


class CheckpointFolder:
    """The folder of one run, locked against a second process."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._folder = Path(checkpoint.folder)
        self._secret = self._folder / "secret"
        self._folder.mkdir(parents=True, exist_ok=True)
        private_files.make_folder(self._secret)
        self._lock = self._take_lock()
        try:
            self.run = self._run_name()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> IO[str]:
        lock = open(self._secret / "lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise CheckpointRefused(
                f"another process is using the checkpoint {str(self._folder)!r}: two"
                " runs would draw the same noise. Nothing was spent."
            ) from None
        return lock

    def _run_name(self) -> str:
        path = self._secret / "run.json"
        if not path.exists():
            name = f"training run {secrets.token_hex(16)}"
            write_durably(path, json.dumps({"run": name}).encode())
            return name
        try:
            name = json.loads(private_files.read(path))["run"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointRefused(f"{path.name} is damaged: {error}") from error
        validate.name(run=name)
        return str(name)

    def save(self, step: int, digest: str, seal: bytes, model: Any, noise: Any) -> None:
        """Write both halves, then the note that names them; older ones are deleted."""
        halves = _pack(model), _pack(noise)
        note = {
            "step": step,
            "digest": digest,
            "seal": _seal(seal, step, digest, halves),
        }
        write_durably(self._folder / f"model-{step}.npz", halves[0], mode=0o644)
        write_durably(self._secret / f"noise-{step}.npz", halves[1])
        write_durably(self._secret / "latest.json", json.dumps(note).encode())
        self._drop_others(step, also=False)

    def load(
        self, digest: str, seal: bytes, model: Any, noise: Any
    ) -> SavedState | None:
        """The last checkpoint, shaped like `model` and `noise`, or None."""
        try:
            note = json.loads(private_files.read(self._secret / "latest.json"))
            step = int(note["step"])
            halves = (
                (self._folder / f"model-{step}.npz").read_bytes(),
                private_files.read(self._secret / f"noise-{step}.npz"),
            )
            stored_seal, stored_digest = str(note["seal"]), str(note["digest"])
        except FileNotFoundError as error:
            if Path(error.filename).name == "latest.json":
                return None
            raise CheckpointRefused(
                f"{Path(error.filename).name} of the checkpoint is missing"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointRefused(f"the checkpoint is damaged: {error!r}") from error
        if stored_digest != digest:
            raise CheckpointRefused(
                "the checkpoint is of another run: data, first parameters, plan,"
                " program, mesh or machine differ. The same noise on two sums would"
                " reveal their difference. Nothing was drawn."
            )
        if not hmac.compare_digest(stored_seal, _seal(seal, step, digest, halves)):
            raise CheckpointRefused(
                "the checkpoint was edited or damaged after it was written: its noise"
                " must not be drawn again on other parameters. Nothing was drawn."
            )
        return SavedState(step, _unpack(halves[0], model), _unpack(halves[1], noise))

    def finish(self, step: int) -> None:
        """Delete what is secret of a saved and committed run; the model stays."""
        (self._secret / "latest.json").unlink(missing_ok=True)
        self._drop_others(step, also=True)

    def finished_model(self) -> Path | None:
        """The model last written, a file or a folder; None if there is none."""
        models = _models(self._folder)
        return models[-1] if models else None

    def _drop_others(self, step: int, *, also: bool) -> None:
        for old in self._folder.glob("model-*.npz"):
            if old.stem != f"model-{step}":
                old.unlink(missing_ok=True)
        for old in self._secret.glob("noise-*.npz"):
            if also or old.stem != f"noise-{step}":
                old.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def __enter__(self) -> CheckpointFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _seal(key: bytes, step: int, digest: str, halves: tuple[bytes, bytes]) -> str:
    code = hmac.new(key, f"{step} {digest}".encode(), hashlib.sha256)
    for half in halves:
        code.update(hashlib.sha256(half).digest())
    return code.hexdigest()


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` in one move, durable before it returns: its name too."""
    part = path.with_suffix(".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    make_names_durable([path.parent])


def _pack(tree: Any) -> bytes:
    """Leaves as raw bytes with dtype and shape: bfloat16 is no dtype of NumPy's."""
    arrays: dict[str, NDArray[Any]] = {}
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        array = np.asarray(leaf)
        arrays[f"kind_{i}"] = np.array(f"{array.dtype.name} {list(array.shape)}")
        raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        arrays[f"leaf_{i}"] = raw
    packed = BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    return packed.getvalue()


def _unpack(content: bytes, like: Any, *, leading: bool = False) -> Any:
    """Arrays shaped like `like`: all of the file's, or with `leading` the first."""
    leaves, treedef = jax.tree.flatten(like)
    arrays = []
    with np.load(BytesIO(content), allow_pickle=False) as file:
        stored = len(file.files) // 2
        if stored != len(leaves) and not (leading and stored > len(leaves)):
            raise CheckpointRefused("the checkpoint has another number of arrays")
        for i, leaf in enumerate(leaves):
            kind = f"{leaf.dtype.name} {list(leaf.shape)}"
            if str(file[f"kind_{i}"]) != kind:
                raise CheckpointRefused(
                    f"the checkpoint holds {file[f'kind_{i}']} where the model has"
                    f" {kind}"
                )
            raw = file[f"leaf_{i}"].tobytes()
            arrays.append(np.frombuffer(raw, leaf.dtype).reshape(leaf.shape).copy())
    return jax.tree.unflatten(treedef, arrays)


def load_model(folder: str | os.PathLike[str], like: Any) -> Any:
    """The parameters last written to a checkpoint, shaped like `like`.

    `like` is a tree of arrays as the parameters that `fit` was given. The tuple
    (parameters, optimiser state, average, steps) reads all of it. For reading a run's
    model; to continue a run use `fit`, which checks the seal. An elastic checkpoint is
    read through Orbax: arrays of `like` that are cut over devices are read so, by all
    processes, others to the host.
    """
    paths = _models(Path(folder))
    if not paths:
        raise FileNotFoundError(f"no model in {str(folder)!r}")
    if paths[-1].suffix == orbax_files.SUFFIX:
        return _read_elastic(paths[-1], like)
    return _unpack(paths[-1].read_bytes(), like, leading=True)


def _read_elastic(folder: Path, like: Any) -> Any:
    leaves, treedef = jax.tree.flatten(like)
    stored = orbax_files.kinds(folder)
    for i, leaf in enumerate(leaves):
        wanted = np.shape(leaf), np.dtype(leaf.dtype).name
        found = stored.get(str(i))
        if np.size(leaf) and found != wanted:
            raise CheckpointRefused(
                f"the checkpoint holds {found} where the model has {wanted}"
            )
    return jax.tree.unflatten(treedef, orbax_files.read(folder, leaves))


def _models(folder: Path) -> list[Path]:
    """The models of a folder, by step."""
    found = [
        path
        for suffix in (".npz", orbax_files.SUFFIX)
        for path in folder.glob(f"model-*{suffix}")
    ]
    return sorted(found, key=lambda p: int(p.stem.split("-")[1]))
