"""`demur unlearn` killed at every point: no opening is lost with the process.

A service without a memory key knows an opening until the record is deleted. Whatever
was deleted in the end has its opening in the folder for certificates.
"""

import itertools
import json
import os
import shutil

import pytest

from demur.unlearning import UnlearningService, verify_evidence
from tests.commands import run
from tests.unlearning.service_kit import DIM, record
from tests.unlearning.test_every_point import killed_at

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork"),
]
COLUMNS = ["--id", "id", "--label", "y", "--subject", "who"]
OPEN = ["--dimension", DIM, "--epsilon", 1, "--delta", 1e-6]
PUBLISHED = ["--answers", "published", "--publications", 4, "--records-per-subject", 2]
COMMANDS: dict[str, list[object]] = {
    "delete": ["delete", "r0", "r1", "r4"],
    "person": ["delete", "--person", "p1"],
    "retrain": ["retrain", "stay.csv", *COLUMNS],
    "waiting": ["queue", "--process", "--limit-person", 50],
    "waiting, by a retrain": ["retrain", "stay.csv", *COLUMNS],
    "publish": ["publish"],
}


def write(name, numbers):
    lines = ["id,who,a,b,c,d,y"]
    for number in numbers:
        x, y = record(number)
        lines.append(f"r{number},p{number // 2},{','.join(map(repr, x.tolist()))},{y}")
    with open(name, "w") as file:
        file.write("\n".join(lines) + "\n")


def openings(folder):
    """The records whose opening is in a folder, by the beginnings of their names."""
    found = set()
    for file in folder.iterdir() if folder.exists() else ():
        text = file.read_text()
        if file.suffix == ".opening" and len(text.strip()) >= 64:
            found.add(file.stem)
        elif file.suffix == ".json" and "opening" in json.loads(text):
            found.add(json.loads(text)["record"][:16])
    return found


@pytest.mark.parametrize("what", COMMANDS)
def test_no_opening_is_lost(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    write("all.csv", range(8))
    write("stay.csv", range(3, 8))
    base = tmp_path / "base"
    base.mkdir()
    more = PUBLISHED if what == "publish" else []
    assert run("unlearn", "open", base / "m.db", *OPEN, *more).exit_code == 0
    assert run("unlearn", "insert", base / "m.db", "all.csv", *COLUMNS).exit_code == 0
    if what.startswith("waiting"):
        late = ["-o", "asked", "--on-exhausted", "queue", "--limit-person", 1]
        asked = run("unlearn", "delete", base / "m.db", "r0", "r1", *late)
        assert asked.exit_code == 3
    command, *given = COMMANDS[what]
    for number in itertools.count(1):
        folder, out = tmp_path / "service", tmp_path / "out"
        shutil.copytree(base, folder)
        if command != "publish":
            given = [*COMMANDS[what][1:], "-o", out]

        def act(_, folder=folder, given=given):
            assert run("unlearn", command, folder / "m.db", *given).exit_code == 0

        _, dead = killed_at(number, act)
        again = run("unlearn", "queue", folder / "m.db", "--process", "-o", out)
        assert again.exit_code == 0, again.output
        assert verify_evidence(folder / "m.db").ok
        with UnlearningService.open(folder / "m.db", read_only=True) as service:
            deleted = {held.record[:16] for held in service.certificates()}
        assert deleted <= openings(out), number
        shutil.rmtree(folder)
        shutil.rmtree(out, ignore_errors=True)
        if not dead:
            break
    assert number > 40 and (deleted or what == "publish")
