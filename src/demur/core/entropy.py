"""Entropy for noise: a 256-bit key per ledger entry, and the streams made from it.

    key = 32 bytes of the operating system
    stream(purpose, block) = ChaCha20 keystream under HKDF-SHA256(key, purpose, block)

Different purposes and blocks give independent streams (HKDF is a pseudo-random
function of its info string), so threads and workers that use different blocks never
share noise. A key or a stream belongs to the process that made it: after a fork both
copies would give the same bytes, so the child's copy refuses. Neither can be pickled.

A key is bound to what was paid for (`Binding`). Without that, the key of a cheap entry
could draw the noise of an expensive mechanism, and one key could draw the same noise
for two inputs, whose difference would then be exact.

`Seeded` is for tests: every entry and statement made with it is stamped NOT PRIVATE.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from demur.core import memory_dumps, recording, validate
from demur.core.errors import NoiseReuse, NotPaidFor

KEY_BYTES = 32
# ChaCha20's block counter has 32 bits of 64-byte blocks; past it the stream repeats.
_MOST_BYTES = 2**38


class Source(Protocol):
    """A source of keys: `OsEntropy`, or `Seeded` in tests."""

    @property
    def private(self) -> bool:
        """Whether nobody can know or repeat its keys."""
        ...

    def new_key(self) -> bytes:
        """32 fresh bytes."""
        ...


@dataclass(frozen=True)
class OsEntropy:
    """Keys from the operating system's generator; the only private source."""

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
    """The name of a source as an entry records it: "os" or "seeded"."""
    return "os" if source.private else "seeded"


class _OwnedByProcess:
    """State that is refused in a forked child and cannot be pickled."""

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
    """What a key was paid for: some runs of one mechanism, on one input.

    - `fingerprint`: that of the declaration.
    - `digest`: that of the input. If None, the first draw sets it.
    - `draws`: how many draws one run makes, as declared. None: it follows from the
      mechanism's parameters, and the mechanism counts them itself.
    - `runs`: how many runs were paid for.
    """

    fingerprint: str
    digest: str | None = None
    draws: int | None = 1
    runs: int = 1

    @property
    def total(self) -> int | None:
        """How many draws were paid for; None if the mechanism counts them.

        If it is 1, the input is compared. If it is more, the values are not known in
        advance (they follow from the input and from earlier noise), so the number of
        the draw is compared instead, and each stream is handed out once.
        """
        return None if self.draws is None else self.draws * self.runs


