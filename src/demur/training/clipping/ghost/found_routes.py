"""Routes that were found: from a parameter to the layers where its gradient is had.

`routes` finds them; everything behind it reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jax.extend import core

from demur.training.clipping.factored_gradients import ScanLoop
from demur.training.clipping.ghost import layers
from demur.training.clipping.ghost.transforms import Path, WeightStep


@dataclass(frozen=True, eq=False)
class Site:
    """One use of a parameter in a layer; `number` names its tap."""

    number: int
    layer: layers.Layer
    loops: tuple[ScanLoop, ...]


Rearrangement = tuple[core.JaxprEqn, int]


@dataclass(frozen=True, eq=False)
class End:
    """A layer that a parameter reaches, and the way there behind the fork."""

    site: Site
    path: Path


@dataclass(frozen=True, eq=False)
class Route:
    """How one parameter's gradient is reached, and the `reason` for it.

    With `ends`, the gradient is the sum over them, of the `shape` that the parameter
    has at the end of `steps`; each step is an equation and the number of stacked axes
    in front of its values. With `parts`, routes of slices that have no entry in
    common, it is the sum over these, and squared norms add up. Without either, the
    variable `tapped` is tapped, and `steps` lead to it. With nothing, the loss does not
    depend on the parameter.
    """

    steps: tuple[Rearrangement, ...]
    reason: str
    ends: tuple[End, ...] = ()
    shape: tuple[int, ...] = ()
    tapped: core.Var | None = None
    parts: tuple[Route, ...] = ()

    @property
    def all_ends(self) -> tuple[End, ...]:
        """The ends, those of the parts included."""
        return self.ends + tuple(end for part in self.parts for end in part.all_ends)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The layers at the ends."""
        return tuple(end.site for end in self.all_ends)

    @property
    def is_plain(self) -> bool:
        """Whether one layer takes the parameter as it is."""
        return len(self.ends) == 1 and not self.ends[0].path.backs

    @property
    def is_looked_up(self) -> bool:
        """Whether rows of the parameter are looked up, and nothing else is done."""
        return all(isinstance(site.layer, layers.Lookup) for site in self.sites)

    @property
    def form(self) -> tuple[int, int, int]:
        """T, I, O of the gradient in factored form, look-ups as rows; of one slice."""
        if self.parts:
            return self.parts[0].form
        return form_of_ends(self.ends, self.shape)


def form_of_ends(ends: Sequence[End], shape: tuple[int, ...]) -> tuple[int, int, int]:
    """T of all ends together, and I, O of a parameter of this shape there."""
    forms = [layers.form_of(end.site.layer, end.site.loops) for end in ends]
    positions = sum(form[0] for form in forms)
    groups = ends[0].path.groups
    if groups is None:
        return positions, *forms[0][1:]
    sizes = [1, 1]
    for side, group in enumerate((groups.left, groups.right)):
        for axis in group:
            sizes[side] *= shape[axis]
    return positions, sizes[0], sizes[1]


@dataclass
class Routes:
    """The routes of all parameters and the equations on them, by identity."""

    of: list[Route] = field(default_factory=list)
    sites: dict[int, Site] = field(default_factory=dict)  # id(equation) -> site
    inside: dict[int, list[Site]] = field(default_factory=dict)  # id(scan) -> sites
    # id(equation) -> steps through it whose other operand is needed
    steps: dict[int, list[WeightStep]] = field(default_factory=dict)

    @property
    def all_sites(self) -> list[Site]:
        """Every site, in the order of its number."""
        return sorted(self.sites.values(), key=lambda site: site.number)

    def with_routes(self, routes: list[Route]) -> Routes:
        """Other routes through some of these sites; the rest is dropped."""
        used = {site.number for route in routes for site in route.sites}
        ends = [end for route in routes for end in route.all_ends]
        numbers = {back.step.number for end in ends for back in end.path.backs}
        inside = {
            at: [site for site in sites if site.number in used]
            for at, sites in self.inside.items()
        }
        steps = {
            at: [step for step in through if step.number in numbers]
            for at, through in self.steps.items()
        }
        return Routes(
            routes,
            {at: site for at, site in self.sites.items() if site.number in used},
            {at: sites for at, sites in inside.items() if sites},
            {at: through for at, through in steps.items() if through},
        )
