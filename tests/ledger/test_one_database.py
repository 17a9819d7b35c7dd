"""One database, one ledger, on a server that keeps what it acknowledged."""

import pytest

from demur import Ledger
from demur.core.accounting.events import GaussianEvent
from demur.durable import postgres
from demur.errors import LedgerMismatch
from tests.ledger.kit import BUDGET, UNIT, ask, edit, says

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
TERMS = {"dataset": "people", "budgets": {UNIT: BUDGET}}
NOISY = says(GaussianEvent(20.0))


@pytest.fixture
def two_roles(postgres_url):
    """Two roles, each with a schema of its own that its search_path names first."""
    for role in ("anna", "berta"):
        edit(
            postgres_url,
            f"CREATE ROLE {role} LOGIN SUPERUSER",
            f"CREATE SCHEMA {role} AUTHORIZATION {role}",
            f"ALTER ROLE {role} SET search_path = {role}, public",
        )
    yield [postgres_url.replace("demur@", f"{r}@") for r in ("anna", "berta")]
    for role in ("anna", "berta"):
        edit(postgres_url, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_two_roles_with_schemas_of_their_own_share_one_ledger(two_roles):
    anna, berta = (Ledger.open(url, **TERMS) for url in two_roles)
    with anna, berta:
        anna.charge(NOISY, label="by anna")
        berta.charge(NOISY, label="by berta")
        assert [e.label for e in anna.entries()] == ["by anna", "by berta"]
        assert anna.id == berta.id


def test_a_search_path_in_the_address_makes_no_second_ledger(postgres_url):
    other = f"{postgres_url}&options=-c%20search_path%3Dpg_temp%2Cpublic"
    with Ledger.open(postgres_url, **TERMS) as one, Ledger.open(other, **TERMS) as two:
        one.charge(NOISY, label="one")
        assert len(two.entries()) == 1


def test_with_the_roles_own_search_path_there_would_be_two(two_roles, monkeypatch):
    """The sabotaged twin: each role's tables, where its search_path puts them."""
    old = postgres._DURABLE.rpartition(", set_config")[0]
    monkeypatch.setattr(postgres, "_DURABLE", old)
    monkeypatch.setattr(postgres, "schemas_with", lambda *_: [])
    anna, berta = (Ledger.open(url, **TERMS) for url in two_roles)
    with anna, berta:
        assert anna.id != berta.id


def test_a_ledger_in_another_schema_is_refused(postgres_url):
    edit(
        postgres_url,
        "CREATE SCHEMA mine",
        "CREATE TABLE mine.demur_ledger (id INTEGER)",
    )
    with pytest.raises(LedgerMismatch, match=r"mine\.demur_ledger.*Nothing"):
        Ledger.open(postgres_url, **TERMS)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_a_commit_is_refused(server, postgres_url, setting):
    def set_to(value):
        server.admin(f"ALTER SYSTEM SET {setting} = {value}")
        server.admin("SELECT pg_reload_conf()")
        while ask(postgres_url, f"SHOW {setting}") != [(value,)]:
            pass

    set_to("off")
    try:
        with pytest.raises(LedgerMismatch, match=f"{setting} = off.*unsafe_server"):
            Ledger.open(postgres_url, **TERMS)
        with Ledger.open(postgres_url, unsafe_server=True, **TERMS) as ledger:
            entry = ledger.charge(NOISY, label="at a risk")
            assert f"{setting} = off" in entry.statement()
        Ledger.open(postgres_url, read_only=True).close()
    finally:
        set_to("on")
    with Ledger.open(postgres_url) as ledger:
        assert ledger.entries()[0].unsafe == (f"{setting} = off",)
        assert ledger.charge(NOISY, label="safe").unsafe == ()
