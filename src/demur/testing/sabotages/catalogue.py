"""The catalogue of sabotages, by category."""

from __future__ import annotations

from demur.testing.sabotages import blind, data, later, layouts, noise, spending
from demur.testing.sabotages.patches import Category, Sabotage

_ORDER = {category: number for number, category in enumerate(Category)}

CATALOGUE: tuple[Sabotage, ...] = tuple(
    sorted(
        (
            *noise.SABOTAGES,
            *spending.SABOTAGES,
            *data.SABOTAGES,
            *later.SABOTAGES,
            *blind.SABOTAGES,
            *layouts.SABOTAGES,
        ),
        key=lambda each: _ORDER[each.category],
    )
)


def sabotage(name: str) -> Sabotage:
    """The sabotage with this name; a ValueError lists those that there are."""
    for each in CATALOGUE:
        if each.name == name:
            return each
    known = "\n  ".join(each.name for each in CATALOGUE)
    raise ValueError(f"no sabotage is called {name!r:.80}; there are\n  {known}")
