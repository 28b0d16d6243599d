"""The features, in the order of the table: one function each, which returns a short remark."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp

from pointsman_engines.client import EngineClient, PageUnread
from pointsman_engines.dialect import detect
from pointsman_engines.exposition import Exposition, UnreadableMetrics
from pointsman_engines.probes import answers, telling
from pointsman_engines.probes.probed_engine import ANSWER_S, Different, FeatureMissing, ProbedEngine


class Outcome(StrEnum):
    """The result of testing a feature."""

    SUPPORTED = "supported"
    MISSING = "missing"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class FeatureResult:
    """One line of the table."""

    key: str
    title: str
    outcome: Outcome
    note: str = ""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that the gateway uses or passes on."""

    key: str
    title: str
    probe: Callable[[ProbedEngine], Awaitable[str]]


FEATURES: Final = (
    Feature("health", "Health path", telling.health),
    Feature("version", "Version path", telling.version),
    Feature("models", "List of models", telling.models),
    Feature("context", "Longest context told", telling.context),
    Feature("metrics.running", "Metric: running requests", telling.running),
    Feature("metrics.waiting", "Metric: waiting requests", telling.waiting),
    Feature("metrics.kv-usage", "Metric: use of the KV cache", telling.kv_usage),
    Feature("metrics.kv-size", "Metric: size of the KV cache", telling.kv_size),
    Feature("metrics.progress", "Metric: counter of progress", telling.progress),
    Feature("metrics.start", "Metric: start of the process", telling.started),
    Feature("metrics.loras", "Metric: adapters in use", telling.loras),
    Feature("metrics.sleep", "Metric: sleep", telling.sleep),
    Feature("metrics.selected", "Metrics asked for by name", telling.selected),
    Feature("chat", "Chat", answers.chat),
    Feature("chat.stream", "Chat, streamed, with usage", answers.chat_stream),
    Feature("chat.n", "Chat: several choices", answers.chat_choices),
    Feature("chat.logprobs", "Chat: log probabilities", answers.chat_logprobs),
    Feature("chat.json", "Chat: structured output", answers.chat_json),
    Feature("chat.tools", "Chat: forced tool call", answers.chat_tools),
    Feature("chat.tools-stream", "Chat: tool call, streamed", answers.chat_tools_stream),
    Feature("chat.cached", "Chat: cached tokens in usage", answers.chat_cached),
    Feature("completions", "Completions", answers.completions),
    Feature("completions.stream", "Completions, streamed", answers.completions_stream),
    Feature("completions.ids", "Completions of token ids", answers.completions_ids),
    Feature("responses", "Responses", answers.responses),
    Feature("responses.stream", "Responses, streamed", answers.responses_stream),
    Feature("messages", "Anthropic messages", answers.messages),
    Feature("messages.stream", "Anthropic messages, streamed", answers.messages_stream),
    Feature("messages.count", "Anthropic count of tokens", answers.messages_count),
    Feature("embeddings", "Embeddings", answers.embeddings),
    Feature("error.request", "Error: bad request", answers.error_request),
    Feature("error.model", "Error: unknown model", answers.error_model),
    Feature("hang-up", "Hang-up frees the place", telling.hang_up),
)


async def probed(url: str, model: str, http: aiohttp.ClientSession, api_key: str | None = None) -> ProbedEngine:
    """Return the engine to probe; its kind follows from its metrics."""
    try:
        dialect = detect(Exposition(await EngineClient(url, session=http).metrics(timeout=ANSWER_S)))
    except (PageUnread, UnreadableMetrics):
        dialect = None
    return ProbedEngine(url, model, http, dialect, api_key)


async def find(engine: ProbedEngine, feature: Feature) -> FeatureResult:
    """Test one feature."""
    try:
        note = await feature.probe(engine)
    except FeatureMissing as error:
        return FeatureResult(feature.key, feature.title, Outcome.MISSING, str(error))
    except (Different, UnreadableMetrics) as error:
        return FeatureResult(feature.key, feature.title, Outcome.DIFFERENT, str(error))
    return FeatureResult(feature.key, feature.title, Outcome.SUPPORTED, note)
