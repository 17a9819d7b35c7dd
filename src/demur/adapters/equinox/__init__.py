"""Linear heads trained in Equinox: converted, certified and released.

Names are loaded when they are first used. A missing Equinox is an ImportError that says
which extra to install.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.adapters.equinox.release import flatten as flatten
    from demur.adapters.equinox.release import linear_head as linear_head
    from demur.adapters.equinox.release import predict_eqx_svm as predict_eqx_svm
    from demur.adapters.equinox.release import rebuild as rebuild
    from demur.adapters.equinox.release import release_equinox as release_equinox
    from demur.adapters.equinox.release import train_head_eqx as train_head_eqx

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
