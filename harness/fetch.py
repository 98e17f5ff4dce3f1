"""Builds and downloads the programs that tests need besides Kafka, and prints its progress: `python -m harness.fetch`.

It also writes an archive of Spark's classes. It makes nothing twice. Without Go or a whole Java it names the tests that
will be skipped, and does not fail.
"""

from __future__ import annotations

from committerd.dev.jars import folder_of
from harness import PartMissingError, cache_folder, spark_classes
from harness.azure import AZURITE
from harness.dynamodb import DYNAMODB, dynamodb_jars
from harness.gcs import FAKE_GCS
from harness.s3 import MINIO, VERSITYGW
from harness.toxiproxy import TOXIPROXY

_SECONDS = {VERSITYGW: 55, MINIO: 120, TOXIPROXY: 20, FAKE_GCS: 180}
"""Build time of each program in seconds, on two cores, without a cache."""


def _say(text: str) -> None:
    print(f"==> {text}", flush=True)


def _main() -> None:
    try:
        for program, seconds in _SECONDS.items():
            if not program.path.is_file():
                _say(f"{program.name} with `go install` into {cache_folder()} (about {seconds} s, once)")
                program.built()
    except PartMissingError as error:
        _say(f"Tests that need an S3 server or Google Cloud Storage will be skipped: {error}")
    if not AZURITE.path.is_file():
        _say(f"{AZURITE.name} with `npm ci` into {cache_folder()} (about 190 MB on disk, once)")
        AZURITE.installed()
    try:
        if not folder_of(DYNAMODB).is_dir():
            _say(f"DynamoDB Local into {cache_folder()} (about 48 MB to download, once)")
        dynamodb_jars()
    except PartMissingError as error:
        _say(f"Tests that need DynamoDB will be skipped: {error}")
    try:
        spark_classes.write(say=_say)
    except PartMissingError as error:
        _say(f"Tests that run Spark will be skipped: {error}")
    except Exception as error:  # noqa: BLE001  # Spark works without it
        _say(f"There is no archive of Spark's classes, and sessions start more slowly: {type(error).__name__}: {error}")


if __name__ == "__main__":
    _main()
