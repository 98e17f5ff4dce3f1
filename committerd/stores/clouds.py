"""The clouds whose object stores committerd reaches through obstore: from a URI to a place, and what differs.

To add a cloud, write its `Cloud` in a module of its own, as `azure` and `gcs` are, and name it in `CLOUDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from committerd.errors import SettingsError
from committerd.stores.azure import AZURE
from committerd.stores.cloud import Cloud
from committerd.stores.gcs import GCS
from committerd_common.extras import install_line

if TYPE_CHECKING:
    from committerd.settings.clouds import CloudSettings

CLOUDS = (AZURE, GCS)


@dataclass(frozen=True, slots=True)
class CloudPlace:
    """A container or bucket, and the table's prefix in it."""

    cloud: Cloud
    root: str
    """URI of the container, without a slash at the end: `gs://bucket`, `abfss://container@account.dfs...`."""
    prefix: str
    """Empty, or with a trailing slash."""

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.prefix}".rstrip("/")


def cloud_place(uri: str) -> CloudPlace | None:
    """Parse a URI of one of the `CLOUDS` (percent-decoded); None for another scheme.

    Raises `SettingsError` for a URI without a container, with a query or a fragment.
    """
    scheme, separator, rest = uri.partition("://")
    cloud = next((one for one in CLOUDS if scheme.lower() in one.schemes), None)
    if not separator or cloud is None:
        return None
    container, _, path = rest.partition("/")
    segments = [segment for segment in unquote(path).split("/") if segment]
    wrong = "?" in rest or "#" in rest or any(segment in (".", "..") for segment in segments)
    if not container.partition("@")[0] or wrong:
        raise SettingsError(f"{uri!r} names no path in {cloud.name}; a table there is {cloud.form}")
    root = f"{cloud.schemes[scheme.lower()]}://{container}"
    return CloudPlace(cloud, root, "".join(f"{segment}/" for segment in segments))


def require_obstore(cloud: Cloud) -> None:
    """Raise `SettingsError`, which says what to install, if obstore is missing."""
    if find_spec("obstore") is None:
        install = install_line(cloud.service, distribution="committerd")
        raise SettingsError(f"{cloud.name} needs obstore, which is not installed: {install}")


def cloud_settings(settings: Any) -> Mapping[Cloud, CloudSettings]:
    """The group of each cloud in the settings of a process; the group has the name of the cloud's service."""
    return {cloud: getattr(settings, cloud.service) for cloud in CLOUDS}
