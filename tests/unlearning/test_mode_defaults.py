"""What a mode is when nothing is said: a change of these changes everyone's model."""

import pytest

from demur.unlearning import make_mode

DEFAULTS = {
    "seed": {
        "step": 1.0,
        "m_max": 3,  # as many as features
        "L": 1.0,
        "lam": 1.0,
        "safeguard": True,
        "radius": 10.0,
    },
    "ridge": {
        "norm_bound": 1.0,
        "y_bound": 1.0,
        "Lambda": 1.0,
        "bits": 21,
        "limbs": 1,
        "refresh": None,
    },
    "logistic": {"norm_bound": 1.0, "Lambda": 1.0, "tolerance": 1e-3},
    "ogd": {
        "loss": "huber",
        "norm_bound": 1.0,
        "lam": 0.1,
        "kappa": 1.0,
        "radius": None,
        "t0": None,
    },
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_mode_says_of_its_options(name):
    """Callers ask the mode for what it takes, and never for its name."""
    mode, options = make_mode(name, 3), DEFAULTS[name]
    assert (mode.regulariser in options) and mode.clips == ("norm_bound" in options)
    assert (len(mode.losses) > 1) == ("loss" in options)
    assert mode.loss == mode.losses[0]
    for loss in mode.losses[1:]:
        assert make_mode(name, 3, loss=loss).loss == loss
    assert mode.formula == ("consistent" if mode.theorem.scopes else "seed")


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    mode = make_mode(name, 3)
    assert mode.config() == DEFAULTS[name]
    assert make_mode(name, 3, **DEFAULTS[name]).digest() == mode.digest()
