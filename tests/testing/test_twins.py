"""Sabotaged mechanisms: each breaks the contract that is about it, and is named."""

import functools
import inspect
from dataclasses import dataclass, replace

import numpy as np
import pytest

from demur import Ball, Declaration, Release, ReplaceOne, Seeded
from demur.core.accounting.events import GaussianEvent, Pure
from demur.core.bounds import real_array
from demur.core.cost import Cost, Fixed
from demur.core.curve import PiecewiseLinear
from demur.core.digest import digest_of_array
from demur.core.entropy import NoiseKey
from demur.ledger import Ledger
from demur.mechanisms import Gaussian
from demur.testing import check_mechanism, checks_on
from tests.testing import test_discrete
from tests.testing.kit import UNIT, Honest, rng_data, subject


class Broken:
    """Why a contract does not hold, by its name; each is run when it is asked for."""

    def __init__(self, cls, **about):
        self.checks = {check.name: check for check in checks_on(subject(cls, **about))}

    def __getitem__(self, name):
        result = self.checks[name].result()
        assert not result.ok, f"{name!r} was not noticed"
        return result.why


broken = Broken


@pytest.mark.slow
def test_an_honest_mechanism_keeps_every_contract():
    results = check_mechanism(Honest(), raise_on_failure=True)
    assert len(results) >= 20 and all(result.ok for result in results)


# -- costs ---------------------------------------------------------------------------

SPACE = "records"


@dataclass(frozen=True)
class OverBalls(Honest):
    def inner(self):
        curve = PiecewiseLinear.linear(1.0, cap=2.0)
        table = {SPACE: curve, ReplaceOne(): 2.0}
        return Gaussian(self.sigma, table, dimension=self.dimension)


class FallsWithRadius(OverBalls):
    """Says by itself that a longer move is cheaper."""

    def event(self, unit):
        if isinstance(unit, Ball):
            return GaussianEvent(self.sigma * (1.0 + unit.radius))
        return super().event(unit)


class DearerMove(OverBalls):
    """A whole replacement, said to be cheaper than a move."""

    def event(self, unit):
        if isinstance(unit, ReplaceOne):
            return GaussianEvent(100.0)
        return super().event(unit)


class Infinite(Honest):
    def event(self, unit):
        return GaussianEvent(1e-200)


class CostIgnoresNoise(Honest):
    def declaration(self):
        cost = Cost((Fixed(UNIT, GaussianEvent(2.0)),))
        return replace(super().declaration(), cost=cost)


class SaysLessThanItCharges(Honest):
    def event(self, unit):
        return GaussianEvent(10.0 * self.sigma)


@pytest.mark.slow
def test_an_honest_curve_over_balls_keeps_every_contract():
    check_mechanism(OverBalls(), raise_on_failure=True)


def test_a_cost_that_falls_with_the_radius():
    reasons = broken(FallsWithRadius)
    assert "only" in reasons["cost grows with the radius"]
    assert reasons["event agrees with the declaration"]


def test_a_move_that_is_dearer_than_a_replacement():
    assert "replacement" in broken(DearerMove)["cost grows with the radius"]


def test_a_cost_that_ignores_its_noise():
    assert "more noise" in broken(CostIgnoresNoise)["cost falls with noise"]


def test_an_event_that_is_not_what_is_recorded():
    assert broken(SaysLessThanItCharges)["event agrees with the declaration"]


class FlatCost(Cost):
    """One price for every world, however many records a person owns."""

    def at(self, unit, maps=()):
        return GaussianEvent(2.0)


class KnowsEverything(Honest):
    def declaration(self):
        terms = (Fixed(UNIT, GaussianEvent(2.0)),)
        return replace(super().declaration(), cost=FlatCost(terms))


def test_a_price_for_worlds_that_it_does_not_know():
    reasons = broken(KnowsEverything)
    assert "nobody named" in reasons["units outside the declaration have no cost"]
    assert "does not grow" in reasons["a person of several records costs more"]


def test_a_price_that_is_infinite():
    assert "inf" in broken(Infinite)["prices are numbers"]


# -- declining and the order of a release --------------------------------------------


class DrawsFirst(Honest):
    """The noise before the charge: a decline comes too late."""

    def release(self, value, *, ledger, label="", source=None):
        vector = self.check(value)
        key = NoiseKey((source or Seeded(1)).new_key(), private=False)
        object.__setattr__(self, "last_", self.inner().apply(vector, key))
        entry = ledger.charge(self, label=label, source=source or Seeded(1))
        ledger._commit(entry, digest_of_array(self.last_))
        return Release(self.last_, entry)


class NeverCharges(Honest):
    def release(self, value, *, ledger, label="", source=None):
        own = Ledger(ledger.terms.budgets[0][1].__class__(50.0, 1e-6), unit=UNIT)
        return super().release(value, ledger=own, label=label, source=source)


