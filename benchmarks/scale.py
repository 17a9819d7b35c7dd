"""Past one machine: Spark, files larger than memory, several processes, many charges.

    python benchmarks/scale.py [--part reports heads training ledger] [--quick]

    reports    BPM reports on Spark with two local cores against the plain kernel
    heads      a convex head from a Parquet file, in constant memory
    training   the same run on 1, 2 and 4 processes
    ledger     charges a second with reservations of 1 to 1000, and a simulation

Each part is a script of its own in benchmarks/scale_parts. A part runs in a process of
its own, so that none inherits another's memory, threads or Java machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

PARTS = ("reports", "heads", "training", "ledger")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    chosen = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{date.today()}, {platform.machine()}, {cores} cores", flush=True)
    failed = []
    for part in chosen.part:
        print(f"\n## {part}\n", flush=True)
        script = Path(__file__).with_name("scale_parts") / f"{part}.py"
        command = [sys.executable, str(script), *(["--quick"] if chosen.quick else [])]
        if subprocess.run(command).returncode:
            failed.append(part)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
