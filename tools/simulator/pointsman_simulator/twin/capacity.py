"""The sizes of an engine: its KV cache as registered or as its load reports show it, and its largest batch."""

from typing import Final

import numpy as np

from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.twin.recording import RecordedEngine, RecordedPool

_LEAST_REPORTS: Final = 10
_FULL_ENOUGH: Final = 0.02
"""Below this usage, a report's rounding says more than the cache."""


def kv_tokens(engine: RecordedEngine, recording: RecordedPool) -> int:
    """Tokens that the KV cache has room for: as registered, else from the reports' usage and the requests that ran at
    the time, else the simulator's default."""
    if engine.kv_tokens is not None:
        return engine.kv_tokens
    own = [each for each in recording.requests if each.engine == engine.name and each.ended_ms is not None]
    first = np.array([each.sent_ms if each.first_ms is None else each.first_ms for each in own])
    ended = np.array([each.ended_ms or 0.0 for each in own])
    tokens = np.array([each.prompt_tokens + each.output_tokens / 2 for each in own])
    sizes = [
        float(tokens[(first <= report.at_ms) & (report.at_ms < ended)].sum()) / report.kv_usage
        for report in engine.reports
        if report.kv_usage > _FULL_ENOUGH
    ]
    usual = EngineConfig()
    largest = max((each.prompt_tokens + each.output_tokens for each in own), default=0)
    found = int(np.median(sizes)) if len(sizes) >= _LEAST_REPORTS else usual.num_blocks * usual.block_size
    return max(found, largest)


def most_sequences(engine: RecordedEngine) -> int:
    """Sequences of the largest batch: where requests wait although the cache isn't full, the batch is. Otherwise the
    usual limit, or the most that ever ran."""
    usual = EngineConfig().max_num_seqs
    most = max((report.running for report in engine.reports), default=0)
    full = [report for report in engine.reports if report.waiting > 0 and report.running == most]
    if len(full) >= _LEAST_REPORTS and float(np.median([report.kv_usage for report in full])) < 0.9:
        return max(1, most)
    return max(usual, most)