class RetriesSmaller(Honest):
    """Declined, it helps itself to a cheaper declaration with the same noise."""

    def release(self, value, *, ledger, label="", source=None):
        try:
            return super().release(value, ledger=ledger, label=label, source=source)
        except Exception:
            free = Declaration("nothing", Cost((Fixed(UNIT, Pure(0.0)),)))
            ledger.charge(free, label=label)
            raise


class NeverCommits(Honest):
    def release(self, value, *, ledger, label="", source=None):
        vector = self.check(value)
        payment = self.paid(vector, ledger, label, source)
        return Release(self.inner().apply(vector, payment.key), payment.entry)


class Remembers(Honest):
    """Keeps the state of an attempt."""

    def release(self, value, *, ledger, label="", source=None):
        object.__setattr__(self, "sigma", self.sigma * 1.5)
        return super().release(value, ledger=ledger, label=label, source=source)


def test_noise_before_the_charge():
    assert "last_" in broken(DrawsFirst)["declining leaves no trace"]


def test_a_release_that_is_charged_elsewhere():
    reasons = broken(NeverCharges)
    assert "not charged" in reasons["declining leaves no trace"]
    assert "no entry" in reasons["refitting charges again"]


class Sulks(Honest):
    """Declined once, it never works again."""

    def release(self, value, *, ledger, label="", source=None):
        if getattr(self, "_hurt", False):
            raise RuntimeError("no")
        object.__setattr__(self, "_hurt", True)
        return super().release(value, ledger=ledger, label=label, source=source)


def test_a_mechanism_that_a_decline_breaks():
    reasons = broken(Sulks)
    assert "no" in reasons["a declined release can be made in a larger ledger"]


def test_a_decline_that_leaves_an_entry():
    assert "wrote 1 entries" in broken(RetriesSmaller)["declining leaves no trace"]


def test_a_release_that_is_never_committed():
    reasons = broken(NeverCommits)
    assert "committed" in reasons["the charge comes before the noise"]
    assert "key" in reasons["no noise key is left behind"]


def test_an_attempt_that_changes_who_asked():
    reasons = broken(Remembers)
    assert "sigma" in reasons["declining leaves no trace"]


# -- statements ----------------------------------------------------------------------


@dataclass(frozen=True)
class Vague(Release):
    def statement(self, *, records=None):
        return "Your data are safe with us, at a small epsilon."


@dataclass(frozen=True)
class Unstamped(Release):
    def statement(self, *, records=None):
        return super().statement().replace("NOT PRIVATE", "private")


@dataclass(frozen=True)
class Forgetful(Release):
    """Its JSON comes back as something else."""

    note: str = "a"

    def to_json(self):
        return {"note": self.note}

    @classmethod
    def from_json(cls, data):
        return cls(None, None, "b")


@dataclass(frozen=True)
class NotJson(Release):
    def to_json(self):
        return {"value": float("nan")}


def returning(kind):
    class Says(Honest):
        def release(self, value, *, ledger, label="", source=None):
            release = super().release(value, ledger=ledger, label=label, source=source)
            return kind(release.value, release.entry)

    return Says


class Nameless(Honest):
    """Hands out the value alone: nobody can tell which entry paid."""

    def release(self, value, *, ledger, label="", source=None):
        return super().release(value, ledger=ledger, label=label, source=source).value


def test_a_statement_that_hides_the_unit():
    reasons = broken(returning(Vague))
    assert "does not name the unit" in reasons["statements name the unit"]


def test_seeded_noise_that_is_not_called_so():
    assert "NOT PRIVATE" in broken(returning(Unstamped))["seeded noise is stamped"]


def test_json_that_loses_something():
    assert "changes" in broken(returning(Forgetful))["results survive json"]


def test_json_that_is_none():
    assert "JSON" in broken(returning(NotJson))["results survive json"]


def test_a_result_without_its_entry():
    reasons = broken(Nameless, released=lambda result: {"value": result})
    assert "no attribute 'entry'" in reasons["results carry their entry"]


def test_a_result_that_hides_its_entry():
    @dataclass(frozen=True)
    class Sealed:
        inner: Release

    class Seals(Honest):
        def release(self, value, *, ledger, label="", source=None):
            return Sealed(
                super().release(value, ledger=ledger, label=label, source=source)
            )

    reasons = broken(Seals, released=lambda result: {"value": result.inner.value})
    assert "no attribute 'entry'" in reasons["results carry their entry"]


class Approximate(Declaration):
    """Its JSON leaves something out."""

    def to_json(self):
        return super().to_json() | {"sampler_distance": 0.0}


