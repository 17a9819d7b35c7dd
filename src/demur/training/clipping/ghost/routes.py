"""Routes from parameters to the layers that use them, in the program of one loss.

From a parameter we follow the program forward while there is one way to go: through
operations that only rearrange it, into the body of a scan or a checkpoint, until a
*layer* is reached, an equation with a rule (`layers`) whose other operand depends on
the data. The loss depends on that parameter only through the output of that layer, so
the parameter's gradient follows from the cotangent there and the other operand.

When the way forks, or ends at an operation without a rule, the parameter is *tapped*
itself, at the last point outside any scan: its gradient is formed example by example
for that parameter alone. That point is on every way from the parameter to the loss,
so whatever happens behind it (several uses, weights made of weights) is accounted
for with all cross terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.factored_gradients import ScanLoop
from demur.training.clipping.ghost import layers
from demur.training.clipping.ghost.inlining import (
    body_of,
    is_remat,
    is_scan,
    kind_of,
    scan_layout,
)
from demur.training.clipping.ghost.rearrangements import keeps_norms


@dataclass(frozen=True, eq=False)
class Site:
    """One use of a parameter in a layer; `number` names its tap."""

    number: int
    layer: layers.Layer
    loops: tuple[ScanLoop, ...]


# A rearrangement, or the entry into a body (None: the cotangent passes unchanged).
Step = tuple[core.JaxprEqn, int]


@dataclass(frozen=True, eq=False)
class Route:
    """How one parameter's gradient is reached, and the `reason` for it.

    With `sites`, the gradient is the sum over them at the end of `steps`; each step is
    an equation and the number of stacked axes in front of its values. Without sites,
    the variable `tapped` is tapped, and `steps` lead to it. With neither, the
    loss does not depend on the parameter.
    """

    steps: tuple[Step, ...]
    reason: str
    sites: tuple[Site, ...] = ()
    tapped: core.Var | None = None


@dataclass
class Routes:
    """The routes of all parameters and the equations on them, by identity."""

    of: list[Route] = field(default_factory=list)
    sites: dict[int, Site] = field(default_factory=dict)  # id(equation) -> site
    inside: dict[int, list[Site]] = field(default_factory=dict)  # id(scan) -> sites

    @property
    def all_sites(self) -> list[Site]:
        """Every site, in the order of its number."""
        return sorted(self.sites.values(), key=lambda site: site.number)


@dataclass(frozen=True)
class _Use:
    eqn: core.JaxprEqn | None  # None: a result of the program
    position: int


class _Program:
    """One program (or body): who uses a variable, and which depend on the data."""

    def __init__(
        self, jaxpr: core.Jaxpr, from_data: Sequence[bool], results: int
    ) -> None:
        self.jaxpr = jaxpr
        self.uses: dict[core.Var, list[_Use]] = {}
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
                    self._note(atom, _Use(eqn, position))
        for position, atom in enumerate(jaxpr.outvars[:results]):
            self._note(atom, _Use(None, position))

    def _note(self, atom: core.Var | core.Literal, use: _Use) -> None:
        if isinstance(atom, core.Var):
            self.uses.setdefault(atom, []).append(use)

    def is_data(self, atom: core.Var | core.Literal) -> bool:
        return isinstance(atom, core.Var) and atom in self.from_data

    def body(self, eqn: core.JaxprEqn) -> _Program:
        inner = body_of(eqn).jaxpr
        flags = [self.is_data(atom) for atom in eqn.invars]
        if is_scan(eqn):
            # A carry that starts without data may take some in on the way: calling it
            # data is safe, since a parameter that enters a carry is tapped outside.
            first, carried = scan_layout(eqn)
            flags[first : first + carried] = [True] * carried
        return _Program(inner, flags, len(inner.outvars))


def _needed(jaxpr: core.Jaxpr, results: int) -> set[core.Var]:
    """The variables that the first `results` results are computed from."""
    needed = {atom for atom in jaxpr.outvars[:results] if isinstance(atom, core.Var)}
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
    return needed


def _differentiable(variable: core.Var) -> bool:
    return bool(jnp.issubdtype(kind_of(variable).dtype, jnp.inexact))


@dataclass(frozen=True, eq=False)
class _Trail:
    """The way from a parameter so far, and the layers at its end."""

    steps: tuple[Step, ...] = ()
    uses: tuple[tuple[core.JaxprEqn, layers.Layer], ...] = ()
    loops: tuple[ScanLoop, ...] = ()
    around: tuple[core.JaxprEqn, ...] = ()


def _follow(
    program: _Program, variable: core.Var, before: _Trail
) -> tuple[_Trail, core.Var, str]:
    """Follow `variable`; returns the trail and the last variable at this level.

    The reason is empty when layers were reached.
    """
    steps = before.steps
    while True:
        here = _Trail(steps, (), before.loops, before.around)
        uses = program.uses.get(variable, [])
        met = [
            (use.eqn, layer)
            for use in uses
            if use.eqn is not None
            and (layer := _layer(program, use.eqn, use.position)) is not None
        ]
        if uses and len(met) == len(uses):
            if len(met) == 1 or layers.add_up([layer for _, layer in met]):
                trail = _Trail(steps, tuple(met), before.loops, before.around)
                return trail, variable, ""
            return here, variable, "used in several places of different kinds"
        if len(uses) > 1:
            return here, variable, f"used in {len(uses)} places"
        if not uses:
            return here, variable, "unused"
        eqn, position = uses[0].eqn, uses[0].position
        if eqn is None:
            return here, variable, "returned by a scan or as the loss"
        if keeps_norms(eqn):
            stacked = sum(loop.own_slice for loop in before.loops)
            steps = (*steps, (eqn, stacked))
            variable = eqn.outvars[0]
            continue
        entered = _enter(eqn, position)
        if entered is None:
            return here, variable, _why_not(program, eqn, position)
        inner, loop = entered
        loops = before.loops if loop is None else (*before.loops, loop)
        deeper = _Trail(steps, (), loops, (*before.around, eqn))
        result, _, reason = _follow(program.body(eqn), inner, deeper)
        if reason:
            return here, variable, reason
        return result, variable, ""


def _layer(program: _Program, eqn: core.JaxprEqn, position: int) -> layers.Layer | None:
    others = [atom for i, atom in enumerate(eqn.invars) if i != position]
    if len(others) != 1 or not program.is_data(others[0]):
        return None
    return layers.recognise(eqn, position)


def _why_not(program: _Program, eqn: core.JaxprEqn, position: int) -> str:
    name = eqn.primitive.name
    meets = any(
        program.is_data(atom) for i, atom in enumerate(eqn.invars) if i != position
    )
    if meets:
        return f"meets data in {name}"
    return f"is transformed by {name} before it meets data"


def _enter(
    eqn: core.JaxprEqn, position: int
) -> tuple[core.Var, ScanLoop | None] | None:
    if is_remat(eqn):
        return body_of(eqn).jaxpr.invars[position], None
    if not is_scan(eqn):
        return None
    consts, carry = scan_layout(eqn)
    if consts <= position < consts + carry:
        return None
    loop = ScanLoop(eqn.params["length"], own_slice=position >= consts + carry)
    return body_of(eqn).jaxpr.invars[position], loop


def find_routes(closed: core.ClosedJaxpr, parameters: int) -> Routes:
    """The route of each of the first `parameters` arguments of the program.

    All other arguments are data; the first result is the loss.
    """
    inputs = closed.jaxpr.invars
    from_data = [False] * parameters + [True] * (len(inputs) - parameters)
    program = _Program(closed.jaxpr, from_data, results=1)
    routes = Routes()
    for variable in inputs[:parameters]:
        trail, last, reason = _follow(program, variable, _Trail())
        if reason == "unused":
            routes.of.append(Route((), reason))
            continue
        if reason:
            routes.of.append(Route(trail.steps, reason, tapped=last))
            continue
        if any(id(eqn) in routes.sites for eqn, _ in trail.uses):
            # Two scans that share one body object: their taps could not be told apart.
            routes.of.append(Route((), "shares a body", tapped=variable))
            continue
        sites = []
        for eqn, layer in trail.uses:
            site = Site(len(routes.sites), layer, trail.loops)
            routes.sites[id(eqn)] = site
            sites.append(site)
            for region in trail.around:
                routes.inside.setdefault(id(region), []).append(site)
        routes.of.append(
            Route(trail.steps, layers.describe(sites[0].layer), tuple(sites))
        )
    return routes
