"""Transactions that are refused before anything is read, and those that do not fit the table."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from pyroaring import BitMap

from committerd.errors import InvalidRequest, RequestError, UnsupportedRequest
from committerd.lance.conflicts.key_filter import KEYS_MAX, encoded_keys
from committerd.lance.format.bounds import FIELDS_MAX
from committerd.lance.format.data_file import FileFacts
from committerd.lance.format.feature_flags import FeatureFlag
from committerd.lance.format.kind import Kind
from committerd.lance.format.table_schema import TableSchema
from committerd.lance.operations.permissions import ALL_OPERATIONS, ANYTHING, DEFAULT_OPERATIONS, Permissions
from committerd.lance.transactions.fit import require_files_as_described, require_fits, schema_after
from committerd.lance.transactions.transaction import excerpt, operation_of, staged_files
from committerd.lance.transactions.validation import require_valid, require_valid_outside
from committerd.lance.versions.draft import CreateOptions
from committerd_common.index_details import pack_details
from committerd_common.messages import (
    BasePath,
    DataFragment,
    DeletionFile,
    ExternalFile,
    IndexCatchupProgress,
    Manifest,
    MemWalIndexDetails,
    MergedGeneration,
    Transaction,
)
from committerd_common.own_properties import BY_KEY, CHANGES, CHANGES_MAX, EMPTIED, IN_ORDER, KEYS, MERGE, ROWS
from tests.lance import samples
from tests.lance.operations import create_index, delete, replacement, rewrite, update
from tests.lance.samples import fragment, index, transaction, updates


def refusal(staged: Transaction, *, latest: int = 5, allowed: Permissions = ANYTHING) -> str:
    """The code of the refusal, which must have a message; empty if the transaction is valid."""
    try:
        require_valid(operation_of(staged), staged, staged_files(staged), latest_version=latest, allowed=allowed)
    except RequestError as error:
        return error.code if len(str(error)) > 20 else str(error)
    return ""


def appending(made: DataFragment) -> Transaction:
    return transaction(append=Transaction.Append(fragments=[made]))


def config(**changes: object) -> Transaction:
    return transaction(update_config=Transaction.UpdateConfig(**changes))  # type: ignore[arg-type]


def reserving(number: int) -> Transaction:
    return transaction(reserve_fragments=Transaction.ReserveFragments(num_fragments=number))


def with_path(path: str) -> Transaction:
    staged = appending(fragment(0))
    staged.append.fragments[0].files[0].path = path
    return staged


@pytest.mark.parametrize("kind", Kind)
def test_a_valid_transaction_passes(kind: Kind) -> None:
    staged = transaction()
    getattr(staged, kind).SetInParent()
    if kind is Kind.CLONE:
        staged.clone.ref_path = "/t"
    assert operation_of(staged).kind is kind
    assert not refusal(staged)


class TestOperation:
    def test_there_must_be_one(self) -> None:
        with pytest.raises(InvalidRequest, match="no operation"):
            operation_of(transaction())

    @pytest.mark.parametrize(
        ("number", "code"), [(200, "blob_operation"), (202, "blob_operation"), (115, "unknown_operation")]
    )
    def test_one_that_we_do_not_commit(self, number: int, code: str) -> None:
        tag = number << 3 | 2
        body = transaction().SerializeToString() + bytes([tag & 0x7F | 0x80, tag >> 7, 0])
        staged = Transaction.FromString(body)
        with pytest.raises(UnsupportedRequest) as error:
            operation_of(staged)
        assert error.value.code == code
        assert str(number) in str(error.value)

    def test_with_fields_that_we_do_not_know(self) -> None:
        append = Transaction.Append.FromString(b"\xf8\x01\x01")
        assert refusal(transaction(append=append)) == "unknown_fields"

    def test_that_the_operator_does_not_allow(self) -> None:
        clone = transaction(clone=Transaction.Clone(ref_path="/t"))
        assert refusal(clone, allowed=Permissions()) == "operation_not_allowed"
        assert ALL_OPERATIONS - {Kind.CLONE, Kind.UPDATE_BASES} == DEFAULT_OPERATIONS

    def test_that_the_operator_does_not_allow_to_its_producer(self) -> None:
        table = Permissions(operations=frozenset({Kind.APPEND, Kind.OVERWRITE}))
        loader = table.of("loader", {"append", "delete"})
        assert loader.operations == {Kind.APPEND}
        assert refusal(appending(fragment(0)), allowed=loader) == ""
        overwrite = transaction(overwrite=Transaction.Overwrite())
        for allowed, may in ((loader, "append"), (table.of("loader", ()), "nothing")):
            assert refusal(overwrite, allowed=allowed) == "operation_not_allowed"
            with pytest.raises(UnsupportedRequest, match=f"not allowed to producer 'loader'; it may stage {may}"):
                require_valid(
                    operation_of(overwrite), overwrite, staged_files(overwrite), latest_version=5, allowed=allowed
                )


@pytest.mark.parametrize("uuid", ["", "x", samples.TRANSACTION_UUID.upper(), samples.TRANSACTION_UUID.replace("-", "")])
def test_the_uuid_is_canonical(uuid: str) -> None:
    assert refusal(transaction(uuid=uuid, append=Transaction.Append())) == "uuid_invalid"


class TestReadVersion:
    def test_0_is_for_what_needs_no_version(self) -> None:
        for kind in Kind:
            staged = transaction(read_version=0)
            getattr(staged, kind).SetInParent()
            staged.clone.ref_path = "/t" if kind is Kind.CLONE else ""
            getattr(staged, kind).SetInParent()
            wanted = "" if kind in (Kind.APPEND, Kind.OVERWRITE, Kind.CLONE) else "read_version_missing"
            assert refusal(staged) == wanted

    def test_is_not_in_the_future(self) -> None:
        assert refusal(transaction(read_version=6, append=Transaction.Append())) == "future_read_version"
        assert (
            refusal(transaction(read_version=1, overwrite=Transaction.Overwrite()), latest=0) == "future_read_version"
        )
        clone = transaction(read_version=9, clone=Transaction.Clone(ref_path="/t"))
        assert refusal(clone, latest=0) == ""

    def test_is_not_detached(self) -> None:
        assert refusal(transaction(read_version=1 << 63, append=Transaction.Append())) == "detached_read_version"


def naming(keys: str) -> Transaction:
    return transaction(append=Transaction.Append(), transaction_properties={KEYS: keys})


def keys_of(count: int) -> Transaction.KeyExistenceFilter:
    exact = Transaction.ExactKeySetFilter(key_hashes=range(count))
    return Transaction.KeyExistenceFilter(field_ids=[0], exact=exact)


@pytest.mark.parametrize(
    "staged",
    [
        transaction(append=Transaction.Append(), transaction_properties={"committerd.members": "x"}),
        transaction(overwrite=Transaction.Overwrite(config_upsert_values={"committerd.x": "1"})),
        transaction(append=Transaction.Append(), transaction_properties={ROWS: IN_ORDER}),
        transaction(rewrite=Transaction.Rewrite(), transaction_properties={ROWS: "by-id"}),
        naming("no base64!"),
        naming(b64encode(b"\xff").decode()),
        naming(encoded_keys(Transaction.KeyExistenceFilter(exact=Transaction.ExactKeySetFilter(key_hashes=[1])))),
        naming(encoded_keys(Transaction.KeyExistenceFilter(field_ids=[0], bloom=Transaction.BloomFilter()))),
        naming(encoded_keys(keys_of(KEYS_MAX + 1))),
        transaction(rewrite=Transaction.Rewrite(), transaction_properties={EMPTIED: "1"}),
        transaction(update=Transaction.Update(), transaction_properties={MERGE: ""}),
        *(
            transaction(update=Transaction.Update(), transaction_properties={CHANGES: text})
            for text in ("-1", "1,", "1, 2", "x", "1234567890", "\u0661", ",".join(["1"] * (CHANGES_MAX + 1)))
        ),
        transaction(delete=Transaction.Delete(), transaction_properties={CHANGES: ""}),
        config(config_updates=updates({"committerd.x": None})),
        config(table_metadata_updates=updates({"committerd.position": "{}"})),
        config(schema_metadata_updates=updates({"committerd.x": "1"})),
    ],
)
def test_keys_of_the_queue_are_reserved(staged: Transaction) -> None:
    assert refusal(staged) == "reserved_key"


@pytest.mark.parametrize(
    "staged",
    [
        transaction(rewrite=Transaction.Rewrite(), transaction_properties={ROWS: IN_ORDER}),
        transaction(update=Transaction.Update(), transaction_properties={MERGE: BY_KEY}),
        transaction(update=Transaction.Update(), transaction_properties={CHANGES: ""}),
        transaction(update=Transaction.Update(), transaction_properties={CHANGES: "0,123456789"}),
        naming(encoded_keys(keys_of(KEYS_MAX))),
    ],
)
def test_producers_may_say_what_the_queue_can_not_see(staged: Transaction) -> None:
    assert refusal(staged) == ""


@pytest.mark.parametrize(
    "field",
    [
        lambda update: update.fields_modified,
        lambda update: update.fields_for_preserving_frag_bitmap,
        lambda update: update.inserted_rows.field_ids,
    ],
)
def test_an_update_lists_no_more_fields_than_a_table_may_have(field: Callable[[Transaction.Update], Any]) -> None:
    staged = transaction(update=Transaction.Update())
    field(staged.update).extend(range(FIELDS_MAX))
    assert refusal(staged) == ""
    field(staged.update).append(1)
    assert refusal(staged) == "number_out_of_bounds"


def test_other_keys_are_free() -> None:
    staged = config(config_updates=updates({"lance.x": "1"}), schema_metadata_updates=updates({"a": None}))
    staged.transaction_properties["committer"] = "me"
    assert refusal(staged) == ""


class TestBases:
    def adding(self, path: str) -> list[Transaction]:
        bases = Transaction.UpdateBases()
        bases.new_bases.add(id=1, path=path)
        overwrite = Transaction.Overwrite()
        overwrite.initial_bases.add(id=1, path=path)
        return [
            transaction(update_bases=bases),
            transaction(overwrite=overwrite),
            transaction(clone=Transaction.Clone(ref_path=path)),
        ]

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/a/../b",
            "..",
            "relative/b",
            "/a/./b",
            "/a\\..\\b",
            "/a\tb",
            " /a",
            "s3://b/ok/%2e%2e/other",
            "s3://b/ok/%2E./other",
            "s3://b/ok/%252e%252e/other",
            "s3://b/ok/%2f..%2fother",
            "file:///a/%2e%2e/b",
        ],
    )
    def test_must_be_absolute_and_mean_one_place(self, path: str) -> None:
        assert {refusal(staged) for staged in self.adding(path)} == {"base_path"}

    @pytest.mark.parametrize(
        ("path", "wanted"),
        [
            ("s3://b/ok", ""),
            ("s3://b/ok/x", ""),
            ("s3a://b//o%6b/x/", ""),
            ("s3://b/okay", "base_not_allowed"),
            ("s3://other/ok", "base_not_allowed"),
            ("/x", "base_not_allowed"),
            ("file://s3/b/ok", "base_not_allowed"),
        ],
    )
    def test_must_be_where_the_operator_says(self, path: str, wanted: str) -> None:
        allowed = Permissions(operations=ALL_OPERATIONS, bases=["s3://b/ok/"])
        assert {refusal(staged, allowed=allowed) for staged in self.adding(path)} == {wanted}

    def test_nothing_is_allowed_unless_the_operator_says(self) -> None:
        allowed = Permissions(operations=ALL_OPERATIONS)
        assert {refusal(staged, allowed=allowed) for staged in self.adding("/x")} == {"base_not_allowed"}


class TestFragments:
    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/a.lance",
            "../a.lance",
            "x/../../a",
            "s3://b/a.lance",
            "a\\b",
            "%2e%2e/a",
            "%2e%2e%2fa",
            "%252e%252e%252fa/../b",
            "x/%2525252525252e/a",
            "a\0b/..",
        ],
    )
    def test_have_their_files_in_the_table(self, path: str) -> None:
        assert refusal(with_path(path)) == "path_outside"
        staged = create_index(index(1))
        staged.create_index.new_indices[0].files.add(path=path)
        assert refusal(staged) == "path_outside"

    @pytest.mark.parametrize("path", ["sub/a.lance", "link%2Fsecret", "link%252Fsecret", "%2e%2e", "a\nb", "a%00"])
    def test_have_files_of_one_name(self, path: str) -> None:
        assert refusal(with_path(path)) == "path_outside"

    @pytest.mark.parametrize("path", ["a b.lance", "a%20b.lance", "100%.lance", "\u00e4.lance", "..a", "a#1~[x]"])
    def test_may_have_files_of_any_other_name(self, path: str) -> None:
        assert refusal(with_path(path)) == ""

    def test_of_an_index_may_be_in_folders_of_its_own(self) -> None:
        staged = create_index(index(1))
        staged.create_index.new_indices[0].files.add(path="part/a.lance")
        assert refusal(staged) == ""

    @pytest.mark.parametrize("path", ["x" * 5000, "x" * 256, "\u00e4" * 50])
    def test_have_names_that_a_store_takes(self, path: str) -> None:
        assert refusal(with_path(path)) == "path_invalid"

    @pytest.mark.parametrize("path", ["x" * 256, "/".join(["x" * 200] * 6), "a\u200b.lance"])
    def test_of_an_index_have_names_that_a_store_takes(self, path: str) -> None:
        staged = rewrite(1, rewritten=(1,))
        staged.rewrite.rewritten_indices[0].new_index_details.SetInParent()
        staged.rewrite.rewritten_indices[0].new_index_files.add(path=path)
        assert refusal(staged) == "path_invalid"

    @pytest.mark.parametrize("path", ["a\0b.lance", "a\n.lance"])
    def test_have_names_without_control_characters(self, path: str) -> None:
        assert refusal(with_path(path)) == "path_outside"

    def test_have_keys_that_fit_behind_the_path_of_the_table(self) -> None:
        staged = with_path("x" * 200)
        what = staged_files(staged)
        require_valid(operation_of(staged), staged, what, latest_version=5, allowed=ANYTHING, key_bytes_max=205)
        with pytest.raises(InvalidRequest, match="only 199 fit behind the table's own path"):
            require_valid(operation_of(staged), staged, what, latest_version=5, allowed=ANYTHING, key_bytes_max=204)

    def test_share_no_file(self) -> None:
        staged = appending(fragment(0))
        staged.append.fragments.append(fragment(0))
        assert refusal(staged) == "duplicate_file"
        staged.append.fragments[1].files[0].base_id = 1
        assert refusal(staged) == ""

    def test_of_the_first_format_2_have_columns_too(self) -> None:
        made = fragment(0)
        made.files[0].file_major_version, made.files[0].file_minor_version = 0, 3
        assert refusal(appending(made)) == ""
        made.files[0].column_indices.pop()
        assert refusal(appending(made)) == "column_indices"

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (lambda made: made.ClearField("files"), "fragment_without_files"),
            (lambda made: made.files[0].ClearField("fields"), "file_without_fields"),
            (lambda made: made.ClearField("physical_rows"), "physical_rows_unknown"),
            (lambda made: made.files[0].column_indices.append(7), "column_indices"),
            (lambda made: made.external_row_ids.CopyFrom(ExternalFile(path="x")), "external_sequences"),
            (lambda made: made.external_created_at_versions.CopyFrom(ExternalFile(path="x")), "external_sequences"),
        ],
    )
    def test_are_whole(self, change: Callable[[DataFragment], None], code: str) -> None:
        made = fragment(0)
        change(made)
        if code == "file_without_fields":
            made.files[0].ClearField("column_indices")
        assert refusal(appending(made)) == code

    @pytest.mark.parametrize(
        "staged",
        [
            transaction(append=Transaction.Append(fragments=[fragment(3), fragment(0, deleted=1)])),
            transaction(overwrite=Transaction.Overwrite(fragments=[fragment(0, deleted=1)])),
            update(new_fragments=[fragment(0, deleted=1)]),
        ],
    )
    def test_that_are_new_have_no_deletion_file(self, staged: Transaction) -> None:
        assert refusal(staged) == "deletion_file"
        assert refusal(update(fragment(0, deleted=1), new_fragments=[fragment(0, name="x")])) == ""

    @pytest.mark.parametrize(
        "staged",
        [
            delete(fragment(1), removed=(1,)),
            delete(removed=(1, 1)),
            update(fragment(1), removed_fragment_ids=[1]),
            transaction(merge=Transaction.Merge(fragments=[fragment(1), fragment(1, name="x")])),
            rewrite(1, 1),
            transaction(
                data_replacement=Transaction.DataReplacement(
                    replacements=[
                        replacement(1, 0).data_replacement.replacements[0],
                        replacement(1, 1).data_replacement.replacements[0],
                    ]
                )
            ),
        ],
    )
    def test_are_listed_once(self, staged: Transaction) -> None:
        if staged.HasField("data_replacement"):
            staged.data_replacement.replacements[1].new_file.path = "other.lance"
        assert refusal(staged) == "duplicate_fragment"


class TestIndices:
    @pytest.mark.parametrize(("field", "code"), [("uuid", "index_uuid"), ("name", "index_name")])
    def test_have_a_uuid_and_a_name(self, field: Literal["uuid", "name"], code: str) -> None:
        staged = create_index(index(1), removed=(index(2),))
        staged.create_index.removed_indices[0].ClearField(field)
        assert refusal(staged) == code

    def test_are_made_once(self) -> None:
        assert refusal(create_index(index(1), index(1))) == "duplicate_index"

    def test_of_lance_itself_are_on_no_field(self) -> None:
        for made in (samples.reuse_index(1), samples.mem_wal_index(1)):
            assert refusal(create_index(made)) == ""
            made.fields.append(0)
            assert refusal(create_index(made)) == "index_fields"

    def test_of_write_ahead_logs_can_be_read(self) -> None:
        nameless = MergedGeneration(generation=1)
        for details, code in (
            (MemWalIndexDetails(merged_generations=[nameless]), "region_id"),
            (MemWalIndexDetails(index_catchup=[IndexCatchupProgress(caught_up_generations=[nameless])]), "region_id"),
            (MemWalIndexDetails(snapshot_ts_millis=-(2**63)), "number_out_of_bounds"),
        ):
            made = samples.mem_wal_index(1)
            made.index_details.CopyFrom(pack_details(details))
            assert refusal(create_index(made)) == code

    def test_that_are_rewritten_say_into_what(self) -> None:
        staged = rewrite(1, rewritten=(1,))
        assert refusal(staged) == "rewritten_index_incomplete"
        staged.rewrite.rewritten_indices[0].new_index_details.SetInParent()
        assert refusal(staged) == ""
        staged.rewrite.rewritten_indices[0].new_index_files.add(path="../x")
        assert refusal(staged) == "path_outside"
        assert refusal(rewrite(1, rewritten=(1, 1))) == "duplicate_index"


def test_rows_that_an_update_names_as_changed_lie_in_fragments_that_it_changes() -> None:
    staged = update(fragment(0), update_mode=Transaction.REWRITE_COLUMNS)
    staged.update.updated_fragment_offsets[0].values.append(1)
    staged.update.updated_fragment_offsets[7].SetInParent()
    assert refusal(staged) == ""
    staged.update.updated_fragment_offsets[7].values.append(1)
    assert refusal(staged) == "updated_offsets"
    staged.update.updated_fragment_offset_bitmaps[0] = bytes(BitMap([1]).serialize())
    assert refusal(staged) == ""
    staged.update.updated_fragment_offset_bitmaps[7] = bytes(BitMap([1]).serialize())
    assert refusal(staged) == "updated_offsets"
    staged.update.update_mode = Transaction.REWRITE_ROWS
    assert refusal(staged) == ""


@pytest.mark.parametrize("probability", [float("nan"), float("inf"), -0.1, 1.5])
def test_a_probability_is_one(probability: float) -> None:
    staged = update()
    staged.update.inserted_rows.bloom.probability = 0.5
    assert refusal(staged) == ""
    staged.update.inserted_rows.bloom.probability = probability
    assert refusal(staged) == "number_out_of_bounds"


@pytest.mark.parametrize(
    ("staged", "code"),
    [
        (delete(removed=(2**32 - 2,)), ""),
        (delete(removed=(2**32 - 1,)), "number_out_of_bounds"),
        (update(removed_fragment_ids=[2**40]), "number_out_of_bounds"),
        (update(fields_modified=[2**32 - 1]), "number_out_of_bounds"),
        (delete(removed=(2**40,)), "number_out_of_bounds"),
        (delete(removed=tuple(range(1_000_001))), "record_too_large"),
        (delete(fragment(2**40)), "unknown_fragment"),
        (create_index(samples.index(1, version=2**63)), "number_out_of_bounds"),
        (create_index(samples.index(1, fields=[2**31 - 1])), "number_out_of_bounds"),
        (create_index(samples.index(1, fragments=range(1_000_001))), "index_bitmap"),
        (reserving(2**20), ""),
        (reserving(2**20 + 1), "fragment_ids_exhausted"),
        (
            transaction(update_bases=Transaction.UpdateBases(new_bases=[BasePath(id=2**31, path="/a")])),
            "number_out_of_bounds",
        ),
    ],
)
def test_numbers_are_within_their_bounds(staged: Transaction, code: str) -> None:
    assert refusal(staged) == code


def test_all_numbers_out_of_bounds_are_named_up_to_ten() -> None:
    staged = update(fields_modified=[2**32 - 1])
    staged.update.updated_fragment_offset_bitmaps[2**40] = b""
    with pytest.raises(InvalidRequest, match=r"fields_modified is .*; update.updated_fragment_offset_bitmaps is"):
        require_valid(operation_of(staged), staged, staged_files(staged), latest_version=5, allowed=ANYTHING)
    staged = create_index(*(samples.index(number, version=2**63) for number in range(1, 13)))
    with pytest.raises(InvalidRequest, match="; and 2 more"):
        require_valid(operation_of(staged), staged, staged_files(staged), latest_version=5, allowed=ANYTHING)


LONG = "x" * 1025


@pytest.mark.parametrize(
    "staged",
    [
        transaction(tag=LONG, append=Transaction.Append()),
        transaction(append=Transaction.Append(), transaction_properties={"a\0": "b"}),
        transaction(overwrite=Transaction.Overwrite(config_upsert_values={LONG: "1"})),
        transaction(overwrite=Transaction.Overwrite(schema_metadata={"a": b"x" * (2**20 + 1)})),
        transaction(overwrite=Transaction.Overwrite(initial_bases=[BasePath(id=1, path="/a", name=LONG)])),
        transaction(merge=Transaction.Merge(schema_metadata={LONG: b""})),
        config(config_updates=updates({"a": "x" * (2**20 + 1)})),
        config(table_metadata_updates=updates({LONG: None})),
        config(schema_metadata_updates=updates({"\0": "1"})),
        config(field_metadata_updates={1: updates({LONG: "1"})}),
        transaction(update_bases=Transaction.UpdateBases(new_bases=[BasePath(id=1, path="/a", name="\0")])),
        transaction(clone=Transaction.Clone(ref_path="/t", ref_name=LONG)),
        transaction(clone=Transaction.Clone(ref_path="/t", branch_name=LONG)),
        create_index(samples.index(1, name=LONG)),
    ],
)
def test_texts_that_stay_in_the_table_have_bounds(staged: Transaction) -> None:
    assert refusal(staged) == "text_invalid"


def test_a_deletion_file_has_a_type_that_lance_knows() -> None:
    staged = delete(fragment(1, deleted=3))
    assert refusal(staged) == ""
    staged.delete.updated_fragments[0].deletion_file.file_type = 7  # type: ignore[assignment]
    assert refusal(staged) == "deletion_file_type"


def test_offsets_of_updated_rows_are_a_bitmap() -> None:
    staged = update(updated_fragment_offset_bitmaps={1: BitMap([1, 2]).serialize()})
    assert refusal(staged) == ""
    staged.update.updated_fragment_offset_bitmaps[1] = b"no bitmap"
    assert refusal(staged) == "updated_offsets"


def test_a_region_has_an_id() -> None:
    broken = samples.generation(1, 2)
    broken.region_id.uuid = b"short"
    state = Transaction.UpdateMemWalState(merged_generations=[broken])
    assert refusal(transaction(update_mem_wal_state=state)) == "region_id"
    assert refusal(update(merged_generations=[broken])) == "region_id"


def fits(
    staged: Transaction, latest: Manifest | None, create: CreateOptions | None = None, *, may_mix: bool = False
) -> None:
    require_fits(
        staged,
        staged_files(staged),
        latest,
        schema=next_schema(staged, latest),
        create=create or CreateOptions(),
        may_mix=may_mix,
    )


def next_schema(staged: Transaction, latest: Manifest | None) -> TableSchema:
    return schema_after(staged, TableSchema(latest.fields if latest is not None else ()))


def misfit(
    staged: Transaction, latest: Manifest | None, create: CreateOptions | None = None, *, may_mix: bool = False
) -> str:
    """The code of the reason why it does not fit; empty if it fits."""
    try:
        fits(staged, latest, create, may_mix=may_mix)
    except InvalidRequest as error:
        return error.code if len(str(error)) > 20 else str(error)
    return ""


def as_read(staged: Transaction, read: Manifest) -> str:
    """The code of the reason why it does not fit its read version; empty if it fits."""
    check = operation_of(staged).validate_as_read
    assert check is not None
    try:
        check(staged, excerpt(samples.table(read), staged))
    except InvalidRequest as error:
        return error.code
    return ""


class TestContent:
    def test_lies_in_bases_that_the_table_has(self) -> None:
        made = fragment(0)
        made.files[0].base_id = 7
        latest = samples.manifest(fragment(0))
        assert misfit(appending(made), latest) == "unknown_base"
        latest.base_paths.add(id=7, path="/b")
        assert misfit(appending(made), latest) == ""
        made.deletion_file.CopyFrom(DeletionFile(num_deleted_rows=1, base_id=8))
        assert misfit(appending(made), latest) == "unknown_base"
        far = index(1)
        far.base_id = 9
        assert misfit(create_index(far), latest) == "unknown_base"

    def test_an_index_is_on_fields_of_the_table(self) -> None:
        latest = samples.manifest(fragment(0))
        staged = create_index(index(1, fields=[8]))
        assert misfit(staged, latest) == "unknown_field"
        staged.read_version -= 1
        assert misfit(staged, latest) == "unknown_field"
        assert misfit(create_index(index(1, fields=[2])), latest) == ""

    def test_an_index_is_on_one_field_and_says_what_it_covers(self) -> None:
        for fields in ([], [0, 1], [0, 0]):
            assert refusal(create_index(index(1, fields=fields))) == "index_fields"
        assert refusal(create_index(index(1, fragments=None))) == "index_bitmap"
        assert refusal(create_index(index(1, fragments=()))) == ""
        for fields, covering, refused in (
            ([0, 1], [1], False),
            ([0, 1, 2], [1, 2], False),
            ([0, 1, 2], [2, 1], True),
            ([0, 1, 1], [1, 1], True),
            ([0], [0], True),
            ([0, 1], [0], True),
        ):
            made = index(1, fields=fields)
            made.covering_fields.extend(covering)
            assert refusal(create_index(made)) == ("index_fields" if refused else "")
            assert refusal(create_index(removed=(made,))) == ("index_fields" if refused else "")
        # What is removed may be anything else.
        assert refusal(create_index(removed=(index(1, fields=[], fragments=None),))) == ""
        several = index(1, fields=[0, 1, 2])
        several.covering_fields.append(2)
        assert refusal(create_index(several)) == "index_fields"
        assert refusal(create_index(removed=(several,))) == ""

    @pytest.mark.parametrize("counts", [True, False])
    def test_an_index_covers_no_fragment_that_comes_later(self, counts: bool) -> None:
        read = samples.manifest(fragment(0), fragment(3))
        if not counts:
            read.ClearField("max_fragment_id")
        for covered in ([0, 3], [1, 2], []):  # gone or not, they were given out
            assert as_read(create_index(index(1, fragments=covered)), read) == ""
        assert as_read(create_index(index(1, fragments=[0, 4])), read) == "index_bitmap"
        assert as_read(create_index(index(1, fragments=[0])), samples.manifest()) == "index_bitmap"
        assert as_read(create_index(samples.reuse_index(1, ((0,), (9,)))), read) == ""

    def test_a_data_file_has_its_columns(self) -> None:
        staged = appending(fragment(0))
        assert misfit(staged, samples.manifest(fragment(0))) == ""
        staged.append.fragments[0].files[0].column_indices[1] = -1
        assert misfit(staged, samples.manifest(fragment(0))) == "column_indices"
        created = transaction(overwrite=Transaction.Overwrite(fragments=[fragment(0)], schema=[samples.column(0)]))
        created.overwrite.fragments[0].files[0].column_indices[1] = -1
        assert misfit(created, samples.manifest(fragment(0))) == ""  # nobody reads the other fields
        created.overwrite.fragments[0].files[0].column_indices[0] = -1
        assert misfit(created, None) == "column_indices"

    def test_a_data_file_has_what_it_says(self) -> None:
        latest = samples.manifest(fragment(0), fragment(4, rows=7))
        said = FileFacts(rows=10, columns=3, fields=b"")

        def refused(staged: Transaction, latest: Manifest | None, **facts: FileFacts) -> str:
            try:
                require_files_as_described(
                    staged,
                    staged_files(staged),
                    latest,
                    {f"{name}.lance": one for name, one in facts.items()},
                    schema=next_schema(staged, latest),
                )
            except InvalidRequest as error:
                return error.code
            return ""

        assert refused(appending(fragment(0, name="a")), latest, a=said) == ""
        assert refused(appending(fragment(0, name="a", rows=9)), latest, a=said) == "physical_rows_too_few"
        assert refused(appending(fragment(0, name="a", rows=9)), latest, other=said) == ""
        elsewhere = appending(fragment(0, name="a", rows=9))
        elsewhere.append.fragments[0].files[0].base_id = 2
        assert refused(elsewhere, latest, a=said) == ""
        assert refused(replacement(0, 1), excerpt(samples.table(latest), replacement(0, 1)), new=said) == ""
        part = excerpt(samples.table(latest), replacement(4, 1))
        assert [one.id for one in part.fragments] == [4]
        assert refused(replacement(4, 1), part, new=said) == "physical_rows_too_few"
        assert refused(replacement(0, 1), None, new=said) == ""
        created = transaction(overwrite=Transaction.Overwrite(fragments=[fragment(0)], schema=[samples.column(2)]))
        assert refused(created, None, f0=said._replace(columns=2)) == "column_indices"

    def test_a_rewrite_has_all_fields(self) -> None:
        latest = samples.manifest(fragment(0), fragment(1))
        staged = rewrite(0, 1)
        assert misfit(staged, latest) == ""
        new = staged.rewrite.groups[0].new_fragments[0].files[0]
        new.fields.pop()
        new.column_indices.pop()
        assert misfit(staged, latest) == "rewritten_fields"
        assert misfit(staged, samples.manifest(fragment(0), columns=[samples.column(0), samples.column(1)])) == ""
        assert misfit(staged, samples.manifest(fragment(7))) == ""  # they are gone

    def test_metadata_make_no_blob_of_a_field(self) -> None:
        latest = samples.manifest(fragment(0))
        for key, code in (("lance-encoding:blob", "field_type"), ("a", "")):
            staged = config(field_metadata_updates={1: updates({key: "true"})})
            assert misfit(staged, latest) == code

    def test_a_type_stays(self) -> None:
        latest = samples.manifest(fragment(0), fragment(1))
        wider = samples.column(1)
        wider.logical_type = "int32"
        schema = [samples.column(0), wider, samples.column(2)]
        assert misfit(transaction(project=Transaction.Project(schema=schema)), latest) == "field_type"
        anew = [fragment(0, name="x"), fragment(1, name="y")]
        merged = transaction(merge=Transaction.Merge(schema=schema, fragments=anew))
        assert misfit(merged, latest) == ""
        merged.merge.fragments[1].CopyFrom(fragment(1))
        assert misfit(merged, latest) == "field_type"
        # Of fragment 1 only a field that does not change stays where it is.
        apart = merged.merge.fragments[1].files.add(
            path="c0.lance", fields=[0], column_indices=[0], file_major_version=2
        )
        apart.file_minor_version = 0
        merged.merge.fragments[1].files[0].path = "y.lance"
        assert misfit(merged, latest) == ""

    def test_lies_in_bases_that_a_create_brings(self) -> None:
        made = fragment(0)
        made.files[0].base_id = 7
        staged = transaction(overwrite=Transaction.Overwrite(fragments=[made]))
        assert misfit(staged, None) == "unknown_base"
        staged.overwrite.initial_bases.add(id=7, path="/b")
        assert misfit(staged, None) == ""
        staged.overwrite.initial_bases.add(id=7, path="/c")
        assert misfit(staged, None) == "duplicate_base"

    @staticmethod
    def of_version(*minors: int, major: int = 2) -> Transaction:
        made = [
            DataFragment(physical_rows=1, files=[samples.data_file(f"f{place}", minor=minor)])
            for place, minor in enumerate(minors)
        ]
        for one in made:
            one.files[0].file_major_version = major
        return transaction(append=Transaction.Append(fragments=made))

    def test_has_one_file_version_that_of_the_table(self) -> None:
        latest = samples.manifest(fragment(0))
        assert misfit(self.of_version(0), latest) == ""
        assert misfit(self.of_version(3, major=0), latest) == ""
        for staged in (self.of_version(1), self.of_version(0, 1), self.of_version(9), self.of_version(2, major=0)):
            assert misfit(staged, latest) == "file_version"

    def test_may_mix_where_versions_have_met(self) -> None:
        latest = samples.manifest(fragment(0))
        latest.reader_feature_flags = latest.writer_feature_flags = FeatureFlag.MIXED_FILE_VERSIONS
        assert misfit(self.of_version(0, 1), latest) == ""

    def test_may_mix_if_the_operator_allows_it(self) -> None:
        latest = samples.manifest(fragment(0))
        overwrite = transaction(overwrite=Transaction.Overwrite(fragments=self.of_version(0, 1).append.fragments))
        for staged in (self.of_version(1), self.of_version(0, 1), overwrite):
            assert misfit(staged, latest, may_mix=True) == ""
            with pytest.raises(
                InvalidRequest, match=r"commit\.mixed_file_versions\): from then on no Lance below 12 can"
            ):
                fits(staged, latest)
        for staged in (self.of_version(9), self.of_version(2, major=0)):
            assert misfit(staged, latest, may_mix=True) == "file_version"
        # A table is created with files of the same version, whatever is allowed.
        for may_mix in (False, True):
            with pytest.raises(InvalidRequest, match=r"Detected both 2\.0 and 2\.1$"):
                fits(overwrite, None, may_mix=may_mix)

    def test_has_no_new_blobs_for_a_column_of_old_ones(self) -> None:
        latest = samples.manifest(fragment(0))
        latest.reader_feature_flags = latest.writer_feature_flags = FeatureFlag.MIXED_FILE_VERSIONS
        latest.fields[1].metadata["lance-encoding:blob"] = b"true"
        plain = samples.manifest(fragment(0))
        plain.fields[1].CopyFrom(latest.fields[1])
        assert misfit(self.of_version(2), plain, may_mix=True) == "file_version"
        for minor, refused in ((0, False), (1, False), (2, True), (3, True)):
            assert misfit(self.of_version(minor), latest) == ("file_version" if refused else "")
        overwrite = transaction(overwrite=Transaction.Overwrite(fragments=self.of_version(2).append.fragments))
        assert misfit(overwrite, latest) == ""
        latest.data_format.version = "2.2"
        assert misfit(self.of_version(2), latest) == ""
        latest.data_format.version = "2.0"
        latest.fields[1].metadata["ARROW:extension:name"] = b"lance.blob.v2"
        assert misfit(self.of_version(2), latest) == ""

    def test_of_an_overwrite_may_be_of_another_version(self) -> None:
        files = self.of_version(1).append.fragments
        staged = transaction(overwrite=Transaction.Overwrite(fragments=files))
        assert misfit(staged, samples.manifest(fragment(0))) == ""
        assert misfit(transaction(overwrite=Transaction.Overwrite()), samples.manifest(fragment(0))) == ""
        assert misfit(staged, None) == ""
        assert misfit(staged, None, CreateOptions(data_storage_version="2.1")) == ""
        assert misfit(staged, None, CreateOptions(data_storage_version="2.0")) == "file_version"

    def test_has_row_ids_where_rows_keep_them(self) -> None:
        stable = samples.manifest(fragment(0), stable=True)
        given = samples.with_row_ids(fragment(0, name="x"), [range(10)])
        assert misfit(appending(given), samples.manifest()) == "row_ids"
        assert misfit(appending(given), stable) == ""
        assert misfit(appending(fragment(0)), stable) == ""
        assert misfit(rewrite(0), stable) == "row_ids"
        assert misfit(rewrite(0), samples.manifest(fragment(0))) == ""
        create = transaction(overwrite=Transaction.Overwrite(fragments=[given]))
        assert misfit(create, None) == "row_ids"
        assert misfit(create, None, CreateOptions(enable_stable_row_ids=True)) == ""

    @pytest.mark.parametrize("changing", [delete, update])
    def test_changes_no_number_of_rows(self, changing: Callable[[DataFragment], Transaction]) -> None:
        latest = samples.manifest(fragment(0, rows=10))
        assert misfit(changing(fragment(0, rows=10)), latest) == ""
        assert misfit(changing(fragment(0, rows=9)), latest) == "row_count_changed"
        assert misfit(changing(fragment(7, rows=9)), latest) == ""

    def test_of_a_merge_is_every_fragment(self) -> None:
        latest = samples.manifest(fragment(0), fragment(1))

        def merging(*made: DataFragment) -> str:
            return misfit(transaction(merge=Transaction.Merge(fragments=made)), latest)

        assert merging(fragment(0), fragment(1)) == ""
        assert merging(fragment(0), fragment(1), fragment(2)) == ""
        for wrong in ((fragment(0),), (fragment(0), fragment(7)), (fragment(0), fragment(1, rows=3))):
            assert merging(*wrong) == "merge_fragments"

    def test_of_a_merge_that_are_new_come_last_without_ids_and_deletions(self) -> None:
        plain = samples.manifest(fragment(0), fragment(1))
        stable = samples.manifest(fragment(0), fragment(1), stable=True)
        new, newer = fragment(0, name="x", rows=3), fragment(0, name="y")

        def merging(latest: Manifest, *made: DataFragment) -> str:
            staged = transaction(merge=Transaction.Merge(fragments=made, schema=latest.fields))
            return refusal(staged) or misfit(staged, latest)

        for latest in (plain, stable):
            assert merging(latest, *latest.fragments, new, newer, fragment(9)) == ""
            for wrong in ((new, *latest.fragments), (fragment(9), *latest.fragments)):
                assert merging(latest, *wrong) == "merge_fragments"
            assert merging(latest, *latest.fragments, fragment(9, deleted=1)) == "deletion_file"
        assert merging(stable, fragment(0), stable.fragments[1]) == "row_ids"
        numbered = samples.with_row_ids(fragment(9), [range(100, 110)])
        assert merging(stable, *stable.fragments, numbered) == "row_ids"

    def test_of_a_data_replacement_has_the_same_fields_everywhere(self) -> None:
        both = Transaction.DataReplacement()
        for number, field in ((0, 1), (1, 2)):
            both.replacements.append(replacement(number, field).data_replacement.replacements[0])
        assert misfit(transaction(data_replacement=both), samples.manifest()) == "replaced_fields"
        assert misfit(replacement(0, 1), samples.manifest()) == ""


class TestAnAppendThatNamesNoVersion:
    """Its files are compared with the schema, as far as they show it."""

    TABLE = samples.manifest(
        columns=[
            samples.column(0),
            samples.column(2, nullable=False),
            samples.column(3),
            samples.column(4, nullable=False, parent=3),
            samples.column(5, nullable=False),
            samples.column(6, nullable=False, parent=5),
        ]
    )

    def differing(self, *fields: int, read_version: int = 0) -> str:
        made = fragment(0)
        del made.files[:]
        made.files.append(samples.data_file("a", fields))
        staged = transaction(read_version, append=Transaction.Append(fragments=[made]))
        return operation_of(staged).differing_schema(staged, TableSchema(self.TABLE.fields))

    @pytest.mark.parametrize("fields", [[0, 2, 3, 4, 5, 6], [2], [2, 0, -2], [1, 2, 4, 6]])
    def test_may_have_any_columns_of_the_table_and_dropped_ones(self, fields: list[int]) -> None:
        assert self.differing(*fields) == ""

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ([1], "fields 1, of which the table has none"),
            ([7, 8], "fields 7, 8, of which the table has none"),
            (range(7, 30), "7, 8, 9, 10, 11, 12, 13, 14, 15, 16, and 13 more, of which the table has none"),
            ([0, 2, 7], "fields 7, which the table does not have"),
            ([0, 3], "lack the columns 'c2', which the table requires"),
            ([0, 1, 2], "fields 1, which the table no longer has, and lack the later fields 4, 6: perhaps"),
        ],
    )
    def test_must_not_be_of_another_schema(self, fields: Sequence[int], told: str) -> None:
        assert told in self.differing(*fields)

    def test_is_judged_by_history_where_it_names_one(self) -> None:
        assert self.differing(7, read_version=5) == ""

    def test_is_no_other_operation(self) -> None:
        staged = transaction(0, overwrite=Transaction.Overwrite())
        assert operation_of(staged).differing_schema(staged, TableSchema(self.TABLE.fields)) == ""


class TestWhatCommitterdDoesNotKnowInFull:
    """Of it and of its table's features, less is required than of others."""

    @staticmethod
    def refusal(staged: Transaction, *, known: bool, allowed: Permissions = ANYTHING) -> str:
        operation = operation_of(staged) if known else None
        try:
            require_valid_outside(operation, staged, latest_version=5, allowed=allowed)
        except RequestError as error:
            return error.code
        return ""

    @pytest.mark.parametrize("known", [False, True])
    def test_what_every_transaction_has(self, known: bool) -> None:
        staged = appending(fragment(0))
        assert self.refusal(staged, known=known) == ""
        for change, code in (
            ({"uuid": "x"}, "uuid_invalid"),
            ({"read_version": 6}, "future_read_version"),
            ({"read_version": 1 << 63}, "detached_read_version"),
            ({"tag": "\0"}, "text_invalid"),
            ({"transaction_properties": {"\0": "x"}}, "text_invalid"),
            ({"transaction_properties": {"committerd.members": ""}}, "reserved_key"),
        ):
            wrong = Transaction()
            wrong.CopyFrom(staged)
            wrong.MergeFrom(Transaction(**change))
            assert self.refusal(wrong, known=known) == code

    def test_the_read_version_0(self) -> None:
        staged = appending(fragment(0))
        staged.read_version = 0
        assert self.refusal(staged, known=True) == ""
        assert self.refusal(staged, known=False) == "read_version_missing"

    def test_a_known_operation_must_be_allowed_and_set_no_key_of_committerd(self) -> None:
        staged = config(table_metadata_updates=updates({"committerd.position": "x"}))
        assert self.refusal(staged, known=True) == "reserved_key"
        assert self.refusal(staged, known=True, allowed=Permissions(operations=frozenset())) == "operation_not_allowed"

    def test_an_operation_that_is_not_known_is_allowed_to_no_producer_with_operations(self) -> None:
        staged = appending(fragment(0))
        assert self.refusal(staged, known=False) == ""
        own = Permissions().of("loader", ALL_OPERATIONS)
        assert self.refusal(staged, known=False, allowed=own) == "operation_not_allowed"
