"""A workload: requests with arrival times, and traces read from files."""

import gzip
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

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


class BlockNames:
    """Names blocks of a prefix tree: the same path from the root gives the same names, any other new ones."""

    def __init__(self, segment_tokens: int, block_size: int) -> None:
        """Segments (the trace's blocks) are a multiple of the engine's blocks."""
        if segment_tokens % block_size:
            raise ValueError(f"a segment of {segment_tokens} tokens isn't a multiple of blocks of {block_size}")
        self._per_segment = segment_tokens // block_size
        self._block_size = block_size
        self._nodes: dict[tuple[int, int | str], int] = {}

    def of(self, segments: Iterable[int | str], tokens: int) -> list[int]:
        """Names of the full blocks in the first `tokens` tokens of a path of segments."""
        per_segment, nodes = self._per_segment, self._nodes
        names: list[int] = []
        node = -1
        for segment in segments:
            node = nodes.setdefault((node, segment), len(nodes))
            names.extend(range(node * per_segment, (node + 1) * per_segment))
        return names[: tokens // self._block_size]


def read_mooncake(
    path: Path, block_size: int = 64, segment_tokens: int = 512, limit: int | None = None
) -> list[TraceRequest]:
    """A trace in Mooncake's form: one JSON object a line with `timestamp` (ms), `input_length`,
    `output_length` and `hash_ids` (one per `segment_tokens` tokens of prompt). May be compressed (`.xz`, `.gz`).

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
                tokens = int(record["input_length"])
                request = TraceRequest(
                    arrival_ms=float(record["timestamp"]),
                    prompt_tokens=max(1, tokens),
                    output_tokens=max(1, int(record["output_length"])),
                    blocks=names.of(record["hash_ids"], tokens),
                )
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: {error!r}") from error
            requests.append(request)
    return sorted(requests, key=lambda request: request.arrival_ms)


def scale_arrivals(requests: Sequence[TraceRequest], rate: float) -> list[TraceRequest]:
    """The requests with their arrivals `rate` times as fast."""
    return [replace(request, arrival_ms=request.arrival_ms / rate) for request in requests]
