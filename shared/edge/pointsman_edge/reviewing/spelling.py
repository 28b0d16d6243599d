"""What spells the texts of an answer beside them."""

from typing import Final, cast

from pointsman_edge.telling.stream_events import Document

_SPELLING: Final = frozenset({"logprobs", "token_ids"})
"""Members of choices and parts; `token_ids` are vLLM's, where a request sets `return_token_ids`."""


def forget_spelling(value: object) -> bool:
    """Remove log probabilities and token ids, which spell a text that was replaced; whether there were any."""
    found = False
    if isinstance(value, dict):
        members = cast("Document", value)
        for name, member in members.items():
            if name in _SPELLING and member:
                members[name] = [] if isinstance(member, list) and name == "logprobs" else None
                found = True
            elif name != "input":  # what a tool is called with
                found |= forget_spelling(member)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            found |= forget_spelling(item)
    return found
