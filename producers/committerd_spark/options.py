"""The options of `format("committerd")`: strings, by names whose case and underscores do not matter."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from committerd_batch.app_marks import checked, unit
from committerd_batch.committing import QueueOptions, key_file_of
from committerd_batch.target import Mode, SchemaMode, Target
from committerd_client.headers import App
from committerd_client.sync import SyncCommitClient
from committerd_client.table_location import checked_uri
from committerd_common.branches import branch_queue, branch_uri, checked_branch
from committerd_common.uris import dataset_name

T = TypeVar("T")

_OF_SPARK = ("path", "queryname", "checkpointlocation")
"""Options that Spark adds itself."""
_NAMES = (
    "uri", "bootstrap_servers", "dataset", "branch", "topic_prefix", "mode", "keys", "op_column", "order_by",
    "schema_mode", "app_id", "app_version", "producer", "producer_key_file", "target_rows_per_file",
    "enable_stable_row_ids", "enable_v2_manifest_paths", "data_storage_version", "timeout", "attempts",
)  # fmt: skip
_SERVERS = "kafka.bootstrap.servers"
"""The name that Spark's own Kafka source gives the servers."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options as Spark hands them over; it may be pickled, and compared."""

    given: tuple[tuple[str, str], ...]

    @staticmethod
    def of(options: Mapping[str, str]) -> Options:
        """Raises `ValueError` for a name that is none."""
        made = Options(tuple(sorted((name, str(value)) for name, value in options.items())))
        known = {_plain(name): name for name in _NAMES}
        for name, _ in made.given:
            if name.lower() in (*_OF_SPARK, _SERVERS) or name.lower().startswith(("storage.", "kafka.")):
                continue
            if _plain(name) not in known:
                near = difflib.get_close_matches(_plain(name), known, n=1)
                hint = f" (did you mean {known[near[0]]!r}?)" if near else ""
                raise ValueError(
                    f"format('committerd') has no option {name!r}{hint}; it has {', '.join(_NAMES)}, storage.NAME for "
                    "pylance's storage options, and kafka.NAME for those of the Kafka client"
                )
        return made

    def mode(self, *, overwrite: bool) -> Mode:
        """`overwrite`: whether Spark's own save mode or output mode replaces the rows."""
        mode = Mode(self._text("mode") or ("overwrite" if overwrite else "append"))
        if overwrite and mode is not Mode.OVERWRITE:
            raise ValueError(
                f"Spark's mode is overwrite (or complete) and option 'mode' is {mode.value!r}: take append"
            )
        self.target.check(mode)
        return mode

    @property
    def branch(self) -> str:
        """The branch of the table; empty for the main branch. Raises `ValueError` for an invalid name."""
        return checked_branch(self._text("branch") or "")

    @property
    def _root(self) -> str:
        """The URI of the table's root. Raises `ValueError` if there is none."""
        uri = self._text("uri") or self._text("path")
        if not uri:
            raise ValueError("there is no table: give its URI, as in .save('s3://lake/events.lance')")
        return checked_uri(uri)

    @property
    def target(self) -> Target:
        """The table. Raises `ValueError` for invalid options."""
        return Target(
            uri=branch_uri(self._root, self.branch),
            branch=self.branch,
            storage_options=self._prefixed("storage.") or None,
            keys=self._list("keys"),
            op_column=self._text("op_column"),
            order_by=self._list("order_by"),
            schema_mode=SchemaMode(self._text("schema_mode") or "strict"),
            target_rows_per_file=self._number("target_rows_per_file", int),
            enable_stable_row_ids=self._flag("enable_stable_row_ids"),
            enable_v2_manifest_paths=self._flag("enable_v2_manifest_paths"),
            data_storage_version=self._text("data_storage_version"),
        )

    @property
    def queue(self) -> QueueOptions:
        """The table's queue. Raises `ValueError` for invalid options."""
        servers = self._text("bootstrap_servers") or self._prefixed("").get(_SERVERS)
        if not servers:
            raise ValueError("there is no Kafka: give option 'bootstrap_servers', as in 'broker1:9092,broker2:9092'")
        named = {name.replace(".", "_"): text for name, text in self._prefixed("kafka.").items()}
        kafka = {name: text if _is_text(name) else _value(text) for name, text in named.items()}
        kafka.pop("bootstrap_servers", None)
        producer = self._text("producer")
        timeout, attempts = self._number("timeout", float), self._number("attempts", int)
        return QueueOptions(
            bootstrap_servers=tuple(one.strip() for one in servers.split(",")),
            dataset=branch_queue(self._text("dataset") or dataset_name(self._root), self.branch),
            topic_prefix=self._text("topic_prefix") or "",
            producer=producer or self._text("app_id") or "spark",
            producer_key_file=key_file_of(producer, self._text("producer_key_file")),
            timeout=300.0 if timeout is None else timeout,
            attempts=10 if attempts is None else attempts,
            kafka_options=kafka or None,
        )

    @property
    def app_id(self) -> str | None:
        """The app id of a stream: the option's, or the query's name. Raises `AppIdMissing` for an invalid one."""
        found = self._text("app_id") or self._text("queryname")
        return None if found is None else checked(found)

    @property
    def app(self) -> App | None:
        """The unit of work of a job; None if it has none. Raises `ValueError` if half of it is missing."""
        return unit(self._text("app_id"), self._number("app_version", int))

    def _text(self, name: str) -> str | None:
        return next((value for key, value in self.given if _plain(key) == _plain(name)), None)

    def _number(self, name: str, kind: Callable[[str], T]) -> T | None:
        text = self._text(name)
        try:
            return None if text is None else kind(text)
        except ValueError:
            raise ValueError(f"option {name!r} is a number, not {text!r}") from None

    def _flag(self, name: str) -> bool | None:
        text = self._text(name)
        if text is not None and text.lower() not in ("true", "false"):
            raise ValueError(f"option {name!r} is true or false, not {text!r}")
        return None if text is None else text.lower() == "true"

    def _list(self, name: str) -> tuple[str, ...]:
        """Names with commas between them, or a JSON list."""
        text = (self._text(name) or "").strip()
        if text.startswith("["):
            return tuple(str(one) for one in json.loads(text))
        return tuple(one.strip() for one in text.split(",") if one.strip())

    def _prefixed(self, prefix: str) -> dict[str, str]:
        return {key[len(prefix) :]: value for key, value in self.given if key.lower().startswith(prefix)}


@cache
def client_of(options: Options) -> SyncCommitClient:
    """The client of this process for these options: Spark runs the commits of a stream in one process."""
    return options.queue.client(options.target)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _is_text(name: str) -> bool:
    """Whether the option is a text even if it looks like a number, as a password may."""
    return name.startswith(("sasl_", "ssl_")) and name != "ssl_check_hostname"


def _value(text: str) -> Any:
    """The text as a number or flag, if it is one: kafka-python needs these types."""
    for kind in _KINDS:
        try:
            return kind(text)
        except (ValueError, KeyError):
            continue
    return text


_KINDS: tuple[Callable[[str], Any], ...] = (int, float, {"true": True, "false": False, "none": None}.__getitem__)
