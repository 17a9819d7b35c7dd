"""The attack of `test_residue.py` on a service on a server, with a dump of its tables.

The attacker holds the folder of keys and a dump of every table in the database. Whoever
holds the server's own files has its log and its freed pages as well: the page says so.
"""

import shutil
import sqlite3

import numpy as np
import pytest
import sqlalchemy as sa
from scipy.stats import binom

from demur.unlearning.records import rows as stored
from demur.unlearning.records.seals import Seals
from tests.ledger.conftest import postgres_url, server
from tests.unlearning import test_residue as residue

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
__all__ = ["postgres_url", "server"]


def dumped(url, keys, folder):
    """Every table of the database in a file, with the keys beside it; then none."""
    folder.mkdir()
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    file = sqlite3.connect(folder / "model.db")
    tables = 0
    with engine.begin() as connection:
        for name in sa.inspect(connection).get_table_names(schema="demur"):
            rows = connection.execute(sa.text(f'SELECT * FROM demur."{name}"'))
            columns = ", ".join(f'"{column}"' for column in rows.keys())
            file.execute(f'CREATE TABLE "{name}" ({columns})')
            marks = ", ".join("?" for _ in rows.keys())
            for row in rows:
                values = [bytes(v) if isinstance(v, memoryview) else v for v in row]
                file.execute(f'INSERT INTO "{name}" VALUES ({marks})', values)
            tables += 1
        connection.execute(sa.text("DROP SCHEMA demur CASCADE"))
    file.commit()
    file.close()
    engine.dispose()
    assert tables > 8, "the service's tables and the ledger's"
    shutil.move(keys, folder / "model.db.keys")
    return folder / "model.db"


def named(url, folder, case, trials, **more):
    """How often the attacker names the true record, of so many trials."""
    rng = np.random.default_rng(5)
    right = 0
    for trial in range(trials):
        choice = int(rng.integers(residue.CANDIDATES))
        keys = folder / f"keys{trial}"
        residue.service_with(url, choice, case, keys=keys, **more)
        path = dumped(url, keys, folder / f"dump{trial}")
        right += residue.attack(path, case, rng) == choice
    return right


@pytest.mark.parametrize(
    ("case", "trials"),
    [("ridge", 4)]
    + [pytest.param(case, 24, marks=pytest.mark.deep) for case in residue.MODES],
)
def test_a_dump_does_not_name_the_deleted_record(postgres_url, tmp_path, case, trials):
    """A leak that names it in every case is found; in `make deep`, one in half of them.

    A trial on a server takes over a second.
    """
    limit = residue.most(case, trials)
    assert limit < trials and (trials < 24 or binom.sf(limit, trials, 0.5) > 0.95)
    key = residue.key_of(case)
    assert named(postgres_url, tmp_path, case, trials, memory_key=key) <= limit


@pytest.mark.parametrize(
    "leak", ["seal keys", pytest.param("content", marks=pytest.mark.deep)]
)
def test_the_twins_name_it(postgres_url, tmp_path, monkeypatch, leak):
    if leak == "seal keys":
        monkeypatch.setattr(Seals, "destroy_others", lambda _: None)
    else:
        kept = stored._END_RECORD.values(content=stored.tables.records.c.content)
        monkeypatch.setattr(stored, "_END_RECORD", kept)
    assert named(postgres_url, tmp_path, "ridge", 1) == 1


def test_a_dump_does_not_tell_whose_record_was_deleted(postgres_url, tmp_path):
    keys = tmp_path / "keys"
    residue.service_with(postgres_url, 0, "ridge", keys=keys)
    path = dumped(postgres_url, keys, tmp_path / "dump")
    found = residue.ids_found(path, residue.IDS)
    assert f"person {residue.AT}" not in found
    assert len(set(found)) == residue.OTHERS - 1, "live ones are known by their names"
