"""Fine-tuning: train a part of a model's parameters, or small matrices beside them.

>>> import jax.numpy as jnp
>>> params = {"body": {"w": jnp.ones((4, 4)), "bias": jnp.zeros(4)}, "out": jnp.ones(4)}
>>> select(params, "*bias", "out").names
('body.bias', 'out')
>>> lora(params, rank=2, targets="body.*").names
('body.w',)
"""

from demur.training.finetuning.lora import lora
from demur.training.finetuning.parts import (
    ModelPart,
    Trainable,
    last_layers,
    select,
)

__all__ = ["ModelPart", "Trainable", "last_layers", "lora", "select"]
