"""Sabotages that were written after the audits, and without running them.

They tell whether the audits were made for the errors that were known. Those that the
audits missed keep their reason here.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from demur.testing.sabotages.patches import Category, Sabotage


def _half_deletion_noise(right: Any) -> Any:
    def mechanism_for(needs: Any, dimension: int, **options: Any) -> Any:
        made = right(needs, dimension, **options)
        return replace(made, sigma=made.sigma / 2.0)

    return mechanism_for


def _closer_reports(right: Any) -> Any:
    """Reports of Gaussian noise pulled a tenth towards their points."""

    def draw_rows(self: Any, matrix: Any, ids: Any, streams: Any) -> Any:
        return matrix + 0.9 * (right(self, matrix, ids, streams) - matrix)

    return draw_rows


def _twice_the_epsilon(right: Any) -> Any:
    def draw_index(scores: Any, epsilon: float, stream: Any) -> int:
        return int(right(scores, 2.0 * epsilon, stream))

    return draw_index


def _larger_counts(right: Any) -> Any:
    def block_sums(points: Any, centers: Any, count_scale: float) -> Any:
        return right(points, centers, 2.0 * count_scale)

    return block_sums


def _half_table(right: Any) -> Any:
    """Numbers of a table halved, its curves left alone."""

    def table(*args: Any, **options: Any) -> Any:
        found = dict(right(*args, **options))
        return {k: v / 2.0 if isinstance(v, float) else v for k, v in found.items()}

    return table


def _half_deltas(right: Any) -> Any:
    def profile_of(*args: Any, **options: Any) -> Any:
        found = right(*args, **options)
        return replace(found, remove=found.remove / 2.0, add=found.add / 2.0)

    return profile_of


def _every_batch_twice(right: Any) -> Any:
    def steps(self: Any, n: int, key: Any, start: int) -> Any:
        batches = list(right(self, n, key, start))
        for first, _ in pairwise([*batches[::2], None]):
            yield first
            yield np.array(first)

    def cut(self: Any, n: int, key: Any, start: int) -> Any:
        whole = list(steps(self, n, key, start))
        yield from whole[: self.iterations - start]

    return cut


def _person_as_one(right: Any) -> Any:
    def table(unit: Any, *args: Any) -> Any:
        found = dict(right(unit, *args))
        if unit.records_per_person > 1:
            found[unit] = found[unit] / unit.records_per_person
        return found

    return table


def _always_many(right: Any) -> Any:
    def draw(law: Any, read: Any) -> int:
        right(law, read)
        return int(min(law.limit, 6))

    return draw


def _plain_digest(right: Any) -> Any:
    return lambda self, digest, salt: digest


def _quoted_row(right: Any) -> Any:
    def check_points(mechanism: Any, points: Any) -> Any:
        try:
            return right(mechanism, points)
        except ValueError as error:
            raise ValueError(f"{error}: {np.asarray(points)[:1]}") from error

    return check_points


def _open_to_readers(right: Any) -> Any:
    """Every way into the service asks for the permission to read alone."""
    return tuple(replace(way, permission=type(way.permission).READ) for way in right)


def _not_wiped(right: Any) -> Any:
    return lambda self: None


SABOTAGES = (
    Sabotage(
        "half the noise of a deletion",
        Category.SCALE,
        "unlearning",
        ("demur.unlearning.pricing.noise:mechanism_for",),
        _half_deletion_noise,
    ),
    Sabotage(
        "Gaussian reports pulled a tenth towards their points",
        Category.SCALE,
        "cluster",
        ("demur.mechanisms.gaussian_reports:GaussianReports.draw_rows",),
        _closer_reports,
    ),
    Sabotage(
        "the exponential mechanism at twice its epsilon",
        Category.LAW,
        "convex",
        ("demur.mechanisms.exponential:draw_index",),
        _twice_the_epsilon,
    ),
    Sabotage(
        "counts of k-means on the server at twice their scale",
        Category.SENSITIVITY,
        "cluster",
        ("demur.cluster.noisy_lloyd:block_sums",),
        _larger_counts,
    ),
    Sabotage(
        "half of how far a replacement moves a private map",
        Category.SENSITIVITY,
        "convex",
        ("demur.preprocessing.private_maps:_table",),
        _half_table,
    ),
    Sabotage(
        "half of every delta of a stored profile",
        Category.ACCOUNTING,
        "accounting",
        ("demur.core.accounting.sampled_profiles:profile_of",),
        _half_deltas,
    ),
    Sabotage(
        "every second batch the one before it",
        Category.SAMPLING,
        "training",
        ("demur.training.batches.selection:CyclicPoissonSampling._steps",),
        _every_batch_twice,
    ),
    Sabotage(
        "prototypes of a person's records at the noise of one",
        Category.PERSONS,
        "convex",
        ("demur.convex.heads.prototypes:_table",),
        _person_as_one,
    ),
    Sabotage(
        "a search that always makes six runs",
        Category.SAMPLING,
        "defaults",
        ("demur.core.accounting.repetitions:draw",),
        _always_many,
    ),
    Sabotage(
        "digests of inputs without a key",
        Category.SECRETS,
        "ledger",
        ("demur.durable.keys:KeyStore.keyed_digest",),
        _plain_digest,
        quick=False,
        why_not="no release shows it: tests/ledger and tests/durable find it",
    ),
    Sabotage(
        "an error that quotes a row",
        Category.SECRETS,
        "cluster",
        ("demur.mechanisms.reports:check_points",),
        _quoted_row,
        quick=False,
        why_not="no release shows it: the contracts find it",
    ),
    Sabotage(
        "noise keys that are not wiped at the commit",
        Category.SECRETS,
        "ledger",
        ("demur.core.entropy:NoiseKey.wipe",),
        _not_wiped,
        quick=False,
        why_not="no release shows it: the contracts and tests/core find it",
    ),
    Sabotage(
        "every route of the service open to readers",
        Category.SECRETS,
        "ledger",
        ("demur.serve.routes:ROUTES",),
        _open_to_readers,
        quick=False,
        why_not="no audit of the service: tests/serve has every route and role",
    ),
)
