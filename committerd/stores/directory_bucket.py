"""A table's directory in a directory bucket of S3 (S3 Express One Zone; the bucket's name ends with `--x-s3`).

Such a bucket lists whole folders only, in no order. Everything else is as in other buckets: the SDK finds the zone's
endpoint by the bucket's name, and signs with the credentials of a session, which it renews. (`plain_reads` can't, and
leaves these requests to the SDK.)

Since version 7, Lance finds the latest version of such a table by a hint, and from there upwards by HEAD. Without a
hint it lists all versions. So each commit writes the hint, at the same moment and in the same form as a commit of Lance
(lance-table 14.0.2, `write_version_hint` in src/io/commit.rs).

committerd never reads the hint. A writer that knows no hints leaves it outdated. If a cleanup then deletes the versions
above the hinted one, and a tag keeps that one, it looks like the latest.
"""

from __future__ import annotations

import logging

from committerd.errors import PutUnknown, StoreUnavailable
from committerd.stores.port import Content, Created, Exists
from committerd.stores.s3 import S3Store
from committerd_common.paths import VERSION_HINT, VERSIONS, parse_manifest_name

_log = logging.getLogger(__name__)


class DirectoryBucketStore(S3Store):
    """`ObjectStore` on a prefix of a directory bucket. The caller owns the client and closes it."""

    lists_whole_folders = True

    async def list(self, prefix: str, *, start_after: str = "", limit: int | None = None) -> list[str]:
        """As the port says; sends one request per 1,000 keys and subfolders of the whole folder."""
        keys = await super().list(prefix)
        return sorted(key for key in keys if key > start_after)[:limit]

    async def put_if_absent(self, key: str, body: Content) -> Created | Exists:
        """As the port says. After it has created a manifest, it also writes the version hint, once and if it can."""
        result = await super().put_if_absent(key, body)
        named = parse_manifest_name(key.removeprefix(VERSIONS)) if key.startswith(VERSIONS) else None
        if named is not None and isinstance(result, Created):
            await self._write_hint(named.version)
        return result

    async def _write_hint(self, version: int) -> None:
        at = self._at(VERSION_HINT)
        put = self._client.send("put_object", Body=b'{"version":%d}' % version, **at, **self._writing)
        try:
            await self._retries.once(put, what=at["where"])
        except (PutUnknown, StoreUnavailable) as error:
            _log.info("hint.not_written", extra={"version": version, "error": str(error)})
