"""Clusters from reports: fewer draws than a user's fit has, where they are enough."""

from __future__ import annotations

import pytest

from demur.cluster.decoding import posterior


@pytest.fixture(autouse=True)
def fewer_draws(request, monkeypatch):
    """A tenth of the draws: what centres are worth is seen with these as well.

    How far fits agree is not: `make deep` has them all.
    """
    if request.node.get_closest_marker("deep") is None:
        monkeypatch.setattr(posterior, "_MOST", 480)
