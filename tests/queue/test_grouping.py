"""The records that share a version, and that version's queue entries."""

from __future__ import annotations

import pytest

from committerd.lance.conflicts import key_filter
from committerd.lance.conflicts.key_filter import appended_keys, encoded_keys
from committerd.lance.transactions.transaction import reserved_range
from committerd.queue.dedupe import Refused
from committerd.queue.grouping import (
    GroupLimits,
    Weight,
    appends_together,
    configs_together,
    joins,
    mark_of,
    member_of,
    position_only,
    refusal_of,
    with_entries,
    work_of,
    work_of_version,
)
from committerd.queue.outcomes import REASON_KEY, Status, decode_settled
from committerd.queue.port import TopicIdentity
from committerd.queue.position import AppMark, Pause, decode_marks, decode_pause, decode_position, start_of
from committerd.queue.rounds import Coalesce
from committerd_common.messages import INVALID, DataFragment, Manifest, Refusal, Transaction
from committerd_common.own_properties import BLAKE2B_8, KEY_HASH, KEYS
from committerd_common.request import AppUnit, Envelope, Request
from tests.lance.samples import updates

POSITION = start_of(TopicIdentity(cluster_id="c", topic="t.staged", topic_id="i"), 3)


def append(uuid: str = "a", *, fragments: int = 1, tag: str = "", read_version: int = 4) -> Transaction:
    transaction = Transaction(uuid=uuid, read_version=read_version, tag=tag)
    transaction.append.fragments.extend(DataFragment(id=0, physical_rows=n + 1) for n in range(fragments))
    return transaction


def delete() -> Transaction:
    transaction = Transaction(uuid="d", read_version=4)
    transaction.delete.SetInParent()
    return transaction


def request(transaction: Transaction, *, offset: int = 3, size: int = 10, envelope: Envelope | None = None) -> Request:
    return Request(offset=offset, envelope=envelope or Envelope(), transaction=transaction, size=size)


LIMITS = GroupLimits(records=3, bytes=35, fragments=4)


def weight(*requests: Request, limits: GroupLimits = LIMITS, shares: bool = True, more_bytes: int = 0) -> Weight:
    total = Weight()
    for one in requests:
        total.add(one, limits, shares=shares, more_bytes=more_bytes)
    return total


def config(**entries: str) -> Transaction:
    return Transaction(
        uuid="c", read_version=4, update_config=Transaction.UpdateConfig(config_updates=updates({**entries}))
    )


def test_only_records_of_one_part_share_a_version() -> None:
    one = weight(request(append()))
    assert joins(request(append("b")), one, LIMITS)
    assert not joins(request(delete()), one, LIMITS)
    assert not joins(request(append("b", tag="v1")), one, LIMITS)
    assert not joins(request(append("b")), weight(request(delete())), LIMITS)
    assert joins(request(delete()), weight(request(delete())), LIMITS)
    assert not joins(request(delete()), weight(request(delete()), shares=False), LIMITS)
    assert not joins(request(delete()), weight(request(delete()), more_bytes=20), LIMITS)


def test_configurations_share_a_version_where_they_change_other_keys() -> None:
    one = weight(request(config(a="1")))
    assert joins(request(config(b="1")), one, LIMITS)
    assert not joins(request(config(a="2")), one, LIMITS)


def test_the_first_request_always_joins_however_large() -> None:
    assert joins(request(append(fragments=99), size=10**9), weight(), LIMITS)


@pytest.mark.parametrize(("limits", "full"), [(LIMITS, 3), (GroupLimits(coalesce=Coalesce.NONE), 1)])
def test_so_many_records_fill_a_version(limits: GroupLimits, full: int) -> None:
    assert limits.full == full


@pytest.mark.parametrize(
    ("limits", "mates"),
    [
        (GroupLimits(records=2), 2),
        (GroupLimits(bytes=29), 2),
        (GroupLimits(fragments=2), 2),
        (GroupLimits(coalesce=Coalesce.NONE), 1),
    ],
)
def test_bounds_end_a_group(limits: GroupLimits, mates: int) -> None:
    total = weight(*(request(append(str(n))) for n in range(mates)), limits=limits)
    assert not joins(request(append("x")), total, limits)


