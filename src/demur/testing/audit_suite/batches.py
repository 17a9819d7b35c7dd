"""Audits of batches that a run does not take by default: allocation, and persons."""

from __future__ import annotations

import itertools

import numpy as np

from demur.audit import AuditResult, Level
from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import NoiseKey, Seeded
from demur.testing.audit_suite.case import Size
from demur.testing.audit_suite.counting import counts_test
from demur.training import (
    CyclicPoissonSampling,
    RandomAllocationSampling,
    UserSelectionStrategy,
)


def allocation(size: Size, seed: int) -> AuditResult:
    """In which two of five steps a record takes part: ten sets, equally likely.

    A record that is twice in one batch is counted as one in no step, which is as
    impossible.
    """
    steps, count = 5, size.of(5000)
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    strategy = RandomAllocationSampling(total_participations=2, iterations=steps)
    taken, twice = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    for step, batch in enumerate(strategy.batch_iterator(count, key)):
        times = np.bincount(batch.reshape(-1), minlength=count)
        taken += (times > 0).astype(np.int64) << step
        twice |= times > 1
    taken[twice] = 0
    law = np.zeros(1 << steps)
    for pair in itertools.combinations(range(steps), 2):
        law[sum(1 << step for step in pair)] = 0.1
    return counts_test(
        np.bincount(taken, minlength=law.size),
        law,
        subject="training: steps of an allocated record",
    )


def records_of_a_person(size: Size, seed: int) -> AuditResult:
    """The most records of one person in a batch, against what a plan is told."""
    base = CyclicPoissonSampling(sampling_prob=0.5, iterations=size.of(20))
    strategy = UserSelectionStrategy(base, examples_per_user_per_batch=2)
    owners = np.repeat(np.arange(30), 5)
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    batches = list(strategy.batch_iterator(owners, key))
    most = max(int(np.bincount(owners[b.reshape(-1)]).max(initial=0)) for b in batches)
    return AuditResult(
        subject="training: records of a person in a batch",
        level=Level.SENSITIVITY,
        method="count",
        unit=AddOrRemoveOne().describe(),
        claimed=None,
        delta=0.0,
        lower_bound=None,
        runs=len(batches),
        alpha=0.0,
        refuted=most > 2,
        evidence=f"A person has at most {most} records in a batch, and 2 are paid for.",
        factor=2.0 / max(most, 1),
    )
