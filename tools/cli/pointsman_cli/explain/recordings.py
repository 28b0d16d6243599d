"""Questions to a recorder, over the command's own connection, and its sums as rows for programs."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import nats.errors
from nats.aio.client import Client
from rich.console import Console

from pointsman_cli.words import CommandError
from pointsman_contracts.message import Message
from pointsman_contracts.subjects import subject
from pointsman_core.plugins import unknown

PATIENCE_S = 5.0

M = TypeVar("M", bound=Message)
Form = Literal["table", "csv", "json"]


async def ask(client: Client, question: Message, answer: type[M]) -> M | None:
    """The answer of the first recorder; None when none answers."""
    try:
        reply = await client.request(subject(type(question)), question.encode(), timeout=PATIENCE_S)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return None
    return answer.decode(reply.data)


async def sums(client: Client, question: Message, answer: type[M], duty: str) -> M:
    """The recorder's answer. CommandError when none answers; `duty`: what the recorder does for it."""
    found = await ask(client, question, answer)
    if found is None:
        raise CommandError(
            "no recorder answers.", f"pointsman-recorder {duty}; `pointsman up` starts one beside the others."
        )
    return found


def columns(by: str, keys: Sequence[str]) -> tuple[str, ...]:
    """The columns that `--by` names. CommandError for one that isn't among `keys`."""
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    strange = [name for name in names if name not in keys]
    if strange:
        raise CommandError(
            f"--by {by}: {unknown('column', strange[0], keys)}.",
            f"Write some of {', '.join(keys)}, separated by commas.",
        )
    return names


def print_rows(
    rows: Sequence[Mapping[str, str | int]], headings: Sequence[str], form: Literal["csv", "json"], console: Console
) -> None:
    """One JSON object a row, or CSV with these headings."""
    if form == "json":
        for row in rows:
            console.print(json.dumps(row), soft_wrap=True, markup=False)
        return
    writer = csv.DictWriter(sys.stdout, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
