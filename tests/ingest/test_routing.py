"""Which records a route takes, and what settings of routes say."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click
import fastavro
import pytest

from committerd.commands.ingest.members import members, only_settings
from committerd.commands.options import dataset_option
from committerd.errors import SettingsError
from committerd_ingest.avro import AvroRows
from committerd_ingest.records import Record, Records
from committerd_ingest.routing import By, Filter, Route, Routing, Sorted
from committerd_ingest.settings import Pipeline

FILE = """
kafka = {bootstrap_servers = ["kafka:9092"], group = "lake"}
datasets.orders.uri = "/orders"
datasets.returns.uri = "/returns"
datasets.clicks.uri = "/clicks"
"""
BY_HEADER = """
[ingest]
topics = ["shop"]
route_header = "kind"
buffer_bytes_max = 300000
[ingest.routes.orders]
route_values = ["order", "order2"]
[ingest.routes.returns]
route_values = "return"
mode = "upsert"
keys = ["id"]
"""


def of_headers(*values: bytes | None) -> list[Record]:
    """A record for each value of the header; its offset is its place."""
    return [Record(n, 0, None, b"{}", [("kind", b"first"), ("kind", one)]) for n, one in enumerate(values)]


def sorted_by(by: By, records: list[Record], **given: Any) -> Sorted:
    known = frozenset({"a", "b", "7", "true"})
    settings: dict[str, Any] = {"mine": frozenset({"a", "7", "true"}), "known": known, "unmatched_bad": True} | given
    return Filter(by=by, name="kind", **settings).sort(Records.of(records))


def offsets(found: Any) -> list[int]:
    return [one.record.offset if hasattr(one, "record") else one.offset for one in found]


def test_the_last_header_of_the_name_decides() -> None:
    records = [*of_headers(b"a", b"b", b"c", b"\xff", None), Record(5, 0, None, b"{}", [("sort", b"a")])]
    found = sorted_by("header", records)
    assert offsets(found.mine) == [0]
    assert (offsets(found.bad), found.unmatched) == ([2, 3, 4, 5], [])
    assert found.bad[0].reason.startswith("no route takes the record, which has 'c' in its header 'kind': add a route")
    assert "has no header 'kind'" in found.bad[2].reason
    skipped = sorted_by("header", records, unmatched_bad=False)
    assert (offsets(skipped.mine), skipped.bad, offsets(skipped.unmatched)) == ([0], [], [2, 3, 4, 5])
    left = sorted_by("header", records, known=None)
    assert (offsets(left.mine), left.bad, left.unmatched) == ([0], [], [])


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (b'{"kind":"a"}', "mine"),
        (b'{"kind":"\\u0061"}', "mine"),
        (b'{"kind":7}', "mine"),
        (b'{"kind":true}', "mine"),
        (b'{"kind":"b"}', "nowhere"),
        (b'{"kind":"c"}', "has 'c' in its field 'kind'"),
        (b'{"kind":7.0}', "has no field 'kind' with a text or an integer"),
        (b'{"kind":null}', "has no field 'kind'"),
        (b'{"sort":{"kind":"a"}}', "has no field 'kind'"),
        (b'["kind","a"]', "the value is a JSON array"),
        (b'{"kind":"a"', "the value is not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b"\xff", "not UTF-8"),
        (None, "no value"),
    ],
)
def test_a_field_decides_by_its_text(value: bytes | None, where: str) -> None:
    found = sorted_by("field", [Record(0, 0, b"k", value)])
    assert bool(found.mine) == (where == "mine")
    assert bool(found.bad) == (where not in ("mine", "nowhere"))
    if found.bad:
        assert where in found.bad[0].reason
    # A route that does not answer for the topic leaves it alone.
    left = sorted_by("field", [Record(0, 0, b"k", value)], known=None)
    assert (offsets(left.mine), left.bad, left.unmatched) == (offsets(found.mine), [], [])


def test_what_can_not_be_read_is_bad_though_unmatched_records_are_skipped() -> None:
    records = [Record(0, 0, None, b"{"), Record(1, 0, None, b'{"kind":"c"}')]
    found = sorted_by("field", records, unmatched_bad=False)
    assert (offsets(found.bad), offsets(found.unmatched)) == ([0], [1])
    # What is bad is settled with the rows around it.
    both = sorted_by("field", [Record(0, 0, None, b"{"), Record(1, 0, None, b'{"kind":"a"}'), Record(2, 0, None, b"[")])
    assert offsets(both.settled(both.mine, 3)) == [0, 1, 2]
    assert offsets(both.settled(both.mine, 2)) == [0, 1]


def test_a_field_of_avro_decides() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["a", "c"]}}],
    }
    rows = AvroRows(json.dumps(schema))
    parsed = fastavro.parse_schema(schema)
    records = [Record(2, 0, None, b"{}")]
    for offset, kind in enumerate("ac"):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, {"kind": kind})
        records.append(Record(offset, 0, None, b"\0\0\0\0\3" + body.getvalue()))
    one = Filter(by="field", name="kind", mine=frozenset("a"), known=frozenset("a"), unmatched_bad=False)
    given = Records.of(sorted(records, key=lambda one: one.offset))
    found = one.sort(given, {3: rows})
    assert (offsets(found.mine), offsets(found.unmatched), offsets(found.bad)) == ([0], [1], [2])
    # By a field, the schema of each record is needed; by a header, only those of the route's own.
    assert one.readable(given) is given
    by_header = Filter(by="header", name="kind", mine=frozenset("a"), known=None, unmatched_bad=True)
    assert offsets(by_header.readable(Records.of(of_headers(b"a", b"b")))) == [0]


def test_the_first_route_of_a_topic_answers_for_what_no_route_takes_unless_another_takes_all() -> None:
    orders = Route(topics=["shop", "old"], values=frozenset({"order"}))
    returns = Route(topic_pattern=r"^(?:shop|new)\Z", values=frozenset({"return"}))
    archive = Route(topics=["old"])
    routing = Routing(by="header", name="kind", routes=[orders, returns, archive], unmatched_bad=True)

    def known(route: Route, topic: str) -> list[str]:
        found = routing.filter_of(route, topic)
        assert found is not None
        assert found.mine == route.values
        return sorted(found.known or ())

    assert known(orders, "shop") == ["order", "return"]
    assert known(returns, "shop") == []
    assert known(returns, "new") == ["return"]
    assert known(orders, "old") == []
    assert routing.filter_of(archive, "old") is None


# Settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "committerd.toml"
    monkeypatch.setenv("COMMITTERD_CONFIG", str(made))
    return made


def pipelines() -> list[Pipeline]:
    return [one.pipeline for one in members() if isinstance(one.pipeline, Pipeline)]


def test_each_route_is_a_pipeline_with_the_settings_of_the_group_and_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(FILE + BY_HEADER)
    orders, returns = pipelines()
    assert (orders.name, orders.route, orders.topics, orders.mode) == ("orders", "orders", ("shop",), "append")
    assert (returns.name, returns.mode, returns.keys) == ("returns", "upsert", ("id",))
    assert (orders.buffer_bytes_max, orders.writes_max) == (150_000, 2)  # shared out
    found = orders.filter_of("shop")
    assert found is not None
    assert (sorted(found.mine), sorted(found.known or ())) == (["order", "order2"], ["order", "order2", "return"])
    file.write_text(FILE + BY_HEADER.replace("[ingest]", '[ingest]\npipeline = "p"'))
    assert [one.name for one in pipelines()] == ["p-orders", "p-returns"]
    # The environment names routes in JSON.
    file.write_text(FILE + 'ingest = {pipeline = "p", topics = ["shop"], route_header = "kind"}')
    monkeypatch.setenv("COMMITTERD_INGEST__ROUTES", '{"clicks": {"route_values": ["click"], "flush_rows": 7}}')
    (clicks,) = pipelines()
    assert (clicks.name, clicks.flush.rows, clicks.writes_max) == ("p-clicks", 7, 4)


def test_the_branches_of_a_table_are_pipelines_of_their_own(file: Path) -> None:
    # With one name they would be one consumer group, and each table would lack the partitions of the other.
    branch = 'datasets.trial = {name = "orders", uri = "/orders", branch = "trial"}\n'
    file.write_text(
        FILE + branch + '[ingest]\ntopics = "a"\n[ingest.routes.orders]\n[ingest.routes."orders.tree.trial"]\n'
    )
    assert [one.name for one in pipelines()] == ["orders", "orders-tree-trial"]


def test_routes_by_topics_alone_take_all_their_records_and_read_no_table_s_own_topics(file: Path) -> None:
    routes = 'ingest.routes.orders.topics = "a,b"\ningest.routes.clicks.topic_pattern = ".*"\n'
    file.write_text(FILE + 'ingest.topics = ["c"]\n' + routes)
    orders, clicks = pipelines()
    assert (orders.topics, orders.filter_of("a")) == (("a", "b"), None)
    every = Route(topic_pattern=clicks.topic_pattern)
    assert clicks.topics == ()
    assert [one for one in ("a", "orders.staged", "clicks.bad", "orders.bad") if every.reads(one)] == ["a"]


def test_a_command_for_one_table_says_which(file: Path) -> None:
    file.write_text(FILE + BY_HEADER)
    with pytest.raises(SettingsError, match="2 routes, choose one with --dataset NAME: orders, returns"):
        only_settings()

    @dataset_option
    def asks() -> None:
        assert only_settings().ingest.mode == "upsert"
        assert [one.route for one in pipelines()] == ["returns"]

    command = click.command()(asks)
    command(["--dataset", "returns"], standalone_mode=False)
    with pytest.raises(SettingsError, match=r"--dataset clicks: ingest\.routes has orders, returns"):
        command(["--dataset", "clicks"], standalone_mode=False)


def wrong(file: Path, text: str) -> str:
    file.write_text(FILE + text)
    with pytest.raises(SettingsError) as caught:
        members()
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("routes.orders", "routes.oders", "ingest.routes.oders: the settings name no dataset 'oders'"),
        ('topics = ["shop"]', "", "ingest.routes.orders: give either ingest.topics or ingest.topic_pattern"),
        ('["shop"]', '["returns.staged"]', "ingest.routes.orders: ingest.topics has returns.staged"),
        ("route_header", "route_colum", "ingest.route_colum (COMMITTERD_INGEST__ROUTE_COLUM): no such setting"),
        ('route_header = "kind"', "", "routes.orders.route_values needs route_header or route_column"),
        ('route_header = "kind"', 'route_header = "a"\nroute_column = "b"', "exclude each other"),
        ("route_header", "route_column", "routes.returns.mode upsert: with route_column it is append"),
        ('["order", "order2"]', '["order"]\nformat = "jsn"', "routes.orders.format: Input should be 'json', 'raw'"),
        ('["order", "order2"]', '["order"]\nunmatched = "skip"', "routes.orders.unmatched: it is the same for all"),
        ('["order", "order2"]', '["order"]\npipeline = "returns"', "returns and routes.orders are pipelines of one"),
        ('keys = ["id"]', "", "routes.returns: mode upsert, delete or cdc needs keys"),
        ('topics = ["shop"]', 'topics = ["shop"]\nroute_values = "x"', "route_values belongs in a route"),
    ],
)
def test_wrong_routes_are_said(file: Path, old: str, new: str, said: str) -> None:
    assert old in BY_HEADER
    assert said in wrong(file, BY_HEADER.replace(old, new))


def test_what_belongs_to_routes_needs_them(file: Path) -> None:
    assert "need routes" in wrong(file, 'ingest.topics = "a"\ningest.route_header = "kind"\n')
    none = 'ingest.topics = "a"\ningest.route_header = "kind"\n[ingest.routes.orders]\nstart = "latest"\n'
    assert "need a route with route_values" in wrong(file, none)
    long = f'ingest.pipeline = "{"p" * 35}"\ningest.topics = "a"\n[ingest.routes.orders]\n'
    assert "has more than 40 characters: set its pipeline" in wrong(file, long)
    raw = '[ingest]\ntopics="a"\nroute_column="k"\nformat="raw"\n[ingest.routes.orders]\nroute_values="x"\n'
    assert "route_column needs format json or avro, and not raw" in wrong(file, raw)
    different = '[ingest]\ntopics="a"\nroute_column="k"\n[ingest.routes.orders]\nroute_values="x"\nformat="raw"\n'
    assert "routes.orders.format: with route_column, all routes have the same" in wrong(file, different)


def test_a_password_in_the_uri_of_a_folder_is_refused_and_not_repeated(file: Path) -> None:
    said = wrong(file, 'ingest.source = "files"\ningest.folder = "s3://user:secret@landing/orders"\n')
    assert "ingest.folder" in said
    assert "must not contain a user or password" in said
    assert "secret@" not in said
