"""Runs the audit suite on a sabotaged demur, each sabotage in a process of its own.

    python -m demur.testing.sabotages --list
    python -m demur.testing.sabotages --quick               # all, one after another
    python -m demur.testing.sabotages --quick "NAME" ...

A process of its own, because compiled programs and caches keep what they first saw;
processes that an audit starts are sabotaged like it. The
audits of the sabotaged engine come first, and the first refutation ends the run: the
order changes how long it takes and not what is found. An audit that ends in an error
is no refutation, although `demur audit` fails on it: it is gone on with, and told if
nothing else finds the sabotage. `NoPower` is one: the audit's own control failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from demur.audit import NoPower
from demur.testing.audit_suite import ENGINES, Size, all_cases, lacking
from demur.testing.sabotages.catalogue import CATALOGUE, sabotage
from demur.testing.sabotages.patches import Sabotage, in_children


@dataclass(frozen=True)
class Finding:
    """Whether the audit found a sabotage, by which case, and its processor time."""

    name: str
    category: str
    found: bool
    by: str
    evidence: str
    seconds: float


def found_here(broken: Sabotage, size: Size, random_state: int = 0) -> Finding:
    """The audit of a sabotaged demur in this process, up to the first refutation."""
    started = time.process_time()

    def finding(found: bool, by: str = "", evidence: str = "") -> Finding:
        seconds = round(time.process_time() - started, 1)
        return Finding(broken.name, str(broken.category), found, by, evidence, seconds)

    failed = ""
    engines = sorted(ENGINES, key=lambda engine: engine != broken.engine)
    with broken.applied(), in_children(broken.name):
        for engine in engines:
            if lacking(engine) is not None:
                continue
            cases = all_cases([engine], size=size, twins=False)
            for case in sorted(cases, key=lambda case: case.full is not broken.full):
                try:
                    outcome = case.audit(size, random_state)
                except NoPower as error:
                    return finding(True, str(case), f"NoPower: {error}")
                except Exception as error:
                    failed = f"{case} failed: {type(error).__name__}: {error}"[:300]
                    continue
                if outcome.result.refuted:
                    return finding(True, str(case), outcome.result.evidence)
    return finding(False, evidence=failed)


def found_by_audit(name: str, size: Size = Size.QUICK, seed: int = 0) -> Finding:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "demur.testing.sabotages", "--here", str(size)]
    done = subprocess.run(
        [*command, "--seed", str(seed), name],
        capture_output=True,
        text=True,
        # No program that was compiled before the sabotage.
        env=os.environ | {"DEMUR_PROGRAMS": os.devnull},
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"the audit of {name!r} failed: {done.stderr[-800:]}")
    return Finding(**json.loads(lines[-1]))


def findings(
    names: list[str], size: Size = Size.QUICK, seed: int = 0
) -> Iterator[Finding]:
    """One after another, as they come; by default all of the catalogue."""
    for each in CATALOGUE if not names else [sabotage(name) for name in names]:
        yield found_by_audit(each.name, size, seed)


def as_json(finding: Finding) -> str:
    """One line of plain data."""
    return json.dumps(asdict(finding))
