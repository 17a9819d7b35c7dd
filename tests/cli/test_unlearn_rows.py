"""`demur unlearn` and what leaves it: no row of a file, no opening, nobody deleted."""

import datetime
import decimal
import json
import re
import stat

import pyarrow as pa
import pyarrow.parquet
import pytest

from demur.cli.unlearning.handover import Handover
from demur.durable import private_files
from demur.errors import KeysExposed
from demur.unlearning import CapacityExhausted, Certificate, UnlearningService
from demur.unlearning.records import queue
from demur.unlearning.service.deletion import Deletions
from demur.unlearning.service.service import UnlearningService as Service
from tests.cli.test_unlearn_service import (
    COLUMNS,
    HEAD,
    cat_or_dog,
    demur,
    filled,
    rows,
    table,
)
from tests.commands import run

pytestmark = pytest.mark.slow
__all__ = ["demur", "filled", "table"]
SECRET = "Jane Doe has asthma"
BAD = {
    "a value too many": (f"{SECRET},1,0.1,0.2,cat,{SECRET}", "row 4 has 6 values"),
    "a quote that is not closed": (f'900,"{SECRET},0.1,0.2,cat', "cannot be read"),
    "a word for a number": (f"900,1,0.1,{SECRET},cat", "must hold numbers"),
    "no class": (f"900,1,0.1,0.2,{SECRET}", "row 4: 'kind' is no class here"),
    "a long id": (SECRET * 20 + ",1,0.1,0.2,cat", "row 4: an id has 1 to 200"),
    "an id with a tab": (f"{SECRET}\t,1,0.1,0.2,cat", "row 4: an id has 1 to 200"),
    "a person with a tab": (f"900,{SECRET}\t,0.1,0.2,cat", "column 'who', row 4"),
    "an id twice": (f"{SECRET},1,0.1,0.2,cat\n" * 2, "row 5: its id occurs"),
    "no heading": (None, "no column 'id'"),
}


def test_no_row_of_a_file_is_printed(demur, tmp_path):
    demur.open()
    file, good = tmp_path / "people.csv", cat_or_dog(rows(range(3)))
    for what, (bad, said) in BAD.items():
        lines = [f"{SECRET},1,0.1,0.2,cat"] if bad is None else [HEAD, *good, bad]
        file.write_text("\n".join(lines).strip() + "\n")
        result = run("unlearn", "insert", demur.service, file, *COLUMNS, "--json")
        assert result.exit_code == 1 and said in result.stdout, (what, result.stdout)
        assert "Jane" not in result.output + result.stderr, what
    file.write_bytes(f"{HEAD}\n{SECRET}\xff,1,1,1,cat\n".encode("latin1"))
    told = demur("insert", file, *COLUMNS)
    assert "UTF-8" in told["error"]["message"] and "Jane" not in str(told)
    file.write_text(f"{HEAD},a\n900,1,0.1,0.2,cat,0.3\n")
    assert "2 columns 'a'" in demur("insert", file, *COLUMNS)["error"]["message"]
    broken = tmp_path / "people.parquet"
    broken.write_bytes(b"not a table")
    assert "as Parquet" in demur("insert", broken, *COLUMNS)["error"]["message"]
    assert demur("status")["live"] == 0


def test_ids_and_persons_of_a_parquet_file(demur, tmp_path):
    """7.0 is no id; a person's column with gaps may hold numbers as floats."""
    demur.open()
    file = tmp_path / "people.parquet"
    columns = {"a": [0.1, 0.2, 0.3], "b": [0.1, 0.2, 0.3], "kind": ["cat"] * 3}
    who = [float("nan"), 5.0, 6.0]
    pyarrow.parquet.write_table(pa.table({"id": [1.0, 2, 3], "who": who} | columns),
                                file)  # fmt: skip
    assert "holds double" in demur("insert", file, *COLUMNS)["error"]["message"]
    pyarrow.parquet.write_table(pa.table({"id": [1, 2, 3], "who": who} | columns), file)
    assert demur("insert", file, *COLUMNS)["inserted"] == 3
    told = demur("delete", "--person", "5")
    assert told["deleted"] == 1
    assert demur("delete", "--person", "nan")["exit_code"] == 1
    empty = tmp_path / "empty.csv"
    empty.write_text(f"{HEAD}\n900,,0.1,0.2,cat\n901,,0.1,0.3,cat\n")
    assert demur("insert", empty, *COLUMNS)["inserted"] == 2, "of nobody in particular"


