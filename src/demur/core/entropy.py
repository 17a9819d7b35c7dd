"""Where noise comes from: OS entropy, one 256-bit key for each entry of the ledger.

    key = 32 bytes of the operating system
    stream(purpose, block) = ChaCha20 keystream under HKDF-SHA256(key, purpose, block)

Different purposes and blocks give independent streams (HKDF is a pseudo-random
function of its info string), so threads and workers that use different blocks never
meet. A key or a stream belongs to the process that made it: after a fork both copies
would hand out the same bytes, so the child's copy refuses. Neither can be pickled.

`Seeded` is for tests: whatever it touches is stamped NOT PRIVATE.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from demur.core import recording, validate
from demur.core.errors import NoiseReuse

KEY_BYTES = 32
# ChaCha20's block counter has 32 bits of 64-byte blocks; past it the stream repeats.
_MOST_BYTES = 2**38


class Source(Protocol):
    """Where keys come from."""

    private: ClassVar[bool]

    def new_key(self) -> bytes:
        """32 fresh bytes."""
        ...


@dataclass(frozen=True)
class OsEntropy:
    """The operating system's generator; the only source that is private."""

    private: ClassVar[bool] = True

    def new_key(self) -> bytes:
        """32 bytes that nobody can know or repeat."""
        return os.urandom(KEY_BYTES)


@dataclass(frozen=True)
class Seeded:
    """Keys that anyone can repeat, for tests. NOT PRIVATE.

    The n-th key of `Seeded(7)` is always the same.
    """

    seed: int
    private: ClassVar[bool] = False
    _used: list[int] = field(
        default_factory=lambda: [0], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be a whole number; got {self.seed!r}")

    def new_key(self) -> bytes:
        """The next key of the sequence."""
        self._used[0] += 1
        text = f"demur seeded, not private: {self.seed} {self._used[0]}"
        return hashlib.sha256(text.encode()).digest()


def source_name(source: Source) -> str:
    """The name under which an entry records its source."""
    return "os" if source.private else "seeded"


class _OwnedByProcess:
    """State that a forked child or a pickle must not carry on."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def _check_owner(self) -> None:
        if os.getpid() != self._process:
            raise NoiseReuse(
                f"this noise belongs to process {self._process}; a copy in process"
                f" {os.getpid()} would repeat it. Charge and draw in one process."
            )

    def __reduce__(self) -> NoReturn:
        raise NoiseReuse(
            f"a {type(self).__name__} cannot be pickled or copied: its noise could"
            " be drawn twice. Charge in the process that draws."
        )


class NoiseKey(_OwnedByProcess):
    """The secret of one entry; makes the streams its noise is drawn from."""

    def __init__(self, key: bytes, *, private: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must be {KEY_BYTES} bytes; got {len(key)}")
        super().__init__()
        self._key = bytearray(key)
        self._wiped = False
        self._used: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self.private = private

    def stream(self, purpose: str, block: int = 0) -> Stream:
        """The stream for one purpose and block, once: again it would repeat noise.

        The bytes are a function of key, purpose and block: a retried task that is given
        the key anew draws the same.
        """
        validate.name(purpose=purpose)
        if isinstance(block, bool) or not isinstance(block, int) or block < 0:
            raise ValueError(f"block must be a whole number from 0; got {block!r}")
        with self._lock:
            if (purpose, block) in self._used:
                raise NoiseReuse(
                    f"the stream {purpose!r}, block {block}, was taken from this key"
                    " already: its noise would be used twice. Take another block."
                )
            derived = self._derive(f"noise\x00{purpose}\x00{block}")
            self._used.add((purpose, block))
        return Stream(derived)

    def subkey(self, purpose: str) -> bytes:
        """A key for streams that are addressed by record, such as one for each row.

        It may be asked for again: batches of one release share it, and what tells
        their noise apart is the row's own address.
        """
        validate.name(purpose=purpose)
        return self._derive(f"subkey\x00{purpose}")

    def handed_on(self) -> bytes:
        """The key itself, for other processes that compute this one release together.

        It travels in memory alone, between processes that see the exact values anyway;
        all of them draw the same noise, for the same sum.
        """
        self._check_usable()
        return bytes(self._key)

    def _check_usable(self) -> None:
        self._check_owner()
        recording.refuse_private(self.private)
        if self._wiped:
            raise NoiseReuse(
                "this entry was committed and its key wiped: its noise cannot be"
                " drawn again. Charge a new entry."
            )

    def _derive(self, info: str) -> bytes:
        self._check_usable()
        expand = HKDF(SHA256(), KEY_BYTES, salt=None, info=f"demur {info}".encode())
        return expand.derive(bytes(self._key))

    def wipe(self) -> None:
        """Overwrite the key; no stream can be made from it any more."""
        self._key[:] = bytes(KEY_BYTES)
        self._wiped = True

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"


class Stream(_OwnedByProcess):
    """A sequence of bytes that nobody without the key can tell from uniform ones."""

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        self._lock = threading.Lock()
        self._taken = 0

    def read(self, count: int) -> bytes:
        """The next `count` bytes; no two calls, in any thread, share a byte."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"count must be a whole number from 0; got {count!r}")
        self._check_owner()
        with self._lock:
            if self._taken + count > _MOST_BYTES:
                raise NoiseReuse(
                    "a stream ends after 2^38 bytes; use another block of the key"
                )
            self._taken += count
            return self._cipher.update(bytes(count))

    def __repr__(self) -> str:
        return "Stream(<secret>)"
