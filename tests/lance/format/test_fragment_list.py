"""Fragments as bytes: the same bytes as protobuf's, shared between versions, decoded only where needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from committerd.errors import CorruptTable
from committerd.lance.format import fragment_list
from committerd.lance.format.fragment_list import (
    NO_FRAGMENTS,
    Chunk,
    FragmentList,
    Outlines,
    cut,
    fragments_range,
    outline_of,
    pack,
    pack_fragments,
    skim,
    unpack,
)
from committerd.lance.format.manifest_file import (
    Body,
    ManifestFile,
    assemble,
    decode,
    encode,
    examine,
    indices_of,
    skim_manifest,
    skim_outline,
)
from committerd_common.messages import (
    DataFile,
    DataFragment,
    DecodeError,
    DeletionFile,
    Field,
    IndexMetadata,
    IndexSection,
    Manifest,
    PackedManifest,
    SizedManifest,
    Transaction,
)
from tests.lance.format.golden_tables import every_version, manifest_bytes
from tests.lance.format.messages_strategy import fragments, indices, manifests, transactions

OVERLAYS = b"\x5a\x00"  # number 11, no bytes
FEW = st.lists(fragments, max_size=6)


def plain(number: int, *, rows: int = 10, path: str = "") -> DataFragment:
    file = DataFile(path=path or f"{number}.lance", fields=[0, 1], file_size_bytes=100 + number)
    return DataFragment(id=number, physical_rows=rows, files=[file])


def deleting(number: int, *, rows: int = 10) -> DataFragment:
    made = plain(number, rows=rows)
    made.deletion_file.CopyFrom(DeletionFile(id=7, num_deleted_rows=1))
    return made


def listed(*ids: int) -> FragmentList:
    """A list with each fragment in a chunk of its own."""
    return FragmentList(chunk_of(plain(one)) for one in ids)


def chunk_of(*made: DataFragment) -> Chunk:
    return Chunk(Manifest(fragments=made).SerializeToString(), len(made))


def ids_of(made: FragmentList) -> list[int]:
    return [one.id for one in made]


def in_chunks(made: list[DataFragment], sizes: list[int]) -> FragmentList:
    """The fragments in chunks of about these sizes."""
    chunks, start = [], 0
    for size in sizes:
        if made[start : start + size]:
            chunks.append(chunk_of(*made[start : start + size]))
        start += size
    return FragmentList([*chunks, *(chunk_of(one) for one in made[start:])])


class TestBytes:
    @settings(deadline=None)
    @given(manifests, FEW, st.lists(st.integers(1, 3), max_size=3), st.lists(indices, max_size=2), transactions)
    def test_of_a_version_are_those_that_protobuf_writes_of_all_in_one_message(
        self,
        manifest: Manifest,
        kept: list[DataFragment],
        sizes: list[int],
        section: list[IndexMetadata],
        transaction: Transaction,
    ) -> None:
        whole = Manifest()
        whole.CopyFrom(manifest)
        del whole.fragments[:]
        whole.fragments.extend([*kept, *manifest.fragments])
        joined = assemble(manifest, in_chunks(kept, sizes), IndexSection(indices=section), transaction)
        assert bytes(joined) == encode(whole, section, transaction)
        file = decode(bytes(joined))
        placed = file.manifest
        assert placed.SerializeToString(deterministic=True) in bytes(joined)
        assert list(placed.fragments) == [*kept, *manifest.fragments]

    @settings(deadline=None)
    @given(manifests)
    def test_make_the_whole_manifest_again(self, manifest: Manifest) -> None:
        body = manifest.SerializeToString(deterministic=True)
        outline, found = unpack(body)
        assert not outline.fragments
        assert (list(found), len(found)) == (list(manifest.fragments), len(manifest.fragments))
        assert (outline, found) == pack(manifest)
        assert b"".join(found.bodies()) == Manifest(fragments=manifest.fragments).SerializeToString()
        file = ManifestFile(
            outline=outline, fragments=found, index_section=IndexSection(), transaction=None, transaction_bytes=None
        )
        assert file.manifest.SerializeToString(deterministic=True) == body

    @pytest.mark.parametrize("version", every_version())
    def test_of_pylance_stay_as_they_are(self, version: tuple[str, str, int]) -> None:
        body = manifest_bytes(*version)
        start = int.from_bytes(body[-16:-8], "little") + 4
        outline, found = unpack(body[start:-16])
        assert b"".join(found.bodies()) in body
        assert not found.facts.has_unknown_fields
        assert outline.version == version[2]

    def test_that_others_write_in_their_way_are_written_in_ours(self) -> None:
        made = plain(3)
        # Unpacked lists, the id last, and a redundant zero.
        foreign = b"\x12\x0d" + b"\x0a\x07" + b"3.lance" + b"\x10\x00\x10\x01" + b"\x20\x0a\x08\x03\x1a\x00"
        odd = Manifest(fragments=[DataFragment.FromString(foreign)])
        body = b"\x12" + bytes([len(foreign)]) + foreign
        _, found = unpack(body)
        assert b"".join(found.bodies()) == odd.SerializeToString() != body
        assert made.files[0].path == next(iter(found)).files[0].path

    def test_that_are_no_fragment_are_refused(self) -> None:
        with pytest.raises(DecodeError):
            unpack(b"\x12\x02\x12\x7f")
        with pytest.raises(DecodeError):
            unpack(b"\x12\x7f")

    def test_of_a_field_of_another_wire_type_are_left_to_the_outline(self) -> None:
        outline, found = unpack(b"\x10\x05\x18\x09")
        assert (len(found), outline.version) == (0, 9)
        assert outline.SerializeToString() == Manifest.FromString(b"\x10\x05\x18\x09").SerializeToString()

    def test_are_equal_however_they_lie_in_chunks(self) -> None:
        one, other = listed(1, 2, 3), FragmentList([chunk_of(plain(1), plain(2), plain(3))])
        assert one == other
        assert hash(one) == hash(other)
        assert one != listed(1, 2)
        assert one != [1, 2, 3]

    def test_of_a_large_version_are_in_chunks_of_about_the_same_size(self) -> None:
        many = [plain(number, path="x" * 100) for number in range(10_000)]
        _, found = unpack(Manifest(fragments=many).SerializeToString())
        sizes = [len(body) for body in found.bodies()]
        assert len(sizes) > 4
        assert max(sizes) < 1.1 * fragment_list.CHUNK_BYTES_MAX
        assert ids_of(found) == list(range(10_000))


class TestAdding:
    def test_shares_what_was_there(self) -> None:
        _, before = unpack(Manifest(fragments=[plain(one) for one in range(10_000)]).SerializeToString())
        after = before
        for number in range(10_000, 10_200):
            added = pack_fragments([plain(number)])
            after = after.with_added(added)
        assert ids_of(after) == list(range(10_200))
        assert set(before.chunks) <= set(after.chunks)
        assert len(after.chunks) - len(before.chunks) < 10
        assert after.facts == FragmentList(after.chunks).facts

    def test_copies_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        copied = 0
        together = Chunk.followed_by

        def counting(self: Chunk, other: Chunk) -> Chunk:
            nonlocal copied
            copied += len(self.body)
            return together(self, other)

        monkeypatch.setattr(Chunk, "followed_by", counting)
        made, size = NO_FRAGMENTS, 0
        for number in range(1000):
            added = pack_fragments([plain(number)])
            size += added.size
            made = made.with_added(added)
        assert made.size == size
        assert copied < 12 * size

    def test_nothing_changes_nothing(self) -> None:
        made = listed(1)
        assert made.with_added(NO_FRAGMENTS) is made
        assert (len(NO_FRAGMENTS), NO_FRAGMENTS.last_id, list(NO_FRAGMENTS)) == (0, -1, [])


class TestFacts:
    @settings(deadline=None)
    @given(st.lists(fragments, max_size=8), st.lists(st.integers(1, 3), max_size=3))
    def test_are_those_of_the_fragments(self, made: list[DataFragment], sizes: list[int]) -> None:
        facts = in_chunks(made, sizes).facts
        ids = [one.id for one in made]
        assert set(facts.ids) == set(ids)
        assert facts.ascending == (sorted(set(ids)) == ids)
        assert facts.has_deletions == any(one.HasField("deletion_file") for one in made)
        assert not facts.has_unknown_fields

    def test_know_of_fields_that_we_do_not(self) -> None:
        odd = DataFragment.FromString(plain(4).SerializeToString() + OVERLAYS)
        assert FragmentList([chunk_of(plain(1)), chunk_of(odd)]).facts.has_unknown_fields
        deep = plain(4)
        deep.files[0].MergeFromString(b"\xc2\x0c\x00")
        assert chunk_of(deep).facts.has_unknown_fields


class TestSamples:
    def test_are_one_of_each_kind(self) -> None:
        external = plain(5)
        external.external_row_ids.path = "r"
        based = plain(6)
        based.files[0].base_id = 0
        made = [
            plain(0),
            plain(1, rows=3),
            plain(2, rows=0),
            deleting(3),
            deleting(4, rows=3),
            external,
            based,
            plain(7),
        ]
        found = chunk_of(*made).samples()
        kinds = [
            (len(one.files), one.physical_rows > 0, one.HasField("deletion_file"), one.files[0].HasField("base_id"))
            for one in found
        ]
        assert len(found) == 6
        assert kinds.count((1, True, False, False)) == 2  # with row ids in a file, and without
        assert sorted(one.physical_rows for one in found if one.HasField("deletion_file")) == [3, 10]

    def test_are_not_kept_where_they_are_many(self) -> None:
        few, many = chunk_of(plain(0), plain(1)), chunk_of(*(deleting(one, rows=one) for one in range(20)))
        assert few.samples() is few.samples()
        assert len(many.samples()) == 20
        assert many.samples() is not many.samples()

    def test_decide_whether_all_are_looked_at(self) -> None:
        looked = []

        def without_rows(one: DataFragment) -> Iterator[int]:
            looked.append(one.id)
            if not one.physical_rows:
                yield one.id

        assert list(listed(1, 2).found(without_rows)) == []
        assert looked == [1, 2]
        made = FragmentList([chunk_of(plain(1), plain(2, rows=0), plain(3, rows=0), plain(4))])
        assert list(made.found(without_rows)) == [2, 3]


class TestParts:
    MADE = FragmentList([chunk_of(plain(1), plain(3)), chunk_of(plain(5)), chunk_of(plain(8), plain(9))])

    def test_are_found_by_their_ids(self) -> None:
        assert [one.id for one in self.MADE.of([9, 3, 4, 5])] == [3, 5, 9]
        assert self.MADE.of([]) == self.MADE.of([2**40]) == []

    def test_are_found_where_ids_do_not_ascend(self) -> None:
        made = FragmentList([chunk_of(plain(3), plain(1), plain(3))])
        assert [one.id for one in made.of([3])] == [3, 3]

    def test_are_taken_out_with_what_lies_around(self) -> None:
        rest, taken = self.MADE.without([2, 5])
        assert ids_of(rest) == [8, 9]
        assert [ids_of(FragmentList([chunk])) for chunk in taken] == [[1, 3], [5]]
        rest, taken = self.MADE.without([0, 4, 6, 10])
        assert rest is self.MADE
        assert not taken

    def test_of_a_manifest_are_all_that_rules_ask_for(self) -> None:
        outline = Manifest(version=4)
        file = ManifestFile(
            outline=outline, fragments=self.MADE, index_section=IndexSection(), transaction=None, transaction_bytes=None
        )
        assert file.part([]) is outline
        part = file.part([9, 77])
        assert (part.version, [one.id for one in part.fragments]) == (4, [9])


class TestPacking:
    def test_puts_new_ones_behind(self) -> None:
        kept = listed(1, 2)
        outline, own = pack(Manifest(version=3, fragments=[plain(4), plain(6)]))
        assert (outline, ids_of(own)) == (Manifest(version=3), [4, 6])
        assert ids_of(kept.with_added(own)) == [1, 2, 4, 6]

    def test_keeps_all_where_nothing_is_new(self) -> None:
        kept = listed(1, 2)
        assert kept.with_added(pack_fragments([])) is kept

    @settings(deadline=None)
    @given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
    def test_puts_others_between_and_before(self, own: set[int], kept: set[int]) -> None:
        rest, taken = listed(*sorted(kept)).without(sorted(own))
        mine = own | {one.id for chunk in taken for one in chunk.decoded().fragments}
        made = rest.with_added(pack_fragments(plain(one) for one in sorted(mine)))
        assert ids_of(made) == sorted(own | kept)
        assert (
            b"".join(made.bodies())
            == Manifest(fragments=[plain(one) for one in sorted(own | kept)]).SerializeToString()
        )


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=5), st.integers(0, 30))
def test_a_body_has_a_tail_without_being_joined(parts: list[bytes], size: int) -> None:
    joined = b"".join(parts)
    body = Body(parts)
    assert (len(body), bytes(body)) == (len(joined), joined)
    assert body.tail(size) == joined[max(0, len(joined) - size) :]


@settings(deadline=None)
@given(manifests)
def test_skimming_says_what_unpacking_says(manifest: Manifest) -> None:
    outline, kept = unpack(manifest.SerializeToString())
    skimmed = skim(manifest.SerializeToString())
    assert (skimmed.outline, skimmed.fragments) == (outline, len(kept))
    assert skimmed.data_bytes == sum(file.file_size_bytes for one in kept for file in one.files)


def test_skimming_decodes_some_fragments_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_list, "_DECODED_AT_ONCE", 2)
    skimmed = skim(Manifest(version=4, fragments=[plain(number) for number in range(5)]).SerializeToString())
    assert skimmed == (Manifest(version=4), 5, 510)


@pytest.mark.parametrize("version", every_version())
def test_skimming_an_object_says_what_decoding_it_says(version: tuple[str, str, int]) -> None:
    body = manifest_bytes(*version)
    file = decode(body)
    skimmed = skim_manifest(body, len(body))
    assert (skimmed.outline, skimmed.fragments) == (file.outline, len(file.fragments))
    assert skim_outline(body, len(body)) == file.outline


def test_an_object_that_is_damaged_is_not_skimmed() -> None:
    body = encode(Manifest(version=1), [], Transaction(uuid="u"))
    with pytest.raises(CorruptTable, match="can't be decoded"):
        skim_manifest(body[:-17] + b"\xff" + body[-16:], len(body))


def test_skimming_finds_a_damaged_fragment_whatever_is_asked_for() -> None:
    body = Manifest(version=1, fragments=[DataFragment(id=1, files=[DataFile(path="a")])]).SerializeToString()
    damaged = body.replace(b"\x01a", b"\x02a")
    for read in (skim, outline_of):
        with pytest.raises(DecodeError):
            read(damaged)


@settings(deadline=None)
@given(manifests, st.lists(st.integers(0, 6), max_size=5))
def test_the_outlines_of_a_history_are_those_of_its_versions(manifest: Manifest, counts: list[int]) -> None:
    outlines = Outlines()
    for count in counts:
        version = Manifest()
        version.CopyFrom(manifest)
        del version.fragments[count:]
        body = version.SerializeToString()
        assert outlines.outline_of(body) == outline_of(body)


def test_the_outlines_of_a_history_decode_fragments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, decode_sizes = list[int](), fragment_list._sized

    def counted(packed: PackedManifest) -> Iterator[SizedManifest]:
        decoded.append(len(packed.fragments))
        return decode_sizes(packed)

    monkeypatch.setattr(fragment_list, "_sized", counted)
    outlines, fields = Outlines(), [Field(name="id", logical_type="int64")]
    for version, count in enumerate((3, 3, 5, 2)):
        body = Manifest(version=version, fields=fields, fragments=map(plain, range(count))).SerializeToString()
        assert outlines.outline_of(body) == Manifest(version=version, fields=fields)
    assert decoded == [3, 0, 2, 2]


def test_fragments_of_a_large_manifest_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    outlines, body = Outlines(), Manifest(fragments=[plain(1)]).SerializeToString()
    monkeypatch.setattr(fragment_list, "CHUNK_BYTES_MAX", len(body) - 1)
    assert outlines.outline_of(body) == Manifest()
    monkeypatch.setattr(fragment_list, "_sized", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # decoded once more
        outlines.outline_of(body)


def test_a_damaged_fragment_behind_those_that_were_checked_is_found() -> None:
    outlines, good = Outlines(), Manifest(fragments=[plain(1)]).SerializeToString()
    assert outlines.outline_of(good) == Manifest()
    damaged = good + Manifest(fragments=[plain(2, path="a")]).SerializeToString().replace(b"\x01a", b"\x02a")
    for _ in range(2):
        with pytest.raises(DecodeError):
            outlines.outline_of(damaged)


@settings(deadline=None)
@given(manifests, st.integers(0, 4))
def test_the_fragments_of_a_manifest_lie_in_one_piece(manifest: Manifest, known: int) -> None:
    body, fragments = manifest.SerializeToString(), list(manifest.fragments)
    found = fragments_range(body, Manifest(fragments=fragments[:known]).SerializeToString())
    assert found is not None
    start, end = found
    assert body[start:end] == Manifest(fragments=fragments).SerializeToString()
    assert body[:start] == Manifest(fields=manifest.fields).SerializeToString()
    assert found == fragments_range(body) == fragments_range(body, b"something else")


def test_fragments_that_lie_apart_are_told() -> None:
    one, other = (Manifest(fragments=[plain(number)]).SerializeToString() for number in (1, 2))
    assert fragments_range(one + Manifest(version=3).SerializeToString() + other) is None


def test_fragments_of_which_the_last_is_cut_off_are_told() -> None:
    body = Manifest(version=3, fragments=[plain(1)]).SerializeToString()
    start, _ = fragments_range(body) or (0, 0)
    assert fragments_range(body[: start + 1] + b"\x7f" + body[start + 2 :]) is None


def test_fragments_are_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_list, "_DECODED_AT_ONCE", 2)
    fragments = [plain(number, path="p" * 50 * number) for number in range(5)]
    parts = list(cut(Manifest(fragments=fragments).SerializeToString()))
    assert [len(Manifest.FromString(part).fragments) for part in parts] == [2, 2, 1]
    assert [one for part in parts for one in Manifest.FromString(part).fragments] == fragments


@pytest.mark.parametrize("torn", [b"\x12", b"\x12\x80", b"\x12\x05ab"])
def test_fragments_that_are_torn_are_passed_over_without_end(torn: bytes) -> None:
    assert list(cut(torn)) == [torn]


@pytest.mark.parametrize("version", every_version())
def test_examining_an_object_says_what_decoding_it_says(version: tuple[str, str, int]) -> None:
    body = manifest_bytes(*version)
    file, found = decode(body), examine(body)
    assert (found.outline, found.transaction) == (file.outline, file.transaction)
    assert Manifest.FromString(found.fragments).fragments == file.manifest.fragments
    assert examine(body, found.fragments) == found
    assert indices_of(body, found.outline) == file.indices


def test_an_object_whose_fragments_lie_apart_is_examined_too() -> None:
    whole = Manifest(version=3, fragments=[plain(1), plain(2)])
    one, other = (Manifest(fragments=[one]).SerializeToString() for one in whole.fragments)
    apart = one + Manifest(version=3).SerializeToString() + other
    body = encode(whole, [], Transaction(uuid="u"))
    framed = len(apart).to_bytes(4, "little") + apart + bytes(8) + body[-8:]
    found = examine(framed)
    assert (found.outline, found.transaction) == (Manifest(version=3), None)
    assert found.fragments == one + other


@pytest.mark.parametrize("ids", [(1, 2, 5), (5, 1, 2), ()])
def test_fragments_come_newest_first_in_whatever_order_they_are_listed(ids: tuple[int, ...]) -> None:
    assert [one.id for one in listed(*ids).newest_first()] == sorted(ids, reverse=True)
