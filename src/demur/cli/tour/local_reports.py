"""Chapter two: points perturbed on their owners' devices, clustered from reports."""

from __future__ import annotations

from sklearn.cluster import KMeans

from demur.cli.tour.session import Session
from demur.cluster import PrivateKMeans
from demur.mechanisms import BPM

LABEL = "positions of the digits"

_EPSILON = 4.0
_CLUSTERS = 5


def mechanism(noise: float = 1.0) -> BPM:
    """The mechanism of each point; `noise` other than 1 is the audit's twin."""
    bound = BPM(_EPSILON, "auto", dimension=2).L
    return BPM(_EPSILON / noise, bound, dimension=2)


def run(session: Session) -> None:
    """Perturb once, cluster twice: with the plain and the noise-aware decoder."""
    points = session.people.points
    exact = KMeans(_CLUSTERS, n_init=10, random_state=0).fit(points).inertia_
    with session.console.status("perturbing and clustering"):
        release = mechanism().privatize(
            points, ledger=session.ledger, label=LABEL, space="square"
        )
        errors = {
            decoder: PrivateKMeans(_CLUSTERS, _EPSILON, random_state=0, decoder=decoder)
            .fit_reports(release.value)
            .compute_sse(points)
            for decoder in ("plain", "noise_aware")
        }
    session.show(
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
    session.console.print(
        "The server sees reports only, never a point. Fits are free: only the reports"
        " cost. Who reported is not protected."
    )
    session.note_utility(
        release.entry, "squared error of five centres", errors["noise_aware"], exact
    )
    session.show_statement(release.statement())
