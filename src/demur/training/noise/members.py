"""Members of a `vmap`: noise that all of them would share is refused.

Ensembles and sweeps are often written as `jax.vmap` over a training step. `vmap` draws
once what does not depend on the member. A key that all members have in common would
give all of them the same noise, and the difference of two members would be exact. Keys
of their own would give independent noise, and a release for each member, where a plan
pays for one. Both are refused, at the moment JAX batches the step.

`one_release` is the identity. It is an equation of its own in every program, so its
batching rule is asked wherever a `vmap` meets it: inside and outside `jit`, `scan`,
`shard_map`, `checkpoint`, nested, and with `spmd_axis_name`. It is compiled to nothing.
A `vmap` that leaves all of a step's inputs alone (a sweep over what is done with one
noisy sum) does not batch it, and is one release.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from demur.core.errors import NotPrivate

_one_release = Primitive("one_release")
_one_release.multiple_results = True


def one_release(tree: Any) -> Any:
    """`tree`, the inputs of one step's noise; `NotPrivate` where JAX batches them."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, _one_release.bind(*leaves))


def _same(*leaves: Any) -> list[Any]:
    return list(leaves)


def _derivative(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
    return _one_release.bind(*primals), list(tangents)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise NotPrivate(
        "noise was asked for inside jax.vmap: members with one key would get the same"
        " noise, and their difference would be exact. Each member is a release of its"
        " own: take the sums out of vmap (`total.members()`), and add noise to each"
        " with a payment and a key of its own. (jax.lax.map, a scan or a loop that"
        " hands one array of keys to the same step of several members shares its noise,"
        " too.) Nothing was drawn."
    )


_one_release.def_impl(_same)
_one_release.def_abstract_eval(_same)
mlir.register_lowering(_one_release, lambda _, *leaves: list(leaves))
batching.primitive_batchers[_one_release] = _refuse
ad.primitive_jvps[_one_release] = _derivative
