"""`position adopt` and `rewind`: the records that an operator's position passes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio
import pytest

from committerd.commands.system import sources
from committerd.committer.head import StartAgain
from committerd.committer.ledgers import lone_part
from committerd.committer.loading import Loaded, Loading, load
from committerd.committer.older_history import OlderHistory
from committerd.committer.operate import Situation, adopted, rewound, undecided_below, write
from committerd.committer.starting import require_same_log
from committerd.errors import RefusedToRun, SettingsError, StoreUnavailable
from committerd.lance.format.manifest_file import encode
from committerd.queue.ledger import Ledger
from committerd.queue.offsets import Offsets
from committerd.queue.outcomes import encode_settled
from committerd.queue.port import Acknowledged, Queue, Record, TopicIdentity
from committerd.queue.position import LostHistory, Pause, Position, encode_metadata, start_of
from committerd.queue.start import QueueFacts
from committerd.stores.local import LocalStore
from committerd.table.versions import Table
from committerd_common.messages import Manifest, Outcome, Transaction
from committerd_common.paths import TRANSACTIONS, NamingScheme, manifest_key
from tests.simulation.loop import run_virtual
from tests.simulation.staging import column
from tests.simulation.store import Bucket, FakeStore


def acknowledged(offset: int, *, era: int = 0) -> Acknowledged:
    return Acknowledged(offset=offset, metadata=json.dumps({"era": era}))


TOPIC = TopicIdentity(cluster_id="c", topic="events.staged", topic_id="i")
OTHER = replace(TOPIC, topic_id="another")
FACTS = QueueFacts(identity=TOPIC, log_start=10, log_end=100, group=acknowledged(50, era=0))


def outcomes(*offsets: int, era: int = 0) -> list[Outcome]:
    return [Outcome(offset=offset, era=era, topic_id=TOPIC.topic_id) for offset in offsets]


def situation(
    code: str,
    facts: QueueFacts,
    carried: Position | None = None,
    proven: Position | None = None,
    *,
    versions: tuple[int, int] = (0, 1),
) -> Situation:
    """`versions`: the newest one of the queue, and the latest."""
    loaded = Loaded(
        table=Table(LocalStore(Path("nowhere"))),
        read_at=0.0,
        version=versions[1],
        newest_ours=versions[0],
        ledger=Ledger(),
        older=OlderHistory(Table(LocalStore(Path("nowhere"))), (), part=lone_part(0)),
        position=carried,
    )
    refusal = RefusedToRun("refused", code=code) if code else None
    return Situation(loaded=loaded, facts=facts, refusal=refusal, proven=proven)


def proposed(code: str, facts: QueueFacts, carried: Position | None = None) -> tuple[int, tuple[int, ...], int]:
    position = adopted(situation(code, facts, carried), None)
    return position.next_offset, tuple(position.settled), position.era


def test_a_record_that_was_settled_ahead_does_not_pass_over_those_before_it() -> None:
    facts = replace(FACTS, group=acknowledged(50), outcomes=outcomes(48, 49, 50, 84))
    assert proposed("keys_missing", facts) == (51, (84,), 1)


def test_outcomes_tell_what_is_answered_where_all_are_read() -> None:
    facts = replace(FACTS, group=None, outcomes=outcomes(10, 11, 40))
    assert proposed("keys_missing", facts) == (12, (40,), 1)


def test_nothing_is_proposed_where_too_little_is_known() -> None:
    facts = replace(FACTS, group=None, outcomes=outcomes(80), outcomes_are_all=False)
    found = situation("keys_missing", facts)
    with pytest.raises(SettingsError, match="--offset"):
        adopted(found, None)
    assert undecided_below(found, 80) is None


def test_what_the_table_passes_is_answered() -> None:
    carried = replace(start_of(TOPIC, 60), settled=Offsets.of([62]))
    facts = replace(FACTS, group=acknowledged(50), outcomes=outcomes(60, 64))
    assert proposed("position_went_back", facts, carried) == (61, (62, 64), 1)


@pytest.mark.parametrize(
    ("carried", "start"),
    [(start_of(TOPIC, 20), 20), (start_of(TOPIC, 40), 30), (start_of(OTHER, 20), 30), (None, 30)],
    ids=["behind the table's position", "before it", "it is of another topic", "it has none"],
)
def test_a_rewound_position_names_what_the_table_may_have_lost(carried: Position | None, start: int) -> None:
    found = situation("position_went_back", FACTS, carried, versions=(7, 9))
    lost = LostHistory(kept=7, latest=9, start=start, end=100)
    assert rewound(found, 30) == replace(start_of(TOPIC, 30), era=1, lost=lost)


def test_of_two_losses_the_earlier_version_counts() -> None:
    for before, kept, latest in (((3, 5), 3, 5), ((8, 12), 7, 9)):
        lost = LostHistory(kept=before[0], latest=before[1], start=0, end=15)
        carried = replace(start_of(TOPIC, 20), era=1, lost=lost)
        found = situation("position_went_back", FACTS, carried, versions=(7, 9))
        assert rewound(found, 20).lost == LostHistory(kept=kept, latest=latest, start=20, end=100)


def test_records_that_waited_while_a_table_was_put_back_are_told_too() -> None:
    found = situation("position_went_back", FACTS, start_of(TOPIC, 20), versions=(7, 9))
    assert adopted(found, None).lost == LostHistory(kept=7, latest=9, start=50, end=100)
    assert adopted(found, 60).lost == LostHistory(kept=7, latest=9, start=60, end=100)


def test_what_is_given_up_later_is_forgotten_and_what_still_waits_is_not() -> None:
    lost = LostHistory(kept=3, latest=5, start=20, end=70)
    carried = replace(start_of(TOPIC, 50), era=1, lost=lost)
    for code, offset, start in (("", 60, 60), ("", 70, None), ("topic_id", 60, None), ("log_rewritten", 60, None)):
        kept = adopted(situation(code, FACTS, carried, versions=(7, 9)), offset).lost
        assert kept == (None if start is None else lost._replace(start=start))
    other = replace(start_of(OTHER, 50), lost=lost)
    assert adopted(situation("", FACTS, other), 60).lost is None
    assert adopted(situation("keys_missing", FACTS), 60).lost is None


def test_answers_of_an_earlier_era_prove_nothing() -> None:
    carried = replace(start_of(TOPIC, 20), era=1)
    facts = replace(FACTS, group=acknowledged(50), outcomes=[*outcomes(20, era=1), *outcomes(48, 49)])
    assert proposed("position_went_back", facts, carried) == (21, (), 2)


def test_what_was_settled_ahead_stays_settled_when_the_log_has_lost_records() -> None:
    carried = replace(start_of(TOPIC, 5), settled=Offsets.of((10, 30)))
    facts = replace(FACTS, group=acknowledged(5))
    assert proposed("position_below_log_start", facts, carried) == (11, (30,), 1)


@pytest.mark.parametrize("code", ["topic_id", "log_rewritten"])
def test_another_log_is_taken_on_from_its_start(code: str) -> None:
    found = situation(code, replace(FACTS, outcomes=outcomes(10)), start_of(TOPIC, 60))
    assert adopted(found, None) == replace(start_of(TOPIC, 10), era=1)
    assert undecided_below(found, 25) == 15


@pytest.mark.parametrize("code", ["position_beyond_end", "log_rewritten"])
@pytest.mark.parametrize(
    ("last", "carried", "next_offset", "settled"),
    [
        (None, replace(start_of(TOPIC, 120), settled=Offsets.of([130])), 10, ()),
        (5, start_of(TOPIC, 120), 10, ()),
        (59, replace(start_of(TOPIC, 120), settled=Offsets.of([130])), 60, ()),
        (59, replace(start_of(TOPIC, 50), settled=Offsets.of([52, 59, 60, 70])), 50, (52, 59)),
        (99, start_of(TOPIC, 120), 100, ()),
    ],
    ids=[
        "nothing is proven",
        "what retention deleted",
        "a part is proven",
        "a part was settled ahead",
        "all is proven",
    ],
)
def test_a_log_that_lost_its_end_is_taken_on_where_it_is_proven_unchanged(
    code: str, last: int | None, carried: Position, next_offset: int, settled: tuple[int, ...]
) -> None:
    proven = None if last is None else replace(start_of(TOPIC, 40), last_offset=last, last_sha256="ab", leader_epoch=3)
    found = situation(code, replace(FACTS, outcomes=outcomes(60, 84)), carried, proven)
    expected = replace(start_of(TOPIC, next_offset), settled=Offsets.of(settled), era=1)
    assert adopted(found, None) == (expected if proven is None else expected.proven_by(proven))
    assert undecided_below(found, 100) == 100 - next_offset - len(settled)


SETTLED = replace(start_of(TOPIC, 60), last_offset=59, last_sha256="00" * 32)


class RewrittenLog:
    """The part of a queue that is read here: its log has another record than the table settled."""

    def __init__(self, identity: TopicIdentity) -> None:
        self._identity = identity

    async def identity(self) -> TopicIdentity:
        return self._identity

    async def read(self, start: int, end: int) -> list[Record]:
        return [Record(offset=offset, value=b"another record") for offset in range(start, end)]


@pytest.mark.parametrize(
    ("identity", "error"),
    [(TOPIC, RefusedToRun), (replace(TOPIC, topic_id="made again"), StartAgain)],
    ids=["the same topic", "a topic that was recreated"],
)
async def test_a_log_is_called_rewritten_only_if_it_is_still_the_same_topic(
    identity: TopicIdentity, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await require_same_log(cast(Queue, RewrittenLog(identity)), SETTLED, FACTS)


async def test_a_log_that_no_longer_has_the_record_before_the_position_is_not_read() -> None:
    await require_same_log(cast(Queue, RewrittenLog(TOPIC)), SETTLED, replace(FACTS, log_start=60))


def test_an_operator_who_asks_for_more_is_told_how_many_records_that_skips() -> None:
    found = situation("keys_missing", replace(FACTS, outcomes=outcomes(50, 84)))
    assert adopted(found, 90) == replace(start_of(TOPIC, 90), era=1)
    assert undecided_below(found, 90) == 90 - 51 - 1
    assert undecided_below(found, 51) == 0
    assert undecided_below(found, 20) == 0


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_outside_the_log_is_refused(offset: int) -> None:
    with pytest.raises(SettingsError, match="outside the log"):
        adopted(situation("keys_missing", FACTS), offset)


def test_without_a_refusal_the_offset_must_be_said() -> None:
    with pytest.raises(SettingsError, match="--offset"):
        adopted(situation("", FACTS), None)


class _Hiccups(FakeStore):
    """Fails to write each transaction file twice, and to read it twice."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.failures: Counter[str] = Counter()

    def _fail(self, what: str, key: str) -> None:
        if key.startswith(TRANSACTIONS) and self.failures[what] < 2:
            self.failures[what] += 1
            raise StoreUnavailable("the store is away")

    async def get(self, key: str) -> bytes | None:
        self._fail("get", key)
        return await super().get(key)

    async def put(self, key: str, body: bytes) -> None:
        self._fail("put", key)
        await super().put(key, body)


