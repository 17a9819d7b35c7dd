"""Sabotages of runs over several devices, processes and executors.

One process with one device shows none of them, so `demur audit --quick` does not see
them: the audits of layouts, which are part of `demur audit`, do.
"""

from __future__ import annotations

import hashlib
import time
from importlib import import_module
from typing import Any

import numpy as np

from demur.testing.sabotages.patches import Category, Sabotage

_WHY = "the quick audit starts no other process; `demur audit` refutes it"
_THREEFRY = "demur.training.noise.threefry"
_DRAWING = "demur.adapters.spark.drawing"


def _one_share(right: Any) -> Any:
    """Every device draws the share of the first."""

    def normal(key: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "sharding"):
            return right(key, leaf)
        jax = import_module("jax")
        standard_normal = import_module(_THREEFRY).standard_normal
        share = leaf.sharding.shard_shape(leaf.shape)
        times = [whole // part for whole, part in zip(leaf.shape, share, strict=True)]
        drawn = jax.numpy.tile(standard_normal(key, share), times)
        return jax.lax.with_sharding_constraint(drawn, leaf.sharding)

    return normal


def _processes() -> int:
    return int(import_module("jax").process_count())


def _first_process_alone(right: Any) -> Any:
    """The noise of other processes' shares is lost."""

    def normal(key: Any, leaf: Any) -> Any:
        drawn = right(key, leaf)
        if _processes() == 1:
            return drawn
        own = np.arange(len(drawn)) < len(drawn) // _processes()
        return drawn * own.reshape(-1, *[1] * (drawn.ndim - 1))

    return normal


def _second_unclipped(right: Any) -> Any:
    """Rows of the second process, which are the later half of a batch, as they are."""

    def factors(self: Any, *args: Any, **options: Any) -> Any:
        found, finite = right(self, *args, **options)
        if _processes() == 1:
            return found, finite
        where = import_module("jax.numpy").where
        later = np.arange(len(finite)) >= len(finite) // 2
        scale = 1.0 / self.normalize_by
        return [
            where(later & (f > 0.0), scale, f).astype(f.dtype) for f in found
        ], finite

    return factors


def _second_twice(right: Any) -> Any:
    """Rows of the last process stand in a batch twice."""

    def by_process(self: Any, indices: Any) -> Any:
        *others, last = right(self, indices)
        return [*others, np.concatenate([last, last]) if others else last]

    return by_process


def _turns_twice(right: Any) -> Any:
    """All turns of a batch, gone through twice."""

    def sum_in_turns(*args: Any) -> Any:
        total, value = right(*args)
        again, _ = right(*args)
        return type(total).join([total, again]), value

    return sum_in_turns


def _from_zero(right: Any) -> Any:
    """Rows of each batch are numbered from 0: batches share their streams."""

    def points_and_ids(batch: Any) -> Any:
        points, ids = right(batch)
        return points, np.arange(len(ids), dtype=ids.dtype)

    return points_and_ids


def _fresh_key(right: Any) -> Any:
    """A task that runs again draws other noise: its key is not that of the entry."""

    def combined(self: Any) -> bytes:
        now = str(time.time_ns()).encode()
        return hashlib.sha256(right(self) + now).digest()

    return combined


def _one_key(right: Any) -> Any:
    """The shares of every key are those of one."""

    def init(self: Any, spark: Any, key: bytes) -> None:
        right(self, spark, bytes(len(key)))

    return init


def _shorter(right: Any) -> Any:
    """Reports as the tasks hand them on, a tenth closer to 0."""

    def call(self: Any, batches: Any) -> Any:
        pa = import_module("pyarrow")
        for batch in right(self, batches):
            first, *columns = batch.columns
            shorter = [pa.array(0.9 * column.to_numpy()) for column in columns]
            yield pa.RecordBatch.from_arrays(
                [first, *shorter], names=batch.schema.names
            )

    return call


def _in_full(
    name: str,
    category: Category,
    engine: str,
    place: str,
    wrong: Any,
    copies: bool = True,
) -> Sabotage:
    return Sabotage(
        name,
        category,
        engine,
        (place,),
        wrong,
        quick=False,
        why_not=_WHY,
        full=True,
        copies=copies,
    )


SABOTAGES = (
    _in_full(
        "the noise of other processes' shares lost",
        Category.SCALE,
        "training",
        f"{_THREEFRY}:_normal",
        _first_process_alone,
    ),
    _in_full(
        "reports of Spark tasks a tenth closer to 0",
        Category.SCALE,
        "cluster",
        f"{_DRAWING}:ReportTask.__call__",
        _shorter,
    ),
    _in_full(
        "one noise for the shares of all devices",
        Category.INDEPENDENCE,
        "training",
        f"{_THREEFRY}:_normal",
        _one_share,
    ),
    _in_full(
        "one stream for the rows of each Spark batch",
        Category.INDEPENDENCE,
        "cluster",
        f"{_DRAWING}:points_and_ids",
        _from_zero,
        copies=False,
    ),
    _in_full(
        "one key for the reports of all Spark runs",
        Category.INDEPENDENCE,
        "cluster",
        "demur.adapters.spark.shares:KeyShares.__init__",
        _one_key,
    ),
    _in_full(
        "records of the second process unclipped",
        Category.SENSITIVITY,
        "training",
        "demur.training.clipping.clip_factors:Clip.factors",
        _second_unclipped,
    ),
    _in_full(
        "sums over cut parameters added twice",
        Category.SENSITIVITY,
        "training",
        "demur.training.run.sharded_state:sum_in_turns",
        _turns_twice,
    ),
    _in_full(
        "records of the last process twice in a batch",
        Category.SAMPLING,
        "training",
        "demur.training.devices.process_rows:ProcessRows.by_process",
        _second_twice,
    ),
    _in_full(
        "a Spark task that draws new noise when it runs again",
        Category.STATE,
        "cluster",
        "demur.adapters.spark.shares:TaskKey.combined",
        _fresh_key,
    ),
)
