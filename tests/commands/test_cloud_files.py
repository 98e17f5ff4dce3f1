"""Files in a container, as `committerd append` reads them: the same bytes, whatever is asked for."""

from __future__ import annotations

import random

import obstore
import pytest
from pyarrow.fs import FileSelector, FileType

from committerd.commands.append.cloud_files import CloudFiles
from committerd.settings.clouds import CloudSettings
from committerd.stores.clouds import CloudPlace, cloud_place
from committerd.stores.obstore_store import open_container
from harness.azure import AzureEndpoint
from harness.gcs import GcsEndpoint
from harness.places import cloud_group

BODY = random.Random(0).randbytes(20_000_001)
OBJECTS = {"in/a b.bin": BODY, "in/below/c.csv": b"id\n1\n", "in/empty.csv": b"", "in2/d.csv": b"x", "e": b"x"}

Reached = tuple[CloudPlace, CloudSettings]


@pytest.fixture(
    scope="module",
    params=[pytest.param("azure", marks=pytest.mark.azure), pytest.param("gcs", marks=pytest.mark.gcs)],
)
def reached(request: pytest.FixtureRequest) -> Reached:
    """A container with the objects."""
    server: AzureEndpoint | GcsEndpoint = request.getfixturevalue(request.param)
    place = cloud_place(f"{server.scheme}://{server.make_bucket()}/in")
    assert place is not None
    _, settings = cloud_group(server)
    container = open_container(place.cloud, place.root, settings, seconds_max=60, retries=0)
    for key, body in OBJECTS.items():
        obstore.put(container, key, body, use_multipart=False)
    return place, settings


def test_every_range_is_what_was_put(reached: Reached) -> None:
    files, chosen = CloudFiles(*reached), random.Random(1)
    with files.open_input_file("in/a b.bin") as file:
        assert file.size() == len(BODY)
        assert file.read() == BODY
        for _ in range(20):
            start = chosen.randrange(len(BODY) + 10)
            size = chosen.choice([0, 1, 1000, 1 << 20, 9_000_000, len(BODY)])
            file.seek(min(start, len(BODY)))
            assert file.read(size) == BODY[start : start + size]
            assert file.read_at(size, min(start, len(BODY))) == BODY[start : start + size]
    with files.open_input_stream("in/empty.csv") as stream:
        assert stream.read() == b""


def test_an_object_has_a_tag_that_changes_with_its_content(reached: Reached) -> None:
    place, settings = reached
    container = open_container(place.cloud, place.root, settings, seconds_max=60, retries=0)
    tags = []
    for body in (b"1", b"2"):
        obstore.put(container, "tagged", body)
        tags.append(CloudFiles(place, settings).open_input_file("tagged").metadata()["ETag"])
    assert "" not in tags
    assert len(set(tags)) == 2


def test_a_path_is_an_object_a_folder_or_nothing(reached: Reached) -> None:
    files = CloudFiles(*reached)
    kinds = {path: files.get_file_info(path).type for path in ("in/a b.bin", "in", "in/below", "i", "none", "")}
    assert kinds == {
        "in/a b.bin": FileType.File, "in": FileType.Directory, "in/below": FileType.Directory, "i": FileType.NotFound,
        "none": FileType.NotFound, "": FileType.Directory,
    }  # fmt: skip
    found = {one.path: one.type for one in files.get_file_info(FileSelector("in", recursive=True))}
    assert found == {
        "in/a b.bin": FileType.File, "in/below": FileType.Directory, "in/below/c.csv": FileType.File,
        "in/empty.csv": FileType.File,
    }  # fmt: skip
    with pytest.raises(FileNotFoundError, match=r"there is no object .*://.*/in/none"):
        files.open_input_file("in/none")


@pytest.mark.azure
def test_a_refusal_says_what_to_do(azure: AzureEndpoint) -> None:
    place = cloud_place(f"az://{azure.make_bucket()}/in")
    assert place is not None
    _, wrong = cloud_group(azure, account_key="d3Jvbmc=")
    files = CloudFiles(place, wrong)
    with pytest.raises(OSError, match=r"azure read of az://.*the credentials"):
        files.open_input_file("x")
    with pytest.raises(OSError, match=r"azure read of az://.*the credentials"):
        files.get_file_info(FileSelector("in", recursive=True))
