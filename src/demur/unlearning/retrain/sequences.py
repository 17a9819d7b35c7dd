"""The sequences of numbers that a place can be read as.

An array is read row by row and column by column, also one of objects or with named
fields; bytes as floats of 64, 32 and 16 bits in both byte orders from every offset;
text as the numbers written in it. Bytes and text are unpacked first where they are
JSON, a pickle (its operations are listed, none is executed), base64, hexadecimal
digits, or compressed by zlib, gzip, bz2, lzma or zip.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import json
import lzma
import pickletools
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.unlearning.models.base import Array
from demur.unlearning.retrain.reachable import BUFFERS, BYTES, numbers_in

MOST_NUMBERS = 2**20  # of one array
MOST_BYTES = 2**18  # of one string of bytes or text, and of what it unpacks to
_WRAPPED = 4  # a pickle of gzip of base64 of JSON
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:0x[01]\.?[0-9a-f]*p[-+]\d+|\d+\.?\d*(?:e[-+]?\d+)?|"
    r"\.\d+(?:e[-+]?\d+)?)(?![\w.])",
    re.IGNORECASE,
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){8,}")
_FLOATS = tuple(np.dtype(f"{order}f{size}") for size in (8, 4, 2) for order in "<>")


def sequences(holder: object) -> Iterator[Array]:
    """Every sequence of numbers, as float64, that `holder` can be read as."""
    reading = _read(holder, _WRAPPED)
    while True:
        with np.errstate(all="ignore"):  # any bits are a number: NaN, infinity
            sequence = next(reading, None)
        if sequence is None:
            return
        yield sequence


def size_left_out(holder: object) -> str | None:
    """What of `holder` is past the limits, in words; None if all of it is read."""
    if isinstance(holder, np.ndarray):
        fields = len(holder.dtype.names or "1")
        most, size, what = MOST_NUMBERS, holder.size * fields, "numbers"
    elif isinstance(holder, (str, bytes, bytearray)):
        most, size, what = MOST_BYTES, len(holder), "bytes"
    elif isinstance(holder, memoryview):
        most, size, what = MOST_BYTES, holder.nbytes, "bytes"
    else:
        return None
    return f"{size - most:,} of {size:,} {what}" if size > most else None


def _read(holder: object, depth: int) -> Iterator[Array]:
    if depth == 0:
        return
    if isinstance(holder, np.ndarray):
        yield from _of_array(holder, depth)
    elif isinstance(holder, BUFFERS):
        yield from _read(holder.getvalue(), depth)
    elif isinstance(holder, str):
        yield from _of_text(holder[:MOST_BYTES], depth)
    elif isinstance(holder, BYTES):
        yield from _of_bytes(bytes(memoryview(holder).cast("B")[:MOST_BYTES]), depth)
    elif isinstance(holder, int):
        size = min((abs(holder).bit_length() + 7) // 8, MOST_BYTES)
        low = abs(holder) & ((1 << 8 * size) - 1)
        yield from _of_bytes(low.to_bytes(size, "little"), depth)
    elif hasattr(type(holder), "__array__"):
        values = _attempt(lambda: np.asarray(holder))
        if isinstance(values, np.ndarray):
            yield from _of_array(values, depth)
    else:
        for numbers in numbers_in(holder):
            yield np.array(numbers[:MOST_NUMBERS], dtype=np.float64)


def _of_array(values: NDArray[Any], depth: int) -> Iterator[Array]:
    values = np.asarray(values)  # also what a mask hides
    kind = values.dtype.kind
    if values.dtype.names:
        for field in values.dtype.names:
            yield from _of_array(values[field], depth)
        rows = values.ravel()[: MOST_NUMBERS // len(values.dtype.names)].tolist()
        yield from _read([number for row in rows for number in row], depth - 1)
    elif kind == "O":
        yield from _read(values.ravel()[:MOST_NUMBERS].tolist(), depth - 1)
    elif kind in "SU":
        yield from _read("\n".join(map(str, values.ravel()[:4096])), depth - 1)
    elif kind == "c":
        yield from _of_array(values.real, depth)
        yield from _of_array(values.imag, depth)
    elif kind in "fiub" and values.size > 1:
        yield _floats(values, "C")
        if values.ndim > 1 and sum(n > 1 for n in values.shape) > 1:
            yield _floats(values, "F")
        if kind in "iu":  # the bits of floats, or bytes one by one
            if values.itemsize == 1:
                yield from _of_bytes(values.ravel()[:MOST_BYTES].tobytes(), depth)
            else:
                flat = np.ascontiguousarray(values.ravel()[:MOST_NUMBERS])
                yield flat.view(f"f{values.itemsize}").astype(np.float64)


def _floats(values: NDArray[Any], order: str) -> Array:
    if values.size <= MOST_NUMBERS:
        return values.ravel(order=order).astype(np.float64)  # type: ignore[arg-type]
    turned = values if order == "C" else values.T
    return turned.flat[:MOST_NUMBERS].astype(np.float64)


def _of_bytes(data: bytes, depth: int) -> Iterator[Array]:
    for dtype in _FLOATS:
        for offset in range(dtype.itemsize):
            count = (len(data) - offset) // dtype.itemsize
            if count > 1:
                yield np.frombuffer(data, dtype, count, offset).astype(np.float64)
    for inner in _unpacked(data):
        yield from _read(inner, depth - 1)
    text = _attempt(lambda: data.decode())
    if isinstance(text, str):
        yield from _of_text(text, depth)


def _of_text(text: str, depth: int) -> Iterator[Array]:
    tokens = _NUMBER.findall(text)
    hexadecimal = [t for t in tokens if "x" in t.lower()]
    if hexadecimal:
        yield np.array([float.fromhex(t) for t in hexadecimal])
    decimal = [t for t in tokens if "x" not in t.lower()]
    # With whole numbers, and without those that number the others ({"0": 0.25, ...}).
    for chosen in (decimal, [t for t in decimal if not t.lstrip("+-").isdigit()]):
        if len(chosen) > 1:
            yield np.array([float(t) for t in chosen])
    packed = text.strip().encode(errors="ignore")
    for pattern, decode in (
        (_HEX, binascii.unhexlify),
        (_BASE64, _from_base64),
    ):
        for piece in pattern.findall(packed)[:64]:
            inner = _attempt(lambda p=piece, d=decode: d(p))  # type: ignore[misc]
            if isinstance(inner, bytes):
                yield from _read(inner, depth - 1)
    if text.lstrip()[:1] in ("{", "["):
        parsed = _attempt(lambda: json.loads(text))
        for part in _containers(parsed):
            yield from _read(part, depth - 1)


def _containers(parsed: object) -> Iterator[object]:
    """The lists, objects and strings of a JSON document."""
    waiting = [parsed]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if len(part) >= 16:
                yield part
            continue
        if not isinstance(part, (dict, list)):
            continue
        yield part
        inner = part.values() if isinstance(part, dict) else part
        waiting += [i for i in inner if isinstance(i, (dict, list, str))]


def _unpacked(data: bytes) -> Iterator[object]:
    openers: tuple[tuple[bytes, Callable[[], object]], ...] = (
        (b"\x78", lambda: zlib.decompressobj().decompress(data, MOST_BYTES)),
        (b"\x1f\x8b", lambda: zlib.decompressobj(31).decompress(data, MOST_BYTES)),
        (b"BZh", lambda: bz2.BZ2Decompressor().decompress(data, MOST_BYTES)),
        (b"\xfd7zXZ", lambda: lzma.LZMADecompressor().decompress(data, MOST_BYTES)),
        (b"PK\x03\x04", lambda: _members(data)),
        (b"\x80", lambda: _pickled(data)),
    )
    for magic, opener in openers:
        if data.startswith(magic):
            inner = _attempt(opener)
            if isinstance(inner, list):
                yield from inner
            elif inner:
                yield inner


def _members(data: bytes) -> list[object]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()[:16]
        return [archive.open(name).read(MOST_BYTES) for name in names]


def _pickled(data: bytes) -> list[object]:
    """The numbers of a pickle as one list, and its texts and strings of bytes."""
    numbers: list[float] = []
    parts: list[object] = [numbers]
    try:
        for operation, argument, _ in pickletools.genops(data):
            if isinstance(argument, float) or (
                isinstance(argument, int) and "INT" in operation.name
            ):
                numbers.append(float(argument))
            elif isinstance(argument, (bytes, str)) and len(argument) >= 8:
                parts.append(argument)
    except Exception:  # cut off by the limit, or no pickle: what was read is read
        pass
    return parts


def _from_base64(text: bytes) -> bytes:
    padded = text.rstrip(b"=")
    padded += b"=" * (-len(padded) % 4)
    return base64.b64decode(padded.replace(b"-", b"+").replace(b"_", b"/"))


def _attempt(read: Callable[[], object]) -> object:
    """What `read` gives, or None: data that is no such format raises anything."""
    try:
        return read()
    except Exception:
        return None
