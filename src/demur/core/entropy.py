"""Where noise comes from: OS entropy, one 256-bit key for each entry of the ledger.

    key = 32 bytes of the operating system
    stream(purpose, block) = ChaCha20 keystream under HKDF-SHA256(key, purpose, block)

Different purposes and blocks give independent streams (HKDF is a pseudo-random
function of its info string), so threads and workers that use different blocks never
meet. A key or a stream belongs to the process that made it: after a fork both copies
would hand out the same bytes, so the child's copy refuses. Neither can be pickled.

A key is bound to what was paid for (`Binding`). Without that a key of a cheap entry
could draw the noise of an expensive mechanism, and one key could draw the same noise
for two inputs, whose difference would then be exact.

`Seeded` is for tests: whatever it touches is stamped NOT PRIVATE.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from demur.core import recording, validate
from demur.core.errors import NoiseReuse, NotPaidFor

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


@dataclass(frozen=True)
class Binding:
    """What a key was paid for: one mechanism with its parameters, on one input.

    `fingerprint` is the declaration's. `digest` is that of the input; None leaves it to
    the first draw to name it. `draws` is how many draws were paid for. Where it is not
    1, the values that are drawn on are not known in advance (they follow from the input
    and from earlier noise): there the mechanism and the number of the draw are
    compared, and every stream is handed out once. None: the mechanism itself counts its
    draws.
    """

    fingerprint: str
    digest: str | None = None
    draws: int | None = 1


class _Secret:
    """The bytes of a key, shared by the keys of its parts: wiped once, for all."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must be {KEY_BYTES} bytes; got {len(key)}")
        self.key = bytearray(key)
        self.wiped = False
        self.used: set[tuple[str, int]] = set()
        self.lock = threading.Lock()


class NoiseKey(_OwnedByProcess):
    """The secret of one entry; makes the streams its noise is drawn from.

    The key that `Ledger.paid` hands out is bound: it gives no stream before
    `pays_for` has compared what is to be drawn with what was paid for. A key that was
    made by hand pays for nothing. It is for tests (under a seeded source), and, made
    by `free`, for randomness that is no release.
    """

    def __init__(
        self, key: bytes, *, private: bool, binding: Binding | None = None
    ) -> None:
        super().__init__()
        self._secret = _Secret(key)
        self._binding = binding
        self._may_draw = not private
        self.private = private

    @classmethod
    def free(cls, source: Source) -> NoiseKey:
        """A key for randomness that is no release of its own.

        Batches are drawn from one where no ledger is involved, and noise whose user
        keeps the account. A mechanism's `apply` refuses it.
        """
        made = cls(source.new_key(), private=source.private)
        made._may_draw = True
        return made

    @property
    def binding(self) -> Binding | None:
        """What this key was paid for; None if it was not paid for."""
        return self._binding

    def pays_for(
        self,
        fingerprint: str,
        digest: Callable[[], str] | str | None = None,
        *,
        draw: int = 0,
    ) -> None:
        """Refuse a mechanism, parameters or an input that this key was not paid for.

        Every mechanism asks before it draws. A seeded key that was made by hand, for a
        test, draws for anything.
        """
        bound = self._binding
        if bound is None:
            if self.private:
                raise NotPaidFor(
                    "this key was not paid for: take the one that ledger.paid(...)"
                    " hands out. Nothing was drawn."
                )
            return
        if fingerprint != bound.fingerprint:
            raise NotPaidFor(
                "this key was paid for another mechanism, or for other parameters: the"
                " ledger's price would not be what is drawn. Pay for this one. Nothing"
                " was drawn."
            )
        if bound.draws is not None and draw >= bound.draws:
            raise NotPaidFor(
                f"this key was paid for {bound.draws} draw(s), and draw {draw} is one"
                " more: another noise on a value is another release. Pay for it."
                " Nothing was drawn."
            )
        if bound.draws == 1:
            given = digest() if callable(digest) else digest
            with self._secret.lock:
                # Read again: of two threads that name the input the first one does.
                if self._binding is not None and self._binding.digest is None:
                    self._binding = replace(bound, digest=given)
                named = self._binding.digest if self._binding else None
            if given != named:
                raise NotPaidFor(
                    "this key was paid for another input: the same noise on two inputs"
                    " would reveal their difference. Pay for this one, or name it when"
                    " paying: digest=mechanism.digest(value). Nothing was drawn."
                )
        self._may_draw = True

    def part(self, digest: str) -> NoiseKey:
        """The same key for one part of the input, such as a batch of its rows.

        Whoever takes a part apart has to know that it belongs to what was paid for.
        """
        self._check_owner()
        if self._binding is None:
            return self
        part = object.__new__(NoiseKey)
        _OwnedByProcess.__init__(part)
        part._secret, part.private = self._secret, self.private
        part._binding = replace(self._binding, digest=digest)
        part._may_draw = not self.private
        return part

    def stream(self, purpose: str, block: int = 0) -> Stream:
        """The stream for one purpose and block, once: again it would repeat noise.

        The bytes are a function of key, purpose and block: a retried task that is given
        the key anew draws the same.
        """
        validate.name(purpose=purpose)
        if isinstance(block, bool) or not isinstance(block, int) or block < 0:
            raise ValueError(f"block must be a whole number from 0; got {block!r}")
        with self._secret.lock:
            if (purpose, block) in self._secret.used:
                raise NoiseReuse(
                    f"the stream {purpose!r}, block {block}, was taken from this key"
                    " already: its noise would be used twice. Take another block."
                )
            derived = self._derive(f"noise\x00{purpose}\x00{block}")
            self._secret.used.add((purpose, block))
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

        It travels in memory alone, with its `binding`, between processes that see the
        exact values anyway; all of them draw the same noise, for the same sum.
        """
        self._check_usable()
        return bytes(self._secret.key)

    def _check_usable(self) -> None:
        self._check_owner()
        recording.refuse_private(self.private)
        if self._secret.wiped:
            raise NoiseReuse(
                "this entry was committed and its key wiped: its noise cannot be"
                " drawn again. Charge a new entry."
            )

    def _derive(self, info: str) -> bytes:
        self._check_usable()
        if not self._may_draw:
            raise NotPaidFor(
                "nobody has compared what is to be drawn with what this key was paid"
                " for: call key.pays_for(fingerprint, digest) first. Nothing was drawn."
            )
        expand = HKDF(SHA256(), KEY_BYTES, salt=None, info=f"demur {info}".encode())
        return expand.derive(bytes(self._secret.key))

    def wipe(self) -> None:
        """Overwrite the key; no stream can be made from it any more."""
        self._secret.key[:] = bytes(KEY_BYTES)
        self._secret.wiped = True

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
