"""Digests (SHA-256) of inputs and of released values.

Equal digests mean equal things. A digest of private data is as private as the data,
because a reader could test guesses against it: a ledger stores it under a secret key.
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
    """One digest of the texts of several things, in order."""
    return digest_of_text("\n".join(digest_of_text(str(part)) for part in parts))


def digest_of_array(values: NDArray[Any]) -> str:
    """A digest of type, shape and content of an array of numbers."""
    return digest_of_text(bytes_of_array(values))


def bytes_of_array(values: NDArray[Any]) -> bytes:
    """Type, shape and content of an array: equal bytes mean equal arrays."""
    if values.dtype.hasobject or values.dtype.names or np.ma.isMaskedArray(values):
        raise TypeError(
            "an array of Python objects, with named fields or with a mask has no"
            " digest: its content is addresses, or says less than the array; convert"
            " it to numbers or to fixed-width strings"
        )
    kind = f"{values.dtype.str} {values.shape}\x00".encode()
    return kind + np.ascontiguousarray(values).tobytes()


def unchangeable(values: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array that nobody can write to, so that its digest stays true."""
    copy = np.frombuffer(np.ascontiguousarray(values).tobytes(), dtype=values.dtype)
    return copy.reshape(values.shape)


def digest_of_rows(
    what: str, matrix: NDArray[np.float64], ids: NDArray[np.uint64]
) -> str:
    """A digest of rows and their ids, whatever their order."""
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
