"""Results: what they refuse, say, and survive."""

import json
import math

import pytest

from demur import AddOrRemoveOne
from demur.audit import AuditResult, Level, audits_of
from demur.audit.notes import check_entry, note_on_entry
from demur.ledger import Budget, Ledger
from tests.audit.twins import gaussian

FIELDS = {
    "subject": "a mean",
    "level": "black box",
    "method": "GDP mu test",
    "unit": "AddOrRemoveOne()",
    "claimed": 1.0,
    "delta": 1e-6,
    "lower_bound": 0.4,
    "runs": 1000,
    "alpha": 1e-6,
    "refuted": False,
    "evidence": "The two sides lie close.",
}


def make(**changes):
    return AuditResult(**(FIELDS | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"refuted": True, "lower_bound": 1.5},
        {"refuted": True, "lower_bound": math.inf},
        {"claimed": None, "lower_bound": None, "alpha": 0.0, "level": Level.REPLAY},
        {"claimed": math.inf},
    ],
)
def test_results_survive_json(changes):
    result = make(**changes)
    text = json.dumps(result.to_json(), allow_nan=False)
    assert AuditResult.from_json(json.loads(text)) == result


def test_no_statement_says_proved():
    for result in (
        make(),
        make(refuted=True, lower_bound=2.0),
        make(refuted=True),
        make(claimed=None, lower_bound=None),
        make(claimed=None, lower_bound=None, refuted=True),
    ):
        statement = str(result)
        assert "prove" not in statement
        head = "refuted: " if result.refuted else "not refuted at n = 1000: "
        assert statement.startswith(head)
        assert (
            "1000" in statement
            and "AddOrRemoveOne()" in statement
            and "1e-06" in statement
        )


def test_a_printed_bound_is_never_above_what_was_shown():
    for bound in (0.99996, 0.123456789, 3.14159265):
        statement = make(lower_bound=bound, claimed=9.0).statement()
        printed = float(statement.split("at least ")[1].split(". ")[0])
        assert bound * 0.998 < printed <= bound


def test_a_bound_above_the_claim_is_a_refutation():
    with pytest.raises(ValueError, match="above the claim"):
        make(lower_bound=1.0000001)
    assert make(lower_bound=1.0).refuted is False


@pytest.mark.parametrize(
    "changes",
    [
        {"level": "guess"},
        {"runs": 0},
        {"runs": 1.5},
        {"alpha": 2.0},
        {"alpha": math.nan},
        {"delta": -1.0},
        {"claimed": math.nan},
        {"claimed": -1.0},
        {"lower_bound": math.nan},
        {"refuted": 1},
        {"subject": ""},
        {"evidence": 3},
    ],
)
def test_nonsense_is_refused(changes):
    with pytest.raises((ValueError, TypeError)):
        make(**changes)
    data = make().to_json() | changes
    with pytest.raises(ValueError):
        AuditResult.from_json(data)


@pytest.mark.parametrize("data", [None, [], {}, {"subject": "x"}, "text"])
def test_other_data_is_no_result(data):
    with pytest.raises(ValueError, match="not an audit result"):
        AuditResult.from_json(data)


def test_results_are_noted_in_the_chain_with_their_entry():
    unit = AddOrRemoveOne()
    with Ledger(Budget(epsilon=9.0, delta=1e-5), unit=unit) as ledger:
        entries = [
            gaussian().release([0.0] * 3, ledger=ledger, label=f"release {i}").entry
            for i in (0, 1)
        ]
        spent = ledger.epsilon()
        results = [make(), make(refuted=True, lower_bound=math.inf)]
        for result, entry in zip(results, entries, strict=True):
            assert note_on_entry(result, ledger, entry) is result
        assert audits_of(ledger) == tuple(results)
        assert audits_of(ledger, entries[1]) == (results[1],)
        assert ledger.verify().ok and ledger.epsilon() == spent
        with Ledger(Budget(epsilon=9.0, delta=1e-5), unit=unit) as other:
            with pytest.raises(ValueError, match="not in this ledger"):
                check_entry(other, entries[0])
        with pytest.raises(TypeError, match="belong together"):
            check_entry(ledger, None)
        with pytest.raises(TypeError, match="belong together"):
            check_entry(None, entries[0])


def test_notes_of_earlier_versions_are_read_without_power():
    result = AuditResult(
        "x", Level.NOISE, "a test", "the noise", None, 0.0, None, 10, 1e-6, False, "y"
    )
    old = {k: v for k, v in result.to_json().items() if k not in ("factor", "p_value")}
    assert AuditResult.from_json(old) == result
    with pytest.raises(ValueError, match="not an audit result"):
        AuditResult.from_json({k: v for k, v in old.items() if k != "alpha"})


def test_power_is_a_factor_and_says_where_there_is_none():
    def of(claimed, shown, **more):
        return AuditResult(
            "x",
            Level.BLACK_BOX,
            "a test",
            "the pair",
            claimed,
            1e-6,
            shown,
            10,
            1e-6,
            False,
            "y",
            **more,
        )

    assert of(2.0, 1.6).power == pytest.approx(1.25)
    assert "by a factor 1.25" in of(2.0, 1.6).statement()
    assert of(2.0, 0.0).power == math.inf
    assert "no power at this size" in of(2.0, 0.0).statement()
    assert of(None, None).power is None
    assert of(None, None, factor=math.inf).to_json()["factor"] == "inf"
    back = AuditResult.from_json(of(None, None, factor=math.inf).to_json())
    assert back.power == math.inf
