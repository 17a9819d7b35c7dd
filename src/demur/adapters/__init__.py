"""Adapters for PyTorch, Equinox and Spark: linear heads, local reports of DataFrames.

Each name is loaded when it is first used, so that `import demur.adapters` needs no
framework. A missing one is an ImportError that says which extra to install.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.adapters.equinox.release import release_equinox as release_equinox
    from demur.adapters.errors import BadRows as BadRows
    from demur.adapters.errors import NotALinearHead as NotALinearHead
    from demur.adapters.errors import NothingDrawn as NothingDrawn
    from demur.adapters.torch.release import release_torch as release_torch

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
