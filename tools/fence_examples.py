"""How examples look on the pages of `make docs`: a griffe extension and an mkdocs hook.

Examples are written as doctest runs them; the pages show them as sessions.
"""

import re
from typing import Any

import griffe

# An example and its output, up to an empty line; indented ones are code blocks already.
_EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:(?! *$).+\n?)*")
_FENCED = re.compile(r"(?ms)(^```.*?^```$)")


class FenceExamples(griffe.Extension):
    """Put a fence round every run of `>>>` lines and their output."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring in place; the source file stays as it is."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The hook: examples of a page are sessions, whether it fences them or not."""
    parts = _FENCED.split(markdown)
    parts[0::2] = [fenced(part) for part in parts[0::2]]
    parts[1::2] = [
        part.replace("```python\n>>> ", "```pycon\n>>> ") for part in parts[1::2]
    ]
    return "".join(parts)


def fenced(text: str) -> str:
    """The text with each of its examples between fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
