"""The `demur` command."""

from demur.cli.main import app as app