class Rounded(Honest):
    def declaration(self):
        exact = super().declaration()
        fields = Declaration.__dataclass_fields__
        return Approximate(**{name: getattr(exact, name) for name in fields})


def test_a_declaration_that_does_not_survive_json():
    reasons = broken(Rounded)
    assert "another" in reasons["declarations survive json"]
    assert "another" in reasons["entries survive a file"]


# -- bad input -----------------------------------------------------------------------


class ChargesBeforeChecking(Honest):
    def release(self, value, *, ledger, label="", source=None):
        with ledger.paid(self, label=label, source=source) as payment:
            released = self.inner().apply(value, payment.key)
        return Release(released, payment.entry)


class TakesAnything(Honest):
    def check(self, value):
        with np.errstate(all="ignore"):
            try:
                numbers = np.array(np.ma.getdata(value), dtype=np.float64).reshape(-1)
            except Exception:
                numbers = np.zeros(4)
        return np.resize(np.nan_to_num(numbers), 4).clip(-1e6, 1e6)


class Mute(Honest):
    """Refuses without a word about what."""

    def check(self, value):
        try:
            return super().check(value)
        except ValueError:
            raise ValueError("no") from None


class Chatty(Honest):
    """Quotes the record that it cannot take."""

    def check(self, value):
        try:
            return super().check(value)
        except ValueError:
            raise ValueError(f"value is bad: {value!r}") from None


class Crashes(Honest):
    def check(self, value):
        try:
            return super().check(value)
        except ValueError:
            raise RuntimeError("value") from None


@dataclass(frozen=True)
class NanSigma(Honest):
    """Takes a parameter that is not a number for one it knows."""

    def inner(self):
        sigma = self.sigma if isinstance(self.sigma, float) else 2.0
        sigma = 2.0 if np.isnan(sigma) else sigma
        return Gaussian(sigma, {UNIT: 1.0}, dimension=self.dimension)


@pytest.mark.slow
def test_a_charge_before_the_check():
    reasons = broken(ChargesBeforeChecking)["bad data costs nothing"]
    assert "after it was charged" in reasons


@pytest.mark.slow
def test_a_mechanism_that_takes_anything():
    reasons = broken(TakesAnything)["bad data costs nothing"]
    assert "value with NaN: it was accepted" in reasons and "masked: it was" in reasons
    assert "complex numbers: it was accepted" in reasons and "words: it was" in reasons


@pytest.mark.slow
def test_a_refusal_without_a_name():
    assert "does not name" in broken(Mute)["bad data costs nothing"]


@pytest.mark.slow
def test_a_refusal_that_quotes_a_record():
    assert "quotes" in broken(Chatty)["bad data costs nothing"]


@pytest.mark.slow
def test_a_refusal_that_is_a_crash():
    assert "not a clear error" in broken(Crashes)["bad data costs nothing"]


@pytest.mark.slow
def test_a_parameter_that_is_not_a_number():
    reasons = broken(NanSigma)["bad parameters cost nothing"]
    assert "sigma=nan: it was accepted" in reasons and "sigma='many'" in reasons


# -- noise ---------------------------------------------------------------------------


class OneNoise(Honest):
    """The same noise for every release."""

    def release(self, value, *, ledger, label="", source=None):
        vector = self.check(value)
        fixed = NoiseKey(Seeded(7).new_key(), private=False)
        with self.paid(vector, ledger, label, source) as payment:
            released = self.inner().apply(vector, fixed)
        return Release(released, payment.entry)


class Cached(Honest):
    """A second release on the same data is the first one, for free."""

    def release(self, value, *, ledger, label="", source=None):
        first = getattr(self, "_first", None)
        if first is None:
            first = super().release(value, ledger=ledger, label=label, source=source)
            object.__setattr__(self, "_first", first)
        return first


class CountsReads(Honest):
    """Printing it changes it."""

    def __repr__(self):
        object.__setattr__(self, "sigma", self.sigma + 1.0)
        return "a mechanism"


class NoiseFromElsewhere(Honest):
    """Noise of numpy's generator; the key that was paid for is never used."""

    def release(self, value, *, ledger, label="", source=None):
        vector = self.check(value)
        with self.paid(vector, ledger, label, source) as payment:
            noise = np.random.default_rng().normal(scale=self.sigma, size=vector.shape)
        return Release(vector + noise, payment.entry)


def test_noise_that_does_not_come_from_the_key():
    why = broken(NoiseFromElsewhere)["noise follows from the key"]
    assert "drawn from elsewhere" in why


def test_one_noise_for_every_release():
    assert "same noise" in broken(OneNoise)["two releases have two noises"]


def test_a_cache_that_is_not_charged():
    assert "no entry" in broken(Cached)["refitting charges again"]


