"""The attributes of a request's spans: OpenTelemetry's for HTTP and generative AI, and the gateway's own.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and .../http/http-spans/ (1.37). No text of a prompt
or an answer is among them.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pointsman_core.engine_url import unix_address
from pointsman_edge.telling.request_record import RequestRecord

Value = str | int | tuple[str, ...] | None
"""A value of an attribute; None is skipped."""
OPERATIONS: Final = {
    "chat.completions": "chat", "messages": "chat", "responses": "chat", "completions": "text_completion",
}  # fmt: skip
"""Name of an API → `gen_ai.operation.name`; of any other API its name."""
_FINISH: Final = re.compile(rb'"(?:finish_reason|stop_reason)"\s*:\s*"([a-z_]{1,40})"')
"""Can't be part of an answer's text: a quote inside a JSON string is written `\\"`."""


def operation(record: RequestRecord) -> str:
    """The operation that the model is asked for."""
    return OPERATIONS.get(record.api.name, record.api.name or "unknown")


def request_attributes(record: RequestRecord) -> Mapping[str, Value]:
    """The attributes of the span of a request that has ended and whose usage is settled."""
    usage, target = record.usage, record.target
    return {
        "http.response.status_code": record.status,
        "error.type": None if record.outcome == "ok" else record.outcome,
        "gen_ai.operation.name": operation(record),
        "gen_ai.provider.name": None if target is None else target.provider,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.served or (None if target is None else target.model),
        "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
        "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
        "gen_ai.response.finish_reasons": finish_reasons(record),
        "pointsman.pool": record.pool,
        "pointsman.endpoint": record.worker,
        "pointsman.profile": None if record.decision is None else record.decision.profile,
        "pointsman.level": record.level,
        "pointsman.cached_tokens": None if usage is None else usage.cached_tokens,
        "pointsman.attempts": len(record.attempts),
    }


def finish_reasons(record: RequestRecord) -> tuple[str, ...] | None:
    """Why each answer ended, if the end of the response shows it; None without an answer."""
    if record.tail is None:
        return None
    found = dict.fromkeys(match.decode() for match in _FINISH.findall(record.tail.end))
    return tuple(found) or None


def server(url: str) -> dict[str, str | int | None]:
    """The attributes that name a peer."""
    unix = unix_address(url)
    if unix is not None:
        return {"server__address": unix.socket, "server__port": None}
    parts = urlsplit(url)
    return {"server__address": parts.hostname, "server__port": parts.port}
