"""Hugging Face encoders in local folders: private classifiers of texts.

Names are loaded when they are first used. Missing transformers are an ImportError that
says which extra to install. Nothing is ever downloaded.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.adapters.huggingface.encoders import LocalEncoder as LocalEncoder
    from demur.adapters.huggingface.encoders import load_encoder as load_encoder
    from demur.adapters.huggingface.texts import read_texts as read_texts

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
