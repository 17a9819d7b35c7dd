"""Applies the sabotage that DEMUR_SABOTAGE names in every Python that finds this file.

Python loads a module of this name when it starts: those that an audited or tested
process starts do, Spark's workers among them (`patches.in_children`).
"""

from __future__ import annotations

import os

if __name__ == "sitecustomize" and "DEMUR_SABOTAGE" in os.environ:
    from demur.testing.sabotages.catalogue import sabotage

    # Held until the process ends: an error that nobody holds is mended at once.
    held = sabotage(os.environ["DEMUR_SABOTAGE"]).applied()
    held.__enter__()