def test_all_rows_are_checked_before_the_first_is_learned(demur, tmp_path):
    demur("open", "--mode", "ridge", "--dimension", 2, "--answers", "published",
          "--epsilon", 1, "--delta", 1e-6, "--publications", 5)  # fmt: skip
    file = tmp_path / "people.csv"
    file.write_text("id,who,a,b,y\n1,x,0.1,0.2,1\n2,y,0.1,0.3,1\n3,x,0.2,0.2,1\n")
    columns = ["--id", "id", "--label", "y", "--subject", "who", "--batch", 1]
    told = demur("insert", file, *columns)
    assert "1 live record(s)" in told["error"]["message"]
    assert demur("status")["live"] == 0
    demur.service = demur.service.with_name("other.db")
    demur("open", "--mode", "logistic", "--dimension", 2, "--epsilon", 1, "--delta",
          1e-6, "--capacity", 3, "--option", "Lambda=5", "--option", "tolerance=0.05",
          )  # fmt: skip
    file.write_text("id,who,a,b,y\n1,x,0.1,0.2,1\n2,y,0.1,0.3,0.5\n")
    told = demur("insert", file, *columns)
    assert "row 2: the mode" in told["error"]["message"] and "0.5" not in str(told)
    assert demur("status")["live"] == 0


def test_an_error_half_way_keeps_its_kind_and_says_how_far_it_got(
    demur, table, monkeypatch
):
    demur.open()
    honest, calls = Service.insert_many, []

    def second_fails(service, *given, **more):
        calls.append(1)
        if len(calls) == 2:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "takes five arguments")
        return honest(service, *given, **more)

    monkeypatch.setattr(Service, "insert_many", second_fails)
    file = table(range(4), change=cat_or_dog)
    told = demur("insert", file, *COLUMNS, "--batch", 2)
    assert told["error"]["kind"] == "UnicodeDecodeError"
    assert "The first 2 new rows were learned" in told["error"]["message"]


def test_nobody_who_was_deleted_comes_back_with_an_old_file(demur, table):
    demur.shared = ["--memory-key", "secrets/ids.key"]
    demur.open()
    file = table(range(4), change=cat_or_dog)
    demur("insert", file, *COLUMNS)
    (certificate,) = demur("delete", "003")["certificates"]
    for given in (["insert", file, "--skip-live"], ["retrain", file]):
        told = demur(*given, *COLUMNS)
        assert told["exit_code"] == 1 and "row 4" in told["error"]["message"], given
    told = demur("retrain", file, *COLUMNS, "--new")
    assert "was deleted" in told["error"]["message"], "it must be asked for by id"
    told = demur("insert", file, *COLUMNS, "--skip-live", "--again")
    assert (told["inserted"], told["learned_again"], told["live"]) == (1, 1, 4)
    checked = run("unlearn", "verify", certificate, demur.service, "--id", "003")
    assert (
        checked.exit_code == 0
        and "learned again since and is live" in (checked.output.splitlines()[-1])
    )


def test_openings_lie_elsewhere_and_a_refusal_leaves_no_folder(filled, tmp_path):
    for place in ("service/certificates", "service/model.db.keys/c", "service"):
        told = filled("delete", "003", "-o", place)
        assert "lies in the folder of the service" in told["error"]["message"]
    assert filled("delete", "nobody", "-o", "made")["exit_code"] == 1
    assert not (tmp_path / "made").exists()
    told = filled("delete", "003", "003", "-o", "out")
    assert told["deleted"] == 1 and len(told["certificates"]) == 1
    (file,) = (tmp_path / "out").iterdir()
    page = tmp_path / "page.html"
    assert run("unlearn", "certificate", file, "--html", page).exit_code == 0
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    backup = filled("backup", "service/model.db.keys/copy", "--with-keys", shared=False)
    assert "does not belong" in backup["error"]["message"]
    # A file of the same name that says something else is not passed off as written.
    with_opening = file.read_text()
    told = json.loads(with_opening)
    for there, said in (("{}", 1), (json.dumps(told | {"opening": None}), 0)):
        file.write_text(there)
        assert filled("certificates", "-o", "out", shared=False)["exit_code"] == said
    file.write_text(with_opening)
    assert filled("certificates", "-o", "out", shared=False)["exit_code"] == 0
    assert file.read_text() == with_opening, "the fuller one stays"


