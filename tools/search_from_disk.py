"""An mkdocs hook: search works in pages that are opened from disk, without a server.

The theme looks for its index as a script where pages are files, and starts a worker,
which browsers refuse there. This writes the one, and loads docs/javascripts/
file_worker.js, which stands in for the other, before the theme's own script.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.utils import get_relative_url

_SCRIPT = "javascripts/file_worker.js"
_BUNDLE = re.compile(r'<script src="[^"]*assets/javascripts/bundle\.')


def on_post_page(output: str, *, page: Any, **kwargs: Any) -> str:
    """The page with the script of the search, before that of the theme."""
    place = get_relative_url(_SCRIPT, page.url)
    return _BUNDLE.sub(
        lambda bundle: f'<script src="{place}"></script>{bundle[0]}', output, count=1
    )


def on_post_build(*, config: Any, **kwargs: Any) -> None:
    """Write the index as a script beside the index as JSON."""
    folder = Path(config["site_dir"]) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
