"""Routes from parameters to the layers that use them, in the program of one loss.

From a parameter we follow the program forward: through operations that only rearrange
it, into the body of a scan or a checkpoint, until a *layer* is reached, an equation
with a rule (`layers`) whose other operand depends on the data. Where the way forks, or
the parameter becomes part of another weight (`transforms`), every way is followed. If
all of them end at layers, the loss depends on that parameter only through the outputs
of these layers, so the parameter's gradient follows from the cotangents there and the
other operands.

When a way ends at an operation without a rule, or the gradients at several layers have
no common form, the parameter is *tapped* itself, at the last point outside any scan:
its gradient is formed example by example for that parameter alone. That point is on
every way from the parameter to the loss, so whatever happens behind it is accounted
for with all cross terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.factored_gradients import ScanLoop
from demur.training.clipping.ghost import layers
from demur.training.clipping.ghost.convolution import Convolution
from demur.training.clipping.ghost.found_routes import (
    End,
    Rearrangement,
    Route,
    Routes,
    Site,
    form_of_ends,
)
from demur.training.clipping.ghost.inlining import (
    body_of,
    is_remat,
    is_scan,
    kind_of,
    scan_layout,
)
from demur.training.clipping.ghost.rearrangements import are_apart, keeps_norms
from demur.training.clipping.ghost.transforms import (
    WeightStep,
    lined_up,
    path_of,
    step_through,
)
from demur.training.clipping.ghost.uses import Program
from demur.training.clipping.norms import norm_method

_MOST_WAYS = 8


@dataclass(frozen=True, eq=False)
class _Place:
    """Where an equation stands: the scans around it, and all bodies it is in."""

    loops: tuple[ScanLoop, ...] = ()
    around: tuple[core.JaxprEqn, ...] = ()

    def inside(self, eqn: core.JaxprEqn, loop: ScanLoop | None) -> _Place:
        loops = self.loops if loop is None else (*self.loops, loop)
        return _Place(loops, (*self.around, eqn))


@dataclass(frozen=True, eq=False)
class _Way:
    """One way from a fork to a layer."""

    eqn: core.JaxprEqn
    layer: layers.Layer
    place: _Place
    steps: tuple[WeightStep, ...]


@dataclass(frozen=True, eq=False)
class _Trail:
    """From a parameter to the fork, and the ways from there (or why there are none).

    `last` is the last variable before the fork at the outermost level.
    """

    last: core.Var
    steps: tuple[Rearrangement, ...]
    shape: tuple[int, ...] = ()
    ways: tuple[_Way, ...] = ()
    reason: str = ""
    parts: tuple[_Trail, ...] = ()


def _follow(
    program: Program,
    variable: core.Var,
    place: _Place,
    steps: tuple[Rearrangement, ...] = (),
) -> _Trail:
    """Follow `variable` to the fork, and all ways from there."""
    while True:
        uses = program.uses.get(variable, [])
        if not uses:
            return _Trail(variable, steps, reason="unused")
        eqn, position = uses[0].eqn, uses[0].position
        if len(uses) == 1 and eqn is not None and keeps_norms(eqn):
            stacked = sum(loop.own_slice for loop in place.loops)
            steps = (*steps, (eqn, stacked))
            variable = eqn.outvars[0]
            continue
        entered = None
        if len(uses) == 1 and eqn is not None:
            entered = _enter(eqn, position)
        cut = [use.eqn for use in uses if use.eqn is not None]
        if len(cut) == len(uses) > 1 and are_apart(cut):
            stacked = sum(loop.own_slice for loop in place.loops)
            found = [
                _follow(program, each.outvars[0], place, (*steps, (each, stacked)))
                for each in cut
            ]
            parts = tuple(trail for trail in found if trail.reason != "unused")
            reasons = [trail.reason for trail in parts if trail.reason]
            if reasons or not parts:
                return _Trail(variable, steps, reason=(reasons or ["unused"])[0])
            return _Trail(variable, steps, parts=parts)
        if entered is None or eqn is None:
            ways = _ways(program, variable, place)
            if isinstance(ways, str):
                return _Trail(variable, steps, reason=ways)
            shape = kind_of(variable).shape
            return _Trail(variable, steps, shape, tuple(ways))
        inner, loop = entered
        trail = _follow(program.body(eqn), inner, place.inside(eqn, loop), steps)
        if trail.reason:
            return _Trail(variable, steps, reason=trail.reason)
        return replace(trail, last=variable)


def _ways(
    program: Program,
    variable: core.Var,
    place: _Place,
    steps: tuple[WeightStep, ...] = (),
) -> list[_Way] | str:
    """All ways from a variable to layers; a reason if one of them leads nowhere."""
    uses = program.uses.get(variable, [])
    ways: list[_Way] = []
    for use in uses:
        if use.eqn is None:
            return "returned by a scan or as the loss"
        eqn, position = use.eqn, use.position
        layer = _layer(program, eqn, position)
        if layer is not None:
            ways.append(_Way(eqn, layer, place, steps))
            continue
        found: list[_Way] | str
        step, entered = _step(program, eqn, position, place), _enter(eqn, position)
        if step is not None:
            found = _ways(program, eqn.outvars[0], place, (*steps, step))
        elif entered is not None and not (entered[1] and entered[1].own_slice):
            inner, loop = entered
            found = _ways(program.body(eqn), inner, place.inside(eqn, loop), steps)
        else:
            found = _why_not(program, eqn, position)
            if len(uses) > 1:
                found = f"used in {len(uses)} places, where it {_verb(found)}"
        if isinstance(found, str):
            return found
        ways += found
        if len(ways) > _MOST_WAYS:
            return f"used in more than {_MOST_WAYS} places"
    return ways


def _verb(reason: str) -> str:
    return reason if reason.startswith(("meets", "is ")) else f"is {reason}"


def _step(
    program: Program, eqn: core.JaxprEqn, position: int, place: _Place
) -> WeightStep | None:
    others = [atom for i, atom in enumerate(eqn.invars) if i != position]
    if any(program.is_data(atom) for atom in others) or len(eqn.outvars) != 1:
        return None
    varies = [program.varies(atom) for atom in eqn.invars]
    return step_through(eqn, position, varies, place.loops)


def _layer(program: Program, eqn: core.JaxprEqn, position: int) -> layers.Layer | None:
    others = [atom for i, atom in enumerate(eqn.invars) if i != position]
    if len(others) != 1 or not program.is_data(others[0]):
        return None
    return layers.recognise(eqn, position)


def _why_not(program: Program, eqn: core.JaxprEqn, position: int) -> str:
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


def find_routes(
    closed: core.ClosedJaxpr, parameters: int, *, held: bool = True
) -> Routes:
    """The route of each of the first `parameters` arguments of the program.

    All other arguments are data; the first result is the loss. `held`: what is found at
    the layers is held until all clip factors are known.
    """
    inputs = closed.jaxpr.invars
    from_data = [False] * parameters + [True] * (len(inputs) - parameters)
    program = Program(closed.jaxpr, from_data, results=1)
    found = _Found(held)
    for variable in inputs[:parameters]:
        trail = _follow(program, variable, _Place())
        found.routes.of.append(found.route(variable, trail))
    return found.routes.with_routes(found.routes.of)


class _Found:
    """The routes so far, and where their sites stand."""

    def __init__(self, held: bool) -> None:
        self.held = held
        self.routes = Routes()
        self.places: dict[int, tuple[Site, tuple[int, ...]]] = {}
        self.numbers = count()

    def route(self, variable: core.Var, trail: _Trail) -> Route:
        """The route of one parameter; its sites and steps are noted."""
        if trail.reason == "unused":
            return Route((), trail.reason)
        if trail.reason:
            return Route(trail.steps, trail.reason, tapped=trail.last)
        if trail.parts:
            parts = tuple(self.route(variable, part) for part in trail.parts)
            reason = f"{parts[0].reason}, in {len(parts)} slices"
            if any(part.tapped is not None for part in parts):
                return Route(trail.steps, reason, tapped=trail.last)
            return Route((), reason, parts=parts)
        if self.held and any(_is_better_formed_by_jax(way) for way in trail.ways):
            reason = "convolution, smaller than its patches"
            return Route(trail.steps, reason, tapped=trail.last)
        if any(self._stands_elsewhere(way) for way in trail.ways):
            # Two scans that share one body object: their taps could not be told apart.
            return Route((), "shares a body", tapped=variable)
        numbered = [
            replace(
                way,
                steps=tuple(
                    replace(step, number=next(self.numbers)) for step in way.steps
                ),
            )
            for way in trail.ways
        ]
        found = [path_of(way.layer, way.steps) for way in numbered]
        kinds = [way.layer for way in numbered]
        paths = [path for path in found if path is not None]
        lined = lined_up(kinds, paths) if len(paths) == len(found) else None
        if lined is None:
            reason = "made part of a weight that is not in its factored form"
            if not any(way.steps for way in numbered):
                reason = "used in several places of different kinds"
            return Route(trail.steps, reason, tapped=trail.last)
        ends = [
            End(self._site(way), path)
            for way, path in zip(numbered, lined, strict=True)
        ]
        if _better_formed(ends, trail.shape):
            reason = f"{_describe(ends)}, and smaller than its factors"
            return Route(trail.steps, reason, tapped=trail.last)
        for way in numbered:
            for step in way.steps:
                if step.other is not None:
                    self.routes.steps.setdefault(id(step.eqn), []).append(step)
        reason = _describe(ends)
        return Route(trail.steps, reason, tuple(ends), trail.shape)

    def _stands_elsewhere(self, way: _Way) -> bool:
        known = self.places.get(id(way.eqn))
        if known is None:
            return False
        site, around = known
        same = around == tuple(map(id, way.place.around))
        return not same or site.layer.data_position != way.layer.data_position

    def _site(self, way: _Way) -> Site:
        if id(way.eqn) in self.places:
            return self.places[id(way.eqn)][0]
        site = Site(len(self.routes.sites), way.layer, way.place.loops)
        self.routes.sites[id(way.eqn)] = site
        self.places[id(way.eqn)] = site, tuple(map(id, way.place.around))
        for region in way.place.around:
            self.routes.inside.setdefault(id(region), []).append(site)
        return site


def _is_better_formed_by_jax(way: _Way) -> bool:
    """Whether a kernel's gradients are better formed by the convolution's own rule.

    XLA's gradient of a kernel needs no patches. On a CPU it is as fast for each example
    as for all; the patches and the cotangent, widened to float64, would be twice
    T (I + O) numbers. (Elsewhere libraries are slow at convolutions with a group for
    each example.) In float64 it forms the examples' gradients as one convolution with
    zeros between them, so that one that is not a number reaches all others.
    """
    if not isinstance(way.layer, Convolution) or way.place.loops:
        return False
    if way.layer.output.dtype == jnp.float64:
        return False
    positions, inputs, outputs = layers.form_of(way.layer, ())
    few = inputs * outputs <= 2 * positions * (inputs + outputs)
    return few and jax.default_backend() == "cpu"


def _better_formed(ends: Sequence[End], shape: tuple[int, ...]) -> bool:
    """Whether gradients, example by example, are smaller than products of which look-
    ups are another part; or there is a mask and they are."""
    looked_up = [isinstance(end.site.layer, layers.Lookup) for end in ends]
    mixed = any(looked_up) and not all(looked_up)
    if not mixed and not any(end.path.masked for end in ends):
        return False
    products = [end for end, flag in zip(ends, looked_up, strict=True) if not flag]
    return norm_method(*form_of_ends(products, shape)) == "instantiated"


def _describe(ends: Sequence[End]) -> str:
    kinds = [layers.describe(end.site.layer) for end in ends]
    text = " and ".join(dict.fromkeys(kinds))
    names = [
        back.step.eqn.primitive.name
        for end in ends
        for back in end.path.backs
        if back.step.other is not None or back.step.eqn.primitive.name in ("add", "sub")
    ]
    if names:
        text += f" behind {', '.join(dict.fromkeys(names))}"
    return text