@pytest.mark.parametrize("command", ["retrain", "queue"])
def test_openings_of_records_that_go_are_on_disk_before(
    filled, table, tmp_path, monkeypatch, command
):
    """Without a memory key nobody else has them: as for `delete`."""
    stay = table(range(19), "stay.csv", change=cat_or_dog)
    given = ["retrain", stay, *COLUMNS]
    if command == "queue":
        waits(filled.service, "019")
        given = ["queue", "--process"]
    seen = []
    name = "retrain" if command == "retrain" else "process_queue"

    def killed(*_):
        seen.extend(p.suffix for p in (tmp_path / "certificates").iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(Service, name, killed)
    filled(*given)
    assert seen == [".opening"]


@pytest.mark.parametrize("suffix", [".opening", ".json"])
def test_a_command_killed_while_it_wrote_is_run_again(filled, tmp_path, suffix):
    """Killed between giving a file its name and removing the name it had before."""
    assert filled("delete", "019")["exit_code"] == 0
    (held,) = (tmp_path / "certificates").glob("*.json")
    path = held
    if suffix == ".opening":
        told = json.loads(held.read_text())
        path = held.with_name(f"{told['record'][:16]}.opening")
        private_files.write_new(path, f"{told['opening']}\n".encode())
    path.with_name(f"{path.name}.4711.0123abcd").hardlink_to(path)
    Handover(path.parent)._write(path, path.read_bytes())
    assert path.stat().st_nlink == 1
    path.with_name("a copy").hardlink_to(path)
    with pytest.raises(KeysExposed, match="2 names"):
        Handover(path.parent)._write(path, path.read_bytes())


def test_a_memory_key_whose_writer_was_killed_opens_its_service(tmp_path):
    key = tmp_path / "private" / "memory.key"
    private_files.write_new(key, bytes(range(32)))
    key.with_name("memory.key.4711.0123abcd").hardlink_to(key)
    (tmp_path / "service").mkdir()
    path = tmp_path / "service" / "m.db"
    UnlearningService.open(path, mode="ridge", dimension=2, memory_key=key).close()
    assert key.stat().st_nlink == 1


def waits(path, record_id):
    """A request that waits."""
    with UnlearningService.open(path) as service, service._state.writing() as tables:
        pseudonym = service._state.directory.find(record_id)
        queue.put(tables, pseudonym, 1, queue.deadline_text(None), "privacy")


def test_a_retrain_hands_over_what_it_answers_by_the_way(filled, tmp_path, monkeypatch):
    """Requests that waited are carried out by it; their openings would be lost."""
    waits(filled.service, "019")

    def exhausted(*_):
        raise CapacityExhausted("none is left", "privacy", retrain_required=True)

    monkeypatch.setattr(Deletions, "carry_out", exhausted)
    told = filled("delete", "003", "--on-exhausted", "retrain")
    assert told["deleted"] == 1 and filled("status")["live"] == 18
    files = list((tmp_path / "certificates").iterdir())
    assert len(files) == 2
    held = [Certificate.load(file) for file in files]
    for number in ("003", "019"):
        assert sum(each.is_of(number) for each in held) == 1


def test_a_folder_that_is_refused_is_refused_before_anything_is_spent(
    filled, tmp_path, monkeypatch, table
):
    """An opening carries out what was interrupted: the folder is looked at before."""
    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "commit", lambda *_: 1 / 0)
        patch.setattr(Deletions, "abandon", lambda *_: None)
        with (
            UnlearningService.open(filled.service) as service,
            pytest.raises(ZeroDivisionError),
        ):
            service.delete("003")
    (tmp_path / "certificates").mkdir(0o755)
    more = table([30], "more.csv", change=cat_or_dog)
    told = filled("insert", more, *COLUMNS)
    assert "chmod 700" in told["error"]["message"], told
    assert "queue SERVICE --process -o FOLDER" in told["error"]["message"]
    assert filled("status")["live"] == 20, "it was not carried out"
    assert len(filled("queue", "--process", "-o", "safe")["certificates"]) == 0
    assert len(list((tmp_path / "safe").iterdir())) == 1, "by the opening"
    assert filled("status")["live"] == 19


