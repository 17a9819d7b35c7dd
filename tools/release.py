"""Makes a release and stops before uploading it: build, check, changelog, hashes, sign.

    python -m tools.release --key signing.pem --out out/release

The version of pyproject.toml must have a section of its own in CHANGELOG.md. The folder
gets the wheel, the sdist, SHA256SUMS, and with a key SHA256SUMS.sig (Ed25519, in
hexadecimal, of the digest that `demur.durable.chain.evidence_digest` takes). Uploading
is left to a person who has looked at them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from demur.durable.chain import evidence_digest, load_signing_key, sign

ROOT = Path(__file__).parents[1]


def version_of(project: str) -> str:
    """The version that pyproject.toml names."""
    version: str = tomllib.loads(project)["project"]["version"]
    return version


def section_of(changelog: str, version: str) -> str:
    """The changelog's section of a version, or a ValueError that says what to do."""
    heading = rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)"
    found = re.search(heading, changelog)
    if found is None or not found[1].strip():
        raise ValueError(
            f"CHANGELOG.md has no section '## [{version}]': rename [Unreleased], or"
            " change the version in pyproject.toml. Nothing was built."
        )
    return found[1].strip()


def sums_of(files: list[Path]) -> str:
    """The hashes of files, one line each, as sha256sum writes them."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(files)
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release")
    parser.add_argument("--key", type=Path, help="PEM file of an Ed25519 key")
    given = parser.parse_args()
    version = version_of((ROOT / "pyproject.toml").read_text())
    news = section_of((ROOT / "CHANGELOG.md").read_text(), version)
    key = None if given.key is None else load_signing_key(given.key)
    given.out.mkdir(parents=True, exist_ok=True)
    if any(given.out.iterdir()):
        sys.exit(f"{given.out} is not empty: choose another folder")
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        given.out,
        ROOT,
    ]
    subprocess.run(build, check=True)
    (wheel,) = given.out.glob("*.whl")
    subprocess.run(
        [sys.executable, ROOT / "tools" / "check_wheel.py", wheel], check=True
    )
    sums = sums_of([*given.out.glob("*.whl"), *given.out.glob("*.tar.gz")])
    (given.out / "SHA256SUMS").write_text(sums)
    (given.out / "NOTES.md").write_text(f"# demur {version}\n\n{news}\n")
    if key is not None:
        signature = sign(key, evidence_digest(sums.encode()))
        (given.out / "SHA256SUMS.sig").write_text(f"{signature}\n")
    print(
        f"demur {version} is in {given.out}. It was not uploaded: look at it, tag it,"
    )
    print(
        f"and upload it by hand:  twine upload {given.out}/*.whl {given.out}/*.tar.gz"
    )


if __name__ == "__main__":
    main()
