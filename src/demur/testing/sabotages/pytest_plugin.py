"""A pytest plugin that runs tests on a sabotaged demur, to see which of them notice.

    DEMUR_SABOTAGE="NAME" pytest -p demur.testing.sabotages.pytest_plugin tests/ledger

Processes that the tests start are sabotaged too. Without the variable it does nothing.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from demur.testing.sabotages.catalogue import sabotage
from demur.testing.sabotages.patches import in_children


def pytest_configure(config: Any) -> None:
    """Apply the sabotage that the environment names, until the run ends."""
    name = os.environ.get("DEMUR_SABOTAGE")
    if name is None:
        return
    stack = ExitStack()
    stack.enter_context(sabotage(name).applied())
    stack.enter_context(in_children(name))
    config.add_cleanup(stack.close)