def test_a_key_in_the_service_folder_is_refused_and_nothing_is_made(demur, tmp_path):
    for place in ("service/ids.key", "service/model.db.keys/ids.key"):
        told = demur.open("--memory-key", place)
        assert "lies in the folder of the service" in told["error"]["message"]
    (tmp_path / "open").mkdir(0o755)
    assert demur.open("--memory-key", "open/ids.key")["exit_code"] == 1
    assert list(demur.service.parent.iterdir()) == []
    assert demur.open("--memory-key", "secrets/ids.key")["exit_code"] == 0


def test_what_others_wrote_moves_no_cursor(filled, tmp_path):
    (file,) = filled("delete", "003")["certificates"]
    told = json.loads((tmp_path / file).read_text())
    (tmp_path / "evil.json").write_text(json.dumps(told | {"statement": "\x1b[2Jgone"}))
    for given in (
        ["certificate", "evil.json"],
        ["verify", "evil.json", filled.service],
    ):
        assert "\x1b[2J" not in run("unlearn", *given).output
    assert "no text" in run("unlearn", "verify", filled.service, filled.service).output
    for given in (["--id", ""], ["--opening", ""]):
        assert run("unlearn", "verify", filled.service, *given).exit_code == 1
    (tmp_path / "ids.txt").write_bytes("\ufeff004\n".encode())
    assert filled("delete", "--from", "ids.txt")["deleted"] == 1


def test_a_column_is_a_feature_or_says_whose_record_it_is(demur, tmp_path):
    demur.open()
    file = tmp_path / "people.csv"
    file.write_text(f"{HEAD}\n1,2,0.1,0.2,cat\n")
    for named in ("a,id", "who,b", "kind,b", "a,a"):
        told = demur("insert", file, *COLUMNS, "--features", named)
        assert "--features must name other columns" in told["error"]["message"], named
    lists, one = tmp_path / "people.parquet", {"id": [1], "who": [1], "a": [0.1]}
    for kind in ([["cat", "dog"]], [[1.0, 2.0]]):
        pyarrow.parquet.write_table(pa.table(one | {"b": [0.1], "kind": kind}), lists)
        told = demur("insert", lists, *COLUMNS)
        assert "a record has one label" in told["error"]["message"]
    assert demur("status")["live"] == 0


PERSONS = {
    "bytes": pa.array([b"x"]),
    "lists": pa.array([[1]]),
    "booleans": pa.array([True]),
    "dates": pa.array([datetime.date(2020, 1, 1)]),
    "decimals": pa.array([decimal.Decimal("7.0")]),
    "large floats": pa.array([2.0**53]),
    "halves": pa.array([0.5]),
    "decimal text": pa.array(["7.0"]),
    "NA": pa.array(["NA"]),
    "null": pa.array([" null"]),
}


def test_a_person_has_one_spelling_and_nobody_is_no_person(demur, tmp_path):
    demur.open()
    file = tmp_path / "people.parquet"
    columns = {"id": [1], "a": [0.1], "b": [0.2], "kind": ["cat"]}
    for what, who in PERSONS.items():
        pyarrow.parquet.write_table(pa.table(columns | {"who": who}), file)
        told = demur("insert", file, *COLUMNS)
        assert "column 'who'" in told["error"]["message"], what
    csv = tmp_path / "people.csv"
    for who in ("7.0", "NA", "N/A"):
        csv.write_text(f"{HEAD}\n1,{who},0.1,0.2,cat\n")
        assert (
            "column 'who', row 1" in demur("insert", csv, *COLUMNS)["error"]["message"]
        )
    assert demur("status")["live"] == 0
    csv.write_text(f"{HEAD}\n1,7,0.1,0.2,cat\n2,Nathan,0.1,0.2,cat\n")
    assert demur("insert", csv, *COLUMNS)["inserted"] == 2
    more = pa.table(columns | {"id": [3], "who": [7.0]})
    pyarrow.parquet.write_table(more, file)
    assert demur("insert", file, *COLUMNS)["inserted"] == 1
    assert demur("delete", "--person", "7")["deleted"] == 2, "7 and 7.0 are one person"


