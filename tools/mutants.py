"""The mutants of a module: cosmic-ray's operators and three more, drawn by site.

A site is a place and a kind of change (a sign, a number, a condition, a statement).
Sites are drawn uniformly, and then one of the changes possible there: the six ways to
misspell a plus sign must not drown the one way to forget a check.
"""

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

Position = tuple[int, int]
Positions = Iterator[tuple[Position, Position]]

ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
IDENTITY = {"Is", "IsNot"}
NAMES = {"min": "max", "minimum": "maximum", "floor": "ceil", "any": "all"}
UPDATES = {"+=": "-=", "*=": "/="}
# Without these decorators a program is slower, and not another one.
SPEED = ("njit", "numba", "cache", "lru_cache", "functools", "overload")


class DeleteStatement(Operator):
    """A call for its effect, a raise, an update or a store that is left out."""

    def mutation_positions(self, node: Any) -> Positions:
        """The statement, if a program without it still runs."""
        if node.type == "simple_stmt" and self._has_effect(node.children[0]):
            yield node.start_pos, node.end_pos

    @staticmethod
    def _has_effect(node: Any) -> bool:
        if node.type in ("raise_stmt", "del_stmt"):
            return True
        if node.type == "atom_expr":  # f(x)
            return bool(node.children[-1].children[0] == "(")
        if node.type != "expr_stmt":
            return False
        target, sign = node.children[:2]
        return sign.type == "augassign" or (target.type == "atom_expr" and sign == "=")

    def mutate(self, node: Any, index: int) -> Any:
        """The same line, doing nothing."""
        nothing = parso.parse("pass\n").children[0]
        nothing.get_first_leaf().prefix = node.get_first_leaf().prefix
        return nothing

    @classmethod
    def examples(cls) -> tuple[()]:
        """None: cosmic-ray's own tests are not run on it."""
        return ()


class Swap(DeleteStatement):
    """A name or a sign for its counterpart: min for max, -= for +=."""

    words: dict[str, str]

    def mutation_positions(self, node: Any) -> Positions:
        """A leaf that has a counterpart."""
        if getattr(node, "value", None) in self.words:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Exchange the two."""
        node.value = self.words[node.value]
        return node


class SwapName(Swap):
    """The other end: min for max, floor for ceil, any for all."""

    words = NAMES | {b: a for a, b in NAMES.items()}


class SwapUpdate(Swap):
    """The other direction of an update."""

    words = UPDATES | {b: a for a, b in UPDATES.items()}


@cache
def _operators() -> dict[str, Operator]:
    found: dict[str, Operator] = {
        kind.__name__: kind() for kind in (DeleteStatement, SwapName, SwapUpdate)
    }
    for name in operator_names():
        short = name.removeprefix("core/")
        kind, _, change = short.partition("_")
        before, _, after = change.partition("_")
        if kind.startswith("Variable"):
            continue  # needs names of variables
        if (before in IDENTITY) != (after in IDENTITY):
            continue  # `is` for `==` is the same program, or fails at once
        if kind == "ReplaceBinaryOperator" and len({before, after} & ARITHMETIC) == 1:
            continue  # a shift of a float fails at once: too easy to count
        found[short] = get_operator(name)()
    return found


@dataclass(frozen=True)
class Mutant:
    """One change: where it is and what makes it."""

    path: str
    operator: str
    occurrence: int
    line: int
    column: int
    end_line: int

    @property
    def key(self) -> str:
        """Its place and its kind."""
        return f"{self.path}:{self.line}:{self.column}:{self.operator}"

    def code(self, source: str) -> str | None:
        """The mutated module; None where it does not parse, or is the same program."""
        text = mutate_code(source, _operators()[self.operator], self.occurrence)
        try:
            same = text is None or ast.dump(ast.parse(text)) == ast.dump(
                ast.parse(source)
            )
        except SyntaxError:
            return None
        return None if same else text


def _silent(tree: ast.Module) -> Positions:
    """Where a change shows in a message or a type alone."""

    def span(node: Any) -> tuple[Position, Position]:
        return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)

    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name="__repr__" | "__str__"):
                yield span(node)
            case ast.FunctionDef(returns=ast.expr() as type_):
                yield span(type_)
            case (
                ast.arg(annotation=ast.expr() as type_)
                | ast.AnnAssign(annotation=type_)
            ):
                yield span(type_)
            case ast.Raise(exc=ast.expr() as text):
                yield span(text)
            case ast.JoinedStr():
                yield span(node)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.dump(test):
                yield span(node)
            case ast.Call(func=ast.Name(id="zip"), keywords=[strict]):
                yield span(strict)  # lengths that are equal anyway


def sites(path: Path, name: str) -> list[list[Mutant]]:
    """All mutants of a module by site, in the order of the text."""
    source = path.read_text()
    lines = source.splitlines()
    silent = list(_silent(ast.parse(source)))
    nodes = list(ast_nodes(get_ast(source)))
    found: dict[tuple[Position, str], list[Mutant]] = defaultdict(list)
    for operator_name, operator in _operators().items():
        occurrence = -1
        for node in nodes:
            for start, end in operator.mutation_positions(node):
                occurrence += 1
                if any(low <= start < high for low, high in silent):
                    continue
                if lines[start[0] - 1][start[1] :].startswith("*,"):
                    continue  # the mark before keyword-only parameters
                if operator_name == "RemoveDecorator" and node.get_code().strip(
                    "@ \n"
                ).startswith(SPEED):
                    continue
                kind = operator_name.partition("_")[0]
                found[start, kind].append(
                    Mutant(name, operator_name, occurrence, start[0], start[1], end[0])
                )
    return [found[site] for site in sorted(found)]


def draw(every: list[list[Mutant]], seed: str) -> Iterator[Mutant]:
    """One mutant of each site, the sites in random order: any beginning is a sample."""
    chance = random.Random(seed)
    for site in chance.sample(every, len(every)):
        yield chance.choice(site)
