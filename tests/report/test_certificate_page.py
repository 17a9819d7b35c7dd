"""The page of a certificate says what its JSON says, in words that anybody can read."""

import dataclasses
import json
import re
import stat
from html.parser import HTMLParser

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.report import certificate_page, write_certificate
from demur.report.text import number_up
from demur.unlearning import Certificate, UnlearningService
from tests.unlearning.service_kit import record

EVIL = "<script>alert(1)</script>\" onload='x' </td> & \u202e"
KEY = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))


class Facts(HTMLParser):
    """The facts of a page by name, its words, its JSON, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.facts, self.words, self.loads, self._at = {}, [], [], None
        self._json = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.loads += [f"{tag} {k}" for k in given if k in ("src", "action", "srcset")]
        self.loads += [k for k in given if k.startswith("on")]
        if given.get("href", "data:,") != "data:,":
            self.loads.append(f"{tag} href")
        if tag in ("iframe", "img", "object", "embed", "form"):
            self.loads.append(tag)
        self._json = tag == "script" and given.get("type") == "application/json"
        if tag == "script" and not self._json:
            self.loads.append(tag)
        if "data-fact" in given:
            self._at = given["data-fact"]
            self.facts[self._at] = ""

    def handle_data(self, data):
        if self._json:
            self.data = json.loads(data)
        elif self._at is not None:
            self.facts[self._at] += data
        else:
            self.words.append(data)

    def handle_endtag(self, tag):
        self._at, self._json = None, False


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A certificate of a noisy, signed service; ids with markup in them."""
    path = tmp_path_factory.mktemp("service") / "model.db"
    with UnlearningService.open(
        path, mode="ogd", dimension=4, epsilon=1.0, delta=1e-6, signing_key=KEY
    ) as service:
        for number in range(4):
            service.insert(*record(number), record_id=number, subject_id="other")
        service.insert(*record(9), record_id="<b>9</b>", subject_id="<i>me</i>")
        service.delete(0)
        return service.delete("<b>9</b>")


def differences(page, told):
    """Facts that page, its JSON and the certificate's JSON do not share."""
    parsed = Facts(page)
    wrong = [] if parsed.data == told else ["the JSON inside"]
    wrong += [name for name in set(told) ^ set(parsed.facts)]
    for name, text in parsed.facts.items():
        value = told.get(name)
        shown = value if isinstance(value, str) else json.dumps(value)
        wrong += [] if text == shown else [name]
    return wrong


def test_the_page_has_the_facts_of_the_json(held):
    page = certificate_page(held)
    assert differences(page, json.loads(held.for_holder())) == []
    bare = Certificate.from_json(held.to_json())
    assert differences(certificate_page(bare), json.loads(held.to_json())) == []
    # and the comparison has power
    for name in ("epsilon", "record", "not_covered"):
        told = json.loads(held.for_holder())
        told[name] = told[name][:-1] if name != "epsilon" else told[name] * 1.01
        assert name in differences(page, told)
        del told[name]
        assert name in differences(page, told)


def test_the_words_are_those_of_the_numbers(held):
    words = " ".join(Facts(certificate_page(held)).words)
    assert f"up to epsilon {number_up(held.epsilon)}" in words
    assert f"delta {number_up(held.delta)}" in words and held.time[:10] in words
    for line in held.not_covered:
        assert line in words
    assert "carries a signature" in words and "NOT PRIVATE" not in words
    exact = dataclasses.replace(held, epsilon=0.0, signature=None)
    words = " ".join(Facts(certificate_page(exact)).words)
    assert "Nothing of the record is left" in words and "not signed" in words
    third = dataclasses.replace(held, requests=3, epsilon_so_far=0.87654)
    words = " ".join(Facts(certificate_page(third)).words)
    assert "request 3 of this person" in words and "0.8766" in words
    shown = dataclasses.replace(held, epsilon_in_all=2.0, delta_in_all=1e-6)
    words = " ".join(Facts(certificate_page(shown)).words)
    assert "Until the next publication" in words
    for epsilon in (710.0, 1e300):  # beyond what a float can say
        words = certificate_page(dataclasses.replace(held, epsilon=epsilon))
        assert f"at most e^{number_up(epsilon)} times" in words
    assert "but for the lines that begin with" in words
    test = dataclasses.replace(held, statement=f"NOT PRIVATE: {held.statement}")
    assert 'role="alert"' in certificate_page(test)


def test_an_id_is_on_it_only_if_the_opening_ties_it(held):
    page = certificate_page(held, record_id="<b>9</b>", subject_id="<i>me</i>")
    assert "&lt;b&gt;9&lt;/b&gt;" in page and "&lt;i&gt;me&lt;/i&gt;" in page
    assert "<b>9" not in page and "<i>me" not in page
    for wrong in ({"record_id": "8"}, {"subject_id": "other"}):
        with pytest.raises(ValueError, match="not about that id"):
            certificate_page(held, **wrong)
    with pytest.raises(ValueError, match="no opening"):
        certificate_page(dataclasses.replace(held, opening=None), record_id="9")


def test_text_is_text_and_nothing_is_fetched_or_run(held):
    """Whatever stands in a certificate: it may come from anybody."""
    texts = [
        field.name
        for field in dataclasses.fields(held)
        if isinstance(getattr(held, field.name), str)
    ]
    evil = dataclasses.replace(
        held, **dict.fromkeys(texts, EVIL), not_covered=(EVIL, EVIL)
    )
    page = certificate_page(evil)
    assert Facts(page).loads == [] and "<script>alert" not in page
    assert "default-src 'none'" in page and "@import" not in page
    assert not re.search(r"url\((?!#)", page) and "\u202e" not in page.split("{")[0]
    assert Facts(page).data["statement"] == EVIL
    assert Facts("<img src=x><script>1</script><p onload=1>").loads, "it has power"


def test_it_prints(held, tmp_path):
    place = tmp_path / "page.html"
    write_certificate(held, place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600, "it has the opening"
    page = place.read_text()
    assert "@page" in page and "@media print" in page and '<html lang="en">' in page
    assert 'content: "certificate of deletion"' in page, "at its foot"
    assert page.count("<h1>") == 1 and '<th scope="row">' in page
    with pytest.raises(ValueError, match="there is no folder"):
        write_certificate(held, tmp_path / "nowhere" / "page.html")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
