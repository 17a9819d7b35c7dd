"""Preprocessing that keeps a promise: row maps with a declared Lipschitz constant.

Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.preprocessing.pipelines import Preprocessing as Preprocessing
    from demur.preprocessing.pipelines import preprocessing_of as preprocessing_of
    from demur.preprocessing.private_maps import PrivatePCA as PrivatePCA
    from demur.preprocessing.private_maps import (
        PrivateStandardScaler as PrivateStandardScaler,
    )
    from demur.preprocessing.projections import PublicProjection as PublicProjection
    from demur.preprocessing.projections import RandomProjection as RandomProjection
    from demur.preprocessing.row_maps import ClipRows as ClipRows
    from demur.preprocessing.row_maps import NormalizeRows as NormalizeRows
    from demur.preprocessing.row_maps import PublicScaler as PublicScaler
    from demur.preprocessing.row_maps import RowMap as RowMap
    from demur.preprocessing.spaces import RowSpace as RowSpace

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
