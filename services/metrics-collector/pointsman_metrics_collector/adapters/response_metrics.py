"""Completed requests for Prometheus, with children bound once for each pool and model: `labels()` costs more than
counting."""

from typing import Final

from prometheus_client import CollectorRegistry

from pointsman_contracts.agent import OTHER
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.session import RequestSession
from pointsman_core.service_level import level_result
from pointsman_runtime.telling.counting import Count, Counter, Histogram

TTFT_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
DURATION_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
DECISION_BUCKETS: Final = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)

MOST_CLASSES: Final = 32
"""Service levels that have counts of their own; edges of another configuration may send other names."""
MOST_AGENTS: Final = 32
"""Agents that have counts of their own; stages of another configuration may send other names."""
MOST_TENANTS: Final = 100
"""Tenants that have counts of their own: the first ones that this collector hears of."""


class _Served:
    """The children of one pool and model."""

    __slots__ = ("cached", "completion", "decision", "duration", "prompt", "reasoning", "ttft")

    def __init__(self, metrics: "ResponseMetrics", pool: str, model: str) -> None:
        self.ttft = metrics.ttft.labels(pool, model)
        self.duration = metrics.duration.labels(pool, model)
        self.decision = metrics.decision.labels(pool, model)
        self.prompt = metrics.tokens.labels(pool, model, "prompt")
        self.completion = metrics.tokens.labels(pool, model, "completion")
        self.cached = metrics.tokens.labels(pool, model, "cached")
        self.reasoning = metrics.tokens.labels(pool, model, "reasoning")


class ResponseMetrics:
    """Counts completions. The caller bounds the names of pools and models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        served = ["pool", "model"]
        self.requests = Counter(
            "pointsman_requests",
            "Requests that ended, by outcome and by the level at which they were decided",
            [*served, "outcome", "level"],
            registry=registry,
        )
        self.attempts = Counter(
            "pointsman_attempts", "Tries to reach an endpoint, by outcome", [*served, "outcome"], registry=registry
        )
        self.tokens = Counter(
            "pointsman_tokens",
            "Tokens that requests used, estimated where no usage was reported; cached are part of prompt, "
            "reasoning of completion",
            [*served, "kind"],
            registry=registry,
        )
        self.ttft = Histogram(
            "pointsman_request_ttft_seconds",
            "From receiving a streamed request to the first byte of its answer",
            served,
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self.duration = Histogram(
            "pointsman_request_duration_seconds",
            "From receiving a request to its end, of those that ended well",
            served,
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.decision = Histogram(
            "pointsman_request_decision_seconds",
            "From receiving a request to the decision where it goes",
            served,
            buckets=DECISION_BUCKETS,
            registry=registry,
        )
        self.promised = Counter(
            "pointsman_slo_requests",
            "Requests with a service level that ended, by the level's class and by whether the answer kept it: kept, "
            "missed, unknown, or refused",
            [*served, "class", "result"],
            registry=registry,
        )
        self.goodput = Counter(
            "pointsman_slo_goodput_tokens",
            "Tokens of the answers that kept their service level",
            [*served, "class"],
            registry=registry,
        )
        self.agent_tokens = Counter(
            "pointsman_agent_prompt_tokens",
            "Prompt tokens of requests with a session, by agent and by whether the engine reported them as cached: "
            "yes, no, or unknown where it reported nothing",
            ["pool", "agent", "cached"],
            registry=registry,
        )
        self._agents: set[str] = set()
        self.promised_tenants = Counter(
            "pointsman_slo_tenant_requests",
            "Requests with a service level that ended, by tenant, class and result: kept, missed, unknown, or refused",
            ["tenant", "class", "result"],
            registry=registry,
        )
        self.tenant_goodput = Counter(
            "pointsman_slo_tenant_goodput_tokens",
            "Tokens of the answers that kept their service level, by tenant",
            ["tenant", "class"],
            registry=registry,
        )
        self._classes: set[str] = set()
        self._tenants: set[str] = set()
        self._served: dict[tuple[str, str], _Served] = {}
        self._requests: dict[tuple[str, str, str, str], Count] = {}
        self._attempts: dict[tuple[str, str, str], Count] = {}

    def count_completion(self, completed: ResponseCompleted, pool: str, model: str) -> None:
        """Count one completion under these names."""
        key = (pool, model, completed.outcome, completed.level)
        requests = self._requests.get(key)
        if requests is None:
            requests = self._requests[key] = self.requests.labels(*key)
        requests.total += 1
        for attempt in completed.attempts:
            tried = pool, model, attempt.outcome
            attempts = self._attempts.get(tried)
            if attempts is None:
                attempts = self._attempts[tried] = self.attempts.labels(*tried)
            attempts.total += 1
        served = self._served.get((pool, model))
        if served is None:
            served = self._served[pool, model] = _Served(self, pool, model)
        if completed.decided_ms:
            served.decision.observe(completed.decided_ms / 1000)
        if completed.outcome == "ok":
            served.duration.observe(completed.duration_ms / 1000)
        if completed.stream and completed.ttft_ms is not None:
            served.ttft.observe(completed.ttft_ms / 1000)
        usage = completed.usage
        if completed.promise is not None:
            self._count_promise(completed, pool, model, completed.promise.service_class)
        if completed.session is not None and usage is not None:
            self._count_agent(completed.session, usage, pool)
        if usage is not None:
            served.prompt.total += usage.prompt_tokens
            served.completion.total += usage.completion_tokens
            if usage.cached_tokens:
                served.cached.total += usage.cached_tokens
            if usage.reasoning_tokens:
                served.reasoning.total += usage.reasoning_tokens

    def _count_agent(self, session: RequestSession, usage: Usage, pool: str) -> None:
        name = OTHER if session.agent is None else _bounded(session.agent.name, self._agents, MOST_AGENTS)
        labels = self.agent_tokens.labels
        if usage.cached_unknown:
            labels(pool, name, "unknown").inc(usage.prompt_tokens)
            return
        # Some engines report more cached tokens than the prompt has.
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        labels(pool, name, "yes").inc(cached)
        labels(pool, name, "no").inc(usage.prompt_tokens - cached)

    def _count_promise(self, completed: ResponseCompleted, pool: str, model: str, level: str) -> None:
        level = _bounded(level, self._classes, MOST_CLASSES)
        tenant = "" if completed.identity is None else completed.identity.tenant
        tenant = _bounded(tenant, self._tenants, MOST_TENANTS)
        result = level_result(completed)
        self.promised.labels(pool, model, level, result).inc()
        self.promised_tenants.labels(tenant, level, result).inc()
        if completed.kept and completed.usage is not None:
            tokens = completed.usage.completion_tokens
            self.goodput.labels(pool, model, level).inc(tokens)
            self.tenant_goodput.labels(tenant, level).inc(tokens)


def _bounded(name: str, known: set[str], most: int) -> str:
    """The name, or `other` once that many are known."""
    if name not in known:
        if len(known) >= most:
            return OTHER
        known.add(name)
    return name
