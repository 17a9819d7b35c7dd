"""Stored profiles: bytes, corruption, and that fewer dots never promise more."""

import hashlib
import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demur.core.accounting import profile_of
from demur.core.accounting.events import PoissonGaussian, Repeated
from demur.core.accounting.gaussian import gaussian_delta
from demur.core.accounting.stored_profile import Profile


def gaussian_profile(exponent=4, first=-37, size=200):
    """delta of 1-GDP on a grid; for negative epsilon by its symmetry."""
    grid = (first + np.arange(size)) * 2.0**-exponent

    def delta(e):
        if e >= 0:
            return gaussian_delta(1.0, e)
        return 1 - np.exp(e) * (1 - gaussian_delta(1.0, -e))

    curve = np.minimum.accumulate([min(1.0, delta(float(e))) for e in grid])
    return Profile(exponent, first, curve, curve * 0.5)


def read(profile, name, epsilon):
    """The curve through the dots, straight in e^epsilon: what composing it assumes."""
    dots = (profile.first + np.arange(profile.remove.size)) * profile.step
    curve = getattr(profile, name)
    if epsilon >= dots[-1]:
        return curve[-1]
    if epsilon <= dots[0]:  # the line from delta = 1 at e^epsilon = 0
        return 1 - np.exp(epsilon - dots[0]) * (1 - curve[0])
    return np.interp(np.exp(epsilon), np.exp(dots), curve)


PROFILE = gaussian_profile()


def same(a, b):
    return (
        a.exponent == b.exponent
        and a.first == b.first
        and np.array_equal(a.remove, b.remove)
        and np.array_equal(a.add, b.add)
    )


@pytest.mark.slow
@pytest.mark.parametrize("exponent", range(-6, 5))
@pytest.mark.parametrize(("first", "size"), [(-37, 200), (0, 64), (5, 3), (-8, 2)])
def test_coarser_dominates(first, size, exponent):
    fine = gaussian_profile(first=first, size=size)
    coarse = fine.coarser(exponent)
    assert coarse.exponent == min(exponent, fine.exponent)
    assert 2 <= coarse.remove.size <= fine.remove.size + 2
    for epsilon in np.linspace(-4, 14, 700):
        for name in ("remove", "add"):
            assert read(coarse, name, epsilon) >= read(fine, name, epsilon) - 1e-12
    last = (coarse.first + coarse.remove.size - 1) * coarse.step
    assert last >= (fine.first + fine.remove.size - 1) * fine.step - fine.step


def test_the_same_check_catches_dots_moved_left():
    """A sabotaged twin: a grid read one dot too low promises more."""
    wrong = Profile(PROFILE.exponent, PROFILE.first - 1, PROFILE.remove, PROFILE.add)
    gaps = [
        read(wrong, "remove", e) - read(PROFILE, "remove", e)
        for e in np.linspace(-2, 8, 100)
    ]
    assert min(gaps) < -1e-3


def test_coarser_in_two_steps_is_not_below_one():
    coarse = PROFILE.coarser(-1)
    two = PROFILE.coarser(2).coarser(-1)
    for epsilon in np.linspace(-3, 12, 300):
        assert read(two, "add", epsilon) >= read(coarse, "add", epsilon) - 1e-12


def test_finer_is_the_profile_itself():
    assert PROFILE.coarser(PROFILE.exponent) is PROFILE
    assert PROFILE.coarser(PROFILE.exponent + 3) is PROFILE


@pytest.mark.slow
def test_bytes_round_trip():
    assert same(Profile.from_bytes(PROFILE.to_bytes()), PROFILE)
    plan = profile_of(Repeated(PoissonGaussian(0.01, 1.0), 10))
    raw = plan.to_bytes()
    assert same(Profile.from_bytes(raw), plan)
    assert raw == Profile.from_bytes(raw).to_bytes()
    assert not raw.startswith(b"\x80")  # no pickle


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_random_bytes_are_a_value_error(raw):
    with pytest.raises(ValueError):
        Profile.from_bytes(raw)


