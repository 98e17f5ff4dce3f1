"""What the feed of change events keeps in memory while its topic does not take events."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from committerd.committer import change_feed
from committerd.committer.change_feed import ChangeFeed
from committerd.lance.format.fragment_list import FragmentList, pack_fragments
from committerd.lance.format.manifest_file import ManifestFile
from committerd.queue.change_event import EventSource
from committerd.telemetry import Metrics
from committerd_common.messages import DataFile, DataFragment, IndexSection, Manifest

NOTHING: Any = None


def version(number: int, fragments: FragmentList) -> ManifestFile:
    return ManifestFile(
        outline=Manifest(version=number),
        fragments=fragments,
        index_section=IndexSection(),
        transaction=None,
        transaction_bytes=b"t",
    )


def rewritten(number: int) -> FragmentList:
    """Over 4 MiB of fragments, each another one in each version."""
    file = DataFile(path="p" * 1024)
    return pack_fragments(DataFragment(id=id, files=[file], physical_rows=number) for id in range(4 * 1024))


def kept(files: Iterable[ManifestFile]) -> int:
    """Put these versions, the first of which is the head; returns how many of them are kept."""
    feed = ChangeFeed(
        NOTHING,
        EventSource(dataset="t", uri="/t"),
        new_table=NOTHING,
        telemetry=Metrics(CollectorRegistry()).of("t"),
        wall_clock=lambda: datetime(2026, 11, 27, tzinfo=UTC),
    )
    for place, file in enumerate(files):
        if place:
            feed.put(file)
        feed.reached(file)
    return len(feed._kept)


def test_versions_that_rewrite_their_fragments_do_not_pile_up() -> None:
    assert kept(version(number, rewritten(number)) for number in range(1, 7)) == 1


def test_versions_that_share_their_fragments_are_all_kept_up_to_a_number() -> None:
    fragments = rewritten(1)
    files = [version(1, fragments)]
    for number in range(2, 100):
        fragments = fragments.with_added(pack_fragments([DataFragment(id=4 * 1024 + number, physical_rows=1)]))
        files.append(version(number, fragments))
    assert kept(files) == change_feed._KEPT_MAX
