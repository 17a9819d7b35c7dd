"""A ledger that lacks rows which it acknowledged: who notices, and what is done.

An older copy of a file stands for a standby that was promoted too early;
`test_failover` has real ones.
"""

import contextlib
import json
import shutil
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import Budget, Ledger
from demur.core.accounting.events import GaussianEvent, Pure
from demur.errors import BudgetExceeded, LedgerDamaged, NotPriced
from demur.ledger import Filter, Receipt, parse_receipts, recovery
from demur.ledger.rules import write_down
from demur.ledger.rules.filters import shares
from demur.ledger.storage import header, receipts
from demur.ledger.storage.acknowledged import Acknowledged
from demur.ledger.storage.receipts import ReceiptFile
from tests.ledger.kit import BUDGET, UNIT, edit, says

COUNT = says(GaussianEvent(8.0))
SMALL = says(GaussianEvent(300.0), name="a small one")
TERMS = {"dataset": "people", "budgets": {UNIT: BUDGET}}


class Lost:
    """A ledger whose last rows are gone, and what its writers still have."""

    def __init__(self, folder, opened, **terms):
        self.path, aside = folder / "ledger.db", folder / "older.db"
        ledger = opened(str(self.path), **TERMS | terms)
        ledger.charge(COUNT, label="before")
        self.reserved = ledger.reserve(SMALL, count=9, label="nine")
        self.reserved.draw_many(2)
        shutil.copy(self.path, aside)
        with ledger.paid(COUNT, label="one", idempotency_key="k", digest="d") as paid:
            paid.released("artefact")
        ledger.charge(SMALL, label="two")
        self.reserved.draw_many(3)
        ledger.annotate(paid.entry, "utility", {"accuracy": 0.5})
        self.tip, self.status = ledger.tip(), ledger.status()
        self.entries = [entry.id for entry in ledger.entries()]
        self.receipts = list(ledger._acknowledged._recent)
        self.before = ledger
        self.totals = state(ledger).totals
        # In place: the same file, as `cp older.db ledger.db` leaves it.
        self.path.write_bytes(aside.read_bytes())
        self.copy = opened(str(self.path))

    def chain(self):
        """The receipts of lost rows."""
        return [r for r in self.receipts if r.sequence > 3]


def state(ledger):
    with ledger._store.read() as connection:
        return header.Header.read(connection).state


@pytest.fixture
def lost(tmp_path, opened):
    return Lost(tmp_path, opened)


@pytest.fixture(scope="module")
def lost_once(tmp_path_factory):
    """For tests that leave it as it is, and look that they did."""
    with contextlib.ExitStack() as ledgers:

        def opened(url, **terms):
            return ledgers.enter_context(Ledger.open(url, **terms))

        yield Lost(tmp_path_factory.mktemp("lost"), opened)


def test_whoever_wrote_a_lost_row_or_knows_its_tip_cannot_spend(lost):
    for spend in (
        lambda: lost.before.charge(COUNT, label="x"),
        lambda: lost.before.reserve(COUNT, count=2, label="x"),
        lambda: lost.reserved.draw(),
        lambda: Ledger.open(str(lost.path), tip=lost.tip),
    ):
        with pytest.raises(LedgerDamaged, match="acknowledged.*Nothing was spent"):
            spend()
    assert len(lost.copy.entries()) == 2


def test_the_twin_that_remembers_nothing_spends_twice(lost, monkeypatch):
    monkeypatch.setattr(Acknowledged, "check", lambda *_: None)
    lost.before.charge(COUNT, label="x")


def test_receipts_of_all_rows_bring_everything_back(lost, opened):
    done = lost.copy.recover(lost.tip, receipts=lost.receipts)
    assert done.complete and (done.entered, done.written_down) == (2, 0)
    assert lost.copy.recoveries() == (done,)
    assert [entry.id for entry in lost.copy.entries()] == lost.entries
    assert state(lost.copy).totals == lost.totals
    assert lost.copy.find("k").label == "one"
    assert lost.copy.commit_of(lost.copy.find("k")).artefact == "artefact"
    assert [note.facts for note in lost.copy.notes()] == [{"accuracy": 0.5}]
    checked = lost.copy.verify(lost.tip)
    assert checked.ok and len(checked.unknown) == 1
    # Runs that were handed out before are not handed out again.
    assert [draw.index for draw in lost.reserved.draw_many(2)] == [5, 6]
    lost.before.charge(COUNT, label="after")
    for receipt in lost.chain():  # any tip that was exported meanwhile
        opened(str(lost.path), tip=receipt.tip)
    with pytest.raises(ValueError, match="nothing up to that row is lost"):
        lost.copy.recover(lost.tip, receipts=lost.receipts)


