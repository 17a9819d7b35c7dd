"""What the report says, compared with the ledger point by point."""

import json
import math

import pytest

from demur import AddOrRemoveOne, Ball, Declaration, Erasure, LipschitzMap, ZeroOut
from demur.core.accounting.events import Pure
from demur.core.cost import Cost, Fixed
from demur.core.entry import PAYS_PER_PERSON, deletion_key
from demur.core.rounding import printed_up
from demur.ledger import Budget, Ledger, Readings, over_time
from demur.report import gather
from tests import commands
from tests.report import ledgers


@pytest.fixture(scope="module")
def ledger():
    return ledgers.full()


@pytest.fixture(scope="module")
def facts(ledger):
    return gather(ledger)


def test_the_last_moment_is_the_status(ledger) -> None:
    moments = over_time(ledger)
    now = tuple(status.spent_epsilon for status in ledger.status())
    assert len(moments) == len(ledger.entries()) and moments[-1].spent_epsilon == now
    for before, after in zip(moments, moments[1:], strict=False):
        assert all(
            a <= b
            for a, b in zip(before.spent_epsilon, after.spent_epsilon, strict=True)
        )


def test_moments_are_what_a_shorter_ledger_says() -> None:
    ledger = Ledger({ledgers.UNIT: Budget(4.0, 1e-5)})
    seen = []
    for i in range(7):
        ledger.charge(ledgers.sums(5.0 + i).declaration(), label=f"run {i}")
        seen.append(ledger.status()[0].spent_epsilon)
    assert [m.spent_epsilon[0] for m in over_time(ledger)] == seen
    few = over_time(ledger, most=3)
    assert [m.spent_epsilon[0] for m in few] == seen[::3]


def test_readings_at_many_units_are_readings(ledger) -> None:
    units = [Ball(0.1, space="pixels"), AddOrRemoveOne(), Erasure(), Ball(1, space="z")]
    readings = Readings(ledger)
    for unit in units:  # A replacement covers every ball, whatever the space.
        for delta in (1e-5, 1e-6):
            expected = ledger.epsilon(delta, unit)
            assert readings.epsilon(unit, delta) == expected
            assert readings.epsilon(unit, delta) == expected
    fixed = Ledger({ledgers.UNIT: Budget(1.0, 1e-5)})
    fixed.charge(ledgers.sums(20.0).declaration(), label="x")
    readings = Readings(fixed)
    alone = readings.epsilon(ledgers.UNIT, 1e-5, readings.groups)
    assert alone == fixed.epsilon()
    assert readings.epsilon(ledgers.UNIT, 1e-5, []) == 0.0
    assert readings.epsilon(ZeroOut(), 1e-5) is None


@pytest.mark.slow
def test_the_curve_is_the_ledger_at_each_radius(ledger, facts) -> None:
    (cost,) = facts.spaces
    assert cost.space == "pixels" and 0.25 in cost.radii and 2.0 in cost.radii
    for radius, epsilon in list(zip(cost.radii, cost.epsilon, strict=True))[::4]:
        assert epsilon == ledger.epsilon(cost.delta, Ball(radius, space="pixels"))
    known = [e for e in cost.epsilon if e is not None]
    assert known == sorted(known)
    alone = [sum(a.epsilon[k] for a in cost.costliest) for k in (3, 12)]
    assert all(total >= cost.epsilon[k] for total, k in zip(alone, (3, 12)))  # noqa: B905
    assert cost.budgets[0].tight_epsilon == ledger.epsilon(unit=ledgers.NEAR)


@pytest.mark.slow
def test_units_without_a_distance_are_marked(ledger, facts) -> None:
    costs = {u.name: u for u in facts.units}
    assert set(costs) == {"replace one", "add or remove one", "erasure"}
    assert costs["replace one"].budget is None
    assert costs["erasure"].epsilon == ledger.epsilon(unit=Erasure())
    assert costs["add or remove one"].epsilon == ledger.epsilon(unit=ledgers.UNIT)


@pytest.mark.slow
def test_a_ledger_that_cannot_be_read_at_a_ball_says_so() -> None:
    ledger = Ledger({AddOrRemoveOne(): Budget(4.0, 1e-5)})
    ledger.charge(ledgers.sums(9.0).declaration(), label="a curve")
    presence = ledgers.Gaussian(9.0, {AddOrRemoveOne(): 1.0}).declaration()
    ledger.charge(presence, label="presence alone")
    facts = gather(ledger)
    assert set(facts.spaces[0].epsilon) == {None}
    assert {u.name: u.epsilon is None for u in facts.units} == {
        "replace one": True,
        "add or remove one": False,
    }