RAW = PROFILE.to_bytes()
HEAD = 4 + int.from_bytes(RAW[:4], "little")


@pytest.mark.parametrize("cut", [0, 3, 4, 20, 60, len(RAW) // 2, len(RAW) - 5])
def test_a_cut_profile_is_a_value_error(cut):
    with pytest.raises(ValueError):
        Profile.from_bytes(RAW[:cut])


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(HEAD, len(RAW) - 1), st.integers(1, 255))
def test_no_flipped_byte_of_the_body_goes_unnoticed(at, mask):
    flipped = RAW[:at] + bytes([RAW[at] ^ mask]) + RAW[at + 1 :]
    try:
        damaged = Profile.from_bytes(flipped)
    except ValueError:
        return
    assert same(damaged, PROFILE)


def test_no_digit_of_the_header_changes_silently():
    """The header says what the dots mean: exponent 5 for 4 halves every epsilon."""
    for at in range(4, HEAD):
        for byte in b"0123456789-":
            flipped = RAW[:at] + bytes([byte]) + RAW[at + 1 :]
            try:
                damaged = Profile.from_bytes(flipped)
            except ValueError:
                continue
            assert same(damaged, PROFILE)


def forged(**changes):
    header = {"format": 1, "exponent": 4, "first": -37, "dots": PROFILE.remove.size}
    header = json.dumps(header | changes).encode()
    body = zlib.compress(PROFILE.remove.tobytes() + PROFILE.add.tobytes())
    data = len(header).to_bytes(4, "little") + header + body
    return data + hashlib.sha256(data).digest()


def test_a_forgery_with_nothing_changed_is_read():
    """So what is refused below is refused for the change, not for its checksum."""
    assert same(Profile.from_bytes(forged()), PROFILE)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": None},
        {"dots": 3},
        {"dots": 0},
        {"dots": -1},
        {"dots": 2**40},
        {"dots": "200"},
        {"dots": None},
        {"exponent": 1000},
        {"exponent": None},
        {"exponent": "4"},
        {"exponent": 4.5},
        {"first": 0.5},
        {"first": "0"},
        {"first": None},
        {"first": 10**30},
    ],
)
def test_a_forged_header_is_a_value_error(change):
    with pytest.raises(ValueError):
        Profile.from_bytes(forged(**change))


def test_a_deep_header_is_a_value_error():
    header = b"[" * 50_000
    with pytest.raises(ValueError):
        Profile.from_bytes(len(header).to_bytes(4, "little") + header)


@pytest.mark.slow
def test_a_bomb_is_not_unpacked():
    body = zlib.compress(bytes(10**8), 9)
    header = json.dumps({"format": 1, "exponent": 4, "first": 0, "dots": 10}).encode()
    with pytest.raises(ValueError):
        Profile.from_bytes(len(header).to_bytes(4, "little") + header + body)


@pytest.mark.parametrize("raw", [None, "text", 3, [1, 2]])
def test_what_are_no_bytes_is_a_value_error(raw):
    with pytest.raises(ValueError):
        Profile.from_bytes(raw)


@pytest.mark.parametrize(
    "curve",
    [
        [0.5],
        [0.5, 0.6],
        [1.5, 0.5],
        [0.5, -0.1],
        [np.nan, 0.5],
        [0.5, np.nan],
        [[0.5, 0.4]],
    ],
)
def test_what_is_no_curve_is_refused(curve):
    curve = np.array(curve)
    good = np.array([0.5, 0.4])
    with pytest.raises(ValueError):
        Profile(4, 0, curve, good)
    with pytest.raises(ValueError):
        Profile(4, 0, good, curve)


def test_both_directions_have_the_same_dots():
    with pytest.raises(ValueError, match="same number of dots"):
        Profile(4, 0, np.array([0.5, 0.4]), np.array([0.5, 0.4, 0.3]))