def test_a_version_that_is_in_the_table_is_no_error_and_gets_its_transaction_file_and_that_of_the_one_before() -> None:
    bucket = Bucket()
    manifest = Manifest(version=1, fields=[column()], table_metadata=encode_metadata(start_of(TOPIC, 0), {}))
    manifest.writer_version.library, manifest.writer_version.version = "lance", "14.0.2"
    manifest.data_format.file_format, manifest.data_format.version = "lance", "2.0"
    manifest.transaction_file = "0-u1.txn"
    transaction = Transaction(uuid="u1")
    transaction.append.SetInParent()
    transaction.transaction_properties.update(encode_settled((), (), topic_id=TOPIC.topic_id))
    bucket.put(manifest_key(1, NamingScheme.V2), encode(manifest, (), transaction))
    store = _Hiccups(bucket)

    async def pause() -> int:
        loading = Loading(monotonic=anyio.current_time, later=True)
        loaded = await load(Table(store), loading)
        return await write(
            loaded,
            loading,
            sources(),
            new_position=None,
            change_pause=lambda _: Pause(reason="a backup", since_ms=0),
            reason="a backup",
        )

    assert run_virtual(pause) == 2
    assert store.failures == {"get": 2, "put": 2}
    assert len([key for key in bucket.objects if key.startswith(TRANSACTIONS)]) == 2
