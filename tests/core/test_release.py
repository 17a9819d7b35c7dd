"""A release is a value with its entry, and nothing else."""

import dataclasses

import numpy as np
import pytest

from demur import AddOrRemoveOne, Declaration, Entry, Promise, Release
from demur.core.accounting.events import GaussianEvent
from demur.core.cost import Cost, Fixed

ENTRY = Entry(
    id="0123456789abcdef",
    sequence=1,
    label="mean",
    declaration=Declaration(
        name="a mean", cost=Cost((Fixed(AddOrRemoveOne(), GaussianEvent(5.0)),))
    ),
    count=1,
    noise="seeded",
    time="2026-03-04T05:06:07Z",
    dataset="patients",
    durable=False,
    promises=(Promise(AddOrRemoveOne(), 1.0, 1e-3),),
)


def test_a_release_states_what_its_entry_states():
    release = Release(3.5, ENTRY)
    assert release.statement() == ENTRY.statement()
    text = release.statement(records=1000)
    assert text == ENTRY.statement(records=1000)
    assert text.startswith("NOT PRIVATE")
    assert "WARNING: delta 0.001 is not below 1/n = 0.001" in text
    assert "Not recorded" in text


def test_a_release_is_frozen_and_holds_two_things():
    release = Release(np.zeros(3), ENTRY)
    assert [f.name for f in dataclasses.fields(release)] == ["value", "entry"]
    for name in ("value", "entry"):
        with pytest.raises(AttributeError):
            setattr(release, name, None)
