"""A workload: requests with arrival times, and traces read from files."""

import gzip
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from pointsman_contracts.service_level import ServicePromise

_OPENERS: Final = {".xz": lzma.open, ".gz": gzip.open}


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request as the engine will see it."""

    arrival_ms: float
    prompt_tokens: int
    output_tokens: int
    blocks: list[int]
    """Names of the full prompt blocks, as `Sequence.blocks`; of the engine's block size."""
    lora: str | None = None
    max_tokens: int | None = None
    """The client's limit on the answer, which the policy may know."""
    streamed: bool = True
    session: str | None = None
    """The conversation, or the run of an agent, that it belongs to."""
    after: tuple[int, ...] = ()
    """In a closed loop: places in the trace of the requests whose ends it waits for; empty for one that arrives at its
    `arrival_ms`."""
    gap_ms: float = 0.0
    """From the last of those ends to its arrival."""
    promise: ServicePromise | None = None
    """Its service level."""


class BlockNames:
    """Names blocks of a prefix tree: the same path from the root gives the same names, any other new ones."""

    def __init__(self, segment_tokens: int, block_size: int) -> None:
        """Segments (the trace's blocks) are a multiple of the engine's blocks."""
        if segment_tokens % block_size:
            raise ValueError(f"a segment of {segment_tokens} tokens isn't a multiple of blocks of {block_size}")
        self._per_segment = segment_tokens // block_size
        self._block_size = block_size
        self._nodes: dict[tuple[int, int | str], int] = {}

    def names_of(self, segments: Iterable[int | str], tokens: int) -> list[int]:
        """Names of the full blocks in the first `tokens` tokens of a path of segments."""
        per_segment, nodes = self._per_segment, self._nodes
        names: list[int] = []
        node = -1
        for segment in segments:
            node = nodes.setdefault((node, segment), len(nodes))
            names.extend(range(node * per_segment, (node + 1) * per_segment))
        return names[: tokens // self._block_size]


def read_mooncake(
    path: Path,
    block_size: int = 64,
    segment_tokens: int = 512,
    limit: int | None = None,
    *,
    closed_loop: bool = False,
) -> list[TraceRequest]:
    """A trace in Mooncake's form: one JSON object a line with `timestamp` (ms), `input_length`,
    `output_length` and `hash_ids` (one per `segment_tokens` tokens of prompt). May be compressed (`.xz`, `.gz`).

    Optional: `answer_ids`, the further segments that the answer adds, and `session`. With `closed_loop` a request whose
    line has `parent` (the number of an earlier line, from 0) arrives `gap_ms` after that request ended, and after all
    of `after`.

    Raises ValueError that names the line.
    """
    names = BlockNames(segment_tokens, block_size)
    requests: list[TraceRequest] = []
    with _OPENERS.get(path.suffix, open)(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(requests) >= limit:
                break
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
                request = _request(record, names)
                after = _after(record, len(requests)) if closed_loop else ()
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: {error!r}") from error
            requests.append(
                replace(request, after=after, gap_ms=float(record.get("gap_ms") or 0.0)) if after else request
            )
    if closed_loop:
        if not any(request.after for request in requests):
            raise ValueError(f"{path}: no line has a `parent`, so there is no closed loop to run")
        return requests
    return sorted(requests, key=lambda request: request.arrival_ms)


def _request(record: dict[str, Any], names: BlockNames) -> TraceRequest:
    prompt, output = max(1, int(record["input_length"])), max(1, int(record["output_length"]))
    answer, session = record.get("answer_ids"), record.get("session")
    # The end of a prompt may be hashed as a segment of its own: without the answer's segments it isn't continued.
    segments, tokens = (
        (record["hash_ids"], prompt) if answer is None else ([*record["hash_ids"], *answer], prompt + output)
    )
    return TraceRequest(
        arrival_ms=float(record["timestamp"]),
        prompt_tokens=prompt,
        output_tokens=output,
        blocks=names.names_of(segments, tokens),
        session=None if session is None else str(session),
    )


def _after(record: dict[str, Any], place: int) -> tuple[int, ...]:
    """The places of the requests that this one waits for; those are earlier in the trace."""
    parent = record.get("parent")
    after = tuple(
        dict.fromkeys(int(each) for each in (*(() if parent is None else (parent,)), *(record.get("after") or ())))
    )
    if any(not 0 <= each < place for each in after):
        raise ValueError(f"it waits for {max(after)}, which isn't an earlier line")
    return after


def scale_arrivals(requests: Sequence[TraceRequest], rate: float) -> list[TraceRequest]:
    """The requests with their arrivals `rate` times as fast. Gaps in a closed loop stay as they are."""
    return [replace(request, arrival_ms=request.arrival_ms / rate) for request in requests]


def reusable(requests: Sequence[TraceRequest], block_size: int) -> float:
    """The share of all prompt tokens, in [0,1], that one endless cache would hold if the requests came one after the
    other in the order of the trace. A request computes at least its last token, as in an engine."""
    known: set[int] = set()
    held = 0
    for request in requests:
        for block in request.blocks[: (request.prompt_tokens - 1) // block_size]:
            if block not in known:
                break
            held += block_size
        known.update(request.blocks)
    return held / max(1, sum(request.prompt_tokens for request in requests))
