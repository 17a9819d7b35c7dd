"""Streams of inserts and deletes, read or simulated, and run through a memory pair.

The order is the seed's: bootstrap with `calibrate_step`, fix N*, warm up, size the
odometer over the events of the stream, then interleave. Deletions that arrive before
the model may delete wait, and are made as soon as it may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from demur.core import validate
from demur.core.entry import Entry
from demur.unlearning.errors import CapacityExhausted, RecordUsedInCalibration
from demur.unlearning.models.base import Array
from demur.unlearning.stream.memory_pair import MemoryPair
from demur.unlearning.stream.metrics import Metrics
from demur.unlearning.stream.phase import Phase

INSERT, DELETE = "insert", "delete"
_POINTS = 400  # of the curves


@dataclass(frozen=True)
class EventStream:
    """Events in order. A deletion names an id; `row` is where its record was inserted.

    X and Y hold the inserted records; event i is an insert of record row[i], or the
    deletion of record row[i].
    """

    deletes: NDArray[np.bool_]
    row: NDArray[np.int64]
    ids: list[str]
    subjects: list[str | None] | None
    X: Array
    Y: Array
    features: list[str]

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Curve:
    """Regret and capacity along the stream."""

    events: list[int] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    capacity: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class StreamResult:
    """The result of a run: metrics, curves, and what became of the deletions."""

    metrics: Metrics
    curve: Curve
    deleted: int
    waited: int
    renewed: int
    refused: int
    reason: str | None
    entry: Entry | None


def read_stream(path: Path) -> EventStream:
    """Columns op (insert or delete), id, y, subject (optional) and the features."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    match path.suffix.lower():
        case ".parquet" | ".pq":
            table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        case ".csv":
            table = pyarrow.csv.read_csv(path)
        case other:
            raise ValueError(f"{path.name} must be .parquet or .csv; got {other!r}")
    missing = [name for name in ("op", "id", "y") if name not in table.column_names]
    if missing:
        raise ValueError(
            f"{path.name} must have the columns op, id and y; it lacks"
            f" {', '.join(missing)}"
        )
    named = ("op", "id", "y", "subject")
    features = [name for name in table.column_names if name not in named]
    if not features:
        raise ValueError(f"{path.name} has no feature column")
    ops = [str(op) for op in table.column("op").to_pylist()]
    keys = table.column("id").to_pylist()
    owners: list[Any] | None = None
    if "subject" in table.column_names:
        owners = table.column("subject").to_pylist()
    return _stream(path.name, ops, keys, owners, _numbers(table, ["y", *features]))


def _numbers(table: pa.Table, names: list[str]) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for name in names:
        try:
            column = table.column(name).cast(pa.float64()).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"column {name!r} must hold numbers; {error}") from None
        columns[name] = column.to_numpy(zero_copy_only=False)  # null becomes NaN
    return columns


def _stream(
    where: str,
    ops: list[str],
    named: list[Any],
    owners: list[Any] | None,
    columns: dict[str, Array],
) -> EventStream:
    if not ops:
        raise ValueError(f"{where} has no row")
    live: dict[str, int] = {}
    taken: list[int] = []
    row = np.empty(len(ops), dtype=np.int64)
    keys = [_name(name) for name in named]
    for at, (op, key) in enumerate(zip(ops, keys, strict=True)):
        if key is None:
            raise ValueError(f"{where}, row {at}: the id is missing")
        if op == INSERT:
            if key in live:
                raise ValueError(f"{where}, row {at}: id {key!r} is live already")
            live[key] = row[at] = len(taken)
            taken.append(at)
        elif op == DELETE:
            if key not in live:
                raise ValueError(f"{where}, row {at}: no live record has id {key!r}")
            row[at] = live.pop(key)
        else:
            raise ValueError(
                f"{where}, row {at}: op must be 'insert' or 'delete'; got {op!r}"
            )
    features = [name for name in columns if name != "y"]
    X = np.column_stack([columns[name][taken] for name in features])
    Y = columns["y"][taken]
    bad = ~(np.isfinite(X).all(axis=1) & np.isfinite(Y))
    if bad.any():
        raise ValueError(
            f"{where}, row {taken[int(np.argmax(bad))]}: y and features of an insert"
            " must be finite numbers"
        )
    return EventStream(
        deletes=np.array([op == DELETE for op in ops]),
        row=row,
        ids=[keys[at] or "" for at in taken],
        subjects=None if owners is None else [_name(owners[at]) for at in taken],
        X=np.ascontiguousarray(X),
        Y=Y,
        features=features,
    )


def _name(value: Any) -> str | None:
    """An id as text; None if it is missing (null, NaN, empty)."""
    if value is None or value == "" or value != value:
        return None
    return str(value)


