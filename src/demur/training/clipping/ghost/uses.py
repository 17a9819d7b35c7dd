"""Uses of variables in a program: where each one goes, and which depend on the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.ghost.inlining import (
    body_of,
    is_scan,
    kind_of,
    scan_layout,
)


@dataclass(frozen=True)
class Use:
    """One place where a variable is used."""

    eqn: core.JaxprEqn | None  # None: a result of the program
    position: int


class Program:
    """One program (or body): who uses a variable, and which depend on the data."""

    def __init__(
        self, jaxpr: core.Jaxpr, from_data: Sequence[bool], results: int
    ) -> None:
        self.jaxpr = jaxpr
        self.uses: dict[core.Var, list[Use]] = {}
        self.made_by = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        self.from_data = {
            variable
            for variable, flag in zip(jaxpr.invars, from_data, strict=True)
            if flag
        }
        needed = _needed(jaxpr, results)
        for eqn in jaxpr.eqns:
            if any(self.is_data(atom) for atom in eqn.invars):
                self.from_data.update(eqn.outvars)
            leads_on = not needed.isdisjoint(eqn.outvars)
            if leads_on and any(_differentiable(var) for var in eqn.outvars):
                for position, atom in enumerate(eqn.invars):
                    self._note(atom, Use(eqn, position))
        for position, atom in enumerate(jaxpr.outvars[:results]):
            self._note(atom, Use(None, position))

    def _note(self, atom: core.Var | core.Literal, use: Use) -> None:
        if isinstance(atom, core.Var):
            self.uses.setdefault(atom, []).append(use)

    def is_data(self, atom: core.Var | core.Literal) -> bool:
        """Whether the value depends on the data."""
        return isinstance(atom, core.Var) and atom in self.from_data

    def varies(self, atom: core.Var | core.Literal) -> tuple[int, ...]:
        """The axes along which a value may differ: none for a scalar that is spread."""
        shape = kind_of(atom).shape
        eqn = self.made_by.get(atom) if isinstance(atom, core.Var) else None
        if eqn is not None and eqn.primitive.name == "convert_element_type":
            return self.varies(eqn.invars[0])
        if eqn is not None and eqn.primitive.name == "broadcast_in_dim":
            inner = self.varies(eqn.invars[0])
            return tuple(eqn.params["broadcast_dimensions"][axis] for axis in inner)
        return tuple(axis for axis, size in enumerate(shape) if size > 1)

    def body(self, eqn: core.JaxprEqn) -> Program:
        """The program inside a scan or a checkpoint."""
        inner = body_of(eqn).jaxpr
        flags = [self.is_data(atom) for atom in eqn.invars]
        if is_scan(eqn):
            # A carry that starts without data may take some in on the way: calling it
            # data is safe, since a parameter that enters a carry is tapped outside.
            first, carried = scan_layout(eqn)
            flags[first : first + carried] = [True] * carried
        return Program(inner, flags, len(inner.outvars))


def _needed(jaxpr: core.Jaxpr, results: int) -> set[core.Var]:
    """The variables that the first `results` results are computed from."""
    needed = {atom for atom in jaxpr.outvars[:results] if isinstance(atom, core.Var)}
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
    return needed


def _differentiable(variable: core.Var) -> bool:
    return bool(jnp.issubdtype(kind_of(variable).dtype, jnp.inexact))
