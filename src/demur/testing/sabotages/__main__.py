"""`python -m demur.testing.sabotages`: whether the audit refutes each sabotage."""

from __future__ import annotations

import argparse
import sys

from demur.testing.audit_suite import Size
from demur.testing.sabotages.catalogue import CATALOGUE, sabotage
from demur.testing.sabotages.run import as_json, findings, found_here


def main() -> int:
    """One line for each; exit code 1 if one that this size asks for was not found."""
    parser = argparse.ArgumentParser(prog="python -m demur.testing.sabotages")
    parser.add_argument("names", nargs="*", help="sabotages; by default all")
    parser.add_argument("--list", action="store_true", help="name them, run none")
    parser.add_argument("--quick", action="store_true", help="the smallest samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    parser.add_argument(
        "--here", choices=[str(s) for s in Size], help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.list:
        for each in CATALOGUE:
            size = "quick" if each.quick else "full" if each.full else "tests"
            print(f"{size:6} {each}")
        return 0
    if given.here:
        print(
            as_json(found_here(sabotage(given.names[0]), Size(given.here), given.seed))
        )
        return 0
    size = Size.QUICK if given.quick else Size.STANDARD
    missed = False
    for finding in findings(given.names, size, given.seed):
        broken = sabotage(finding.name)
        asked = broken.quick or (broken.full and size is not Size.QUICK)
        missed |= asked and not finding.found
        text = f"found by {finding.by}" if finding.found else "NOT FOUND"
        line = f"{finding.category}: {finding.name}: {text} ({finding.seconds:.0f} s)"
        print(as_json(finding) if given.json else line, flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
