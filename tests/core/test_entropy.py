"""Noise bytes: known answers, and no byte twice across forks, pickles and threads."""

import copy
import hashlib
import hmac
import multiprocessing
import os
import pickle
import threading

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from demur import Seeded
from demur.core import entropy
from demur.core.entropy import Binding, NoiseKey, OsEntropy, source_name
from demur.errors import NoiseReuse, NotPaidFor

KEY = bytes(range(32))


def make(key=KEY, private=True):
    key = NoiseKey(key, private=private, binding=Binding("mine"))
    return key.authorise("mine", "input")


def chacha(key):
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()


def hkdf_sha256(key, info):
    """RFC 5869 from HMAC alone: extract with a salt of zeros, one block of expand."""
    prk = hmac.new(bytes(32), key, hashlib.sha256).digest()
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()


@pytest.mark.parametrize("purpose", ["gaussian", "rows", "ümlaut"])
@pytest.mark.parametrize("block", [0, 1, 2**70])
def test_known_answer(purpose, block):
    info = b"demur noise\x00" + purpose.encode() + b"\x00" + str(block).encode()
    expected = chacha(hkdf_sha256(KEY, info)).update(bytes(1000))
    assert make().stream(purpose, block).read(1000) == expected


def test_chacha_itself_against_rfc_8439():
    """Section 2.3.2's key stream block, so that the oracle is anchored outside."""
    key = bytes(range(32))
    counter_and_nonce = bytes.fromhex("01000000000000090000004a00000000")
    block = Cipher(algorithms.ChaCha20(key, counter_and_nonce), None).encryptor()
    assert block.update(bytes(16)).hex() == "10f1e7e4d13b5915500fdd1fa32071c4"


def test_reading_in_pieces_is_reading_at_once():
    whole = make().stream("p").read(300)
    stream = make().stream("p")
    assert b"".join(stream.read(n) for n in (0, 1, 63, 64, 65, 107)) == whole


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=32, max_size=32),
            st.text("ab 01", min_size=1, max_size=4),
            st.integers(0, 20),
        ),
        unique=True,
        max_size=12,
    )
)
def test_streams_differ_by_key_purpose_and_block(names):
    beginnings = {
        make(key).stream(purpose, block).read(16) for key, purpose, block in names
    }
    assert len(beginnings) == len(names)


def test_purpose_and_block_cannot_be_confused():
    pairs = [("a", 11), ("a1", 1), ("a\u00a01", 1), ("a 1", 1), ("a11", 0)]
    good = [p for p in pairs if p[0].isprintable()]
    assert len({make().stream(*pair).read(16) for pair in good}) == len(good)
    with pytest.raises(ValueError, match="purpose"):
        make().stream("a\x001", 1)


def test_the_same_pair_is_the_same_stream_and_is_handed_out_once():
    key = make()
    first = key.stream("p", 3).read(64)
    assert make().stream("p", 3).read(64) == first  # a retried task, the key anew
    with pytest.raises(NoiseReuse, match="twice"):
        key.stream("p", 3)
    assert key.subkey("rows") == key.subkey("rows") == make().subkey("rows")
    assert key.subkey("rows") != key.subkey("columns")


# --------------------------------------------------------------------- processes


