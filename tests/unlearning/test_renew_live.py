"""`MemoryPair.renew` takes the live records, all of them and no others."""

import numpy as np
import pytest

from demur.unlearning import (
    MemoryPair,
    PrivacyOdometer,
    RecordExists,
    RecordMismatch,
    UnlearningService,
)

DIM, N = 3, 12


def rows(n=N + 2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, DIM)) / 4
    return X, (X[:, 0] > 0).astype(float)


X, Y = rows()


def learned(named=True, deleted=(3,)):
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=1e6)
    model = MemoryPair(DIM, odometer, mode="logistic", tolerance=0.05)
    for i in range(2):
        model.calibrate_step(X[i], Y[i], f"r{i}" if named else None)
    stats = model.finalize_calibration(1e3)
    for i in range(2, N):
        model.insert(X[i], Y[i], f"r{i}" if named else None)
    odometer.finalize_with(stats, T_estimate=1000)
    model.renew(X[:N], Y[:N])  # a deletion needs a certificate
    for i in deleted:
        model.delete(X[i], Y[i], record_id=f"r{i}" if named else None)
    return model


def at(*numbers):
    return X[list(numbers)], Y[list(numbers)]


LIVE = [i for i in range(N) if i != 3]
IDS = [f"r{i}" for i in LIVE]


@pytest.mark.parametrize("ids", [True, False])
def test_the_live_records_renew_in_any_order(ids):
    model, twin = learned(), learned(deleted=())
    order = LIVE[::-1]
    model.renew(*at(*order), *([[f"r{i}" for i in order]] if ids else []))
    assert model.mode.certificate() < 1e-9
    twin.renew(*at(*range(N)), [f"r{i}" for i in range(N)])  # one that lost nothing
    assert model.mode.records == N - 1 and twin.mode.records == N


def refused(model, error, *arguments):
    state = model.mode.digest(), model.events_seen, model.odometer.deletions_made
    with pytest.raises(error, match="Nothing has changed"):
        model.renew(*arguments)
    after = model.mode.digest(), model.events_seen, model.odometer.deletions_made
    assert after == state


def test_a_deleted_record_in_the_place_of_a_live_one_is_refused():
    """As many as are live, so that their number says nothing."""
    back = [*LIVE[1:], 3]
    model = learned()
    refused(model, RecordMismatch, *at(*back))
    refused(model, RecordExists, *at(*back), [f"r{i}" for i in back])
    refused(model, RecordMismatch, *at(*back), IDS)  # under a live one's id
    model.renew(*at(*LIVE), IDS)
    model.insert(X[3], Y[3], "r3")  # inserted again, it is live
    model.renew(*at(*LIVE, 3), [*IDS, "r3"])


def test_a_deleted_record_of_a_subject_is_refused():
    model = learned()
    for i, name in ((N, "a"), (N + 1, "b")):
        model.insert(X[i], Y[i], name, "Ada")
    model.renew(*at(*LIVE, N, N + 1), [*IDS, "a", "b"])
    model.delete(X[N], Y[N], record_id="a")
    refused(model, RecordExists, *at(*LIVE, N), [*IDS, "a"])
    model.renew(*at(*LIVE, N + 1), [*IDS, "b"])


@pytest.mark.parametrize(
    ("numbers", "ids"),
    [
        (LIVE[1:], IDS[1:]),  # one is left out
        ([*LIVE, N], [*IDS, "new"]),  # one too many
        ([*LIVE[1:], N], [*IDS[1:], "new"]),  # a stranger in its place
        ([*LIVE[1:], N], [*IDS[1:], None]),
        (LIVE, IDS[1:]),  # more records than ids
        ([*LIVE[1:], LIVE[0]], IDS),  # contents exchanged
    ],
)
def test_other_records_are_refused(numbers, ids):
    refused(learned(), RecordMismatch, *at(*numbers), ids)


def test_an_id_twice_is_refused():
    refused(learned(), RecordExists, *at(*LIVE), [*IDS[1:], IDS[-1]])


def test_bad_input_changes_nothing():
    refused(learned(), ValueError, X[0], Y[:1])
    refused(learned(), ValueError, X[:3], Y[:2])


def test_records_without_ids_are_counted():
    model = learned(named=False)
    refused(model, RecordMismatch, *at(*LIVE[1:]))
    model.renew(*at(*LIVE))
    model.insert(X[N], Y[N], "named")
    refused(model, RecordMismatch, *at(*LIVE, N + 1))  # the named one is missing
    model.renew(*at(*LIVE, N))
    model.renew(*at(*LIVE, N), [None] * len(LIVE) + ["named"])


def test_the_service_refuses_the_same(tmp_path):
    """Its twin: the same records, and errors of the same kind."""
    model = learned(deleted=())
    with UnlearningService.open(
        tmp_path / "service.db",
        mode="logistic",
        dimension=DIM,
        epsilon=1.0,
        delta=1e-5,
        tolerance=0.05,
        capacity=3,
    ) as service:
        for i in range(N):
            service.insert(X[i], Y[i], record_id=f"r{i}")
        for wrong in (range(1, N), range(N + 1), [*range(1, N), N]):
            records = [(f"r{i}", X[i], Y[i]) for i in wrong]
            with pytest.raises(RecordMismatch, match="not the live records"):
                service.renew(records)
            with pytest.raises(RecordMismatch, match="not the live records"):
                model.renew(*at(*wrong), [f"r{i}" for i in wrong])
        live = [(f"r{i}", X[i], Y[i]) for i in range(N)]
        service.renew(live)
        model.renew(*at(*range(N)), [name for name, _, _ in live])
        assert np.allclose(service._state.mode._vectors[0], model.mode._vectors[0])
