"""Bugs of noise: each test is named after one, and its twin has it."""

import ast
import os
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import demur
from demur import Seeded
from demur.core.entropy import NoiseKey, OsEntropy
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian
from tests.known_bugs.kit import UNIT, sound_and_twin

SOURCE = Path(demur.__file__).parent


def in_child(act):
    """What `act()` returns in a forked child, as bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.write(writer, act())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def gaussian_release():
    ledger = Ledger(Budget(50.0, 1e-6), unit=UNIT)
    release = Gaussian(1.0, {UNIT: 1.0}, 8).release(
        np.zeros(8), ledger=ledger, label="x"
    )
    return release.value.tobytes()


def bpm_release():
    reports = BPM(4.0, 0.5, 2).privatize(np.full((4, 2), 0.5), ledger=None)
    return reports.value.values.tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("release", [gaussian_release, bpm_release])
def test_row_04_forked_workers_repeat_the_noise(release):
    """A generator made before the fork, however secure, goes on alike in every copy."""
    shared = np.random.Generator(np.random.Philox(key=int.from_bytes(os.urandom(16))))

    def never_repeats(act):
        act()  # whatever is buffered is buffered before the fork
        drawn = [in_child(act), in_child(act), act(), act()]
        assert all(drawn) and len(set(drawn)) == len(drawn)

    sound_and_twin(never_repeats, release, lambda: shared.normal(size=8).tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("release", [gaussian_release, bpm_release])
def test_row_04_threads_repeat_the_noise(release):
    def never_repeats(make):
        drawn: list[bytes] = []
        gate = threading.Barrier(6)

        def work():
            act = make()
            gate.wait()
            drawn.extend(act() for _ in range(3))

        workers = [threading.Thread(target=work) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(set(drawn)) == 18

    def seeded_in_each_thread():
        rng = np.random.default_rng(0)
        return lambda: rng.normal(size=8).tobytes()

    sound_and_twin(never_repeats, lambda: release, seeded_in_each_thread)


def test_row_20_rounding_widens_the_distance_and_nobody_pays():
    """Two worlds a distance D apart may end D + g sqrt(d) apart on the grid."""
    mechanism = Gaussian(1.0, {UNIT: 1.0}, 16)
    grid = float(mechanism.grid)
    rng = np.random.default_rng(0)
    worlds = []
    for size in (0.0, 1.0, 1e3, 2.0**20, 2.0**51 * grid):
        for _ in range(40):
            cell = np.rint(rng.uniform(-1, 1, 16) * size / grid) * grid
            # Just on either side of the middle of a cell, opposite ways.
            away = rng.choice([-1.0, 1.0], 16)
            one = cell + away * (0.5 * grid * (1 - 2.0**-40))
            step = away * grid * 2.0**-30
            far = rng.integers(0, 2) * away / 4.0 * (1 - 2.0**-20)
            worlds.append((one, one + step + far))

    def charged(sensitivity):
        for one, two in worlds:
            distance = np.linalg.norm(np.longdouble(1) * (one - two))
            if distance > 1.0:
                continue
            moved = np.linalg.norm(np.rint(one / grid) - np.rint(two / grid)) * grid
            assert moved <= sensitivity - 1.0 + distance

    declared = 1.0 / mechanism.event(UNIT).multiplier
    sound_and_twin(charged, declared * (1 + 1e-15), 1.0)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e6, -(2.0**28) - 0.3])
def test_row_20_the_noise_depends_on_the_magnitude(size):
    """Released minus rounded value is the same integers whatever the value is.

    Added in floats, large values swallow the low bits of the noise.
    """
    mechanism = Gaussian(1.0, {UNIT: 1.0}, 64)
    grid = float(mechanism.grid)
    base = mechanism.apply(np.zeros(64), NoiseKey(Seeded(3).new_key(), private=False))

    def is_the_same(add):
        value = np.full(64, size)
        noise = add(value, NoiseKey(Seeded(3).new_key(), private=False))
        assert np.array_equal(noise - np.rint(value / grid) * grid, base)

    is_the_same(mechanism.apply)
    if size:
        with pytest.raises(AssertionError):
            is_the_same(mechanism.apply_plain_float)


def test_row_22_noise_for_a_frequency_added_to_a_count():
    """Counts of n = 1000 rows move by 1; noise of 2 / (n epsilon) is for shares."""
    n, draws = 1000, 4000
    counts = np.zeros(draws)
    mechanism = Gaussian.calibrated(
        epsilon=1.0,
        delta=1e-6,
        sensitivity={UNIT: 1.0},
        unit=UNIT,
        dimension=draws,
    )

    def has_the_charged_deviation(noise):
        """mu of the declared event, against the noise that was really added."""
        sigma = mechanism.event(UNIT).multiplier  # the sensitivity is 1
        total = float(np.sum((noise / sigma) ** 2))
        assert 1e-6 < stats.chi2(draws).cdf(total) < 1 - 1e-6

    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    ours = mechanism.release(counts, ledger=ledger, label="counts").value
    twin = np.random.default_rng(0).laplace(scale=2 / n, size=draws)
    sound_and_twin(has_the_charged_deviation, ours, twin)
    with pytest.raises(AssertionError):  # and 10% too little is enough
        has_the_charged_deviation(0.9 * ours)


# -- where random numbers may come from ------------------------------------------------

# Generators that do not make noise: each with what they are for.
ALLOWED = {
    "adapters/equinox/heads.py": "first weights of a head",
    "adapters/huggingface/encoders.py": "first weights of a head",
    "adapters/random_features.py": "random features, public",
    "adapters/torch/heads.py": "the order of rows in a trainer that cannot certify",
    "adapters/torch/derivatives.py": "names torch's functions, which get keys there",
    "adapters/torch/refusals.py": "sees whether a module drew from a generator",
    "adapters/torch/release.py": "probes a module with synthetic rows",
    "adapters/torch/modules.py": "a key's shape for a probe of the loss",
    "cluster/estimators/gmm.py": "starts of the clustering of reports",
    "cluster/inspection.py": "a picture's layout",
    "cluster/decoding/lloyd.py": "starts of the clustering of reports",
    "cluster/estimators/mixture.py": "starts of the clustering of reports",
    "cluster/decoding/posterior.py": "posterior draws from reports, post-processing",
    "cluster/rows/ranked_rows.py": "which reports a decoder looks at closely",
    "cluster/decoding/clipped_law.py": "posterior draws from reports, post-processing",
    "cluster/decoding/counts.py": "starts of the clustering of reports",
    "cluster/decoding/moves.py": "starts of the clustering of reports",
    "cluster/decoding/priors.py": "posterior draws from reports, post-processing",
    "cluster/decoding/subspace.py": "posterior draws from reports, post-processing",
    "cluster/estimators/inputs.py": "checks random_state",
    "cluster/estimators/kmeans.py": "starts of the clustering of reports",
    "mechanisms/bpm/thresholds.py": "simulated reports of public shapes, no data",
    "training/finetuning/lora.py": "first weights of a part",
    "cluster/decoding/search.py": "starts of the clustering of reports",
    "cluster/estimators/base.py": "starts of the clustering of reports",
    "cluster/estimators/tmm.py": "starts of the clustering of reports",
    "adapters/equinox/release.py": "probes a module with synthetic rows",
    "compat/ball_dp/attacks/audit.py": "an attack's trials",
    "compat/ball_dp/releases.py": "recognises a generator in order to refuse it",
    "compat/ball_dp/utils/seeding.py": "the seed's own set_seed",
    "compat/jax_privacy/bounded_sums.py": "splits the loss's own key over examples",
    "compat/jax_privacy/noise_addition.py": "the peer's noise, outside the ledger",
    "compat/bpm/sampling.py": "parts of the seed's sampler, said not to be private",
    "convex/sensitivity/radius.py": "which records are paired; a sample of public data",
    "mechanisms/bpm/mechanism.py": "the two-stage sampler of tests, under a seed alone",
    "mechanisms/bpm/two_stage.py": "the two-stage sampler of tests",
    "mechanisms/gaussian.py": "plain float noise for tests, under a seed alone",
    "preprocessing/projections.py": "a random projection, public",
    "training/batches/user_selection.py": "a generator for somebody's own strategy",
    "training/clipping/clipped_grad.py": "splits the loss's own key over examples",
    "training/clipping/sealed_arrays.py": "a key's dtype for sums, draws nothing",
    "training/config_file.py": "first weights of a model",
    "training/accounting/loss_samples.py": "Monte Carlo check of a plan, no data",
    "training/run/loss_checks/separability.py": "probes a loss with synthetic inputs",
    "training/models.py": "first weights of a model",
    "training/accounting/monte_carlo.py": "Monte Carlo verification of a plan, no data",
    "training/devices/placement.py": "places the key of an optimiser, draws nothing",
    "training/batches/selection_key.py": "recognises a generator",
    "unlearning/service/forecast.py": "public directions for a forecast",
    "training/run/arguments.py": "hands a key from the entry's stream to the loss",
    "unlearning/retrain/comparison.py": "a test's stream",
    "unlearning/stream/workload.py": "a simulated stream",
}
# A package that is about measuring draws trials of its own.
MEASURES = ("audit/", "testing/")
MODULES = ("random", "numpy.random", "jax.random", "torch.random", "scipy.stats")
METHODS = ("rvs", "manual_seed", "randn", "rand", "randint", "randperm")


def dotted(node):
    """a.b.c of an attribute chain, or None."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else None


