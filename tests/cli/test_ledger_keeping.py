"""`demur ledger create | entry | backup | check-backup | unfinished | recover`."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import AddOrRemoveOne, Ball, Erasure, ReplaceOne
from demur.core.errors import BudgetExceeded
from demur.durable.chain import public_hex
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms import Gaussian
from tests.commands import run as demur

UNIT = AddOrRemoveOne()
COUNT = Gaussian(40.0, {UNIT: 1.0}, name="a count")
NEW = ["--dataset", "people", "--budget", "add-or-remove-one:2:1e-6"]
TERMS = """
dataset = "people"
filter = "gaussian"
blocks = 0.5
keys = "keys"

[[budgets]]
unit = "add_or_remove_one"
records_per_person = 3
epsilon = 2.0
delta = 1e-6

[[budgets]]
unit = "ball"
radius = 0.2
space = "pixels"
epsilon = 1
delta = 1e-6

[[maps]]
source = "pixels"
target = "embedding"
constant = 0.5
"""


def words(result) -> str:
    return " ".join(result.output.split())


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    """A ledger with a release, a declined request, and a run that was cut off."""
    place = tmp_path / "ledger.db"
    with Ledger.create(
        place,
        dataset="visits",
        budgets={UNIT: Budget(1.0, 1e-6), Erasure(): Budget(1.0, 1e-6)},
    ) as ledger:
        entry = COUNT.release([3.0], ledger=ledger, label="May").entry
        with pytest.raises(BudgetExceeded):
            Gaussian(0.5, {UNIT: 1.0}).release([3.0], ledger=ledger, label="too much")
        job = {"digest": COUNT.digest([3.0]), "idempotency_key": "june"}
        ledger.paid(COUNT, label="cut off", **job)
        ledger.annotate(entry, "utility", {"name": "accuracy", "value": 0.8})
    return place


# -- create --------------------------------------------------------------------------


def test_create_from_options(tmp_path) -> None:
    place = tmp_path / "a.db"
    made = demur("ledger", "create", place, "--dataset", "people",
                 "--budget", "add-or-remove:2.0:1e-6", "--budget",
                 "ball,radius=0.2,space=pixels:1:1e-6", "--filter", "rdp",
                 "--order", 8, "--order", 16, "--blocks", 0.25)  # fmt: skip
    assert made.exit_code == 0, made.output
    with Ledger.open(place) as ledger:
        assert f"tip: {ledger.tip()}" in made.output
        assert ledger.terms.filter == Filter.rdp((8, 16), blocks=0.25)
        assert dict(ledger.terms.budgets) == {
            UNIT: Budget(2.0, 1e-6),
            Ball(0.2, space="pixels"): Budget(1.0, 1e-6),
        }
    before = place.read_bytes()
    again = demur("ledger", "create", place, *NEW, "--json")
    assert again.exit_code == 1
    assert "already" in json.loads(again.stdout)["error"]["message"]
    assert place.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "filter"),
    [
        ([], Filter.gaussian()),
        (["--filter", "pure"], Filter.pure()),
        (["--blocks", "0.5"], Filter.gaussian(blocks=0.5)),
        (["--filter", "rdp"], None),
        (["--filter", "rdp", "--blocks", "0.5"], None),
    ],
)
def test_filters(tmp_path, more, filter) -> None:
    made = demur("ledger", "create", tmp_path / "a.db", *NEW, *more, "--json")
    assert made.exit_code == 0, made.output
    with Ledger.open(tmp_path / "a.db") as ledger:
        assert filter is None or ledger.terms.filter == filter
        if "rdp" in more:
            assert ledger.terms.filter.blocks == (0.5 if "0.5" in more else 0.0)
        assert json.loads(made.stdout)["filter"] == str(ledger.terms.filter)


def test_create_from_a_file(tmp_path) -> None:
    (tmp_path / "terms.toml").write_text(TERMS)
    place = tmp_path / "a.db"
    made = demur("ledger", "create", place, "--terms", tmp_path / "terms.toml")
    assert made.exit_code == 0, made.output
    assert "at most 3" in words(made) and "pixels" in made.output
    with Ledger.open(place) as ledger:
        terms = ledger.terms
        assert terms.filter == Filter.gaussian(blocks=0.5)
        assert [unit for unit, _ in terms.budgets] == [
            AddOrRemoveOne(3),
            Ball(0.2, space="pixels"),
        ]
        assert terms.maps[0].constant == 0.5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('dataset = "people"\n', "", "needs the settings ['dataset']"),
        ("blocks = 0.5", "block = 0.5", "has no settings ['block']"),
        ("blocks = 0.5", "blocks = 1.5", "blocks must be"),
        ('"gaussian"', '"gauss"', "blocks is the share"),
        ('"gaussian"', "", "is no TOML file"),
        ("epsilon = 2.0", "epsilon = nan", "epsilon must be"),
        ("epsilon = 2.0\n", "", "needs an epsilon"),
        ('"add_or_remove_one"', '"add_or_remove_two"', "not a unit"),
        ("radius = 0.2\n", "", "not a Ball"),
        ("constant = 0.5", "constant = 0", "constant must be"),
        ('target = "embedding"\n', "", "[[maps]]"),
        ('keys = "keys"', "keys = 7", "keys must be a path"),
        ('"ball"\nradius = 0.2\nspace = "pixels"',
         '"add-or-remove-one"\nrecords_per_person = 3', "two budgets"),
    ],
)  # fmt: skip
def test_a_bad_file_of_terms_makes_nothing(tmp_path, old, new, said) -> None:
    assert TERMS.count(old) == 1
    (tmp_path / "terms.toml").write_text(TERMS.replace(old, new))
    result = demur("ledger", "create", tmp_path / "a.db", "--terms",
                   tmp_path / "terms.toml")  # fmt: skip
    assert result.exit_code == 1 and "unexpected" not in result.output
    assert said in words(result)
    assert files(tmp_path) == ["terms.toml"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "needs --dataset and at least one --budget"),
        (["--dataset", "x"], "at least one --budget"),
        (["--dataset", "", "--budget", "erasure:1:1e-6"], "needs --dataset"),
        (["--dataset", "x", "--budget", "erasure"], "UNIT:EPSILON"),
        (["--dataset", "x", "--budget", "erasure:x"], "UNIT:EPSILON"),
        (["--dataset", "x", "--budget", "erasure:1:2:3"], "UNIT:EPSILON"),
        (["--dataset", "x", "--budget", "record:1:1e-6"], "a unit is one of"),
        (["--dataset", "x", "--budget", "ball,radius=x,space=y:1"], "a unit is one of"),
        (["--dataset", "x", "--budget", "ball,radius=1:1"], "a unit is one of"),
        (["--dataset", "x", "--budget", "erasure:nan:1e-6"], "epsilon must be"),
        (["--dataset", "x", "--budget", "erasure:1:1.5"], "delta"),
        ([*NEW, "--budget", "add_or_remove_one:1:1e-6"], "two budgets"),
        ([*NEW, "--order", "8"], "orders are those"),
        ([*NEW, "--filter", "pure", "--blocks", "0.5"], "blocks is the share"),
        ([*NEW, "--terms", "terms.toml"], "--terms is a file of all terms"),
        ([*NEW, "--password-file", "x"], "--password-file needs --signing-key"),
        ([*NEW, "--signing-key", "none.pem"], "there is no file"),
    ],
)
def test_bad_options_make_nothing(tmp_path, given, said) -> None:
    result = demur("ledger", "create", tmp_path / "a.db", *given)
    assert result.exit_code == 1 and "unexpected" not in result.output
    assert said in words(result)
    assert files(tmp_path) == []


def test_a_folder_of_keys_that_others_can_read_is_refused(tmp_path) -> None:
    (tmp_path / "keys").mkdir(mode=0o755)
    (tmp_path / "keys").chmod(0o755)
    result = demur("ledger", "create", tmp_path / "a.db", *NEW,
                   "--keys", tmp_path / "keys")  # fmt: skip
    assert result.exit_code == 1 and "chmod 700" in words(result)
    assert files(tmp_path) == ["keys"]


# -- signing keys ----------------------------------------------------------------------


@pytest.fixture
def key(tmp_path):
    """An encrypted signing key, and its password in a file."""
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open sesame"),
    )
    for name, content in (("key.pem", pem), ("password", b"open sesame\n")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    return private


def test_a_password_comes_from_a_file_or_a_prompt(tmp_path, key) -> None:
    own = ["--signing-key", tmp_path / "key.pem"]
    made = demur("ledger", "create", tmp_path / "a.db", *NEW, *own,
                 "--password-file", tmp_path / "password", "--json")  # fmt: skip
    assert json.loads(made.stdout)["signer"] == public_hex(key)
    asked = demur("ledger", "create", tmp_path / "b.db", *NEW, *own, "--json",
                  input="open sesame\n")  # fmt: skip
    assert json.loads(asked.stdout)["signer"] == public_hex(key)
    assert "open sesame" not in asked.output
    for typed, said in (("wrong\n", "the password is wrong"), ("", "--password-file")):
        wrong = demur("ledger", "create", tmp_path / "c.db", *NEW, *own, input=typed)
        assert wrong.exit_code == 1 and said in words(wrong)
    (tmp_path / "password").chmod(0o644)
    wrong = demur("ledger", "create", tmp_path / "c.db", *NEW, *own,
                  "--password-file", tmp_path / "password")  # fmt: skip
    assert wrong.exit_code == 1 and "chmod 600" in words(wrong)
    assert not (tmp_path / "c.db").exists()


def test_a_signed_ledger_is_charged_with_its_key(tmp_path, key) -> None:
    own = ["--signing-key", tmp_path / "key.pem",
           "--password-file", tmp_path / "password"]  # fmt: skip
    place, table = tmp_path / "a.db", tmp_path / "t.csv"
    table.write_text("a,b\n" + "0.5,0.5\n" * 40)
    demur("ledger", "create", place, "--dataset", "x", "--budget", "replace:9", *own)
    make = ["reports", "make", table, tmp_path / "out.csv", "--epsilon", 4,
            "--low", 0, "--high", 1, "--ledger", place]  # fmt: skip
    unsigned = demur(*make)
    assert unsigned.exit_code == 1 and "give its key" in words(unsigned)
    signed = demur(*make, *own, "--keys", tmp_path / "keys")
    assert signed.exit_code == 0, signed.output
    assert (tmp_path / "keys" / "input-digests.key").exists()
    with Ledger.open(place) as ledger:
        assert ledger.verify(ledger.tip(), signer=public_hex(key)).ok


# -- entry and show --------------------------------------------------------------------


def test_an_entry_is_printed_whole(path) -> None:
    told = json.loads(demur("ledger", "entry", path, 1, "--json").stdout)
    with Ledger.open(path) as ledger:
        entry = ledger.entry(1)
        assert told["statement"] == entry.statement()
        assert told["actor"] == entry.actor and told["count"] == 1
        assert [cost["epsilon"] for cost in told["costs"]] == [
            entry.epsilon(UNIT, 1e-6),
            None,
        ]
    assert told["committed"]["artefact"] and told["private"]
    assert told["notes"][0]["facts"] == {"name": "accuracy", "value": 0.8}
    shown = words(demur("ledger", "entry", path, 1))
    for text in ("May", "a count", "OS entropy", "Note on utility", "Erasure()"):
        assert text in shown
    (cut,) = (e for e in Ledger.open(path).entries() if e.label == "cut off")
    assert "committed no:" in words(demur("ledger", "entry", path, cut.sequence))


@pytest.mark.parametrize("number", [0, 2, 99])
def test_a_row_that_is_no_entry_is_an_error(path, number) -> None:
    result = demur("ledger", "entry", path, number)
    assert result.exit_code == 1 and "unexpected" not in result.output


def test_show_has_costs_and_what_was_declined(path) -> None:
    told = json.loads(demur("ledger", "show", path, "--json").stdout)
    with Ledger.open(path) as ledger:
        first = ledger.entry(1)
        assert told["costs"]["epsilon"]["1"] == first.epsilon(UNIT, 1e-6)
        assert told["costs"]["delta"] == 1e-6
        (declined,) = told["declined"]
        assert declined["label"] == "too much" and "Declined" in declined["why"]
        assert declined["actor"] == ledger.declined()[0].actor
    shown = demur("ledger", "show", path)
    assert "0.09014" in shown.output and "Declined" in shown.output
    assert "too much" in words(shown)


def test_show_at_another_unit(path) -> None:
    for unit in ("erasure", "Erasure()", "replace-one", "ball,radius=1,space=x"):
        shown = demur("ledger", "show", path, "--unit", unit)
        entries = shown.output.split("Declined")[0]
        assert shown.exit_code == 0 and "0.09014" not in entries
        assert "│       - │" in entries
    wide = json.loads(demur("ledger", "show", path, "--delta", "1e-3", "--json").stdout)
    assert 0 < wide["costs"]["epsilon"]["1"] < 0.09
    for wrong in (["--unit", "people"], ["--delta", "2"]):
        assert demur("ledger", "show", path, *wrong).exit_code == 1


def test_export_names_actors_only_when_asked(path) -> None:
    plain = demur("ledger", "export", path).stdout
    assert "actor" not in plain
    told = json.loads(demur("ledger", "export", path, "--actors").stdout)
    assert all(entry["actor"] for entry in told["entries"])
    assert demur("ledger", "export", path, "--tip", "--actors").exit_code == 1


# -- reading only ----------------------------------------------------------------------

READING = [
    ["ledger", "show"], ["ledger", "verify", "--full"], ["ledger", "export"],
    ["ledger", "entry"], ["ledger", "check-backup"], ["ledger", "unfinished"],
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=lambda c: c[1])
def test_readers_need_no_right_to_write(path, tmp_path, command, monkeypatch) -> None:
    """They open the ledger to be read, and change no byte beside it."""
    opened = []
    real = Ledger.open.__func__

    def watched(cls, url, **given):
        opened.append(given.get("read_only", False))
        return real(cls, url, **given)

    monkeypatch.setattr(Ledger, "open", classmethod(watched))
    before, listed = path.read_bytes(), files(tmp_path)
    path.chmod(0o400)
    number = ["1"] if "entry" in command else []
    result = demur(*command[:2], path, *number, *command[2:])
    assert result.exit_code == 0, result.output
    assert opened and all(opened)
    assert path.read_bytes() == before and files(tmp_path) == listed


@pytest.mark.slow
def test_a_ledger_cut_off_in_a_write_is_read_again(path, tmp_path) -> None:
    """SQLite undoes the write when the file is opened to write; a reader may not."""
    writer = sqlite3.connect(path, isolation_level=None)
    with closing(writer):
        writer.execute("PRAGMA cache_size=1")  # so that pages go to the file at once
        writer.execute("BEGIN IMMEDIATE")
        for k in range(50):
            row = (str(k), "x" * 5000)
            writer.execute("INSERT INTO demur_declarations VALUES (?, ?)", row)
        for end in ("", "-journal"):  # what a power cut leaves
            shutil.copy(f"{path}{end}", tmp_path / f"cut.db{end}")
        writer.execute("ROLLBACK")
    shown = demur("ledger", "show", tmp_path / "cut.db", "--json")
    assert shown.exit_code == 0, shown.output
    labels = [entry["label"] for entry in json.loads(shown.stdout)["entries"]]
    assert labels == ["May", "cut off"]


# -- backups ---------------------------------------------------------------------------


def test_a_backup_and_its_check(path, tmp_path) -> None:
    copy = tmp_path / "backup.db"
    made = demur("ledger", "backup", path, copy, "--json")
    told = json.loads(made.stdout)
    with Ledger.open(path) as ledger:
        assert told == {"written": str(copy), "tip": str(ledger.tip())}
        ledger.charge(COUNT, label="later")
        later = str(ledger.tip())
    before = copy.read_bytes()
    for more, said in (
        ([], "no problem found"),
        (["--tip", told["tip"]], "contains the tip and ends there"),
        (["--tip", later], "ends 1 row before the tip"),
        (["--ledger", path], "1 row behind the ledger"),
        (["--ledger", copy], "every row of the ledger"),
    ):
        checked = demur("ledger", "check-backup", copy, *more)
        assert checked.exit_code == 0 and said in words(checked), checked.output
    wrong = demur("ledger", "check-backup", path, "--ledger", copy, "--json")
    answer = json.loads(wrong.stdout)
    assert wrong.exit_code == 1 and not answer["ok"]
    assert "beyond the ledger" in answer["problems"][0]
    again = demur("ledger", "backup", path, copy)
    assert again.exit_code == 1 and "never replaces" in words(again)
    assert copy.read_bytes() == before
    assert files(tmp_path)[0] == "backup.db" and len(files(tmp_path)) <= 4


def test_backups_of_what_is_not_there(tmp_path) -> None:
    missing = demur("ledger", "backup", tmp_path / "none.db", tmp_path / "b.db")
    assert missing.exit_code == 1 and "demur ledger create" in words(missing)
    missing = demur("ledger", "check-backup", tmp_path / "none.db")
    assert missing.exit_code == 1 and "there is no file" in words(missing)
    assert files(tmp_path) == []


# -- unfinished ------------------------------------------------------------------------


def test_keys_of_unfinished_entries_are_wiped_after_a_question(path, tmp_path) -> None:
    told = json.loads(demur("ledger", "unfinished", path, "--json").stdout)
    (cut,) = told["unfinished"]
    assert cut["label"] == "cut off" and told["wiped"] == []
    key = tmp_path / "ledger.db.keys" / f"{cut['id']}.key"
    assert cut["key"] == str(key)
    for answer in ("n\n", ""):
        kept = demur("ledger", "unfinished", path, "--wipe", input=answer)
        assert kept.exit_code == 1 and "No key was removed" in words(kept)
        assert "stay spent" in words(kept) and key.exists()
    assert demur("ledger", "unfinished", path, "--yes").exit_code == 1
    wiped = demur("ledger", "unfinished", path, "--wipe", input="y\n")
    assert wiped.exit_code == 0 and "1 key removed" in words(wiped)
    assert "cannot be repeated" in words(wiped) and not key.exists()
    again = demur("ledger", "unfinished", path, "--wipe", "--yes", "--json")
    assert json.loads(again.stdout)["wiped"] == []
    with Ledger.open(path) as ledger:
        assert len(ledger.entries()) == 2 and ledger.verify().ok


# -- no ledger is made by the way ------------------------------------------------------


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "0.1,0.2,1\n0.3,0.1,0\n" * 30)
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


CONFIG = """
[data]
train = "rows.npz"
features = "x"
label = "y"
examples = 60
classes = 2
[model]
kind = "mlp"
[privacy]
epsilon = 1.0
delta = 1e-4
unit = "add_or_remove_one"
[training]
steps = 2
batch_size = 10
learning_rate = 0.5
[output]
model = "model.npz"
ledger = "ledger.db"
"""
SPENDING: dict[str, list[object]] = {
    "head fit": ["rows.csv", "--label", "y", "--epsilon", 1, "--radius", 0.3, "-o",
                 "head.npz", "--ledger", "ledger.db"],
    "reports make": ["rows.csv", "out.csv", "--epsilon", 4, "--low", 0, "--high", 1,
                     "--ledger", "ledger.db"],
    "unlearn run": ["rows.csv", "--ledger", "ledger.db"],
    "train": ["config.toml"],
}  # fmt: skip


@pytest.mark.parametrize("command", SPENDING)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "demur ledger create"),
        ([], "--create --budget"),
        (["--create"], "--create needs the budget"),
        (["--budget", "erasure:1:1e-6"], "give --create as well"),
        (["--create", "--budget", "erasure"], "UNIT:EPSILON"),
    ],
)
def test_no_command_makes_a_ledger_by_the_way(
    inputs, monkeypatch, command, more, said
) -> None:
    monkeypatch.chdir(inputs)
    before = files(inputs)
    result = demur(*command.split(), *SPENDING[command], *more)
    assert result.exit_code == 1 and said in words(result), result.output
    assert files(inputs) == before


def test_options_of_a_ledger_need_one(inputs, monkeypatch) -> None:
    monkeypatch.chdir(inputs)
    for more in (["--create", "--budget", "replace:1"], ["--keys", "keys"]):
        result = demur("reports", "make", *SPENDING["reports make"][:-2], *more)
        assert result.exit_code == 1 and "name it" in words(result)


def test_create_opens_the_same_ledger_again_and_no_other(inputs, monkeypatch) -> None:
    monkeypatch.chdir(inputs)
    make = ["reports", "make", *SPENDING["reports make"], "--columns", "a,b"]
    new = ["--create", "--budget", "replace-one:20"]
    first = demur(*make, *new)
    assert first.exit_code == 0 and "a new ledger" in words(first), first.output
    again = demur(*make, *new, "--overwrite")
    assert again.exit_code == 0 and "a new ledger" not in words(again)
    other = demur(*make, "--create", "--budget", "replace-one:30", "--overwrite")
    assert other.exit_code == 1 and "terms of a ledger never change" in words(other)
    with Ledger.open(inputs / "ledger.db") as ledger:
        assert len(ledger.entries()) == 2
        assert dict(ledger.terms.budgets) == {ReplaceOne(): Budget(20.0)}


# -- recover ---------------------------------------------------------------------------


@pytest.fixture
def lost(tmp_path):
    """A copy that lacks a charge, the tip after it, and the charge's receipt."""
    full, older = tmp_path / "full.db", tmp_path / "older.db"
    with Ledger.open(full, dataset="d", budgets={UNIT: Budget(2.0, 1e-6)}) as ledger:
        shutil.copy(full, older)
        receipt = ledger.receipt(ledger.charge(COUNT, label="lost"))
        (tmp_path / "tip").write_text(str(ledger.tip()))
    (tmp_path / "receipts.jsonl").write_text(json.dumps(receipt.to_json()) + "\n")
    return older