def test_a_live_record_of_another_person_is_not_skipped(demur, tmp_path):
    demur.open()
    file = tmp_path / "people.csv"
    file.write_text(f"{HEAD}\n1,7,0.1,0.2,cat\n2,,0.1,0.2,cat\n")
    assert demur("insert", file, *COLUMNS)["inserted"] == 2
    assert demur("insert", file, *COLUMNS, "--skip-live")["skipped"] == 2
    for old, new in (("1,7", "1,8"), ("1,7", "1,"), ("2,,", "2,7,")):
        file.write_text(file.read_text().replace(old, new))
        told = demur("insert", file, *COLUMNS, "--skip-live")
        assert "or as another person's" in told["error"]["message"], (old, new)
        file.write_text(file.read_text().replace(new, old))


def test_an_option_of_a_mode_reaches_nothing_else(demur):
    for given in ("source=7", "limits=5", "create=false", "read_only=true", "tip=1"):
        told = demur.open("--option", given)
        assert "no option of a mode" in told["error"]["message"], given
        assert not demur.service.exists()


def test_a_waiting_request_keeps_its_limits_from_command_to_command(demur, tmp_path):
    demur("open", "--mode", "ogd", "--dimension", 2, "--epsilon", 1, "--delta", 1e-6)
    file = tmp_path / "people.csv"
    file.write_text("id,who,a,b,y\n" + "".join(f"{n},x,0.{n},0.1,1\n" for n in (1, 2)))
    demur("insert", file, "--id", "id", "--label", "y", "--subject", "who")
    strict = ["--limit-person", 1, "--on-exhausted", "queue"]
    assert demur("delete", "1", *strict)["deleted"] == 1
    assert demur("delete", "2", *strict)["waiting"] == 1
    assert len(demur("queue", "--process")["waiting"]) == 1, "its own limit holds"
    told = demur("queue", "--process", "--limit-person", 100)
    assert told["waiting"] == [] and len(told["certificates"]) == 1


def test_an_error_names_options_and_no_keywords_of_python(demur, table, tmp_path):
    """What a command says, its reader can type."""
    (tmp_path / "secrets").mkdir(mode=0o700)
    key, people = tmp_path / "secrets" / "ids.key", table(range(4))
    noisy = ["--dimension", 2, "--epsilon", 1, "--delta", 1e-6]
    out = ["-o", "out", "--memory-key", key]
    other = ["--memory-key", tmp_path / "secrets" / "other.key"]
    told = [demur("open", *noisy, "--option", "tempo=3"), demur("status")]
    assert demur("open", *noisy, "--memory-key", key)["exit_code"] == 0
    numbers = cat_or_dog(rows(range(4)))
    numbers = [line.replace("cat", "1").replace("dog", "-1") for line in numbers]
    people.write_text("\n".join([HEAD, *numbers]) + "\n")
    told.append(demur("insert", people, *COLUMNS))
    told.append(demur("certificates", "--id", "001"))
    assert demur("insert", people, *COLUMNS, "--memory-key", key)["inserted"] == 4
    (tmp_path / "secrets" / "other.key").write_bytes(b"k" * 32)
    (tmp_path / "secrets" / "other.key").chmod(0o600)
    told.append(demur("delete", "001", "-o", "out", *other))
    told.append(demur("delete", "001", *out, "--limit-noise", 1e-9))
    told.append(demur("delete", "--person", "1", *out, "--limit-person", 1))
    said = [each["error"]["message"] for each in told]
    for part, message in zip(
        ["mode 'ogd' has no option 'tempo': it has loss", "`demur unlearn open` makes",
         "(--memory-key)", "(--keys), and the key of its memory (--memory-key)",
         "this key (--memory-key) is not", "1e-09 (--limit-person, --limit-days,",
         "It can wait (--on-exhausted queue)"],
        said, strict=True,
    ):  # fmt: skip
        assert part in message
    assert not re.search(r"[a-z_]+=|\w\(\)|\w_\w|read_only", " ".join(said[2:]))


