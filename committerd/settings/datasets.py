"""Group `datasets`: the tables of a process that commits to many.

Each is a table of the settings file, `[datasets.NAME]`, with what is particular to it. The rest it has from the groups
that all datasets share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from committerd.settings.dataset import DatasetSettings
from committerd.settings.group import Listed, SettingsGroup
from committerd_common.uris import canonical_uri

OWN_GROUPS = ("commit", "memory", "maintain", "store", "s3", "dynamodb", "azure", "gcs")
"""Groups of which a dataset may have settings of its own."""
_LOGINS: Mapping[str, frozenset[str]] = {
    "s3": frozenset({"access_key_id", "secret_access_key", "session_token", "profile"}),
    "azure": frozenset({"account_key", "sas_token", "client_id", "client_secret", "federated_token_file"}),
    "gcs": frozenset({"service_account", "service_account_key", "application_credentials"}),
}
"""Settings that are given together or not at all: a dataset's own login replaces the whole one that is shared."""

_WHAT = {"missing": "is missing", "extra_forbidden": "no such setting"}


class DatasetEntry(SettingsGroup):
    """One of many datasets: which table it is, and its own settings of the groups of `OWN_GROUPS`."""

    name: str | None = Field(
        default=None, description="Name of the dataset, if it is not NAME of datasets.NAME: for a branch of a table."
    )
    uri: str = Field(min_length=1, description="As dataset.uri.")
    branch: str = Field(default="", description="As dataset.branch.")
    aliases: Listed = Field(default=(), description="As dataset.aliases.")
    commit: Mapping[str, Any] = {}
    memory: Mapping[str, Any] = {}
    maintain: Mapping[str, Any] = {}
    store: Mapping[str, Any] = {}
    s3: Mapping[str, Any] = {}
    dynamodb: Mapping[str, Any] = {}
    azure: Mapping[str, Any] = {}
    gcs: Mapping[str, Any] = {}

    def dataset(self, key: str) -> DatasetSettings:
        """What the group `dataset` would be. Raises `ValidationError`."""
        return DatasetSettings(
            name=key if self.name is None else self.name, uri=self.uri, branch=self.branch, aliases=self.aliases
        )

    def own_groups(self, shared: Mapping[str, BaseModel]) -> dict[str, BaseModel]:
        """The groups that differ from the shared ones, by name. Raises `WrongEntry`."""
        found, wrong = dict[str, BaseModel](), list[str]()
        for name in OWN_GROUPS:
            given: Mapping[str, Any] = getattr(self, name)
            if not given:
                continue
            base = {key: getattr(shared[name], key) for key in type(shared[name]).model_fields}
            if given.keys() & _LOGINS.get(name, frozenset()):
                base = {key: value for key, value in base.items() if key not in _LOGINS[name]}
            try:
                found[name] = type(shared[name]).model_validate(base | dict(given))
            except ValidationError as error:
                wrong += [f"{name}{text}" for text in in_words(error)]
        if wrong:
            raise WrongEntry(wrong)
        return found


class WrongEntry(Exception):
    """Settings of one dataset are wrong. The arguments: a list of sentences, each beginning with the group."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("; ".join(self.sentences))


def in_words(error: ValidationError) -> Iterator[str]:
    """Each problem, with the place at its beginning: `.uri: is missing`. The values are not repeated."""
    return (problem_in_words(problem) for problem in error.errors())


def problem_in_words(problem: Mapping[str, Any]) -> str:
    """One of pydantic's problems, as `in_words`."""
    place = "".join(f".{part}" for part in problem["loc"])
    return f"{place}: {_WHAT.get(problem['type'], problem['msg'].removeprefix('Value error, '))}"


def same_twice(datasets: Mapping[str, DatasetSettings]) -> Iterator[str]:
    """A sentence for each two datasets that would share a queue or a table."""
    queues, tables = dict[str, str](), dict[str, str]()
    for key, dataset in datasets.items():
        other = queues.setdefault(dataset.queue, key)
        if other != key:
            yield f"datasets.{other} and datasets.{key} would share the queue {dataset.queue!r}: rename one"
        for uri in (dataset.place, *dataset.place_aliases):
            other = tables.setdefault(canonical_uri(uri), key)
            if other != key:
                yield (
                    f"datasets.{other} and datasets.{key} are one table, {uri}: a table has one queue. Take one of "
                    "them away, or correct its uri or aliases"
                )
