from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committerd.errors import CorruptTable, InvalidRequest
from committerd_common import paths
from committerd_common.messages import DeletionFile
from committerd_common.paths import (
    NamingScheme,
    manifest_key,
    manifest_name,
    parse_manifest_name,
    parse_staging_name,
    staging_name,
)
from tests.lance.format.golden_tables import GOLDEN, WRITERS

V1, V2 = NamingScheme.V1, NamingScheme.V2
UUID = "6f6f2f0e-9a55-4b7c-8a43-0e9f1d3c5b7a"


@pytest.mark.parametrize(
    ("version", "scheme", "key"),
    [
        (0, V1, "_versions/0.manifest"),
        (42, V1, "_versions/42.manifest"),
        (0, V2, "_versions/18446744073709551615.manifest"),
        (1, V2, "_versions/18446744073709551614.manifest"),
        (42, V2, "_versions/18446744073709551573.manifest"),
        (2**63 - 1, V1, "_versions/9223372036854775807.manifest"),
        (2**63 - 1, V2, "_versions/09223372036854775808.manifest"),
    ],
)
def test_manifests_are_named_as_lance_names_them(version: int, scheme: NamingScheme, key: str) -> None:
    assert manifest_key(version, scheme) == key


@given(st.integers(0, paths.VERSION_MAX), st.sampled_from(NamingScheme))
def test_a_manifests_name_says_its_version_and_scheme(version: int, scheme: NamingScheme) -> None:
    assert parse_manifest_name(manifest_name(version, scheme)) == (version, scheme)
    assert parse_staging_name(staging_name(version, scheme, UUID)) == (version, scheme)


@pytest.mark.parametrize(
    "name",
    [
        "something else",
        "d9223372036854775809.manifest",
        "18446744073709551614.manifest#1",
        ".tmp_x",
        ".tmp_18446744073709551614.manifest",
        "latest_version_hint.json",
        f"18446744073709551614.manifest-{UUID}",
        "042.manifest",
        "-1.manifest",
        "42.manifest ",
        "\N{ARABIC-INDIC DIGIT FOUR}.manifest",
        # bit 63 set, once inverted and once past what 64 bits hold
        "00000000000000000001.manifest",
        "99999999999999999999.manifest",
        "9223372036854775808.manifest",
        "42.manifest\n",
    ],
)
def test_what_is_no_version_of_the_history_is_ignored(name: str) -> None:
    assert parse_manifest_name(name) is None


def test_the_latest_is_found_among_names_in_any_order_and_scheme() -> None:
    for scheme in NamingScheme:
        names = [manifest_name(version, scheme) for version in range(12)]
        random.Random(7).shuffle(names)
        found = [parse_manifest_name(name) for name in names]
        assert max(found, key=lambda name: name.version if name else -1) == (11, scheme)
    assert min(manifest_name(version, V2) for version in range(12)) == manifest_name(11, V2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"42.manifest-{UUID}", (42, V1)),
        (f"18446744073709551573.manifest-{UUID}", (42, V2)),
        ("42.manifest", None),
        (f"42.txn-{UUID}", None),
        ("42.manifest-6f6f", None),
        (f"00000000000000000001.manifest-{UUID}", None),
    ],
)
def test_a_staging_name_says_its_version(name: str, expected: tuple[int, NamingScheme] | None) -> None:
    assert parse_staging_name(name) == expected


def test_a_detached_version_has_bit_63_set() -> None:
    assert paths.is_detached(0xEF4426D745B242EC)
    assert not paths.is_detached(1)


@pytest.mark.parametrize("version", [-1, 2**63, 2**64])
def test_a_version_of_a_history_fits_63_bits(version: int) -> None:
    with pytest.raises(ValueError, match="not a version of a history"):
        manifest_name(version, V2)


