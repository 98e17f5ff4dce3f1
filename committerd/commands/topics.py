"""`committerd topics`: creates a dataset's topics, and compares them with the settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import anyio
import click

from committerd.commands.options import branch_option, config_option, dataset_option, json_option, served, settings
from committerd.commands.printing import duration, echo_table, when
from committerd.errors import QueueUnavailable, SettingsError
from committerd.kafka.operator import open_operator
from committerd.kafka.topics import TopicCheck
from committerd.kafka.transactions import OpenTransaction
from committerd.settings.load import ServedDatasets, Settings

_queue_option = click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="The dataset whose topics these are, instead of those of the settings; once for each of several. Of a branch: "
    "NAME.tree.BRANCH.",
)


@click.group()
def topics() -> None:
    """Create a dataset's topics, or check them, as `committerd run` does at start; abort open Kafka transactions.

    The commands never delete or alter a topic: they name each problem with the command that corrects it.
    """


@topics.command()
@_queue_option
@config_option
@dataset_option
@branch_option
@json_option
def create(queues: tuple[str, ...], as_json: bool) -> None:
    """Create the topics that are missing (whatever topics_mode says), then check all of them.

    The exit code is 0 if nothing is wrong with them, else 1. If a topic can't be created, it is 2, and the topics of
    the other datasets are created all the same. If Kafka stops responding, the command says what it has created.
    """
    _survey(served(), queues, create=True, as_json=as_json)


@topics.command()
@_queue_option
@config_option
@dataset_option
@branch_option
@json_option
def check(queues: tuple[str, ...], as_json: bool) -> None:
    """Compare the topics with the settings: partitions, retention, replicas, timestamps.

    The exit code is 0 if nothing is wrong with them, else 1.
    """
    _survey(served(), queues, create=False, as_json=as_json)


@topics.command()
@click.option("--abort", "producer_id", type=int, help="Abort the open transaction of this producer.")
@click.option("--apply", is_flag=True, help="Abort it. Without it, only say what would be done.")
@config_option
@dataset_option
@branch_option
@json_option
def transactions(producer_id: int | None, apply: bool, as_json: bool) -> None:
    """List the Kafka transactions that hold back staged records, or abort one.

    Nobody can read what a producer wrote in a Kafka transaction, nor anything after it, until the transaction ends: the
    producer commits or aborts it, or Kafka aborts it when its timeout is over. A transaction that no coordinator knows
    any more stays open until an operator aborts it. Records of a transaction that is aborted here are never delivered,
    and its producer, if it still runs, gets an error. A transaction that this user may not describe is never aborted,
    because it may be healthy.

    The exit code is 0 if no transaction is open, or if the named transaction was aborted, else 1.
    """
    sys.exit(anyio.run(_transactions, settings(), producer_id, apply, as_json))


async def _transactions(configured: Settings, producer_id: int | None, apply: bool, as_json: bool) -> int:
    async with open_operator(configured.kafka, configured.dataset.queue) as operator:
        found = await operator.open_transactions()
        chosen = [one for one in found if one.producer_id == producer_id]
        if producer_id is not None and not chosen:
            raise SettingsError(f"producer {producer_id} has no open transaction in {operator.topics.staged}")
        if apply:
            for one in chosen:
                await operator.end_transaction(one)
    if as_json:
        ended = [one.producer_id for one in chosen] if apply else []
        click.echo(json.dumps({"open": [asdict(one) for one in found], "ended": ended}, indent=2))
    else:
        _print_transactions(found, chosen, apply=apply)
    return 0 if not found or (apply and chosen) else 1


def _print_transactions(found: Sequence[OpenTransaction], chosen: Sequence[OpenTransaction], *, apply: bool) -> None:
    if not found:
        click.echo("No Kafka transaction is open.")
        return
    echo_table(
        ("producer", "transactional id", "first offset", "last wrote", "began", "timeout"),
        [
            (
                one.producer_id,
                one.transactional_id or ("(hanging)" if one.is_hanging else "(not named)"),
                one.first_offset,
                when(one.last_timestamp_ms),
                "" if one.started_ms is None else when(one.started_ms),
                "" if one.timeout_ms is None else duration(one.timeout_ms),
            )
            for one in found
        ],
    )
    for one in found:
        if one.unknown:
            click.echo(f"\nNo coordinator names the transaction of producer {one.producer_id}: {one.unknown}")
    for one in chosen:
        if one.unknown:
            continue
        if apply:
            click.echo(f"\nEnded the transaction of producer {one.producer_id}: what it has written is not delivered.")
        else:
            click.echo(f"\nNothing was changed. With --apply the transaction of producer {one.producer_id} is aborted.")


@dataclass(slots=True, kw_only=True)
class _Asked:
    """What Kafka has said about the topics of several datasets."""

    created: list[str] = field(default_factory=list)
    """The topics that were created just now."""
    checks: list[TopicCheck] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What the settings of datasets have wrong."""
    left: Sequence[str] = ()
    """The datasets about which Kafka has said nothing, or not all, because it did not respond."""
    unavailable: QueueUnavailable | None = None


def _survey(of: ServedDatasets, queues: Sequence[str], *, create: bool, as_json: bool) -> None:
    queues = queues or tuple(of.datasets)
    asked = anyio.run(_ask, of, queues, create)
    if not queues and not as_json:
        click.echo("The settings name no dataset.")
    elif as_json:
        listed = [asdict(one) | {"good": not one.problem} for one in asked.checks]
        click.echo(json.dumps({"created": asked.created, "checks": listed, "left": list(asked.left)}, indent=2))
    else:
        _print(asked)
    if asked.unavailable is not None:
        done = f"{len(asked.created)} topics were created. " if create else ""
        raise QueueUnavailable(
            "\n".join(
                [
                    *dict.fromkeys(asked.failures),
                    f"{asked.unavailable}. {done}What became of the topics of {', '.join(asked.left)} is not known: "
                    f"when Kafka responds again, repeat the command{', which creates what is missing' * create}",
                ]
            )
        ) from asked.unavailable
    if asked.failures:
        raise SettingsError("\n".join(dict.fromkeys(asked.failures)))
    sys.exit(1 if any(one.problem for one in asked.checks) else 0)


async def _ask(of: ServedDatasets, queues: Sequence[str], create: bool) -> _Asked:
    """Ask about the topics of these datasets, until Kafka does not respond."""
    asked = _Asked()
    if not queues:
        return asked
    async with open_operator(of.shared.kafka, queues[0]) as operator:
        for number, queue in enumerate(queues):
            try:
                survey = await operator.survey(queue, create=create, note_created=asked.created.append)
                asked.checks += survey.checks
            except SettingsError as error:
                asked.failures.append(str(error))
            except QueueUnavailable as error:
                asked.left, asked.unavailable = queues[number:], error
                break
    return asked


def _print(asked: _Asked) -> None:
    for name in asked.created:
        click.echo(f"created {name}")
    if not asked.checks:
        return
    echo_table(
        ("topic", "setting", "expected", "actual", ""),
        [(c.topic, c.setting, c.expected, c.actual, "WRONG" if c.problem else "ok") for c in asked.checks],
    )
    problems = [c.problem for c in asked.checks if c.problem]
    if problems:
        click.echo("\nWhat to do:")
    for problem in problems:
        click.echo(f"  - {problem}")
