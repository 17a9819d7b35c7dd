"""What `fit` refuses before anything is paid, each with a remedy that works."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

from demur import AddOrRemoveOne, Budget, Ledger
from demur.training import (
    CyclicPoissonSampling,
    ExecutionPlanConfig,
    FixedBatchSampling,
    PartitionType,
    Reporting,
    UserData,
    UserSelectionStrategy,
    as_data,
    clipped_grad,
    dp_sgd,
    fit,
)
from demur.training.finetuning import select
from demur.training.run.arguments import check_params
from tests.training import kit

X = kit.make_data()["x"]
IDS = np.arange(kit.N) // 4


def refused(match, plan=None, params=None, data=None, **options):
    """The error of a run, which must have spent nothing."""
    ledger = Ledger(Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter="pure")
    params = kit.make_params() if params is None else params
    with pytest.raises((TypeError, ValueError), match=match) as error:
        fit(
            plan or kit.make_plan(),
            options.pop("loss", kit.loss),
            params,
            kit.make_data() if data is None else data,
            **{"optimizer": kit.SGD, "ledger": ledger} | options,
        )
    assert ledger.epsilon() == 0.0
    assert not ledger.entries()
    return str(error.value)


def test_rows_one_by_one_are_stacked():
    rows = [{"x": x, "y": 0} for x in X]
    assert "np.stack" in refused("list of dicts", data=rows)
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    assert len(as_data(stacked)) == kit.N
    # A short list of columns is a tree like any other.
    assert len(as_data([{"x": X}, {"x": X}])) == kit.N


@pytest.mark.parametrize("data", [iter([X]), (x for x in X)], ids=["list", "generator"])
def test_an_iterator_has_no_rows_to_draw_from(data):
    refused("read once", data=data)


def test_a_module_is_no_tree_of_parameters():
    module = eqx.nn.Linear(kit.D, 2, key=jax.random.key(0))
    network = eqx.nn.MLP(kit.D, 2, 3, 1, key=jax.random.key(0))
    assert "eqx.partition" in refused("MLP of equinox", params=network)
    check_params(eqx.partition(network, eqx.is_inexact_array)[0])  # the remedy
    check_params(module)  # holds arrays alone
    assert "model.init" in refused("Dense of flax.linen", params=linen.Dense(2))
    refused("it holds int32", params={"w": jnp.zeros(3), "n": jnp.arange(3)})
    refused("it holds function", params={"w": jnp.zeros(3), "f": kit.loss})
    refused("at least one array", params={})
    refused("finite", params={"w": jnp.full(3, jnp.nan)})
    check_params({"w": jnp.ones(3, jnp.bfloat16), "b": np.ones(2), "c": 0.5})


def test_the_number_of_records_is_the_plans():
    plan = kit.make_plan(num_examples=kit.N + 1)
    assert "Make the plan anew" in refused("num_examples=201", plan)
    fixed = ExecutionPlanConfig(
        batch_selection_strategy=FixedBatchSampling(kit.N + 1, 3),
        noise_multiplier=2.0,
        neighboring_relation="ZERO_OUT",
        l2_clip_norm=1.0,
    ).make()
    refused("smaller batches", fixed)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("scale_by_polyak", optax.polyak_sgd),
        ("scale_by_zoom_linesearch", optax.lbfgs),
        (
            "reduce_on_plateau",
            lambda: optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau()),
        ),
    ],
)
def test_an_optimiser_that_follows_the_loss_is_refused_by_name(name, optimizer):
    assert "'value'" in refused(f"uses {name}", optimizer=optimizer())


def test_an_optimiser_is_one_of_optax():
    refused("got str", optimizer="adam")


def test_a_loss_with_a_second_result_says_so():
    def with_aux(params, batch):
        return kit.loss(params, batch), {"rows": batch["x"]}

    refused("has_aux=True", loss=with_aux)


def test_batches_of_users_need_users():
    users = UserSelectionStrategy(
        CyclicPoissonSampling(0.2, 3, partition_type=PartitionType.INDEPENDENT), 2
    )
    plan = ExecutionPlanConfig(
        batch_selection_strategy=users,
        account="amplified",
        noise_multiplier=2.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
    ).make()
    assert "UserData" in refused("batches of users", plan)
    refused("examples=2", plan, data=UserData(kit.make_data(), IDS, 3))


@pytest.mark.slow
def test_what_a_loss_returns_beside_its_value_is_exact_and_stays_wrapped():
    def with_aux(params, batch):
        return kit.loss(params, batch), {"x": batch["x"], "one": 1.0}

    gradient = clipped_grad(with_aux, has_aux=True, l2_clip_norm=1.0)
    plan = dp_sgd(
        iterations=2,
        sampling_prob=0.3,
        noise_multiplier=4.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make(gradient)
    for exact in (True, False):
        reports = []
        reporting = Reporting(reports.append, exact_metrics=exact)
        fit(
            plan,
            None,
            kit.make_params(),
            kit.make_data(),
            optimizer=kit.SGD,
            delta=1e-5,
            reporting=reporting,
        )
        assert "aux" not in repr(reports)
        if not exact:
            assert [report.exact for report in reports] == [None, None]
            continue
        metrics = reports[0].exact.reveal()
        assert metrics["aux"]["one"] == pytest.approx(1.0)
        assert metrics["aux"]["x"].shape == (kit.D,)
        assert np.abs(metrics["aux"]["x"]).max() < 1.0  # a mean, not rows


def test_loss_and_parameters_come_apart_or_together():
    together = select(kit.make_params(), "*").with_loss(kit.loss)
    for arguments in ((kit.loss, kit.make_params()), (together,), (kit.loss,)):
        with pytest.raises(TypeError, match="one of them is missing"):
            fit(kit.make_plan(), *arguments, optimizer=kit.SGD)
    with pytest.raises(TypeError, match=r"call fit\(plan, it, data, ...\)"):
        fit(
            kit.make_plan(),
            together,
            kit.make_params(),
            kit.make_data(),
            optimizer=kit.SGD,
        )


def test_a_plan_that_was_not_made_and_a_torch_module_without_its_loss_are_named():
    """As somebody does who comes from torch: what to call stands in the error."""
    given = (kit.loss, kit.make_params(), kit.make_data())
    unmade = dp_sgd(iterations=2, sampling_prob=0.5, l2_clip_norm=1.0, normalize_by=2.0)
    with pytest.raises(
        TypeError, match=r"was made; .* \.calibrate\(ledger\)\.make\(\)"
    ):
        fit(unmade, *given, optimizer=kit.SGD)
    with pytest.raises(TypeError, match=r"a plan that was made; got str\. Nothing was"):
        fit("dp-sgd", *given, optimizer=kit.SGD)

    class Module:
        def state_dict(self):
            return {}

    with pytest.raises(TypeError, match=r"PrivateModule\(module, loss\)"):
        fit(kit.make_plan(), Module(), kit.make_data(), optimizer=kit.SGD)
