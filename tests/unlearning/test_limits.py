"""One person cannot ruin everybody's model: limits, forecasts and the guard."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from demur.core.errors import LedgerUnreachable
from demur.unlearning import (
    CapacityExhausted,
    NoiseGrows,
    QueuedRequest,
    ServiceLimits,
    make_mode,
)
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.service import intents
from demur.unlearning.service import limits as limiting
from demur.unlearning.service.deletion import Deletions
from demur.unlearning.service.forecast import forecast, score_noise
from tests.unlearning.service_kit import DIM, fill, open_service, record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::demur.unlearning.NoiseGrows"),
]


def come_and_go(service, times, number=0):
    """One id, inserted and deleted again and again."""
    answer = None
    for _ in range(times):
        service.insert(*record(number), record_id="the same", subject_id="one person")
        answer = service.delete("the same")
    return answer


def signs(service):
    rng = np.random.default_rng(5)
    return np.sign(rng.normal(size=(400, DIM)) @ service.published())


def test_one_id_inserted_and_deleted_again_and_again_does_not_ruin_the_model(tmp_path):
    """The attack: request j has j times the noise. The twin has no limit.

    What share of answers changes varies with the draw (from 9 to 88% for the twin), and
    so does its forecast, which follows from the published weights (16 to 50%). The
    noise of a score does not: it follows from public numbers alone.
    """
    noise = {}
    for name, limits in (("ours", None), ("twin", ServiceLimits(noise=None))):
        with open_service(tmp_path / f"{name}.db", limits=limits) as service:
            many = [record(number) for number in range(4000)]
            X, Y = [x for x, _ in many], [y for _, y in many]
            service.insert_many(X, Y, record_ids=range(4000))
            before = signs(service)
            try:
                come_and_go(service, 50)
            except CapacityExhausted as error:
                assert error.reason == "rate" and error.retrain_required
            noise[name] = service.status().noise
            assert np.any(signs(service) != before)
    assert noise["twin"].score_noise > 20 * noise["ours"].score_noise > 0.0
    assert 0.0 < noise["ours"].flipped < 0.15  # 0.067 in the mean, deviation 0.009


def test_requests_beyond_the_limit_are_refused_or_wait(tmp_path):
    # 1 and 4 fit, 9 do not.
    with open_service(tmp_path / "a.db", limits=ServiceLimits(noise=5)) as service:
        fill(service, range(30))
        come_and_go(service, 2)
        spent = len(service.ledger.entries())
        with pytest.raises(CapacityExhausted, match="9 first requests .* after 5 by"):
            come_and_go(service, 1)
        assert len(service.ledger.entries()) == spent
        service.delete(3)  # anybody else
    with open_service(
        tmp_path / "b.db", limits=ServiceLimits(noise=1), on_exhausted="queue"
    ) as service:
        for number in range(4):
            service.insert(*record(number), record_id=number, subject_id="p")
        service.delete(0)
        waiting = [service.delete(number) for number in (1, 2)]
        assert all(isinstance(w, QueuedRequest) and w.reason == "rate" for w in waiting)
        assert service.process_queue() == []  # not yet
        service._requests.deletions._limits = ServiceLimits()
        issued = service.process_queue()
        # Two by two, 4 + 9 are less than 16.
        assert sorted(c.requests for c in issued) == [2, 3]
        assert service.status().queued == 0


@pytest.mark.parametrize("how", ["queued", "interrupted"])
def test_a_request_keeps_the_limits_that_it_was_made_under(tmp_path, how, monkeypatch):
    """An opening that names none is no way around them; the owner names others."""
    path, strict = tmp_path / "model.db", ServiceLimits(noise=1, days=3, score_noise=9)
    with open_service(path, limits=strict, on_exhausted="queue") as service:
        fill(service, range(4), subject_id="p")
        if how == "queued":
            service.delete(0)
            assert service.delete(1).limits == strict.to_text()
        else:  # Killed after its intent: its next attempt is request 2, of noise 4.
            with monkeypatch.context() as killed:
                killed.setattr(Deletions, "noised", _killed)
                killed.setattr(intents, "abandon", lambda *_: None)
                with pytest.raises(KeyboardInterrupt):
                    service.delete(1)
    with open_service(path) as service:
        assert service.recovered == () and service.process_queue() == []
        with pytest.raises(CapacityExhausted, match="one person may cause 1"):
            service.delete(1)
        (waiting,) = service.queue()
        assert waiting.limits == strict.to_text()
        service.delete_many([2])  # Another request has the limits of its own opening.
    with open_service(path, limits=ServiceLimits()) as service:
        assert len(service.recovered + tuple(service.process_queue())) == 1
        assert service.queue() == [] and service.verify().ok


def _killed(*_):
    raise KeyboardInterrupt


def test_requests_together_are_under_the_strictest_of_their_limits():
    each = [ServiceLimits(9, 3.0, None), ServiceLimits(None, 5.0, 0.2), ServiceLimits()]
    assert limiting.strictest(each) == ServiceLimits(9, 14.0, 0.2)
    assert limiting.strictest(each[1:2]) == each[1]
    assert [ServiceLimits.from_text(one.to_text()) for one in each] == each


def test_where_all_deletions_add_up_as_many_are_carried_out_as_there_is_room(tmp_path):
    with open_service(
        tmp_path / "m.db", scope="joint", capacity=4, on_exhausted="queue"
    ) as service:
        fill(service, range(3), subject_id="p")
        fill(service, range(3, 6))
        service.delete(0)
        assert [service.delete(n).reason for n in (1, 2)] == ["rate", "rate"]
        service.delete_many([3, 4])
        service._requests.deletions._limits = ServiceLimits(noise=None, days=1)
        assert len(service.process_queue()) == 1  # and one waits for a retrain
        assert service.status().queued == 1


@pytest.mark.parametrize(("made", "together"), [(0, True), (4, False)])
def test_what_waits_is_carried_out_with_the_least_noise(tmp_path, made, together):
    with open_service(tmp_path / "m.db", limits=ServiceLimits(noise=None)) as service:
        come_and_go(service, made)
        for number in range(5):
            service.insert(*record(number), record_id=number, subject_id="one person")
        service.flush()
        deletions, find = service._requests.deletions, service._state.directory.find
        waiting = [service._requests.record(find(n), 1, None, None) for n in range(5)]
        groups = deletions.grouped(waiting)
        noise = sum(
            deletions._prices.price(made + 1 + at, len(group)).used
            for at, group in enumerate(groups)
        )
        singly = sum((made + 1 + at) ** 2 for at in range(5))
        assert noise == min(((made + 1) * 5) ** 2, singly)
        assert (len(groups) == 1) == (((made + 1) * 5) ** 2 <= singly) == together


def test_one_request_of_many_records_does_not_ruin_the_model(tmp_path):
    with open_service(tmp_path / "m.db", record_store="encrypted") as service:
        fill(service, range(200))
        fill(service, range(200, 230), subject_id="p")
        fill(service, range(230, 240), subject_id="q")
        before = service.published()
        with pytest.raises(CapacityExhausted, match="900 first requests") as caught:
            service.delete_subject("p")
        assert caught.value.reason == "rate" and caught.value.retrain_required
        assert np.array_equal(service.published(), before)
        assert len(service.delete_subject("q")) == 10  # 100
    with open_service(tmp_path / "m.db", on_exhausted="retrain") as service:
        assert {c.theorem for c in service.delete_subject("p")} == {"retrain"}
        assert service.status().noise.score_noise == 0.0


def test_the_limit_is_a_rate_and_a_clock_set_back_does_not_lift_it(
    tmp_path, monkeypatch
):
    with open_service(tmp_path / "m.db", limits=ServiceLimits(noise=14)) as service:
        fill(service, range(10))
        come_and_go(service, 2)
        with monkeypatch.context() as patch:  # one row with an old time
            patch.setattr(intents, "now", lambda: "2020-01-01T00:00:00.000+00:00")
            service.delete(5)
        come_and_go(service, 1)
        with pytest.raises(CapacityExhausted, match="after 14 by the same person"):
            come_and_go(service, 1)

        class Later(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(days=15)

        monkeypatch.setattr(limiting, "datetime", Later)
        monkeypatch.setattr(
            service._requests.deletions, "_limits", ServiceLimits(noise=16)
        )
        assert service.delete("the same").requests == 4


def test_a_request_that_came_to_nothing_is_not_held_against_the_person(
    tmp_path, monkeypatch
):
    with open_service(tmp_path / "m.db", limits=ServiceLimits(noise=9)) as service:
        fill(service, range(3), subject_id="p")

        def away(*_, **__):
            raise LedgerUnreachable("the ledger is away")

        with monkeypatch.context() as patch:
            patch.setattr(Deletions, "spend", away)
            for _ in range(2):
                with pytest.raises(LedgerUnreachable):
                    service.delete(0)
        assert service.delete(0).requests == 3  # their parts of the budget are spent


def test_one_person_does_not_take_a_capacity_that_all_share(tmp_path):
    with open_service(tmp_path / "m.db", scope="joint", capacity=20) as service:
        fill(service, range(10))
        come_and_go(service, 5)
        with pytest.raises(CapacityExhausted, match="one person may cause 5"):
            come_and_go(service, 1)
        service.delete(3)


def test_exact_modes_have_no_limit(tmp_path):
    limits = ServiceLimits(noise=1)
    with open_service(tmp_path / "r.db", mode="ridge", limits=limits) as service:
        for _ in range(3):
            service.insert(*record(0), record_id=0, subject_id="p")
            service.delete(0, *record(0))


def test_the_guard_declines_past_the_owners_limit(tmp_path):
    with open_service(tmp_path / "m.db", record_store="encrypted") as service:
        fill(service, range(100))
        service.delete(0)
        one = service.status().noise.score_noise
    guarded = ServiceLimits(score_noise=1.5 * one)  # sqrt(2) fits, sqrt(3) does not
    with open_service(tmp_path / "m.db", limits=guarded) as service:
        service.delete(1)
        with pytest.raises(CapacityExhausted, match="the owner's limit is") as caught:
            service.delete(2)
        assert caught.value.reason == "regret"
        assert service.status().deleted == 2
    with open_service(
        tmp_path / "m.db", limits=guarded, on_exhausted="retrain"
    ) as service:
        assert service.delete(2).theorem == "retrain"
        assert service.status().noise.score_noise == 0.0
        service.delete(3)


def test_noise_is_pointed_out_in_time(tmp_path):
    with open_service(tmp_path / "m.db") as service:
        fill(service, range(60))
        with pytest.warns(NoiseGrows, match=r"flips at most about .*`retrain`"):
            service.delete(0)
        # Not again until it has doubled.
        warned = service._requests.deletions._warn_from
        assert warned > 2 * 0.02


@pytest.mark.parametrize("dimension", [2, 20])
def test_the_forecast_is_what_noise_does(dimension):
    """Against the same stream without noise, over many draws."""
    rng = np.random.default_rng(dimension)
    terms = ServiceTerms.make(
        {}, mode="ogd", dimension=dimension, epsilon=1.0, delta=1e-6
    )
    prices = DeletionPrices(terms)
    X = rng.normal(size=(3000, dimension))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Y = np.sign(X @ rng.normal(size=dimension))
    clean = make_mode("ogd", dimension)
    clean.insert_many(X[:2000], Y[:2000])
    sigma = prices.price().multiplier * clean.shift_bound()
    used, flipped, expected, on_rows, scores = 9, [], [], [], []
    tests = rng.normal(size=(2000, dimension))
    for _ in range(60):
        noised = clean.copy()
        for _ in range(used):
            noised.delete(noise=sigma * rng.normal(size=dimension))
        found = forecast(noised, prices, used)
        expected.append(found.flipped)
        on_rows.append(forecast(noised, prices, used, rows=tests).flipped)
        with_noise, without = tests @ noised.published(), tests @ clean.published()
        flipped.append(np.mean(np.sign(with_noise) != np.sign(without)))
        norms = np.linalg.norm(tests, axis=1)
        scores.append(np.std((with_noise - without) / norms))
    assert found.score_noise == pytest.approx(np.sqrt(np.mean(np.square(scores))), 0.2)
    for forecasts in (expected, on_rows):
        assert np.mean(forecasts) == pytest.approx(np.mean(flipped), rel=0.25)
    # Learning on takes noise away, at least as fast as the forecast has it.
    noised.insert_many(X[2000:], Y[2000:])
    clean.insert_many(X[2000:], Y[2000:])
    left = np.linalg.norm(noised.published() - clean.published()) / np.sqrt(dimension)
    later = forecast(noised, prices, used)
    assert left <= 1.5 * later.score_noise < found.score_noise * 1.5
    assert found.flipped < found.flipped_after
    assert found.score_noise_after == pytest.approx(
        found.score_noise * np.sqrt((used + 100) / used)
    )


@pytest.mark.parametrize(("classes", "used"), [(3, 4), (10, 4), (10, 40)])
def test_the_forecast_over_classes_is_an_upper_one(classes, used):
    rng = np.random.default_rng(classes)
    config = {"classes": classes}
    terms = ServiceTerms.make(config, mode="ogd", dimension=8, epsilon=1.0, delta=1e-6)
    prices, clean = DeletionPrices(terms), make_mode("ogd", 8, **config)
    X = rng.normal(size=(4000, 8))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    clean.insert_many(X, np.argmax(X @ rng.normal(size=(8, classes)), axis=1))
    sigma = prices.price().multiplier * clean.shift_bound()
    tests, flips, expected = rng.normal(size=(1000, 8)), [], []

    def answers(mode):
        return np.argmax(tests @ mode.published().reshape(classes, 8).T, axis=1)

    for _ in range(20):
        noised = clean.copy()
        for _ in range(used):
            noised.delete(noise=sigma * rng.normal(size=noised.size))
        flips.append(np.mean(answers(noised) != answers(clean)))
        expected.append(forecast(noised, prices, used).flipped)
    # A sum over rivals counts an answer that two of them would overtake twice.
    assert np.mean(flips) <= np.mean(expected) <= 1.8 * np.mean(flips)


def test_the_guard_follows_public_numbers_alone(tmp_path):
    """Or whether a deletion is carried out would depend on the data."""
    noises = []
    for seed in (1, 2):
        with open_service(tmp_path / f"{seed}.db") as service:
            rng = np.random.default_rng(seed)
            for number in range(20):
                service.insert(rng.normal(size=DIM), 1.0, record_id=number)
            service.delete(3)
            state = service._state
            noises.append(score_noise(state.mode, service._opened.prices, state.used))
    assert noises[0] == noises[1] > 0.0


def test_forecasts_of_classes_outputs_and_exact_modes(tmp_path):
    with open_service(tmp_path / "c.db", classes=3) as service:
        service.insert_many(
            [record(n)[0] for n in range(900)],
            [float(record(n)[1] > 0) for n in range(900)],
            record_ids=range(900),
        )
        service.delete(3)
        found = service.forecast(10)
        assert 0.0 < found.flipped < found.flipped_after <= 2 / 3
        on_rows = service.forecast(10, rows=[record(n)[0] for n in range(20)])
        assert 0.0 < on_rows.flipped <= 2 / 3
        with pytest.raises(ValueError, match="rows must have shape"):
            service.forecast(rows=[[1.0]])
        assert "flips at most about" in str(found)
    with open_service(tmp_path / "l.db", mode="logistic") as service:
        for number in range(20):
            service.insert(record(number)[0], number % 2, record_id=number)
        assert service.status().noise.score_noise == 0.0
        service.delete(3, record(3)[0], 1)
        found = service.forecast()
        assert 0.0 < found.score_noise == found.score_noise_after
    with open_service(tmp_path / "r.db", mode="ridge") as service:
        fill(service, range(20))
        service.delete(3, *record(3))
        assert service.forecast().flipped_after == 0.0


def test_limits_are_checked():
    for bad in ({"noise": 0}, {"days": 1e6}, {"days": -1.0}, {"score_noise": 0.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            ServiceLimits(**bad)
