"""Elastic checkpoints: written by all processes, and continued on another mesh.

    FOLDER/model-<step>-<token>.orbax          parameters and optimiser: may be shown
    FOLDER/secret/noise-<step>-<token>.orbax   the memory of correlated noise
    FOLDER/secret/latest.json                  which of them count, sealed

**The same layout** (mesh, processes, sizes, program, `agreement.machines`) repeats
the steps after the last checkpoint bit for bit, as any run does.

**Another layout** adds up in another order. A step that may have been seen must not be
repeated there: the same noise would lie on two sums that differ in their last bits. So
no such step is repeated. Let s be the step of the checkpoint and t the first step that
no draw of the reservation has paid for: a step is paid for before its batch is read, so
nobody has seen step t or a later one. The run goes on with the state after s steps, and
step t: its batch, its noise and its draw. The steps from s to t - 1 are lost, and the
run ends with t - s updates fewer.

*Proof that the price holds.* The run is priced as T noisy sums, each of parameters that
are any function of the sums before it (adaptive composition; for correlated noise the
same, since C is lower triangular). The state after s steps is such a function, so going
back to it is a choice of the next parameters, and every step is released once. The
noise of step t is correlated with that of lost steps; what it remembers of them follows
from key and step, and is computed again (`Steps.noise_after`). Lattice noise with bands
remembers exact sums, which cannot be had again: there another layout is refused.

**One line of descent.** A copy of the folder that was left behind would, on the old
mesh, repeat steps that were taken meanwhile on the new one. So every start and every
move has a name (`lineage`), which is noted in the ledger before its first draw. Only
the last one noted repeats steps; a checkpoint of any other goes on like a move. The
number of draws is read before that note is looked for: whoever notes a later name draws
later, and two that draw at the same time collide in the reservation (`charges.payer`).

An older line may still run when a name is noted, and would draw what the new one later
takes for its own. So a line takes a draw after its note, looks whether its name is
still the last one, and begins with that draw's step. An older line has then either
looked before the new name was noted: what it drew comes before the new line's draw, and
its next draw comes after that, is not the one it asks for, and is refused. Or it looks
later, and is refused. So every step from there on is of this line, or of one that was
noted later.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from demur.core.entry import Entry
from demur.core.errors import BudgetExceeded
from demur.durable import private_files
from demur.durable.chain import canonical
from demur.ledger import Ledger, Reservation
from demur.training.devices.processes import Processes
from demur.training.errors import CheckpointRefused
from demur.training.plans.plan import DPExecutionPlan
from demur.training.run.checkpoints import orbax_files
from demur.training.run.checkpoints.checkpoint import CheckpointFolder, write_durably

_ABOUT = "mesh"  # the subject of the notes in the ledger
_TRIES = 10  # half a second each
_FIELDS = {"step", "digest", "layout", "lineage", "model", "noise", "files", "seal"}


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on: from which step's state, at which step, as what line."""

    saved: int
    start: int
    drawn: int
    lineage: str
    moved: bool
    note: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """As plain data, for the other processes."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class PaidDraws:
    """What process 0 alone has: the ledger's entry of the run and its draws."""

    ledger: Ledger
    entry: Entry
    reservation: Reservation
    folder: CheckpointFolder


def check_reached(group: Processes, folder: Path) -> None:
    """Refuse, unpaid, a folder that is not the same one in all processes."""

    def left() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        name = f".meeting-{secrets.token_hex(8)}"
        (folder / name).touch()
        return name

    sign = folder / group.from_first(left)
    try:
        with group.stage():
            tries = _TRIES
            while not sign.exists() and tries:  # a network's file system may lag
                tries -= 1
                time.sleep(0.5)
            if not sign.exists():
                raise CheckpointRefused(
                    f"process {group.index} does not see the checkpoint of process 0 at"
                    f" {str(folder)!r}: an elastic checkpoint is written by all"
                    " processes, into one folder that all of them reach. Nothing was"
                    " spent."
                )
    finally:
        if group.first:
            sign.unlink(missing_ok=True)


