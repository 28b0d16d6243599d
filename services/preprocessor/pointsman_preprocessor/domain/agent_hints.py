"""Hints that an agent gives about its own request, in Dynamo's form: `nvext.agent_hints` of the body, and the header
`x-dynamo-request-priority`, which goes before it.

`priority`: higher goes first. Any sender may lower its own; the sender's identity says how far it may raise it
(`priority`, 0 by default). Where a trusted proxy, an objective or `x-priority` has set the priority, the hint doesn't
count. `osl`: the expected tokens of the answer, for predictions alone. Both are advice: one of a wrong type counts for
nothing, which the decision's trail says.

Source: docs.nvidia.com/dynamo, agents/agent-hints and agents/priority-scheduling.
"""

from typing import Final

from pydantic import JsonValue

from pointsman_plugins.preprocessing import IDENTITY, Incoming, ProcessorVerdict
from pointsman_preprocessor.domain.request_headers import HIGHEST_PRIORITY

LONGEST_OUTPUT: Final = 2**24
"""The largest `osl` that counts, in tokens."""
_NAME: Final = "agent-hints"


def read_hints(incoming: Incoming) -> tuple[int, int | None]:
    """The request's priority, and the tokens that its answer is expected to have; None where no hint names them."""
    nvext = incoming.field("nvext")
    hints = nvext.get("agent_hints") if isinstance(nvext, dict) else None
    given = hints if isinstance(hints, dict) else {}
    notes: list[str] = []
    priority = _priority(incoming, given, notes)
    length = given.get("osl")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        notes.append("osl isn't a positive integer")
        length = None
    if notes:
        incoming.verdicts.append(ProcessorVerdict(_NAME, "passed", 0.0, "; ".join(notes)))
    return priority, None if length is None else min(length, LONGEST_OUTPUT)


def _priority(incoming: Incoming, given: dict[str, JsonValue], notes: list[str]) -> int:
    headers = incoming.headers
    hint = given.get("priority") if headers.hinted_priority is None else _number(headers.hinted_priority)
    if hint is None or headers.priority or headers.objective is not None:
        return headers.priority
    if isinstance(hint, bool) or not isinstance(hint, int):
        notes.append("the hinted priority isn't an integer")
        return headers.priority
    allowed = (incoming.read(IDENTITY) or {}).get("priority")
    most = allowed if isinstance(allowed, int) else 0
    if hint > most:
        notes.append(f"the hinted priority counts as {most}, the highest that the sender may have")
    return max(-HIGHEST_PRIORITY, min(hint, most))


def _number(text: str) -> JsonValue:
    try:
        return int(text)
    except ValueError:
        return text
