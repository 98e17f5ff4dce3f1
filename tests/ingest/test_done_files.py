"""Which files of a folder are done, as the token of the reader of files says it."""

from __future__ import annotations

import base64
import itertools

import pytest

from committerd.commands.ingest.done_files import FILES_MAX, DoneFiles, file_mark, names_of
from committerd_ingest.reading import TOKEN_CHARS_MAX, Part, ReaderStopped


def test_a_file_is_its_name_size_and_time() -> None:
    done = DoneFiles(None)
    file = file_mark("/a", 1, 2)
    assert not done.has(file)
    assert not done.changed(file)
    token = done.add(file)
    again = DoneFiles(token)
    assert again.has(file)
    assert not again.changed(file)
    for other in (file_mark("/a", 2, 2), file_mark("/a", 1, 3)):
        assert not again.has(other)
        assert again.changed(other)
    assert not again.changed(file_mark("/b", 1, 2))
    assert again.token() == token


def test_a_token_continues_the_one_before_it() -> None:
    done = DoneFiles(None)
    tokens = [done.add(file_mark(f"/{number}", 1, 1)) for number in range(5)]
    for before, after in itertools.pairwise(tokens):
        assert after.startswith(before)
        assert len(after) == len(before) + 20


def test_a_full_token_forgets_the_oldest_files_that_are_gone_and_never_one_that_is_there() -> None:
    files = [file_mark(f"/{number}", 1, 1) for number in range(FILES_MAX)]
    token = "1:" + base64.b64encode(b"".join(one.name + one.content for one in files)).decode()
    done = DoneFiles(token)
    assert len(token) < TOKEN_CHARS_MAX
    Part(token=token)
    new = file_mark("/new", 1, 1)
    done.make_room(files[7], names_of(files))
    with pytest.raises(ReaderStopped, match="Delete files that are done") as stopped:
        done.make_room(new, names_of(files))
    assert stopped.value.reason == "folder_full"
    done.make_room(new, names_of(files[3:]))
    assert len(done) == FILES_MAX - 3
    assert not done.has(files[2])
    assert done.has(files[3])
    again = DoneFiles(done.add(new))
    assert again.has(new)
    assert len(again) == FILES_MAX - 2


@pytest.mark.parametrize("token", ["", "1:x", "2:", "1:AAAA"])
def test_what_is_no_token_is_said(token: str) -> None:
    with pytest.raises(ValueError, match="is no token of the reader of files"):
        DoneFiles(token)
