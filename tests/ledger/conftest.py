"""One fixture, two stores: every test that takes `ledger_url` runs on both."""

import pytest

from demur import Ledger
from tests.ledger.kit import BUDGET, UNIT, NoServer, Server


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server of this session (of this worker, under xdist)."""
    pytest.importorskip("psycopg", reason="machine: psycopg is not installed")
    try:
        started = Server()
    except NoServer as error:
        pytest.skip(f"machine: {error}")
    yield started
    started.close()


@pytest.fixture
def postgres_url(server):
    """A fresh, empty database."""
    name = server.new_database()
    yield server.url(name)
    server.admin(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
)
def ledger_url(request, tmp_path):
    """The address of a ledger that does not exist yet, on each kind of store."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture(autouse=True)
def _keys_in_tmp(tmp_path, monkeypatch):
    monkeypatch.setenv("DEMUR_KEYS", str(tmp_path / "state"))


@pytest.fixture
def opened():
    """Open ledgers, and close them when the test is over."""
    ledgers = []

    def open_ledger(url, **terms):
        ledgers.append(Ledger.open(url, **terms))
        return ledgers[-1]

    yield open_ledger
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def new_ledger(ledger_url, opened):
    """Open a ledger at `ledger_url` for the first time; terms have defaults."""

    def make(**terms):
        return opened(
            ledger_url, **({"dataset": "people", "budgets": {UNIT: BUDGET}} | terms)
        )

    return make
