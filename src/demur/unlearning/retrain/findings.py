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
    """A vector that looks like a deleted record."""

    record: Hashable
    where: str
    cosine: float


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
    searched: bool

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
            worst_trace = max(self.traces, key=lambda t: t.cosine)
            failed.append(
                f"search: {len(self.traces)} deleted record(s) found in the state"
                f" ({worst_trace.where}, |cos| = {worst_trace.cosine:.6f})"
            )
        return tuple(failed)

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
        seen = (
            f"{len(self.traces)} found" if self.searched else "not made: dimension < 4"
        )
        lines.append(f"  {'search for deleted records':34}{seen}")
        lines += [f"  FAILED {failure}" for failure in self.failures]
        lines.append("  passed" if self.passed else "  FAILED")
        return "\n".join(lines)
