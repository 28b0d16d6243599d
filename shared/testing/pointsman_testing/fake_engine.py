"""The part of an engine that reports on itself; the test decides every answer."""

import asyncio
import json
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from pointsman_testing.scripted_engine import ANSWER, Received, Script, ScriptedEngine

_LABELS = '{engine="0",model_name="m"}'


@dataclass(eq=False)
class FakeEngine(ScriptedEngine):
    """A `ScriptedEngine` that answers as vLLM does about itself; change its fields while it runs."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0
    blocks: int = 1000
    """Of its KV cache, with 16 tokens each."""
    generated_tokens: int = 0
    other_ranks: dict[str, tuple[int, int, float]] = field(default_factory=dict[str, tuple[int, int, float]])
    """Running and waiting requests and KV usage of further data-parallel ranks, by the label `engine`; the fields above
    are those of rank 0."""
    started_at: float | None = 1.75e9
    """None: not reported."""
    exposition: str | None = None
    """Instead of everything above."""
    filters: bool = True
    """Whether it answers `name[]` with only those families, as prometheus_client does."""
    filters_at: str = "/metrics/"
    """The path that does; another one that it knows always answers with everything."""
    paths: tuple[str, ...] = ("/metrics", "/metrics/")
    """The paths of its metrics."""
    withheld: tuple[str, ...] = ()
    """Beginnings of names that such an answer leaves out all the same, as prometheus_client does with what
    collectors without a description collect; `("",)` for all of them."""
    asleep: bool = False
    healthy: bool = True
    has_health: bool = True
    """Whether there is a `/health`."""
    models: object = field(default_factory=lambda: {"data": [{"id": "m", "max_model_len": 4096}]})
    models_status: int = 200
    pages: dict[str, Script] = field(default_factory=dict[str, Script])
    """Path → what answers there in place of everything above."""

    def __post_init__(self) -> None:
        super().__init__(self._answer)
        self._released = asyncio.Event()
        self._released.set()

    @property
    def asked(self) -> list[str]:
        """Path and query of every request, decoded."""
        return [unquote(request.path) for request in self.received]

    def hang(self) -> None:
        """Hold every request without an answer."""
        self._released.clear()

    def release(self) -> None:
        """Answer again, held requests included."""
        self._released.set()

    def metrics(self) -> str:
        """The whole exposition."""
        if self.exposition is not None:
            return self.exposition
        running, waiting, kv_usage = self._load()
        lines = [
            f"vllm:num_requests_running{_LABELS} {float(running)}",
            f"vllm:num_requests_waiting{_LABELS} {float(waiting)}",
            f"vllm:kv_cache_usage_perc{_LABELS} {kv_usage}",
            f"vllm:prompt_tokens_total{_LABELS} {self.prompt_tokens}.0",
            f"vllm:generation_tokens_total{_LABELS} {self.generated_tokens}.0",
            f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {float(not self.asleep)}',
            f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{self.blocks}"}} 1.0',
            f"vllm:time_to_first_token_seconds_count{_LABELS} 0.0",
        ]
        for rank, (rank_running, rank_waiting, rank_usage) in self.other_ranks.items():
            labels = f'{{engine="{rank}",model_name="m"}}'
            lines += [
                f"vllm:num_requests_running{labels} {float(rank_running)}",
                f"vllm:num_requests_waiting{labels} {float(rank_waiting)}",
                f"vllm:kv_cache_usage_perc{labels} {rank_usage}",
                f"vllm:prompt_tokens_total{labels} 0.0",
                f"vllm:generation_tokens_total{labels} 0.0",
                f'vllm:engine_sleep_state{{engine="{rank}",sleep_state="awake"}} 1.0',
                f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="1000"}} 1.0',
            ]
        if self.started_at is not None:
            lines.insert(0, f"process_start_time_seconds {self.started_at}")
        return "\n".join(lines) + "\n"

    def _load(self) -> tuple[float, float, float]:
        """Requests that run and that wait, and the used part of the KV cache, as reported."""
        return self.running, self.waiting, self.kv_usage

    async def _answer(self, request: Received) -> None:
        await self._released.wait()
        target = urlsplit(request.path)
        if (script := self.pages.get(target.path)) is not None:
            await script(request)
            return
        match target.path:
            case path if path in self.paths:
                query = target.query if path == self.filters_at else ""
                await request.answer(self._families(query).encode(), content_type="text/plain; charset=utf-8")
            case "/health" if self.has_health:
                await request.answer(b"", status=200 if self.healthy else 503)
            case "/v1/models":
                await request.answer(json.dumps(self.models).encode(), status=self.models_status)
            case "/v1/chat/completions":
                await request.answer(ANSWER)
            case "/version":
                await request.answer(b'{"version": "0.11.2"}')
            case _:
                await request.answer(b"", status=404)

    def _families(self, query: str) -> str:
        text = self.metrics()
        names = parse_qs(query).get("name[]", []) if self.filters else []
        if not names:
            return text
        wanted = tuple(name + end for name in names for end in ("{", " "))
        lines = (line for line in text.splitlines(keepends=True) if line.startswith(wanted))
        return "".join(line for line in lines if not line.startswith(self.withheld))
