"""Evidence packs: what a ledger can show about itself, in one signed file.

A pack is a zip of plain files with a manifest of their hashes. The manifest names the
ledger and its tip, and is signed where the ledger is. Whoever has the signer's public
key can check a pack without the ledger; whoever has the ledger can check that the tip
of the pack is in it. A pack is no proof that the declarations in it are true.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur import __version__
from demur.durable import atomic_files, clock
from demur.durable.chain import Tip, signed_by
from demur.ledger import Ledger, evidence_digest, export_ledger, registry_records
from demur.report.facts import gather
from demur.report.page import render
from demur.report.questions import questions_page
from demur.report.text import json_data

if TYPE_CHECKING:
    from demur.unlearning import Certificate

FORMAT = 1
_MANIFEST, _SIGNATURE = "manifest.json", "manifest.sig"
_LARGEST = 512 << 20  # bytes of an unpacked pack
# What reading a file raises that is no zip file, or no pack in one.
_NO_PACK = (
    KeyError, ValueError, TypeError, AttributeError, EOFError, OSError,
    RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_SAME_TIME = (1980, 1, 1, 0, 0, 0)  # equal contents are equal packs


@dataclass(frozen=True)
class EvidenceCheck:
    """The result of checking a pack: its tip, what is wrong, and what is not known."""

    tip: str
    files: int
    problems: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No problem was found."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.files} files checked, tip {self.tip}"]
        lines += [f"PROBLEM: {p}" for p in self.problems] or ["no problem found"]
        return "\n".join(lines + [f"not known: {u}" for u in self.unknown])


def evidence_pack(
    ledger: Ledger,
    *,
    tip: Tip | str | None = None,
    signer: str | None = None,
    product: str = "",
    organisation: str = "",
    certificates: Mapping[str, Sequence[Certificate]] | None = None,
) -> bytes:
    """The pack of a ledger, as the bytes of a zip file.

    `tip` and `signer` go to the check of the chain, whose transcript is in the pack;
    `product` and `organisation` to the records for the public registry. `certificates`
    are those of deletion services, by the service's name; what the ledger has noted of
    deletions is in the pack in any case.
    """
    facts = gather(ledger, tip=tip, signer=signer, actors=False)
    check = ledger.verify(tip, signer=signer)
    if str(check.tip) != facts.chain.tip:
        raise ValueError("the ledger was written to meanwhile: make the pack again")
    compared = "no tip was given" if tip is None else f"compared with the tip {tip}"
    records = registry_records(
        ledger, product=product or ledger.terms.dataset, organisation=organisation
    )
    files = {
        "report.html": render(facts),
        "statements.txt": "\n\n".join(
            f"{e.statement}\n{e.attacks}".rstrip() for e in facts.entries
        )
        + "\n",
        "verification.txt": f"{check}\n{compared}\n",
        "audits.json": _json([asdict(audit) for audit in facts.audits]),
        "deletions.json": _json([asdict(each) for each in facts.deletions]),
        "certificates.json": _json(
            {
                name: [certificate.facts() for certificate in issued]
                for name, issued in (certificates or {}).items()
            }
        ),
        "requests.json": _json(_requests(ledger)),
        "ledger.json": _json(export_ledger(ledger)),
        "registry.json": _json(records),
        "questions.md": questions_page(ledger, facts),
        "tip.txt": f"{check.tip}\n",
    }
    contents = {name: text.encode() for name, text in files.items()}
    manifest = _json(
        {
            "format": FORMAT,
            "made": clock.now(),
            "demur": __version__,
            "ledger": ledger.id,
            "dataset": ledger.terms.dataset,
            "tip": str(check.tip),
            "signer": ledger.terms.signer,
            "verified": check.ok,
            "files": {name: _digest(text) for name, text in contents.items()},
        }
    ).encode()
    contents[_MANIFEST] = manifest
    signature = ledger.sign_evidence(manifest)
    if signature is not None:
        contents[_SIGNATURE] = signature.encode()
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _SAME_TIME), content)
    return packed.getvalue()


def write_evidence(ledger: Ledger, path: str | os.PathLike[str], **more: Any) -> Path:
    """Write the pack of a ledger to a file, whole or not at all."""
    place = Path(path)
    if not place.parent.is_dir():
        raise ValueError(f"there is no folder {place.parent}. Nothing was written.")
    content = evidence_pack(ledger, **more)
    aside = atomic_files.temporary_name(place)
    try:
        aside.write_bytes(content)
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)
    return place


def check_evidence(
    path: str | os.PathLike[str],
    *,
    signer: str | None = None,
    ledger: Ledger | None = None,
) -> EvidenceCheck:
    """Check a pack: every file against the manifest, the signature, and its tip.

    `signer` is the public key (hexadecimal) that must have signed it. With `ledger` the
    pack's tip must be in that ledger.
    """
    try:
        contents = _unpacked(Path(path))
        raw = contents.pop(_MANIFEST)
        manifest = json.loads(raw)
        named: dict[str, str] = dict(manifest["files"])
        tip = Tip.parse(manifest["tip"])
        own, of = manifest["signer"], manifest["ledger"]
    except _NO_PACK as error:
        raise ValueError(f"{path} is no evidence pack: {error!s:.200}") from error
    signature = contents.pop(_SIGNATURE, None)
    problems = [f"{name} was changed" for name, text in contents.items()
                if name in named and named[name] != _digest(text)]  # fmt: skip
    problems += [f"{name} is missing" for name in named if name not in contents]
    problems += [f"{name} is not of this pack" for name in contents
                 if name not in named]  # fmt: skip
    unknown: list[str] = []
    wanted = signer or own
    if signature is not None and wanted:
        given = signature.decode("ascii", "replace")
        if not signed_by(str(wanted), evidence_digest(raw), given):
            problems.append("the manifest is not signed by the signer")
    elif signer is not None:
        problems.append("the pack is not signed")
    else:
        unknown.append("who made this pack: it is not signed")
    if signer is not None and own != signer:
        problems.append(f"the ledger names {own or 'no signer'}, not the signer given")
    elif signer is None and signature is not None:
        unknown.append("whether the signer is the right one: give its public key")
    if ledger is None:
        unknown.append("whether the ledger still has the rows up to this tip")
    elif ledger.id != of:
        problems.append("the pack is of another ledger")
    elif not ledger.contains(tip):
        problems.append("the pack's tip is not in the ledger")
    if manifest.get("verified") is not True:
        problems.append("the ledger did not verify when the pack was made")
    return EvidenceCheck(str(tip), len(named), tuple(problems), tuple(unknown))


def _unpacked(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise ValueError("it has a file twice")
        if sum(each.file_size for each in archive.infolist()) > _LARGEST:
            raise ValueError("it is too large")
        return {name: archive.read(name) for name in names}


def _requests(ledger: Ledger) -> list[dict[str, Any]]:
    """Requests and decisions, without names of people."""
    return [
        {
            "number": each.sequence,
            "label": each.label,
            "epsilon": list(each.epsilon),
            "state": each.state,
            "time": each.time,
            "reason": None if each.decision is None else each.decision.reason,
            "entry": each.entry,
        }
        for each in ledger.requests()
    ]


def _json(data: Any) -> str:
    return json.dumps(json_data(data), indent=1, sort_keys=True, allow_nan=False) + "\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
