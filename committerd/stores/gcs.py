"""Google Cloud Storage: `gs://bucket/path`.

One PUT with `x-goog-if-generation-match: 0` creates a version. Status 412 is `Exists`. Google allows about one change
of an object per second. No commit meets this limit, because each version is an object of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from committerd.settings.clouds import GcsSettings
from committerd.stores.cloud import Cloud, certificate_advice, plain

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_ROLE = "the credentials may not do this: give them the role Storage Object User on the bucket"
_WRONG = "the credentials are not valid there: check the settings of the group gcs, or the default credentials"


def gcs_options(settings: GcsSettings) -> dict[str, str | None]:
    """Lance's storage options."""
    return {
        "google_service_account": settings.service_account,
        "google_service_account_key": plain(settings.service_account_key),
        "google_application_credentials": settings.application_credentials,
        "google_base_url": settings.endpoint_url,
    }


def gcs_credentials(settings: GcsSettings) -> Any:
    """What fetches tokens by workload identity federation; None for credentials of other kinds.

    object_store reads files with credentials of service accounts and of users. Lance also reads files of the type
    `external_account`, so google-auth reads them here. Raises `ValueError` for such a file that it refuses.
    """
    path = settings.application_credentials or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if path is None or settings.service_account or settings.service_account_key:
        return None
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # obstore says what is wrong with it
        return None
    if not isinstance(said, dict) or said.get("type") != "external_account":
        return None
    from google.auth import aws, identity_pool
    from obstore.auth.google import GoogleCredentialProvider

    kind = aws if "environment_id" in (said.get("credential_source") or {}) else identity_pool
    return GoogleCredentialProvider(kind.Credentials.from_file(path, scopes=[_SCOPE]))


GCS = Cloud(
    service="gcs",
    name="Google Cloud Storage",
    form="gs://bucket/path",
    schemes={"gs": "gs"},
    obstore_class="GCSStore",
    defaults=GcsSettings(),
    options=gcs_options,
    credentials=gcs_credentials,
    has_suffix_ranges=True,
    advice={
        **certificate_advice("gcs"),
        "NoSuchBucket": "create the bucket, or correct the table's URI",
        "401": _WRONG,
        "403": _ROLE,
    },
)
