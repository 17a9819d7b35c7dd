"""Stored privacy profiles: delta as a function of epsilon, kept with an entry.

A subsampled plan has no closed form; its price needs a privacy loss distribution that
takes a second to build. What is stored of it is the hockey-stick curve
delta(epsilon) = sup_S P(S) - e^epsilon Q(S) in both directions, at equally spaced
epsilons. By "connect the dots" (Doroshenko et al. 2022, Theorem 4.1) the pair with
point masses at those epsilons and the same delta there dominates the original, so a
reading that composes stored curves is an upper bound, however coarse the dots.

Steps are powers of two: a curve with step 2^-j lies on every finer such grid, and
dropping all but every 2^i-th dot leaves a valid, coarser curve.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FORMAT = 1
_MOST_DOTS = 2**22
_CHECKSUM = 32


@dataclass(frozen=True, eq=False)
class Profile:
    """delta at epsilon = (first + i) * 2^-exponent, for both directions.

    `remove` compares the dataset with the record to the one without it, `add` the
    reverse.
    """

    exponent: int
    first: int
    remove: NDArray[np.float64]
    add: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, curve in (("remove", self.remove), ("add", self.add)):
            if curve.ndim != 1 or not 2 <= curve.size <= _MOST_DOTS:
                raise ValueError(f"{name} must be a curve; got shape {curve.shape}")
            if not ((curve >= 0) & (curve <= 1)).all() or (np.diff(curve) > 0).any():
                raise ValueError(f"{name} must fall from at most 1 to at least 0")
        if self.remove.size != self.add.size or not -64 <= self.exponent <= 64:
            raise ValueError(
                "remove and add must have the same number of dots, and exponent must be"
                f" from -64 to 64; got {self.remove.size} and {self.add.size} dots,"
                f" exponent {self.exponent}"
            )

    @property
    def step(self) -> float:
        """The distance of two neighbouring dots."""
        return math.ldexp(1.0, -self.exponent)

    @property
    def width(self) -> float:
        """The length of the range of epsilon that the dots span."""
        return self.step * (self.remove.size - 1)

    def coarser(self, exponent: int) -> Profile:
        """The same profile with fewer dots, at step 2^-exponent."""
        if exponent >= self.exponent:
            return self
        stride = 2 ** (self.exponent - exponent)
        offset = -self.first % stride
        first = (self.first + offset) // stride
        remove, add = self.remove[offset::stride], self.add[offset::stride]
        if (self.remove.size - 1 - offset) % stride or remove.size < 2:
            # The last dot carries the mass at infinity: add one at the end, where
            # the curve is not above its last value.
            remove = np.append(remove, self.remove[-1])
            add = np.append(add, self.add[-1])
        if remove.size < 2:
            remove, add = np.repeat(remove, 2), np.repeat(add, 2)
        return Profile(exponent, first, remove, add)

    def to_bytes(self) -> bytes:
        """The profile as compressed bytes with a checksum (no pickle)."""
        header = json.dumps(
            {
                "format": _FORMAT,
                "exponent": self.exponent,
                "first": self.first,
                "dots": int(self.remove.size),
            }
        ).encode()
        body = self.remove.astype("<f8").tobytes() + self.add.astype("<f8").tobytes()
        data = len(header).to_bytes(4, "little") + header + zlib.compress(body, 6)
        return data + hashlib.sha256(data).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Profile:
        """The profile that `to_bytes` wrote; anything else is a ValueError."""
        try:
            content, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
            if hashlib.sha256(content).digest() != checksum:
                raise ValueError("its checksum is wrong")
            size = int.from_bytes(content[:4], "little")
            header = json.loads(content[4 : 4 + size])
            numbers = [header[key] for key in ("exponent", "first", "dots")]
            if any(type(number) is not int for number in numbers):
                raise ValueError("its header holds something else than whole numbers")
            exponent, first, dots = numbers
            if header["format"] != _FORMAT or not 2 <= dots <= _MOST_DOTS:
                raise ValueError("unknown format or size")
            if abs(first) > 2**53:
                raise ValueError("its first dot is out of range")
            unpack = zlib.decompressobj()
            body = unpack.decompress(content[4 + size :], 16 * dots + 1)
            values = np.frombuffer(body, dtype="<f8").astype(np.float64)
            if values.size != 2 * dots:
                raise ValueError(f"{values.size} values for {dots} dots")
            return cls(exponent, first, values[:dots], values[dots:])
        except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            raise ValueError(f"not a privacy profile: {error}") from error