def test_a_repr_that_writes():
    reasons = broken(CountsReads)
    assert "sigma" in reasons["reading changes nothing"]


# -- secrets -------------------------------------------------------------------------


@dataclass(frozen=True)
class WithExtra(Release):
    extra: object = None


class Slotted:
    __slots__ = ("__hidden",)

    def __init__(self, value):
        self.__hidden = value


class Reprs:
    def __init__(self, value):
        self.text = f"theta = {value[0]:.10f}"


def _waiting(exact):
    first = exact * 1.0
    yield 1
    yield first


def _generator(exact):
    whole = _waiting(exact)
    next(whole)
    return whole


def _closure(exact):
    return lambda: exact


def _default(exact):
    return lambda first=exact: first


def _method(exact):
    return exact.sum


def _error(exact):
    try:
        inside = exact * 1.0
        raise ValueError("no")
    except ValueError as caught:
        del inside
        return caught


HIDING = {
    "an attribute": lambda exact: exact,
    "a copy in float32": lambda exact: exact.astype(np.float32),
    "one number of it": lambda exact: float(exact[2]),
    "a negated list": lambda exact: [-x for x in exact.tolist()],
    "a nested list": lambda exact: [exact[:2].tolist(), exact[2:].tolist()],
    "a dict": lambda exact: {"deep": {"deeper": [exact]}},
    "a closure": _closure,
    "a default": _default,
    "a partial": lambda exact: functools.partial(print, exact),
    "a bound method": _method,
    "a generator": _generator,
    "an exception's frame": _error,
    "slots": Slotted,
    "bytes": lambda exact: exact.tobytes(),
    "bytes of the other order": lambda exact: bytearray(exact.astype(">f8").tobytes()),
    "text": Reprs,
    "an array of objects": lambda exact: np.array([exact, None], dtype=object),
    "a cache": lambda exact: _cached_of(exact),
    "a matrix that holds it": lambda exact: np.vstack([exact, np.zeros(4)]),
}


def _cached_of(exact):
    @functools.lru_cache
    def first(key):
        return exact.copy()

    first(1)
    return first


@pytest.mark.slow
@pytest.mark.parametrize("place", HIDING)
def test_the_exact_value_is_found_wherever_it_is_kept(place):
    class Keeps(Honest):
        def release(self, value, *, ledger, label="", source=None):
            release = super().release(value, ledger=ledger, label=label, source=source)
            return WithExtra(
                release.value, release.entry, HIDING[place](self.check(value))
            )

    reasons = broken(Keeps)
    assert "exact" in reasons["results hold no exact value"]


def test_the_noise_is_found():
    class KeepsNoise(Honest):
        def release(self, value, *, ledger, label="", source=None):
            release = super().release(value, ledger=ledger, label=label, source=source)
            return WithExtra(release.value, release.entry, release.value - value)

    reasons = broken(KeepsNoise)["results hold no exact value"]
    assert "the noise" in reasons


def test_an_exact_value_in_the_mechanism_itself_is_found():
    class Stores(Honest):
        def release(self, value, *, ledger, label="", source=None):
            object.__setattr__(self, "_row", {"row": np.array(value)})
            return super().release(value, ledger=ledger, label=label, source=source)

    reasons = broken(Stores)
    assert "the data value" in reasons["results hold no exact value"]


def test_an_exact_value_in_the_ledger_is_found():
    class Labels(Honest):
        def release(self, value, *, ledger, label="", source=None):
            label = f"mean {real_array('value', value).reshape(-1)[0]:.12g}"
            return super().release(value, ledger=ledger, label=label, source=source)

    assert "exact" in broken(Labels)["the ledger holds no exact value"]


def test_a_key_that_is_kept_is_found():
    class KeepsKey(Honest):
        def paid(self, value, ledger, label, source):
            payment = super().paid(value, ledger, label, source)
            object.__setattr__(self, "_secret", bytes(payment.key._secret.key))
            return payment

    reasons = broken(KeepsKey)
    assert "key 0" in reasons["no noise key is left behind"]


@pytest.mark.slow
def test_a_release_alone_is_not_suspected():
    """The same search, on what was released as it should be: power is not noise."""
    for _ in range(20):
        checks = {c.name: c for c in checks_on(subject(Honest, value=rng_data()))}
        checks["results hold no exact value"]()


def test_every_contract_has_a_twin():
    """Each contract's name stands in this file, beside the twin that breaks it."""
    text = inspect.getsource(inspect.getmodule(broken))
    text += inspect.getsource(test_discrete)
    # How counts add up is the accountant's affair, and tests/core has its twins.
    names = {check.name for check in checks_on(subject(Honest))}
    missing = {name for name in names if f'["{name}"]' not in text}
    assert missing == {"cost grows with the count"}
