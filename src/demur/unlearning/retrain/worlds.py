"""Two runs of one stream: one that learned a record, and a replay that never did."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from demur.unlearning.errors import CertificateExceeded
from demur.unlearning.models.base import Array, Mode


@dataclass(frozen=True, eq=False)
class Insertion:
    """A record to insert."""

    record: Hashable
    x: Array
    y: float


@dataclass(frozen=True)
class Deletion:
    """A deletion: one record, or all records of one subject."""

    records: tuple[Hashable, ...]


Event = Insertion | Deletion


def stream(
    X: ArrayLike, Y: ArrayLike, deletions: Mapping[int, int | Sequence[int]]
) -> list[Event]:
    """Rows in order, with deletions: after row t, forget row i (or rows).

    `deletions` maps t to i; a record is called by its row number.
    """
    events: list[Event] = []
    for t, (x, y) in enumerate(zip(np.asarray(X), np.asarray(Y), strict=True)):
        events.append(Insertion(t, np.asarray(x, dtype=np.float64), float(y)))
        if t in deletions:
            named = deletions[t]
            rows = named if isinstance(named, Sequence) else (named,)
            events.append(Deletion(tuple(rows)))
    return events


def checked(events: Iterable[Event], dimension: int) -> list[Event]:
    """The events, if rows have `dimension` features, each deletion names live records
    and there is one at all.
    """
    listed = list(events)
    live: set[Hashable] = set()
    deletions = 0
    for event in listed:
        if isinstance(event, Insertion):
            if event.record in live:
                raise ValueError("a record is learned twice under one name")
            if np.shape(event.x) != (dimension,):  # before anything is copied
                raise ValueError(
                    f"rows must have the {dimension} features of the mode; got shape"
                    f" {np.shape(event.x)}"
                )
            live.add(event.record)
        elif isinstance(event, Deletion):
            if not event.records or not live.issuperset(event.records):
                raise ValueError("a deletion names a record that is not live")
            live.difference_update(event.records)
            deletions += 1
        else:
            raise TypeError(
                f"events are Insertion and Deletion; got {type(event).__name__}"
            )
    if not deletions:
        raise ValueError("the stream deletes nothing: there is nothing to compare")
    return listed


class World:
    """A mode that runs through a stream from which some records may be absent."""

    def __init__(self, mode: Mode, absent: frozenset[Hashable]) -> None:
        self.mode = mode
        self.absent = absent
        self.live: dict[Hashable, tuple[Array, float]] = {}
        self._deletions = 0

    def run(self, events: Sequence[Event], noises: Sequence[Array]) -> None:
        """Go through the events; the n-th deletion of this world uses noises[n]."""
        block: list[Insertion] = []
        for event in events:
            if isinstance(event, Insertion) and event.record not in self.absent:
                block.append(event)
                continue
            self._learn(block)
            block = []
            if isinstance(event, Insertion):
                self.mode.skip()
            else:
                self.prepare(event)
                self.forget(event, noises[self._deletions])
        self._learn(block)

    def _learn(self, block: Sequence[Insertion]) -> None:
        if block:
            X, Y = np.array([e.x for e in block]), np.array([e.y for e in block])
            self.mode.insert_many(X, Y)
            self.live.update({e.record: (e.x, e.y) for e in block})

    def prepare(self, request: Deletion) -> None:
        """Renew a mode that could not certify this deletion as it is."""
        try:
            self.copy()._forget(request, np.zeros(self.mode.size))
        except CertificateExceeded:
            if not hasattr(self.mode, "renew"):
                raise
            self.mode.renew(*self._rows(self.live.values()))

    def forget(self, request: Deletion, noise: Array) -> None:
        """The deletion; in a world that lacks the records, its noise alone."""
        self._deletions += 1
        deleted = [r for r in request.records if r in self.live]
        staying = {r: v for r, v in self.live.items() if r not in deleted}
        try:
            self._forget(request, noise)
        except CertificateExceeded:  # one step will not do: solve without the records
            if not hasattr(self.mode, "renew"):
                raise
            self.mode.renew(*self._rows(staying.values()), forgotten=len(deleted))
            self.mode.publish(noise)
        self.live = staying

    def _rows(self, records: Iterable[tuple[Array, float]]) -> tuple[Array, Array]:
        pairs = list(records)
        X = np.array([x for x, _ in pairs]).reshape(-1, self.mode.dimension)
        return X, np.array([y for _, y in pairs])

    def publish_without_noise(self) -> None:
        """Bring the published copy up to date, without noise."""
        if self.mode.publishes == "output":
            self.mode.publish(np.zeros(self.mode.size))

    def _forget(self, request: Deletion, noise: Array) -> None:
        drawn = None if self.mode.exact else noise
        known = [self.live[r] for r in request.records if r in self.live]
        if not known:
            self.mode.forget_nothing(drawn)
        elif len(known) == 1:
            self.mode.delete(*known[0], drawn)
        else:
            X, Y = np.array([x for x, _ in known]), np.array([y for _, y in known])
            self.mode.delete(X, Y, drawn, records=len(known))

    def copy(self) -> World:
        """Another world in the same state."""
        twin = World(self.mode.copy(), self.absent)
        twin.live, twin._deletions = dict(self.live), self._deletions
        return twin


def weight_distance(world: World, other: World) -> float:
    """The distance of the published weights."""
    return float(np.linalg.norm(world.mode.published() - other.mode.published()))


def covered_distance(world: World, other: World) -> float:
    """The distance of what the theorem covers: whole states, or published copies."""
    if world.mode.publishes == "output":
        return weight_distance(world, other)
    first, second = world.mode.state(), other.mode.state()
    if first.keys() != second.keys():
        return float("inf")
    total = 0.0
    for key, array in first.items():
        counterpart = second[key]
        if array.shape != counterpart.shape:
            return float("inf")
        # Integers are subtracted as integers: floats would lose the last bits.
        total += float(np.sum((array - counterpart).astype(np.float64) ** 2))
    return float(np.sqrt(total))
