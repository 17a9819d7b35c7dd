"""Spark: the same kernels over Arrow batches, for tables that outgrow one machine.

Each name is loaded when it is first used, so that `import demur.adapters.spark` needs
no Spark. A missing one is an ImportError that says which extra to install.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.adapters.spark.clustering import assign as assign
    from demur.adapters.spark.clustering import fit_reports as fit_reports
    from demur.adapters.spark.heads import SparkRows as SparkRows
    from demur.adapters.spark.reports import SparkReports as SparkReports
    from demur.adapters.spark.reports import privatize as privatize
    from demur.adapters.spark.reports import reports_digest as reports_digest

_HOME = {
    "SparkRows": "heads",
    "assign": "clustering",
    "fit_reports": "clustering",
    "SparkReports": "reports",
    "privatize": "reports",
    "reports_digest": "reports",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"demur.adapters.spark.{_HOME[name]}"), name)
    raise AttributeError(f"module 'demur.adapters.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
