"""A table's directory in a bucket of S3, or of an S3-compatible server.

One PUT with `If-None-Match: *` creates a version. Status 412 is `Exists`. Status 409 (another conditional put of the
key was in progress), timeouts, broken connections and 5xx leave the put result unknown: `PutUnknown`. That PUT is
sent only once. All other requests are idempotent, and are retried.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from committerd.errors import InvalidRequest, ObjectUnreadable, PutUnknown, SettingsError, StoreUnavailable
from committerd.settings.s3 import S3Settings
from committerd.stores.aws import AwsClient
from committerd.stores.aws_failures import ABSENT, CallFailed, Fault
from committerd.stores.plain_reads import GetResponse
from committerd.stores.port import Created, Exists, ObjectEntry, Tail, TailOrError, require_below_root, tails_of_each
from committerd_common.paths import DATA

_SCHEMES = ("s3", "s3a", "s3n")
_KEY_BYTES_MAX = 1024
_PAGE_KEYS_MAX = 1000

_PERMISSIONS = (
    "the credentials may not do this: allow s3:GetObject, s3:PutObject and s3:DeleteObject below the table's "
    "prefix, and s3:ListBucket on the bucket"
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


def s3_place(uri: str) -> S3Place | None:
    """Parse an `s3://bucket/path` URI (also s3a, s3n; percent-decoded); None for another scheme.

    Raises `SettingsError` for a URI without a bucket, with credentials, a query or a fragment, or with a directory
    bucket.
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
    if bucket.endswith("--x-s3"):  # no other bucket's name may end so
        raise SettingsError(
            f"{uri!r} is in a directory bucket (S3 Express One Zone), whose listings have no order: the latest version "
            "could not be found. Keep the table in a general purpose bucket"
        )
    return S3Place(bucket, "".join(f"{segment}/" for segment in segments))


def s3_client(settings: S3Settings, *, failed: Callable[[Fault], None], rng: random.Random) -> AwsClient:
    """Create the client that all stores with these settings share. `failed`: called with the fault of each failure."""
    return AwsClient("s3", settings, endpoint_url=settings.endpoint_url, advice=_ADVICE, failed=failed, rng=rng)


