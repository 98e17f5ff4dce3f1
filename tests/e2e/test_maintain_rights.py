"""What `committerd maintain` may do is enough: the ACLs of docs/operating.md, and the permissions of docs/stores.md.

It names an ACL that is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import botocore.session
import pytest
from kafka.admin import ACLOperation, ResourceType

from committerd.commands.maintain import one_table
from committerd_client import CommitClient, SyncCommitClient
from harness.child import Launch
from harness.kafka import LOGIN, KafkaBroker, RunningKafka
from harness.places import s3_place
from harness.s3 import S3Endpoint
from harness.scene import Scene
from tests.commands.running import Ran, run
from tests.kafka.acls import Right, allow, allow_only

pytestmark = [pytest.mark.kafka, pytest.mark.pylance]

READ, WRITE, DESCRIBE = ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE


@pytest.fixture
def scene(strict_kafka: KafkaBroker, dataset: str, tmp_path: Path, launch: Launch) -> Iterator[Scene]:
    """A dataset on that broker, with small fragments, and a file that no version names."""
    with Scene(kafka=strict_kafka.bootstrap_servers, name=dataset, folder=tmp_path, launch=launch) as made:
        made.table.create(rows=10)
        made.started()
        made.committed(12)
        nobodys = _nobodys_file(made)
        nobodys.write_bytes(b"?")
        os.utime(nobodys, (1, 1))
        yield made


def _nobodys_file(scene: Scene) -> Path:
    return Path(scene.table.uri, "data/nobodys.lance")


def _listed(dataset: str) -> dict[str, Right]:
    """The rights that docs/operating.md lists."""
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    return {
        "Read staged": (READ, topic, f"{dataset}.staged"),
        "Write staged": (WRITE, topic, f"{dataset}.staged"),
        "Read outcomes": (READ, topic, f"{dataset}.outcomes"),
        "Read dead": (READ, topic, f"{dataset}.dead"),
        "Describe group": (DESCRIBE, group, f"committerd.{dataset}"),
    }


def _once(scene: Scene, broker: KafkaBroker) -> Ran:
    user, password = LOGIN
    return run(
        scene,
        *("maintain", "--once"),
        KAFKA__BOOTSTRAP_SERVERS=broker.login_servers,
        KAFKA__SECURITY_PROTOCOL="SASL_PLAINTEXT",
        KAFKA__SASL_MECHANISM="PLAIN",
        KAFKA__SASL_PLAIN_USERNAME=user,
        KAFKA__SASL_PLAIN_PASSWORD=password,
        MAINTAIN__ROWS_PER_FRAGMENT="1000",
    )


def test_with_the_rights_that_the_page_lists_it_compacts_and_cleans_up(scene: Scene, strict_kafka: KafkaBroker) -> None:
    allow(strict_kafka, [*_listed(scene.name).values()])
    done = _once(scene, strict_kafka)
    assert done.code == 0, done.err
    assert "12 fragments became 1" in done.out
    assert not _nobodys_file(scene).exists()


@pytest.mark.parametrize(
    ("without", "elsewhere", "said"),
    [
        ("Read staged", False, "no ACL Read on Topic {}.staged"),
        ("Write staged", False, "topic {}.staged: the user has no ACL Write on it"),
        ("Write staged", True, "topic {}.staged: the user has no ACL Write on it"),
        ("Read outcomes", False, "topic '{}.outcomes' does not exist, or the user has no ACL Read on it"),
        ("Read dead", False, "no ACL Read on Topic {}.dead"),
        ("Describe group", False, "no ACL Describe on Group committerd.{}"),
    ],
)
def test_without_one_of_them_it_says_which_one_is_missing(
    scene: Scene, strict_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, without: str, elsewhere: bool, said: str
) -> None:
    """`elsewhere`: the user may write to another topic. Kafka refuses a user who may write to none in another way."""
    other = [(WRITE, ResourceType.TOPIC, f"{scene.name}.elsewhere")] if elsewhere else []
    allow_only(strict_kafka, [right for name, right in _listed(scene.name).items() if name != without] + other)
    told, out = "", ""
    for seconds in (12.0, 60.0):  # a client that waits in vain; on a busy machine, a short time-out knows less
        monkeypatch.setattr(one_table, "CommitClient", partial(CommitClient, connect_timeout=seconds))
        done = _once(scene, strict_kafka)
        assert done.code != 0
        told, out = done.err, out + done.out
        if said.format(scene.name) in told:
            break
    assert said.format(scene.name) in told
    # Only what needs the right fails.
    assert ("fragments became 1" in out) == (without == "Read dead")
    assert _nobodys_file(scene).exists() == (without != "Write staged")


def test_a_client_needs_two_of_them(scene: Scene, strict_kafka: KafkaBroker) -> None:
    listed = _listed(scene.name)
    allow(strict_kafka, [listed["Write staged"], listed["Read outcomes"]])
    user, password = LOGIN
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    with SyncCommitClient(strict_kafka.login_servers, dataset=scene.name, kafka_options=login) as client:
        assert client.commit(scene.table.append()).version == scene.table.version


@pytest.mark.s3
def test_the_permissions_on_s3_that_the_page_lists_are_enough(
    kafka: KafkaBroker | RunningKafka,
    minio: S3Endpoint,
    dataset: str,
    tmp_path: Path,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An hour lasts a millisecond, so that old versions are deleted too."""
    policy = one_table.policy_of
    monkeypatch.setattr(one_table, "policy_of", lambda settings, **_: policy(settings, hour_ms=1))
    place = s3_place(minio)
    limited = _limited(minio, place.bucket)
    with Scene(kafka=kafka.bootstrap_servers, name=dataset, folder=tmp_path, place=place, launch=launch) as scene:
        scene.table.create(rows=10)
        scene.started(**limited)
        scene.committed(12)
        given = dict(place.settings) | limited | {"MAINTAIN__KEEP_VERSIONS": "2"}
        done = run(scene, "maintain", "--once", **given)
        assert done.code == 0, done.err
        assert "12 fragments became 1" in done.out
        assert scene.table.open().versions()[0]["version"] > 1


def _limited(server: S3Endpoint, bucket: str) -> dict[str, str]:
    """Settings with a login that may do what docs/stores.md lists, and nothing else, in this bucket."""
    page = Path(__file__).parents[2].joinpath("docs/stores.md").read_text("utf-8")
    policies = re.findall(r'^\{"Version".*?^\]\}', page, re.DOTALL | re.MULTILINE)
    (policy,) = (one for one in policies if "arn:aws:s3:::" in one)
    own = policy.replace("lake/events.lance", f"{bucket}/lake/table.lance").replace(':::lake"', f':::{bucket}"')
    client = botocore.session.Session().create_client(
        "sts",
        endpoint_url=server.url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
    )
    made = client.assume_role(RoleArn="arn:minio:takes:any:one", RoleSessionName="maintenance", Policy=own)
    login = made["Credentials"]
    return {
        "S3__ACCESS_KEY_ID": login["AccessKeyId"],
        "S3__SECRET_ACCESS_KEY": login["SecretAccessKey"],
        "S3__SESSION_TOKEN": login["SessionToken"],
    }
