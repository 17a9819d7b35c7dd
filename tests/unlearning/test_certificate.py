"""Certificates: what they say is what the journal and the ledger say, to the letter."""

import dataclasses
import json
import math
import shutil
import sqlite3
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from demur.cli import app
from demur.core.accounting.gaussian import gaussian_epsilon
from demur.core.adjacency import Erasure
from demur.ledger import Budget, Ledger
from demur.unlearning import Certificate, ServiceMismatch, verify_certificate
from demur.unlearning.models import OGD
from demur.unlearning.pricing.budget import DeletionBudget
from demur.unlearning.pricing.noise import NoiseNeed
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.records import tables
from demur.unlearning.service.deletion import Deletions
from demur.unlearning.service.verification import certificate_problems, read_history
from tests.unlearning.service_kit import (
    UnlearningService,
    fill,
    open_service,
    record,
    sql,
)

CASES = {
    "ogd": {},
    "joint": {"scope": "joint", "capacity": 4},
    "ridge": {"mode": "ridge"},
    "logistic": {"mode": "logistic"},
}


def made(path, terms):
    with open_service(path, **terms) as service:
        fill(service, range(12))
        if terms.get("mode") == "logistic":
            service.renew([(n, *record(n)) for n in range(12)])
        service.delete(1, *record(1))
        return service.delete(2, *record(2))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """A service of each kind, and the certificate it gave."""
    found = {}
    for name, terms in CASES.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = folder, made(folder / "model.db", terms)
    return found


@pytest.fixture(params=CASES)
def case(request, cases, tmp_path):
    folder, certificate = cases[request.param]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "model.db", certificate


@pytest.fixture
def held(cases, tmp_path):
    folder, certificate = cases["ogd"]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "model.db", certificate


def run(path, certificate, *more):
    file = path.parent / "certificate.json"
    text = certificate if isinstance(certificate, str) else certificate.to_json()
    file.write_text(text)
    return CliRunner().invoke(
        app, ["unlearn", "verify", str(file), str(path), *map(str, more)]
    )


@pytest.mark.slow
def test_a_certificate_survives_its_text_and_holds(case):
    path, certificate = case
    assert Certificate.from_json(certificate.to_json()) == certificate
    found = verify_certificate(certificate, path)
    assert found.ok, str(found)
    done = run(path, certificate)
    assert done.exit_code == 0 and "holds" in done.output
    answer = json.loads(run(path, certificate, "--json").output)
    assert answer["ok"] and answer["problems"] == []


def other(value):
    """A value of the same type that is another one."""
    if isinstance(value, str):
        return "0" * 64 if value != "0" * 64 else "1" * 64
    if value is None:
        return "0" * 64
    if isinstance(value, list):
        return value[:-1]
    return value + 1 if isinstance(value, int) else value * 0.5 + 0.125


@pytest.mark.slow
def test_every_changed_field_is_found(case):
    """Field by field: the verdict is no, and a plain sentence says why."""
    path, certificate = case
    content = json.loads(certificate.to_json())
    database = tables.ServiceStore(str(path))
    with database.read() as connection:
        history = read_history(connection)
    database.close()
    assert certificate_problems(certificate, history) == []
    for name, value in content.items():
        if name == "tip":
            sequence, _, row_hash = value.partition(":")
            forged = f"{int(sequence) - 1}:{row_hash}"
        elif name == "version":
            continue
        elif name.endswith("_in_all"):
            forged = 0.5 if value is None else value / 2.0
        else:
            forged = other(value)
        changed = Certificate.from_json(json.dumps(content | {name: forged}))
        assert certificate_problems(changed, history), name
    assert not verify_certificate(changed, path).ok


@pytest.mark.slow
@pytest.mark.parametrize("terms", [{}, {"requests_per_subject": 2}])
def test_numbers_that_no_service_has_are_told_and_never_a_crash(tmp_path, terms):
    """Also where journal and certificate agree about them: a process may lie."""
    certificate = made(tmp_path / "model[1].db", terms)  # brackets are no pattern
    assert verify_certificate(certificate, tmp_path / "model[1].db").ok
    for name in ("requests", "records", "tick", "sigma", "shift_bound", "epsilon"):
        for value in (0, -1, 10**18, 1e300):
            kind = type(getattr(certificate, name))
            lie = dataclasses.replace(certificate, **{name: kind(value)})
            found = verify_certificate(lie, tmp_path / "model[1].db")
            assert not found.ok and name in str(found)


