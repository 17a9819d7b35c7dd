"""Points perturbed at their owners, clustered as if they had not been.

Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from demur.core.lazy import lazy

if TYPE_CHECKING:
    from demur.cluster.errors import InputChanged as InputChanged
    from demur.cluster.estimators import PrivateGMM as PrivateGMM
    from demur.cluster.estimators import PrivateKMeans as PrivateKMeans
    from demur.cluster.estimators import PrivateTMM as PrivateTMM

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
