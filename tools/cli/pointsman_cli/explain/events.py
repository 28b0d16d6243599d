"""The events of the journey as this command reads them: decoded, selected, and written as one line each."""

import json
import time
from typing import Final, NamedTuple

from nats.aio.msg import Msg
from rich.text import Text

from pointsman_contracts import headers
from pointsman_contracts.cascade import ESCALATED
from pointsman_contracts.message import Message, fields_of
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.response import (
    AttemptFailed,
    RequestAnswered,
    RequestRejected,
    ResponseCompleted,
    ResponseReviewed,
    ResponseStarted,
)
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.session import SessionMoved
from pointsman_contracts.subjects import REST, ROOT
from pointsman_core import why
from pointsman_core.request_events import Event, read

ALL_EVENTS: Final = f"{ROOT}.evt.{REST}"

_UNREMARKABLE: Final = ("passed", "shadow_passed")


def decode(message: Msg) -> Event | None:
    """The event in a message; None for a type that this command doesn't know, or a malformed one."""
    return read((message.headers or {}).get(headers.TYPE, ""), message.data)


class EventSelection(NamedTuple):
    """Which events a reader wants; None wants all."""

    pool: str | None = None
    model: str | None = None
    outcome: str | None = None

    def matches_event(self, event: Event) -> bool:
        """Whether the event matches. With an outcome, only events that end a request do."""
        if isinstance(event, ResponseStarted):
            return False
        if isinstance(event, ResponseReviewed) and not _remarkable(event):
            return False
        if self.pool is not None and getattr(event, "pool", None) != self.pool:
            return False
        if self.model is not None and self.model not in _models(event):
            return False
        return self.outcome is None or (isinstance(event, ResponseCompleted) and event.outcome == self.outcome)


def as_json(event: Message) -> str:
    """One line: the message with its type."""
    return json.dumps({"type": event.address.type_id, **fields_of(event)})


def as_line(event: Event) -> Text:
    """One line for a person."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at_ms / 1000)) + f".{event.at_ms % 1000:03d}"
    line = Text.assemble((clock, "dim"), "  ", (event.request_id, "cyan"), "  ")
    match event:
        case RequestScheduled():
            line.append(f"{event.endpoints[0] if event.endpoints else '-'}", "bold")
            line.append(f"  {asked(event)}  ")
            line.append(why.short(event), "green")
            if event.level != "full":
                line.append(f"  {event.level}: {'; '.join(event.reasons)}", "yellow")
        case ResponseCompleted():
            line.append(f"{event.status} {event.outcome}", "green" if event.outcome == "ok" else "red")
            line.append(f"  {event.worker or '-'}  {timing(event)}")
            for report in event.stages:
                if report.outcome != "passed":
                    line.append(f"  {report.stage} {report.outcome}", "yellow")
            if event.reason:
                line.append(f"  {event.reason}", "yellow")
        case ResponseReviewed():
            line.append("after the last byte")
            for report in event.stages:
                line.append(f"  {report.stage} {report.outcome}", "" if report.outcome in _UNREMARKABLE else "yellow")
        case RequestAnswered():
            line.append(f"{event.status} answered by {event.stage}", "bold")
            line.append(f"  {event.model or '-'} · {event.profile or '-'}")
            if event.level != "full":
                line.append(f"  {event.level}: {'; '.join(event.reasons)}", "yellow")
        case RequestRejected():
            line.append(f"{event.status} rejected by {event.stage}", "red")
            line.append(f"  {event.reason}")
        case AttemptFailed():
            line.append(f"{event.worker} {event.outcome}", "yellow")
            if event.leg:
                line.append(f"  the endpoint that answers does the {event.leg}")
            elif event.outcome == ESCALATED:
                line.append("  the cascade's next model is asked")
            else:
                line.append(f"  next {event.next_worker}" if event.next_worker else "  no endpoint left")
        case SessionMoved():
            line.append(f"session {event.session.id} goes from {event.last_worker} to {event.worker}")
            line.append(f"  {event.reason}", "yellow")
        case MirrorCompared():
            line.append(why.describe_copy(event), "" if event.outcome == "answered" else "yellow")
        case ResponseStarted():
            line.append(f"{event.worker} first byte after {event.ttft_ms:.0f} ms")
    return line


def asked(event: RequestScheduled) -> str:
    """The model that was asked for, and the one that serves it when that is another; the profile."""
    name = event.target.lora or event.target.model
    model = event.model if event.model == name else f"{event.model} → {name}"
    return f"{model} · {event.profile}"


def timing(event: ResponseCompleted) -> str:
    """Time to first token, duration, tokens."""
    parts = [f"{event.duration_ms:.0f} ms"]
    if event.ttft_ms is not None:
        parts.insert(0, f"first token {event.ttft_ms:.0f} ms")
    if event.usage is not None:
        usage = event.usage
        parts.append(f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens")
        if usage.cached_tokens:
            parts.append(f"{usage.cached_tokens:,} cached")
    return ", ".join(parts)


def _remarkable(event: ResponseReviewed) -> bool:
    return any(report.outcome not in _UNREMARKABLE for report in event.stages)


def _models(event: Event) -> set[str]:
    found = {getattr(event, "model", None)}
    target = getattr(event, "target", None)
    if target is not None:
        found |= {target.model, target.lora}
    return {name for name in found if isinstance(name, str)}
