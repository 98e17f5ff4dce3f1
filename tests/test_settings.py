"""Settings from file and environment; a misspelt name is an error that helps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from committerd.errors import SettingsError
from committerd.lance.format.kind import Kind
from committerd.queue.rounds import Coalesce
from committerd.settings.dataset import DatasetSettings
from committerd.settings.load import all_settings, load_served, load_settings, only_dataset

REQUIRED = {
    "COMMITTERD_DATASET__NAME": "events",
    "COMMITTERD_DATASET__URI": "/data/t.lance",
    "COMMITTERD_KAFKA__BOOTSTRAP_SERVERS": "a:9092,b:9092",
}


@pytest.fixture(autouse=True)
def _only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMITTERD_CONFIG", raising=False)
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)


def test_three_settings_are_enough() -> None:
    settings = load_settings()
    assert (settings.dataset.name, settings.dataset.uri) == ("events", "/data/t.lance")
    assert settings.kafka.bootstrap_servers == ("a:9092", "b:9092")
    assert settings.commit.coalesce is Coalesce.ALL
    assert settings.store.durable
    assert settings.commit.allowed_operations == set(Kind) - {Kind.CLONE, Kind.UPDATE_BASES}


def test_several_values_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_DATASET__ALIASES", "s3://a/t, s3://b/t")
    monkeypatch.setenv("COMMITTERD_COMMIT__ALLOWED_OPERATIONS", "append,overwrite")
    settings = load_settings()
    assert settings.dataset.aliases == ("s3://a/t", "s3://b/t")
    assert settings.commit.allowed_operations == {Kind.APPEND, Kind.OVERWRITE}


@pytest.mark.parametrize(
    ("branch", "queue", "place", "aliases"),
    [
        (None, "events", "s3://lake/t", ("s3://mount/t",)),
        ("main", "events", "s3://lake/t", ("s3://mount/t",)),
        ("team/exp", "events.tree.team..exp", "s3://lake/t/tree/team/exp", ("s3://mount/t/tree/team/exp",)),
    ],
)
def test_a_branch_has_a_place_and_a_queue_of_its_own(
    branch: str | None, queue: str, place: str, aliases: tuple[str, ...]
) -> None:
    given = {"name": "events", "uri": "s3://lake/t", "aliases": ["s3://mount/t"]}
    dataset = DatasetSettings.model_validate(given if branch is None else given | {"branch": branch})
    assert (dataset.queue, dataset.place, dataset.place_aliases) == (queue, place, aliases)


def test_a_name_that_no_branch_has_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_DATASET__BRANCH", "a//b")
    with pytest.raises(SettingsError, match=r"dataset\.branch \(COMMITTERD_DATASET__BRANCH\): .*two slashes"):
        load_settings()


def test_several_values_may_be_a_json_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting that is a list; a comma in a value needs it."""
    for name, value in (
        ("DATASET__ALIASES", '["/a,b", "s3://b/t"]'),
        ("COMMIT__ALLOWED_OPERATIONS", '["append"]'),
        ("COMMIT__ALLOWED_BASES", "[]"),
        ("KAFKA__BOOTSTRAP_SERVERS", ' ["a:1", "b:2"] '),
        ("KAFKA__API_VERSION", "[3, 9]"),
    ):
        monkeypatch.setenv(f"COMMITTERD_{name}", value)
    settings = load_settings()
    assert settings.dataset.aliases == ("/a,b", "s3://b/t")
    assert settings.commit.allowed_operations == {Kind.APPEND}
    assert settings.commit.allowed_bases == ()
    assert settings.kafka.bootstrap_servers == ("a:1", "b:2")
    assert settings.kafka.api_version == (3, 9)


@pytest.mark.parametrize("value", ["[/a]", '["/a"', "[1]", '["/a"],/b', '["/a", null]'])
def test_what_begins_as_a_json_list_and_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COMMITTERD_DATASET__ALIASES", value)
    with pytest.raises(SettingsError, match=r"dataset\.aliases .*no JSON list of texts: write"):
        load_settings()


def test_a_missing_setting_is_named_as_it_is_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMITTERD_DATASET__URI")
    with pytest.raises(SettingsError, match=r"dataset\.uri \(COMMITTERD_DATASET__URI\): is missing"):
        load_settings()


