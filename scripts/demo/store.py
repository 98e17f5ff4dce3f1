"""The object store of the demo, for a table in a bucket."""

from __future__ import annotations

from contextlib import ExitStack

from committerd.errors import CommitterError
from harness.azure import AZURITE, AzureEndpoint, Azurite
from harness.dynamodb import DynamoDBLocal
from harness.gcs import FAKE_GCS, GcsEndpoint, gcs_server
from harness.places import StorePlace, cloud_place, ddb_place, s3_place
from harness.s3 import VERSITYGW, S3Endpoint, given_endpoint, s3_server
from scripts.demo.fleet import DemoFailed
from scripts.demo.screen import Screen


def start_store(kind: str, screen: Screen, cleanup: ExitStack) -> StorePlace:
    """Return a place for a table: in a new bucket (`s3`), with its versions in DynamoDB too (`s3+ddb`), or on a cloud.

    Raises `DemoFailed` if the store can't be started.
    """
    try:
        if kind == "azure":
            return cloud_place(_start_azure(screen, cleanup))
        if kind == "gcs":
            return cloud_place(_start_gcs(screen, cleanup))
        s3 = _start_s3(screen, cleanup)
        if kind == "s3":
            place = s3_place(s3)
        else:
            screen.step("Starting DynamoDB Local in a child JVM (the first time it is downloaded, 48 MB)")
            dynamodb = cleanup.enter_context(DynamoDBLocal())
            cleanup.callback(dynamodb.kill)  # its tables are deleted anyway
            screen.done(f"it responds at {dynamodb.url}")
            place = ddb_place(s3, dynamodb.endpoint)
    except (CommitterError, RuntimeError) as error:  # a program is missing, or did not start; the message says which
        raise DemoFailed(str(error)) from error
    if given_endpoint() is not None:
        cleanup.callback(s3.remove_bucket, place.bucket)
    return place


def _start_azure(screen: Screen, cleanup: ExitStack) -> AzureEndpoint:
    installing = "" if AZURITE.path.is_file() else " (the first time it is downloaded, 190 MB)"
    screen.step(f"Starting Azurite, a server of Azure Blob Storage{installing}")
    azure = cleanup.enter_context(Azurite()).endpoint
    screen.done(f"it responds at {azure.url}")
    return azure


def _start_gcs(screen: Screen, cleanup: ExitStack) -> GcsEndpoint:
    building = "" if FAKE_GCS.path.is_file() else " (building it takes three minutes, once)"
    screen.step(f"Starting fake-gcs-server, a server of Google Cloud Storage{building}")
    gcs = cleanup.enter_context(gcs_server())
    screen.done(f"it responds at {gcs.url}")
    return gcs


def _start_s3(screen: Screen, cleanup: ExitStack) -> S3Endpoint:
    given = given_endpoint()
    if given is not None:
        screen.step(f"Using the S3 server at {given.url}")
    elif VERSITYGW.path.is_file():
        screen.step("Starting versitygw, an S3 server")
    else:
        screen.step(f"Building versitygw {VERSITYGW.version}, an S3 server (about a minute, once), and starting it")
    s3 = cleanup.enter_context(s3_server())
    screen.done(f"it responds at {s3.url}")
    return s3
