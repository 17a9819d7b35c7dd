"""Several processes that run one program: agreement, broadcasts and shared errors.

Every process calls `fit` with the same arguments on its own share of the devices. Only
process 0 uses the ledger, and the checkpoint unless that is elastic. Everything here is
a collective call: all processes make it, in the same order, or none returns. So a stage
that fails in one process must fail in all of them before the next collective begins,
which is what `stage` does:

    with group.stage():
        ...                 an error of any process is raised in every process

When a process dies, the collective that the others wait for fails (`ProcessLost`), or
JAX's coordination service ends them (`aborted_processes`).
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from numpy.typing import NDArray

from demur.core.errors import DemurError
from demur.training.devices.network import check_trusted
from demur.training.errors import ProcessesDisagree, ProcessFailed, ProcessLost

T = TypeVar("T")
_TEXT = 1024  # bytes of an error message that reach the other processes
_DIGEST = 32
_BROKEN_CONNECTION = re.compile(
    "gloo|nccl|collective|coordination|unavailable|heartbeat|connection|socket|peer",
    re.IGNORECASE,
)


@dataclass
class Stage:
    """A stage of the run; set `stop` in process 0 to end the run after it."""

    stop: bool = False


class Processes:
    """The processes that a mesh spans; with one process, collectives do nothing."""

    def __init__(self, mesh: Mesh | None) -> None:
        here, everyone = jax.process_index(), jax.process_count()
        if mesh is None:
            if everyone > 1:
                raise ValueError(
                    f"mesh must be given where {everyone} processes run: without one"
                    " every process would train a model of its own. Nothing was spent."
                )
            spanned = {here}
        else:
            spanned = {device.process_index for device in mesh.devices.flat}
        if spanned != {here} and spanned != set(range(everyone)):
            raise ValueError(
                f"mesh must span all {everyone} processes or this one alone; it has"
                f" devices of {sorted(spanned)}. Nothing was spent."
            )
        devices = [device.process_index for device in jax.devices()]
        if len({devices.count(process) for process in spanned}) > 1:
            raise ValueError(
                "every process must have as many devices as the others; they have"
                f" {[devices.count(p) for p in sorted(spanned)]}. Nothing was spent."
            )
        check_trusted(len(spanned))
        self.count = len(spanned)
        self.index = here if self.count > 1 else 0
        self._interrupted = False

    @property
    def first(self) -> bool:
        """Whether this process uses the ledger and the checkpoint."""
        return self.index == 0

    # -- agreement ---------------------------------------------------------------------

    def _agree(self, error: BaseException | None = None, *, stop: bool = False) -> bool:
        """Whether process 0 wants to stop; raises in all if any has an error."""
        if self._interrupted and error is None:
            error = KeyboardInterrupt()
        if self.count == 1:
            if error is not None:
                raise error
            return stop
        if isinstance(error, ProcessLost):
            raise error  # the others no longer answer
        messages = self._all_gather(_message(error, stop))
        failed = [k for k, message in enumerate(messages) if message[0]]
        if error is not None:
            raise error
        if failed:
            _raise_again(failed[0], bytes(messages[failed[0]][2:]))
        return bool(messages[0][1])

    @contextmanager
    def stage(self) -> Iterator[Stage]:
        """A part of the run without collectives: if it fails in one, it does in all.

        `stop` counts if process 0 has set it; afterwards it is the same in all.
        """
        stage = Stage()
        try:
            yield stage
        except BaseException as error:
            self._agree(error)
        else:
            stage.stop = self._agree(stop=stage.stop)

    def check_same(
        self, parts: Mapping[str, object], why: str = "Nothing was spent."
    ) -> None:
        """Refuse, in every process, if the `parts` are not the same in all of them."""
        if self.count == 1:
            return
        digests = [
            hashlib.sha256(str(part).encode()).digest() for part in parts.values()
        ]
        own = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST)
        every = self._all_gather(own)
        wrong = [
            name for i, name in enumerate(parts) if (every[:, i] != every[0, i]).any()
        ]
        if wrong:
            raise ProcessesDisagree(
                f"the {self.count} processes differ in {', '.join(wrong)}. {why}"
            )

    # -- broadcasts from process 0 -----------------------------------------------------

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns in process 0, in every process: plain data, as JSON.

        Nothing that arrives here is a program, whoever has sent it.
        """
        value: Any = None
        content = b""
        with self.stage():
            if self.first:
                value = make()
                # Inside the stage, which shares a failure: the others wait after it.
                content = json.dumps(value).encode() if self.count > 1 else b""
        if self.count == 1:
            return value
        received: T = json.loads(self._from_first(content))
        return received

    def _from_first(self, content: bytes) -> bytes:
        length = int(self._broadcast(np.array([len(content)], np.int64))[0])
        buffer = np.zeros(length, np.uint8)
        if self.first:
            buffer[:] = np.frombuffer(content, np.uint8)
        return self._broadcast(buffer).tobytes()

    def arrays_from_first(self, tree: Any, like: Any) -> Any:
        """The arrays of process 0's `tree`, one at a time."""
        if self.count == 1:
            return tree
        leaves, treedef = jax.tree.flatten(like)
        given = jax.tree.leaves(tree) if self.first else [None] * len(leaves)
        received = []
        for leaf, value in zip(leaves, given, strict=True):
            raw = np.zeros(leaf.size * leaf.dtype.itemsize, np.uint8)
            if value is not None:
                raw[:] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            content = self._broadcast(raw).tobytes() if raw.size else b""
            array = np.frombuffer(content, leaf.dtype).reshape(leaf.shape)
            received.append(array.copy())
        return jax.tree.unflatten(treedef, received)

    def whole(self, leaf: Any) -> NDArray[Any]:
        """An array of the mesh on the host of every process, whoever has its parts.

        All processes call it, with an array that is cut alike in all of them.
        """
        if not isinstance(leaf, jax.Array) or not leaf.size:
            return (
                np.asarray(leaf) if np.size(leaf) else np.zeros(leaf.shape, leaf.dtype)
            )
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        with self.collective():
            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    def gather(self, tree: Any) -> Any:
        """The arrays of a sharded `tree`, on the host, one at a time; in process 0."""
        if self.count == 1:
            return tree

        def gathered(leaf: Any) -> Any:
            whole = self.whole(leaf)
            return whole if self.first else leaf

        return jax.tree.map(gathered, tree)

    # -- collectives -------------------------------------------------------------------

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Code with collectives: a broken connection inside is a `ProcessLost`."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            named = error if self.count == 1 else as_process_lost(error)
            if named is error:
                raise
            raise named from error

    def every(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array of each process, of one shape in all, along a first axis."""
        return array[None] if self.count == 1 else self._all_gather(array)

    def _all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        with self.collective():
            return np.asarray(multihost_utils.process_allgather(array))

    def _broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        with self.collective():
            return np.asarray(multihost_utils.broadcast_one_to_all(array))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C in one process ends all of them at their next stage; twice, at once.

        A KeyboardInterrupt between two collectives would leave the others waiting.
        """
        main = threading.current_thread() is threading.main_thread()
        if self.count == 1 or not main:
            yield
            return

        def interrupted(*_: object) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, before)

        # None: the handler was not set by Python, and cannot be put back.
        before = signal.getsignal(signal.SIGINT) or signal.default_int_handler
        signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def as_process_lost(error: Exception) -> Exception:
    """`ProcessLost` for an error of JAX that a dead process causes, or the error."""
    broken = _BROKEN_CONNECTION.search(str(error))
    if not isinstance(error, jax.errors.JaxRuntimeError | ValueError) or not broken:
        return error
    return ProcessLost(
        "another process of the run has died or cannot be reached. The run stays paid;"
        " with a checkpoint, start all processes again and it is resumed where it was."
        f" ({str(error)[:300]})"
    )


