"""ChaCha20 (RFC 8439) in JAX: key stream words where the gradients are.

32-bit additions, rotations and exclusive ors alone, so it runs on every accelerator. A
block is a function of key, counter and nonce: every device computes the blocks of its
own coordinates.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

KEY_WORDS = 8
WORDS = 16  # of a block, 32 bits each
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_DOUBLE_ROUNDS = 10


def _rotated(x: Any, bits: int) -> Any:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _quarter(s: list[Any], ia: int, ib: int, ic: int, id: int) -> None:
    a, b, c, d = s[ia], s[ib], s[ic], s[id]
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    s[ia], s[ib], s[ic], s[id] = a, b, c, d


def _double_round(state: list[Any]) -> list[Any]:
    state = list(state)
    for places in (*_COLUMNS, *_DIAGONALS):
        _quarter(state, *places)
    return state


def blocks(key: Any, counter: Any, nonce: Any = (0, 0, 0)) -> list[Any]:
    """The 16 words of each block, by `counter` (uint32, any shape).

    >>> words = blocks(jnp.zeros(8, jnp.uint32), jnp.uint32([0]))
    >>> hex(int(words[0][0]))   # of the key stream under a zero key: bytes 76 b8 e0 ad
    '0xade0b876'
    """
    counter = jnp.asarray(counter, jnp.uint32)
    shape = counter.shape

    def spread(word: Any) -> Any:
        return jnp.broadcast_to(jnp.asarray(word, jnp.uint32), shape)

    start = [spread(np.uint32(word)) for word in _CONSTANTS]
    start += [spread(key[i]) for i in range(KEY_WORDS)]
    start += [counter, *(spread(word) for word in nonce)]
    if jax.default_backend() == "cpu":
        # A compiler for a CPU repeats shared terms of a long formula, and takes long.
        state = jax.lax.fori_loop(
            0, _DOUBLE_ROUNDS, lambda _, s: _double_round(s), start
        )
    else:
        state = reduce(lambda s, _: _double_round(s), range(_DOUBLE_ROUNDS), start)
    return [word + first for word, first in zip(state, start, strict=True)]
