"""Events over dicts at full speed: names in a fixed order, one buffer for all rows.

Converting a dict takes longer than learning from it, so this path has few layers: the
values are packed into one row, which the model reads and empties under its lock.
Between calls the row is zero, so that no record stays in it. What is not a row of
finite numbers under the known names in a plain dict (a Counter answers for names that
it lacks), or comes while there is more to do than learning, takes the slow way, which
also says what is wrong. One thing slips by: a complex number of numpy is read as its
real part, with numpy's ComplexWarning. A look at every value would take a tenth of an
event.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from demur.unlearning.stream.memory_pair import MemoryPair

Features: TypeAlias = Mapping[Hashable, float]
_UNUSABLE = (KeyError, TypeError, ValueError, OverflowError, struct.error)


@dataclass(frozen=True)
class SlowWay:
    """The general way to predict and to learn, and targets as numbers."""

    predict: Callable[[Features], float]
    learn: Callable[[Features, Any], None]
    number: Callable[[Any], float]


def in_fixed_order(names: Iterable[Hashable]) -> list[Hashable]:
    """Names in an order that does not tell in which one a record had them.

    >>> in_fixed_order(["b", "a"]), in_fixed_order([10, 9]), in_fixed_order([("b",), 1])
    (['a', 'b'], [9, 10], [1, ('b',)])
    """
    given: list[Any] = list(names)
    for kind in (str, (int, np.integer)):
        if all(isinstance(name, kind) for name in given):
            return sorted(given)
    return sorted(given, key=lambda name: (type(name).__name__, repr(name)))


def dict_events(
    model: MemoryPair, names: list[Hashable], slow: SlowWay, *, constant: bool
) -> tuple[Callable[[Features], float], Callable[[Features, Any], None]]:
    """`predict(x)` and `learn(x, y)` of a model, for records without ids."""
    count, only = len(names), names[0]
    pick: Callable[[Features], tuple[float, ...]] = (
        itemgetter(*names) if count > 1 else lambda x: (x[only],)
    )
    pack, zeros = struct.Struct(f"{count}d").pack, bytes(8 * count)
    row = np.zeros(count + constant)
    row[count:] = 1.0
    view = row[:count].data.cast("B")
    predict_row, learn_row = model.mode.on_row(row, count)
    acquire, release = model._lock.acquire, model._lock.release
    slow_predict, slow_learn, number = slow.predict, slow.learn, slow.number

    def predict(x: Features) -> float:
        acquire()
        try:
            try:
                if type(x) is not dict or len(x) != count:
                    raise KeyError
                view[:] = pack(*pick(x))
            except _UNUSABLE:
                pass
            else:
                answer = predict_row()
                if answer == answer:
                    return answer
        except BaseException:  # interrupted between the two
            view[:] = zeros
            raise
        finally:
            release()
        return slow_predict(x)

    def learn(x: Features, y: Any) -> None:
        acquire()
        try:
            try:
                if type(x) is not dict or len(x) != count or not model.lean:
                    raise KeyError
                target = number(y)
                view[:] = pack(*pick(x))
            except _UNUSABLE:
                pass
            else:
                answer = learn_row(target)
                if answer == answer:
                    model.inserts_seen += 1
                    return
        except BaseException:
            view[:] = zeros
            raise
        finally:
            release()
        slow_learn(x, y)

    return predict, learn
