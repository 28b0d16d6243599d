"""`pointsman explain --dry-run`: where a request would go now, and why, without sending it."""

import nats.errors
import typer
from rich.console import Console
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain import events
from pointsman_cli.explain.explain import story
from pointsman_cli.words import CommandError
from pointsman_contracts.money import dollars
from pointsman_contracts.response import RequestAnswered, RequestRejected
from pointsman_contracts.scheduling import DryRunForecast, RequestScheduled
from pointsman_contracts.story import DryRunQuery, Story
from pointsman_contracts.subjects import subject
from pointsman_core.request_events import Event, read

PATIENCE_S = 35.0
"""An edge answers after 30 s at the latest, unless the configuration says otherwise."""


async def explain_dry_run(url: str | None, query: DryRunQuery, console: Console, *, as_json: bool) -> None:
    """Print the decision. Exits with 1 where the request would be refused; CommandError when no edge answers."""
    async with bus.connected(bus.settings(url), "pointsman explain") as client:
        try:
            reply = await client.request(subject(DryRunQuery), query.encode(), timeout=PATIENCE_S)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError) as error:
            raise CommandError(
                "no edge of the gateway answers.", "A frontend or an epp-adapter of this version must run."
            ) from error
        except nats.errors.MaxPayloadError as error:
            raise CommandError("the request is larger than the NATS server takes in one message.") from error
    found = [read(kept.type, kept.body.encode()) for kept in Story.decode(reply.data).events]
    for event in found:
        if event is None:
            raise CommandError("the edge's answer can't be read.", "Use the command of the gateway's version.")
        if as_json:
            console.print(events.as_json(event), soft_wrap=True, markup=False)
        else:
            console.print(Text(headline(event), "bold"), *story(event)[1:], sep="\n", soft_wrap=True)
        if isinstance(event, RequestRejected):
            raise typer.Exit(1)


def headline(event: Event) -> str:
    """Where the request would go, in one line and those of the forecast."""
    if isinstance(event, RequestRejected):
        code = f" ({event.code})" if event.code else ""
        return f"would be refused by {event.stage}: {event.status}{code}\n  {event.reason}"
    if isinstance(event, RequestAnswered):
        return f"would be answered by {event.stage}: {event.status}; no engine would get it"
    if not isinstance(event, RequestScheduled):
        return ""
    lines = [f"would go to {', then '.join(event.endpoints)}  {events.asked(event)}"]
    if event.level != "full":
        lines.append(f"{event.level}: {'; '.join(event.reasons)}")
    told = event.dry_run or DryRunForecast()
    lines.append(forecast(told))
    if told.fallbacks:
        lines.append(f"where its engines fail, the next models are {', '.join(told.fallbacks)}")
    return "\n  ".join(lines)


def forecast(told: DryRunForecast) -> str:
    """Times and prices, in words."""
    wait = "would wait in flow control, for an unknown time" if told.queue_ms is None else "no wait in flow control"
    if told.queue_ms:
        wait = f"would wait about {told.queue_ms:,.0f} ms in flow control"
    if told.lacks_room:
        wait += ", then for room in the engine's KV cache"
    first = "first token: not predictable yet" if told.ttft_ms is None else f"first token after {told.ttft_ms:,.0f} ms"
    if told.prompt_nanos is None or told.answer_nanos is None:
        return f"{wait} · {first} · no price"
    return (
        f"{wait} · {first} · prompt ${dollars(told.prompt_nanos)}, "
        f"each 1,000 tokens of the answer ${dollars(told.answer_nanos)}"
    )
