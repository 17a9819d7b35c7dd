"""`RetrainReport`: the findings of the retrain test, frozen and printable."""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class DeletionCheck:
    """One deletion against its replay: distances before noise."""

    records: tuple[Hashable, ...]
    bound: float
    distance: float  # of what the theorem covers: whole states, or published copies
    weights_before: float  # distance of the published weights, before the deletion
    weights_after: float
    digests_equal: bool

    @property
    def tightness(self) -> float:
        """Distance over bound; 0 / 0 is 0."""
        if self.distance == 0.0:
            return 0.0
        return self.distance / self.bound if self.bound > 0.0 else float("inf")


@dataclass(frozen=True)
class Distinguishing:
    """What a test on noised copies could prove, against what is claimed."""

    trials: int
    confidence: float
    mu_lower: float
    mu_claimed: float
    epsilon_lower: float
    epsilon_claimed: float
    delta: float


@dataclass(frozen=True)
class Trace:
    """A place that still holds a deleted record: which, where and in what form."""

    record: Hashable
    where: str
    how: str


LOOKED_FOR = (
    "runs of a deleted record's features, up to a scale, a shift and reversal, to about"
    " three digits: the whole record or any half of it",
    "a quarter or more of its values, unchanged or as float32, in any order and spread"
    " over any number of places",
    "in attributes, containers, slots, closures, defaults, caches of functions, class"
    " attributes and global variables of the learner's own modules",
    "in numbers, arrays, text, JSON, bytes, pickles, base64, hexadecimal digits, and"
    " what zlib, gzip, bz2, lzma and zip compress",
)
NOT_FOUND = (
    "copies that are encrypted, hashed, or packed in another format",
    "copies in files, databases, other processes and on other machines",
    "copies in the standard library, in installed packages, in demur itself, and in"
    " objects that only foreign code or another thread reaches",
    "arithmetic mixtures: sums with other numbers, projections, weights that memorise",
    "copies with a different scale for each feature, in another order and scaled, or in"
    " another order if the values have six digits or fewer",
    "copies with an error above 0.3% of the spread of the features",
    "less than a quarter of a record, or its target y alone",
    "a copy that is made after the deletion was compared",
)


@dataclass(frozen=True)
class SearchScope:
    """What the search for deleted records looked at, and what it left out.

    `unsearchable` are records that cannot be told from chance or from other records of
    the stream: one-hot rows, few levels, duplicates.
    """

    places: int
    numbers: int
    left_out: tuple[str, ...]
    held_before: tuple[str, ...]
    unsearchable: tuple[Hashable, ...]
    looked_for: tuple[str, ...] = LOOKED_FOR
    not_found: tuple[str, ...] = NOT_FOUND

    def lines(self) -> list[str]:
        """What a reader must know before relying on a search without a finding."""
        said = [f"looked at {self.places} places, {self.numbers:,} numbers"]
        if self.unsearchable:
            said.append(
                f"NOT looked for: {len(self.unsearchable)} record(s) that cannot be"
                " told from chance or from other records"
            )
        for what, names in (
            ("NOT looked at", self.left_out),
            ("held a record before the run, not counted", self.held_before),
        ):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                said.append(f"{what}: {'; '.join(names[:3])}{more}")
        said += [f"looked for: {what}" for what in self.looked_for]
        said += [f"cannot find: {what}" for what in self.not_found]
        return said


@dataclass(frozen=True)
class RetrainReport:
    """The findings of the retrain test; `failures` say why it did not pass."""

    mode: str
    theorem: str
    exact: bool
    deletions: tuple[DeletionCheck, ...]
    joint_distance: float
    joint_bound: float
    joint_digests_equal: bool
    distinguishing: Distinguishing | None
    traces: tuple[Trace, ...]
    search: SearchScope

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence for each check that failed."""
        failed = []
        beyond = [d for d in self.deletions if not d.distance <= d.bound]
        if beyond:
            worst = max(d.tightness for d in beyond)
            failed.append(
                f"shift: {len(beyond)} of {len(self.deletions)} deletions ended beyond"
                f" their bound (up to {worst:.3g} times)"
            )
        if not self.joint_distance <= self.joint_bound:
            failed.append(
                f"shift: without all deleted records {self.joint_distance:.3g}, bound"
                f" {self.joint_bound:.3g}"
            )
        if self.moved_away > 0.5:
            failed.append(
                f"direction: {self.moved_away:.0%} of the deletions left the model"
                " farther from the replay than it was"
            )
        test = self.distinguishing
        if test is not None and test.mu_lower > test.mu_claimed:
            failed.append(
                f"distinguishing: epsilon is at least {test.epsilon_lower:.3g}, claimed"
                f" {test.epsilon_claimed:.3g}"
            )
        unequal = [d for d in self.deletions if not d.digests_equal]
        if self.exact and (unequal or not self.joint_digests_equal):
            failed.append("digest: the state differs from that of the survivors alone")
        if self.traces:
            first = self.traces[0]
            failed.append(
                f"search: {len(self.traces)} deleted record(s) found in what the"
                f" learner holds ({first.where}: {first.how})"
            )
        return tuple(failed)

    @property
    def searched(self) -> bool:
        """Whether every deleted record was looked for."""
        return not self.search.unsearchable

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def tightest(self) -> float:
        """The largest distance over bound."""
        return max(d.tightness for d in self.deletions)

    @property
    def moved_away(self) -> float:
        """Share of the deletions after which the replay was farther than before."""
        away = [d.weights_after > d.weights_before * (1 + 1e-9) for d in self.deletions]
        return sum(away) / len(away)

    def __str__(self) -> str:
        distances = [d.distance for d in self.deletions]
        bounds = [d.bound for d in self.deletions]
        lines = [
            f"{self.mode} ({self.theorem}): {len(self.deletions)} deletions against"
            " their replays",
            f"  {'distance to the replay':34}{max(distances):.4g} at most, median"
            f" {statistics.median(distances):.4g}",
            f"  {'bound':34}{max(bounds):.4g} at most",
            f"  {'tightness':34}{self.tightest:.4f}",
            f"  {'all deleted records at once':34}{self.joint_distance:.4g}, bound"
            f" {self.joint_bound:.4g}",
            f"  {'moved away from the replay':34}{self.moved_away:.0%}",
        ]
        if self.exact:
            equal = self.joint_digests_equal and all(
                d.digests_equal for d in self.deletions
            )
            lines.append(f"  {'digests equal':34}{'yes' if equal else 'NO'}")
        test = self.distinguishing
        if test is not None:
            lines.append(
                f"  {'epsilon, lower bound':34}{test.epsilon_lower:.4g} of"
                f" {test.epsilon_claimed:.4g} claimed ({test.trials} copies,"
                f" {test.confidence:.0%})"
            )
        lines.append(f"  {'search for deleted records':34}{len(self.traces)} found")
        lines += [f"    {line}" for line in self.search.lines()]
        lines += [f"  FAILED {failure}" for failure in self.failures]
        lines.append("  passed" if self.passed else "  FAILED")
        return "\n".join(lines)
