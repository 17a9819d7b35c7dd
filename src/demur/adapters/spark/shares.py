"""Key shares: the key of the rows reaches Spark tasks in three parts, and is destroyed.

Tasks need the key of the rows' streams, and Spark writes down what it transports: local
properties go to the event log, broadcasts to files under `spark.local.dir`, closures
into the plan. So none of them carries the key. Two shares are random bytes and the
third is the key XOR both: any one of them, and any two, are uniform and reveal nothing.

    closure     with the pickled function, in the memory of driver and executors
    broadcast   a file beside the driver and one at each executor, until it is destroyed
    property    of the session, so Spark passes it to the tasks of all its SQL actions,
                whatever thread starts them; it may stay in the event log for ever

`destroy` destroys the broadcast everywhere and unsets the property. The event log may
keep its share; the broadcast's exists nowhere then, and without it the key is gone. A
DataFrame that is used afterwards fails: Spark refuses a destroyed broadcast.

Spark spools a pickled function above `spark.broadcast.UDFCompressionThreshold` to a
file, where the broadcast's share lies as well: `check_closure` refuses such a function,
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
class TaskKey:
    """What a task's closure holds of a key: one share, and where the others are."""

    property: str
    share: bytes
    broadcast: Any

    def combined(self) -> bytes:
        """The key, inside a task that runs before the shares are destroyed."""
        from pyspark import TaskContext

        task = TaskContext.get()
        third = None if task is None else task.getLocalProperty(self.property)
        if not third:
            raise NoiseReuse(
                "the key of these reports is not here: they were committed or closed,"
                " and their noise cannot be drawn again, or the action left Spark SQL"
                " (`.rdd`) in another thread than the one that called privatize."
                " Nothing was drawn."
            )
        return _xor(_xor(self.share, self.broadcast.value), bytes.fromhex(third))


class KeyShares:
    """The shares of a key, made on the driver; it keeps no copy of the key."""

    def __init__(self, spark: SparkSession, key: bytes) -> None:
        self._spark, context = spark, spark.sparkContext
        property = _PROPERTY + secrets.token_hex(8)
        first, second = secrets.token_bytes(len(key)), secrets.token_bytes(len(key))
        third = _xor(key, _xor(first, second)).hex()
        self.task_key = TaskKey(property, first, context.broadcast(second))
        spark.conf.set(property, third)
        # What leaves Spark SQL (`df.rdd`) has the properties of its thread alone.
        context.setLocalProperty(property, third)

    def destroy(self) -> None:
        """Destroy one share and unset another; also after Spark itself has died."""
        name, broadcast = self.task_key.property, self.task_key.broadcast
        unset: Any = None
        # A step that fails must not prevent the others: Spark may have been stopped.
        with contextlib.suppress(Exception):
            broadcast.destroy(blocking=True)
        with contextlib.suppress(Exception):
            Path(broadcast._path).unlink(missing_ok=True)  # the driver's own file
        with contextlib.suppress(Exception):
            self._spark.conf.unset(name)
        with contextlib.suppress(Exception):
            self._spark.sparkContext.setLocalProperty(name, unset)

    def __repr__(self) -> str:
        return "KeyShares(<secret>)"


def check_closure(context: SparkContext, function: object, schema: object) -> None:
    """Refuse a function that cannot be pickled, or that Spark would put into a file."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    try:
        size = len(pickler.dumps((function, schema)))
    except Exception as error:
        raise TypeError(
            "mechanism must be one that can be pickled, as it is sent to the tasks;"
            f" pickling raised {type(error).__name__}. Nothing was spent."
        ) from error
    most = context._jvm.PythonUtils.getBroadcastThreshold(context._jsc)
    if size + _ROOM > most:
        raise ValueError(
            f"mechanism and columns take {size} bytes in each task, and Spark writes"
            f" more than {most} (spark.broadcast.UDFCompressionThreshold) to a file,"
            " with a share of the key. Use a smaller mechanism, or raise that setting."
            " Nothing was spent."
        )


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
