"""Row streams: ChaCha20 as RFC 8439 prints it, and a stream for each row."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from demur.mechanisms.sampling.row_streams import RowStreams, keystream_words

COUNTING = bytes(range(32))
ZERO = bytes(32)

# (key, nonce, counter, keystream): section 2.3.2, then the five of appendix A.1.
RFC_8439 = [
    (
        COUNTING,
        "000000090000004a00000000",
        1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        ZERO,
        "000000000000000000000000",
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        ZERO,
        "000000000000000000000000",
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\x01",
        "000000000000000000000000",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\x00\xff" + bytes(30),
        "000000000000000000000000",
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        ZERO,
        "000000000000000000000002",
        0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


def as_bytes(words: np.ndarray) -> bytes:
    return words.astype("<u8").tobytes()


def split(nonce: bytes) -> tuple[int, int]:
    """Purpose and row id of a nonce."""
    return int.from_bytes(nonce[:4], "little"), int.from_bytes(nonce[4:], "little")


@pytest.mark.parametrize(("key", "nonce", "counter", "expected"), RFC_8439)
def test_rfc_8439(key: bytes, nonce: str, counter: int, expected: str) -> None:
    purpose, row = split(bytes.fromhex(nonce))
    assert as_bytes(keystream_words(key, purpose, row, counter, 8)).hex() == expected


@given(
    key=st.binary(min_size=32, max_size=32),
    nonce=st.binary(min_size=12, max_size=12),
    counter=st.integers(0, 2**32 - 200),
    count=st.integers(1, 1200),
)
def test_agrees_with_the_library(
    key: bytes, nonce: bytes, counter: int, count: int
) -> None:
    purpose, row = split(nonce)
    start = counter.to_bytes(4, "little") + nonce
    library = Cipher(algorithms.ChaCha20(key, start), None).encryptor()
    ours = keystream_words(key, purpose, row, counter, count)
    assert as_bytes(ours) == library.update(bytes(8 * count))


def test_words_do_not_depend_on_the_batch() -> None:
    streams = RowStreams(COUNTING)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**64, size=333, dtype=np.uint64)
    whole = streams.words(ids, 16, 13)
    order = rng.permutation(len(ids))
    assert np.array_equal(streams.words(ids[order], 16, 13), whole[order])
    for size in (1, 7, 64, 65):
        parts = [
            streams.words(ids[i : i + size], 16, 13) for i in range(0, len(ids), size)
        ]
        assert np.array_equal(np.concatenate(parts), whole)
    # Random access: the same words as in a longer read from the start.
    assert np.array_equal(streams.words(ids, 0, 32)[:, 16:29], whole)


def test_rows_purposes_and_keys_never_meet() -> None:
    ids = np.array([0, 1, 2**32, 2**63, 2**64 - 1], dtype=np.uint64)
    seen = [RowStreams(key).words(ids, 0, 64).ravel() for key in (ZERO, COUNTING)]
    streams = RowStreams(ZERO)
    seen.append(
        np.array(
            [
                streams.further_bits(int(i), word, level)
                for i in ids
                for word in range(8)
                for level in range(1, 20)
            ],
            dtype=np.uint64,
        )
    )
    together = np.concatenate(seen)
    assert len(np.unique(together)) == len(together)


def test_children_have_keys_that_no_row_reads() -> None:
    streams = RowStreams(bytes(range(32)))
    key = keystream_words(bytes(range(32)), 2**32 - 1, 0, 3, 4).astype("<u8").tobytes()
    ids = np.arange(5, dtype=np.uint64)
    words = streams.child(3).words(ids, 0, 9)
    assert np.array_equal(words, RowStreams(key).words(ids, 0, 9))
    seen = np.concatenate(
        [streams.words(ids, 0, 9).ravel()]
        + [streams.child(i).words(ids, 0, 9).ravel() for i in range(4)]
    )
    assert len(np.unique(seen)) == len(seen)


def test_further_bits_repeat() -> None:
    one, other = (RowStreams(COUNTING).further_bits(7, 3, 9) for _ in range(2))
    assert one == other and 0 <= one < 2**64
    expected = keystream_words(COUNTING, 2, 7, 3, 8)[0]
    assert one == int(expected)  # level 9 is the first word under purpose 2


def test_a_stream_ends_before_it_repeats() -> None:
    row = np.array([1], dtype=np.uint64)
    RowStreams(ZERO).words(row, 8 * (2**32 - 1), 8)
    with pytest.raises(OverflowError):
        RowStreams(ZERO).words(row, 8 * (2**32 - 1), 9)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        RowStreams(b"short")
    with pytest.raises(ValueError, match="multiple of 8"):
        RowStreams(ZERO).words(np.array([1], dtype=np.uint64), 4, 8)
    assert "secret" in repr(RowStreams(ZERO))
