"""Several objects at once on a local file system."""

from __future__ import annotations

import os
from pathlib import Path

from committerd.errors import InvalidRequest, ObjectUnreadable
from committerd.stores.local import LocalStore
from committerd.stores.port import Tail


async def test_several_are_read_as_each_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "table")
    await store.put("_deletions/long", b"0123456789")
    await store.put("_deletions/short", b"01")
    os.symlink("long", Path(store.uri, "_deletions/link"))
    os.mkdir(Path(store.uri, "_deletions/folder"))
    keys = [f"_deletions/{name}" for name in ("long", "nothing", "short", "link", "folder", "../out", "long")]
    long, nothing, short, link, folder, out, again = await store.get_tails(keys, size=4)
    assert long == again == Tail(body=b"6789", size=10)
    assert (nothing, short, folder) == (None, Tail(body=b"01", size=2), None)
    assert isinstance(link, ObjectUnreadable)
    assert isinstance(out, InvalidRequest)
    assert await store.get_tails([], size=4) == []


async def test_several_in_different_folders(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "table")
    keys = ["x", "data/x", "data/sub/x", "_deletions/x", "data/x"]
    for key in keys:
        await store.put(key, key.encode())
    os.symlink("sub", Path(store.uri, "data/link"))
    tails = await store.get_tails([*keys, "nothing/x", "data/link/x", "x"], size=99)
    assert tails[:5] == [Tail(body=key.encode(), size=len(key)) for key in keys]
    assert tails[5] is None
    assert isinstance(tails[6], ObjectUnreadable)
    assert tails[7] == tails[0]
    assert not opened_below(store.uri)


def opened_below(folder: str) -> list[str]:
    """The paths, at this folder or below it, that this process has open."""
    paths = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in os.listdir("/proc/self/fd")]
    return [path for path in paths if path.startswith(folder)]