@pytest.mark.slow
def test_maps_between_spaces_are_used() -> None:
    near = Ball(0.5, space="raw")
    ledger = Ledger(
        {near: Budget(4.0, 1e-5)}, maps=[LipschitzMap("raw", "pixels", constant=2.0)]
    )
    ledger.charge(ledgers.sums(9.0).declaration(), label="a curve")
    spaces = {cost.space: cost for cost in gather(ledger).spaces}
    assert set(spaces) == {"raw", "pixels"}
    raw = spaces["raw"]
    assert raw.epsilon[5] == ledger.epsilon(1e-5, Ball(raw.radii[5], space="raw"))


@pytest.mark.slow
def test_notes_are_read_with_care(ledger, facts) -> None:
    first, *_, last = [u for u in facts.utilities if u.name.startswith("accuracy")]
    entry = ledger.entries()[0]
    assert first.epsilon == entry.epsilon(ledgers.UNIT, 1e-5) < last.epsilon
    assert (first.value, first.low, first.non_private) == (0.71, 0.68, 0.89)
    assert facts.unread_notes == 1
    assert [a.refuted for a in facts.audits] == [False, True, False]
    assert facts.audits[2].claimed is None
    assert [len(d.certificates) for d in facts.deletions] == [1, 0]
    assert facts.deletions[0].certificates[0].facts["mode"] == "ogd"


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [{"name": 3, "value": 1.0}, {"name": "x", "value": True}, {"name": "x"},
     {"name": "x", "value": [1]}],
)  # fmt: skip
def test_a_strange_utility_is_left_out(body) -> None:
    ledger = Ledger({ledgers.UNIT: Budget(4.0, 1e-5)})
    entry = ledger.charge(ledgers.sums(9.0).declaration(), label="x")
    ledger.annotate(entry, "utility", body)
    ledger.annotate(entry, "audit", {"subject": "nothing else"})
    facts = gather(ledger)
    assert facts.utilities == () and facts.audits == () and facts.unread_notes == 2


def test_json_holds_infinities_as_words(ledger, facts) -> None:
    text = json.dumps(facts.to_json(), allow_nan=False)
    assert json.loads(text)["dataset"] == "digits"
    zero = Ledger({ledgers.UNIT: Budget(4.0, 1e-5), ledgers.NEAR: Budget(1.0, 1e-5)})
    zero.charge(ledgers.sums(9.0).declaration(), label="x")
    assert math.isinf(zero.epsilon(0.0, ledgers.UNIT))


def test_a_deletion_states_the_epsilon_of_the_entry_that_paid(tmp_path):
    """In the report's table, in its statement and on the command line: one number."""
    free = Cost((Fixed(Erasure(), Pure(0.0)),))
    deleted = Declaration("a deletion", free, sampler_distance=1e-20)
    place = tmp_path / "ledger.db"
    budgets = {Erasure(): Budget(1.0, 1e-5)}
    with Ledger.open(place, dataset="digits", budgets=budgets) as ledger:
        ledger.charge(
            ledgers.deletion(8.0),
            label="budget",
            idempotency_key=deletion_key("s", PAYS_PER_PERSON),
        )
        ledger.charge(deleted, label="deletion 1 of service s")
        ledger.charge(deleted, label="deletion 1 of service t")  # nobody paid for it
        facts = gather(ledger)
    paying, paid, unpaid = facts.deletions
    assert paid.epsilon == paying.epsilon > 0.0 and unpaid.epsilon is None
    number = paid.paid_by
    words = f"up to epsilon {printed_up(paid.epsilon)} at delta 1e-05 (budget 1), paid"
    words += f" by entry {number}: this deletion has no cost of its own."
    said = {entry.sequence: entry.statement for entry in facts.entries}
    assert number == paying.sequence and words in said[paid.sequence]
    assert "paid by entry" not in said[unpaid.sequence] + said[number]
    assert "an earlier entry of this ledger states" in said[unpaid.sequence]
    shown = commands.run("ledger", "entry", place, str(paid.sequence), "--json")
    assert json.loads(shown.stdout)["statement"] == said[paid.sequence]
    exported = json.loads(commands.run("ledger", "export", place).stdout)["entries"]
    assert {row["sequence"]: row["statement"] for row in exported} == said
