"""Token usage, read from the end of an answer at a cost that doesn't grow with its length."""

import json
import re
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, Final, cast

from msgspec.structs import replace

from pointsman_contracts.response import SpecialTokens, Usage

MOST_TOKENS: Final = 2**53
"""No request uses more: a larger number is a mistake, and one that not every reader of JSON keeps (RFC 8259, section
6)."""
KEPT: Final = 8192
"""Bytes of the end that are held. OpenAI-compatible engines put `usage` last, or last but a few flags; vLLM puts the
prompt's log probabilities and token ids behind it (`ChatCompletionResponse`), which may be long."""
_TRIED: Final = 16
"""Objects called `usage` that are looked at in what isn't held any more: a schema may call anything so."""
_TRIMMED_AT: Final = 4 * KEPT
"""An answer comes in many small pieces: they are put together once for many of them."""
_EVENT: Final = b"data:"
_COUNTS: Final = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")
_PROMPT: Final = ("prompt_tokens_details", "input_tokens_details")
_COMPLETION: Final = ("completion_tokens_details", "output_tokens_details")
NO_SPECIAL: Final = SpecialTokens()
_NONE: Final[Mapping[str, object]] = {}
_DECODER: Final = json.JSONDecoder()
_TIER: Final = re.compile(rb'"service_tier"\s*:\s*"(\w{1,32})"')


def token_count(value: object) -> int | None:
    """A number of tokens as an engine or provider reported it, rounded; None when it isn't one: it is unknown then, not
    zero."""
    # Of a document's values only its numbers have these very types: true and false have their own.
    if type(value) is int:
        return value if 0 <= value <= MOST_TOKENS else None
    # Some services write counts as floats. NaN compares false.
    return round(value) if type(value) is float and 0.0 <= value <= MOST_TOKENS else None


class UsageTail:
    """Keeps the last bytes of an answer as it passes, and counts."""

    __slots__ = ("_events", "_passed", "_pieces", "_trimmed_at", "size")
    _key: ClassVar[bytes] = b'"usage"'
    """Can't be part of prompt or answer: a quote inside a JSON string is written `\\"`."""
    _report: ClassVar[re.Pattern[bytes]] = re.compile(rb'"usage"\s*(?=:\s*\{)')

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._trimmed_at = _TRIMMED_AT
        """The size at which the pieces are put together next."""
        self._events = 0
        self._passed: Usage | None = None
        self.size = 0
        """Bytes that passed."""

    @property
    def events(self) -> int:
        """Events that passed, if it is a stream; a few may be missing."""
        return self._events + self.end.count(_EVENT)

    @property
    def end(self) -> bytes:
        """The last bytes, all of them if they are few."""
        self._trim()
        return self._pieces[0] if self._pieces else b""

    def follow_bytes(self, data: bytes) -> None:
        """The next bytes of the answer, whole or in pieces of any size."""
        self._pieces.append(data)
        self.size += len(data)
        if self.size > self._trimmed_at:
            self._trim()

    def read_usage(self) -> Usage | None:
        """The last report of the engine; None when it reported nothing."""
        pieces = self._pieces
        end = pieces[0] if len(pieces) == 1 and self.size <= KEPT else self.end
        position = end.rfind(self._key)
        while position >= 0:
            found = _read(end, position + len(self._key))
            if found is not None:
                return found
            position = end.rfind(self._key, 0, position)
        return self._passed

    def service_tier(self) -> str:
        """The service tier that the answer names last; empty where it names none."""
        tiers = _TIER.findall(self.end)
        return tiers[-1].decode() if tiers else ""

    def _trim(self) -> None:
        held = b"".join(self._pieces)
        past = max(0, len(held) - KEPT)
        if past:
            self._events += held.count(_EVENT, 0, past)
            if held.find(self._key, 0, past + len(self._key)) >= 0:
                self._passed = self._last(held) or self._passed
        self._pieces = [held[past:]]
        self._trimmed_at = self.size - len(held) + past + _TRIMMED_AT

    def _last(self, held: bytes) -> Usage | None:
        for position in reversed(deque((found.end() for found in self._report.finditer(held)), _TRIED)):
            found = _read(held[position : position + KEPT], 0)
            if found is not None:
                return found
        return None


class BeginningTail(UsageTail):
    """Keeps the first bytes too."""

    __slots__ = ("start",)

    def __init__(self) -> None:
        super().__init__()
        self.start = b""
        """The first bytes of the answer, at most `KEPT`."""

    def follow_bytes(self, data: bytes) -> None:
        """The next bytes of the answer, whole or in pieces of any size."""
        if len(self.start) < KEPT:
            self.start += data[: KEPT - len(self.start)]
        super().follow_bytes(data)


