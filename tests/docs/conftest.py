"""What a page may ask for and a machine may not have: a PostgreSQL server, Spark."""

import shutil
import sys

import pytest

from tests.ledger.kit import NoServer, Server


@pytest.fixture
def ledger_on_a_server(monkeypatch, tmp_path):
    """The address in DEMUR_LEDGER, of an empty database."""
    pytest.importorskip("psycopg", reason="machine: psycopg is not installed")
    try:
        server = Server()
    except NoServer as error:
        pytest.skip(f"machine: {error}")
    monkeypatch.setenv("DEMUR_LEDGER", server.url(server.new_database()))
    monkeypatch.setenv("DEMUR_KEYS", str(tmp_path / "keys"))
    yield
    server.close()


@pytest.fixture
def spark_here(monkeypatch):
    """PySpark and a Java to run it."""
    java = pytest.importorskip(
        "tests.adapters.spark.java", reason="machine: no PySpark", exc_type=ImportError
    )
    if shutil.which("java") is None:
        pytest.skip("machine: no Java")
    # Pages set it; it shall not outlive them.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    frugal = " ".join(f"--conf {name}={value}" for name, value in java.FRUGAL.items())
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        f'--driver-java-options "{java.JAVA}" {frugal} pyspark-shell',
    )
    # Java reads relative paths from the folder it was started in: one for each page.
    java.end_java()
    yield
    java.end_java()