class S3Store:
    """`ObjectStore` on a prefix of a bucket. The caller owns the client and closes it."""

    def __init__(self, client: AwsClient, place: S3Place) -> None:
        self._client = client
        self._bucket = place.bucket
        self._prefix = place.prefix
        self.uri = place.uri
        settings = client.settings
        writing = {
            "ServerSideEncryption": settings.server_side_encryption,
            "SSEKMSKeyId": settings.sse_kms_key_id,
            "ChecksumAlgorithm": settings.checksum_algorithm,
        }
        self._writing = {name: value for name, value in writing.items() if value is not None}
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
        whole = await self.head(key)
        body = b"" if not whole else await self.get_range(key, max(whole - size, 0), whole)
        return None if whole is None or body is None else Tail(body=body, size=whole)

    async def get_tails(self, keys: Sequence[str], *, size: int) -> Sequence[TailOrError]:
        return await tails_of_each(self.get_tail, keys, size)

    async def head(self, key: str) -> int | None:
        response = await self._of_object("head_object", key)
        if response is None:
            return None
        if "ContentLength" not in response:
            raise StoreUnavailable(f"s3 head_object of {self.uri}/{key}: the server does not report the object's size")
        return int(response["ContentLength"])

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """As the port says; sends one request per 1,000 keys and subfolders."""
        if prefix and not prefix.endswith("/"):
            raise ValueError(f"a folder ends with a slash: {prefix!r}")
        folder, keys, chosen = self._prefix + prefix, list[str](), {"Delimiter": "/"}
        if start_after:
            chosen["StartAfter"] = self._prefix + start_after
        async for found in self._pages(prefix, keys_max=limit or _PAGE_KEYS_MAX, **chosen):
            # Consoles create an object with the folder's own name to show an empty folder.
            keys += [entry["Key"].removeprefix(self._prefix) for entry in found if entry["Key"] != folder]
            if limit is not None and len(keys) >= limit:
                break
        return keys[:limit]

    async def walk(self, prefix: str) -> AsyncIterator[Sequence[ObjectEntry]]:
        """As the port says; sends one request per 1,000 objects."""
        async for found in self._pages(prefix):
            yield [
                ObjectEntry(
                    key=entry["Key"].removeprefix(self._prefix),
                    size=int(entry["Size"]),
                    modified_ms=int(entry["LastModified"].timestamp() * 1000),
                )
                for entry in found
                if not entry["Key"].endswith("/")
            ]

    async def _pages(
        self, prefix: str, *, keys_max: int = _PAGE_KEYS_MAX, **chosen: str
    ) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
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
            yield response.get("Contents", ())
            if not response.get("IsTruncated"):
                return
            chosen["ContinuationToken"] = response["NextContinuationToken"]

    async def put(self, key: str, body: bytes) -> None:
        await self._repeated("put_object", Body=body, **self._at(key), **self._writing)

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        at = self._at(key)
        name = at["where"]
        try:
            await self._client.once("put_object", Body=body, IfNoneMatch="*", **at, **self._writing)
        except CallFailed as failure:
            if failure.status == 412:
                return Exists()
            if failure.status == 409:
                raise PutUnknown(f"another put of {name} was under way: {failure}") from failure
            if failure.fault is Fault.THROTTLED:
                await self._client.wait(failure)
            if failure.may_have_landed:
                raise PutUnknown(f"{name} may have been created: {failure}") from failure
            raise StoreUnavailable(str(failure)) from failure
        return Created()

    async def copy(self, source: str, target: str) -> bool:
        copied = {"Bucket": self._bucket, "Key": self._at(source)["Key"]}
        try:
            await self._client.repeated("copy_object", CopySource=copied, **self._at(target), **self._writing)
        except CallFailed as failure:
            if failure.code in ABSENT:
                return False
            raise StoreUnavailable(str(failure)) from failure
        return True

    async def delete(self, key: str) -> None:
        await self._of_object("delete_object", key)

    async def _of_object(self, operation: str, key: str) -> dict[str, Any] | None:
        """Send a request about an existing object, and return its response; None when the object does not exist."""
        try:
            return await self._client.repeated(operation, **self._at(key))
        except CallFailed as failure:
            if failure.code in ABSENT:
                return None
            raise _unread(failure) from failure

    async def _read(self, key: str, span: str = "") -> GetResponse | None:
        """Read an object or a range of it; None when it does not exist. `span`: value of the header Range."""
        at, is_one_of_many = self._at(key), key.startswith(DATA)  # very many data files are read, to check them
        try:
            return await self._client.get(
                at["where"], bucket=at["Bucket"], key=at["Key"], span=span, is_one_of_many=is_one_of_many
            )
        except CallFailed as failure:
            if failure.status == 416:
                return GetResponse(body=b"", start=0, whole=None)
            raise _unread(failure) from failure

    async def _repeated(self, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            return await self._client.repeated(operation, **parameters)
        except CallFailed as failure:
            raise StoreUnavailable(str(failure)) from failure

    def _at(self, key: str) -> dict[str, str]:
        """Return the parameters of a request about an object: its name for messages, its bucket and its key there.

        Raises `InvalidRequest` (`path_invalid`) when no such key can exist.
        """
        require_below_root(key)
        full = self._prefix + key
        if len(full.encode("utf-8", "replace")) > _KEY_BYTES_MAX:
            raise InvalidRequest(f"{key[:200]!r} is longer than S3 allows: {_KEY_BYTES_MAX} bytes", code="path_invalid")
        return {"where": f"{self.uri}/{key}", "Bucket": self._bucket, "Key": full}


def _unread(failure: CallFailed) -> StoreUnavailable:
    """Classify a failed read or deletion.

    A 4xx may concern this object alone: its name, encryption key, permissions, archive tier.
    """
    refused = failure.fault is Fault.REFUSED and 400 <= failure.status < 500
    return ObjectUnreadable(str(failure)) if refused else StoreUnavailable(str(failure))
