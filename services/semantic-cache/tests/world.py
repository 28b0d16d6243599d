"""A semantic-cache with its edge played by a test."""

import json
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import AnswerUse, Journey, RequestFacts, Stage, StageReport
from pointsman_contracts.message import Blob, read_fields
from pointsman_contracts.reply import Answer
from pointsman_contracts.response import Usage
from pointsman_contracts.response_stage import ResponseReview
from pointsman_embedding.embedders import Embedders
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Outcome
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing
from pointsman_semantic_cache.adapters.model_gates import ModelGates
from pointsman_semantic_cache.adapters.stores import Stores
from pointsman_semantic_cache.domain.policy import CachePolicy, compile_policy
from pointsman_semantic_cache.domain.questions import OpenQuestions
from pointsman_semantic_cache.flights import Flights
from pointsman_semantic_cache.handlers import Handlers
from pointsman_semantic_cache.metrics import CacheMetrics
from pointsman_semantic_cache.surroundings import CacheSurroundings, GateOf
from pointsman_testing import builders
from pointsman_testing.buses import RecordedHop

ASKED = "Is aspirin safe for dogs?"
WHOLE = b'{"id":"c","model":"llama-8b","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'
USAGE = Usage(prompt_tokens=9, completion_tokens=1)
POPULATE = Stage(service="semantic-cache", answer=AnswerUse(content="body"))
GUARD = Stage(service="guard", answer=AnswerUse(mode="window", content="text"))
LEXICAL = {"caches": {"default": {"embeddings": "lexical"}}}
USUAL = {"request": ["semantic-cache", "scheduler"], "response": ["semantic-cache"]}


class Edge:
    """Holds one request."""

    def __init__(self) -> None:
        self.said = ASKED
        self.problem: Exception | None = None

    async def fetch_body(self, edge: str, request_id: str) -> bytes:
        if self.problem is not None:
            raise self.problem
        message = {"role": "user", "content": self.said}
        return json.dumps({"model": "llama-8b", "messages": [message]}).encode()


class World:
    """A semantic-cache, and an edge whose requests say what a test wants."""

    def __init__(
        self, config: Mapping[str, object] | None = None, folder: Path | None = None, gates: GateOf | None = None
    ) -> None:
        self.edge = Edge()
        self.alone = True
        self.parked: list[Outcome] = []
        self.registry = registry = CollectorRegistry()
        self.configuration: Configuration[CachePolicy] = Configuration(
            lambda config, revision: compile_policy(config), registry
        )
        self.apply(1, config or LEXICAL)
        self.stores = Stores(folder)
        self.gates = gates or ModelGates()
        self.questions = OpenQuestions()
        metrics = CacheMetrics(registry, self.stores.memory)
        self.handlers = Handlers(
            CacheSurroundings(
                "cache-1",
                self.configuration,
                self.edge,
                self.stores,
                Embedders("none"),
                self.gates,
                self.questions,
                metrics,
                Missing(Log("cache")),
                Flights(),
                lambda: self.alone,
            )
        )

    def apply(self, revision: int, config: Mapping[str, object]) -> None:
        document = {"pools": {"llama-8b": {"models": ["llama-8b"]}}, "profiles": {"standard": USUAL}, **config}
        assert self.configuration.offer_revision(revision, json.dumps(document)), self.configuration.refused

    async def look_up(
        self,
        said: str = ASKED,
        *,
        tenant: str = "acme",
        subject: str = "",
        plan: str = "",
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, Any] | None = None,
        fingerprint: bytes = b"",
        attributes: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Journey | Answer:
        self.edge.said = said
        identity: dict[str, Any] = {"identity": {"tenant": tenant, "subject": subject, "plan": plan}} if tenant else {}
        facts = RequestFacts(
            api="chat.completions",
            headers=dict(headers or {}),
            attributes=identity | dict(attributes or {}),
            fields=dict(fields or {}),
            fingerprint=Blob(fingerprint),
        )
        known = {"request": facts, "response": (GUARD, POPULATE)}
        journey = builders.journey("semantic-cache", "scheduler", **known | changes)
        hop = RecordedHop(journey, service="semantic-cache")
        hop.sent = self.parked
        found = self.handlers.look_up(journey, hop)
        return await found if isinstance(found, Awaitable) else found

    async def keep(self, journey: Journey | Answer, **fields: Any) -> str | None:
        assert isinstance(journey, Journey)
        memo = next(stage.memo for stage in journey.response if stage.service == "semantic-cache")
        known = {
            "request_id": journey.request_id, "edge": "e", "stage": "semantic-cache", "revision": journey.revision,
            "deadline_ms": 0, "mode": "after", "api": "chat.completions", "status": 200, "outcome": "ok",
            "profile": "standard", "model": journey.model, "target": journey.target, "usage": USAGE, "body": WHOLE,
            "headers": {"content-type": "application/json"}, "memo": memo,
            "stages": (StageReport(stage="guard", instance="g"),),
        }  # fmt: skip
        said = self.handlers.review(read_fields(ResponseReview, known | fields))
        verdict = await said if isinstance(said, Awaitable) else said
        assert verdict.action == "pass"
        return verdict.note


def told(outcome: Journey | Answer) -> str | None:
    return next((edit.value for edit in outcome.answer_headers if edit.name == "x-pointsman-cache"), None)
