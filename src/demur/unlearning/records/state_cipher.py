"""The state of a model as it is stored: plain, or encrypted under the owner's key.

A mode that publishes its state may be found in the folder as it is. A mode that
publishes noisy copies of a secret state keeps that state: whoever holds the folder
would see what no copy shows. With the key of the service's memory, which lies
elsewhere, such a state is encrypted (ChaCha20-Poly1305, a fresh nonce each time).
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from demur.core.entropy import OsEntropy
from demur.unlearning.errors import ServiceDamaged, ServiceMismatch
from demur.unlearning.models.base import Mode, State
from demur.unlearning.records import snapshot

_MARK = b"encrypted "
_NONCE_BYTES = 12


class StateCipher:
    """Writes and reads states, with a key or without."""

    def __init__(self, memory: bytes | None) -> None:
        self._cipher: ChaCha20Poly1305 | None = None
        if memory is not None:
            key = hmac.new(memory, b"state", hashlib.sha256).digest()
            self._cipher = ChaCha20Poly1305(key)

    def encode(self, mode: Mode) -> bytes:
        """The state of a model as it is stored."""
        plain = snapshot.encode(mode.state())
        if self._cipher is None or not mode.secret:
            return plain
        nonce = OsEntropy().new_key()[:_NONCE_BYTES]
        return _MARK + nonce + self._cipher.encrypt(nonce, plain, None)

    def decode(self, data: bytes) -> State:
        """The state that was stored."""
        if not data.startswith(_MARK):
            return snapshot.decode(data)
        if self._cipher is None:
            raise ServiceMismatch(
                "the state of this service is encrypted under its owner's key: give it"
                " (memory_key=). Nothing was changed."
            )
        rest = data[len(_MARK) :]
        try:
            plain = self._cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], None)
        except InvalidTag as error:
            raise ServiceDamaged("the encrypted state was changed") from error
        return snapshot.decode(plain)
