"""A run says which parameters it cannot move, and which it did not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demur.training import clipped_grad
from demur.training.run.loss_checks import dead_parameters
from tests.training.kit import loss, make_params, make_plan, train


def extra(params, batch):
    """The loss, with a leaf it has no use for and one it does not differentiate."""
    jnp.sin(params["unused"]) * 2
    stopped = jax.lax.stop_gradient(params["stopped"])
    return loss(params, batch) + 0.1 * stopped.sum()


def with_extra():
    return make_params() | {"unused": jnp.ones(2), "stopped": jnp.ones(2)}


@pytest.mark.slow
def test_parameters_without_a_gradient_are_named_before_the_run():
    said = (
        r"not depend on \['unused'\]: noise.*\['stopped'\] had no gradient on made-up"
    )
    with pytest.warns(UserWarning, match=said):
        trained = train(make_plan(), loss=extra, params=with_extra(), check_loss=True)
    assert trained.without_gradient == ("['stopped']", "['unused']")
    assert trained.unmoved == ()
    # Noise alone moved them, and that is what the warning is about.
    assert not np.array_equal(trained.value["unused"], np.ones(2))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "vmap"])
def test_what_the_program_does_not_use_is_read_off_it(method):
    """Where the loss is not run beforehand: it takes a key, or the check is off."""
    grad = clipped_grad(extra, l2_clip_norm=1.0, method=method)
    rows = {"x": jnp.zeros((2, 4)), "y": jnp.zeros(2, jnp.int32)}
    params = with_extra()
    dead = dict(
        zip(sorted(params), dead_parameters.unused(grad, [params, rows]), strict=True)
    )
    assert dead["unused"] and not (dead["w"] or dead["b"])


@pytest.mark.slow
def test_a_loss_of_no_parameter_is_not_paid_for():
    def constant(params, batch):
        return jnp.mean(batch["x"])

    with pytest.raises(ValueError, match=r"depends on no parameter.*Nothing was"):
        train(make_plan(), loss=constant)


@pytest.mark.slow
def test_a_label_that_made_up_inputs_lack_is_no_reason_to_refuse():
    """Labels of made-up inputs are 0 and 1; this loss has a gradient at 2 alone."""

    def rare(params, batch):
        return jnp.mean((batch["y"] == 2) * (batch["x"] @ params["w"]).sum(-1))

    with pytest.warns(UserWarning) as caught:
        train(make_plan(), loss=rare, params=make_params(), check_loss=True)
    said = str(caught[0].message)
    assert "['w'] had no gradient on made-up inputs" in said
    assert "not depend on ['b']" in said and "not depend on ['w']" not in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prodigy", "sam"])
def test_optimisers_whose_state_holds_the_parameters_run(name):
    made = {
        "prodigy": optax.contrib.prodigy,
        "sam": lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)),
    }[name]()
    assert train(make_plan(), optimizer=made).steps > 0


@pytest.mark.slow
def test_parameters_that_were_not_moved_are_named_after_the_run():
    frozen = optax.masked(optax.set_to_zero(), {"w": False, "b": True})
    with pytest.warns(UserWarning, match=r"did not move \['b'\].*charge stands"):
        trained = train(make_plan(), optimizer=optax.chain(optax.sgd(0.5), frozen))
    assert trained.unmoved == ("['b']",) and trained.without_gradient == ()
    np.testing.assert_array_equal(trained.value["b"], make_params()["b"])


def test_moved_means_another_bit():
    first = {"a": np.zeros(2), "b": np.ones(3), "c": np.zeros(0), "d": 1.5}
    last = {
        "a": jnp.zeros(2),
        "b": jnp.ones(3).at[1].add(1e-6),
        "c": jnp.zeros(0),
        "d": jnp.float32(1.5),
    }
    assert dead_parameters.unmoved(first, last) == ("['a']", "['d']")
