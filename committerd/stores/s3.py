"""A table's directory in a bucket of S3, or of an S3-compatible server.

One PUT with `If-None-Match: *` creates a version. Status 412 is `Exists`. After status 409 (another conditional put of
the key was in progress), a timeout, a broken connection or 5xx the object may exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from committerd.errors import InvalidRequest, SettingsError, StoreUnavailable
from committerd.settings.s3 import S3Settings
from committerd.stores.aws import AwsClient
from committerd.stores.port import (
    Content,
    Created,
    Exists,
    ObjectEntry,
    Tail,
    TailOrError,
    in_one_piece,
    require_below_root,
    tail_by_size,
    tails_of_each,
)
from committerd.stores.retries import Absent, ConditionFailed, Fault, Retries, ignored
from committerd_common.paths import DATA

_SCHEMES = ("s3", "s3a", "s3n")
_KEY_BYTES_MAX = 1024
_PAGE_KEYS_MAX = 1000

_PERMISSIONS = (
    "the credentials may not do this: allow s3:GetObject, s3:PutObject and s3:DeleteObject below the table's "
    "prefix, and s3:ListBucket on the bucket; for a directory bucket, s3express:CreateSession on the bucket"
)
_ADVICE = {
    "AccessDenied": _PERMISSIONS,
    "403": _PERMISSIONS,
    "EntityTooLarge": "S3 takes and copies at most 5 GiB in one request, and committerd makes no multipart uploads",
    "NoSuchBucket": "create the bucket, or correct the table's URI or s3.endpoint_url",
    "NotImplemented": "the server lacks an operation that committerd needs; `committerd probe` names it",
}


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket, and the table's prefix in it."""

    bucket: str
    prefix: str
    """Empty, or with a trailing slash."""

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def is_in_directory_bucket(self) -> bool:
        """Whether the bucket is one of S3 Express One Zone: no other bucket's name may end so."""
        return self.bucket.endswith("--x-s3")


