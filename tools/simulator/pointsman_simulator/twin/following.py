"""The recorded choices on engines of given parameters: when each first token and each end would have come."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.sequence import Sequence as EngineSequence
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.twin.measured import FEATURES, Floats, MeasuredEngine
from pointsman_simulator.twin.recording import RecordedPool, RecordedRequest

_WARM_UP: Final = 0.15
"""Share of a recording with warm engines whose requests only fill the twin's caches."""
_USUAL_ANSWER: Final = 200
"""Tokens of an answer of unknown length, when no other says more."""


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """A recording as columns, a row for each request, with its requests as an engine would get them."""

    requests: tuple[TraceRequest, ...]
    engines: tuple[str, ...]
    """Chosen for each request."""
    arrived: Floats
    sent: Floats
    first: Floats
    """NaN for an answer that wasn't streamed, as for one that isn't judged."""
    ended: Floats
    """NaN for one that isn't judged."""
    prompt_tokens: Floats

    @property
    def ttft(self) -> Floats:
        return self.first - self.arrived

    @property
    def e2e(self) -> Floats:
        return self.ended - self.arrived

    @property
    def decoding(self) -> Floats:
        return self.ended - self.first


def traffic(recording: RecordedPool, *, answers: bool = False) -> RecordedTraffic:
    """The columns of a recording; with `answers`, later prompts are taken to repeat earlier answers (`answers`)."""
    requests = recording.requests
    known = [request.output_tokens for request in requests if request.output_tokens]
    usual = int(np.median(known)) if known else _USUAL_ANSWER
    prompts = [list(request.blocks) for request in requests]
    blocks = with_answers(requests, recording.block_tokens) if answers else prompts
    arrived = np.array([request.arrived_ms for request in requests])
    judged = np.array([request.is_judged for request in requests], dtype=bool)
    if recording.warm:
        judged &= arrived >= arrived[0] + _WARM_UP * recording.span_ms
    first = np.array([np.nan if each.first_ms is None else each.first_ms for each in requests])
    ended = np.array([np.nan if each.ended_ms is None else each.ended_ms for each in requests])
    return RecordedTraffic(
        requests=tuple(
            TraceRequest(
                arrival_ms=each.arrived_ms,
                prompt_tokens=max(1, each.prompt_tokens),
                output_tokens=each.output_tokens or min(usual, each.max_tokens or usual),
                blocks=names,
                lora=each.lora,
                max_tokens=each.max_tokens,
                streamed=each.streamed,
            )
            for each, names in zip(requests, blocks, strict=True)
        ),
        engines=tuple(request.engine for request in requests),
        arrived=arrived,
        sent=np.array([request.sent_ms for request in requests]),
        first=np.where(judged, first, np.nan),
        ended=np.where(judged, ended, np.nan),
        prompt_tokens=np.array([float(request.prompt_tokens) for request in requests]),
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """The engines' work with the recorded choices; a row for each request. NaN for one that no engine took."""

    first: Floats
    ended: Floats
    cached: Floats
    """Prompt tokens that came from the cache."""
    until_first: Floats
    """Features (columns) of the time from the sending to the first token."""
    after_first: Floats
    """Features of the time from the first token to the end."""


def follow(recorded: RecordedTraffic, fleet: Mapping[str, EngineConfig], rows: Sequence[int] | None = None) -> Followed:
    """Run the recorded choices; with `rows` only these requests, as if there had been no others."""
    count = len(recorded.requests)
    chosen = range(count) if rows is None else rows
    first, ended, cached = np.full(count, np.nan), np.full(count, np.nan), np.full(count, np.nan)
    until_first, after_first = np.zeros((count, FEATURES)), np.zeros((count, FEATURES))
    by_engine: dict[str, list[int]] = {name: [] for name in fleet}
    for row in chosen:
        if recorded.engines[row] in by_engine:
            by_engine[recorded.engines[row]].append(row)
    for name, own in by_engine.items():
        engine = MeasuredEngine(fleet[name])
        taken: list[int] = []
        sequences: list[EngineSequence] = []
        for row in sorted(own, key=lambda row: recorded.sent[row]):
            request = recorded.requests[row]
            sequence = EngineSequence(
                row, request.prompt_tokens, request.output_tokens, list(request.blocks), request.lora
            )
            try:
                engine.submit_at(sequence, float(recorded.sent[row]))
            except ValueError:  # it never fits, and so this engine can't have served it
                continue
            taken.append(row)
            sequences.append(sequence)
        engine.run_to_end()
        if not taken:
            continue
        at = np.array(taken)
        first[at] = [sequence.first_token_at for sequence in sequences]
        ended[at] = [sequence.finished_at for sequence in sequences]
        cached[at] = [sequence.cached_tokens for sequence in sequences]
        until_first[at] = engine.features_between(recorded.sent[at], first[at])
        after_first[at] = engine.features_between(first[at], ended[at])
    return Followed(first, ended, cached, until_first, after_first)


def with_answers(requests: Sequence[RecordedRequest], block_tokens: int) -> list[list[int]]:
    """The blocks of each prompt, and behind them those of its answer where a later prompt names them.

    A log has no hashes of answers. A prompt that begins with all blocks of an earlier one, and is longer than that and
    its answer, is taken for the next turn; where several prompts go on differently, e.g. behind a system prompt, none.
    """
    following: dict[int, dict[int, RecordedRequest]] = defaultdict(dict)
    for request in requests:
        for block, next_block in zip(request.blocks, request.blocks[1:], strict=False):
            following[block].setdefault(next_block, request)
    named: list[list[int]] = []
    for request in requests:
        blocks = list(request.blocks)
        nexts = following.get(blocks[-1], {}) if blocks else {}
        if len(nexts) == 1:
            [turn] = nexts.values()
            total = request.prompt_tokens + request.output_tokens
            went_on = request.ended_ms is not None and turn.arrived_ms >= request.ended_ms
            if went_on and turn.prompt_tokens >= total:
                blocks = turn.blocks[: total // block_tokens]
        named.append(blocks)
    return named
