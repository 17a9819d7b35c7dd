"""Chapter two: points perturbed at their owners, clustered from the reports."""

from __future__ import annotations

from sklearn.cluster import KMeans

from demur.cli.tour.stage import Stage
from demur.cluster import PrivateKMeans
from demur.mechanisms import BPM

LABEL = "where the digits lie"

_EPSILON = 4.0
_CLUSTERS = 5


def mechanism(noise: float = 1.0) -> BPM:
    """What perturbs each point; `noise` other than 1 is for the audit's twin."""
    bound = BPM(_EPSILON, "auto", dimension=2).L
    return BPM(_EPSILON / noise, bound, dimension=2)


def play(stage: Stage) -> None:
    """Perturb once, cluster twice: as if reports were points, and knowing the noise."""
    points = stage.people.points
    exact = KMeans(_CLUSTERS, n_init=10, random_state=0).fit(points).inertia_
    with stage.console.status("perturbing and clustering"):
        release = mechanism().privatize(
            points, ledger=stage.ledger, label=LABEL, space="square"
        )
        errors = {
            decoder: PrivateKMeans(_CLUSTERS, _EPSILON, random_state=0, decoder=decoder)
            .fit_reports(release.value)
            .compute_sse(points)
            for decoder in ("plain", "noise_aware")
        }
    stage.show(
        ("clustering", "squared error", "times the non-private"),
        ("of the points, without noise", f"{exact:.1f}", "1.00"),
        *(
            (
                f"of the reports, {name.replace('_', '-')}",
                f"{sse:.1f}",
                f"{sse / exact:.2f}",
            )
            for name, sse in errors.items()
        ),
    )
    stage.console.print(
        "The server never saw a point. Both fits use the same reports, and fits are"
        " free: only the reports cost. Who reported is not protected."
    )
    stage.record(
        release.entry, "squared error of five centres", errors["noise_aware"], exact
    )
    stage.state(release.statement())