def test_a_version_of_a_large_table_is_the_work_of_many_records() -> None:
    assert work_of_version(0) == work_of_version(100) == 0
    assert 500 < work_of_version(500_000) < 1_000


def test_a_record_with_many_files_is_the_work_of_several() -> None:
    one, many = append(), append(fragments=30)
    assert [work_of(one), work_of(config(a="1")), work_of(many)] == [1, 1, 7]
    changed = Transaction(update=Transaction.Update(new_fragments=many.append.fragments))
    changed.update.updated_fragments.extend(many.append.fragments)
    assert work_of(changed) == 13
    assert weight(request(one), request(many)).work == 8


def test_a_version_of_several_keeps_uuids_and_properties_of_each() -> None:
    one, two = append("a", fragments=2, read_version=9), append("b", read_version=4)
    one.transaction_properties["note"] = "first"
    members = [member_of(request(t, offset=n), shared=True) for n, t in enumerate((one, two))]
    transaction = with_entries(appends_together([one, two]), members, [], uuid="group", topic_id="i")
    assert (transaction.uuid, transaction.read_version) == ("group", 4)
    assert [f.physical_rows for f in transaction.append.fragments] == [1, 2, 1]
    settled = decode_settled(transaction, version=10)
    assert [m.uuid for m in settled.members] == ["a", "b"]
    assert dict(settled.members[0].properties) == {"note": "first"}
    assert [m.read_version for m in settled.members] == [9, 4]
    assert [m.operation for m in settled.members] == ["append", "append"]


def naming_keys(*hashes: int, uuid: str = "a", field: int = 0) -> Transaction:
    made = append(uuid)
    keys = Transaction.KeyExistenceFilter(field_ids=[field], exact=Transaction.ExactKeySetFilter(key_hashes=hashes))
    made.transaction_properties.update({KEYS: encoded_keys(keys), KEY_HASH: BLAKE2B_8})
    return made


def test_appends_together_name_the_keys_of_all() -> None:
    together = appends_together([naming_keys(5, 1), naming_keys(5, 9), naming_keys()])
    keys = appended_keys(together)
    assert keys is not None
    assert keys.exact == frozenset({1, 5, 9})
    assert together.transaction_properties[KEY_HASH] == BLAKE2B_8
    member = member_of(request(naming_keys(5)), shared=True)
    assert not member.properties


def of_another_hash() -> Transaction:
    made = naming_keys(2)
    made.transaction_properties[KEY_HASH] = "sha256-8"
    return made


@pytest.mark.parametrize("other", [append("b"), naming_keys(1, field=2), of_another_hash()])
def test_appends_together_name_no_keys_if_one_names_none_or_those_of_other_columns(other: Transaction) -> None:
    assert not appends_together([naming_keys(1), other]).transaction_properties
    assert not appends_together([other, naming_keys(1)]).transaction_properties


def test_too_many_keys_together_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "KEYS_MAX", 2)
    assert not appends_together([naming_keys(1, 2), naming_keys(3)]).transaction_properties


def test_configurations_of_very_many_keys_stay_apart() -> None:
    weight = Weight()
    weight.add(request(config(**{f"a{n}": "1" for n in range(1500)})), GroupLimits())
    assert joins(request(config(**{f"b{n}": "1" for n in range(500)})), weight, GroupLimits())
    assert not joins(request(config(**{f"b{n}": "1" for n in range(501)})), weight, GroupLimits())


def test_configurations_together_have_all_entries() -> None:
    one, two = config(a="1"), config(b="2")
    two.update_config.table_metadata_updates.CopyFrom(updates({"t": None}))
    two.read_version = 3
    made = configs_together([one, two, Transaction(read_version=9, update_config=Transaction.UpdateConfig())])
    assert made.read_version == 3
    assert made.update_config.config_updates == updates({"a": "1", "b": "2"})
    assert made.update_config.table_metadata_updates == updates({"t": None})


