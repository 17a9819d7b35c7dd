"""Templates of the pages: every text is escaped, numbers are rounded as everywhere."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from demur.report.text import day, number_down, number_up, one_line

_SMALL = re.compile(r"\b[0-9.]+e-[0-9]+")
_STATIC = {
    "page.css": ("demur.report", "page.css", "text/css; charset=utf-8"),
    "console.css": ("demur.serve", "static/console.css", "text/css; charset=utf-8"),
    "console.js": ("demur.serve", "static/console.js", "text/javascript"),
}


class Templates:
    """The templates of the package."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FunctionLoader(_source),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "up": number_up,
            "down": number_down,
            "line": lambda text: one_line(str(text)),
            "prose": _prose,
            "sentence": lambda text: text[:1].upper() + text[1:],
            "day": lambda time: Markup(day(time)),
        }

    def render(self, name: str, **facts: Any) -> str:
        """A page."""
        return self._environment.get_template(name).render(**facts)


def _prose(text: str) -> Markup:
    """A statement, escaped; 1e-06 is not broken at its hyphen."""
    escaped = str(escape(one_line(text)))
    return Markup(_SMALL.sub(r'<span class="number">\g<0></span>', escaped))


def _source(name: str) -> str:
    place = files("demur.serve").joinpath("templates", name)
    return place.read_text(encoding="utf-8")


def static(name: str) -> tuple[bytes, str] | None:
    """A file that pages refer to, and its type; None for any other name."""
    if name not in _STATIC:
        return None
    package, path, kind = _STATIC[name]
    return files(package).joinpath(*path.split("/")).read_bytes(), kind
