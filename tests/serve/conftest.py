"""A service over each kind of store."""

import pytest

from tests.ledger.conftest import (  # noqa: F401  fixtures
    _keys_in_tmp,
    ledger_url,
    postgres_url,
    server,
)
from tests.serve.kit import serving


@pytest.fixture
def served(ledger_url, tmp_path):  # noqa: F811
    """A service over a ledger in a file, and over one on a server."""
    with serving(ledger_url, tmp_path) as service:
        yield service


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One service for tests that do not count rows."""
    folder = tmp_path_factory.mktemp("served")
    with serving(str(folder / "visits.db"), folder) as service:
        yield service
