"""Runs the notebooks of examples/notebooks and stores their outputs and pictures.

    python -m tools.notebooks            # all of them; or names, without .ipynb

The cells run in one plain session; a cell with the tag `raises-exception` is meant to
fail. No package for notebooks is needed: outputs are what a notebook would show. Edit
the cells in any editor of notebooks, and run this to store their outputs again.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
IMAGES = Path(__file__).parents[1] / "docs" / "images"  # for docs/gallery.md
_RAISES = "raises-exception"


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook: words or code."""

    kind: str
    text: str
    raises: bool = False


def cells_of(path: Path) -> list[Cell]:
    """The cells of a notebook, without their outputs."""
    return [
        Cell(
            cell["cell_type"],
            "".join(cell["source"]),
            _RAISES in cell["metadata"].get("tags", ()),
        )
        for cell in json.loads(path.read_text())["cells"]
    ]


def outputs_of(path: Path) -> list[list[dict[str, Any]]]:
    """The stored outputs of each cell."""
    return [cell.get("outputs", []) for cell in json.loads(path.read_text())["cells"]]


def run(cells: list[Cell], folder: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each cell, run in one session in `folder`."""
    before = os.environ.get("DEMUR_ANNOUNCE")
    os.environ["DEMUR_ANNOUNCE"] = "1"  # as in a notebook
    session: dict[str, Any] = {"__name__": "__main__"}
    try:
        with contextlib.chdir(folder):
            return [_outputs(cell, session) for cell in cells]
    finally:
        os.environ.pop("DEMUR_ANNOUNCE")
        if before is not None:
            os.environ["DEMUR_ANNOUNCE"] = before


def _outputs(cell: Cell, session: dict[str, Any]) -> list[dict[str, Any]]:
    if cell.kind != "code":
        return []
    outputs: list[dict[str, Any]] = []
    error: Exception | None = None
    result = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            result = _executed(cell.text, session)
        except Exception as raised:
            if not cell.raises:
                raise
            error = raised
    if cell.raises and error is None:
        raise AssertionError(f"this cell was to fail:\n{cell.text}")
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if error is not None:
        lines = getattr(error, "_render_traceback_", None)
        shown = lines() if lines else traceback.format_exception(error)
        outputs.append(
            {"output_type": "error", "ename": type(error).__name__,
             "evalue": str(error), "traceback": shown}
        )  # fmt: skip
    if result is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": None, "metadata": {},
             "data": _shown(result)}
        )  # fmt: skip
    return outputs + _figures()


def _executed(text: str, session: dict[str, Any]) -> Any:
    """The value of a cell: of its last line, if that is an expression without `;`."""
    body = ast.parse(text).body
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr) or text.rstrip().endswith(";"):
        exec(compile(text, "<cell>", "exec"), session)
        return None
    exec(compile(ast.Module(body[:-1], []), "<cell>", "exec"), session)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), session)


def _shown(result: Any) -> dict[str, list[str]]:
    """What a notebook shows of a value; of one with HTML the text is its kind alone.

    A whole repr would be long, and name the user and the machine that made it.
    """
    page = getattr(result, "_repr_html_", None)
    if not callable(page):
        return {"text/plain": repr(result).splitlines(keepends=True)}
    return {
        "text/plain": [f"<{type(result).__name__}>"],
        "text/html": str(page()).splitlines(keepends=True),
    }


def _figures() -> list[dict[str, Any]]:
    """Pictures that the cell left open."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    drawn = []
    for number in pyplot.get_fignums() if pyplot else ():
        buffer = io.BytesIO()
        pyplot.figure(number).savefig(buffer, format="png", dpi=80)
        pyplot.close(number)
        picture = base64.b64encode(buffer.getvalue()).decode()
        drawn.append(
            {"output_type": "display_data", "metadata": {},
             "data": {"image/png": picture, "text/plain": ["<Figure>"]}}
        )  # fmt: skip
    return drawn


def notebook(cells: list[Cell], outputs: list[list[dict[str, Any]]]) -> str:
    """The notebook as JSON, in nbformat 4.5."""
    stored: list[dict[str, Any]] = []
    for number, (cell, shown) in enumerate(zip(cells, outputs, strict=True)):
        one: dict[str, Any] = {
            "cell_type": cell.kind,
            "id": f"cell-{number}",
            "metadata": {"tags": [_RAISES]} if cell.raises else {},
            "source": cell.text.splitlines(keepends=True),
        }
        if cell.kind == "code":
            one |= {"execution_count": None, "outputs": shown}
        stored.append(one)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": stored,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1) + "\n"


def main() -> None:
    """Run the notebooks that are named, or all."""
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    for name in names:
        cells = cells_of(FOLDER / f"{name}.ipynb")
        with tempfile.TemporaryDirectory() as folder:
            outputs = run(cells, Path(folder))
        (FOLDER / f"{name}.ipynb").write_text(notebook(cells, outputs))
        pictures = _pictures(outputs)
        for picture in pictures[:1]:
            (IMAGES / f"notebook_{name}.png").write_bytes(picture)
        print(f"{name}: {len(cells)} cells, {len(pictures)} pictures")


def _pictures(outputs: list[list[dict[str, Any]]]) -> list[bytes]:
    return [
        base64.b64decode(output["data"]["image/png"])
        for shown in outputs
        for output in shown
        if "image/png" in output.get("data", {})
    ]


if __name__ == "__main__":
    main()