def test_a_ledger_recovers_from_receipts(lost, tmp_path) -> None:
    place = ["ledger", "recover", lost, "--tip", tmp_path / "tip"]
    refused = demur(*place)
    assert refused.exit_code == 1 and "no receipt of row 1" in words(refused)
    done = demur(*place, "--receipts", tmp_path / "receipts.jsonl", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told.pop("tip").startswith("2:")
    assert told == {"row": 2, "entered": 1, "written_down": 0, "complete": True}
    checked = demur("ledger", "verify", lost, "--tip", tmp_path / "tip")
    assert checked.exit_code == 0, checked.output
    shown = words(demur("ledger", "show", lost))
    assert "lost" in shown and "Rows that were lost" in shown
    assert demur(*place, "--receipts", tmp_path / "receipts.jsonl").exit_code == 1
    assert demur(*place, "--receipts", tmp_path / "none.jsonl").exit_code == 1


@pytest.mark.parametrize("most", ["all", "add-or-remove-one:0.5:1e-7"])
def test_or_writes_its_budget_down(lost, tmp_path, most) -> None:
    place = ["ledger", "recover", lost, "--tip", tmp_path / "tip"]
    done = demur(*place, "--write-down", most)
    assert done.exit_code == 0 and "written down" in words(done)
    with Ledger.open(lost) as ledger:
        assert ledger.verify(str((tmp_path / "tip").read_text())).ok
        (status,) = ledger.status()
    assert status.spent_epsilon == pytest.approx(2.0 if most == "all" else 0.5, rel=0.2)


def test_a_wrong_write_down(lost, tmp_path) -> None:
    place = ["ledger", "recover", lost, "--tip", tmp_path / "tip", "--write-down"]
    for wrong in ("some", "replace-one:1", "add-or-remove-one:x"):
        assert demur(*place, wrong).exit_code == 1
    assert demur("ledger", "verify", lost).output.startswith("0 rows")