def test_a_version_of_one_is_what_was_staged_with_our_properties() -> None:
    staged = append("a")
    staged.transaction_properties["note"] = "mine"
    before = staged.SerializeToString(deterministic=True)
    member = member_of(request(staged), shared=False)
    transaction = with_entries(staged, [member], [], topic_id="i")
    assert staged.SerializeToString(deterministic=True) == before
    assert (transaction.uuid, transaction.transaction_properties["note"]) == ("a", "mine")
    assert not member.properties
    assert transaction.append == staged.append


def test_refusals_alone_are_an_update_of_our_own_keys() -> None:
    marks = {"spark": AppMark(run="q", version=1, uuid="u", table_version=2, used_ms=3)}
    refusals = [Refusal(offset=3, uuid="x", status=INVALID)]
    pause = Pause(reason="a backup", since_ms=1)
    transaction = position_only(POSITION, marks, refusals, read_version=6, uuid="p", reason="by hand", pause=pause)
    entries = {e.key: e.value for e in transaction.update_config.table_metadata_updates.update_entries}
    assert decode_position(entries) == POSITION
    assert decode_marks(entries) == marks
    assert decode_pause(entries) == pause
    assert not transaction.update_config.table_metadata_updates.replace
    assert list(decode_settled(transaction, version=7).refusals) == refusals
    assert transaction.transaction_properties[REASON_KEY] == "by hand"
    assert REASON_KEY not in position_only(POSITION, {}, read_version=6, uuid="p").transaction_properties


def test_a_member_remembers_who_asked_and_for_which_unit_of_work() -> None:
    envelope = Envelope(
        producer="p", app=AppUnit(app_id="spark", version=5, run="q"), outcome_partition=3, traceparent="t"
    )
    member = member_of(request(append(), envelope=envelope), shared=False, reserved=(7, 2))
    assert (member.app_id, member.app_version, member.app_run) == ("spark", 5, "q")
    assert not member.HasField("app_after")
    assert (member.producer, member.outcome_partition, member.traceparent) == ("p", 3, "t")
    assert (member.reserved_first, member.reserved_count) == (7, 2)
    following = Envelope(app=AppUnit(app_id="ingest", version=5, after=0))
    member = member_of(request(append(), envelope=following), shared=False)
    assert (member.HasField("app_after"), member.app_after) == (True, 0)


def test_a_refusal_remembers_what_can_be_known_of_a_record() -> None:
    why = Refused(status=Status.INVALID, reason="record_undecodable", message="m")
    bare = refusal_of(why, offset=9, envelope=Envelope(producer="p"), transaction=None)
    assert (bare.uuid, bare.operation, bare.offset, bare.status) == ("", "", 9, INVALID)
    known = refusal_of(why, offset=9, envelope=Envelope(), transaction=append("a"))
    assert (known.uuid, known.operation, known.read_version) == ("a", "append", 4)
    assert refusal_of(why, offset=9, envelope=Envelope(), transaction=Transaction(uuid="a")).operation == ""


def test_committing_a_unit_of_work_moves_its_mark_and_keeps_its_life() -> None:
    envelope = Envelope(app=AppUnit(app_id="spark", version=5, run="q"))
    assert mark_of(request(append()), {}, version=8, used_ms=1) == {}
    before = {"spark": AppMark(run="", version=-1, uuid="u", table_version=2, used_ms=0, life=4)}
    moved = mark_of(request(append("a"), envelope=envelope), before, version=8, used_ms=9, era=2)
    assert moved == {
        "spark": AppMark(run="q", version=5, uuid="a", table_version=8, used_ms=9, life=4, era=2, offset=3)
    }
    assert mark_of(request(append("a"), envelope=envelope), {}, version=8, used_ms=9)["spark"].life == 0


def test_a_reservation_learns_its_range_from_the_latest_version() -> None:
    reserve = Transaction(uuid="r")
    reserve.reserve_fragments.num_fragments = 3
    assert reserved_range(Manifest(max_fragment_id=6), reserve) == (7, 3)
    assert reserved_range(Manifest(), reserve) == (1, 3)
    assert reserved_range(None, reserve) == (0, 0)
    assert reserved_range(Manifest(), append()) == (0, 0)
    assert reserved_range(Manifest(), Transaction()) == (0, 0)