def test_without_any_setting_each_one_that_is_needed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REQUIRED:
        monkeypatch.delenv(name)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert [line.partition("(")[2] for line in str(refused.value).splitlines()[-3:]] == [
        f"{name}): is missing" for name in REQUIRED
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("COMMITTERD_KAFKA__BOOTSTRAP_SERVRS", "did you mean COMMITTERD_KAFKA__BOOTSTRAP_SERVERS"),
        ("COMMITTERD_KAFKA_BOOTSTRAP_SERVERS", "did you mean COMMITTERD_KAFKA__BOOTSTRAP_SERVERS"),
        ("COMMITTERD_COMIT__VERIFY_FILES", "did you mean COMMITTERD_COMMIT__VERIFY_FILES"),
        ("COMMITTERD_X__Y", "no such setting"),
        ("committerd_store__durabel", "did you mean COMMITTERD_STORE__DURABLE"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=hint):
        load_settings()


def test_variables_that_kubernetes_makes_for_a_service_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("COMMITTERD_PORT", "tcp://10.0.0.1:9464")
    load_settings()


def test_a_group_given_as_a_word_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_STORE", "durable")
    with pytest.raises(SettingsError, match="store"):
        load_settings()


def test_a_wrong_value_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_COMMIT__VERIFY_FILES", "sometimes")
    with pytest.raises(SettingsError, match="COMMITTERD_COMMIT__VERIFY_FILES"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATASET__URI", "s3://key:s3cret@lake/t.lance", "dataset.uri (COMMITTERD_DATASET__URI)"),
        ("DATASET__URI", "  ", "the URI is empty"),
        ("DATASET__ALIASES", "s3://lake/t.lance,s3a://key:s3cret@lake/t.lance", "dataset.aliases"),
        ("COMMIT__ALLOWED_BASES", "s3://key:s3cret@lake", "commit.allowed_bases (COMMITTERD_COMMIT__ALLOWED_BASES)"),
        ("KAFKA__BOOTSTRAP_SERVERS", "me:s3cret@a:9092", "bootstrap_servers: must not contain a user or password"),
        ("KAFKA__HEARTBEAT_INTERVAL_MS", "10000", "heartbeat_interval_ms (10000) must be at most a third"),
        ("KAFKA__SECURITY_PROTOCOL", "SASL_SSL", "needs sasl_mechanism"),
        ("KAFKA__SASL_PLAIN_PASSWORD", "s3cret", "sasl_plain_password and its file need security_protocol"),
        ("DAEMON__DRAIN_SECONDS", "inf", "daemon.drain_seconds"),
        ("STORE__RECHECK_SECONDS", "nan", "store.recheck_seconds"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_name_and_no_secret_is_repeated(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"COMMITTERD_{name}", value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert said in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "committerd.toml"
    file.write_text('[dataset]\nname = "file"\nuri = "/file"\n[commit]\ngroup_records_max = 7\n')
    monkeypatch.setenv("COMMITTERD_CONFIG", str(file))
    settings = load_settings()
    assert (settings.dataset.name, settings.commit.group_records_max) == ("events", 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[commit]\ngroup_recods_max = 7\n", r"commit\.group_recods_max"),
        ("[comit]\nx = 1\n", "comit"),
        ("[commit\n", "settings file"),
    ],
)
def test_a_wrong_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "committerd.toml"
    file.write_text(text)
    monkeypatch.setenv("COMMITTERD_CONFIG", str(file))
    with pytest.raises(SettingsError, match=message):
        load_settings()


def test_a_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMMITTERD_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match=r"none\.toml"):
        load_settings()


def test_secrets_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_KAFKA__SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("COMMITTERD_KAFKA__SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("COMMITTERD_KAFKA__SASL_PLAIN_USERNAME", "me")
    monkeypatch.setenv("COMMITTERD_KAFKA__SASL_PLAIN_PASSWORD", "hunter2")
    assert "hunter2" not in repr(load_settings())


def test_every_setting_says_what_it_is_for() -> None:
    settings = dict(all_settings())
    assert all(field.description for field in settings.values())
    assert len(settings) > 50


def test_the_help_of_run_lists_every_setting() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "committerd", "run", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(name in help_text for name, _ in all_settings())


def test_wrong_settings_end_the_process_with_2_and_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "committerd", "run"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "COMMITTERD_DATASET__NAME": "has space"},
    )
    assert ended.returncode == 2
    assert "COMMITTERD_DATASET__NAME" in ended.stderr
    assert "Traceback" not in ended.stderr


MANY = """
[kafka]
bootstrap_servers = ["a:9092"]
group = "lake"
[commit]
group_records_max = 7
hold_seconds_max = 1.5
[s3]
access_key_id = "shared"
secret_access_key = "s3cret"
region = "eu-central-1"
[datasets.events]
uri = "/events"
[datasets.clicks]
uri = "s3://lake/clicks"
aliases = ["s3://mount/clicks"]
[datasets.clicks.commit]
group_records_max = 9
[datasets.clicks.s3]
profile = "clicks"
[datasets.exp]
name = "events"
uri = "/events"
branch = "exp"
"""


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that names many datasets, and no other settings."""
    for name in REQUIRED:
        monkeypatch.delenv(name)
    file = tmp_path / "committerd.toml"
    file.write_text(MANY)
    monkeypatch.setenv("COMMITTERD_CONFIG", str(file))
    return file


def test_each_of_many_datasets_has_the_shared_settings_and_its_own(many: Path) -> None:
    served = load_served()
    assert not served.is_one
    assert list(served.datasets) == ["events", "clicks", "events.tree.exp"]
    events, clicks, branch = served.datasets.values()
    assert (events.commit.group_records_max, clicks.commit.group_records_max) == (7, 9)
    assert clicks.commit.hold_seconds_max == branch.commit.hold_seconds_max == 1.5
    assert (branch.dataset.name, branch.dataset.place) == ("events", "/events/tree/exp")
    assert clicks.dataset.aliases == ("s3://mount/clicks",)
    # A login of its own replaces the shared one; the rest stays.
    assert events.s3.access_key_id is not None
    assert (clicks.s3.profile, clicks.s3.access_key_id, clicks.s3.region) == ("clicks", None, "eu-central-1")
    assert "s3cret" not in repr(served)


def test_a_login_of_another_kind_replaces_the_shared_one(many: Path) -> None:
    many.write_text(
        """
        kafka = {bootstrap_servers = ["kafka:9092"], group = "lake"}
        azure = {account_name = "ours", account_key = "a2V5", connections_max = 7}
        gcs = {service_account = "/ours.json"}
        datasets.ours.uri = "az://lake/ours"
        datasets.theirs = {uri = "az://lake/theirs", azure = {account_name = "theirs", sas_token = "sv=1"}}
        datasets.third = {uri = "gs://lake/third", gcs = {service_account_key = "{}"}}
        """
    )
    ours, theirs, third = load_served().datasets.values()
    assert ours.azure.account_key is not None
    assert (theirs.azure.account_name, theirs.azure.account_key, theirs.azure.connections_max) == ("theirs", None, 7)
    assert theirs.azure.sas_token is not None
    assert (third.gcs.service_account, third.gcs.service_account_key is not None) == (None, True)


def test_the_environment_overrides_a_group_for_all_datasets(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_COMMIT__HOLD_SECONDS_MAX", "0.5")
    assert {one.commit.hold_seconds_max for one in load_served().datasets.values()} == {0.5}


def test_a_command_for_one_dataset_needs_its_name_where_there_are_many(many: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"3 datasets, choose one with --dataset NAME: clicks, events, events\.tree\.exp"
    ):
        load_settings()
    assert only_dataset(load_served(), "clicks").dataset.uri == "s3://lake/clicks"
    with pytest.raises(SettingsError, match="no dataset 'nowhere'; they name clicks"):
        only_dataset(load_served(), "nowhere")


def test_the_group_dataset_alone_is_a_process_for_one() -> None:
    served = load_served()
    assert served.is_one
    assert list(served.datasets) == ["events"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[datasets.x]\n", "datasets.x.uri: is missing"),
        ("[datasets.x]\nuri = '/x'\nuir = 1\n", "datasets.x.uir: no such setting"),
        (
            "[datasets.x]\nuri = '/x'\n[datasets.x.commit]\ngroup_recods_max = 1\n",
            "datasets.x.commit.group_recods_max: no",
        ),
        (
            "[datasets.x]\nuri = '/x'\n[datasets.x.commit]\ngroup_records_max = 0\n",
            "datasets.x.commit.group_records_max: ",
        ),
        ("[datasets.x]\nuri = '/x'\n[datasets.x.kafka]\ngroup_prefix = 'a'\n", "datasets.x.kafka: no such setting"),
        ("[datasets.'a b']\nuri = '/x'\n", "datasets.a b.name: "),
        ("[datasets.x]\nuri = 's3://u:pw@lake/x'\n", "datasets.x.uri: a URI must not contain a user or password"),
        ("[datasets.x]\nuri = '/events'\n", "datasets.events and datasets.x are one table, /events"),
        ("[datasets.x]\nuri = 's3://mount/clicks'\n", "datasets.clicks and datasets.x are one table"),
        (
            "[datasets.x]\nuri = '/x'\nname = 'events'\n",
            "datasets.events and datasets.x would share the queue 'events'",
        ),
        ("[dataset]\nname = 'x'\nuri = '/x'\n", "dataset and datasets exclude each other"),
    ],
)
def test_a_wrong_entry_is_named_and_no_secret_is_repeated(many: Path, more: str, said: str) -> None:
    many.write_text(MANY + more)
    with pytest.raises(SettingsError) as refused:
        load_served()
    assert said in str(refused.value)
    assert "pw" not in str(refused.value)


def test_datasets_are_not_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITTERD_DATASETS__X__URI", "/x")
    with pytest.raises(SettingsError, match="datasets are named in the settings file"):
        load_settings()


def test_no_dataset_at_all_is_an_error(many: Path) -> None:
    many.write_text("[kafka]\nbootstrap_servers = ['a:1']\n[datasets]\n")
    with pytest.raises(SettingsError, match="datasets is empty"):
        load_served()


def test_processes_for_many_datasets_need_the_name_of_their_group(many: Path) -> None:
    assert load_served().name == "lake"
    many.write_text(MANY.replace('group = "lake"', ""))
    with pytest.raises(SettingsError, match=r"kafka\.group \(COMMITTERD_KAFKA__GROUP\): is missing"):
        load_served()
