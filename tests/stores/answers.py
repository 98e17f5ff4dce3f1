"""What the stores of S3, Azure and Google Cloud Storage have to make of the same responses, on the same server."""

from __future__ import annotations

import re

import pytest

from committerd.errors import InvalidRequest, PutUnknown
from committerd.stores.port import ObjectStore
from committerd.stores.retries import Fault
from tests.stores.fake_s3 import Answer, FakeS3

KEY = "_versions/1.manifest"
DROPPED = Answer(cut=0)
DROPPED_AFTER = Answer(cut=0, applied=True)


async def check_put_is_unknown_and_sent_once(
    store: ObjectStore, server: FakeS3, faults: list[Fault], answer: Answer, fault: Fault, *, uri: str
) -> None:
    """Check what a put-if-absent is with this response. `uri`: the table's, as the error names it."""
    server.script.append(answer)
    with pytest.raises(PutUnknown, match=re.escape(f"{uri}/{KEY}")):
        await store.put_if_absent(KEY, b"ours")
    assert len(server.requests) == 1
    assert faults == [fault]
    assert ("a table/" + KEY in server.objects) is answer.applied


async def check_no_second_try_on_a_connection_that_was_kept_open(store: ObjectStore, server: FakeS3) -> None:
    """Check that no client repeats a put by itself when the server closes the connection of an earlier request."""
    await store.put("o", b"x")
    server.script.append(DROPPED_AFTER)
    with pytest.raises(PutUnknown):
        await store.put_if_absent(KEY, b"ours")
    assert server.requests[1:] == ["PUT /bucket/a table/_versions/1.manifest"]


async def check_key_is_refused(store: ObjectStore, server: FakeS3, key: str) -> None:
    """Check that a key can't be read, and that nothing is sent."""
    with pytest.raises(InvalidRequest) as caught:
        await store.get(key)
    assert caught.value.code == "path_invalid"
    assert not server.requests