def simulated(
    inserts: int,
    every: int,
    per: int,
    *,
    dimension: int = 20,
    labels: bool = False,
    warm_up: int = 0,
    seed: int = 0,
) -> EventStream:
    """`every` inserts, then `per` deletes of random live records, and again.

    Rows on the unit sphere, a linear target with noise (or its sign). Deletions begin
    after `warm_up` inserts. `seed` makes the *data* repeatable; noise never is.
    """
    validate.count(inserts=inserts, every=every, per=per, dimension=dimension)
    validate.non_negative(seed=seed)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(inserts, dimension))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    w = rng.normal(size=dimension)
    Y = X @ (w / np.linalg.norm(w)) + 0.1 * rng.normal(size=inserts)
    if labels:
        Y = (Y > 0.0).astype(np.float64)
    live: list[int] = []
    deletes: list[bool] = []
    row: list[int] = []
    for at in range(inserts):
        live.append(at)
        deletes.append(False)
        row.append(at)
        if at + 1 > warm_up and (at + 1) % every == 0:
            for _ in range(min(per, len(live))):
                pick = int(rng.integers(len(live)))
                live[pick], live[-1] = live[-1], live[pick]
                deletes.append(True)
                row.append(live.pop())
    names = [f"x{j}" for j in range(dimension)]
    ids = [f"r{at}" for at in range(inserts)]
    return EventStream(np.array(deletes), np.array(row), ids, None, X, Y, names)


class StreamRunner:
    """Runs a stream through a memory pair; `tick` is called after every event."""

    def __init__(
        self,
        model: MemoryPair,
        stream: EventStream,
        *,
        calibration: int,
        gamma_learn: float,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        validate.count(calibration=calibration)
        self.model, self.stream = model, stream
        self.calibration, self.gamma_learn = int(calibration), gamma_learn
        self._tick = tick
        self._waiting: list[int] = []
        self._live: dict[int, None] = {}
        self._waited = self._deleted = self._renewed = self._refused = 0
        self._reason: str | None = None
        self._curve = Curve()

    def run(self) -> StreamResult:
        """Run all events in order."""
        step = max(1, len(self.stream) // _POINTS)
        for at in range(len(self.stream)):
            record = int(self.stream.row[at])
            if self.stream.deletes[at]:
                self._delete_or_wait(record)
            else:
                self._insert(record)
            self._tick()
            if at % step == 0 or at == len(self.stream) - 1:
                self._note(at + 1)
        if self._waiting:
            self._refused += len(self._waiting)
            self._reason = self._reason or "N* was not reached"
        return StreamResult(
            self.model.metrics(),
            self._curve,
            self._deleted,
            self._waited,
            self._renewed,
            self._refused,
            self._reason,
            self.model.entry,
        )

    def _insert(self, record: int) -> None:
        s, model = self.stream, self.model
        subject = s.subjects[record] if s.subjects else None
        content = (s.X[record], float(s.Y[record]), s.ids[record], subject)
        if model.phase is Phase.CALIBRATION:
            model.calibrate_step(*content)
            if model.inserts_seen >= min(self.calibration, len(s.ids)):
                model.finalize_calibration(self.gamma_learn)
        else:
            model.insert(*content)
        self._live[record] = None
        if model.phase is Phase.INTERLEAVING and not model.odometer.finalised:
            assert model.stats is not None
            model.odometer.finalize_with(model.stats, T_estimate=len(s))
            waiting, self._waiting = self._waiting, []
            for waiting_record in waiting:
                self._delete(waiting_record)

    def _delete_or_wait(self, record: int) -> None:
        if self.model.phase is Phase.INTERLEAVING:
            self._delete(record)
        else:
            self._waiting.append(record)
            self._waited += 1

    def _delete(self, record: int) -> None:
        try:
            self._forget(record)
        except CapacityExhausted as error:
            self._refused += 1
            self._reason = error.reason
        except RecordUsedInCalibration:
            self._refused += 1
            self._reason = "records of calibration sized the noise"
        else:
            self._deleted += 1
            del self._live[record]

    def _forget(self, record: int) -> None:
        s, model = self.stream, self.model
        content = (s.X[record], s.Y[record])
        try:
            model.delete(*content, record_id=s.ids[record])
        except CapacityExhausted as error:
            if error.reason != "numeric":
                raise
            # The stream is at hand, so the certificate can be renewed from it.
            live = list(self._live)
            model.renew(s.X[live], s.Y[live], [s.ids[i] for i in live])
            self._renewed += 1
            model.delete(*content, record_id=s.ids[record])

    def _note(self, events: int) -> None:
        now = self.model.metrics()
        curve = self._curve
        curve.events.append(events)
        curve.regret.append(_or_nan(now.avg_regret_empirical))
        curve.bound.append(_or_nan(now.avg_regret_theory))
        curve.capacity.append(now.capacity_remaining)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
