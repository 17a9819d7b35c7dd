"""Run jax-privacy's own tests against `demur.compat.jax_privacy`, and print a table.

    pip download jax-privacy==2.0.0 --no-binary :all: --no-deps   (then unpack it)
    python -m tools.peer_suite FOLDER [--itself] [--write TABLE.md]

FOLDER is an unpacked release or a clone; its `tests` are copied to a temporary folder,
and their import lines changed. They never enter this tree. `--itself` runs them against
the installed jax_privacy instead, to see what fails without any of our doing.

Two things are changed besides the imports, by a `conftest.py` next to the copies:

- a clipped gradient is a `ClippedSum`; the tests read sums, so `.value` is opened;
- a file whose `main` switches 64-bit numbers on gets them on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

OURS = "demur.compat.jax_privacy"
# Modules of jax-privacy that demur has under other names, or not at all.
NOT_HERE = {
    "keras_api_test.py": "Keras",
    "keras_api_e2e_test.py": "Keras",
    "auditing_test.py": "audits: `demur.audit`",
    "_multi_owner_test.py": "records with several owners",
    "training_test.py": "its trainer: `demur.training.fit`",
    "optimizers_test.py": "scaling before the clip",
    "sharding_utils_test.py": "its sharding: `Resources(mesh=...)`",
    "distributed_noise_generation_test.py": "its sharding: `Resources(mesh=...)`",
    "accounting_test.py": "events and accountants: `plan.dp_event`",
    "analysis_test.py": "accountants: `demur.core.accounting`",
    "calibrate_test.py": "calibration: `calibrate_noise`",
    "discrete_gaussian_test.py": "its discrete Gaussian: `noise='lattice'`",
    "delta_calculation_test.py": "its Monte Carlo: `MonteCarlo`",
    "sample_generation_test.py": "its Monte Carlo: `MonteCarlo`",
    "_checks_test.py": "helpers of its matrices",
    "checks_test.py": "helpers of its matrices",
    "banded_test.py": "matrices: `demur.mechanisms.correlated`",
    "buffered_toeplitz_test.py": "matrices: `demur.mechanisms.correlated`",
    "dense_test.py": "matrices: `demur.mechanisms.correlated`",
    "optimization_test.py": "matrices: `demur.mechanisms.correlated`",
    "sensitivity_test.py": "matrices: `demur.mechanisms.correlated`",
    "streaming_matrix_test.py": "matrices: `demur.mechanisms.correlated`",
    "toeplitz_test.py": "matrices: `demur.mechanisms.correlated`",
}
# Tests that fail on purpose: a part of the name, and why.
ON_PURPOSE = {
    "pad_to_multiple_of_empty_indices": "an empty batch is an ordinary step",
    "pad_to_multiple_of_with_microbatch": "real examples come first",
    "pad_to_multiple_of_microbatch_worked": "real examples come first",
    "validate_args": "the words of an error",
    "clip_norm_zero_rescale": "the bound holds after rounding",
    "non_private_config": "no plan without noise",
}
_CONFTEST = """
import functools
from demur.compat.jax_privacy import clipping
from demur.training import ClippedSum

_made = clipping.clipped_grad


def _opened(result):
    if isinstance(result, ClippedSum):
        return result.value
    if isinstance(result, tuple) and result and isinstance(result[0], ClippedSum):
        return (result[0].value, *result[1:])
    return result


class _Open:
    def __init__(self, inner):
        self._inner = inner

    def __call__(self, *args, **named):
        return _opened(self._inner(*args, **named))

    def __getattr__(self, name):
        return getattr(self._inner, name)


@functools.wraps(_made)
def _clipped_grad(*args, **named):
    return _Open(_made(*args, **named))


clipping.clipped_grad = _clipped_grad
"""


def main() -> int:
    """Copy, change, run, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--itself", action="store_true")
    parser.add_argument("--only", help="a part of the file's name")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = ["| file | passed | failed | differs on purpose |", "|---|---|---|---|"]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copies = Path(folder)
        if not options.itself:
            (copies / "conftest.py").write_text(_CONFTEST)
        for test in sorted((options.folder / "tests").rglob("*_test.py")):
            if options.only and options.only not in test.name:
                continue
            if test.name in NOT_HERE and not options.itself:
                lines.append(f"| `{test.name}` | | | not here: {NOT_HERE[test.name]} |")
                continue
            counts, failed = run(test, copies, itself=options.itself)
            wrong += counts["failed"]
            reasons = "; ".join(
                f"{counts[why]}: {why}"
                for why in dict.fromkeys(ON_PURPOSE.values())
                if counts[why]
            )
            lines.append(
                f"| `{test.name}` | {counts['passed']} | {counts['failed']} |"
                f" {reasons} |"
            )
            for name in failed:
                print("failed:", test.name, name, file=sys.stderr)
    table = "\n".join(lines) + "\n"
    print(table)
    if options.write is not None:
        options.write.write_text(table)
    return 1 if wrong else 0


def changed(text: str) -> str:
    """The text of a test with our package in its import lines."""
    text = re.sub(r"^from jax_privacy\b", f"from {OURS}", text, flags=re.M)
    whole = f"import {OURS} as jax_privacy"
    return re.sub(r"^import jax_privacy$", whole, text, flags=re.M)


def run(test: Path, copies: Path, *, itself: bool) -> tuple[Counter[str], list[str]]:
    """How many tests of a file passed, failed, or differ, and which ones failed."""
    text = test.read_text()
    copy = copies / f"test_{test.stem}.py"
    copy.write_text(text if itself else changed(text))
    results = copies / "results.xml"
    wide = "jax_enable_x64', True" in text or 'jax_enable_x64", True' in text
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
        + ["--rootdir", str(copies), "-c", os.devnull, f"--junitxml={results}"]
        + [str(copy)],
        env=os.environ | {"JAX_ENABLE_X64": "1" if wide else "0"},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    counts: Counter[str] = Counter()
    failed = []
    for case in ElementTree.parse(results).iter("testcase"):
        bad = [part for part in case if part.tag in ("failure", "error")]
        if not bad:
            counts["passed"] += 1
            continue
        name = case.get("name", "")
        reason = next((why for part, why in ON_PURPOSE.items() if part in name), None)
        counts[reason or "failed"] += 1
        if reason is None:
            failed.append(f"{name}: {(bad[0].get('message') or '')[:300]}")
    copy.unlink()
    return counts, failed


if __name__ == "__main__":
    raise SystemExit(main())