@pytest.mark.slow
def test_a_changed_certificate_ends_the_command_with_one(held):
    path, certificate = held
    changed = dataclasses.replace(certificate, epsilon=0.01)
    done = run(path, changed)
    assert done.exit_code == 1
    assert "does not say what the journal says: epsilon" in done.output
    assert "does NOT hold" in done.output


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"version": 2}',
        "not json",
    ],
)
def test_what_is_no_certificate_is_refused_in_a_sentence(held, text):
    done = run(held[0], text)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    "name, value",
    [
        ("version", 1),
        ("epsilon", "1"),
        ("epsilon", True),
        ("sigma", math.inf),
        ("epoch", 1.5),
        ("record", 7),
        ("not_covered", "x"),
        ("not_covered", [1]),
        ("state_digest", 3),
        ("tip", None),
        ("tip", "1:abc"),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(held, name, value):
    content = json.loads(held[1].to_json())
    with pytest.raises((ValueError, TypeError)):
        Certificate.from_json(json.dumps(content | {name: value}))


def test_a_changed_journal_is_found(held):
    path, certificate = held
    sql(
        path,
        "UPDATE demur_unlearning_journal SET body = replace(body, 'insert', 'delete')"
        " WHERE sequence = 3",
    )
    done = run(path, certificate)
    assert done.exit_code == 1 and "row 3" in done.output


def test_a_cost_that_is_not_in_the_ledger_is_found(held):
    """The entry is taken out of the ledger, with its links mended."""
    path, certificate = held
    ledger = path.with_name("model.db.ledger-1")
    sql(ledger, "DELETE FROM demur_rows WHERE entry_id = ?", certificate.entry)
    done = run(path, certificate)
    assert done.exit_code == 1 and "not in the ledger" in done.output
    ledger.unlink()
    done = run(path, certificate)
    assert done.exit_code == 1 and "--ledger" in done.output


@pytest.mark.slow
def test_a_ledger_elsewhere_has_to_be_named(tmp_path):
    path = tmp_path / "model.db"
    budgets = {Erasure(): Budget(1.0, 1e-6)}
    shared = tmp_path / "shared.db"
    with Ledger.open(shared, dataset="d", budgets=budgets) as ledger:
        certificate = made(path, {"ledger": ledger})
    assert run(path, certificate).exit_code == 1
    assert run(path, certificate, "--ledger", shared).exit_code == 0
    with Ledger.open(tmp_path / "wrong.db", dataset="d", budgets=budgets):
        pass
    assert run(path, certificate, "--ledger", tmp_path / "wrong.db").exit_code == 1


def test_a_place_without_a_journal_is_refused_and_nothing_is_made(held, tmp_path):
    with pytest.raises(ServiceMismatch):
        verify_certificate(held[1], tmp_path / "nothing.db")
    assert not (tmp_path / "nothing.db").exists()
    sqlite3.connect(tmp_path / "empty.db").close()
    assert run(tmp_path / "empty.db", held[1]).exit_code == 1


def test_a_certificate_of_another_service_is_found(held, tmp_path):
    stranger = tmp_path / "stranger.db"
    made(stranger, {})
    found = verify_certificate(held[1], stranger)
    assert "another service" in str(found)


def test_a_record_that_came_back_is_mentioned(held):
    path, certificate = held
    with UnlearningService.open(path) as service:
        fill(service, [2])
    found = verify_certificate(certificate, path)
    assert found.ok and "generation 1" in found.notes[0] and "live" in found.notes[0]
    assert not [line for line in found.unknown if "again" in line], "it is known"
    with UnlearningService.open(path) as service:
        service.delete(2)
    assert "deleted again" in verify_certificate(certificate, path).notes[0]


def test_who_does_not_remember_cannot_know_what_came_back(tmp_path):
    path = tmp_path / "model.db"
    certificate = made(path, {"memory_key": None})
    found = verify_certificate(certificate, path)
    assert found.ok and "does not remember ids" in " ".join(found.unknown)


def test_a_certificate_has_each_name_once_and_numbers_of_this_world(held):
    """Two readers of {"epsilon": 0.1, "epsilon": 9} may see two certificates."""
    _, certificate = held
    text = certificate.to_json()
    for old, new, said in (
        ('"epsilon":', '"epsilon": 0.0, "epsilon":', "occurs twice"),
        ("{", '{"record": "00",', "occurs twice"),
        ('"sigma": ', '"sigma": 1' + "0" * 400 + ', "x": ', "not a certificate"),
        ('"tick": ', '"tick": 1' + "0" * 5000, "too long"),
        ('"tick": ', '"tick": 1' + "0" * 3000, "tick is"),
        ("{", "", "is no JSON"),
    ):
        with pytest.raises(ValueError, match=said):
            Certificate.from_json(text.replace(old, new, 1))
    number = f'"sigma": {certificate.sigma}'
    with pytest.raises(ValueError, match="sigma is"):
        Certificate.from_json(text.replace(number, '"sigma": 1' + "0" * 400))
    with pytest.raises(ValueError, match="no text"):
        Certificate.from_json(b"SQLite format 3\x00\xff")


def test_the_epsilon_is_the_one_of_the_noise(tmp_path):
    """Against the exact profile, computed elsewhere."""
    path = tmp_path / "model.db"
    certificate = made(path, {"requests_per_subject": 1, "delta": 1e-5})
    exact = gaussian_epsilon(certificate.shift_bound / certificate.sigma, 1e-5)
    # The grid and the sampler's share of delta cost a little: never less than nothing.
    assert exact <= certificate.epsilon <= exact * (1 + 1e-4)
    assert certificate.epsilon <= 1.0
    assert certificate.sigma / certificate.shift_bound == pytest.approx(3.73, rel=2e-3)


def test_half_the_noise_is_found(tmp_path, monkeypatch):
    """The sabotaged twin: half of the noise that is charged."""
    honest = DeletionPrices.mechanism

    def half(self, wanted):
        return honest(self, [NoiseNeed(z / 2.0, shift) for z, shift in wanted])

    true_epsilon = DeletionPrices.epsilon
    with monkeypatch.context() as patch:
        patch.setattr(DeletionPrices, "mechanism", half)
        patch.setattr(
            DeletionPrices, "epsilon", lambda self, z: true_epsilon(self, 2.0 * z)
        )
        certificate = made(tmp_path / "model.db", {})
    found = verify_certificate(certificate, tmp_path / "model.db")
    assert "noise is too small" in str(found)


@pytest.mark.slow
def test_a_whole_budget_for_every_request_is_found(tmp_path, monkeypatch):
    """The sabotaged twin: each request alone is within epsilon, together they are not.

    The first one is, too: it leaves nothing for a second.
    """
    with monkeypatch.context() as patch:
        patch.setattr(DeletionBudget, "part_of_request", lambda *_: Fraction(1))
        with open_service(tmp_path / "model.db") as service:
            for number in range(3):
                service.insert(*record(number), record_id=number, subject_id="ada")
            issued = [service.delete(number) for number in range(3)]
    for certificate in issued:
        assert certificate.epsilon <= 1.0
        found = verify_certificate(certificate, tmp_path / "model.db")
        assert f"request {certificate.requests} of one person" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["shift", "tick"])
