"""Spark adapters: local reports, clustering and convex heads of Spark DataFrames.

They run the same kernels over Arrow batches, for tables that are too large for one
machine. Names are loaded when they are first used, so that `import
demur.adapters.spark` needs no Spark; without it an ImportError names the extra to
install.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.adapters.spark.clustering import assign as assign
    from demur.adapters.spark.clustering import fit_reports as fit_reports
    from demur.adapters.spark.heads import SparkRows as SparkRows
    from demur.adapters.spark.local_reports import SparkReports as SparkReports
    from demur.adapters.spark.local_reports import privatize as privatize
    from demur.adapters.spark.local_reports import reports_digest as reports_digest
    from demur.adapters.spark.local_reports import write_reports as write_reports

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
