"""Spark's Python daemon, with the modules of DEMUR_PRELOADED: workers are its forks.

Otherwise each worker takes a second or two for its imports, there are new ones after
every task that fails, and a worker goes through all of its objects after every task.
The how-to pages run with Spark's own daemon.
"""

import gc
import importlib
import os

from pyspark.daemon import manager

if __name__ == "__main__":
    for name in ("pyarrow", "pyspark.worker", *os.environ["DEMUR_PRELOADED"].split()):
        importlib.import_module(name)
    gc.freeze()
    manager()
