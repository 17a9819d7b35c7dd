"""A key lent to the tasks of Spark jobs, in three shares, and taken back.

Tasks need the key of the rows' streams, and Spark writes down what it carries: local
properties go to the event log, broadcasts to files under `spark.local.dir`, closures
into the plan. So the key travels in no one of them. Two shares are random bytes and the
third is the key XOR both: any one of them, and any two, are uniform and say nothing.

    closure     with the pickled function, in the memory of driver and executors
    broadcast   a file beside the driver and one at each executor, until it is destroyed
    property    of the session, so Spark hands it to the tasks of all its SQL actions,
                whatever thread starts them; it may stay in the event log for ever

`take_back` destroys the broadcast everywhere and unsets the property. The event log may
keep its share; the broadcast's exists nowhere then, and without it the key is gone. A
DataFrame that is used afterwards fails: Spark refuses a destroyed broadcast.

Spark spools a pickled function above `spark.broadcast.UDFCompressionThreshold` to a
file, where the broadcast's share lies as well: `must_travel` refuses such a function,
before anything is paid. What leaves Spark SQL (`df.rdd`, `foreach`, `checkpoint`) has
all settings of the session in the binary of its tasks, beside the closure: two shares,
in memory, and in the block manager's files where memory is short.

Spark's own network carries the shares: without `spark.network.crypto.enabled` (or TLS)
whoever reads all traffic between driver and executors has them all, and the points too.
The memory of an idle Python worker is not wiped.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur.core.errors import NoiseReuse

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# "secret" in its name: Spark leaves such values out of what it shows of a session.
_PROPERTY = "spark.demur.secret.share."
_ROOM = 4096  # bytes for what Spark wraps around a function


@dataclass(frozen=True, repr=False)
class Borrowed:
    """What goes into the closure of a task: one share, and where the others are."""

    property: str
    share: bytes
    broadcast: Any

    def key(self) -> bytes:
        """The key, inside a task of a job that runs while it is lent."""
        from pyspark import TaskContext

        task = TaskContext.get()
        third = None if task is None else task.getLocalProperty(self.property)
        if not third:
            raise NoiseReuse(
                "the key of these reports is not here. They were committed or closed,"
                " and then their noise cannot be drawn again; or the action left"
                " Spark SQL (`.rdd`) in another thread than the one that called"
                " privatize. Nothing was drawn."
            )
        return _xor(_xor(self.share, self.broadcast.value), bytes.fromhex(third))


class Loan:
    """A key while it is lent, on the driver's side; keeps no copy of the key."""

    def __init__(self, spark: SparkSession, key: bytes) -> None:
        self._spark, context = spark, spark.sparkContext
        property = _PROPERTY + secrets.token_hex(8)
        first, second = secrets.token_bytes(len(key)), secrets.token_bytes(len(key))
        third = _xor(key, _xor(first, second)).hex()
        self.borrowed = Borrowed(property, first, context.broadcast(second))
        spark.conf.set(property, third)
        # What leaves Spark SQL (`df.rdd`) has the properties of its thread alone.
        context.setLocalProperty(property, third)

    def take_back(self) -> None:
        """Destroy one share and unset another; also after Spark itself has died."""
        name, broadcast = self.borrowed.property, self.borrowed.broadcast
        unset: Any = None
        # One that fails must not keep the others: Spark may have been stopped.
        with contextlib.suppress(Exception):
            broadcast.destroy(blocking=True)
        with contextlib.suppress(Exception):
            Path(broadcast._path).unlink(missing_ok=True)  # the driver's own file
        with contextlib.suppress(Exception):
            self._spark.conf.unset(name)
        with contextlib.suppress(Exception):
            self._spark.sparkContext.setLocalProperty(name, unset)

    def __repr__(self) -> str:
        return "Loan(<secret>)"


def must_travel(context: SparkContext, function: object, schema: object) -> None:
    """Refuse a function that cannot be pickled, or that Spark would put into a file."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    try:
        size = len(pickler.dumps((function, schema)))
    except Exception as error:
        raise TypeError(
            "mechanism must be one that can be pickled, for the tasks have to get it;"
            f" got {type(error).__name__}. Nothing was spent."
        ) from error
    most = context._jvm.PythonUtils.getBroadcastThreshold(context._jsc)  # type: ignore[union-attr]
    if size + _ROOM > most:
        raise ValueError(
            f"mechanism and columns take {size} bytes in each task, and Spark writes"
            f" what is above {most} (spark.broadcast.UDFCompressionThreshold) to a"
            " file, with a share of the key. Use a smaller mechanism, or raise that"
            " setting. Nothing was spent."
        )


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