@pytest.mark.parametrize("missing", [4, 5, 6, 7, 8])
def test_a_missing_receipt_is_noticed(lost, missing):
    """The last row is known by the tip alone; the others by what follows them."""
    chain = [r for r in lost.chain() if r.sequence != missing]
    assert len(chain) == 4
    tip = lost.copy.tip()
    with pytest.raises(ValueError, match="no receipt of row .*Nothing was written"):
        lost.copy.recover(lost.tip, receipts=chain)
    assert lost.copy.tip() == tip


FILTERS = {
    "gaussian": (Filter.gaussian(), BUDGET),
    "pure": (Filter.pure(), Budget(40.0, 1e-6)),
    "no delta": (Filter.pure(), Budget(40.0, 0.0)),
    "blocks": (Filter.gaussian(blocks=0.5), Budget(6.0, 1e-6)),
    "rdp": (Filter.rdp(8), Budget(6.0, 1e-6)),
    "orders": (Filter.rdp((4, 8, 32), blocks=0.25), Budget(9.0, 1e-6)),
}


def with_filter(name, folder, opened, monkeypatch):
    rule, budget = FILTERS[name]
    event = Pure(0.5) if name == "no delta" else GaussianEvent(8.0)
    monkeypatch.setattr(f"{__name__}.COUNT", says(event))
    monkeypatch.setattr(f"{__name__}.SMALL", says(event, name="another one"))
    return Lost(folder, opened, budgets={UNIT: budget}, filter=rule)


def all_is_gone(ledger):
    """Whether no event that a client could charge fits any more."""
    small = [Pure(1e-5), GaussianEvent(3e4)]
    for event in small:
        try:
            ledger.charge(says(event), label="x")
        except (BudgetExceeded, NotPriced):
            continue
        return False
    return True


@pytest.mark.parametrize("name", FILTERS)
def test_what_nobody_can_name_takes_all_that_is_left(
    name, tmp_path, opened, monkeypatch
):
    lost = with_filter(name, tmp_path, opened, monkeypatch)
    known = lost.chain()[-1:]
    done = lost.copy.recover(lost.tip, receipts=known, write_down="all")
    assert not done.complete and done.written_down
    assert all_is_gone(lost.copy)
    with pytest.raises(BudgetExceeded):
        lost.reserved.draw()
    checked = lost.copy.verify(lost.tip, full=True)
    assert checked.ok and any("written down" in text for text in checked.unknown)
    budget = FILTERS[name][1]
    (status,) = lost.copy.status()
    assert 0.999 * budget.epsilon < status.spent_epsilon <= budget.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", FILTERS)
def test_the_twin_that_writes_down_a_little_less_leaves_something(
    name, tmp_path, opened, monkeypatch
):
    exact = write_down._room
    monkeypatch.setattr(
        write_down,
        "_room",
        lambda *given: {k: v * Fraction(99, 100) for k, v in exact(*given).items()},
    )
    lost = with_filter(name, tmp_path, opened, monkeypatch)
    lost.copy.recover(lost.tip, write_down="all")
    assert not all_is_gone(lost.copy)


@pytest.mark.parametrize("name", FILTERS)
def test_or_as_much_as_somebody_vouches_for(name, tmp_path, opened, monkeypatch):
    lost = with_filter(name, tmp_path, opened, monkeypatch)
    budget = FILTERS[name][1]
    share = 2 if name in ("rdp", "orders") else 10
    part = Budget(budget.epsilon / share, budget.delta / 4)
    empty = opened(
        str(tmp_path / "other.db"),
        **TERMS | {"budgets": {UNIT: budget}, "filter": FILTERS[name][0]},
    )
    shutil.copy(tmp_path / "other.db", tmp_path / "empty.db")
    empty.charge(COUNT, label="x")
    fresh = opened(str(tmp_path / "empty.db"))
    fresh.recover(empty.tip(), write_down={UNIT: part})
    rule = fresh.terms.filter
    totals = json.loads(state(fresh).totals)[0]
    share = shares(rule, part)
    wanted = {
        **share.capacities,
        "block epsilon": share.block_epsilon,
        "block delta": share.block_delta,
    }
    for account, amount in wanted.items():
        assert Fraction(totals.get(account, "0")) >= amount
    assert fresh.verify().ok
    lost.copy.recover(lost.tip, write_down={UNIT: part})
    assert lost.copy.verify().ok and not all_is_gone(lost.copy)


