"""Usage in the form that OpenAI defines for chats and completions: 3 us less than of any form, 1 % of a request
(`python -m benchmarks.fast_paths`). `usage` reads all others.
"""

import re
from typing import Annotated, Final, Literal

import msgspec

from pointsman_contracts.response import MOST_TOKENS, Usage

_OBJECT: Final = re.compile(rb"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")
"""An object in which objects hold no others, unless a text in it has braces."""
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _Details(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: _Tokens | None = None
    reasoning_tokens: _Tokens = 0
    # Of these, a report is read with all others: `_special`.
    cache_write_tokens: Literal[0] | None = 0
    audio_tokens: Literal[0] | None = 0
    image_tokens: Literal[0] | None = 0


class _Report(msgspec.Struct, frozen=True, gc=False):
    """A report as OpenAI defines it for chats and completions, which has none of the other APIs' names."""

    prompt_tokens: _Tokens
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens: None = None
    input_tokens_details: None = None
    output_tokens_details: None = None
    cache_read_input_tokens: None = None
    cache_creation_input_tokens: None = None
    service_tier: None = None


_read_report: Final = msgspec.json.Decoder(_Report).decode


def read_usual(text: bytes, start: int) -> Usage | None:
    """The report that begins here with its colon; None for one of another form, or anything else."""
    found = _OBJECT.match(text, start)
    if found is None:
        return None
    try:
        report = _read_report(found[1])
    except msgspec.DecodeError:
        return None
    details, reasoning = report.prompt_tokens_details, report.completion_tokens_details
    cached = None if details is None else details.cached_tokens
    return Usage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        cached_tokens=cached or 0,
        reasoning_tokens=0 if reasoning is None else reasoning.reasoning_tokens,
        estimated=False,
        special=None,
        cached_unknown=cached is None,
    )