class _Secret:
    """The bytes of a key, shared with the keys of its parts: wiping is for all.

    The lock covers wiping and deriving: a stream made while the key is overwritten
    would come from a key of zeros, which everybody knows.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key must be {KEY_BYTES} bytes; got {len(key)}")
        memory_dumps.switch_off()
        self.key = bytearray(key)
        self.wiped = False
        self.used: set[tuple[str, int]] = set()
        self.lock = threading.Lock()

    def wipe(self) -> None:
        """Overwrite the key, when nothing is being derived from it."""
        with self.lock:
            self.key[:] = bytes(KEY_BYTES)
            self.wiped = True


class NoiseKey(_OwnedByProcess):
    """The noise key of one entry: it makes the streams that noise is drawn from.

    The key that `Ledger.paid` hands out is bound, and gives no stream. `authorise`
    compares what is to be drawn with what was paid for, and gives a key that does. A
    key that was made by hand was not paid for. It is for tests (from a seeded source)
    and, made by `free`, for randomness that is no release.
    """

    def __init__(
        self, key: bytes, *, private: bool, binding: Binding | None = None
    ) -> None:
        super().__init__()
        self._secret = _Secret(key)
        self._whole: NoiseKey | None = None
        self._is_part = False
        self._binding = binding
        self._may_draw = binding is None and not private
        self._authorised: tuple[str, int] | None = None
        self.private = private

    @classmethod
    def free(cls, source: Source) -> NoiseKey:
        """A key for randomness that is no release of its own.

        It is for batches that are drawn without a ledger, and for noise whose user
        does the accounting. A mechanism's `apply` refuses it.
        """
        key = cls(source.new_key(), private=source.private)
        key._may_draw = True
        return key

    @property
    def binding(self) -> Binding | None:
        """What this key was paid for; None if it was not paid for."""
        return self._binding

    @property
    def is_part(self) -> bool:
        """Whether this key is for a part of the input (`part`)."""
        return self._is_part

    def authorise(
        self,
        fingerprint: str,
        digest: Callable[[], str] | str | None = None,
        *,
        draw: int = 0,
        runs: int | None = None,
    ) -> NoiseKey:
        """The key for one draw, if it was paid for; anything else is `NotPaidFor`.

        Refused are another mechanism, other parameters, another input, a draw past
        those paid for, and a run of which a part was paid for: a mechanism that counts
        its own draws names the `runs` that it takes. Every mechanism draws from the key
        that this returns. A seeded key that was made by hand, for a test, draws for
        anything.
        """
        self._check_owner()
        bound = self._binding
        if bound is None:
            if self.private:
                raise NotPaidFor(
                    "this key was not paid for: use the key of ledger.paid(...)."
                    " Nothing was drawn."
                )
            return self
        if fingerprint != bound.fingerprint:
            raise NotPaidFor(
                "this key was paid for another mechanism or for other parameters, at"
                " another price. Pay for this mechanism. Nothing was drawn."
            )
        _compare_count(bound, draw, runs)
        if bound.total == 1:
            self._compare_input(digest() if callable(digest) else digest)
        key = self._view(self._binding)
        key._may_draw, key._authorised = True, (fingerprint, draw)
        return key

    def check_authorised(self, fingerprint: str, draw: int = 0) -> None:
        """Refuse noise for anything but the draw that this key was authorised for.

        Unbound keys pass: those of tests, and those of `free`.
        """
        if self._binding is not None and self._authorised != (fingerprint, draw):
            raise NotPaidFor(
                f"this key was not authorised for draw {draw} of this mechanism: call"
                " key.authorise(fingerprint, digest, draw=...) for each draw. Nothing"
                " was drawn."
            )

    def _compare_input(self, digest: str | None) -> None:
        """Refuse an input that was not paid for; the first one sets an open binding."""
        if digest is None:
            raise NotPaidFor(
                "this key was paid for one draw on one input: name the input,"
                " key.authorise(fingerprint, digest). Nothing was drawn."
            )
        with self._secret.lock:  # of two threads with two inputs one is refused
            assert self._binding is not None
            if self._binding.digest is None:
                self._binding = replace(self._binding, digest=digest)
            paid_for = self._binding.digest
        if digest != paid_for:
            raise NotPaidFor(
                "this key was paid for another input: the same noise on two inputs"
                " would reveal their difference. Pay for this input, with"
                " digest=mechanism.digest(value). Nothing was drawn."
            )

    def part(self, digest: str) -> NoiseKey:
        """The same key for one part of the input, such as a batch of its rows.

        The caller answers for `digest`: the key cannot know whether that part belongs
        to the input that was paid for. A payment that names no input has no parts: two
        of them could be two inputs under one noise.
        """
        validate.name(digest=digest)
        self._check_owner()
        if self._binding is None:
            return self
        if self._binding.digest is None:
            raise NotPaidFor(
                "this key was paid for an input that nobody named, so it has no parts:"
                " pay with digest=mechanism.digest(points, row_ids). Nothing was drawn."
            )
        part = self._view(replace(self._binding, digest=digest))
        part._is_part = True
        return part

    def _view(self, binding: Binding | None) -> NoiseKey:
        """Another key on the same secret, which is wiped with it."""
        view = object.__new__(NoiseKey)
        _OwnedByProcess.__init__(view)
        view._secret, view.private = self._secret, self.private
        view._whole = self  # the ledger knows the whole alone, and wipes it at commit
        view._is_part = self._is_part
        view._binding = binding
        view._may_draw, view._authorised = False, None
        return view

    def shares_noise_with(self, other: object) -> bool:
        """Whether `other` is this key or a part of it, for audits that count rows."""
        return isinstance(other, NoiseKey) and other._secret is self._secret

    def stream(self, purpose: str, block: int = 0) -> Stream:
        """The stream for one purpose and block, handed out once.

        The bytes are a function of key, purpose and block: a retried task that is given
        the key again draws the same noise.
        """
        return Stream(self.stream_key(purpose, block))

    def stream_key(self, purpose: str, block: int = 0) -> bytes:
        """The key of that stream, for its cipher on an accelerator; handed out once.

        The stream is ChaCha20 under it, with a nonce of zero from block 0 on.
        """
        validate.name(purpose=purpose)
        if isinstance(block, bool) or not isinstance(block, int) or block < 0:
            raise ValueError(f"block must be a whole number from 0; got {block!r}")
        with self._usable() as secret:
            if (purpose, block) in secret.used:
                raise NoiseReuse(
                    f"the stream {purpose!r}, block {block}, was already taken from"
                    " this key: its noise would be used twice. Take another block."
                )
            derived = self._derive(secret, f"noise\x00{purpose}\x00{block}")
            secret.used.add((purpose, block))
        return derived

    def subkey(self, purpose: str) -> bytes:
        """A key for streams that are addressed by record, such as one for each row.

        It may be asked for again: the batches of one release share it, and the id of
        each row keeps their noise apart.
        """
        validate.name(purpose=purpose)
        with self._usable() as secret:
            return self._derive(secret, f"subkey\x00{purpose}")

    def handed_on(self) -> bytes:
        """The key itself, for other processes that compute this one release together.

        Send it in memory only, with its `binding`, to processes that see the exact
        values anyway; all of them draw the same noise, for the same sum.
        """
        with self._usable() as secret:
            return bytes(secret.key)

    @contextmanager
    def _usable(self) -> Iterator[_Secret]:
        """The secret, not to be wiped meanwhile; refused after the commit."""
        self._check_owner()  # before the lock, which a fork may have copied taken
        recording.refuse_private(self.private)
        with self._secret.lock:
            if self._secret.wiped:
                raise NoiseReuse(
                    "this entry was committed and its key wiped: its noise cannot be"
                    " drawn again. Charge a new entry."
                )
            yield self._secret

    def _derive(self, secret: _Secret, info: str) -> bytes:
        if not self._may_draw:
            raise NotPaidFor(
                "this key gives no noise before it was compared with what it was paid"
                " for: draw from key.authorise(fingerprint, digest). Nothing was drawn."
            )
        expand = HKDF(SHA256(), KEY_BYTES, salt=None, info=f"demur {info}".encode())
        return expand.derive(bytes(secret.key))

    def wipe(self) -> None:
        """Overwrite the key; no stream can be made from it any more."""
        self._secret.wipe()

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"


def _compare_count(bound: Binding, draw: int, runs: int | None) -> None:
    """Refuse a draw, or a run, that is more than what was paid for."""
    if bound.total is None:
        if runs != bound.runs:
            raise NotPaidFor(
                f"this key was paid for {bound.runs} run(s), and the mechanism takes"
                f" {'an unknown number' if runs is None else runs}: pay for all of it"
                " at once (a plan's own `paid` does). Nothing was drawn."
            )
    elif draw >= bound.total:
        raise NotPaidFor(
            f"this key was paid for {bound.total} draw(s), numbered from 0; got draw"
            f" {draw}. More noise on a value is another release: pay for it. Nothing"
            " was drawn."
        )


class DerivedEntropy:
    """Keys that follow from an authorised key of an entry, for runs inside of it.

    The n-th key for one purpose is always the same: a search that is repeated after a
    crash, under the key of its entry, repeats every run. Nothing here is fresh, so a
    purpose is used once in a search. The keys are as private as the entry's.
    """

    def __init__(self, key: NoiseKey, purpose: str) -> None:
        validate.name(purpose=purpose)
        self._key, self._purpose, self._used = key, purpose, 0

    @property
    def private(self) -> bool:
        """Whether the entry's own key came from the operating system."""
        return self._key.private

    def new_key(self) -> bytes:
        """The next key for this purpose."""
        self._used += 1
        return self._key.subkey(f"{self._purpose}, key {self._used}")

    def __repr__(self) -> str:
        return "DerivedEntropy(<secret>)"


class Stream(_OwnedByProcess):
    """A sequence of bytes that looks uniform to anyone without the key."""

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