@pytest.mark.parametrize(
    "wrong", ["all of it", {}, {UNIT: BUDGET, says: BUDGET}, 0.5, True]
)
def test_a_write_down_names_every_unit(lost, wrong):
    with pytest.raises(ValueError, match="write_down must be"):
        lost.copy.recover(lost.tip, write_down=wrong)


def forged(receipt, **changes):
    body = json.loads(receipt.body) | changes
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return Receipt(
        receipt.ledger_id,
        receipt.sequence,
        receipt.previous,
        text,
        receipt.declaration,
    )


def test_forged_receipts(lost):
    charge = lost.chain()[0]
    others = lost.chain()[1:]
    free = [{k: "0" for k in s} for s in json.loads(charge.body)["spent"]]
    for wrong, why in (
        (forged(charge, spent=free), "less was spent"),
        (forged(charge, spent=[]), "less was spent"),
        (forged(charge, declaration="0" * 64), "lacks its declaration"),
        (Receipt(**charge.to_json() | {"declaration": None}), "lacks its declaration"),
        (Receipt(**charge.to_json() | {"ledger_id": "0" * 32}), "another ledger"),
        (forged(charge, count=10**6), "less was spent"),
        (forged(charge, label="innocent"), "no receipt of row 4"),
    ):
        with pytest.raises(ValueError, match=why):
            lost.copy.recover(lost.tip, receipts=[wrong, *others])
    assert lost.copy.tip().sequence == 3


def test_receipts_of_a_signed_ledger_are_signed(tmp_path, opened):
    key = Ed25519PrivateKey.generate()
    lost = Lost(tmp_path, lambda *a, **more: opened(*a, signing_key=key, **more))
    unsigned = [Receipt(**r.to_json() | {"signature": None}) for r in lost.receipts]
    with pytest.raises(ValueError, match="not signed"):
        lost.copy.recover(lost.tip, receipts=unsigned)
    assert lost.copy.recover(lost.tip, receipts=lost.receipts).complete
    assert lost.copy.verify(lost.tip).ok


def test_both_sides_spent_and_the_budget_is_overdrawn(tmp_path, opened):
    """Somebody who knew nothing went on with the older copy: both are entered."""
    large = says(GaussianEvent(2.6))  # one fits, two do not
    path, aside = tmp_path / "ledger.db", tmp_path / "older.db"
    ledger = opened(str(path), **TERMS)
    shutil.copy(path, aside)
    entry = ledger.charge(large, label="first")
    copy = opened(str(aside))
    copy.charge(large, label="second", idempotency_key="k")
    copy.recover(ledger.tip(), receipts=[ledger.receipt(entry)])
    assert len(copy.entries()) == 2
    checked = copy.verify(ledger.tip())
    assert any("overdraw" in problem for problem in checked.problems)
    with pytest.raises(BudgetExceeded):
        copy.charge(SMALL, label="x")


def test_a_task_that_was_repeated_meanwhile_has_paid_twice(lost):
    again = lost.copy.charge(COUNT, label="one", idempotency_key="k", digest="d")
    done = lost.copy.recover(lost.tip, receipts=lost.receipts)
    assert done.complete and done.entered == 2
    labels = [entry.label for entry in lost.copy.entries()]
    assert labels == ["before", "nine", "one", "one", "two"]
    assert lost.copy.find("k").id == again.id
    assert lost.copy.verify(lost.tip).ok


@pytest.mark.parametrize(
    ("lie", "noticed"),
    [
        ({"tips": [f"9:{'0' * 64}"]}, "do not lead to the tip"),
        ({"rows": []}, "do not lead to the tip"),
        ({"rows": None, "after": None}, "was not written down for it"),
        ({"after": f"3:{'1' * 64}"}, "do not follow from a row"),
        (None, "was not entered again"),
    ],
)
def test_a_recovery_that_did_not_happen_is_found(lost, lie, noticed, monkeypatch):
    """A patched client writes that all is well."""
    real = recovery.Writing.append

    def append(self, body, *rest):
        changes = lie if body["kind"] == "recovered" else {}
        return real(self, body | (changes or {}), *rest)

    monkeypatch.setattr(recovery.Writing, "append", append)
    if lie is None:
        monkeypatch.setattr(recovery._Reentry, "enter", lambda *_: None)
    lost.copy.recover(lost.tip, receipts=lost.receipts)
    problems = lost.copy.verify(lost.tip).problems
    assert any(noticed in problem for problem in problems)


