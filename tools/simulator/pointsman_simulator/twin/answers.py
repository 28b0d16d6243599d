"""Names for the blocks of answers: a later prompt that goes on where a conversation ended repeats the answer."""

from collections import defaultdict
from collections.abc import Sequence

from pointsman_simulator.twin.recording import RecordedRequest


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
