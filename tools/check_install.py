"""Installs a built wheel into an empty environment, as a user would, and uses it.

    python tools/check_install.py out/dist/*.whl        # with this Python
    python tools/check_install.py out/dist/*.whl --python python3.13

First `pip install demur`: the command starts, `demur doctor` finds what it needs, and
nothing but the declared dependencies is there. Then `pip install 'demur[jax]'`: the
four programs of README.md run. With --whole, so do the audits of an installation that
has no other extra, and examples/notebooks, by Jupyter's own client and kernel. Nothing
of the checkout can be imported meanwhile, and pip is free to choose versions.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PROGRAM = re.compile(r"(?ms)^```python\n(.*?)^```")
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "-qq", "install")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    wheel = given.wheel.resolve(strict=True)
    with tempfile.TemporaryDirectory() as folder:
        # Neither the checkout nor a user's site-packages nor settings of ours.
        ours = ("PYTHON", "DEMUR_", "VIRTUAL_ENV")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        environment |= {"PYTHONNOUSERSITE": "1", "MPLBACKEND": "Agg", "HOME": folder}

        def run(*command: str | Path) -> None:
            print("$", *(str(part).splitlines()[0] for part in command), flush=True)
            subprocess.run(command, check=True, cwd=folder, env=environment)

        empty = Path(folder) / "empty"
        run(given.python, "-m", "venv", empty)
        python, demur = empty / "bin" / "python", empty / "bin" / "demur"
        run(python, *PIP, str(wheel))
        run(python, "-m", "pip", "--disable-pip-version-check", "check")
        run(demur, "--version")
        run(demur, "doctor")
        run(python, *PIP, f"demur[jax] @ {wheel.as_uri()}")
        run(python, "-m", "pip", "--disable-pip-version-check", "check")
        programs = PROGRAM.findall(README.read_text())
        if len(programs) != 4:
            print(f"README.md has {len(programs)} programs, and should have 4")
            return 1
        for number, program in enumerate(programs):
            path = Path(folder) / f"quickstart_{number}.py"
            path.write_text(program)
            run(python, "-W", "error", path.name)
        if given.whole:
            run(demur, "audit", "--quick", "--engine", "defaults", "--no-twins")
            run(python, *PIP, "nbclient", "ipykernel")
            for notebook in NOTEBOOKS:
                shutil.copy(notebook, folder)
                run(empty / "bin" / "jupyter-execute", notebook.name)
    print(f"{wheel.name}: installs into an empty environment and works there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
