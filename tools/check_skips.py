"""Sum up pytest's JUnit reports, and say which tests the machine could not run.

A test that lacks something of the machine (a server, a browser, a data set) skips
with a reason that starts with "machine:". `--strict` makes such a skip a failure.
"""

import argparse
import ast
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def skip_reason(skipped: ET.Element) -> str:
    """The reason given to pytest.skip, for a test or for a whole module."""
    message = skipped.get("message", "")
    if message != "collection skipped":
        return message.removeprefix("Skipped: ")
    # A module skipped at import: the text is repr((path, line, "Skipped: reason")).
    try:
        reason = str(ast.literal_eval(skipped.text or "")[-1])
    except (ValueError, SyntaxError, IndexError):
        reason = skipped.text or message
    return reason.removeprefix("Skipped: ")


def main() -> int:
    """Print the skips by reason and one closing line; 1 if the run does not count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()

    passed = failed = 0
    skips: Counter[str] = Counter()
    seen = set()  # a module skipped at import is in every report
    for report in args.reports:
        for case in ET.parse(report).iter("testcase"):
            name = (case.get("classname"), case.get("name"))
            if name in seen:
                continue
            seen.add(name)
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
            elif skipped is None:
                passed += 1
            elif skipped.get("type") == "pytest.xfail":
                passed += 1  # it failed, as it was expected to
            else:
                skips[skip_reason(skipped)] += 1

    for reason, count in sorted(skips.items()):
        print(f"skipped {count}: {reason}")
    lacking = sum(n for reason, n in skips.items() if reason.startswith("machine:"))
    if args.strict and lacking:
        print(f"{lacking} tests skipped for lack of something on this machine")
    print(f"{passed} passed, {failed} failed, {skips.total()} skipped")
    return int(failed > 0 or passed == 0 or (args.strict and lacking > 0))


if __name__ == "__main__":
    sys.exit(main())
