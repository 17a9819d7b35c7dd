"""PyTorch: modules in private runs, and linear heads that are released.

Names are loaded when they are first used. A missing torch is an ImportError that says
which extra to install.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.adapters.torch.embeddings import embed as embed
    from demur.adapters.torch.modules import PrivateModule as PrivateModule
    from demur.adapters.torch.release import flatten as flatten
    from demur.adapters.torch.release import linear_head as linear_head
    from demur.adapters.torch.release import rebuild as rebuild
    from demur.adapters.torch.release import release_torch as release_torch

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