def test_keys_are_where_pylance_puts_the_files() -> None:
    assert paths.transaction_key(paths.transaction_name(2, UUID)) == f"_transactions/2-{UUID}.txn"
    assert paths.data_key("0101.lance") == "data/0101.lance"
    assert paths.index_prefix(bytes.fromhex(UUID.replace("-", ""))) == f"_indices/{UUID}/"
    assert paths.index_file_key(bytes.fromhex(UUID.replace("-", "")), "a/b") == f"_indices/{UUID}/a/b"
    arrow = DeletionFile(file_type=DeletionFile.ARROW_ARRAY, read_version=2, id=2**64 - 1)
    bitmap = DeletionFile(file_type=DeletionFile.BITMAP, read_version=3, id=8)
    assert paths.deletion_key(0, arrow, staged=False) == "_deletions/0-2-18446744073709551615.arrow"
    assert paths.deletion_key(7, bitmap, staged=True) == "_deletions/7-3-8.bin"


@pytest.mark.parametrize(
    ("key", "version"),
    [
        ("_deletions/0-2-18446744073709551615.arrow", 2),
        ("_deletions/7-3-8.bin", 3),
        ("_deletions/7-3-8.txt", None),
        ("_deletions/7-3.bin", None),
        ("data/7-3-8.bin", None),
    ],
)
def test_the_name_of_a_deletion_file_says_what_its_writer_read(key: str, version: int | None) -> None:
    assert paths.deletion_read_version(key) == version


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a b+c=d&e:f@g,h;i'j(k)!$.lance", "a b+c=d&e:f@g,h;i'j(k)!$.lance"),
        ("sub/a", "sub%2Fa"),
        ("a%2Fb", "a%252Fb"),
        ("\u00e4", "%C3%A4"),
        ('a#1~[x]*{y}^`"<>|?\\', "a%231%7E%5Bx%5D%2A%7By%7D%5E%60%22%3C%3E%7C%3F%5C"),
        ("\n\x7f", "%0A%7F"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
    ],
)
def test_a_data_file_is_called_as_lances_readers_call_it(path: str, name: str) -> None:
    assert paths.data_key(path) == f"data/{name}"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "a%2fb", "%252e%252e", "%25252525252e", "a%7F"])
def test_a_name_with_two_meanings_leaves_its_folder(name: str) -> None:
    assert paths.leaves_its_folder(name)


@pytest.mark.parametrize("name", ["a", "...", "a..b", "100%", "a%20b", "%C3%A4", "\u00e4", "%FF", "%ZZ"])
def test_any_other_name_is_one_of_its_folder(name: str) -> None:
    assert not paths.leaves_its_folder(name)


def test_every_manifest_that_pylance_wrote_has_a_version() -> None:
    for writer in WRITERS:
        for folder in GOLDEN.joinpath(writer).glob("*/_versions"):
            found = {parse_manifest_name(path.name) for path in folder.iterdir()}
            assert found == {(version, V2) for version in range(1, len(found) + 1)}


@pytest.mark.parametrize(("staged", "error"), [(True, InvalidRequest), (False, CorruptTable)])
def test_a_deletion_file_of_unknown_type_has_no_key(staged: bool, error: type[Exception]) -> None:
    unknown = DeletionFile.FromString(b"\x08\x07")
    with pytest.raises(error, match="fragment 3: its deletion file is of type 7") as caught:
        paths.deletion_key(3, unknown, staged=staged)
    assert getattr(caught.value, "code", None) == "deletion_file_type"


@pytest.mark.parametrize(
    ("uri", "left"),
    [
        ("s3://bucket", paths.KEY_BYTES_MAX),
        ("s3://bucket/", paths.KEY_BYTES_MAX),
        ("s3://bucket/lake/t.lance", paths.KEY_BYTES_MAX - len("lake/t.lance/")),
        ("s3://bucket/\u00e9", paths.KEY_BYTES_MAX - 3),
    ],
)
def test_a_key_holds_the_path_of_the_table_too(uri: str, left: int) -> None:
    assert paths.key_room(uri) == left
    assert paths.unstorable("a/" * (left // 2) + "a" * (left % 2), left) == ""
    assert f"only {left} fit behind the table's own path" in paths.unstorable("a/" * (left // 2) + "aa", left)
