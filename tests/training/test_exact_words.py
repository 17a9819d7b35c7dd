"""Numbers below a bound, subsets and shuffles, word by word.

Of the 2^32 words those are rejected whose low half falls short of 2^32 mod s, so that
every result has floor(2^32 / s) words. Random draws do not reach words next to that
limit.
"""

import numpy as np
import pytest

from demur.training.batches import subsets


def word_with(low, bound):
    """A word whose product with an odd bound has this low half; and its result."""
    word = low * pow(bound, -1, 2**32) % 2**32
    return word, word * bound >> 32


def numbers(words, bound, count=1):
    out = np.full(count, -1, dtype=np.int32)
    done = subsets._below(np.array(words, dtype=np.uint32), bound, out)
    return out.tolist() if done else None


def first_place(words, size):
    """The first step of a shuffle: the offset that the words give."""
    places = subsets.identity(size)
    swaps, chosen = np.empty(1, np.int32), np.empty(1, np.int32)
    given = np.array(words, dtype=np.uint32)
    done = subsets._partial_shuffle(places, given, swaps, chosen, True)
    assert np.array_equal(places, subsets.identity(size)), "put back"
    return int(chosen[0]) if done else None


@pytest.mark.parametrize("bound", [3, 5, 7, 1001, 99_999])
@pytest.mark.parametrize(
    "draw", [lambda w, b: (numbers(w, b) or [None])[0], first_place]
)
def test_words_at_the_limit_of_rejection(bound, draw):
    limit = 2**32 % bound
    assert 0 < limit < bound
    for low in {0, limit - 1}:
        word, _ = word_with(low, bound)
        assert draw([word], bound) is None, "rejected"
    for low in {limit, limit + 1, bound - 1, bound, bound + 1, 2**32 - 1}:
        word, number = word_with(low, bound)
        assert draw([word], bound) == number
    rejected, _ = word_with(0, bound)
    word, number = word_with(limit, bound)
    assert draw([rejected, word], bound) == number, "the next word counts"


def test_every_result_has_the_same_number_of_words():
    """Of words of 8 bits, by the same rule, all of them."""
    for bound in (3, 5, 6, 7, 100, 255, 256):
        kept = [w * bound >> 8 for w in range(256) if w * bound % 256 >= 256 % bound]
        assert np.bincount(kept, minlength=bound).tolist() == [256 // bound] * bound


@pytest.mark.parametrize("size", [4, 8, 1 << 20])
def test_a_power_of_two_rejects_nothing(size):
    for word in (0, 1, 2**32 - 1, 12345678):
        assert numbers([word], size) == [word * size >> 32]
        assert first_place([word], size) == word * size >> 32


def test_a_shuffle_swaps_with_a_place_from_its_own_on():
    def word(offset, left):
        """A word in the middle of those that give this offset among `left`."""
        return (2 * offset + 1) * 2**31 // left

    offsets = [2, 0, 1, 1, 0]
    words = np.array([word(o, 5 - i) for i, o in enumerate(offsets)], dtype=np.uint32)
    expected, chosen_by_hand = list(range(10, 15)), []
    for i, offset in enumerate(offsets):
        expected[i], expected[i + offset] = expected[i + offset], expected[i]
        chosen_by_hand.append(expected[i])
    for undo in (False, True):
        places = np.arange(10, 15, dtype=np.int32)
        swaps, chosen = np.empty(5, np.int32), np.empty(5, np.int32)
        assert subsets._partial_shuffle(places, words, swaps, chosen, undo)
        assert chosen.tolist() == chosen_by_hand
        assert places.tolist() == (list(range(10, 15)) if undo else expected)
        assert swaps.tolist() == [i + o for i, o in enumerate(offsets)]
    # Too few words: nothing has moved, whether it was to be undone or not.
    for undo in (False, True):
        places = np.arange(10, 15, dtype=np.int32)
        assert not subsets._partial_shuffle(places, words[:4], swaps, chosen, undo)
        assert places.tolist() == list(range(10, 15))


class Words:
    """A stream of given words, in pieces; zeros (rejected) at first."""

    def __init__(self, *pieces):
        self.pieces, self.asked = list(pieces), []

    def read(self, count):
        self.asked.append(count)
        words = np.zeros(count // 4, dtype="<u4")
        piece = self.pieces.pop(0)
        words[: len(piece)] = piece
        return words.tobytes()


def test_a_draw_that_runs_out_of_words_begins_again():
    word, number = word_with(2**31, 7)
    stream = Words([], [word, word])
    assert subsets.uniform_below(7, 2, stream).tolist() == [number] * 2
    assert len(stream.asked) == 2 and stream.asked[0] == stream.asked[1]
    places = subsets.identity(7)
    one = subsets.subset(places, 1, Words([], [word]))
    assert one.tolist() == [number] and np.array_equal(places, subsets.identity(7))
    moved = subsets.identity(7)
    subsets.move_subset_to_front(moved, 1, Words([], [word]))
    expected = subsets.identity(7)
    expected[0], expected[number] = number, 0
    assert np.array_equal(moved, expected)
    whole = subsets.subset(places, 7, None)
    assert whole is not places and np.array_equal(whole, places)


@pytest.mark.parametrize("bound", [0, -1, 2**31])
def test_bounds_are_those_of_32_bits(bound):
    with pytest.raises(ValueError, match="bound must be from 1 to 2"):
        subsets.uniform_below(bound, 1, None)
    assert subsets.uniform_below(1, 2, Words([5, 6])).tolist() == [0, 0]
    assert subsets.LARGEST_SIZE == 2**31 - 1