class UsageEnds(BeginningTail):
    """Reads both ends: streams of Anthropic's API tell the prompt's tokens in their first event."""

    __slots__ = ()

    def read_usage(self) -> Usage | None:
        """The last report, with the prompt of the first one where the last has none."""
        last = super().read_usage()
        if last is not None and last.prompt_tokens:
            return last
        first = self._first()
        if first is None or last is None:
            return last or first
        return replace(
            last,
            prompt_tokens=first.prompt_tokens,
            cached_tokens=first.cached_tokens,
            cached_unknown=first.cached_unknown,
            special=last.special or first.special,
        )

    def _first(self) -> Usage | None:
        start = self.start
        position = start.find(self._key)
        while position >= 0:
            found = _read(start, position + len(self._key))
            if found is not None:
                return found
            position = start.find(self._key, position + 1)
        return None


class MetaInfoTail(UsageTail):
    """Reads SGLang's `meta_info`, which every event of a stream has."""

    __slots__ = ("_several",)
    _key = b'"meta_info"'
    _report = re.compile(rb'"meta_info"\s*(?=:\s*\{)')

    def __init__(self) -> None:
        super().__init__()
        self._several = False

    def follow_bytes(self, data: bytes) -> None:
        """The next bytes of the answer, whole or in pieces of any size."""
        if not self.size:
            self._several = data.lstrip().startswith(b"[")
        super().follow_bytes(data)

    def read_usage(self) -> Usage | None:
        """Like `UsageTail.read_usage`; None for the answers to several prompts, which report one by one."""
        return None if self._several else super().read_usage()


def _read(text: bytes, start: int) -> Usage | None:
    """The report that begins here with its colon, of any API; None for anything else."""
    value = text[start:].lstrip(b" \t\r\n")
    if not value.startswith(b":"):
        return None
    try:
        document, _ = _DECODER.raw_decode(value[1:].lstrip(b" \t\r\n").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    fields = cast("dict[str, object]", document)
    if fields.keys().isdisjoint(_COUNTS):
        return None
    prompt = _count(fields, "prompt_tokens", "input_tokens")
    completion = _count(fields, "completion_tokens", "output_tokens")
    if not (prompt and completion):
        # Of three counts two suffice.
        rest = max(0, _count(fields, "total_tokens") - prompt - completion)
        prompt, completion = (prompt, rest) if prompt else (rest if completion else 0, completion)
    cached = token_count(_details(fields, *_PROMPT).get("cached_tokens"))
    if cached is None:  # SGLang's own API has it beside the other counts
        cached = token_count(fields.get("cached_tokens"))
    if "cache_read_input_tokens" in fields or "cache_creation_input_tokens" in fields:
        # Anthropic counts the tokens that its cache had or got beside `input_tokens`, OpenAI within.
        read = _count(fields, "cache_read_input_tokens")
        prompt += read + _count(fields, "cache_creation_input_tokens")
        cached = cached or read
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached or 0,
        cached_unknown=cached is None,
        reasoning_tokens=_count(_details(fields, *_COMPLETION), "reasoning_tokens"),
        special=special_tokens(fields),
    )


def special_tokens(fields: Mapping[str, object]) -> SpecialTokens | None:
    """The tokens of a report that have prices of their own: of OpenAI's and OpenRouter's APIs in the details, of
    Anthropic's in `cache_creation`. None where it has none."""
    hours, tier = fields.get("cache_creation"), fields.get("service_tier")
    prompt, completion = _details(fields, *_PROMPT), _details(fields, *_COMPLETION)
    found = SpecialTokens(
        cache_write=_count(fields, "cache_creation_input_tokens") or _count(prompt, "cache_write_tokens"),
        cache_write_1h=_count(cast("dict[str, object]", hours), "ephemeral_1h_input_tokens")
        if isinstance(hours, dict)
        else 0,
        audio_prompt=_count(prompt, "audio_tokens"),
        audio_completion=_count(completion, "audio_tokens"),
        image_prompt=_count(prompt, "image_tokens"),
        image_completion=_count(completion, "image_tokens"),
        tier=tier if isinstance(tier, str) and tier != "standard" else "",
    )
    return None if found == NO_SPECIAL else found


def _count(fields: Mapping[str, object], *names: str) -> int:
    """0 where it is missing or can't be read: `settled` estimates a count of 0 that contradicts what passed."""
    for name in names:
        if name in fields and (count := token_count(fields[name])) is not None:
            return count
    return 0


def _details(fields: Mapping[str, object], openai: str, anthropic: str) -> Mapping[str, object]:
    """The details of a report; empty where it has none."""
    details = fields.get(openai) or fields.get(anthropic)
    return cast("dict[str, object]", details) if isinstance(details, dict) else _NONE