def test_a_receipt_is_of_one_charge(lost):
    entry = lost.copy.entry(1)
    receipt = lost.copy.receipt(entry)
    assert receipt.tip.sequence == 1
    assert json.loads(receipt.body)["id"] == entry.id
    assert Receipt.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"sequence": 1}, "x", {"body": "{}"}, 7],
)
def test_what_is_no_receipt(wrong):
    with pytest.raises(ValueError, match="not a receipt"):
        Receipt.from_json(wrong)


def test_a_file_of_receipts_survives_a_killed_client(tmp_path, lost):
    """A line that was cut off is left out, wherever it is."""
    file = ReceiptFile(tmp_path / "private" / "receipts.jsonl")
    ledger_id = lost.copy.id
    assert file.newest(ledger_id) is None
    first, second, *others = lost.receipts
    file.append([first])
    assert file.newest(ledger_id) == first.tip
    with file.path.open("ab") as stream:
        stream.write(b'{"ledger_id": "0')  # killed here
    file.append([second])
    file.append(others)
    assert file.newest(ledger_id) == others[-1].tip
    assert file.newest("another") is None
    assert parse_receipts(file.path.read_bytes()) == [first, second, *others]
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_large_file_of_receipts_makes_room(tmp_path, lost, monkeypatch):
    monkeypatch.setattr(receipts, "_LARGEST", 3000)
    file = ReceiptFile(tmp_path / "private" / "receipts.jsonl")
    for receipt in lost.receipts:
        file.append([receipt])
        assert file.newest(lost.copy.id) == receipt.tip
    both = list((tmp_path / "private").iterdir())
    assert len(both) == 2 and all(path.stat().st_size < 6000 for path in both)


def test_a_vouched_budget_in_which_nothing_fits_is_refused(
    tmp_path, opened, monkeypatch
):
    lost = with_filter("rdp", tmp_path, opened, monkeypatch)
    with pytest.raises(ValueError, match="can spend nothing"):
        lost.copy.recover(lost.tip, write_down={UNIT: Budget(1e-3, 1e-9)})


def test_a_stranger_who_writes_as_many_rows_hides_nothing(lost):
    """SQLite's counter is the same then, and its cache would pass for the file."""
    stranger = lost.copy
    while stranger.tip().sequence < lost.tip.sequence:
        stranger.charge(SMALL, label="a stranger")
    for _ in range(3):
        with pytest.raises(LedgerDamaged, match="acknowledged"):
            lost.before.charge(SMALL, label="x")
        stranger.charge(SMALL, label="a stranger")
    assert {e.label for e in stranger.entries()} == {"before", "nine", "a stranger"}
    assert stranger.verify().ok


def test_whoever_opened_with_a_tip_remembers_it(tmp_path, opened):
    path, older = tmp_path / "ledger.db", tmp_path / "older.db"
    ledger = opened(str(path), **TERMS)
    shutil.copy(path, older)
    ledger.charge(COUNT, label="x")
    told = opened(str(path), tip=ledger.tip())
    path.write_bytes(older.read_bytes())
    with pytest.raises(LedgerDamaged, match="acknowledged"):
        told.charge(COUNT, label="y")


def test_a_recovery_that_is_lost_itself_is_noticed_and_recovered(lost, opened):
    """A second failover, which loses the first recovery."""
    older = lost.path.read_bytes()
    lost.copy.recover(lost.tip, receipts=lost.receipts)
    lost.before.reserve(SMALL, count=2, label="more")
    second = lost.copy.tip()
    receipts = lost.receipts + list(lost.copy._acknowledged._recent)
    receipts += list(lost.before._acknowledged._recent)[-1:]
    lost.path.write_bytes(older)
    again = opened(str(lost.path))
    for ledger in (lost.before, lost.copy):
        with pytest.raises(LedgerDamaged, match="acknowledged"):
            ledger.charge(SMALL, label="x")
    assert again.recover(second, receipts=receipts).complete
    assert sorted(e.label for e in again.entries()) == sorted(
        ["before", "nine", "one", "two", "more"]
    )
    for tip in (lost.tip, second):
        assert again.verify(tip).ok
    lost.before.charge(SMALL, label="x")


