"""How examples look on the pages of `make docs`: a griffe extension and an mkdocs hook.

Examples are written as doctest runs them; the pages show them as sessions.
"""

import re
from textwrap import dedent
from typing import Any

import griffe

# An example and its output, up to an empty line.
_EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:(?! *$).+\n?)*")
# Indented on a page: up to what is not indented.
_INDENTED = re.compile(r"(?m)(?<=\n\n) {4}>>> (?:.*\n)(?: {4}.*\n|\n(?= {4}))*")
_FENCED = re.compile(r"(?ms)(^```.*?^```$)")


class FenceExamples(griffe.Extension):
    """Put a fence round every run of `>>>` lines and their output."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring in place; the source file stays as it is."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The hook: examples of a page are sessions, whether it fences them or not.

    What programs print, fenced as text, is wrapped like prose; indented blocks are not.
    """
    parts = _FENCED.split(markdown)
    parts[0::2] = [_INDENTED.sub(_dedented, fenced(part)) for part in parts[0::2]]
    for shown, kind in (
        ("python\n>>> ", "pycon\n>>> "),
        ("text\n", " {.text .prose}\n"),
    ):
        parts[1::2] = [
            part.replace(f"```{shown}", f"```{kind}", 1) for part in parts[1::2]
        ]
    return "".join(parts)


def _dedented(found: re.Match[str]) -> str:
    return f"```pycon\n{dedent(found[0]).rstrip()}\n```\n"


def fenced(text: str) -> str:
    """The text with each of its examples between fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
