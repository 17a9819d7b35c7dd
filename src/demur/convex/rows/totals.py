r"""Compensated sums over the chunks of a pass, and a fingerprint of the rows it saw.

**Sums are compensated** (the cascaded sum of Ogita, Rump and Oishi 2005): a running
sum s and the errors e of its additions, which a few subtractions give exactly. For k
chunks, in any order and any tree, s + e is off by at most u + (2 k u)^2 of the sum of
absolute values. The number of chunks, which a file's layout or a cluster decides, is
therefore does not enter the certificate; only the most rows summed at once do.

**The same rows each time.** Each pass counts its classes and sums a fingerprint of its
rows (`preprocessing.row_fingerprints`), which an accidental change does not preserve.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from demur.preprocessing import row_fingerprints

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Work = Callable[[Array, Index], tuple[NDArray[Any], ...]]

UNIT_ROUNDOFF = 2.0**-53


class Chunk(NamedTuple):
    """Some rows in float64, the indices of their classes, and their fingerprint.

    The fingerprint (0 until it is computed) is that of the rows as they were read: what
    is computed from them may differ in the last bit between two kinds of processors.
    """

    rows: Array
    y: Index
    fingerprint: int = 0


class Totals:
    """Sums over chunks: float64 compensated, integers exact, float32 in float64."""

    def __init__(self, num_classes: int) -> None:
        """Nothing summed yet."""
        self.counts = np.zeros(num_classes, dtype=np.int64)
        self.fingerprint = 0
        self._sums: list[NDArray[Any]] = []
        self._errors: list[NDArray[Any] | None] = []

    @classmethod
    def over(cls, chunks: Iterable[Chunk], num_classes: int, work: Work) -> Self:
        """The sums of `work` over the chunks."""
        totals = cls(num_classes)
        for chunk in chunks:
            totals.counts += np.bincount(chunk.y, minlength=num_classes)
            totals._add_fingerprint(chunk.fingerprint)
            totals._add(work(chunk.rows, chunk.y), errors=None)
        return totals

    def results(self) -> tuple[NDArray[Any], ...]:
        """The sums."""
        pairs = zip(self._sums, self._errors, strict=True)
        return tuple(s if e is None else s + e for s, e in pairs)

    def merge(self, other: Totals) -> None:
        """Add the sums over other rows."""
        self.counts += other.counts
        self._add_fingerprint(other.fingerprint)
        if other._sums:
            self._add(tuple(other._sums), tuple(other._errors))

    def to_bytes(self) -> bytes:
        """The sums and their rounding errors, as plain arrays."""
        file = io.BytesIO()
        arrays: dict[str, Any] = {
            "counts": self.counts,
            "fingerprint": np.array(
                row_fingerprints.halves(self.fingerprint), dtype=np.uint64
            ),
        }
        for i, (total, error) in enumerate(zip(self._sums, self._errors, strict=True)):
            arrays[f"sum{i}"] = total
            if error is not None:
                arrays[f"error{i}"] = error
        np.savez(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The totals that `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            totals = cls(len(arrays["counts"]))
            totals.counts = arrays["counts"]
            first, second = map(int, arrays["fingerprint"])
            totals.fingerprint = first + second * 2**64
            count = sum(name.startswith("sum") for name in arrays.files)
            for i in range(count):
                totals._sums.append(arrays[f"sum{i}"])
                name = f"error{i}"
                totals._errors.append(arrays[name] if name in arrays.files else None)
        return totals

    def _add_fingerprint(self, fingerprint: int) -> None:
        self.fingerprint = row_fingerprints.joined(self.fingerprint, fingerprint)

    def _add(
        self,
        parts: tuple[NDArray[Any], ...],
        errors: tuple[NDArray[Any] | None, ...] | None,
    ) -> None:
        if not self._sums:
            for i, part in enumerate(parts):
                careful = part.dtype == np.float64
                wide = part.astype(np.float64 if part.dtype.kind == "f" else np.int64)
                self._sums.append(wide)
                given = None if errors is None else errors[i]
                missing = np.zeros_like(wide) if given is None else given
                self._errors.append(missing if careful else None)
            return
        for i, part in enumerate(parts):
            error = self._errors[i]
            if error is None:
                self._sums[i] += part
                continue
            self._sums[i], lost = _two_sum(self._sums[i], part)
            error += lost
            further = None if errors is None else errors[i]
            if further is not None:
                error += further


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and the exact rounding error (Knuth)."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def fingerprint_of(chunk: Chunk) -> int:
    """The fingerprint of a chunk's rows and labels, whatever the order of the rows."""
    lanes = row_fingerprints.new_lanes(len(chunk.rows))
    words = np.ascontiguousarray(chunk.rows).view(np.uint64)
    row_fingerprints.fold_rows(words, *lanes)
    row_fingerprints.fold(chunk.y.astype(np.uint64), *lanes)
    return row_fingerprints.sum_of(lanes)
