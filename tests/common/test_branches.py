"""Names of branches, where they lie, and the names of their queues."""

from __future__ import annotations

import pytest

from committerd_common.branches import (
    branch_file,
    branch_folder,
    branch_queue,
    branch_uri,
    checked_branch,
    is_branch_folder,
    is_branch_queue,
)


@pytest.mark.parametrize("name", ["exp", "a/b", "v1.2-x_y", "tree", ".a", "-a", "a/main", "A/b/C"])
def test_names_that_lance_allows_are_taken(name: str) -> None:
    assert checked_branch(name) == name


@pytest.mark.parametrize("name", ["", "main"])
def test_the_main_branch_has_two_names(name: str) -> None:
    assert checked_branch(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/a", "slash"),
        ("a/", "slash"),
        ("a//b", "in a row"),
        ("a..b", "in a row"),
        ("..", "in a row"),
        ("a.lock", ".lock"),
        ("a b", "characters"),
        ("a\\b", "characters"),
        ("a@b", "characters"),
        ("a%2Fb", "characters"),
        ("exp\n", "characters"),
        ("bücher", "other scripts"),
        ("a/.b", "unique"),
        ("a./b", "unique"),
    ],
)
def test_other_names_are_refused_with_the_rule_that_they_break(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checked_branch(name)


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ("/lake/events.lance", "/lake/events.lance/tree/a/b"),
        ("/lake/events.lance/", "/lake/events.lance/tree/a/b"),
        ("/lake/what?.lance", "/lake/what?.lance/tree/a/b"),
        ("file:///lake/what?.lance", "file:///lake/what?.lance/tree/a/b"),
        ("s3://bucket/events.lance", "s3://bucket/events.lance/tree/a/b"),
        ("s3+ddb://b/events.lance?ddbTableName=t", "s3+ddb://b/events.lance/tree/a/b?ddbTableName=t"),
    ],
)
def test_a_branch_lies_in_a_folder_below_the_root(root: str, place: str) -> None:
    assert branch_uri(root, "a/b") == place
    assert branch_uri(root, "") == root
    assert is_branch_folder(place, "a/b")
    assert not is_branch_folder(place, "b")
    assert not is_branch_folder(root, "a/b")


def test_the_keys_of_a_branch_are_those_of_lance() -> None:
    assert (branch_file("a/b"), branch_folder("a/b")) == ("_refs/branches/a%2Fb.json", "tree/a/b/")
    assert branch_folder("") == ""


def test_no_two_branches_share_a_queue() -> None:
    names = {branch_queue("events", one) for one in ("", "a/b", "a.b", "a-b", "a_b")}
    assert len(names) == 5
    assert branch_queue("events", "a/b") == "events.tree.a..b"
    assert branch_queue("events", "") == "events"
    assert {name: is_branch_queue(name) for name in names} == {name: name != "events" for name in names}