@cache
def generators(text):
    """What a module takes from a random number generator, name by name."""
    names, alias = [], {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                alias[name.asname or name.name] = name.name
                if name.name in MODULES and name.name != "scipy.stats":
                    names.append(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                alias[name.asname or name.name] = whole
                if node.module in MODULES[:4] or whole in MODULES[:4]:
                    names.append(whole)
    for node in ast.walk(tree):
        name = dotted(node)
        if name is None:
            continue
        head, _, rest = name.partition(".")
        whole = ".".join(filter(None, (alias.get(head, head), rest)))
        if any(whole.startswith(module + ".") for module in MODULES[:4]):
            names.append(whole)
        elif whole.rpartition(".")[2] in METHODS:
            names.append(whole)
    return names


@cache
def sources():
    return {
        str(path.relative_to(SOURCE)): path.read_text()
        for path in sorted(SOURCE.rglob("*.py"))
    }


@pytest.mark.slow
def test_row_25_noise_from_a_generator_off_the_list():
    def is_listed(files):
        for name, text in files.items():
            drawn = generators(text)
            listed = name in ALLOWED or name.startswith(MEASURES)
            assert listed or not drawn, f"{name}: {drawn[:3]}"

    java = "import random\n\ndef noise():\n    return random.gauss(0.0, 1.0)\n"
    sound_and_twin(is_listed, sources(), {"mechanisms/new.py": java})
    for text in (
        "import numpy as np\nnp.random.laplace(0, 1)",
        "from numpy.random import default_rng\ndefault_rng(0)",
        "import jax\njax.random.normal(jax.random.key(0), (3,))",
        "from jax import random as r\nr.normal(k)",
        "from scipy import stats\nstats.norm.rvs(size=3)",
        "import torch\ntorch.randn(3)",
    ):
        with pytest.raises(AssertionError):
            is_listed({"mechanisms/new.py": text})
    # What no longer draws leaves the list.
    assert not [name for name in ALLOWED if not generators(sources().get(name, ""))]


@pytest.mark.slow
def test_row_25_a_generator_without_an_owner():
    """numpy's hidden global state: repeated by anybody who knows or sets the seed."""
    hidden = ("seed", "normal", "laplace", "uniform", "rand", "randn", "choice")

    def has_no_global_state(files):
        for name, text in files.items():
            drawn = [one for one in generators(text) if one.startswith("numpy.random.")]
            assert not {one.split(".")[2] for one in drawn} & set(hidden), name

    # Its set_seed is for setting every seed.
    files = {n: t for n, t in sources().items() if not n.endswith("utils/seeding.py")}
    naive = {"x.py": "import numpy as np\nnoise = np.random.normal(size=3)"}
    sound_and_twin(has_no_global_state, files, naive)


def test_row_25_a_seed_reaches_the_noise():
    """Seeding every global generator changes nothing that is released."""

    def is_fresh(act):
        drawn = []
        for _ in range(2):
            np.random.seed(7)
            drawn.append(act())
        assert drawn[0] != drawn[1]

    def java_random():
        return np.random.normal(size=8).tobytes()

    for ours in (gaussian_release, bpm_release, OsEntropy().new_key):
        sound_and_twin(is_fresh, ours, java_random)