def test_a_shift_that_is_not_the_theorems_is_found(tmp_path, monkeypatch, lie):
    """Half the shift takes half the noise, and so does a clock that is ahead."""
    honest, shift_bound = Deletions._certificate, OGD.shift_bound
    with monkeypatch.context() as patch:
        patch.setattr(OGD, "shift_bound", lambda *rest: shift_bound(*rest) / 2.0)
        if lie == "tick":
            patch.setattr(
                Deletions,
                "_certificate",
                lambda *rest: dataclasses.replace(honest(*rest), tick=1000),
            )
        certificate = made(tmp_path / "model.db", {})
    found = verify_certificate(certificate, tmp_path / "model.db")
    said = {"shift": "below that of the theorem", "tick": "not that of the journal"}
    assert said[lie] in str(found)


@pytest.mark.slow
def test_terms_that_are_not_the_services_are_found(tmp_path, monkeypatch):
    """A process that writes nicer terms into journal and certificate alike."""
    honest = Deletions._certificate
    nicer = {"delta": 1e-12, "scope": "joint", "theorem": "retrain"}
    for name, value in nicer.items():
        path = tmp_path / f"{name}.db"

        def lie(*rest, name=name, value=value):
            return dataclasses.replace(honest(*rest), **{name: value})

        with monkeypatch.context() as patch:
            patch.setattr(Deletions, "_certificate", lie)
            certificate = made(path, {})
        assert not verify_certificate(certificate, path).ok, name