def in_child(function):
    """Run `function` in a forked child; what it returned, as bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            answer = function()
        except NoiseReuse:
            answer = b"refused"
        except BaseException as error:
            answer = repr(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.slow
def test_a_forked_child_is_refused():
    key = make()
    stream = key.stream("p")
    stream.read(10)
    assert in_child(lambda: stream.read(32)) == b"refused"
    assert in_child(lambda: key.stream("p").read(32)) == b"refused"
    assert in_child(lambda: key.stream("new", 7).read(32)) == b"refused"
    assert len(stream.read(32)) == 32  # the owner goes on


def test_the_same_check_catches_a_raw_cipher():
    """A sabotaged twin: a cipher made before the fork repeats in the child."""
    cipher = chacha(KEY)
    theirs = in_child(lambda: cipher.update(bytes(32)))
    assert theirs != b"refused"
    assert theirs == cipher.update(bytes(32))


@pytest.mark.slow
def test_children_may_make_keys_of_their_own():
    def fresh():
        key = NoiseKey.free(OsEntropy())
        return key.stream("p").read(32)

    answers = {in_child(fresh) for _ in range(4)}
    assert len(answers) == 4
    assert all(len(a) == 32 for a in answers)


@pytest.mark.parametrize("thing", [make(), make().stream("p")])
def test_nothing_is_pickled_or_copied(thing):
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(NoiseReuse, match="pickled or copied"):
            way(thing)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(NoiseReuse):
            pickle.dumps([thing], protocol)


def test_a_spawned_worker_is_not_given_a_stream():
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=len, args=(make().stream("p"),))
    with pytest.raises(NoiseReuse):
        worker.start()


def test_the_secret_is_not_shown():
    key = make(b"\xab" * 32)
    for thing in (key, key.stream("p")):
        assert "secret" in repr(thing)
        assert "ab" * 8 not in repr(thing)
        assert "\\xab" not in repr(thing)


# ----------------------------------------------------------------------- threads


def test_threads_never_share_a_byte():
    threads, reads, size = 8, 400, 24
    stream = make().stream("p")
    taken: list[list[bytes]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads)

    def work(mine):
        barrier.wait()
        for _ in range(reads):
            mine.append(stream.read(size))

    workers = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    whole = make().stream("p").read(threads * reads * size)
    serial = [whole[i : i + size] for i in range(0, len(whole), size)]
    assert len(set(serial)) == len(serial)
    assert sorted(chunk for mine in taken for chunk in mine) == sorted(serial)
    position = {chunk: i for i, chunk in enumerate(serial)}
    for mine in taken:  # each thread moves forward through the stream
        places = [position[chunk] for chunk in mine]
        assert places == sorted(places)


@pytest.mark.parametrize("take", ["stream", "subkey"])
def test_nothing_is_derived_from_a_key_that_is_being_wiped(take, monkeypatch):
    """A commit in another thread: never a stream of the key of zeros, known to all."""
    key = make()
    derive = key._derive
    wiping = threading.Thread(target=key.wipe)

    def slowly(*given):
        wiping.start()
        wiping.join(0.05)  # it waits for the lock
        return derive(*given)

    monkeypatch.setattr(key, "_derive", slowly)
    answers = [
        getattr(key, take)("p"),
        *(getattr(k, take)("p") for k in (make(), make(bytes(32)))),
    ]
    wiping.join()
    mine, right, zeros = (a if take == "subkey" else a.read(32) for a in answers)
    assert mine == right != zeros
    with pytest.raises(NoiseReuse, match="wiped"):
        getattr(key, take)("q")
    with pytest.raises(NoiseReuse, match="wiped"):
        key.handed_on()


# ------------------------------------------------------------------------ bindings


def test_a_key_for_one_draw_wants_to_know_the_input():
    key = NoiseKey(KEY, private=True, binding=Binding("mine"))
    with pytest.raises(NotPaidFor, match="name the input"):
        key.authorise("mine")
    with pytest.raises(NotPaidFor, match="authorise"):
        key.stream("p")
    key.authorise("mine", lambda: "input")
    assert key.binding.digest == "input"
    with pytest.raises(NotPaidFor, match="another input"):
        key.authorise("mine", "other")


def test_a_part_is_bound_to_its_own_digest_and_shares_the_streams():
    key = make()
    part = key.part("half")
    assert part.shares_noise_with(key) and part.binding.digest == "half"
    with pytest.raises(NotPaidFor):
        part.stream("p")  # compared for the whole, not for the part
    part.authorise("mine", "half").stream("p")
    with pytest.raises(NoiseReuse, match="already taken"):
        key.stream("p")
    for bad in (None, "", 3):
        with pytest.raises((TypeError, ValueError), match="digest"):
            key.part(bad)


def test_the_key_of_a_payment_itself_gives_no_stream():
    """Authorised for one draw, it is no key for another; seeded or not."""
    for private in (True, False):
        key = NoiseKey(KEY, private=private, binding=Binding("mine", draws=2))
        first = key.authorise("mine", draw=0)
        with pytest.raises(NotPaidFor, match="authorise"):
            key.stream("p")
        first.check_authorised("mine", 0)
        for other in (("mine", 1), ("yours", 0)):
            with pytest.raises(NotPaidFor, match="not authorised"):
                first.check_authorised(*other)
        with pytest.raises(NotPaidFor, match="not authorised"):
            key.check_authorised("mine", 0)


def test_there_is_no_part_of_an_input_that_nobody_named():
    key = NoiseKey(KEY, private=True, binding=Binding("mine"))
    with pytest.raises(NotPaidFor, match="no parts"):
        key.part("half")


@pytest.mark.parametrize(
    "binding, runs, allowed",
    [
        (Binding("mine", draws=None, runs=3), 3, True),
        (Binding("mine", draws=None, runs=1), 3, False),
        (Binding("mine", draws=None, runs=3), None, False),
        (Binding("mine", draws=4, runs=2), None, True),
    ],
)
def test_a_mechanism_that_counts_its_draws_names_the_runs_it_takes(
    binding, runs, allowed
):
    key = NoiseKey(KEY, private=True, binding=binding)
    if allowed:
        assert len(key.authorise("mine", draw=7, runs=runs).stream("p").read(8)) == 8
        return
    with pytest.raises(NotPaidFor, match="run"):
        key.authorise("mine", draw=7, runs=runs)


def test_draws_of_several_runs_are_counted_together():
    key = NoiseKey(KEY, private=True, binding=Binding("mine", draws=4, runs=2))
    assert key.binding.total == 8
    with pytest.raises(NotPaidFor, match="8 draw"):
        key.authorise("mine", draw=8)


def test_a_free_key_pays_for_nothing():
    key = NoiseKey.free(OsEntropy())
    assert key.binding is None and key.part("any") is key
    with pytest.raises(NotPaidFor, match="not paid for"):
        key.authorise("mine", "input")
    assert len(key.stream("batches").read(8)) == 8


# ------------------------------------------------------------------------- limits


def test_a_wiped_key_refuses():
    key = make()
    stream = key.stream("p")
    key.wipe()
    with pytest.raises(NoiseReuse, match="wiped"):
        key.stream("q")
    with pytest.raises(NoiseReuse, match="wiped"):
        key.subkey("q")
    assert bytes(key._secret.key) == bytes(32)
    assert len(stream.read(8)) == 8  # handed out before, still in use
    key.wipe()


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_key_has_32_bytes(size):
    with pytest.raises(ValueError, match="32 bytes"):
        NoiseKey(bytes(size), private=True)


@pytest.mark.parametrize("block", [-1, True, 1.0, None, "0"])
def test_bad_blocks_are_refused(block):
    with pytest.raises(ValueError, match="block"):
        make().stream("p", block)


@pytest.mark.parametrize("purpose", ["", "a" * 201, "line\nbreak"])
def test_bad_purposes_are_refused(purpose):
    with pytest.raises(ValueError, match="purpose"):
        make().stream(purpose)


@pytest.mark.parametrize("count", [-1, True, 1.0, None])
def test_bad_counts_are_refused(count):
    with pytest.raises(ValueError, match="count"):
        make().stream("p").read(count)


def test_a_stream_ends_before_its_counter_repeats():
    stream = make().stream("p")
    with pytest.raises(NoiseReuse, match="2\\^38"):
        stream.read(2**38 + 1)
    first = stream.read(1)  # a refused read takes nothing
    assert first == make().stream("p").read(1)
    stream._taken = 2**38 - 5
    with pytest.raises(NoiseReuse):
        stream.read(6)
    assert len(stream.read(5)) == 5
    with pytest.raises(NoiseReuse):
        stream.read(1)
    assert stream.read(0) == b""


# ------------------------------------------------------------------------ sources


def test_os_keys_are_fresh():
    keys = {OsEntropy().new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(k) for k in keys} == {entropy.KEY_BYTES}
    assert source_name(OsEntropy()) == "os"
    assert OsEntropy.private


def test_os_entropy_is_the_operating_systems(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda n: b"\x07" * n)
    assert OsEntropy().new_key() == b"\x07" * 32


def test_seeded_keys_repeat_and_are_stamped():
    one, two, other = Seeded(7), Seeded(7), Seeded(8)
    sequence = [one.new_key() for _ in range(5)]
    assert sequence == [two.new_key() for _ in range(5)]
    assert len({*sequence, *(other.new_key() for _ in range(5))}) == 10
    assert not Seeded.private
    assert source_name(one) == "seeded"
    assert one == two


def test_the_nth_seeded_key_is_known():
    source = Seeded(7)
    for n in (1, 2, 3):
        text = f"demur seeded, not private: 7 {n}"
        assert source.new_key() == hashlib.sha256(text.encode()).digest()


@pytest.mark.parametrize("seed", [True, 1.0, None, "7", b"7"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(TypeError, match="seed"):
        Seeded(seed)
