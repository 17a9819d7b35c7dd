"""Details of keys, bindings and sources that a release rests on."""

import copy
import hashlib
from typing import Any

import pytest

from demur import Seeded
from demur.core.entropy import (
    Binding,
    DerivedEntropy,
    NoiseKey,
    OsEntropy,
    Stream,
)
from demur.core.recording import Tape, watching
from demur.errors import NoiseReuse, NotPaidFor, NotPrivate

KEY = bytes(range(32))


def bound(**more):
    return NoiseKey(KEY, private=True, binding=Binding("mine", **more))


def drawing(private=True):
    key = NoiseKey(KEY, private=private, binding=Binding("mine"))
    return key.authorise("mine", "input")


# -- sources -------------------------------------------------------------------------


def test_two_sources_of_one_seed_are_equal_whatever_was_drawn():
    one, two = Seeded(7), Seeded(7)
    one.new_key()
    assert one == two and hash(one) == hash(two) and one != Seeded(8)
    assert repr(one) == "Seeded(seed=7)"
    source: Any = Seeded
    with pytest.raises(TypeError):
        source(7, [3])


def test_operating_system_sources_are_one_value():
    assert OsEntropy() == OsEntropy() and len({OsEntropy(), OsEntropy()}) == 1
    with pytest.raises(AttributeError):
        OsEntropy().private = False


def test_sources_of_one_seed_do_not_share_their_count():
    one, two = Seeded(7), Seeded(7)
    assert [one.new_key(), one.new_key()] == [two.new_key(), two.new_key()]
    text = "demur seeded, not private: 7 3"
    assert one.new_key() == hashlib.sha256(text.encode()).digest()


@pytest.mark.parametrize("private", [True, False])
def test_derived_keys_are_those_of_their_numbers(private):
    """The n-th key of a search is the same after a restart, and in later versions."""
    key = drawing(private)
    source = DerivedEntropy(key, "search")
    assert source.private is private
    expected = [key.subkey(f"search, key {n}") for n in (1, 2, 3)]
    assert [source.new_key() for _ in range(3)] == expected
    assert len(set(expected)) == 3
    assert DerivedEntropy(key, "search").new_key() == expected[0]
    assert DerivedEntropy(key, "other").new_key() not in expected
    assert "secret" in repr(source)


@pytest.mark.parametrize("purpose", ["", "a\nb", 5, None])
def test_the_purpose_of_derived_keys_is_a_name(purpose):
    with pytest.raises((TypeError, ValueError), match="purpose"):
        DerivedEntropy(drawing(), purpose)
    with pytest.raises((TypeError, ValueError), match="purpose"):
        drawing().subkey(purpose)


# -- keys ----------------------------------------------------------------------------


def test_defaults_are_the_first_draw_and_the_first_block():
    key = bound()
    assert (key.binding.draws, key.binding.runs, key.binding.total) == (1, 1, 1)
    assert key.binding.digest is None and not key.is_part
    with pytest.raises(AttributeError):
        key.binding.runs = 5
    first = key.authorise("mine", "input")
    first.check_authorised("mine")
    with pytest.raises(NotPaidFor, match="draw 1 of"):
        first.check_authorised("mine", 1)
    assert first.stream("p").read(9) == drawing().stream("p", 0).read(9)
    assert drawing().stream_key("p") == drawing().stream_key("p", 0)
    assert drawing().stream_key("p") != drawing().stream_key("p", 1)


def test_a_stream_is_that_of_its_key():
    assert Stream(drawing().stream_key("p", 2)).read(9) == (
        drawing().stream("p", 2).read(9)
    )


@pytest.mark.parametrize("block", [0, 1])
def test_a_stream_key_is_handed_out_once(block):
    key = drawing()
    key.stream_key("p", block)
    with pytest.raises(NoiseReuse, match=f"'p', block {block}, was already taken"):
        key.stream_key("p", block)
    key.stream_key("p", 1 - block)
    key.stream_key("q", block)


def test_a_refused_stream_is_not_taken():
    """Asked of the key that may not draw, it is still there for the one that may."""
    key = bound()
    with pytest.raises(NotPaidFor, match="no noise before"):
        key.stream("p")
    key.authorise("mine", "input").stream("p")


def test_a_private_key_made_by_hand_draws_nothing():
    key = NoiseKey(KEY, private=True)
    assert key.binding is None
    for take in (key.stream, key.stream_key, key.subkey):
        with pytest.raises(NotPaidFor, match="no noise before"):
            take("p")
    with pytest.raises(NotPaidFor, match="this key was not paid for"):
        key.authorise("mine", "input")


def test_a_seeded_key_made_by_hand_draws_for_anything():
    key = NoiseKey(KEY, private=False)
    assert key.authorise("anything") is key and key.part("part") is key
    key.check_authorised("anything", 7)
    assert len(key.stream("p").read(5)) == 5


def test_a_free_key_is_as_private_as_its_source():
    assert NoiseKey.free(OsEntropy()).private is True
    seeded = NoiseKey.free(Seeded(1))
    assert seeded.private is False and seeded.authorise("x") is seeded
    own = NoiseKey(Seeded(1).new_key(), private=False)
    assert seeded.subkey("p") == own.subkey("p")
    NoiseKey.free(OsEntropy()).check_authorised("any", 3)


