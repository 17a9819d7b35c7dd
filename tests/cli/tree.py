"""Every command of `demur`, found in the tree, and how each is run rightly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from demur import AddOrRemoveOne
from demur.ledger import ApprovalPending, ApprovalRule, Budget, Ledger
from demur.mechanisms import Gaussian
from demur.unlearning import Certificate, UnlearningService
from demur.unlearning.stream.workload import simulated
from tests.commands import run, tree

CONFIG = """
[data]
train = "train.npz"
features = "x"
label = "y"
examples = 200
classes = 2
[model]
kind = "mlp"
hidden = [4]
[privacy]
epsilon = 4.0
delta = 1e-4
unit = "add_or_remove_one"
[training]
steps = 6
batch_size = 40
learning_rate = 0.5
[output]
model = "model.npz"
ledger = "out/ledger.db"
"""


def commands() -> dict[str, Any]:
    """The leaves of the tree: "ledger show" and so on."""
    return dict(_walk(tree(), ""))


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _walk(child, f"{path} {name}".strip())


def words(result: Any) -> str:
    """The output with line breaks taken out."""
    return " ".join(result.output.split())


def right(home: Path) -> dict[str, list[str]]:
    """Arguments with which each command succeeds; files are made under `home`."""
    out = home / "out"
    table, service = home / "table.parquet", f"{home}/service/model.db"
    return {
        "head fit": [f"{table}", "--label", "y", "--epsilon", "1", "--radius", "0.3",
                     "--ledger", f"{out}/ledger.db", "--create", "--budget",
                     "ball,radius=0.3,space=records:1:1e-6", "-o", f"{out}/head.npz"],
        "head predict": [f"{home}/head.npz", f"{home}/rows.parquet"],
        "reports make": [f"{home}/rows.parquet", f"{out}/reports.parquet", "--epsilon",
                         "4", "--low", "-9", "--high", "9", "--create", "--budget",
                         "replace-one:5.66", "--ledger", f"{out}/ledger.db"],
        "reports cluster": [f"{home}/reports.parquet", "-k", "2", "--decoder", "clip"],
        "reports inspect": ["--epsilon", "2", "--dimension", "2", "--samples", "50"],
        "reports sweep": ["--trials", "1", "--epsilons", "4"],
        "unlearn run": [f"{home}/stream.parquet", "--ledger", f"{out}/ledger.db",
                        "--create", "--budget", "erasure:1:1e-5", "--calibration",
                        "20", "--gamma-priv", "50", "-o", f"{out}/w.npz"],
        "unlearn simulate": ["--inserts", "60", "--calibration", "20",
                             "--dimension", "2", "--gamma-priv", "50"],
        "unlearn open": [f"{out}/model.db", "--dimension", "2", "--epsilon", "1",
                         "--delta", "1e-6"],
        "unlearn insert": [service, f"{home}/people.csv", "--id", "id",
                           "--label", "y", "--skip-live"],
        "unlearn delete": [service, "p1", "-o", f"{out}/certificates"],
        "unlearn queue": [service],
        "unlearn retrain": [service, f"{home}/people.csv", "--id", "id",
                            "--label", "y", "--new", "-o", f"{out}/certificates"],
        "unlearn status": [service],
        "unlearn publish": [service],
        "unlearn certificates": [service],
        "unlearn certificate": [f"{home}/certificate.json"],
        "unlearn evidence": [service, "-o", f"{out}/evidence.db"],
        "unlearn backup": [service, f"{out}/backup"],
        "unlearn verify": [f"{home}/certificate.json", service],
        "train": [f"{home}/config.toml", "--create", "--budget",
                  "add_or_remove_one:4:1e-4"],
        "ledger create": [f"{out}/new.db", "--dataset", "people", "--budget",
                          "add-or-remove-one:2:1e-6"],
        "ledger entry": [f"{home}/ledger.db", "1"],
        "ledger backup": [f"{home}/ledger.db", f"{out}/backup.db"],
        "ledger check-backup": [f"{home}/ledger.db"],
        "ledger unfinished": [f"{home}/ledger.db"],
        "ledger recover": [f"{home}/older.db", "--tip", f"{home}/tip.txt",
                           "--write-down", "all"],
        "ledger requests": [f"{home}/waiting.db"],
        "ledger approve": [f"{home}/waiting.db", "1", "--reason", "yes", "--actor",
                           "grace"],
        "ledger decline": [f"{home}/waiting.db", "2", "--reason", "no"],
        "token create": ["ada", "--role", "viewer", "--access", f"{out}/access"],
        "token list": ["--access", f"{home}/access"],
        "token revoke": ["1", "--access", f"{home}/access"],
        "ledger show": [f"{home}/ledger.db"],
        "ledger verify": [f"{home}/ledger.db"],
        "ledger export": [f"{home}/ledger.db"],
        "report": [f"{home}/ledger.db", "-o", f"{out}/report.html"],
        "evidence": [f"{home}/ledger.db", "-o", f"{out}/pack.zip"],
        "doctor": [],
        "version": [],
    }  # fmt: skip


def make_files(home: Path) -> None:
    """What the commands above read."""
    (home / "out").mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) * 0.4
    y = (x[:, 0] > 0).astype(np.int64)
    rows = {"a": x[:, 0], "b": x[:, 1]}
    pa.parquet.write_table(pa.table(rows | {"y": y}), home / "table.parquet")
    pa.parquet.write_table(pa.table(rows), home / "rows.parquet")
    np.savez(home / "train.npz", x=x.astype(np.float32), y=y)
    (home / "config.toml").write_text(CONFIG)
    workload = simulated(120, 10, 1, dimension=2, warm_up=20)
    stream: dict[str, list[Any]] = {"op": [], "id": [], "y": [], "x0": [], "x1": []}
    for delete, row in zip(workload.deletes, workload.row, strict=True):
        stream["op"].append("delete" if delete else "insert")
        stream["id"].append(workload.ids[row])
        stream["y"].append(None if delete else float(workload.Y[row]))
        for j in range(2):
            stream[f"x{j}"].append(None if delete else float(workload.X[row, j]))
    pa.parquet.write_table(pa.table(stream), home / "stream.parquet")
    (home / "service").mkdir()  # apart: openings do not belong in its folder
    with UnlearningService.open(
        home / "service" / "model.db",
        mode="ridge",
        dimension=2,
        record_store="encrypted",
    ) as service:
        names = [f"p{number}" for number in range(4)]
        service.insert_many(x[:4], x[:4, 0], record_ids=names)
        held = service.delete("p0")
        assert isinstance(held, Certificate)
        (home / "certificate.json").write_text(held.for_holder())
    lines = [
        f"p{n},{float(x[n, 0])},{float(x[n, 1])},{float(x[n, 0])}" for n in range(2, 9)
    ]
    (home / "people.csv").write_text("\n".join(["id,a,b,y", *lines]))
    unit = AddOrRemoveOne()
    with Ledger.open(
        home / "ledger.db", dataset="visits", budgets={unit: Budget(1.0, 1e-6)}
    ) as ledger:
        shutil.copy(home / "ledger.db", home / "older.db")
        Gaussian(20.0, {unit: 1.0}, name="a count").release(
            [3.0], ledger=ledger, label="May"
        )
        (home / "tip.txt").write_text(str(ledger.tip()))
    with Ledger.open(
        home / "waiting.db",
        dataset="visits",
        budgets={unit: Budget(1.0, 1e-6)},
        approval=ApprovalRule(above=0.0),
    ) as ledger:
        for key in ("May", "June"):
            with suppress(ApprovalPending):
                ledger.charge(
                    Gaussian(20.0, {unit: 1.0}), label=key, idempotency_key=key
                )
    made = run("token", "create", "ada", "--role", "viewer", "--access",
               home / "access")  # fmt: skip
    assert made.exit_code == 0, made.output
    fitted = run("head", "fit", home / "table.parquet", "--label", "y", "--epsilon", 1,
                 "--radius", 0.3, "-o", home / "head.npz")  # fmt: skip
    assert fitted.exit_code == 0, fitted.output
    reports = run("reports", "make", home / "rows.parquet", home / "reports.parquet",
                  "--epsilon", 4, "--low", -9, "--high", 9)  # fmt: skip
    assert reports.exit_code == 0, reports.output


def takes_float(param: Any) -> bool:
    """Whether an option is a number; typer says so in ways that depend on its age."""
    told = getattr(param, "type_descriptor", None)
    if told is not None:
        return told.annotation is float
    return bool(param.type.name == "float")


def is_argument(param: Any) -> bool:
    """Whether a parameter has no name on the command line."""
    return not param.opts[0].startswith("-")
