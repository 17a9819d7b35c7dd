"""The house in numbers, as a table and as two pictures, read off the source.

    python -m tools.house            # the measures of docs/architecture.md
    python -m tools.house --write    # write the table and the pictures into docs/
    python -m tools.house --trace    # files that one call of each kind crosses (slow)

The table lists every module by the first line of its docstring. A test compares it with
the tree (tests/docs/test_house.py), so that it cannot fall behind.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "demur"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- house: begin -->", "<!-- house: end -->"
MOST_PARAMETERS = 10


def layers() -> list[tuple[str, ...]]:
    """The packages from top to bottom, as import-linter keeps them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    of_all = next(each for each in contracts if each.get("containers") == ["demur"])
    lines = [tuple(line.split(" | ")) for line in of_all["layers"]]
    return [line for line in lines if line != ("errors",)]  # one module of names


def modules() -> Iterator[tuple[str, Path]]:
    """Every module's path inside the package, and its file."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path


@cache
def parsed(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text())


def first_line(path: Path) -> str:
    """What a module says about itself."""
    doc = ast.get_docstring(parsed(path), clean=True)
    return (doc or "").split("\n")[0]


# -- the table -------------------------------------------------------------------------


def table() -> str:
    """Every module with its first line, folder by folder, as Markdown."""
    folders: dict[str, list[tuple[str, str]]] = defaultdict(list)
    about: dict[str, str] = {}
    for name, path in modules():
        folder, _, file = name.rpartition("/")
        if file == "__init__.py":
            about[folder] = first_line(path)
        else:
            folders[folder].append((file.removesuffix(".py"), first_line(path)))
    lines = []
    for folder in sorted(about, key=_rank):
        lines.append(f"\n### `{'demur/' + folder if folder else 'demur'}`")
        lines.append(f"{about[folder]}\n")
        if folders[folder]:
            lines += ["| module | what is in it |", "|---|---|"]
            lines += [f"| `{name}` | {_cell(line)} |" for name, line in folders[folder]]
    return "\n".join(lines).strip() + "\n"


def _rank(folder: str) -> tuple[int, str]:
    """Bottom layers first: a reader meets what a package stands on before it."""
    top = folder.split("/")[0]
    order = [name for layer in reversed(layers()) for name in layer]
    return (order.index(top) if top in order else -1, folder)


def _cell(line: str) -> str:
    return line.replace("|", "\\|")


def with_table(page: str) -> str:
    """The page with the table of the present tree in its place."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


# -- the measures ----------------------------------------------------------------------


def measures() -> dict[str, str]:
    """What the architecture page reports about the tree."""
    files = dict(modules())
    per_folder = Counter(name.rpartition("/")[0] for name in files)
    lines = {name: len(path.read_text().splitlines()) for name, path in files.items()}
    folder, most = per_folder.most_common(1)[0]
    longest = max(lines, key=lambda name: lines[name])
    wide, bare = signatures(), undocumented()
    return {
        "modules": f"{len(files)}, {sum(lines.values()):,} lines",
        "modules in one folder, at most": f"{most} ({folder})",
        "lines of a module, median": f"{statistics.median(lines.values()):.0f}",
        "lines of a module, at most": f"{lines[longest]} ({longest})",
        f"signatures with more than {MOST_PARAMETERS} parameters": str(len(wide)),
        "public names without a docstring": str(len(bare)),
    }


def signatures() -> list[str]:
    """Functions with more parameters than anybody can keep in mind.

    Flat by convention and not counted: estimators' `__init__` (scikit-learn clones by
    its parameters) and the seeds' own signatures in `compat`.
    """
    wide = []
    for name, path in modules():
        if name.startswith("compat/"):
            continue
        for function, owner in _functions(parsed(path)):
            each = function.args
            count = len(each.posonlyargs) + len(each.args) + len(each.kwonlyargs)
            first = each.args[0].arg if each.args else ""
            count -= first in ("self", "cls")
            command = any("command" in ast.unparse(d) for d in function.decorator_list)
            estimator = function.name == "__init__" and _is_estimator(owner)
            if count > MOST_PARAMETERS and not estimator and not command:
                place = f"{owner.name}." if owner else ""
                wide.append(f"{name}:{place}{function.name} ({count})")
    return wide


def _functions(
    tree: ast.AST, owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.FunctionDef, ast.ClassDef | None]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, owner
        yield from _functions(node, node if isinstance(node, ast.ClassDef) else owner)


def _is_estimator(owner: ast.ClassDef | None) -> bool:
    """Whether a class follows scikit-learn: it fits, or a class of its family does."""
    if owner is None:
        return False
    methods = {node.name for node in owner.body if isinstance(node, ast.FunctionDef)}
    families = ("Ball", "Private", "Unlearnable")
    return "fit" in methods or owner.name.startswith(families)


def undocumented() -> list[str]:
    """Public modules, classes and functions that say nothing about themselves."""
    bare = []
    for name, path in modules():
        tree = parsed(path)
        if not ast.get_docstring(tree):
            bare.append(name)
        for node in tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            members = node.body if isinstance(node, ast.ClassDef) else []
            for each in [node, *members]:
                if not isinstance(each, ast.ClassDef | ast.FunctionDef):
                    continue
                public = not each.name.startswith("_") and not node.name.startswith("_")
                if public and not ast.get_docstring(each):
                    bare.append(f"{name}:{each.name}")
    return bare


# -- files that one call crosses -------------------------------------------------------


def crossed() -> dict[str, int]:
    """How many files of the package run code during one call of each kind."""
    from tools import house_calls  # noqa: PLC0415  engines are loaded for this alone

    counts = {}
    for name, prepare in house_calls.CALLS.items():
        call = prepare()
        files: set[str] = set()

        def watch(
            frame: object, event: str, _: object, files: set[str] = files
        ) -> None:
            if event == "call":
                files.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

        sys.setprofile(watch)
        try:
            call()
        finally:
            sys.setprofile(None)
        counts[name] = sum(file.startswith(str(SOURCE)) for file in files)
    return counts


def main() -> None:
    """Print the measures; write the table and the pictures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--trace", action="store_true")
    args = parser.parse_args()
    for name, value in measures().items():
        print(f"{name}: {value}")
    for line in signatures():
        print(f"  wide: {line}")
    for line in undocumented():
        print(f"  bare: {line}")
    if args.trace:
        for call, count in crossed().items():
            print(f"files crossed by {call}: {count}")
    if args.write:
        from tools import house_pictures  # noqa: PLC0415  matplotlib

        PAGE.write_text(with_table(PAGE.read_text()))
        for path in house_pictures.draw(ROOT / "docs" / "images"):
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
