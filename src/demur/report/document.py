"""HTML documents of one file, which fetch nothing and run nothing."""

from __future__ import annotations

import errno
import json
import os
import secrets
from importlib.resources import files
from pathlib import Path
from typing import Any

from demur.report.text import attribute, safe

# What stands at the foot of printed pages, by the name of their data.
_FOOTERS = {"ledger": "privacy report", "certificate": "certificate of deletion"}
# Nothing may be fetched or run, even if the escaping of a text failed.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'"
)


def document(
    title: str, body: str, *, data_name: str, data: Any, css_class: str = ""
) -> str:
    """A page with its style, and with its data as JSON in the element `data_name`."""
    style = files("demur.report").joinpath("page.css").read_text(encoding="utf-8")
    footer = _FOOTERS.get(data_name, "demur")
    style = style.replace('content: "privacy report"', f'content: "{footer}"')
    # "<" must not end the script element, so it is written as an escape.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<title>{safe(title)}</title><link rel="icon" href="data:,">'
        f"<style>\n{style}</style></head>\n"
        f'<body class="{attribute(css_class)}">\n{body}\n'
        f'<script type="application/json" id="{attribute(data_name)}">{text}</script>\n'
        "</body></html>\n"
    )


def write_document(
    page: str, path: str | os.PathLike[str], *, private: bool = False
) -> None:
    """Write a page. It is moved into place when it is complete.

    A `private` one is for its owner's eyes alone (mode 600).
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise ValueError(
            f"path must be in a folder that exists; there is no folder {target.parent}."
            " Nothing was written."
        )
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(target))
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        if private:
            part.touch(0o600)
        part.write_text(page, encoding="utf-8")
        os.replace(part, target)
    except FileNotFoundError as error:  # a folder that takes no files, such as /proc
        raise PermissionError(errno.EACCES, "cannot be written", str(target)) from error
    finally:
        part.unlink(missing_ok=True)