def _message(error: BaseException | None, stop: bool) -> NDArray[np.uint8]:
    """failed, stop, and the error's name and message, in a fixed number of bytes."""
    message = np.zeros(2 + _TEXT, np.uint8)
    message[1] = stop
    if error is not None:
        text = f"{type(error).__name__}\n{error}".encode()[:_TEXT]
        message[0] = 1
        message[2 : 2 + len(text)] = np.frombuffer(text, np.uint8)
    return message


def _raise_again(process: int, text: bytes) -> NoReturn:
    name, _, message = text.rstrip(b"\0").decode(errors="replace").partition("\n")
    failed = ProcessFailed(f"process {process}: {name}: {message}")
    kind = _errors().get(name)
    if kind is None:
        raise failed
    try:
        error = kind(f"process {process}: {message}")
    except TypeError:  # its constructor needs more than a message
        error = failed
    raise error


def _errors() -> Mapping[str, type[BaseException]]:
    """Errors that take a message alone: demur's refusals, and Python's common ones."""
    plain = (ValueError, TypeError, RuntimeError, MemoryError, KeyboardInterrupt)
    errors: dict[str, type[BaseException]] = {kind.__name__: kind for kind in plain}
    waiting: list[type[DemurError]] = [DemurError]
    while waiting:
        kind = waiting.pop()
        errors[kind.__name__] = kind
        waiting.extend(kind.__subclasses__())
    return errors
