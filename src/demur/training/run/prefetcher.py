"""Prefetching: batches of a run, gathered and sent to the device ahead of the steps.

A thread selects the next batch, gathers its rows and places them, while the device
works on the one before. A global batch goes into one of the physical sizes of a
`ShapePlan`; what does not fit into the largest is cut into minibatches of that size.
Real rows come first and zeros after, so that a count tells them apart.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from demur.training.devices.caller_settings import callers_settings
from demur.training.devices.process_rows import ProcessRows
from demur.training.sizes.shapes import ShapePlan

_AHEAD = 2  # batches in waiting: one on its way, one ready


class RowReader(Protocol):
    """Examples by row: data, or a process's share of them."""

    def take(self, indices: NDArray[Any]) -> Any:
        """The rows at `indices`, zeros where an index is -1."""
        ...


@dataclass(frozen=True)
class Minibatch:
    """`real` rows of `size`, then zeros. Secret.

    Where each process has its own rows, `shares` says how many real ones it has: they
    come first in its run of the slots.
    """

    size: int
    real: int
    batch: Any
    shares: NDArray[np.int32] | None = None

    @property
    def count(self) -> Any:
        """What tells a program the real rows."""
        return np.int32(self.real) if self.shares is None else self.shares

    def __repr__(self) -> str:
        return "Minibatch(<secret>)"


@dataclass(frozen=True)
class StepInput:
    """All minibatches of one global batch. Secret."""

    step: int
    minibatches: tuple[Minibatch, ...]

    def __repr__(self) -> str:
        return f"StepInput({self.step}, <secret>)"


class Prefetcher:
    """An iterator of `StepInput`s; `pay(step)` is called before a batch is yielded."""

    def __init__(
        self,
        batches: Iterator[NDArray[Any]],
        data: RowReader,
        *,
        start: int,
        shapes: ShapePlan,
        place: Callable[[Any], Any],
        pay: Callable[[int], None],
        owners: ProcessRows | None = None,
    ) -> None:
        self._queue: queue.Queue[StepInput | BaseException | None] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._arguments = (batches, data, start, shapes, place, pay, owners)
        self._settings = callers_settings()
        self._thread = threading.Thread(
            target=self._work, name="demur batches", daemon=True
        )
        self._thread.start()

    def _work(self) -> None:
        batches, data, step, shapes, place, pay, owners = self._arguments
        try:
            for indices in batches:
                if self._stop.is_set():
                    return
                pay(step)
                with self._settings():
                    minibatches = _gather(indices, data, shapes, place, owners)
                self._put(StepInput(step, minibatches))
                step += 1
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: StepInput | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[StepInput]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop the thread; what it gathered is dropped."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gather(
    indices: NDArray[Any],
    data: RowReader,
    shapes: ShapePlan,
    place: Callable[[Any], Any],
    owners: ProcessRows | None = None,
) -> tuple[Minibatch, ...]:
    if owners is not None:
        return _gather_own(owners.by_process(indices), data, shapes, place)
    minibatches, first = [], 0
    for size, real in shapes.layout(len(indices)):
        padded = np.full((size, *indices.shape[1:]), -1, np.int64)
        padded[:real] = indices[first : first + real]
        minibatches.append(Minibatch(size, real, place(data.take(padded))))
        first += real
    return tuple(minibatches)


def _gather_own(
    parts: list[NDArray[Any]],
    data: RowReader,
    shapes: ShapePlan,
    place: Callable[[Any], Any],
) -> tuple[Minibatch, ...]:
    """Minibatches with as many slots for each process, for rows that are its own."""
    count, minibatches = len(parts), []
    for size, _ in shapes.layout(count * max(len(part) for part in parts)):
        slots = np.full((count, size // count), -1, np.int64)
        shares = np.array([min(len(p), slots.shape[1]) for p in parts], np.int32)
        for row, part, real in zip(slots, parts, shares, strict=True):
            row[:real] = part[:real]
        parts = [part[real:] for part, real in zip(parts, shares, strict=True)]
        batch = place(data.take(slots.reshape(-1)))
        minibatches.append(Minibatch(size, int(shares.sum()), batch, shares))
    return tuple(minibatches)