def s3_place(uri: str) -> S3Place | None:
    """Parse an `s3://bucket/path` URI (also s3a, s3n; percent-decoded); None for another scheme.

    Raises `SettingsError` for a URI without a bucket, with credentials, a query or a fragment, or with an access point
    of a directory bucket.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        return None
    bucket, _, path = rest.partition("/")
    if "@" in bucket:
        raise SettingsError(
            "a table's URI must not contain credentials: write s3://bucket/path, and set the keys in the settings of s3"
        )
    if "?" in rest or "#" in rest:
        raise SettingsError(f"{uri!r} has a query or a fragment; a table on S3 is s3://bucket/path")
    segments = [segment for segment in unquote(path).split("/") if segment]
    if not bucket or any(segment in (".", "..") for segment in segments):
        raise SettingsError(f"{uri!r} names no path in a bucket; a table on S3 is s3://bucket/path")
    if bucket.endswith("--xa-s3"):
        raise SettingsError(
            f"{uri!r} names an access point of a directory bucket (S3 Express One Zone), where Lance would expect "
            "listings in order and miss the latest version. Name the bucket itself, which ends with --x-s3"
        )
    return S3Place(bucket, "".join(f"{segment}/" for segment in segments))


def s3_client(settings: S3Settings) -> AwsClient:
    """Create the client that all stores with these settings share."""
    return AwsClient("s3", settings, endpoint_url=settings.endpoint_url, advice=_ADVICE)


class S3Store:
    """`ObjectStore` on a prefix of a bucket. The caller owns the client and closes it."""

    lists_whole_folders = False

    def __init__(self, client: AwsClient, place: S3Place, *, failed: Callable[[Fault], None] = ignored) -> None:
        """`failed`: called with the fault of each request that fails."""
        self._client = client
        self._retries = Retries(client.settings.attempts, failed)
        self._bucket = place.bucket
        self._prefix = place.prefix
        self.uri = place.uri
        settings = client.settings
        writing = {
            "ServerSideEncryption": settings.server_side_encryption,
            "SSEKMSKeyId": settings.sse_kms_key_id,
            "ChecksumAlgorithm": settings.checksum_algorithm,
        }
        self._writing: dict[str, Any] = {name: value for name, value in writing.items() if value is not None}
        """Parameters of each request that writes an object: its encryption and its checksum."""

    async def get(self, key: str) -> bytes | None:
        part = await self._read(key)
        return None if part is None else part.body

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        if start >= end:
            return None if await self.head(key) is None else b""
        part = await self._read(key, f"bytes={start}-{end - 1}")
        # A server that ignores the Range header sends the whole object.
        return None if part is None else part.body[start - part.start : end - part.start]

    async def get_tail(self, key: str, size: int) -> Tail | None:
        part = await self._read(key, f"bytes=-{size}")
        if part is None:
            return None
        if part.whole is not None:
            return Tail(body=part.body[-size:], size=part.whole)
        # The range was unsatisfiable: the object is empty, or the server does not support suffix ranges.
        return await tail_by_size(self, key, size)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)

    async def head(self, key: str) -> int | None:
        try:
            response = await self._repeated("head_object", of_object=True, **self._at(key))
        except Absent:
            return None
        if "ContentLength" not in response:
            raise StoreUnavailable(f"s3 head_object of {self.uri}/{key}: the server does not report the object's size")
        return int(response["ContentLength"])

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """As the port says; sends one request per 1,000 keys and subfolders."""
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"a folder ends with a slash: {prefix!r}")
        keys, chosen = list[str](), dict[str, Any](Delimiter="/")
        if start_after:
            chosen["StartAfter"] = self._prefix + start_after
        async for found in self._pages(prefix, keys_max=limit or _PAGE_KEYS_MAX, **chosen):
            keys += [entry.key for entry in found]
            if limit is not None and len(keys) >= limit:
                break
        return keys[:limit]

    def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        """As the port says; sends one request per 1,000 objects."""
        return self._pages(prefix)

    async def _pages(
        self, prefix: str, *, keys_max: int = _PAGE_KEYS_MAX, **chosen: Any
    ) -> AsyncIterator[Sequence[ObjectEntry]]:
        """Yield the objects below `prefix`, page by page, of `keys_max` at most. `chosen`: further parameters."""
        while True:
            response = await self._repeated(
                "list_objects_v2",
                where=f"{self.uri}/{prefix}",
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                MaxKeys=min(keys_max, _PAGE_KEYS_MAX),
                **chosen,
            )
            yield [
                ObjectEntry(
                    key=entry["Key"].removeprefix(self._prefix),
                    size=int(entry["Size"]),
                    modified_ms=int(entry["LastModified"].timestamp() * 1000),
                )
                for entry in response.get("Contents", ())
                if not entry["Key"].endswith("/")  # consoles create such an object to show an empty folder
            ]
            if not response.get("IsTruncated"):
                return
            chosen["ContinuationToken"] = response["NextContinuationToken"]

    async def put(self, key: str, body: bytes) -> None:
        await self._repeated("put_object", Body=body, **self._at(key), **self._writing)

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        at = self._at(key)
        put = self._client.send("put_object", Body=in_one_piece(body), IfNoneMatch="*", **at, **self._writing)
        return await self._retries.once(put, what=at["where"])

    async def copy(self, source: str, target: str) -> bool:
        copied = {"Bucket": self._bucket, "Key": self._at(source)["Key"]}
        try:
            await self._repeated("copy_object", CopySource=copied, **self._at(target), **self._writing)
        except Absent:
            return False
        return True

    async def delete(self, key: str) -> None:
        with suppress(Absent):
            await self._repeated("delete_object", of_object=True, **self._at(key))

    async def _read(self, key: str, span: str = "") -> _Part | None:
        """Read an object or a range of it; None when it does not exist. `span`: value of the header Range."""
        parameters = self._at(key) | ({"Range": span} if span else {})
        is_one_of_many = key.startswith(DATA)  # very many data files are read, to check them
        read = partial(self._client.read, is_one_of_many=is_one_of_many, **parameters)
        try:
            response = await self._retries.repeated(read, of_object=True)
        except Absent:
            return None
        except ConditionFailed:  # there is nothing in the range
            return _Part(b"", 0, None)
        return _part(response["Body"], response.get("ContentRange"))

    async def _repeated(self, operation: str, *, of_object: bool = False, **parameters: Any) -> dict[str, Any]:
        return await self._retries.repeated(partial(self._client.send, operation, **parameters), of_object=of_object)

    def _at(self, key: str) -> dict[str, Any]:
        """Return the parameters of a request about an object: its name for messages, its bucket and its key there.

        Raises `InvalidRequest` (`path_invalid`) when no such key can exist.
        """
        require_below_root(key)
        full = self._prefix + key
        if len(full.encode("utf-8", "replace")) > _KEY_BYTES_MAX:
            raise InvalidRequest(f"{key[:200]!r} is longer than S3 allows: {_KEY_BYTES_MAX} bytes", code="path_invalid")
        return {"where": f"{self.uri}/{key}", "Bucket": self._bucket, "Key": full}


class _Part(NamedTuple):
    """An object or a part of it."""

    body: bytes
    start: int
    """Position of the body in the object."""
    whole: int | None
    """Size of the whole object in bytes; None when the server does not report it, as for an unsatisfiable range."""


def _part(body: bytes, content_range: str | None) -> _Part:
    """`content_range`: the header Content-Range, as `bytes 3-9/10`; None = the body is the whole object."""
    if content_range is None:
        return _Part(body, 0, len(body))
    bounds, _, whole = content_range.removeprefix("bytes ").partition("/")
    return _Part(body, int(bounds.partition("-")[0]), int(whole) if whole.isdecimal() else None)
