"""The release script: versions, changelog, hashes; it uploads nothing."""

import hashlib
from pathlib import Path

import pytest

from demur import __version__
from tests.docs.blocks import ROOT
from tools import release


def test_versions_agree():
    assert release.version_of((ROOT / "pyproject.toml").read_text()) == __version__
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text()


def test_a_release_has_a_section_of_its_own():
    log = "# Changelog\n\n## [Unreleased]\n- new\n\n## [1.2.0] - 2026-11-18\n- old\n"
    assert release.section_of(log, "1.2.0") == "- old"
    for missing in ("1.2", "1x2.0", "2.0"):
        with pytest.raises(ValueError, match="Nothing was built"):
            release.section_of(log, missing)


def test_hashes_are_those_of_sha256sum(tmp_path):
    (tmp_path / "b.whl").write_bytes(b"two")
    (tmp_path / "a.tar.gz").write_bytes(b"one")
    lines = release.sums_of(list(tmp_path.iterdir())).splitlines()
    assert [line.split("  ")[1] for line in lines] == ["a.tar.gz", "b.whl"]
    assert lines[0].startswith(hashlib.sha256(b"one").hexdigest())


def test_it_never_uploads():
    source = Path(release.__file__).read_text()
    assert "upload" in source  # it says who does
    assert source.count("subprocess.run(") == 2, "build and check, nothing more"
