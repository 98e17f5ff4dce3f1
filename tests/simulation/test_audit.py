"""The operators' audit of simulated histories: it accepts true ones, and finds contradictions only where there are
some.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from committerd.audit.audit import Audit, AuditReport, QueueBounds
from committerd.audit.history import AuditedHistory, audited_version
from committerd.lance.format.manifest_file import decode
from committerd.queue.port import TopicIdentity
from committerd.queue.start import era_of
from committerd_common.messages import Outcome
from committerd_common.paths import VERSIONS, parse_manifest_name
from tests.simulation.scenarios import scenario_of
from tests.simulation.world import World, simulate

SEEDS = range(15)


def audited(world: World, *, without: Collection[int] = (), untold: int | None = None) -> AuditReport:
    """The result of the audit of a world, as if some versions were gone, or the outcomes of an offset."""
    history = AuditedHistory()
    for version in versions(world):
        if version not in without:
            file = decode(world.bucket.objects[manifests(world)[version]])
            history.add(audited_version(file.outline, file.transaction))
    broker = world.broker
    identity = TopicIdentity(cluster_id=broker.cluster_id, topic=broker.topic, topic_id=broker.topic_id or "")
    bounds = QueueBounds(
        identity=identity,
        log_start=broker.log_start,
        log_end=broker.log_end,
        acknowledged=broker.group.offset if broker.group else None,
        acknowledged_era=era_of(broker.group),
    )
    audit = Audit(bounds, history)
    for publication in (one for partition in broker.outcomes for one in partition):
        outcome = Outcome.FromString(publication.value)
        if (outcome.topic_id, outcome.offset) != (broker.topic_id, untold):
            audit.outcome(outcome)
    for record in broker.records(broker.log_start, broker.log_end):
        audit.record(record)
    return audit.report()


def manifests(world: World) -> dict[int, str]:
    names = {key: parse_manifest_name(key.removeprefix(VERSIONS)) for key in world.bucket.objects if VERSIONS in key}
    return {name.version: key for key, name in names.items() if name is not None}


def versions(world: World) -> list[int]:
    return sorted(manifests(world))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_that_keeps_every_promise_has_no_findings(seed: int) -> None:
    world = simulate(seed, scenario_of(seed)).world
    assert audited(world).findings == []
    # Nor if any of its versions are gone, except the last one of the queue, which has the position.
    rng = random.Random(seed)
    last = max(version for version, seen in world.auditor.versions.items() if seen.settled.ours)
    spared = [version for version in versions(world) if version < last]
    for gone in (spared[: rng.randint(0, len(spared))], rng.sample(spared, k=len(spared) // 3)):
        assert audited(world, without=gone).findings == []
    # But it finds a record without an outcome, whichever it is.
    offset = rng.choice(world.broker.log).offset if world.broker.log else 0
    found = audited(world, untold=offset)
    acknowledged = world.broker.group.offset if world.broker.group else 0
    if offset < acknowledged and not found.counts.get("records whose outcome is not published yet"):
        assert [(one.code, one.offset) for one in found.findings] == [("record_without_outcome", offset)]
