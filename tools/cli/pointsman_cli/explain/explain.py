"""`pointsman explain`: what happened to one request, as a recorder or the stream of events has kept it."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from nats.aio.client import Client
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain import events, recordings
from pointsman_cli.explain.hindsight import judgement
from pointsman_cli.explain.margins import margins
from pointsman_cli.explain.outcome import outcome, spelled_time, stages
from pointsman_cli.explain.picture import draw
from pointsman_cli.explain.plane import plane
from pointsman_cli.explain.stored_events import read_events
from pointsman_cli.tables import borderless, numbers, unbroken
from pointsman_cli.words import CommandError, counted
from pointsman_contracts.journey import StageReport
from pointsman_contracts.regret import RequestsJudged
from pointsman_contracts.response import RequestAnswered, RequestRejected, ResponseCompleted, ResponseReviewed
from pointsman_contracts.scheduling import ProfileRun, RequestScheduled
from pointsman_contracts.session import SessionMoved
from pointsman_contracts.story import Story, StoryQuery
from pointsman_core import why
from pointsman_core.request_events import Event, by_edge, read


class Picture(NamedTuple):
    """The picture of the decision that is asked for."""

    path: Path
    dark: bool


async def explain(
    url: str | None,
    request_id: str,
    since: timedelta,
    console: Console,
    *,
    as_json: bool,
    picture: Picture | None = None,
) -> None:
    """Print the story of a request, or draw it. CommandError when no stored event names it."""
    async with bus.connected(bus.settings(url), "pointsman explain") as client:
        found, judged = await _recorded(client, request_id)
        # A recorder reads the stream too: what ended just now may be on its way to it.
        if not found or any(not _over(told) for told in by_edge(found).values()):
            needle = request_id.encode()
            stored = [event async for event in read_events(client, since, needle) if event.request_id == request_id]
            found = stored or found
    if not found:
        raise CommandError(
            f"no recorder knows the request {request_id!r}, and no event of the last "
            f"{counted(since // timedelta(minutes=1), 'minute')} names it.",
            "The id is the `x-request-id` of the answer. --since looks further back in the stream of events.",
        )
    stories = by_edge(found)
    if picture is not None:
        edge, told = next(reversed(stories.items()))
        mine = [request for event in judged for request in event.requests if request.edge == edge]
        draw(picture.path, told, mine[-1] if mine else None, dark=picture.dark)
        console.print(f"wrote {picture.path}", soft_wrap=True)
        return
    for edge, told in stories.items():
        if len(stories) > 1 and not as_json:
            console.print(Text(f"at {edge}, one of {len(stories)} edges that had a request with this id", "bold"))
        for event in told:
            if as_json:
                console.print(events.as_json(event), soft_wrap=True, markup=False)
            else:
                console.print(*story(event), sep="\n", soft_wrap=True)
        for event in judged:
            if event.requests[0].edge != edge:
                continue
            if as_json:
                console.print(events.as_json(event), soft_wrap=True, markup=False)
            else:
                console.print(*judgement(event), sep="\n", soft_wrap=True)


def _over(told: Sequence[Event]) -> bool:
    return any(isinstance(event, ResponseCompleted) for event in told)


def story(event: Event) -> list[RenderableType]:
    """One event, in full."""
    head = events.as_line(event)
    if isinstance(event, RequestScheduled):
        return [head, *_decision(event)]
    if isinstance(event, RequestAnswered | RequestRejected):
        return [head, _trail(event.trail)]
    if isinstance(event, ResponseCompleted):
        return [head, *outcome(event)]
    if isinstance(event, SessionMoved):
        return [head, Text(f"  {event.why}", "dim")]
    if isinstance(event, ResponseReviewed):
        return [head, stages(event.stages)]
    return [head]


def _decision(event: RequestScheduled) -> list[RenderableType]:
    waited = f"waited {event.queued_ms:,.1f} ms · " if event.queued_ms else ""
    if event.no_endpoint_ms:
        there = "all engines slept" if event.no_endpoint == "asleep" else "the pool had no engine"
        waited += f"{event.no_endpoint_ms:,.1f} ms of it for an endpoint: {there} · "
    facts = (
        f"  pool {event.pool} · {event.prompt_tokens:,} prompt tokens, {event.cached_tokens:,} believed cached"
        f"{f' ({event.prefix})' if event.prefix else ''} · "
        f"{waited}decided in {event.decided_us:.0f} µs by {event.source} · "
        f"configuration {event.revision} · {event.level}"
    )
    parts: list[RenderableType] = [Text(facts, "dim"), _trail(event.trail)]
    if event.models:
        parts += [Text("  model and engine were chosen together", "bold"), plane(event.models)]
    if event.forecast is not None:
        parts.append(Text(f"  {why.legs(event)}"))
    if event.prelude is not None:
        parts.append(Text(f"  {why.prelude(event)}"))
    parts += [Text(f"  {line}") for line in why.describe_turn(event)]
    for run in event.runs:
        use = "" if run.profile == event.primary else "  (not used)"
        parts.append(Text(f"  profile {run.profile}{use}", "bold"))
        if run.error is not None:
            parts.append(Text(f"    failed: {run.error}", "red"))
        else:
            parts += [_verdicts(run), _columns(run)]
            parts += [Text(f"    {words}", "dim") for words in margins(run)]
    return parts


def _verdicts(run: ProfileRun) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for verdict in why.verdicts(run):
        style = "bold green" if verdict.words == "chosen" else "dim" if verdict.total is None else ""
        table.add_row(f"    {verdict.worker}", _number(verdict.total), verdict.words, style=style)
    if run.candidates.omitted:
        table.add_row("    …", "", f"{run.candidates.omitted} more, none of them better")
    return table


def _columns(run: ProfileRun) -> RenderableType:
    columns = run.candidates
    figures = ["age", "running", "waiting", "KV", "cached", *(["fetched"] if columns.fetched_tokens else [])]
    figures += [f"{scorer}\n×{run.weights.get(scorer, 1.0):g}" for scorer in columns.scores]
    table = borderless(*unbroken("    as seen"), *numbers(*figures))
    for row, worker in enumerate(columns.workers):
        age = columns.ages_ms[row]
        table.add_row(
            f"    {worker} (own counts)" if worker in columns.opaque else f"    {worker}",
            f"{age:.0f} ms" if age >= 0 else "none",
            str(columns.running[row]),
            str(columns.waiting[row]),
            f"{columns.kv_usage[row]:.0%}",
            f"{columns.matched_tokens[row]:,}",
            *([f"{columns.fetched_tokens[row]:,}"] if columns.fetched_tokens else []),
            *(_number(scores[row]) for scores in columns.scores.values()),
        )
    return table


def _trail(trail: Sequence[StageReport]) -> Text:
    steps = [
        f"{report.stage} {spelled_time(report.took_ms)}"
        + (f" {report.outcome}" if report.outcome != "passed" else "")
        + (f" ({report.note})" if report.note else "")
        for report in trail
    ]
    return Text(f"  {' → '.join(steps)}" if steps else "  no stage reported", "dim")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


async def _recorded(client: Client, request_id: str) -> tuple[list[Event], list[RequestsJudged]]:
    """The events that a recorder has stored for a request, and its judgements; empty when none answers."""
    told = await recordings.ask(client, StoryQuery(request_id=request_id), Story)
    kept = told.events if told is not None else ()
    decoded = [read(each.type, each.body.encode()) for each in kept]
    judged = [RequestsJudged.decode(each.body) for each in kept if each.type == RequestsJudged.address.type_id]
    return [event for event in decoded if event is not None], judged
