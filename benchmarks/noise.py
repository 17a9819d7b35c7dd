"""Time of integer Gaussian noise: demur against numpy and the libraries people use.

    python benchmarks/noise.py [--coordinates 1000000] [--repeats 9]
    python benchmarks/noise.py --device 1000000 100000000 1000000000

Every time is the median of the repeats, in one process, samplers alternating so that
a busy machine slows all of them. demur's time includes its random bytes (ChaCha20).
A peer that is not installed, or whose release has no such sampler, is named as such.

--device compares the two noises of a training step where JAX runs (a GPU if there is
one): float32 threefry and the lattice, each added to so many sums, by one program. It
also compares integers with the host's sampler, which must be the same bits. --results
names a file to which a line is added for each count; what it holds is not run again,
and after --until seconds no further count begins.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from demur.core.entropy import Seeded, Stream
from demur.mechanisms.sampling.rounded_gaussian import open_fraction, rounded_gaussian
from demur.training import ClippedSum, gaussian_privatizer
from demur.training.noise import device_integers

SCALE = 2.0**26
OPENDP_COORDINATES = 20_000
READ = 2**16  # bytes that the sampler asks for at a time
AIM_NUMPY, AIM_OPENDP = 8.0, 100.0


class ChaCha20:
    """Keystream bytes under a fresh key."""

    def __init__(self) -> None:
        cipher = algorithms.ChaCha20(os.urandom(32), bytes(16))
        self._keystream = Cipher(cipher, mode=None).encryptor()

    def read(self, n: int, /) -> bytes:
        return self._keystream.update(bytes(n))


@dataclass(frozen=True)
class Contestant:
    """A sampler; `run` draws `coordinates`, and times are scaled to the full count."""

    name: str
    run: Callable[[], object]
    coordinates: int


def demur(count: int, scale: float = SCALE) -> Contestant:
    def run() -> object:
        return rounded_gaussian(count, scale, ChaCha20(), lambda i: ChaCha20())

    return Contestant("demur rounded_gaussian, ChaCha20 included", run, count)


def plain_normal(count: int) -> Contestant:
    rng = np.random.default_rng()
    return Contestant(
        "numpy Generator.normal (float, PCG64, not secure)",
        lambda: rng.normal(0.0, SCALE, count),
        count,
    )


def keystream(count: int) -> Contestant:
    def run() -> None:
        stream = ChaCha20()
        for start in range(0, 8 * count, READ):
            stream.read(min(READ, 8 * count - start))

    return Contestant("  of which ChaCha20 bytes", run, count)


def opendp_exact(count: int) -> Contestant | str:
    try:
        dp = importlib.import_module("opendp.prelude")
    except ImportError:
        return "opendp: not installed"
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    measure = dp.m.make_gaussian(*space, scale=SCALE)
    part = min(count, OPENDP_COORDINATES)
    zeros = [0] * part
    version = importlib.metadata.version("opendp")
    return Contestant(
        f"opendp {version} exact discrete Gaussian", lambda: measure(zeros), part
    )


def jax_privacy_float(count: int) -> Contestant | str:
    try:
        version = importlib.metadata.version("jax-privacy")
    except importlib.metadata.PackageNotFoundError:
        return "jax-privacy: not installed"
    try:
        module = importlib.import_module("jax_privacy.experimental.discrete_gaussian")
    except ImportError:
        return f"jax-privacy {version}: this release has no discrete Gaussian"
    rng = np.random.default_rng()
    return Contestant(
        f"jax-privacy {version} discrete Gaussian (float, PCG64)",
        lambda: module.sample_discrete_gaussian(rng, SCALE, count),
        count,
    )


def seconds(contestants: list[Contestant], count: int, repeats: int) -> list[float]:
    """Median time of each for `count` coordinates; the first round only warms up."""
    times: list[list[float]] = [[] for _ in contestants]
    for turn in range(repeats + 1):
        for one, taken in zip(contestants, times, strict=True):
            start = time.perf_counter()
            one.run()
            if turn:
                taken.append((time.perf_counter() - start) * count / one.coordinates)
    return [statistics.median(taken) for taken in times]


def compare(count: int, repeats: int) -> None:
    ours, plain = demur(count), plain_normal(count)
    exact, floating = opendp_exact(count), jax_privacy_float(count)
    quick = [ours, keystream(count), plain]
    missing = [peer for peer in (floating, exact) if isinstance(peer, str)]
    if isinstance(floating, Contestant):
        quick.append(floating)
    times = seconds(quick, count, repeats)
    if isinstance(exact, Contestant):
        quick.append(exact)
        times += seconds([exact], count, 1)
    base, mine = times[2], times[0]
    print(f"{count:,} coordinates at grid scale 2^26, median of {repeats}")
    print(f"{'':52}{'ms':>10}{'x numpy':>10}{'x demur':>10}")
    for one, taken in zip(quick, times, strict=True):
        note = ""
        if one.coordinates != count:
            note = f"   extrapolated from {one.coordinates:,}, one run"
        ratios = f"{taken / base:>10.2f}{taken / mine:>10.2f}"
        print(f"{one.name:52}{taken * 1e3:>10.1f}{ratios}{note}")
    for line in missing:
        print(line)
    verdict = "met" if mine <= AIM_NUMPY * base else "MISSED"
    print(f"aim: at most {AIM_NUMPY:g} x numpy's plain normal: {verdict}")
    if isinstance(exact, Contestant):
        verdict = "met" if times[-1] >= AIM_OPENDP * mine else "MISSED"
        print(f"aim: at least {AIM_OPENDP:g} x faster than opendp: {verdict}")


def scales(count: int, repeats: int) -> None:
    exponents = (3, 10, 20, 26, 30, 40, 44)
    times = seconds([demur(count, 2.0**b) for b in exponents], count, repeats)
    print("\nscale       ms   left to integer arithmetic (expected)")
    for b, taken in zip(exponents, times, strict=True):
        expected = count * open_fraction(2.0**b)
        print(f"2^{b:<4}{taken * 1e3:>10.1f}   {expected:.2g}")


def same_integers(rows: int) -> bool:
    """Whether the device draws the integers that the host draws."""
    key, every = Seeded(1).new_key(), True
    for scale in (2.0**26, 2.0**33, 2.0**44):
        drawn = jax.jit(
            lambda words, scale=scale: device_integers.integers(words, rows, scale)
        )(np.frombuffer(key, "<u4"))
        host = rounded_gaussian(
            rows * device_integers.ROW,
            scale,
            Stream(key),
            lambda i: device_integers.further_words(key, 0, i),
        )
        same = bool((np.asarray(drawn).reshape(-1) == host).all())
        print(f"{host.size:,} integers at scale {scale:.3g} equal the host's: {same}")
        every = every and same
    return every


def on_device(options: argparse.Namespace) -> None:
    """Both noises of a step, where JAX computes."""
    steps, repeats = 1000, options.repeats
    begun_at = time.perf_counter()
    device = jax.devices()[0].device_kind
    print(f"jax {jax.__version__}, {device}")
    done = set()
    if options.results is not None and options.results.exists():
        text = options.results.read_text().splitlines()
        done = {json.loads(line)["coordinates"] for line in text if line}
    key = Seeded(1).new_key()
    same = same_integers(options.compared)
    print(f"{'coordinates':>14}{'threefry ms':>13}{'lattice ms':>12}", end="")
    print(f"{'times':>7}{'temp GiB':>10}{'compile s':>11}{'rho':>10}{'open':>7}")
    for count in options.device:
        if count in done:
            continue
        if time.perf_counter() - begun_at > options.until:
            print(f"stopped before {count:,}: give the same command again")
            return
        params = {"w": jnp.zeros(count, jnp.float32)}
        lattice = gaussian_privatizer(
            1.0, steps, noise="lattice", l2_norm_bound=1.0
        ).spec.lattice(count)
        words = jnp.asarray(np.frombuffer(key, "<u4"))
        times: dict[str, list[float]] = {"threefry": [], "lattice": []}
        plain = gaussian_privatizer(1.0, steps)
        empty = jnp.zeros((2, 0, count), jnp.float32)
        begun = time.perf_counter()

        def hardened(sums, lattice=lattice, empty=empty, words=words):
            return lattice.advance(jnp.int32(0), sums, empty, words)[0]

        program = jax.jit(hardened).lower(params["w"]).compile()
        taken = time.perf_counter() - begun
        memory = program.memory_analysis().temp_size_in_bytes / 2**30
        key_of_step = jnp.asarray([[1, 2]], jnp.uint32)

        def threefry(sums, plain=plain, params=params, key_of_step=key_of_step):
            total = ClippedSum({"w": sums}, 1.0)
            return plain.update(total, plain.init(params), key=key_of_step)[0]["w"]

        other = jax.jit(threefry).lower(params["w"]).compile()
        for turn in range(repeats + 1):
            for name, run in (("threefry", other), ("lattice", program)):
                begun = time.perf_counter()
                jax.block_until_ready(run(params["w"]))
                if turn:
                    times[name].append(time.perf_counter() - begun)
        first, second = (statistics.median(times[name]) * 1e3 for name in times)
        rho = float(lattice.mechanism.sigma) - 1.0
        print(
            f"{count:>14,}{first:>13.2f}{second:>12.2f}{second / first:>7.2f}"
            f"{memory:>10.2f}{taken:>11.1f}{rho:>10.1e}"
            f"{lattice._open(lattice.mechanism):>7.2f}",
            flush=True,
        )
        if options.results is not None:
            line = {
                "coordinates": count,
                "device": device,
                "threefry_ms": first,
                "lattice_ms": second,
                "lattice_temp_gib": memory,
                "lattice_compile_s": taken,
                "rho": rho,
                "same_integers": same,
            }
            with options.results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinates", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", type=int, nargs="+", metavar="COORDINATES")
    parser.add_argument("--compared", type=int, default=1024, help="rows of 1,024")
    parser.add_argument("--results", type=Path, help="a file that lines are added to")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds")
    options = parser.parse_args()
    if options.device:
        on_device(options)
        return
    compare(options.coordinates, options.repeats)
    scales(options.coordinates, options.repeats)


if __name__ == "__main__":
    main()
