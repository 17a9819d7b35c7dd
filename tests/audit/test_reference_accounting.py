"""Lower bounds on epsilon that share nothing with the accountant."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from demur.audit import reference_accounting as reference
from demur.core.accounting.repetitions import default_repetitions

PHI = NormalDist().cdf


def test_a_gaussian_is_the_closed_form():
    for mu, delta in ((0.3, 1e-6), (1.0, 1e-5), (3.0, 1e-4)):
        epsilon = reference.gaussian_epsilon(mu, delta)
        back = PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * PHI(
            -mu / 2 - epsilon / mu
        )
        assert back == pytest.approx(delta, rel=1e-4)


def test_randomised_response_is_exact():
    # Two answers: losses 2e, 0, -2e, so delta at e0 is p^2 (1 - exp(e0 - 2e)).
    e, p = 0.7, 1 / (1 + math.exp(-0.7))
    epsilon = reference.pure_epsilon(e, 2, 0.05)
    assert p * p * (1 - math.exp(epsilon - 2 * e)) == pytest.approx(0.05)
    assert reference.pure_epsilon(e, 5, 0.0) == pytest.approx(3.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["remove", "add"])
def test_sampled_steps_are_below_the_peer_and_close_to_it(kind):
    q, z, steps, delta = 0.1, 1.0, 40, 1e-6
    peer = pld.from_gaussian_mechanism(
        standard_deviation=z, sampling_prob=q, value_discretization_interval=1e-4
    ).self_compose(steps)
    least = reference.sampled_epsilon(reference.SampledStep(q, z, kind), steps, delta)
    upper = peer.get_epsilon_for_delta(delta)
    # The peer takes the larger of both directions.
    assert (0.95 if kind == "remove" else 0.3) * upper < least < upper


def test_without_sampling_it_is_the_gaussian():
    step = reference.SampledStep(1.0, 4.0, "remove")
    least = reference.sampled_epsilon(step, 9, 1e-6)
    exact = reference.gaussian_epsilon(0.75, 1e-6)
    assert 0.995 * exact < least <= exact * (1 + 1e-9)


def test_losses_rounded_up_would_not_be_a_lower_bound():
    """Twin: the same computation with the next cell's loss exceeds the exact value."""

    class Up(reference.SampledStep):
        def losses(self):
            losses, masses = super().losses()
            return losses + 0.01, masses

    exact = reference.gaussian_epsilon(0.75, 1e-6)
    assert reference.sampled_epsilon(Up(1.0, 4.0, "remove"), 9, 1e-6) > exact


def test_one_of_two_sums_lies_between_one_sum_and_both():
    least = reference.allocated_epsilon(2.0, 1e-6)
    assert reference.gaussian_epsilon(0.25, 1e-6) < least
    assert least < reference.gaussian_epsilon(0.5, 1e-6)


def test_the_best_of_several_runs_shows_more_than_one():
    law = default_repetitions(10)
    least = reference.best_of_epsilon(0.5, law.weights)
    assert 0.5 < least < 2.0
    assert reference.best_of_epsilon(0.5, np.array([0.0, 1.0])) == pytest.approx(0.5)


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="kind must be"):
        reference.SampledStep(0.5, 1.0, "both").losses()
