"""Check a wheel: it holds every file of src/demur, and what it installs imports."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

IMPORT = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
import demur
assert pathlib.Path(demur.__file__).is_relative_to(sys.argv[1]), demur.__file__
"""


def main() -> int:
    """Compare the contents with the sources, then import from an unpacked copy."""
    (wheel,) = sys.argv[1:]
    wanted = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.joinpath("demur").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        if held != wanted:
            print(f"{wheel}: missing {sorted(wanted - held)}")
            print(f"{wheel}: unexpected {sorted(held - wanted)}")
            return 1
        root = str(Path(folder).resolve())
        archive.extractall(root)
        subprocess.run([sys.executable, "-c", IMPORT, root], check=True, cwd=root)
    print(f"{Path(wheel).name}: {len(held)} files, imports")
    return 0


if __name__ == "__main__":
    sys.exit(main())
