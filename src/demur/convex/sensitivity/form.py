r"""The form of a head: its loss, its regulariser and the norm bound of its rows.

    F(theta) = (1/n) sum_i l(theta; x_i, y_i) + (lam/2) |theta|^2

over theta = (w, b) with the bias feature s: scores are <w, x> + s b. *Every* coordinate
is regularised, the bias included. Binary losses have a vector theta of d + 1 numbers (d
where s = 0), softmax a matrix of K rows.

All of it is public: a form is fixed without looking at the data.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace

from demur.core import validate
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound, BoundSource
from demur.core.promise import Promise

LOSSES = ("logistic", "softmax", "squared_hinge", "huber")
HUBER_WIDTH = 0.5
# The largest gradient norm at which a head counts as the minimiser (`solver`).
TAU = 1e-9


@dataclass(frozen=True)
class HeadForm:
    """The objective that a linear head minimises, and the norm bound of its rows.

    - `loss`: "logistic", "softmax", "squared_hinge" or "huber" (half-width
      `huber_width` of its parabola, at most 1);
    - `lam`: the weight of the regulariser lam/2 |theta|^2 (`lam_from` translates other
      conventions); 0 for none, as noisy gradient descent allows;
    - `norm_bound`: the largest |x| of a row. Without one (infinity, the default)
      nothing bounds how far a gradient moves; an objective can still be minimised;
    - `num_classes`: 2 for every loss but softmax;
    - `bias_scale`: the constant feature that the bias multiplies; 0 for no bias;
    - `norm_source`: whether the bound is declared, enforced (rows were clipped) or
      estimated from the data, which makes a statement conditional.

    >>> HeadForm("softmax", lam=0.01, norm_bound=1.0, num_classes=4).shape(features=8)
    (4, 9)
    """

    loss: str
    _: KW_ONLY
    lam: float
    norm_bound: float = math.inf
    num_classes: int = 2
    bias_scale: float = 1.0
    huber_width: float = HUBER_WIDTH
    norm_source: BoundSource = BoundSource.DECLARED

    def __post_init__(self) -> None:
        _check_loss(self.loss, self.num_classes)
        validate.non_negative(lam=self.lam, bias_scale=self.bias_scale)
        validate.positive(huber_width=self.huber_width)
        if self.huber_width > 1.0:
            raise ValueError(f"huber_width must be at most 1; got {self.huber_width}")
        unbounded = isinstance(self.norm_bound, float) and self.norm_bound == math.inf
        if not unbounded:
            validate.positive(norm_bound=self.norm_bound)
        # Whole numbers and NumPy's become plain floats.
        for name in ("lam", "norm_bound", "bias_scale", "huber_width"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "num_classes", int(self.num_classes))
        origin = validate.choice(BoundSource, norm_source=self.norm_source)
        object.__setattr__(self, "norm_source", origin)

    @property
    def multinomial(self) -> bool:
        """Whether theta is a matrix with a row for each class."""
        return self.loss == "softmax"

    def shape(self, features: int) -> tuple[int, ...]:
        """The shape of theta for rows with this number of features."""
        width = features + (self.bias_scale > 0)
        return (self.num_classes, width) if self.multinomial else (width,)

    @property
    def bound(self) -> Bound:
        """The norm bound and where it comes from; an error where there is none."""
        validate.positive(norm_bound=self.norm_bound)
        return Bound(self.norm_bound, self.norm_source)

    def with_bound(self, bound: Bound) -> HeadForm:
        """This form on rows with the given norm bound."""
        return replace(self, norm_bound=bound.value, norm_source=bound.source)

    @property
    def augmented_norm(self) -> float:
        """Bt = sqrt(B^2 + s^2): the norm bound of a row with its bias feature."""
        return math.hypot(self.bound.value, self.bias_scale)


@dataclass(frozen=True, kw_only=True)
class DeclaredForm:
    """A convex loss of the caller's own, known by constants that the caller declares.

    - `lz` bounds |grad l(theta; x, y) - grad l(theta; x', y)| / |x - x'| over every
      theta that can be a minimiser;
    - `gradient_bound` bounds |grad l| and adds the caps; without it nothing is said
      about `ReplaceOne`.
    """

    lam: float
    norm_bound: float
    lz: float
    gradient_bound: float | None = None
    norm_source: BoundSource = BoundSource.DECLARED

    def __post_init__(self) -> None:
        validate.positive(lz=self.lz, lam=self.lam, norm_bound=self.norm_bound)
        if self.gradient_bound is not None:
            validate.positive(gradient_bound=self.gradient_bound)
        origin = validate.choice(BoundSource, norm_source=self.norm_source)
        object.__setattr__(self, "norm_source", origin)

    @property
    def loss(self) -> str:
        """The name under which a statement speaks of it."""
        return "declared"

    @property
    def bound(self) -> Bound:
        """The norm bound and where it comes from."""
        return Bound(self.norm_bound, self.norm_source)


@dataclass(frozen=True)
class Fit:
    """How a head was fitted: on `n` records, to a gradient norm of at most `tau`.

    - `tau` is fixed in advance and holds for every dataset that might have been met;
      2 tau / lam is part of the sensitivity;
    - `gradient_norm` is what was measured on these data (`demur.convex.gradient_norm`);
      None where the data are not at hand, which makes a statement conditional;
    - `classes_public`: False where the classes were read off the labels. Then nothing
      is said about a replacement that changes the label.
    """

    n: int
    _: KW_ONLY
    tau: float = TAU
    gradient_norm: float | None = None
    classes_public: bool = True

    def __post_init__(self) -> None:
        validate.count(n=self.n)
        validate.non_negative(tau=self.tau)
        if self.gradient_norm is not None:
            validate.non_negative(gradient_norm=self.gradient_norm)


def unit_of(promise: Promise) -> Ball | ReplaceOne:
    """The unit that a promise for a head is made at: a ball, or any replacement."""
    unit = promise.unit if isinstance(promise, Promise) else None
    if not isinstance(unit, Ball | ReplaceOne):
        raise TypeError(
            "promise must be a Promise at a Ball or at ReplaceOne(), where the number"
            " of records is public, such as Promise(Ball(0.3, space='records'), 1.0,"
            f" 1e-6); got {validate.shorten(promise)}. Nothing was spent."
        )
    return unit


def _check_loss(loss: str, num_classes: int) -> None:
    """Refuse a loss this engine has no bound for, or one for another K."""
    if loss not in LOSSES:
        raise ValueError(
            f"loss must be one of {', '.join(LOSSES)}; got {loss!r}. A convex loss of"
            " your own is a DeclaredForm."
        )
    validate.count(num_classes=num_classes)
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2; got {num_classes}")
    if loss != "softmax" and num_classes != 2:
        raise ValueError(
            f"loss {loss!r} is for two classes; got num_classes={num_classes}."
            " Use loss='softmax'."
        )
