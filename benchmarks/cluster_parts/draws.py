"""Draws of benchmarks/cluster.py: what is measured on one set of reports; the store.

A draw is measured once and kept in a file (out/cluster_draws.jsonl), with a fingerprint
of the source of the decoder and the mechanisms: a run that was stopped goes on where it
was, and results of another version are not mixed in. A line is written by one call of
the system, so that several processes may add to one file; half a line of a run that was
killed is passed over.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import subprocess
import time
import warnings
from pathlib import Path

import numpy as np
from cluster_parts.sets import Task
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

import demur
from demur import ReplaceOne
from demur.cluster import CentralKMeans, PrivateKMeans, UnsupportedClusters
from demur.cluster.metrics import assign
from demur.core.entropy import Seeded
from demur.mechanisms import BPM, GridResponse, LaplaceReports, Reports

PEERS = Path(".peers/bin/python")
OUT = Path("out")
STORE = OUT / "cluster_draws.jsonl"
OTHERS = ["PCA + k-means", "copies", "planar Laplace, clip", "per coord., clip"]
OTHERS += ["grid, clip", "paper"]
METHODS = ["demur", "for_unit", "clip", "plain", *OTHERS, "central", "diffprivlib"]


def fingerprint() -> str:
    """Of the code, without its words, that decides what a fit of reports gives."""
    package = Path(demur.__file__).parent
    found = hashlib.sha256()
    for folder in ("cluster/decoding", "cluster/rows", "mechanisms/bpm"):
        for path in sorted((package / folder).glob("*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value.value = ""
            found.update(_described(tree).encode())
    return found.hexdigest()[:12]


def _described(node: object) -> str:
    """A syntax tree in words that are the same in all versions of Python.

    `ast.dump` names empty fields in some of them, and a version adds fields.
    """
    if isinstance(node, ast.AST):
        fields = ((name, x) for name, x in ast.iter_fields(node) if x not in (None, []))
        inside = ",".join(f"{name}={_described(value)}" for name, value in fields)
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return "[" + ",".join(map(_described, node)) + "]"
    return repr(node)


class Kept:
    """Results by key, one line each, of this version of the source."""

    def __init__(self, path: Path = STORE) -> None:
        path.parent.mkdir(exist_ok=True, parents=True)
        self.path = path
        self.version = fingerprint()
        self.results: dict[str, list[float]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                key, version, values = json.loads(line)
            except ValueError:
                continue
            if version == self.version:
                self.results[key] = values

    def __contains__(self, key: str) -> bool:
        return key in self.results

    def add(self, key: str, values: list[float]) -> None:
        self.results[key] = values
        line = "\n" + json.dumps([key, self.version, values]) + "\n"
        place = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(place, line.encode())
        finally:
            os.close(place)

    def column(self, *start: str, below: int = 1_000_000) -> list[float]:
        """All values whose key starts so, of draws with a number below that."""
        front = "|".join(start) + "|"
        found: list[float] = []
        for key, values in self.results.items():
            if key.startswith(front):
                last = key.rsplit("|", 1)[1]
                found += values if not last.isdigit() or int(last) < below else []
        return found


def price_of(mechanism: BPM) -> float:
    """Of any replacement."""
    return float(getattr(mechanism.event(ReplaceOne()), "epsilon", math.nan))


def decoded(reports: Reports, k: int, draw: int, decoder: str) -> np.ndarray:
    model = PrivateKMeans(k, random_state=draw, decoder=decoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsupportedClusters)
        return np.asarray(model.fit_reports(reports).cluster_centers_)


def ratio(task: Task, centers: np.ndarray) -> float:
    return assign(task.points, centers)[1] / task.best


def noise_of(task: Task, draw: int, name: str) -> Seeded:
    """The source of a draw: another for each, and the same whenever it is repeated."""
    digest = hashlib.sha256(f"{task.name}|{draw}|{name}".encode()).digest()
    return Seeded(int.from_bytes(digest[:6], "little"))


def one_draw(task: Task, mechanism: BPM, draw: int, *, alone: bool) -> dict[str, float]:
    """SSE ratios of all methods; decoders see the same reports.

    Other mechanisms have the price of `mechanism` for any replacement. `alone` is the
    noise-aware decoder without the others. PCA to K directions says nothing new where
    there are no more dimensions than clusters.
    """
    d, price = mechanism.dimension, price_of(mechanism)
    points, k = task.points, task.k
    reports = mechanism.privatize(
        points, source=noise_of(task, draw, f"{mechanism.epsilon:g}")
    ).value
    start = time.process_time()
    centers = {"demur": decoded(reports, k, draw, "noise_aware")}
    seconds = time.process_time() - start
    if not alone:
        for decoder in ("clip", "plain"):
            centers[decoder] = decoded(reports, k, draw, decoder)
        rows = reports.values
        if d > k:
            pca = PCA(k, random_state=draw).fit(rows)
            kmeans = KMeans(k, n_init=10, random_state=draw).fit(pca.transform(rows))
            centers["PCA + k-means"] = pca.inverse_transform(kmeans.cluster_centers_)
        mean = np.clip(mechanism.unbiased(rows).mean(axis=0), 0, 1)
        centers["copies"] = mean[None]
        others: dict[str, BPM | LaplaceReports | GridResponse] = {
            "planar Laplace, clip": BPM(price / math.sqrt(d), math.inf, d),
            "per coord., clip": LaplaceReports(price / math.sqrt(d), d),
        }
        if price <= 40.0:
            others["grid, clip"] = GridResponse(price, d, max(1, min(3, 64 // d)))
        for name, other in others.items():
            source = noise_of(task, draw, f"{name} {mechanism.epsilon:g}")
            drawn = other.privatize(points, source=source).value
            centers[name] = decoded(drawn, k, draw, "clip")
        source = noise_of(task, draw, f"paper {mechanism.epsilon:g}")
        paper = BPM(price / min(0.5, math.sqrt(d)), 0.5, d)
        drawn = paper.privatize(points, source=source).value
        centers["paper"] = decoded(drawn, k, draw, "plain")
        central = CentralKMeans(k, epsilon=price, random_state=draw)
        centers["central"] = central.fit(points).cluster_centers_
    found = {name: ratio(task, each) for name, each in centers.items()}
    return found | {"seconds": seconds}


PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import KMeans
warnings.simplefilter("ignore")
X = np.load(sys.argv[1])
k, runs, epsilon = int(sys.argv[2]), int(sys.argv[4]), float(sys.argv[3])
box = (np.zeros(X.shape[1]), np.ones(X.shape[1]))
print(json.dumps([
    KMeans(k, epsilon=epsilon, bounds=box).fit(X).cluster_centers_.tolist()
    for _ in range(runs)
]))
"""


def diffprivlib(task: Task, epsilon: float, runs: int) -> list[float]:
    """Ratios of diffprivlib's central k-means."""
    OUT.mkdir(exist_ok=True)
    np.save(OUT / "peer_points.npy", task.points)
    asked = [str(OUT / "peer_points.npy"), str(task.k), str(epsilon), str(runs)]
    done = subprocess.run(
        [str(PEERS), "-c", PEER, *asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"diffprivlib failed: {done.stderr[-200:]!r}")
        return []
    return [ratio(task, np.array(each)) for each in json.loads(done.stdout)]
