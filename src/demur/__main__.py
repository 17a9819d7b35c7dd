"""`python -m demur`: the demur command."""

from demur.cli import app

if __name__ == "__main__":
    app(prog_name="demur")
