"""`committerd topics`: make a dataset's topics, and compare them with what they must be."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import anyio
import click

from committerd.commands.options import config_option, json_option, settings
from committerd.commands.printing import echo_table
from committerd.edges.kafka_operator import open_operator
from committerd.edges.kafka_topics import TopicSurvey
from committerd.settings import Settings


@click.group()
def topics() -> None:
    """Make a dataset's three topics, or check them, as `committerd run` does at start.

    Nothing is ever deleted or altered: what is wrong is named with the command that mends it.
    """


@topics.command()
@config_option
@json_option
def create(as_json: bool) -> None:
    """Create the topics that are missing (whatever topics_mode says), then check all three.

    The exit code is 0 when nothing is wrong with them, else 1.
    """
    _survey(settings(), create=True, as_json=as_json)


@topics.command()
@config_option
@json_option
def check(as_json: bool) -> None:
    """Compare the topics with what the settings ask for: partitions, retention, copies, clock.

    The exit code is 0 when nothing is wrong with them, else 1.
    """
    _survey(settings(), create=False, as_json=as_json)


def _survey(configured: Settings, *, create: bool, as_json: bool) -> None:
    survey = anyio.run(_ask, configured, create)
    if as_json:
        listed = [asdict(one) | {"good": not one.problem} for one in survey.checks]
        click.echo(json.dumps({"created": list(survey.created), "checks": listed}, indent=2))
    else:
        _print(survey)
    sys.exit(1 if any(one.problem for one in survey.checks) else 0)


async def _ask(configured: Settings, create: bool) -> TopicSurvey:
    async with open_operator(configured.kafka, configured.dataset.name) as operator:
        return await operator.survey(create=create)


def _print(survey: TopicSurvey) -> None:
    for name in survey.created:
        click.echo(f"created {name}")
    echo_table(
        ("topic", "setting", "expected", "actual", ""),
        [(c.topic, c.setting, c.expected, c.actual, "WRONG" if c.problem else "ok") for c in survey.checks],
    )
    problems = [c.problem for c in survey.checks if c.problem]
    if problems:
        click.echo("\nWhat to do:")
    for problem in problems:
        click.echo(f"  - {problem}")
