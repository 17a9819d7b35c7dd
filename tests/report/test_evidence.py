"""Evidence packs: what is in them, and what somebody cannot change in one unseen."""

import json
import shutil
import zipfile

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import AddOrRemoveOne, Budget, Ledger
from demur.durable.chain import public_hex, sign
from demur.errors import ApprovalPending, BudgetExceeded
from demur.ledger import ApprovalRule
from demur.mechanisms import Gaussian
from demur.report import check_evidence, write_evidence
from tests.commands import run
from tests.report import ledgers

UNIT = AddOrRemoveOne()
KEY = Ed25519PrivateKey.generate()
SIGNER = public_hex(KEY)
FILES = {
    "report.html", "statements.txt", "verification.txt", "audits.json", "ledger.json",
    "deletions.json", "requests.json", "registry.json", "questions.md", "tip.txt",
    "certificates.json", "manifest.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "visits.db"
    terms = {
        "dataset": "visits",
        "budgets": {UNIT: Budget(4.0, 1e-6)},
        "approval": ApprovalRule(above=0.5),
    }
    with Ledger.open(path, signing_key=KEY, actor="ada@example", **terms) as opened:
        Gaussian(20.0, {UNIT: 1.0}, name="a count").release(
            [1.0], ledger=opened, label="May"
        )
        with pytest.raises(ApprovalPending):
            opened.charge(Gaussian(4.0, {UNIT: 1.0}), label="June", idempotency_key="k")
        with pytest.raises(BudgetExceeded):
            opened.charge(Gaussian(0.1, {UNIT: 1.0}), label="all", idempotency_key="a")
        yield opened


@pytest.fixture(scope="module")
def pack(ledger, tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "pack.zip"
    return write_evidence(ledger, path, tip=ledger.tip())


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def test_a_pack_has_everything_and_checks(pack, ledger):
    files = contents(pack)
    assert set(files) == FILES | {"manifest.sig"}
    check = check_evidence(pack, signer=SIGNER, ledger=ledger)
    assert check.ok and check.unknown == () and check.files == len(FILES) - 1
    assert check.tip == str(ledger.tip()) == files["tip.txt"].decode().strip()
    assert b"no problem found" in files["verification.txt"]
    assert b"a count" in files["statements.txt"]
    assert json.loads(files["requests.json"])[0]["state"] == "pending"
    assert len(json.loads(files["registry.json"])) == 1
    rows = files["questions.md"].decode().splitlines()[6:]
    assert len(rows) >= 15 and all(row.count("|") >= 4 for row in rows)
    assert "0.1893 of 4 spent" in rows[0]


def test_no_name_of_a_person_is_in_it(pack):
    for name, content in contents(pack).items():
        assert b"ada@example" not in content, name


def test_a_full_ledger_in_memory_has_a_pack(tmp_path):
    """Audits, deletions and costs by distance; nobody signs it."""
    full = ledgers.full()
    path = write_evidence(full, tmp_path / "pack.zip")
    files = contents(path)
    assert json.loads(files["audits.json"]) and json.loads(files["deletions.json"])
    check = check_evidence(path)
    assert check.ok and any("not signed" in line for line in check.unknown)
    assert not check_evidence(path, signer=SIGNER).ok


@pytest.mark.parametrize("name", sorted(FILES | {"manifest.sig"}))
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_what_is_changed_is_found(pack, tmp_path, name, how):
    files = contents(pack)
    if how == "removed":
        del files[name]
    else:
        files[name] = files[name][:-2] + b"x" + files[name][-1:]
    twin = tmp_path / "twin.zip"
    write(twin, files)
    try:
        assert not check_evidence(twin, signer=SIGNER).ok
    except ValueError as error:
        assert name == "manifest.json" and "no evidence pack" in str(error)


def test_a_pack_made_anew_by_somebody_else_is_found(pack, tmp_path, ledger):
    files, other = contents(pack), Ed25519PrivateKey.generate()
    manifest = json.loads(files["manifest.json"])
    manifest["signer"] = public_hex(other)
    files["manifest.json"] = json.dumps(manifest).encode()
    from demur.ledger import evidence_digest  # noqa: PLC0415

    digest = evidence_digest(files["manifest.json"])
    files["manifest.sig"] = sign(other, digest).encode()
    write(tmp_path / "forged.zip", files)
    assert check_evidence(tmp_path / "forged.zip").ok, "by itself it is consistent"
    assert not check_evidence(tmp_path / "forged.zip", signer=SIGNER).ok


def test_a_pack_of_rows_that_are_gone_is_found(pack, ledger, tmp_path):
    with Ledger.open(
        tmp_path / "other.db", dataset="visits", budgets={UNIT: Budget(1.0, 1e-6)}
    ) as other:
        assert "another ledger" in str(check_evidence(pack, ledger=other))


def test_a_file_too_many_or_twice_is_found(pack, tmp_path):
    files = contents(pack) | {"../../etc/passwd": b"x"}
    write(tmp_path / "more.zip", files)
    check = check_evidence(tmp_path / "more.zip", signer=SIGNER)
    assert any("not of this pack" in problem for problem in check.problems)
    shutil.copy(pack, tmp_path / "twice.zip")
    with (
        zipfile.ZipFile(tmp_path / "twice.zip", "a") as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("tip.txt", "another")
    with pytest.raises(ValueError, match="twice"):
        check_evidence(tmp_path / "twice.zip")


@pytest.mark.parametrize("junk", [b"", b"PK", b"x" * 100])
def test_what_is_no_pack_is_refused(tmp_path, junk):
    (tmp_path / "junk.zip").write_bytes(junk)
    with pytest.raises(ValueError, match="no evidence pack"):
        check_evidence(tmp_path / "junk.zip")


@pytest.mark.parametrize(
    "manifest",
    [
        "[]", "5", "null", "[" * 5000, '{"files": 5}', "\xff", '{"files": {}}',
        '{"files": {}, "tip": 5, "signer": null, "ledger": "x"}',
        '{"files": {}, "tip": "1:a", "signer": null}',
    ],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(tmp_path, manifest):
    write(tmp_path / "odd.zip", {"manifest.json": manifest.encode("latin-1")})
    with pytest.raises(ValueError, match="no evidence pack"):
        check_evidence(tmp_path / "odd.zip")


def test_a_pack_with_any_byte_flipped_is_refused_in_words(pack, tmp_path):
    """Either a problem is found or it is no pack; nothing else is raised."""
    content = pack.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 120)):
        twin = bytearray(content)
        twin[at] ^= 0x41
        (tmp_path / "twin.zip").write_bytes(twin)
        try:
            check = check_evidence(tmp_path / "twin.zip", signer=SIGNER)
        except ValueError as error:
            assert "no evidence pack" in str(error)
        else:
            same = contents(tmp_path / "twin.zip") == contents(pack)
            assert check.ok is same


def test_the_commands(ledger, tmp_path):
    path = ledger._store.path
    made = run("evidence", path, "-o", tmp_path / "pack.zip", "--json")
    assert made.exit_code == 0, made.output
    checked = run("evidence", "verify", tmp_path / "pack.zip", "--json")
    assert checked.exit_code == 0 and json.loads(checked.stdout)["ok"]
    again = run("evidence", "verify", tmp_path / "pack.zip", "--ledger", path, "--json")
    unknown = json.loads(again.stdout)["unknown"]
    assert not any("still has the rows" in line for line in unknown)
    signed = run("evidence", "verify", tmp_path / "pack.zip", "--signer", SIGNER)
    assert signed.exit_code == 1 and "not signed" in signed.output
