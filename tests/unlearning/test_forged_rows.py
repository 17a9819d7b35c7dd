"""Forged rows: an outcome undone, drops, restores, prices and wrong types.

Whoever forges them holds journal or evidence, and often the ledger as it was and the
key of the signer. Each attack names the rule that finds it.
"""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core.errors import LedgerDamaged
from demur.durable import chain
from demur.durable.chain import canonical, public_hex
from demur.ledger import Payment
from demur.unlearning import ServiceDamaged, verify_certificate, verify_evidence
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.service import certificate_verification
from demur.unlearning.service.deletion import Deletions
from demur.unlearning.service.verification import (
    LedgersBefore,
    payment_problems,
    read_history,
)
from tests.unlearning import service_kit
from tests.unlearning.evidence_kit import rows_of, without_ledgers, write_rows
from tests.unlearning.service_kit import fill, open_service, record, sql

pytestmark = pytest.mark.slow
KEY = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
LONG_AGO = "1999-01-01T00:00:00+00:00"
BASES = {
    "persons": {"signing_key": KEY},
    "joint": {"scope": "joint", "capacity": 40, "signing_key": KEY},
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Evidence by name: of deletions, a restore and a retrain, which comes last."""
    folder, files = tmp_path_factory.mktemp("service"), {}
    for name, terms in BASES.items():
        with open_service(folder / f"{name}.db", **terms) as service:
            for number in range(11):
                service.insert(
                    *record(number), record_id=number, subject_id=f"p{number // 3}"
                )
            service.delete(0)
            service.delete_many([8, 9, 10])  # one of one person, two of another
            if name == "joint":
                service.delete_many([3, 4])
                service.delete(1)
            else:
                fill(service, [20])
                taken = service.snapshot()
                fill(service, [30, 31])
                service.restore(taken)
                stay = [(n, *record(n)) for n in range(2, 8)]
                service.retrain([*stay, (40, *record(40), "new")])
            files[name] = folder / f"{name}.evidence"
            service.evidence(files[name])
        found = verify_evidence(files[name], signer=public_hex(KEY))
        assert found.ok, str(found)
    return files


def at(rows, op):
    return [number for number, body in enumerate(rows) if body["op"] == op]


def abandoned(row):
    told = row.get("certificate", row)
    named = {name: told[name] for name in ("operation", "entry", "ledger", "time")}
    clock = {"epoch": row.get("before", row["epoch"]), "tick": row["tick"]}
    return clock | {"run": row["run"], "op": "abandon"} | named


def dropped(**values):
    def change(rows):
        rows[at(rows, "drop")[2]]["certificate"] |= values
        return rows

    return change


def certified(**values):
    def change(rows):
        rows[at(rows, "delete")[-1]]["certificate"] |= values
        return rows

    return change


def changed(op, **values):
    """The first row of a kind, with other values; functions get the rows."""

    def change(rows):
        row = rows[at(rows, op)[0]]
        row |= {n: v(rows) if callable(v) else v for n, v in values.items()}
        return rows

    return change


def another_is_dropped(rows):
    last, other = at(rows, "drop")[-1], rows[at(rows, "insert")[5]]
    named = {name: other[name] for name in ("record", "subject", "generation")}
    rows[last]["certificate"] |= named
    return rows


def a_new_record_is_dropped(rows):
    new, last = rows[at(rows, "insert")[-1]], rows[at(rows, "drop")[-1]]
    named = {name: new[name] for name in ("record", "subject", "generation")}
    last["certificate"] |= named | {"requests": 0, "epsilon_so_far": 0.0}
    return rows


def until_restore(rows):
    """Without the retrain, so that the restore's rows are the last."""
    return rows[: at(rows, "retrain")[0] - 1]


def restored(**values):
    return lambda rows: changed("restore", **values)(until_restore(rows))


def nothing_dropped(rows):
    rows = restored(drops=0)(rows)
    return rows[: at(rows, "restore")[0] + 1]


def an_older_record_is_dropped(rows):
    rows = until_restore(rows)
    older = rows[at(rows, "insert")[5]]
    told = rows[at(rows, "drop")[0]]["certificate"]
    told |= {name: older[name] for name in ("record", "subject", "generation")}
    return rows


def without_drops(rows):
    """The drops of the restore; a retrain follows."""
    return [
        row for number, row in enumerate(rows) if number not in at(rows, "drop")[:2]
    ]


def least_noise(rows, told={}):  # noqa: B006
    """Each certificate has the noise that the whole budget buys."""
    for number in at(rows, "delete"):
        certificate = rows[number]["certificate"]
        shift = certificate["shift_bound"] * (1 + 1e-9)
        certificate |= {"sigma": told["multiplier"] * shift, "epsilon": 1.0}
        certificate["epsilon_so_far"] = told.get(
            "so_far", certificate["epsilon_so_far"]
        )
    return rows


def used(value, so_far=None):
    def change(rows):
        for number in at(rows, "intent"):
            rows[number]["used"] = value
        for number in at(rows, "delete"):
            certificate = rows[number]["certificate"]
            certificate["epsilon_so_far"] = so_far or certificate["epsilon_so_far"]
        return rows

    return change


def learned_as_none(rows):
    """A live record once more, as generation 0: it would be live no longer."""
    return [*rows, rows[at(rows, "insert")[5]] | {"generation": 0, "tick": 11}]


def added(op, *names, **values):
    """One more row of a kind, after the last, with these fields of that one."""

    def change(rows):
        last = {n: rows[-1][n] for n in ("epoch", "tick", "run", *names)}
        return [*rows, {"op": op, **last, **values}]

    return change


def a_publication(rows):
    """Of a service whose model answers itself."""
    intent = dict(rows[at(rows, "intent")[0]]) | {n: rows[-1][n] for n in ("tick",)}
    intent |= {"operation": "f" * 32, "records": [], "requests": {}, "used": 0}
    intent |= {"used_by": {}, "kind": "publication"}
    rows = [*rows, intent]
    return added("publish", operation="f" * 32, entry="0" * 32, ledger="f" * 32,
                 time="", state="0" * 64, seal=1)(rows)  # fmt: skip


def without_its_state(rows):
    for name in ("state", "seal"):
        del rows[-1][name]
    return rows


def clock(op, **more):
    def change(rows):
        row = rows[at(rows, op)[-1]]
        row |= {name: row[name] + n for name, n in more.items()}
        return rows

    return change


# The base, the change, the rule that finds it; whether that takes the ledger.
FORGED = {
    "the last outcome cut off": ("joint", lambda r: r[:-1], "calls abandoned", True),
    "the last outcome abandoned": (
        "joint",
        lambda r: [*r[:-1], abandoned(r[-1])],
        "calls abandoned",
        True,
    ),
    "a retrain abandoned": (
        "persons",
        lambda r: [*until_restore(r), r[at(r, "retrain")[0] - 1],
                   abandoned(r[at(r, "retrain")[0]])],
        "calls abandoned",
        True,
    ),
    "another record dropped": ("persons", another_is_dropped, "has another hash", True),
    "a drop at another time": ("persons", dropped(time=LONG_AGO), "another hash", True),
    "a new record dropped": (
        "persons", a_new_record_is_dropped, "drops a record that", False,
    ),
    "requests of a drop": ("persons", dropped(requests=0), "its requests", False),
    "a drop's epsilon": ("persons", dropped(epsilon_so_far=0.0), "so far is", False),
    "tick of a drop": ("persons", dropped(tick=10**6), "its tick", False),
    "epoch of a drop": ("persons", dropped(epoch=77), "its epoch", False),
    "records of a drop": ("persons", dropped(records=500), "its records", False),
    "noise of a drop": ("persons", dropped(sigma=9.0), "its sigma", False),
    "shift of a drop": ("persons", dropped(shift_bound=9.0), "its shift_bound", False),
    "operation of a drop": ("persons", dropped(operation="x"), "its operation", False),
    "ledger of a drop": ("persons", dropped(ledger="f" * 32), "its ledger", False),
    "digest of a drop": (
        "persons", dropped(state_digest="f" * 64), "its state_digest", False,
    ),
    "a million records": (
        "persons", changed("retrain", records=10**6), "its records are not", False,
    ),
    "fewer new ones": ("persons", changed("retrain", new=0, records=6), "rows of a",
                       False),
    "more new ones": ("persons", changed("retrain", new=2, records=8), "rows of a",
                      False),
    "a retrain of another epoch": (
        "persons", changed("retrain", before=7), "another epoch", False,
    ),
    "back before a deletion": (
        "persons", restored(to=lambda r: at(r, "delete")[0] - 1), "goes back", False,
    ),
    "back to a negative row": ("persons", restored(to=-3), "cannot be read", False),
    "a restore drops nothing": ("persons", nothing_dropped, "does not drop", False),
    "it drops an older record": (
        "persons", an_older_record_is_dropped, "drops a record that", False,
    ),
    "half a request": (
        "joint", lambda r: r[: at(r, "delete")[1] + 1], "a request at the end", False,
    ),
    "a request abandoned half way": (
        "joint",
        lambda r: [*r[: at(r, "delete")[1] + 1], abandoned(r[at(r, "delete")[1]])],
        "is for a deletion",
        False,
    ),
    "drops removed": ("persons", without_drops, "rows of a restore before", False),
    "nothing used": ("joint", used(0), "another part of the capacity", False),
    "nothing used, nothing so far": ("joint", used(0, 1e-9), "than its own", False),
    "more used": ("joint", used(100), "exceed the capacity", False),
    "less than nothing used": ("joint", used(-1), "cannot be read", False),
    "half used": ("joint", used(0.5), "cannot be read", False),
    "learned as none": ("joint", learned_as_none, "could not be", False),
    "renewed": (
        "joint", added("renew", "state", "seal", time=""), "nothing to renew", False,
    ),
    "a renewal of nothing": ("joint", added("renew"), "it lacks seal", False),
    "a block with a state": (
        "joint", added("block", "state", "seal", record="f" * 64, time=""),
        "does not have: seal", False,
    ),
    "a number blocked": (
        "joint", added("block", record=7, time=""), "its record is none", False,
    ),
    "a publication": ("joint", a_publication, "none that has a price", False),
    "no state after it": ("joint", without_its_state, "names its state", False),
    "no state after a retrain": ("persons", without_its_state, "names its", False),
    "a tick later": ("joint", clock("insert", tick=1), "its clock", False),
    "the seal of before": ("joint", clock("delete", seal=-1), "another key", False),
    "a seal of its own": ("persons", clock("drop", seal=1), "another key", False),
    "true for one": ("joint", changed("insert", generation=True), "its generation is",
                     False),
    "a word for a time": (
        "persons", changed("intent", time="yesterday"), "its time is none", False,
    ),
    "a deletion at no time": (
        "joint", certified(time="soon"), "its time is none that", False,
    ),
    "an intent of another kind": (
        "joint", changed("intent", kind="other"), "its kind is none", False,
    ),
    "no deadline": (
        "joint", changed("intent", deadline="never"), "its deadline", False,
    ),
    "a name for a pseudonym": (
        "joint", added("block", record="Ana", time=""), "its record is none", False,
    ),
    "a retrain that was not paid": (
        "persons", changed("retrain", entry=None), "its entry is none", False,
    ),
    "a state of its own": (
        "persons", dropped(state_digest="f" * 64), "names a state that", False,
    ),
    "an epoch later": ("joint", clock("intent", epoch=1), "its clock", False),
    "an epoch of a drop's row": ("persons", clock("drop", epoch=-1), "clock", False),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_row_is_found_and_by_which_rule(honest, what, tmp_path):
    base, change, rule, by_ledger = FORGED[what]
    file = shutil.copy(honest[base], tmp_path / "evidence.db")
    write_rows(file, change(rows_of(file)), KEY)
    if not by_ledger:
        without_ledgers(file)
    found = verify_evidence(file, signer=public_hex(KEY))
    assert any(rule in problem for problem in found.problems), str(found)
    if by_ledger:  # It takes the ledger: by itself the journal is whole.
        without_ledgers(file)
        assert verify_evidence(file, signer=public_hex(KEY)).ok


@pytest.mark.parametrize("so_far", [None, 1.0])
def test_noise_for_one_deletion_where_forty_share_the_budget(honest, so_far, tmp_path):
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    ((terms,),) = sql(file, "SELECT terms FROM demur_unlearning_evidence")
    prices = DeletionPrices(ServiceTerms.from_text(terms))
    low, high = 0.1, 1000.0
    for _ in range(60):  # the least noise that costs epsilon by itself
        middle = (low + high) / 2
        low, high = (middle, high) if prices.epsilon(middle) > 1.0 else (low, middle)
    told = {"multiplier": high} | ({} if so_far is None else {"so_far": so_far})
    write_rows(file, least_noise(rows_of(file), told), KEY)
    without_ledgers(file)
    found = str(verify_evidence(file))
    assert "too small for one of 40 that share" in found
    assert ("less than its own epsilon" in found) is (so_far is None)


TEXTS = {
    "twice": lambda body: '{"op":"drop",' + body[1:],
    "spaces": lambda body: body + " ",
    "no number": lambda body: body[:-1] + ',"x":NaN}',
    "more": lambda body: body[:-1] + ',"x":1}',
    "deep": lambda body: body[:-1] + ',"x":' + "[" * 900 + "]" * 900 + "}",
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_row_is_one_text_to_every_reader(honest, what, tmp_path):
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    rows = rows_of(file)
    number = at(rows, "insert")[-1]
    rows[number] = TEXTS[what](canonical(rows[number]))
    write_rows(file, rows, KEY)
    without_ledgers(file)
    assert f"PROBLEM: row {number + 1}: it" in str(verify_evidence(file))


def test_terms_are_one_text_to_every_reader(honest, tmp_path):
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    sql(file, "UPDATE demur_unlearning_evidence SET terms ="
        """ '{"epsilon":0.001,' || substr(terms, 2)""")  # fmt: skip
    write_rows(file, rows_of(file), KEY)
    with pytest.raises(ServiceDamaged, match="not terms that a deletion service"):
        verify_evidence(file)


@pytest.mark.parametrize("who", ["nobody's", "another's"])
def test_the_ledger_in_evidence_is_the_services(honest, who, tmp_path):
    """Deletions are cut off, and the ledger that has them is another service's."""
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    rows = rows_of(file)
    write_rows(file, rows[: at(rows, "intent")[0]], KEY)
    if who == "another's":
        without_ledgers(file)
        other = "SELECT name, body FROM demur_unlearning_evidence_ledgers"
        for row in sql(honest["persons"], other):
            table = "demur_unlearning_evidence_ledgers"
            sql(file, f"INSERT INTO {table} VALUES (?, ?)", *row)
    else:
        sql(file, "UPDATE demur_unlearning_evidence SET service_id = ?", "0" * 32)
    found = verify_evidence(file, signer=public_hex(KEY))
    assert "a ledger in it is another service's" in str(found)


def without_its_end(file):
    """The rows from before the first deletion, no ledger; where it ended before."""
    ((number, last),) = sql(
        file, "SELECT sequence, hash FROM demur_unlearning_evidence"
    )
    rows = rows_of(file)
    write_rows(file, rows[: at(rows, "intent")[0]], KEY)
    without_ledgers(file)
    return number, last


def forged_schema(file, *statements):
    """Change what the file says of itself, which SQLite lets its owner do."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement, *values in statements:
            connection.execute(statement, values)
        connection.commit()


@pytest.mark.parametrize("made", ["view", "trigger", "part of another kind"])
def test_a_file_that_answers_as_it_likes_is_refused(honest, made, tmp_path):
    """A view can show a row to one look and not to the next: here, that of a tip."""
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    journal = "demur_unlearning_journal"
    number, last = without_its_end(file)
    if made == "view":
        sql(file, f"ALTER TABLE {journal} RENAME TO cut")
        sql(file, f"CREATE VIEW {journal} AS SELECT * FROM cut UNION ALL SELECT"
            f" {number}, 'insert', '{{}}', '{last}' WHERE random() % 2")  # fmt: skip
    elif made == "trigger":
        sql(file, f"CREATE TRIGGER t AFTER INSERT ON {journal} BEGIN SELECT 1; END")
    else:
        sql(file, "CREATE VIRTUAL TABLE t USING dbstat")
    with pytest.raises(LedgerDamaged, match=f"has a {made}, which"):
        verify_evidence(file, tip=f"{number}:{last}")


@pytest.mark.parametrize("looks", [True, False])
def test_an_index_with_other_rows_than_its_table_is_found(
    honest, looks, tmp_path, monkeypatch
):
    """It has the row of a tip, and the table has not; the twin does not compare."""
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    journal = "demur_unlearning_journal"
    sql(file, f"CREATE TABLE other AS SELECT * FROM {journal}")  # without its own index
    sql(file, f"DROP TABLE {journal}")
    sql(file, f"ALTER TABLE other RENAME TO {journal}")
    sql(file, f"CREATE INDEX forged ON {journal} (sequence, hash)")
    (index,) = sql(file, "SELECT * FROM sqlite_schema WHERE name = 'forged'")
    forged_schema(file, ["DELETE FROM sqlite_schema WHERE name = 'forged'"])
    number, last = without_its_end(file)  # and the index is not told
    forged_schema(file, ["INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", *index])
    sql(file, "ANALYZE")  # The walk is to read the table, and the look the index.
    sql(file, "UPDATE sqlite_stat1 SET stat = '9 1 1 unordered' WHERE idx = 'forged'")
    if not looks:
        monkeypatch.setattr(certificate_verification, "file_problems", lambda _: [])
    found = verify_evidence(file, tip=f"{number}:{last}", signer=public_hex(KEY))
    assert found.ok is not looks, str(found)
    assert not looks or "answers as its maker likes" in str(found)


def test_so_is_an_index_in_a_ledger(tmp_path):
    path = tmp_path / "model.db"
    with open_service(path) as service:
        fill(service, range(4))
        service.delete(0)
    ledger = tmp_path / "model.db.ledger-1"
    (table,) = sql(ledger, "SELECT tbl_name FROM sqlite_schema WHERE name LIKE"
                   " 'demur%journal' OR name LIKE 'demur%rows'")[0]  # fmt: skip
    assert verify_evidence(path).ok
    sql(ledger, "CREATE TABLE blank (hash)")
    sql(ledger, "CREATE INDEX forged ON blank (hash)")  # It stays empty.
    forged_schema(
        ledger,
        ["UPDATE sqlite_schema SET tbl_name = ?, sql = ? WHERE name = 'forged'",
         table, f"CREATE INDEX forged ON {table} (hash)"],
    )  # fmt: skip
    found = str(verify_evidence(path))
    assert "the ledger: the file is damaged, or answers as its maker likes" in found


WRONG = {
    "sigma": "x", "requests": None, "operation": [], "ledger": None, "library": 7,
    "theorem": {}, "tick": None, "epsilon": True, "not_covered": "none",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_said_to_be_unreadable(honest, name, tmp_path):
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    rows = rows_of(file)
    rows[-1]["certificate"][name] = WRONG[name]
    write_rows(file, rows, KEY)
    found = verify_evidence(file)
    assert f"row {len(rows)}: its text cannot be read" in str(found)


@pytest.mark.parametrize("forged", ["intent", "abandon", "another epoch"])
def test_an_older_copy_with_forged_rows_is_not_opened(tmp_path, forged):
    """A backup from before a deletion, the ledger as it is, and rows to explain it.

    Where each epoch has a ledger, the forged row names another one's.
    """
    path, folder = tmp_path / "service" / "model.db", tmp_path / "backup"
    path.parent.mkdir()
    joint, epoch = {"scope": "joint", "capacity": 40}, 1
    with open_service(path, **(joint if forged == "another epoch" else {})) as service:
        fill(service, range(4))
        if forged == "another epoch":
            service.retrain([(number, *record(number)) for number in range(4)])
            epoch = 2
        service.backup(folder, keys=True)
        told = service.delete(0).content()
    shutil.copy(folder / "model.db", path)
    shutil.rmtree(path.with_name("model.db.keys"))
    shutil.copytree(folder / "model.db.keys", path.with_name("model.db.keys"))
    row = {"epoch": epoch, "tick": 4, "run": "0" * 16}
    subject, named = told["subject"], {n: told[n] for n in ("operation", "time")}
    forgery = [
        row | named | {"op": "intent", "records": [[told["record"], 1]],
                       "requests": {subject: 1}, "used": 1, "used_by": {subject: 1},
                       "deadline": ""},
        row | named | {"op": "abandon", "entry": told["entry"], "epoch": 1,
                       "ledger": told["ledger"]},
    ]  # fmt: skip
    ((number, last),) = sql(path, "SELECT sequence, hash FROM demur_unlearning")
    for body in forgery[: 1 if forged == "intent" else 2]:
        text, number = canonical(body), number + 1
        last = chain.link(last, text)
        values = (number, body["op"], text, last)
        sql(path, "INSERT INTO demur_unlearning_journal VALUES (?, ?, ?, ?)", *values)
    end = "UPDATE demur_unlearning SET sequence = ?, hash = ?, used = used + 1"
    sql(path, end, number, last)
    sql(path, "INSERT INTO demur_unlearning_subjects VALUES (?, 1)", subject)
    with pytest.raises(ServiceDamaged, match="has the outcome of the operation"):
        open_service(path)
    assert sql(path, "SELECT max(sequence) FROM demur_unlearning_journal") == [
        (number,)
    ], "nothing was written"
    assert "calls abandoned or under way" in str(verify_evidence(path))


def test_an_operation_under_way_is_no_problem_beside_a_running_service(
    tmp_path, monkeypatch
):
    """Its outcome is bound after the journal was read; the twin looks too late."""
    seen = []

    class Watched(Deletions):
        def commit(self, *given):
            database = service._state.database
            with database.read() as connection:
                before = LedgersBefore.the_journal([service.ledger], service._state.id)
                seen.append((before, read_history(connection)))
            return super().commit(*given)

    monkeypatch.setattr(service_kit.UnlearningService, "_deletions", Watched)
    with open_service(tmp_path / "model.db") as service:
        fill(service, range(4))
        service.delete(0)
        ((before, history),) = seen
        assert history.open_intent is not None
        assert payment_problems(history, before, None)[0] == []
        late = LedgersBefore.the_journal([service.ledger], service._state.id)
        assert "under way" in str(payment_problems(history, late, None))


def test_a_retrain_is_bound_to_its_last_row_also_after_a_crash(tmp_path):
    path = tmp_path / "model.db"
    with open_service(path) as service:
        fill(service, range(4))
        with (
            mock.patch.object(Payment, "commit", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            service.retrain([(n, *record(n)) for n in (2, 3, 9)])
    with open_service(path) as service:
        ledger, tip = service.ledger, service.status().tip
        commit = ledger.commit_of(ledger.entries()[-1])
        assert commit is not None and commit.artefact == tip.hash
        assert service.verify().ok


class Boasts(Deletions):
    """Draws and charges the right noise, and certifies ten times as much."""

    def _certificate(self, *given):
        issued, prices = super()._certificate(*given), self._prices
        epsilon = prices.epsilon(10 * issued.sigma / issued.shift_bound) * (1 + 1e-9)
        so_far = epsilon if prices.per_person else issued.epsilon_so_far
        return replace(
            issued, sigma=10 * issued.sigma, epsilon=epsilon, epsilon_so_far=so_far
        )


@pytest.mark.parametrize("base", BASES)
def test_more_noise_than_the_ledger_recorded_is_not_certified(
    tmp_path, monkeypatch, base
):
    monkeypatch.setattr(service_kit.UnlearningService, "_deletions", Boasts)
    with open_service(tmp_path / "model.db", **BASES[base]) as service:
        fill(service, range(4))
        held = service.delete(0)
        rule = "other noise" if base == "persons" else "less noise"
        for found in (
            verify_certificate(held, tmp_path / "model.db"),
            verify_evidence(tmp_path / "model.db"),
        ):
            assert f"the ledger's entry is for {rule} than it claims" in str(found)


def test_terms_of_no_service_are_damage(honest, tmp_path):
    file = shutil.copy(honest["joint"], tmp_path / "evidence.db")
    sql(file, "UPDATE demur_unlearning_evidence SET terms ="
        ' replace(terms, \'"capacity":40\', \'"capacity":0\')')  # fmt: skip
    write_rows(file, rows_of(file), KEY)
    with pytest.raises(ServiceDamaged, match="not terms that a deletion service"):
        verify_evidence(file)
