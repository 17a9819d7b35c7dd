"""A search whose process is killed: the next one repeats its runs, and pays nothing."""

import json
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, signal, sys
from demur import AddOrRemoveOne, Budget, Ledger, Promise
from demur.mechanisms import Gaussian
from demur.tuning import (
    BinomialRepetitions, NoisyScore, PrivateSearch, SearchCandidate
)

place, written, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
unit, seen = AddOrRemoveOne(), []

def noise(name):
    return Gaussian(4.0, {unit: 1.0}, 1, name)

def candidate(i):
    mechanism = noise(f"setting {i}")

    def run(ledger):
        if len(seen) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        found = mechanism.release([float(i)], ledger=ledger, label="a run")
        seen.append([i, float(found.value[0])])
        with open(written, "w") as file:
            json.dump(seen, file)
        return found

    return SearchCandidate({"i": i}, mechanism, run)

search = PrivateSearch(
    [candidate(i) for i in range(4)],
    BinomialRepetitions(12, 0.95),  # fewer than four runs: a chance of 4e-10
    NoisyScore("score", lambda found: float(found.value[0]), noise("score")),
    promise=Promise(unit, 12.0, 1e-6),
)
with Ledger.open(
    place, dataset="rows", budgets={unit: Budget(12.0, 1e-6)}, filter="pure"
) as ledger:
    found = search.run(ledger, label="s", digest="d", idempotency_key="night")
    assert len(ledger.entries()) == 1 and ledger.verify().ok
    assert found.value.entry == found.entry
"""


@pytest.mark.deep
def test_a_killed_search_is_repeated_by_the_next_process(tmp_path):
    """With the entropy of the operating system, so nothing but the entry is the same.

    The twin is another payment: it has other runs.
    """

    def runs(last, place="ledger.db"):
        written = tmp_path / "runs.json"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, tmp_path / place, written, str(last)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        killed = -signal.SIGKILL
        assert done.returncode in (0, killed), done.stderr
        return done.returncode == killed, json.loads(written.read_text())

    first, second, third = runs(1), runs(3), runs(-1)
    assert (first[0], second[0], third[0]) == (True, True, False)
    assert len(first[1]) == 1 and len(second[1]) == 3 and len(third[1]) > 3
    assert third[1][:3] == second[1] and second[1][:1] == first[1]
    assert runs(-1, "other.db")[1][:3] != second[1]
