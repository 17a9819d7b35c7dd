"""Points perturbed at their owners, clustered as if they had not been.

Names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.cluster.estimators import PrivateGMM as PrivateGMM
    from demur.cluster.estimators import PrivateKMeans as PrivateKMeans
    from demur.cluster.estimators import PrivateTMM as PrivateTMM

_HOME = {
    "PrivateGMM": "estimators",
    "PrivateKMeans": "estimators",
    "PrivateTMM": "estimators",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demur.cluster' has no attribute {name!r}")
    value = getattr(import_module(f"demur.cluster.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
