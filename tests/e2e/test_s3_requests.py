"""The requests of a commit to S3, and the handling of a response that says neither yes nor no."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.child import Launch
from harness.directory_buckets import DirectoryBuckets
from harness.fault_proxy import DROP_REQUEST, FaultProxy, Seen, answer
from harness.kafka import KafkaBroker, RunningKafka
from harness.places import express_place, s3_place
from harness.s3 import S3Endpoint
from harness.scene import STAYS, Scene, until

pytestmark = [pytest.mark.kafka, pytest.mark.s3, pytest.mark.pylance]

_KEPT = STAYS | {"STORE__RECHECK_SECONDS": "60"}
"""No new start, and a listing so rarely that it does not happen here."""
_MANIFEST = r"_versions/\d+\.manifest"


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[FaultProxy]:
    with FaultProxy(s3.url) as running:
        yield running


@pytest.fixture
def scene(
    s3: S3Endpoint, proxy: FaultProxy, kafka: KafkaBroker | RunningKafka, dataset: str, tmp_path: Path, launch: Launch
) -> Iterator[Scene]:
    place = s3_place(s3, proxy=proxy.url)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as made:
        yield made


def kinds(seen: Sequence[Seen]) -> list[str]:
    """Each request: method, folder, and the status if it is an error."""
    found = []
    for one in seen:
        folder = re.search(r"(?<=table\.lance/)(?:_versions|_transactions|data)|list-type", one.path)
        status = f" {one.forwarded}" if one.forwarded is None or one.forwarded >= 300 else ""
        found.append(f"{one.method} {folder[0] if folder else one.path}{status}")
    return found


def sent_by_a_commit(scene: Scene, proxy: FaultProxy | DirectoryBuckets, ids: list[int]) -> Counter[str]:
    """Commit an Append, and add its ids to `ids`; returns the number of requests of each kind that this took."""
    before = len(proxy.seen)
    ids += scene.committed()
    return Counter(kinds(proxy.seen[before:]))


def test_a_commit_takes_three_requests_and_one_for_each_file_and_a_race_six_more(
    scene: Scene, proxy: FaultProxy
) -> None:
    ids = scene.table.create(2)
    daemon = scene.started(**_KEPT)
    for _ in range(3):
        sent = sent_by_a_commit(scene, proxy, ids)
        # The version below is read beside the PUT, and before it if it was not read a moment ago.
        assert 1 <= sent.pop("GET _versions") <= 3
        assert sent == {"GET data": 1, "PUT _transactions": 1, "PUT _versions": 1}

    ids += scene.table.write()
    sent = sent_by_a_commit(scene, proxy, ids)
    # The other writer's version; and a check of the version below ours, beside each PUT and after the LIST.
    assert 4 <= sent.pop("GET _versions") <= 6
    assert sent == {
        "GET data": 1,
        "PUT _transactions": 2,
        "PUT _versions 412": 1,
        "GET list-type": 1,
        "PUT _versions": 1,
    }
    assert daemon.metric("committerd_store_failed_requests_total", service="s3") == 0
    scene.audit(ids)


def test_in_a_directory_bucket_a_commit_takes_one_request_more_and_a_race_lists_nothing(
    s3: S3Endpoint,
    directory_buckets: DirectoryBuckets,
    kafka: KafkaBroker | RunningKafka,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
) -> None:
    with DirectoryBuckets(s3, session_seconds=3600) as proxy:
        place = express_place(s3, directory_buckets, proxy=proxy.url)
        with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
            ids = scene.table.create(2)
            daemon = scene.started(**_KEPT)
            ids += scene.committed()
            sent = sent_by_a_commit(scene, proxy, ids)
            assert 1 <= sent.pop("GET _versions") <= 3
            assert sent == {"GET data": 1, "PUT _transactions": 1, "PUT _versions": 2}, "the manifest and the hint"

            ids += scene.table.write()
            sent = sent_by_a_commit(scene, proxy, ids)
            assert 4 <= sent.pop("GET _versions") <= 6
            assert sent == {
                "GET data": 1,
                "PUT _transactions": 2,
                "PUT _versions 412": 1,
                "HEAD _versions": 1,
                "HEAD _versions 404": 2,
                "PUT _versions": 2,
            }
            assert daemon.metric("committerd_store_failed_requests_total", service="s3") == 0
            scene.audit(ids)


def test_an_idle_committer_lists_once_in_a_while_and_no_more(scene: Scene, proxy: FaultProxy) -> None:
    ids = scene.table.create()
    scene.started(**STAYS, STORE__RECHECK_SECONDS="0.2")
    ids += scene.committed()
    before = len(proxy.seen)
    until(lambda: len(proxy.seen) - before >= 5)
    assert set(kinds(proxy.seen[before:])) == {"GET list-type", "GET _versions"}
    # And one more request if the latest version was last listed too long ago.
    ids += scene.committed()
    assert set(kinds(proxy.seen[before:])) == {
        "GET list-type",
        "GET _versions",
        "GET data",
        "PUT _transactions",
        "PUT _versions",
    }
    scene.audit(ids)


def test_a_conflict_that_left_nothing_is_answered_with_the_same_bytes(scene: Scene, proxy: FaultProxy) -> None:
    ids = scene.table.create()
    daemon = scene.started(**_KEPT)
    ids += scene.committed()
    before = len(proxy.seen)
    proxy.fault(answer(409), method="PUT", path=_MANIFEST)
    ids += scene.committed()
    puts = [one for one in proxy.seen[before:] if one.method == "PUT" and "_versions/" in one.path]
    assert [one.fault for one in puts] == ["409", None]
    assert puts[0].path == puts[1].path
    names = {one.path for one in proxy.seen[before:] if "_transactions/" in one.path}
    assert len(names) == 1, "it was built anew, with another uuid"
    assert daemon.metric("committerd_unknown_outcomes_settled_total", result="created") == 1
    scene.audit(ids)


def test_a_conflict_with_our_own_earlier_put_is_found_to_be_ours(scene: Scene, proxy: FaultProxy) -> None:
    ids = scene.table.create()
    daemon = scene.started(**_KEPT)
    ids += scene.committed()
    for status in (409, 412):
        before = len(proxy.seen)
        proxy.fault(answer(status, applied=True), method="PUT", path=_MANIFEST)
        ids += scene.committed()
        puts = [one for one in proxy.seen[before:] if one.method == "PUT" and "_versions/" in one.path]
        assert [one.fault for one in puts] == [f"{status}_applied"]
    assert daemon.metric("committerd_unknown_outcomes_settled_total", result="ours") == 1
    scene.audit(ids)


def test_a_lost_answer_that_is_given_up_for_a_refusal_to_run_counts_as_open_no_longer(
    scene: Scene, proxy: FaultProxy
) -> None:
    scene.table.create()
    daemon = scene.started(**_KEPT)
    scene.committed()
    proxy.fault(DROP_REQUEST, method="PUT", path=_MANIFEST, times=None)
    scene.append()
    until(lambda: daemon.metric("committerd_unknown_outcomes_total") == 1)
    assert daemon.metric("committerd_unknown_outcomes_settled_total") == 0
    scene.topics.recreate_staged()
    daemon.wait_refused("topic_id")
    assert daemon.metric("committerd_unknown_outcomes_total") == 1
    assert daemon.metric("committerd_unknown_outcomes_settled_total", result="started_again") == 1


def test_a_refusal_without_cause_is_started_over(scene: Scene, proxy: FaultProxy) -> None:
    ids = scene.table.create()
    scene.started(**_KEPT)
    ids += scene.committed()
    proxy.fault(answer(412), method="PUT", path=_MANIFEST)
    ids += scene.committed()
    scene.audit(ids)


def test_start_reads_each_version_with_two_requests_at_most(scene: Scene, proxy: FaultProxy) -> None:
    ids = scene.table.create()
    daemon = scene.started(**_KEPT, COMMIT__COALESCE="none")
    ids += scene.committed(70)
    daemon.stop()
    before = len(proxy.seen)
    scene.started(**_KEPT, STORE__PROBE="false")
    requests = Counter(kinds(proxy.seen[before:]))
    assert requests["GET list-type"] == 1
    assert requests["GET _versions"] <= 2 * 72
    assert requests["GET _transactions"] == 1, "whether the newest lacks its transaction file"
    assert sum(requests.values()) == requests["GET list-type"] + requests["GET _versions"] + 1
    scene.audit(ids)
