"""`demur unlearn` as an operator, a person and an auditor use it."""

import json
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.cli.shell import Code
from demur.durable.chain import public_hex
from demur.unlearning import UnlearningService
from demur.unlearning.service.deletion import Deletions
from tests.commands import run

pytestmark = pytest.mark.slow
HEAD = "id,who,a,b,kind"
KINDS = ["cat", "dog, small", "dog, large"]


def rows(numbers):
    """Records as lines of a CSV: ids with leading zeros, two for each person."""
    lines = []
    for number in numbers:
        rng = np.random.default_rng([3, number])
        a, b = (float(v) for v in rng.normal(size=2) / 3)
        kind = KINDS[number % 2]
        lines.append(f'{number:03d},{number // 2},{a!r},{b!r},"{kind}"')
    return lines


@pytest.fixture
def table(tmp_path):
    def write(numbers, name="people.csv", head=HEAD, change=lambda lines: lines):
        file = tmp_path / name
        file.write_text("\n".join([head, *change(rows(numbers))]) + "\n")
        return file

    return write


COLUMNS = ["--id", "id", "--label", "kind", "--subject", "who"]


class Operator:
    """The commands on one service, with the options that they share."""

    def __init__(self, folder):
        self.folder, self.service = folder, folder / "service" / "model.db"
        self.service.parent.mkdir()
        self.shared = []

    def __call__(self, command, *given, shared=True):
        options = [*(self.shared if shared else []), "--json"]
        result = run("unlearn", command, self.service, *given, *options)
        assert result.stdout, result.output
        told = json.loads(result.stdout)
        told["exit_code"] = result.exit_code
        told["stderr"] = result.stderr
        return told

    def open(self, *given):
        return self(
            "open", "--mode", "ridge", "--dimension", 2, "--option", "Lambda=2.0",
            "--classes", "cat,dog", "--record-store", "encrypted", *given,
        )  # fmt: skip