class ElasticCheckpoints:
    """The checkpoints of one run; every method is called by all processes."""

    def __init__(
        self,
        group: Processes,
        folder: Path,
        plan: DPExecutionPlan,
        *,
        digest: str,
        layout: str,
        seal: bytes,
        held: PaidDraws | None,
    ) -> None:
        self._group, self._plan = group, plan
        self._folder, self._secret = folder, folder / "secret"
        self._digest, self._layout, self._seal = digest, layout, seal
        self._held = held
        self._lineage = ""

    @property
    def _of_first(self) -> PaidDraws:
        assert self._held is not None
        return self._held

    # -- where the run goes on ---------------------------------------------------------

    def resume_point(self) -> ResumePoint:
        """Where the run goes on; a start and a move are noted in the ledger."""
        found = ResumePoint(**self._group.from_first(lambda: self._decided().to_json()))
        self._lineage = found.lineage
        if found.note is not None and found.note["files"]:
            self._check_files(found.note)
        return found

    def _decided(self) -> ResumePoint:
        held = self._of_first
        drawn = held.reservation.drawn  # before the lineage is read, see above
        note = self._read_note()
        last = self._last_line()
        saved = 0 if note is None else int(note["step"])
        if note is not None and last is not None and note["lineage"] == last:
            if note["layout"] == self._layout:
                return ResumePoint(saved, saved, drawn, last, False, note)
        fresh = note is None and drawn == 0
        lineage = secrets.token_hex(16)
        if not fresh:
            self._check_movable(saved, drawn)
        facts = {"lineage": lineage, "layout": self._layout, "from draw": drawn}
        held.ledger.annotate(held.entry, _ABOUT, facts)
        first = self._own_draw()
        if self._last_line() != lineage:
            raise CheckpointRefused(
                "another process moves this run at the same time, from a copy of its"
                " checkpoint folder. Resume the run when the other has stopped."
            )
        drawn = first + 1 if first < held.reservation.count else first
        if fresh and first == 0:
            found = ResumePoint(0, 0, drawn, lineage, False, None)
        else:
            self._check_movable(saved, first)
            start = first * self._plan.steps_per_draw
            found = ResumePoint(saved, start, drawn, lineage, True, note)
        if found.start == 0:  # so that a run that dies early is known again
            self._write_note({"step": 0, "model": None, "noise": None}, {}, lineage)
        return found

    def _last_line(self) -> str | None:
        """The name that was noted last."""
        notes = self._of_first.ledger.notes(self._of_first.entry, _ABOUT)
        names = [one.facts["lineage"] for one in notes if "lineage" in one.facts]
        return str(names[-1]) if names else None

    def _own_draw(self) -> int:
        """The number of a draw that this line takes; past the last, if none is left."""
        reservation = self._of_first.reservation
        try:
            return reservation.draw().index
        except BudgetExceeded:
            return reservation.count

    def _check_movable(self, saved: int, drawn: int) -> None:
        spec, plan = self._plan.noise_addition_transform.spec, self._plan
        start = drawn * plan.steps_per_draw
        why = None
        if saved >= plan.iterations:
            return  # the run is done, but for its commit
        if start >= plan.iterations:
            why = (
                f"all {plan.iterations} steps of the run may have been seen, and none"
                " is left"
            )
        elif spec.hardened and spec.strategy.bands > 1:
            why = (
                "lattice noise with bands remembers exact sums of the steps that would"
                " be left out"
            )
        if why is None:
            return
        raise CheckpointRefused(
            "this checkpoint is of another mesh, sizes or program (or a copy of an"
            f" older state), and the run cannot go on from step {saved} here: {why}. A"
            " step that was seen is not repeated on another mesh, as the same noise on"
            " sums that are rounded differently would reveal the rounding. Nothing was"
            " drawn; continue with the mesh it began with, or load_model(folder,"
            " params) and pay for a run from there."
        )

    # -- reading -----------------------------------------------------------------------

    def _read_note(self) -> dict[str, Any] | None:
        try:
            note = json.loads(private_files.read(self._secret / "latest.json"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointRefused(f"the checkpoint is damaged: {error}") from error
        if not isinstance(note, dict) or set(note) != _FIELDS:
            raise CheckpointRefused(
                "the checkpoint is damaged, or was not written with elastic=True."
                " Nothing was drawn."
            )
        if note["digest"] != self._digest:
            raise CheckpointRefused(
                "the checkpoint is of another run: data, first parameters, plan or"
                " program differ. Nothing was drawn."
            )
        seal = note.pop("seal")
        if not hmac.compare_digest(str(seal), self._sealed(note)):
            raise CheckpointRefused(
                "the checkpoint's note was edited or damaged after it was written: its"
                " noise must not be drawn again on other parameters. Nothing was drawn."
            )
        return note

    def _check_files(self, note: Mapping[str, Any]) -> None:
        """Refuse files that are not as they were written; each process reads a part."""
        files: Mapping[str, str] = note["files"]
        with self._group.stage():
            names = sorted(files)
            halves = [self._folder / str(note[half]) for half in ("model", "noise")]
            more = set(orbax_files.files_in(self._folder, halves)) - set(names)
            if more and self._group.first:
                raise CheckpointRefused(
                    f"{min(more)} was put into the checkpoint after it was written."
                    " Nothing was drawn."
                )
            for name in names[self._group.index :: self._group.count]:
                path = self._folder / name
                try:
                    found = orbax_files.digest(path).hex()
                except FileNotFoundError as error:
                    raise CheckpointRefused(
                        f"{name} of the checkpoint is missing. Nothing was drawn."
                    ) from error
                if found != files[name]:
                    raise CheckpointRefused(
                        f"{name} of the checkpoint was edited or damaged after it was"
                        " written: its noise must not be drawn again on other"
                        " parameters. Nothing was drawn."
                    )

    def read(self, half: str, found: ResumePoint, like: Any) -> Any:
        """One half of the checkpoint ("model" or "noise"), laid out as `like` is."""
        if found.note is None or found.note[half] is None:
            return like
        leaves, treedef = jax.tree.flatten(like)
        with self._group.stage(), self._group.collective():
            arrays = orbax_files.read(self._folder / str(found.note[half]), leaves)
        return jax.tree.unflatten(treedef, arrays)

    # -- writing -----------------------------------------------------------------------

    def save(self, step: int, model: Any, noise: Any) -> None:
        """Write both halves, then the note that names them; older ones are deleted.

        Killed anywhere, the note names the last pair that is whole: a pair has names of
        its own, every byte of it is on the disk before the note is replaced, and what
        the note named before is deleted after that.
        """
        token = str(self._group.from_first(lambda: secrets.token_hex(8)))
        halves = {
            "model": f"model-{step}-{token}{orbax_files.SUFFIX}",
            "noise": f"secret/noise-{step}-{token}{orbax_files.SUFFIX}",
        }
        with self._group.stage(), self._group.collective():
            for name, tree in (("model", model), ("noise", noise)):
                orbax_files.write(self._folder / halves[name], jax.tree.leaves(tree))
        places = [self._folder / name for name in halves.values()]
        files = self._group.from_first(
            lambda: orbax_files.files_in(self._folder, places)
        )
        digests = self._digests(files)
        with self._group.stage():
            if self._held is not None:
                orbax_files.make_names_durable(places)
                orbax_files.make_names_durable([self._folder])
                self._write_note({"step": step} | halves, digests, self._lineage)
                self._drop_others({place.name for place in places})

    def _digests(self, files: list[str]) -> dict[str, str]:
        """The digest of every file; each is read, and made durable, by one process."""
        index, count = self._group.index, self._group.count
        own = np.zeros((-(-len(files) // count), 32), np.uint8)
        with self._group.stage():
            for i, name in enumerate(files[index::count]):
                found = orbax_files.digest(self._folder / name, durable=True)
                own[i] = np.frombuffer(found, np.uint8)
        every = self._group.every(own)
        return {
            name: every[i % count, i // count].tobytes().hex()
            for i, name in enumerate(files)
        }

    def _write_note(
        self, terms: Mapping[str, Any], files: Mapping[str, str], lineage: str
    ) -> None:
        note = {
            **terms,
            "digest": self._digest,
            "layout": self._layout,
            "lineage": lineage,
            "files": dict(files),
        }
        content = json.dumps(note | {"seal": self._sealed(note)}).encode()
        write_durably(self._secret / "latest.json", content)

    def _sealed(self, note: Mapping[str, Any]) -> str:
        text = canonical(dict(note)).encode()
        return hmac.new(self._seal, text, hashlib.sha256).hexdigest()

    def _drop_others(self, keep: set[str]) -> None:
        for folder, pattern in ((self._folder, "model-*"), (self._secret, "noise-*")):
            for old in folder.glob(pattern):
                if old.name not in keep:
                    shutil.rmtree(old, ignore_errors=True)

    def finish(self) -> None:
        """Process 0: delete what is secret of a saved and committed run."""
        (self._secret / "latest.json").unlink(missing_ok=True)
        for old in self._secret.glob("noise-*"):
            shutil.rmtree(old, ignore_errors=True)
