"""Classes with labels: y and predictions of a service are texts, fixed in its terms."""

import numpy as np
import pytest

from demur.unlearning import ServiceMismatch, UnlearningService
from tests.unlearning.service_kit import record

pytestmark = pytest.mark.slow
LABELS = ["cat", "dog", "7"]
MODES = {
    "ridge": {"mode": "ridge"},
    "ogd": {"mode": "ogd", "loss": "logistic", "epsilon": 1.0, "delta": 1e-6},
}


def label(number):
    return LABELS[number % 3]


def learned(path, classes, label, **terms):
    service = UnlearningService.open(path, dimension=4, classes=classes, **terms)
    service.insert(record(0)[0], label(0), record_id=0)
    rest = range(1, 12)
    service.insert_many(
        [record(n)[0] for n in rest], [label(n) for n in rest], record_ids=rest
    )
    return service


@pytest.mark.parametrize("mode", MODES)
def test_labels_are_the_numbers_of_their_classes(tmp_path, mode):
    """The same model, bit for bit, as with the numbers themselves."""
    terms = MODES[mode]
    with (
        learned(tmp_path / "a.db", LABELS, label, **terms) as named,
        learned(tmp_path / "b.db", 3, lambda n: float(n % 3), **terms) as numbered,
    ):
        assert np.array_equal(named.published(), numbered.published())
        for n in range(12):
            x = record(n)[0]
            assert named.predict(x) == LABELS[int(numbered.predict(x))]
            assert np.array_equal(named.probabilities(x), numbered.probabilities(x))
        if mode == "ridge":
            named.delete(1, record(1)[0], "dog")
            named.delete_many([2, 3], [record(n)[0] for n in (2, 3)], [7, "cat"])
            kept = [(n, record(n)[0], label(n)) for n in range(4, 11)]
            assert len(named.retrain(kept)) == 2 and named.verify().ok
    with UnlearningService.open(tmp_path / "a.db", classes=LABELS) as again:
        assert again.terms.labels == tuple(LABELS)
        assert again.predict(record(0)[0]) in LABELS


def test_other_labels_are_refused_and_nothing_changes(tmp_path):
    path = tmp_path / "model.db"
    with learned(path, LABELS, label, mode="ridge") as service:
        before = service.status()
        for wrong in ("cow", 0, 1.0, "Cat", None):
            with pytest.raises(ValueError, match="one of the 3 labels") as error:
                service.insert(record(0)[0], wrong, record_id="new")
            assert "cow" not in str(error.value)
        with pytest.raises(ValueError, match="one of the 3 labels"):
            service.insert_many([record(0)[0]] * 2, ["cat", "cow"], record_ids=[50, 51])
        with pytest.raises(ValueError, match="one of the 3 labels"):
            service.delete(1, record(1)[0], "cow")
        assert service.status() == before
    with pytest.raises(ServiceMismatch, match="labels"):
        UnlearningService.open(path, classes=["dog", "cat", "7"])
    for classes in (["one"], ["a", "a"], ["a", ""]):
        with pytest.raises(ValueError):
            UnlearningService.open(
                tmp_path / "new.db", mode="ridge", dimension=4, classes=classes
            )
    assert not (tmp_path / "new.db").exists()
