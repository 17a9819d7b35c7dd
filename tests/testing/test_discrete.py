"""Contracts of mechanisms with few outputs: randomised response, honest and broken."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from demur import Declaration, ReplaceOne
from demur.core.accounting.events import Pure
from demur.core.bounds import real_array
from demur.core.cost import Cost, Fixed
from demur.core.digest import digest_of_array
from demur.testing import Example, check_mechanism, checks_on
from demur.testing.builders import of_example
from demur.testing.discrete_secrets import DiscreteSecret


@dataclass(frozen=True)
class Answers:
    """Bits, each turned round with probability 1 / (1 + e^epsilon)."""

    epsilon: float = 1.0

    def __post_init__(self):
        number = isinstance(self.epsilon, float) and 0 < self.epsilon < 20
        if not number:
            raise ValueError(
                f"epsilon must be a number from 0 to 20; got {self.epsilon!r:.20}"
            )

    def declaration(self):
        cost = Cost((Fixed(ReplaceOne(), Pure(self.epsilon)),))
        return Declaration("answers turned round at random", cost)

    def check(self, value):
        bits = real_array("value", value)
        if bits.ndim != 1 or not bits.size or not np.isin(bits, (0.0, 1.0)).all():
            raise ValueError("value must be a list of 0 and 1. Nothing was spent.")
        return bits.astype(np.int64)

    def apply(self, value, key):
        bits = self.check(value)
        own = key.authorise(self.declaration().fingerprint, digest_of_array(bits))
        words = np.frombuffer(own.stream("flips").read(8 * bits.size), "<u8")
        return bits ^ (words < self.flips() * 2.0**64)

    def flips(self):
        return 1.0 / (1.0 + math.exp(self.epsilon))


class TurnsTooFew(Answers):
    def flips(self):
        return 0.4 * super().flips()


class Keeps(Answers):
    def apply(self, value, key):
        object.__setattr__(self, "last", np.asarray(value))
        return super().apply(value, key)


class TellsDigits(Answers):
    def __repr__(self):
        return f"Answers({getattr(self, 'digits', '')})"

    def apply(self, value, key):
        object.__setattr__(self, "digits", " ".join(str(x) for x in value))
        return super().apply(value, key)


class AcceptsAll(Answers):
    def check(self, value):
        return (
            np.nan_to_num(real_array("value", value)).reshape(-1).astype(np.int64) & 1
        )


def example(mechanism):
    return Example(
        mechanism=mechanism,
        data=np.random.default_rng(0).integers(0, 2, 96),
        neighbours=(np.array([0]), np.array([1])),
        outcomes=((0,), (1,)),
        filter="pure",
    )


def broken(mechanism):
    class Results(dict):
        def __missing__(self, name):
            (check,) = [
                c for c in checks_on(of_example(example(mechanism))) if c.name == name
            ]
            result = check.result()
            assert not result.ok, f"{name!r} was not noticed"
            return result.why

    return Results()


@pytest.mark.slow
def test_randomised_response_keeps_every_contract():
    results = check_mechanism(example(Answers()))
    assert len(results) > 20
    assert [str(result) for result in results if not result.ok] == []


@pytest.mark.slow
def test_neighbours_that_show_more_than_the_price():
    why = broken(TurnsTooFew())["neighbours show no more than the price"]
    assert "declared" in why


def test_a_kept_vector_of_bits_is_found():
    assert "ndarray" in broken(Keeps())["results hold no exact value"]
    assert "repr" in broken(TellsDigits())["results hold no exact value"]


def test_data_that_are_no_bits_must_be_refused():
    why = broken(AcceptsAll())["bad data costs nothing"]
    assert "NaN" in why and "fractions" in why


def test_short_or_constant_vectors_are_no_secret():
    for value in (np.arange(10) % 2, np.ones(100, int), np.linspace(0, 1, 100)):
        with pytest.raises(ValueError, match="at least 64"):
            DiscreteSecret.of("x", value)


def test_a_vector_is_recognised_in_every_width():
    bits = np.random.default_rng(1).integers(0, 2, 80)
    secret = DiscreteSecret.of("bits", bits)
    for width in ("?", "u1", "<i4", "<i8", "<f8"):
        assert secret.in_bytes(b"x" + bits.astype(width).tobytes() + b"y")
    assert secret.in_text(str(bits.tolist()))
    other = 1 - bits
    assert not secret.in_bytes(other.astype("<i8").tobytes())
    assert not secret.in_text(str(other.tolist()))


def test_examples_say_what_is_missing():
    with pytest.raises(ValueError, match="belong together"):
        Example(mechanism=Answers(), data=[0, 1], neighbours=([0], [1]))
    with pytest.raises(ValueError, match="two inputs"):
        Example(mechanism=Answers(), data=[0, 1], neighbours=([0],), outcomes=(0, 1))