def test_a_wrong_value_is_told_by_the_name_of_its_option(demur):
    published = ["--answers", "published", "--epsilon", 1, "--delta", 1e-6]
    wrong = {
        "--epsilon must be positive": ["--epsilon", 0, "--delta", 1e-6],
        "--epsilon and --delta must be given": [],
        "--publications must be at least 1": [*published, "--publications", 0],
        "--requests-per-subject must": ["--requests-per-subject", 0, *published[2:]],
    }
    for part, given in wrong.items():
        said = demur("open", "--dimension", 2, *given)["error"]["message"]
        assert said.startswith(part) and said.endswith(". Nothing was created.")
    assert demur("open", "--mode", "ridge", "--dimension", 2)["exit_code"] == 0
    assert demur("evidence", "-o", "ev.db")["exit_code"] == 0
    told = [
        demur("delete", "1", "--limit-noise", -1),
        demur("delete", "1", "--on-exhausted", "retrain"),
        demur("retrain"),
        demur("delete", "1", "--ledger", "none.db"),
        json.loads(run("unlearn", "status", "ev.db", "--json").stdout),
        json.loads(run("unlearn", "verify", "ev.db", "--ledger", "none.db",
                       "--json").stdout),
    ]  # fmt: skip
    for part, each in zip(
        ["--limit-noise must be positive", "no encrypted store", "name the records",
         "`demur ledger create` makes", "this is an evidence file", "no ledger at"],
        told, strict=True,
    ):  # fmt: skip
        assert part in each["error"]["message"]
        assert not re.search(r"[a-z_]+=|\w\(|\w_\w", each["error"]["message"])


@pytest.mark.parametrize(
    "data", [[{"id": SECRET}], {"id": SECRET, "version": 3}, {"time": [SECRET]}]
)
def test_a_file_that_is_no_certificate_is_not_quoted(filled, tmp_path, data):
    file = tmp_path / "people.json"
    if "time" in data:
        held = tmp_path / filled("delete", "003", "-o", "out")["certificates"][0]
        data = json.loads(held.read_text()) | data
    file.write_text(json.dumps(data))
    result = run("unlearn", "verify", file, filled.service)
    said = result.output + result.stderr
    assert result.exit_code == 1 and "not a certificate of deletion" in said
    assert "Jane" not in said


def test_a_space_beside_an_id_names_no_other_record(demur, tmp_path):
    """`--from` read "7 " as "7", which is another record where both are live."""
    demur.open()
    (tmp_path / "spaces.csv").write_text(f"{HEAD}\n7,a,0.1,0.2,cat\n7 ,b,0.2,0.1,dog\n")
    told = demur("insert", tmp_path / "spaces.csv", *COLUMNS)
    assert told["inserted"] == 2
    (tmp_path / "ids.txt").write_text("\n7 \n")
    told = demur("delete", "--from", "ids.txt")
    assert "ids.txt, line 2: a space before or after an id" in told["error"]["message"]
    assert demur("status")["live"] == 2
    assert demur("delete", "7 ")["deleted"] == 1
    (tmp_path / "ids.txt").write_text("\r\n7\r\n\r\n")
    assert demur("delete", "--from", "ids.txt")["deleted"] == 1


def test_a_retrain_names_whose_records_they_are(filled, table):
    """--subject was not looked at for live records: the service had another person."""
    swapped = table(range(20), "swapped.csv", change=lambda lines: [
        line.replace(f",{at // 2},", ",somebody else,", 1) if at == 3 else line
        for at, line in enumerate(cat_or_dog(lines))
    ])  # fmt: skip
    told = filled("retrain", swapped, *COLUMNS)
    assert "was learned as another person's" in told["error"]["message"]
    same = table(range(20), "same.csv", change=cat_or_dog)
    assert filled("retrain", same, *COLUMNS)["deleted"] == 0
