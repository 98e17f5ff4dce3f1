"""Which producers may stage what: the file of the operator, and the records that it admits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from committerd.errors import InvalidRequest
from committerd.lance.format.kind import Kind
from committerd.queue.port import Publication, Record
from committerd.queue.producers import Admission, Producer, Signing, producers_in
from committerd_common.request import AppUnit, decode_envelope

OLD, NEW = "old-" * 8, "new-" * 8
LOADER = Producer(name="loader", keys=(NEW, OLD), operations=frozenset({Kind.APPEND}), app_ids=("loader-*", "x"))
TEXT = f"""
[loader]
keys = ["{NEW}", "{OLD}"]
operations = ["append"]
app_ids = ["loader-*", "x"]

["team b"]
keys = ["{OLD}"]
"""
ADMISSION = Admission(topic="t.staged", producers=lambda: producers_in(TEXT))


def record(key: str = NEW, *, name: str = "loader", topic: str = "t.staged", **headers: str) -> Record:
    """A record that is signed with this key."""
    given = [(header.replace("_", "-"), text.encode()) for header, text in headers.items()]
    signing = Signing(topic=topic, producer=Producer(name=name, keys=(key,)))
    sent = signing.signed(Publication(key=b"uuid", value=b"value", headers=given))
    return Record(offset=3, key=sent.key, value=sent.value, headers=sent.headers)


def reason(given: Record) -> str:
    with pytest.raises(InvalidRequest) as caught:
        ADMISSION.producer_of(given, decode_envelope(given.headers))
    assert NEW not in str(caught.value)
    assert OLD not in str(caught.value)
    return caught.value.code


def test_the_file_has_a_table_for_each_producer() -> None:
    assert producers_in(TEXT) == {"loader": LOADER, "team b": Producer(name="team b", keys=(OLD,))}
    assert NEW not in repr(LOADER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no producer"),
        ("[loader", "is not TOML: "),
        ("loader = 3", "producer 'loader' is no table"),
        ('[""]', "a name has 1 to 256 bytes"),
        (f'["{"é" * 129}"]', "a name has 1 to 256 bytes"),
        (f'[a]\nkey = "{NEW}"', "producer 'a' has 'key'; it may have keys, operations and app_ids"),
        ("[a]", "producer 'a' needs keys"),
        ("[a]\nkeys = []", "producer 'a' needs keys"),
        (f'[a]\nkeys = ["{NEW}", "{OLD}", "{NEW}"]', "producer 'a' needs keys"),
        (f'[a]\nkeys = "{NEW}"', "producer 'a': keys is a list of texts"),
        ("[a]\nkeys = [5]", "producer 'a': keys is a list of texts"),
        (f'[a]\nkeys = ["{NEW[:31]}"]', "producer 'a': a key of a producer has at least 32 characters"),
        (f'[a]\nkeys = ["{NEW}"]\noperations = ["Append"]', "producer 'a': there is no operation 'Append'; there are"),
        (f'[a]\nkeys = ["{NEW}"]\napp_ids = "x"', "producer 'a': app_ids is a list of texts"),
    ],
)
def test_a_wrong_file_is_told_without_its_keys(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        producers_in(text)
    assert NEW[:31] not in str(caught.value)


def test_what_either_key_has_signed_is_admitted() -> None:
    for key in (NEW, OLD):
        given = record(key, dataset="/t.lance")
        assert ADMISSION.producer_of(given, decode_envelope(given.headers)) == LOADER


def test_others_are_not() -> None:
    given = record()
    unsigned = replace(given, headers=[("producer", b"loader")])
    assert reason(unsigned) == "signature_missing"
    assert reason(record("another" * 5)) == "signature_invalid"
    assert reason(record(NEW, name="team b")) == "signature_invalid"
    assert reason(record(topic="u.staged")) == "signature_invalid"
    assert reason(record(name="nobody")) == "producer_unknown"
    assert reason(replace(given, value=b"valuf")) == "signature_invalid"
    assert reason(replace(given, headers=[*given.headers, ("deadline-ms", b"5")])) == "signature_invalid"
    assert reason(replace(given, headers=[*given.headers, ("signature", b"v1:" + b"0" * 64)])) == "signature_invalid"


def test_only_the_own_applications_are_admitted() -> None:
    for app_id in ("loader-1", "x"):
        given = record(app_id=app_id, app_version="1")
        assert ADMISSION.producer_of(given, decode_envelope(given.headers)) == LOADER
    assert reason(record(app_id="billing", app_version="1")) == "app_id_not_allowed"
    named = replace(LOADER, app_ids=("job?", "a[bc]*"))
    for app_id in ("job?", "a[bc]", "a[bc]1"):
        named.require_app(AppUnit(app_id=app_id, version=1))
    for app_id in ("job1", "ab", "ab1"):
        with pytest.raises(InvalidRequest, match="may not stage units of application"):
            named.require_app(AppUnit(app_id=app_id, version=1))
    with pytest.raises(InvalidRequest, match=r"its app_ids in commit\.producers_file are none"):
        replace(LOADER, app_ids=()).require_app(AppUnit(app_id="x", version=1))
    replace(LOADER, app_ids=None).require_app(AppUnit(app_id="billing", version=1))


def test_the_operator_signs_in_place_of_the_producer() -> None:
    given = record(app_id="x", app_version="1")
    operator = Signing(topic="t.staged", producer=Producer(name="team b", keys=(OLD,)))
    again = operator.signed(Publication(key=given.key, value=given.value, headers=given.headers))
    assert [name for name, _ in again.headers] == ["app-id", "app-version", "producer", "signature"]
    staged = Record(offset=4, key=again.key, value=again.value, headers=again.headers)
    assert ADMISSION.producer_of(staged, decode_envelope(staged.headers)).name == "team b"
