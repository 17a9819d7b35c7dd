"""The search for deleted records in everything a learner can reach.

A place that only the first world reaches counts if the replay has fewer such places. A
place that both reach (a class attribute, a global variable, a closure that both share)
counts if it did not hold the record before the run began: there the replay is no
control, as the first world has written into it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from demur.unlearning.models.base import Array, Mode
from demur.unlearning.retrain.findings import SearchScope, Trace
from demur.unlearning.retrain.likeness import Likeness, Wanted
from demur.unlearning.retrain.reachable import Place, reach
from demur.unlearning.retrain.sequences import sequences, size_left_out

MOST_LOOKED_AT = 2**22  # numbers of one learner
_MOST_OTHERS = 2**18  # numbers of other records, to tell apart what they share
_PARTED = np.array([np.nan])  # between two sequences: no window goes across


@dataclass
class _Found:
    """What each place shares with one record, and how many numbers were compared."""

    places: dict[int, tuple[Place, Likeness]] = field(default_factory=dict)
    numbers: int = 0


def places_holding(mode: Mode, x: Array) -> tuple[str, ...]:
    """The places of one learner that hold a run of x; there is no control."""
    search, wanted = Search(mode, {"x": x}), Wanted(x, np.empty((0, x.size)))
    found = search._look(mode, {"x": wanted})["x"]
    pairs = found.places.values()
    return tuple(p.name for p, has in pairs if wanted.run_found(has, found.numbers))


class Search:
    """The search of one run: the records it deletes, and what held them before."""

    def __init__(self, empty: Mode, records: Mapping[Hashable, Array]) -> None:
        """`records` are all of the stream; `empty` has learned nothing yet."""
        self._records = records
        self._wanted: dict[Hashable, Wanted] = {}
        self._before: dict[Hashable, _Found] = {}
        self._empty = empty
        self._places = self._numbers = 0
        self._left_out: dict[str, None] = {}
        self._held: dict[str, None] = {}
        self._unsearchable: dict[Hashable, None] = {}

    def prepare(self, deleted: Iterable[Hashable]) -> None:
        """Note what the shared places hold of the records before the run."""
        size = self._empty.dimension
        names = [name for name, x in self._records.items() if x.shape == (size,)]
        names = names[:: 1 + len(names) * size // _MOST_OTHERS]
        rows = np.array([self._records[name] for name in names]).reshape(-1, size)
        at = {name: i for i, name in enumerate(names)}
        for record in deleted:
            x = np.asarray(self._records[record], dtype=np.float64)
            if x.shape == (size,):  # if not, the mode will refuse it
                others = np.delete(rows, at[record], axis=0) if record in at else rows
                self._wanted[record] = Wanted(x, others)
        self._before = self._look(self._empty, self._wanted)

    def traces(
        self, first: Mode, replay: Mode, deleted: Iterable[Hashable]
    ) -> list[Trace]:
        """Which of the records, just deleted, the first world still holds."""
        chosen = {record: self._wanted[record] for record in deleted}
        here, there = self._look(first, chosen), self._look(replay, chosen)
        traces = []
        for record, wanted in chosen.items():
            if not wanted.searchable(here[record].numbers):
                self._unsearchable[record] = None
            trace = self._compared(record, wanted, here[record], there[record])
            if trace is not None:
                traces.append(trace)
        return traces

    def _compared(
        self, record: Hashable, wanted: Wanted, here: _Found, there: _Found
    ) -> Trace | None:
        before = self._before[record]
        own = [p for i, p in here.places.items() if i not in there.places]
        others = [p for i, p in there.places.items() if i not in here.places]
        shared = [
            (place, likeness, before.places.get(i, (place, Likeness()))[1])
            for i, (place, likeness) in here.places.items()
            if i in there.places
        ]

        def is_run(likeness: Likeness) -> bool:
            return wanted.run_found(likeness, here.numbers)

        runs = [pair for pair in own if is_run(pair[1])]
        if len(runs) <= sum(is_run(likeness) for _, likeness in others):
            runs = []
        runs += [(p, now) for p, now, was in shared if is_run(now) and not is_run(was)]
        self._held.update({p.name: None for p, _, was in shared if is_run(was)})
        if runs:
            place, likeness = max(runs, key=lambda pair: pair[1].bits)
            how = "unchanged" if likeness.whole else "up to scale, shift and direction"
            length = self._records[record].size if likeness.whole else likeness.length
            return Trace(record, place.name, f"a run of {length} features, {how}")
        new = [(place, now, Likeness()) for place, now in own] + shared
        places = [
            place
            for place, now, was in new
            if (now.exact | now.rounded) - (was.exact | was.rounded)
        ]
        exact = frozenset().union(*(now.exact - was.exact for _, now, was in new))
        exact = exact.difference(*(absent.exact for _, absent in others))
        rounded = frozenset().union(*(now.rounded - was.rounded for _, now, was in new))
        rounded = rounded.difference(*(absent.rounded for _, absent in others))
        if not wanted.values_found(exact, rounded, here.numbers):
            return None
        count = max(len(exact), len(rounded))
        where = ", ".join(p.name for p in places[:3])
        return Trace(record, where, f"{count} of its values")

    def _look(
        self, mode: Mode, wanted: Mapping[Hashable, Wanted]
    ) -> dict[Hashable, _Found]:
        found = {record: _Found() for record in wanted}
        if not wanted:
            return found
        reached = reach(mode)
        if reached.cut:
            self._left_out["objects far from the learner: there are too many"] = None
        parts: list[Array] = []
        ends: list[int] = []
        size = 0
        for place in reached.places:
            too_long = size_left_out(place.holder)
            if too_long:
                self._left_out[f"{place.name} ({too_long})"] = None
            for sequence in sequences(place.holder):
                parts += [sequence, _PARTED]
                size += sequence.size + 1
                if size >= MOST_LOOKED_AT:
                    break
            ends.append(size)
            if size >= MOST_LOOKED_AT:
                self._left_out[f"part of {place.name} and all farther away"] = None
                break
        numbers = np.concatenate(parts) if parts else np.empty(0)
        for record, one in wanted.items():
            shares = one.in_places(numbers, np.array(ends, dtype=np.intp))
            found[record].numbers = size
            for at, place in enumerate(reached.places[: len(ends)]):
                likeness = shares.get(at, Likeness())
                found[record].places[id(place.holder)] = (place, likeness)
        self._places = max(self._places, len(ends))
        self._numbers = max(self._numbers, size)
        return found

    def scope(self) -> SearchScope:
        """What was looked at and what was not."""
        return SearchScope(
            places=self._places,
            numbers=self._numbers,
            left_out=tuple(self._left_out),
            held_before=tuple(self._held),
            unsearchable=tuple(self._unsearchable),
        )
