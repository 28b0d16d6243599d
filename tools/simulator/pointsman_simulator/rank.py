"""The data-parallel ranks of one server: each has a batch, a cache and a publisher of KV events of its own.

The header and its error are those of vLLM 0.32 (`entrypoints/generate/base/serving.py`,
`v1/engine/input_processor.py`), and so is the choice for a request without it: the rank with the fewest requests
(`v1/engine/core_client.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from pointsman_simulator.api import ApiError
from pointsman_simulator.engine import EngineConfig, EngineModel, PassResult
from pointsman_simulator.kv_events import BlockBook
from pointsman_simulator.real_time import RealTimeEngine, TokenStream
from pointsman_simulator.sequence import Sequence as TokenSequence
from pointsman_simulator.tokens import Tokens

if TYPE_CHECKING:
    from pointsman_simulator.kv_publisher import KvPublisher

RANK_HEADER: Final = "X-data-parallel-rank"


class EngineRank:
    """One rank. An engine without data parallelism is its only rank, number 0."""

    def __init__(
        self,
        number: int,
        config: EngineConfig,
        publisher: "KvPublisher | None",
        on_pass: Callable[[int, PassResult], None],
    ) -> None:
        """`on_pass` is called with the number and the outcome of each pass."""
        self.number: Final = number
        self.core: Final = EngineModel(config)
        self.driver: Final = RealTimeEngine(self.core, self._observe_pass)
        self.publisher: Final = publisher
        self._book: Final = None if publisher is None else BlockBook(config.block_size)
        self._on_pass: Final = on_pass

    @property
    def requests(self) -> int:
        """Those that run or wait."""
        return len(self.core.running) + len(self.core.waiting)

    def submit_sequence(self, sequence: TokenSequence, tokens: Tokens, salt: str | None) -> TokenStream:
        """Queue a sequence of these tokens, prompt and answer. ApiError when it can never fit."""
        try:
            stream = self.driver.submit_sequence(sequence)
        except ValueError as error:
            raise ApiError(400, str(error), "BadRequestError") from None
        if self._book is not None:
            self._book.open_sequence(sequence.blocks, tokens, sequence.lora, salt)
        return stream

    def close(self, stream: TokenStream) -> None:
        """The reader of its tokens is gone: abort the sequence if it is unfinished."""
        self.driver.close(stream)
        if self._book is not None:
            self._book.close_sequence(stream.sequence.blocks)

    def describe_state(self) -> dict[str, float]:
        """Its load and its counters, by name."""
        core = self.core
        load = {"running": len(core.running), "waiting": len(core.waiting), "kv_usage": core.kv_usage}
        return load | asdict(core.counters)

    def _observe_pass(self, result: PassResult) -> None:
        self._on_pass(self.number, result)
        if self.publisher is not None and self._book is not None:
            # A block is in host memory before it leaves the device, so that names alone say which one it is.
            self.publisher.publish_batch(
                self._book.host_events(result.host_stored, [])
                + self._book.build_events(result.stored, result.removed)
                + self._book.host_events([], result.host_removed)
            )


def choose_rank(ranks: Sequence[EngineRank], asked: str | None) -> EngineRank:
    """The rank that a request gets; `asked` is its header. ApiError for a rank that the server doesn't have. A header
    that isn't a number counts for nothing."""
    try:
        number = int(asked or "")
    except ValueError:
        return min(ranks, key=lambda rank: rank.requests)
    if not 0 <= number < len(ranks):
        text = f"data_parallel_rank {number} is out of range [0, {len(ranks)})."
        raise ApiError(400, text, "BadRequestError")
    return ranks[number]
