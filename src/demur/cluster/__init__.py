"""Clustering of data that users perturb on their own devices (local DP).

Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.cluster.errors import InputChanged as InputChanged
    from demur.cluster.errors import UnsupportedClusters as UnsupportedClusters
    from demur.cluster.estimators import CentralKMeans as CentralKMeans
    from demur.cluster.estimators import PrivateGMM as PrivateGMM
    from demur.cluster.estimators import PrivateKMeans as PrivateKMeans
    from demur.cluster.estimators import PrivateTMM as PrivateTMM
    from demur.cluster.files.point_tables import PointTable as PointTable
    from demur.cluster.files.report_job import make_reports as make_reports

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
