"""Spark's Python daemon on a sabotaged demur: its workers are forks of it."""

from __future__ import annotations

import os
from importlib import import_module

from demur.testing.sabotages.catalogue import sabotage

if __name__ == "__main__":
    with sabotage(os.environ["DEMUR_SABOTAGE"]).applied():
        import_module("pyspark.daemon").manager()