def test_the_input_is_compared_for_one_draw_alone():
    for key in (bound(draws=2), bound(runs=2), bound(draws=None)):
        runs = None if key.binding.draws else 1
        for value in ("one", None):
            key.authorise("mine", value, runs=runs)
        assert key.binding.digest is None
    with pytest.raises(NotPaidFor, match="name the input"):
        bound().authorise("mine")
    asked = []

    def digest():
        asked.append(1)
        return "input"

    bound(draws=2).authorise("mine", digest)
    assert asked == [], "nobody needs it"
    key = bound(digest="input")
    key.authorise("mine", digest).stream("p")
    assert asked == [1]
    with pytest.raises(NotPaidFor, match="another input"):
        key.authorise("mine", "other")


@pytest.mark.parametrize(("draws", "runs"), [(1, 1), (3, 1), (1, 4), (2, 5)])
def test_draws_are_numbered_from_0_to_what_was_paid_for(draws, runs):
    key = bound(draws=draws, runs=runs, digest="input")
    total = draws * runs
    key.authorise("mine", "input", draw=total - 1)
    with pytest.raises(NotPaidFor, match=f"paid for {total} draw.* got draw {total}"):
        key.authorise("mine", "input", draw=total)


def test_a_key_is_authorised_for_what_it_was_asked():
    one, other = bound(draws=3), bound(draws=3)
    key = one.authorise("mine", draw=2)
    key.check_authorised("mine", 2)
    for fingerprint, draw in (("mine", 0), ("mine", 1), ("yours", 2)):
        with pytest.raises(NotPaidFor, match=f"draw {draw} of this mechanism"):
            key.check_authorised(fingerprint, draw)
    for not_asked in (one, other):
        with pytest.raises(NotPaidFor, match="not authorised"):
            not_asked.check_authorised("mine", 2)


def test_parts_know_that_they_are_parts():
    key = bound(digest="whole", draws=4, runs=2)
    part = key.part("half")
    assert part.is_part and part.part("quarter").is_part and not key.is_part
    assert key.authorise("mine").is_part is False
    one = bound(digest="whole").part("half").authorise("mine", "half")
    assert one.is_part
    assert (part.binding.digest, part.binding.draws, part.binding.runs) == (
        "half",
        4,
        2,
    )
    assert part.private is key.private is True


def test_who_shares_noise_with_whom():
    key, other = bound(digest="whole"), bound(digest="whole")
    part = key.part("half")
    assert key.shares_noise_with(key) and key.shares_noise_with(part)
    assert part.shares_noise_with(key)
    assert not key.shares_noise_with(other) and not other.shares_noise_with(part)
    for stranger in (None, "key", key._secret):
        assert not key.shares_noise_with(stranger)


def test_a_part_that_is_wiped_wipes_the_whole():
    key = bound(digest="whole")
    key.part("half").wipe()
    with pytest.raises(NoiseReuse, match="committed and its key wiped"):
        key.authorise("mine", "whole").stream("p")


def test_a_key_is_handed_on_until_it_is_wiped():
    key = bound()
    assert key.handed_on() == KEY
    key.wipe()
    with pytest.raises(NoiseReuse, match="wiped"):
        key.handed_on()


def test_private_noise_is_refused_while_a_tape_records():
    key, seeded = drawing(), drawing(private=False)
    with watching(Tape()):
        for take in (key.stream, key.stream_key, key.subkey):
            with pytest.raises(NotPrivate, match="nothing was drawn"):
                take("p")
        with pytest.raises(NotPrivate, match="nothing was drawn"):
            key.handed_on()
        seeded.stream("p")
        seeded.subkey("p")
        seeded.handed_on()
    key.stream("p")


@pytest.mark.parametrize(
    "use",
    [
        lambda key: key.authorise("mine", "input"),
        lambda key: key.part("half"),
        lambda key: key.stream("p"),
        lambda key: key.stream_key("p"),
        lambda key: key.subkey("p"),
        lambda key: key.handed_on(),
    ],
)
def test_a_copy_in_another_process_does_nothing(use, monkeypatch):
    """As a fork would have it: the same object, under another process id."""
    keys = bound(digest="input"), drawing(), bound(digest="input").part("half")
    mine = keys[0]._process
    monkeypatch.setattr("demur.core.entropy.os.getpid", lambda: mine + 1)
    for key in keys:
        with pytest.raises(NoiseReuse, match=f"belongs to process {mine}; a copy in"):
            use(key)


def test_a_copy_of_a_stream_in_another_process_reads_nothing(monkeypatch):
    stream = drawing().stream("p")
    mine = stream._process
    monkeypatch.setattr("demur.core.entropy.os.getpid", lambda: mine + 1)
    with pytest.raises(NoiseReuse, match="belongs to process"):
        stream.read(1)
    with pytest.raises(NoiseReuse, match="a Stream cannot be pickled or copied"):
        copy.copy(stream)


def test_making_a_key_keeps_the_process_out_of_memory_dumps(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "demur.core.memory_dumps.switch_off", lambda: asked.append("off")
    )
    bound()
    assert asked == ["off"]