@pytest.fixture
def demur(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Operator(tmp_path)


def cat_or_dog(lines):
    """Labels without a comma, as `--classes cat,dog` names them."""
    return [line.replace("dog, small", "dog").replace('"', "") for line in lines]


@pytest.fixture
def filled(demur, table):
    assert demur.open()["exit_code"] == 0
    told = demur("insert", table(range(20), change=cat_or_dog), *COLUMNS)
    assert (told["inserted"], told["skipped"], told["live"]) == (20, 0, 20)
    return demur


def test_from_opening_to_a_page_for_the_person(filled, tmp_path):
    """Each command as it is, and what they write fits together."""
    told = filled("delete", "003", "005", "-o", "out")
    assert told["deleted"] == 2 and set(told["ids"]) == {"003", "005"}
    file = tmp_path / told["ids"]["003"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.suffix for p in (tmp_path / "out").iterdir()] == [".json", ".json"]
    assert filled("status")["live"] == 18
    verify = ["unlearn", "verify", file]
    holds = run(*verify, filled.service, "--id", "003")
    assert holds.exit_code == 0 and "The certificate holds. Not checked" in holds.output
    wrong = run(*verify, filled.service, "--id", "005")
    assert wrong.exit_code == 1 and "the opening says so" in wrong.output
    assert run(*verify, filled.service, "--subject", "1").exit_code == 0
    # The opening by itself, as text and as a file; the public certificate without it.
    told = json.loads(file.read_text())
    opening, public = told.pop("opening"), tmp_path / "public.json"
    public.write_text(json.dumps(told))
    (tmp_path / "opening.txt").write_text(opening)
    for given in (opening, "opening.txt"):
        checked = run("unlearn", "verify", public, filled.service, "--id", "003",
                      "--opening", given)  # fmt: skip
        assert checked.exit_code == 0, checked.output
    assert run("unlearn", "verify", public, filled.service, "--id", "003").exit_code
    # Evidence, alone.
    assert filled("evidence", "-o", "evidence.db", shared=False)["certificates"] == 2
    assert run(*verify, "evidence.db", "--id", "003").exit_code == 0
    whole = json.loads(run("unlearn", "verify", "evidence.db", "--json").stdout)
    assert whole["ok"] and any("holds no state" in line for line in whole["unknown"])
    page = run("unlearn", "certificate", file, "--html", "page.html", "--id", "003")
    assert page.exit_code == 0 and "003" in (tmp_path / "page.html").read_text()
    other = run("unlearn", "certificate", file, "--html", "other.html", "--id", "005")
    assert other.exit_code == 1 and not (tmp_path / "other.html").exists()
    listed = filled("certificates", shared=False)["certificates"]
    assert told["record"] in {each["record"] for each in listed}


def test_persons_files_of_ids_and_a_retrain(filled, table, tmp_path):
    assert filled("delete", "--person", "4")["deleted"] == 2
    (tmp_path / "ids.txt").write_text("000\n001\n")
    assert filled("delete", "--from", "ids.txt")["deleted"] == 2
    some = table([2, 3], "some.csv", change=cat_or_dog)
    told = filled("delete", "--from", some, "--id", "id")
    assert told["deleted"] == 2 and filled("status")["live"] == 14
    stay = table(range(10, 22), "stay.csv", change=cat_or_dog)
    told = filled("retrain", stay, *COLUMNS)
    assert "row 11: no record of this id is live (2 such rows)" in str(told["error"])
    told = filled("retrain", stay, *COLUMNS, "--new")
    assert told["new"] == 2
    assert told["deleted"] == 4 and filled("status")["live"] == 12
    assert len(list((tmp_path / "certificates").iterdir())) == 10
    with UnlearningService.open(filled.service, read_only=True) as service:
        assert service.predict([0.1, 0.1]) in ("cat", "dog")
        assert service.verify().ok


def test_parquet_with_an_embedding_and_numbers_as_ids(demur, tmp_path):
    demur("open", "--dimension", 3, "--epsilon", 1, "--delta", 1e-6)
    table = pa.table(
        {
            "key": [7, 8, 9],
            "more": ["x", "y", "z"],
            "vector": [[0.1, 0.2], [0.3, 0.1], [0.0, 0.4]],
            "c": [0.5, 0.1, 0.2],
            "y": [1, 0, 1],
        }
    )
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    given = ["rows.parquet", "--id", "key", "--label", "y"]
    refused = demur("insert", *given)
    assert "'more' must hold numbers" in refused["error"]["message"]
    assert demur("insert", *given, "--features", "vector,c")["inserted"] == 3
    assert demur("delete", 8)["deleted"] == 1
    refused = demur("insert", *given, "--features", "vector")
    assert "2 features, and the service has dimension 3" in refused["error"]["message"]


def changed(line, old, new):
    return lambda lines: [
        *lines[:line],
        lines[line].replace(old, new, 1) if old else new,
        *lines[line + 1 :],
    ]


BAD = {
    "a missing column": (["--id", "key"], None, "has no column 'key'"),
    "a column named twice": (["--subject", "id"], None, "must differ"),
    "an id twice": ([], changed(3, "003", "001"), "row 4: its id occurs before"),
    "no id": ([], changed(3, "003", ""), "column 'id', row 4: a value is missing"),
    "a label that is no class": ([], changed(2, "cat", "cow"), "row 3: 'kind' is no"),
    "NaN": ([], changed(4, ",0.", ",nan,0."), None),
    "text in a feature": ([], changed(1, None, "001,0,x,0.5,dog"), "must hold numbers"),
    "infinity": ([], changed(1, None, "001,0,inf,0.5,dog"), "row 2: NaN or infinity"),
    "a hole": ([], changed(1, None, "001,0,,0.5,dog"), "row 2: a value is missing"),
    "too few columns": (["--features", "a"], None, "1 features"),
    "no rows": ([], lambda lines: [], "has no row"),
}


def test_bad_input_is_told_and_nothing_is_learned(demur, table):
    """The row and the column are named, no value is, and nothing has changed."""
    demur.open()
    before = demur("status")
    for what, (options, change, said) in BAD.items():
        file = table(
            range(6),
            change=lambda lines, change=change: (change or list)(cat_or_dog(lines)),
        )
        told = demur("insert", file, *COLUMNS, *options)
        assert told["exit_code"] == Code.ERROR, what
        message = told["error"]["message"]
        assert said is None or said in message, message
        assert "cow" not in message and "0.5" not in message
    assert demur("status") == before and before["live"] == 0


def test_a_file_that_was_interrupted_goes_on(demur, table, monkeypatch):
    """Whole batches are there; the rest comes with --skip-live, and none twice."""
    demur.open()
    file = table(range(20), change=cat_or_dog)
    honest, calls = UnlearningService.insert_many, []

    def killed(service, *given, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return honest(service, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(UnlearningService, "insert_many", killed)
        told = demur("insert", file, *COLUMNS, "--batch", 6)
    assert told["exit_code"] == Code.INTERRUPTED
    assert "At least 12 of 20" in told["error"]["message"]
    assert demur("status")["live"] == 12
    told = demur("insert", file, *COLUMNS)
    assert told["exit_code"] == 1 and "12 such rows" in told["error"]["message"]
    assert demur("status")["live"] == 12
    told = demur("insert", file, *COLUMNS, "--skip-live")
    assert (told["inserted"], told["skipped"], told["live"]) == (8, 12, 20)
    # A row that is live with other values is no repetition.
    other = table(range(20), change=lambda lines: cat_or_dog(lines[1:] + lines[:1]))
    lines = other.read_text().splitlines()
    lines[3] = lines[3].replace("0.", "0.1", 1)
    other.write_text("\n".join(lines))
    told = demur("insert", other, *COLUMNS, "--skip-live")
    assert "row 3" in told["error"]["message"] and "other values" in str(told)
    told = demur("insert", table(range(3), head="id,who,a,c,kind"), *COLUMNS)
    assert told["exit_code"] == 1


def test_an_opening_outlives_a_deletion_that_is_killed(filled, tmp_path, monkeypatch):
    """Without a memory key the service knows it until then: it is on disk before."""
    honest = Deletions.commit

    def killed(deletions, *given):
        honest(deletions, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "commit", killed)
        filled("delete", "003")
    (left,) = (tmp_path / "certificates").iterdir()
    assert left.suffix == ".opening" and filled("status")["live"] == 19
    filled("certificates", "-o", "again", shared=False)
    (again,) = (tmp_path / "again").iterdir()
    checked = run("unlearn", "verify", again, filled.service, "--id", "003",
                  "--opening", left)  # fmt: skip
    assert checked.exit_code == 0, checked.output


def test_what_a_crash_cut_short_is_handed_over_by_the_next_command(
    filled, tmp_path, monkeypatch, table
):
    """Whichever command it is: another process would not have its opening."""
    with monkeypatch.context() as patch:
        patch.setattr(Deletions, "commit", lambda *_: 1 / 0)
        patch.setattr(Deletions, "abandon", lambda *_: None)
        with (
            UnlearningService.open(filled.service) as service,
            pytest.raises(ZeroDivisionError),
        ):
            service.delete("003")
    told = filled("insert", table([30], "more.csv", change=cat_or_dog), *COLUMNS)
    assert told["live"] == 20 and "interrupted request" in told["stderr"]
    (file,) = (tmp_path / "certificates").iterdir()
    assert run("unlearn", "verify", file, filled.service, "--id", "003").exit_code == 0


def test_what_is_refused_leaves_no_file(filled, tmp_path):
    for given, said in (
        (["no such id"], "no record of this id is live"),
        ([], "say what to delete"),
        (["003", "--person", "1"], "say what to delete"),
        (["003", "--data", "people.csv"], "--data needs"),
    ):
        told = filled("delete", *given)
        assert told["exit_code"] == 1 and said in told["error"]["message"]
    left = tmp_path / "certificates"
    assert not left.exists() or list(left.iterdir()) == []
    (tmp_path / "open").mkdir(0o755)
    told = filled("delete", "003", "-o", "open")
    assert told["exit_code"] == 1 and "chmod 700" in told["error"]["message"]
    assert filled("status")["live"] == 20
    told = filled("delete", "999", "--data", "people.csv", "--id", "id", "--label",
                  "kind", "--features", "a,b")  # fmt: skip
    assert "has no row for 1 of the ids" in told["error"]["message"]


def test_a_queue_and_a_record_from_a_file(demur, table, tmp_path):
    """No store: the mode must see the record. No capacity: the request waits."""
    file = table(range(6), change=cat_or_dog)
    demur("open", "--mode", "logistic", "--dimension", 2, "--epsilon", 1, "--delta",
          1e-6, "--capacity", 1, "--option", "Lambda=5", "--option", "tolerance=0.05",
          "--classes", 2)  # fmt: skip
    with UnlearningService.open(demur.service) as service:
        assert service.terms.config["Lambda"] == 5 and service.terms.labels is None
    numbers = file.read_text().replace("cat", "0").replace("dog", "1")
    file.write_text(numbers)
    columns = ["--id", "id", "--label", "kind"]
    assert demur("insert", file, *columns, "--subject", "who")["inserted"] == 6
    assert "must see a record" in demur("delete", "003")["error"]["message"]
    seen = ["--data", file, *columns, "--features", "a,b"]
    assert demur("delete", "000", *seen)["deleted"] == 1
    told = demur("delete", "002", *seen)
    assert told["exit_code"] == Code.DECLINED and "error" in told
    told = demur("delete", "002", *seen, "--on-exhausted", "queue")
    assert told["exit_code"] == Code.DECLINED and told["waiting"] == 1
    (waiting,) = demur("queue")["waiting"]
    assert waiting["reason"] == "privacy" and not waiting["overdue"]
    assert len(demur("queue", "--process")["waiting"]) == 1, "no capacity is left yet"
    assert "deadline" in run("unlearn", "queue", demur.service).output
    stay = table([1, 3, 4, 5], "stay.csv", change=cat_or_dog)
    stay.write_text(stay.read_text().replace("cat", "0").replace("dog", "1"))
    assert demur("retrain", stay, *columns, "--features", "a,b")["deleted"] == 1
    assert demur("queue")["waiting"] == []


def test_a_passphrase_a_signer_and_a_tip(demur, table, tmp_path, monkeypatch):
    key = Ed25519PrivateKey.from_private_bytes(bytes([5] * 32))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (tmp_path / "key.pem").chmod(0o600)
    monkeypatch.setenv("DEMUR_PASSPHRASE", "a long and winding road")
    told = demur.open("--passphrase", "--signing-key", "key.pem")
    assert told["remembers"] and told["signer"] == public_hex(key)
    demur.shared = ["--passphrase", "--signing-key", "key.pem"]
    file = table(range(4), change=cat_or_dog)
    demur("insert", file, *COLUMNS)
    backup = ["backup", "copy", "--with-keys"]
    assert demur(*backup, shared=False)["keys"] is True
    told = demur("delete", "003")
    certificate, tip = told["certificates"][0], told["tip"]
    signed = run("unlearn", "verify", certificate, demur.service, "--signer",
                 public_hex(key), "--id", "003")  # fmt: skip
    assert signed.exit_code == 0, signed.output
    other = run("unlearn", "verify", certificate, demur.service, "--signer", "00" * 32)
    assert other.exit_code == 1
    # Handed out again, by id and with the memory key alone.
    told = demur("certificates", "--id", "003", "--passphrase", "-o", "again",
                 shared=False)  # fmt: skip
    (again,) = told["written"]
    assert json.loads((tmp_path / again).read_text())["opening"]
    assert demur("delete", "003")["deleted"] == 1, "the same certificate"
    monkeypatch.setenv("DEMUR_PASSPHRASE", "another one, wrong")
    assert (
        "this key (--memory-key) is not" in demur("delete", "002")["error"]["message"]
    )
    monkeypatch.setenv("DEMUR_PASSPHRASE", "a long and winding road")
    assert (
        "give their key (--signing-key)"
        in demur("delete", "002", "--passphrase", shared=False)["error"]["message"]
    )
    # The backup lacks the deletion; a tip that was kept tells.
    demur.service = tmp_path / "copy" / "model.db"
    told = demur("insert", file, *COLUMNS, "--tip", tip)
    assert told["exit_code"] == 1 and "does not contain row" in str(told["error"])


def test_published_answers_from_the_command_line(demur, table):
    told = demur(
        "open", "--dimension", 2, "--epsilon", 1, "--delta", 1e-6,
        "--answers", "published", "--publications", 5, "--records-per-subject", 2,
    )  # fmt: skip
    assert told["publications_left"] == 5
    assert told["terms"]["answers"]["count"] == 5
    file = table(range(6), change=cat_or_dog)
    file.write_text(file.read_text().replace("cat", "0").replace("dog", "1"))
    assert demur("insert", file, *COLUMNS)["inserted"] == 6
    assert demur("publish")["publications_left"] == 4
    assert demur("delete", "003")["deleted"] == 1
    over = demur("delete", "002", "--limit-noise", 1e-9)
    assert over["exit_code"] == Code.DECLINED and "owner's limit" in str(over["error"])
    refused = run("unlearn", "open", demur.folder / "other.db", "--dimension", 2,
                  "--publications", 5)  # fmt: skip
    assert refused.exit_code == 1 and "--answers published" in refused.output


def test_a_service_is_opened_once_and_used_by_name(demur, table):
    file = table(range(2))
    for command, given in (
        ("insert", [file, *COLUMNS]),
        ("delete", ["003"]),
        ("status", []),
        ("evidence", ["-o", "evidence.db"]),
        ("backup", ["copy"]),
    ):
        told = demur(command, *given)
        assert "there is no deletion service" in told["error"]["message"], command
    left = sorted(p.name for p in demur.folder.rglob("*"))
    assert left == ["people.csv", "service"]
    assert demur.open()["exit_code"] == 0
    assert "already" in demur.open()["error"]["message"]
    assert (
        "lam=0.1"
        in demur("open", "--dimension", 2, "--option", "x")["error"]["message"]
    )