def test_runs_that_were_handed_out_are_not_handed_out_after_two_recoveries(
    tmp_path, opened
):
    """First a draw comes without its charge, then the charge."""
    path, older = tmp_path / "ledger.db", tmp_path / "older.db"
    ledger = opened(str(path), **TERMS)
    shutil.copy(path, older)
    reserved = ledger.reserve(SMALL, count=9, label="nine")
    reserved.draw_many(4)
    charge, draw = ledger._acknowledged._recent
    copy = opened(str(older))
    part = {UNIT: Budget(0.1, 1e-8)}
    copy.recover(draw.tip, receipts=[draw], write_down=part)
    assert copy.recover(charge.tip, receipts=[charge]).complete
    with pytest.raises(BudgetExceeded):
        copy._draw_many(copy.entries()[-1], 1)
    assert copy.verify(draw.tip).ok


def test_others_are_covered_by_one_write_down(lost):
    first, *_, last = lost.chain()
    with pytest.raises(ValueError, match="earlier recovery"):
        lost.copy.recover(last.tip, write_down="covered")
    lost.copy.recover(last.tip, write_down={UNIT: Budget(0.5, 1e-8)})
    spent = lost.copy.status()
    with pytest.raises(ValueError, match="receipts are missing"):
        lost.copy.recover(first.tip)
    lost.copy.recover(first.tip, write_down="covered")
    assert lost.copy.status() == spent and lost.copy.verify(first.tip).ok


def test_two_receipts_of_one_entry_are_refused(lost):
    charge, *others = lost.chain()
    with pytest.raises(ValueError, match="another receipt"):
        lost.copy.recover(
            lost.tip, receipts=[forged(charge, label="innocent"), charge, *others]
        )


CHARGE = {
    "label": [None, 5, ""], "noise": ["junk", None], "actor": [None], "time": [3],
    "count": [0, -3, 1.0, True, 2**50], "unsafe": [5, [1]], "id": [None, "", "x" * 99],
    "kind": ["other", None], "idempotency_key": [[1]], "block_delta": ["x"],
    "spent": [[{"mu squared": "9" * 4000}], "x", [None, None]], "profiles": [3],
}  # fmt: skip
DRAW = {"index": [-1, "0", 2.5, None], "count": [0, 2.5, 2**70], "token": [None]}


@pytest.mark.parametrize(
    ("number", "name", "value"),
    [(0, name, value) for name, values in CHARGE.items() for value in values]
    + [(3, name, value) for name, values in DRAW.items() for value in values],
)
def test_absurd_receipts_are_refused(lost_once, number, name, value):
    """Off the path they would be entered with a write-down."""
    lost = lost_once
    wrong = forged(lost.chain()[number], **{name: value})
    tip = lost.copy.tip()
    with pytest.raises(ValueError, match="receipt of row.*Nothing was written"):
        lost.copy.recover(lost.tip, receipts=[wrong], write_down="all")
    assert lost.copy.tip() == tip


def test_a_draw_beyond_what_was_paid_is_entered_up_to_it(lost):
    draws = forged(lost.chain()[3], index=5, count=100)
    lost.copy.recover(lost.tip, receipts=[draws], write_down="all")
    assert lost.copy.verify().ok


def test_absurd_lines_of_a_file_are_left_out():
    deep = b"[" * 100_000 + b"]" * 100_000
    lines = [b"true", b'{"sequence": true}', deep, b"\xff", b"{}"]
    assert parse_receipts(b"\n".join(lines)) == []


def test_receipts_out_of_order_and_of_two_ledgers(tmp_path, lost, monkeypatch):
    monkeypatch.setattr(receipts, "_TAIL", 100)
    file = ReceiptFile(tmp_path / "private" / "receipts.jsonl")
    others = [Receipt(**r.to_json() | {"ledger_id": "0" * 32}) for r in lost.receipts]
    file.append([*reversed(lost.receipts), *others])
    assert file.newest(lost.copy.id) == lost.tip
    file.mark_recovered(lost.copy.id)
    assert file.newest(lost.copy.id) is None
    assert file.newest("0" * 32) == others[-1].tip
    file.append(lost.receipts[:2])
    assert file.newest(lost.copy.id) == lost.receipts[1].tip


def test_a_search_for_a_lost_charge_is_refused_as_well(lost):
    for ask in (
        lambda: lost.before.find("k", settled=True),
        lambda: lost.before.resumed("k"),
    ):
        with pytest.raises(LedgerDamaged, match="acknowledged"):
            ask()


def test_an_edited_recovery_is_found_like_any_row(lost):
    lost.copy.recover(lost.tip, receipts=lost.receipts)
    last = lost.copy.tip().sequence
    edit(
        str(lost.path),
        "UPDATE demur_rows SET body = replace(body, '\"entered\":2', '\"entered\":1')"
        f" WHERE sequence = {last}",
    )
    assert not lost.copy.verify().ok
