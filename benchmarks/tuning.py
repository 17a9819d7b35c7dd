"""Tuning that is paid for, against fixed settings, cheating and plain composition.

    python benchmarks/tuning.py [--part costs means gap digits adult banking fashion]
        [--draws 10] [--epsilons 1 3]

    costs      what a search over m settings costs, beside naive composition
    means      what other laws and more runs for each setting cost, and leave out
    gap        the bound against the worst finite mechanism of the same profile
    digits, adult, banking    heads at a ball of radius 0.42, delta 1e-6
    fashion    Fashion-MNIST, a softmax trained by DP-SGD, delta 1e-5
    candidates a search over what `training.py --choose` compares; only if named

In each draw another tenth of the training rows counts as public, and other persons are
held back. All methods have the same total epsilon on the other rows, are run on the
same division, and are judged on the test set:

    paid        PrivateGridSearch: a secret number of runs, one entry
    public      the setting that was best on the public rows, with noise as large as
                that of the private fit
    cheating    the setting that was best on the test set itself, on average
    composed    every setting fitted and scored once, by composition
    worst       the worst fixed setting: what not tuning may cost

Draws are written to out/tuning.jsonl as they come, and a second run goes on where the
first stopped. The data are in $DEMUR_DATA; Fashion-MNIST in $FASHION_MNIST (Debian
package dataset-fashion-mnist).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial

from tuning_parts import prices
from tuning_parts.heads import heads
from tuning_parts.training import candidates, fashion

PARTS = ("costs", "means", "gap", "digits", "adult", "banking", "fashion")
LONG = ("candidates",)
HEADER = (
    "| set | epsilon | paid | public | cheating | composed | worst | paid less public"
    " (95%) | paid less composed (95%) | draws |\n|" + "---|" * 10
)


def part(name: str) -> Callable[[int, list[float]], None]:
    """What runs a part."""
    if name in ("costs", "means", "gap"):
        return lambda draws, epsilons: getattr(prices, name)()
    whole = {"fashion": fashion, "candidates": candidates}
    return whole.get(name) or partial(heads, name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", nargs="*", choices=PARTS + LONG, default=PARTS)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 3.0])
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print(HEADER)
    for name in chosen.part:
        part(name)(chosen.draws, chosen.epsilons)


if __name__ == "__main__":
    main()
