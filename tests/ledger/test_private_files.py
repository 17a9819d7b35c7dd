"""Secrets that somebody else could have read or planted are not believed."""

import hashlib
import hmac
import os
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur import Budget, Ledger
from demur.core.accounting.events import GaussianEvent
from demur.durable import chain, private_files
from demur.durable.keys import KeyStore
from demur.errors import KeysExposed
from demur.ledger import load_signing_key
from tests.ledger.kit import UNIT, ask, says

NOISY = says(GaussianEvent(20.0))
PLANTED = bytes(range(32))
REPEATABLE = {"label": "count", "digest": "d" * 64, "idempotency_key": "monday"}


@pytest.fixture
def place(tmp_path):
    """The folder of a ledger's keys, as another user of the machine prepared it."""
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    secret = folder / "input-digests.key"
    secret.write_bytes(PLANTED)
    secret.chmod(0o600)
    return folder


@pytest.fixture
def ledger(tmp_path, opened):
    return opened(
        tmp_path / "ledger.db",
        dataset="d",
        budgets={UNIT: Budget(2.0, 1e-6)},
        keys=tmp_path / "keys",
    )


def guessed(tmp_path):
    """Whether the planter of the secret can confirm a guess of the input."""
    ((body,),) = ask(str(tmp_path / "ledger.db"), "SELECT body FROM demur_rows")
    text = f"key monday\x00{'d' * 64}".encode()
    return hmac.new(PLANTED, text, hashlib.sha256).hexdigest() in body


def folder_open_to_others(place):
    place.chmod(0o777)


def folder_read_by_a_group(place):
    place.chmod(0o750)


def secret_open_to_others(place):
    (place / "input-digests.key").chmod(0o666)


def secret_read_by_others(place):
    (place / "input-digests.key").chmod(0o604)


def secret_with_a_second_name(place):
    os.link(place / "input-digests.key", place.parent / "mine")


def secret_elsewhere(place):
    secret = place / "input-digests.key"
    secret.rename(place.parent / "mine")
    secret.symlink_to(place.parent / "mine")


def folder_elsewhere(place):
    place.rename(place.parent / "mine")
    place.symlink_to(place.parent / "mine")


def no_file(place):
    secret = place / "input-digests.key"
    secret.unlink()
    secret.mkdir(mode=0o700)


ATTACKS = {
    folder_open_to_others: "has mode 777.* chmod 700 ",
    folder_read_by_a_group: "has mode 750.* chmod 700 ",
    secret_open_to_others: "has mode 666.* chmod 600 ",
    secret_read_by_others: "has mode 604.* chmod 600 ",
    secret_with_a_second_name: "2 names",
    secret_elsewhere: "symbolic link",
    folder_elsewhere: "a plain folder is needed",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_planted_secret_is_not_believed(place, ledger, attack):
    attack(place)
    with pytest.raises(KeysExposed, match=ATTACKS[attack]) as error:
        ledger.charge(NOISY, **REPEATABLE)
    assert "Nothing was spent" in str(error.value)
    assert ledger.entries() == [] and ledger.epsilon() == 0.0
    assert PLANTED.hex() not in str(error.value)


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_the_checks_it_would_be(place, ledger, attack, tmp_path, monkeypatch):
    """The sabotaged twin: whoever planted the secret confirms a guess of the input."""
    attack(place)
    monkeypatch.setattr(private_files, "_check", lambda *_, **__: None)
    monkeypatch.setattr(private_files, "read_file", lambda path, **_: path.read_bytes())
    ledger.charge(NOISY, **REPEATABLE)
    assert guessed(tmp_path)


@pytest.mark.parametrize("mine", ["folder", "secret"])
def test_what_another_user_owns_is_not_believed(place, ledger, mine, monkeypatch):
    path = place if mine == "folder" else place / "input-digests.key"
    whole = private_files._check

    def foreign(found, where, **options):
        if where == path:
            monkeypatch.setattr(os, "geteuid", lambda: found.st_uid + 1)
        whole(found, where, **options)

    monkeypatch.setattr(private_files, "_check", foreign)
    with pytest.raises(KeysExposed, match="belongs to another user"):
        ledger.charge(NOISY, **REPEATABLE)
    assert ledger.entries() == []


def test_a_secret_must_be_a_file(place, ledger):
    no_file(place)
    with pytest.raises(KeysExposed, match="a plain file is needed"):
        ledger.charge(NOISY, **REPEATABLE)
    assert ledger.entries() == []


def test_own_secrets_are_private_and_believed(tmp_path, ledger):
    entry = ledger.charge(NOISY, **REPEATABLE)
    assert ledger.charge(NOISY, **REPEATABLE) == entry
    folder = tmp_path / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 2
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert all(file.stat().st_nlink == 1 for file in files)


def test_a_killed_writer_leaves_no_second_name(tmp_path):
    """Killed between giving the key its name and removing the name it had before."""
    store = KeyStore(tmp_path / "keys")
    store.put("one", PLANTED, keep=True)
    path = tmp_path / "keys" / "one.key"
    os.link(path, path.with_name("one.key.4711.0123abcd"))
    assert store.take("one", keep=True) == PLANTED
    assert [p.name for p in path.parent.iterdir()] == ["one.key"]
    # A name of any other kind is somebody's copy.
    os.link(path, path.with_name("copy"))
    with pytest.raises(KeysExposed, match="2 names"):
        store.take("one", keep=True)


# -- signing keys ----------------------------------------------------------------------


def pem_of(key, path, password=None):
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    path.chmod(0o600)
    return path


@pytest.fixture
def signer():
    return Ed25519PrivateKey.generate()


def test_a_signing_key_that_others_can_read_is_refused(tmp_path, signer):
    path = pem_of(signer, tmp_path / "signer.pem")
    assert chain.public_hex(load_signing_key(path)) == chain.public_hex(signer)
    path.chmod(0o644)
    with pytest.raises(KeysExposed, match=r"has mode 644.* chmod 600 '.*signer\.pem'"):
        load_signing_key(path)
    path.chmod(0o600)
    # A copy that the owner made has any name, and is never removed.
    copy = tmp_path / "signer.pem.4711.0123abcd"
    os.link(path, copy)
    with pytest.raises(KeysExposed, match="2 names"):
        load_signing_key(path)
    copy.unlink()
    (tmp_path / "link.pem").symlink_to(path)
    with pytest.raises(KeysExposed, match="symbolic link"):
        load_signing_key(tmp_path / "link.pem")


def test_a_signing_key_may_have_a_password(tmp_path, signer):
    path = pem_of(signer, tmp_path / "signer.pem", "open sesame")
    terms = {"dataset": "d", "budgets": {UNIT: Budget(2.0, 1e-6)}}
    url = tmp_path / "ledger.db"
    with pytest.raises(ValueError, match=r"needs a password.*load_signing_key"):
        Ledger.open(url, signing_key=path, **terms)
    assert not url.exists()
    with pytest.raises(ValueError, match="password is wrong"):
        load_signing_key(path, "sesame")
    key = load_signing_key(path, "open sesame")
    with Ledger.open(url, signing_key=key, **terms) as ledger:
        ledger.charge(NOISY, label="count")
        assert ledger.verify(signer=chain.public_hex(signer)).ok
    plain = pem_of(signer, tmp_path / "plain.pem")
    with pytest.raises(ValueError, match="takes no password"):
        load_signing_key(plain, "open sesame")


def test_a_file_that_is_no_key_is_told_so(tmp_path):
    path = tmp_path / "signer.pem"
    path.write_text("not a key")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="holds no Ed25519 private key"):
        load_signing_key(path)
