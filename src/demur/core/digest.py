"""Digests of what is released and of what it was made from.

Two things are equal if their digests are. A digest of private data is as private as the
data, for a reader could test guesses against it: a ledger keeps it under a secret key.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest_of_text(text: str | bytes) -> str:
    """SHA-256 of a text or of bytes, in hexadecimal."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()


def digest_of_parts(*parts: object) -> str:
    """One digest of several things, as they are written."""
    return digest_of_text("\n".join(map(str, parts)))


def digest_of_array(values: NDArray[Any]) -> str:
    """A digest of shape and content."""
    shape = f"{values.shape}".encode()
    return digest_of_text(shape + np.ascontiguousarray(values).tobytes())


def digest_of_rows(
    what: str, matrix: NDArray[np.float64], ids: NDArray[np.uint64]
) -> str:
    """A digest of rows and their names, whatever their order."""
    if not increasing(ids):
        order = np.argsort(ids)
        ids, matrix = ids[order], matrix[order]
    whole = hashlib.sha256(f"rows of {what} {matrix.shape}\x00".encode())
    whole.update(np.ascontiguousarray(ids, dtype="<u8").data)
    whole.update(np.ascontiguousarray(matrix, dtype="<f8").data)
    return whole.hexdigest()


def increasing(ids: NDArray[np.uint64]) -> bool:
    """Whether each id is larger than the one before it."""
    return bool((ids[1:] > ids[:-1]).all())
