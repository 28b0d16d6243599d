"""The engine's answers on the inference paths, and the effects of faults on them."""

import asyncio
import base64
import os
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import orjson
from aiohttp import web

from pointsman_simulator.api import (
    AnswerUsage,
    ApiError,
    Generation,
    parse_chat,
    parse_completion,
    parse_count,
    parse_embedding,
    parse_messages,
    parse_response,
)
from pointsman_simulator.exposition import SimulatedMetrics
from pointsman_simulator.faults import FaultKind, FaultPlan
from pointsman_simulator.rank import RANK_HEADER, EngineRank, choose_rank
from pointsman_simulator.real_time import TokenStream
from pointsman_simulator.sequence import Sequence
from pointsman_simulator.shape import AnswerShape, shape_of
from pointsman_simulator.tokens import BYTES_PER_TOKEN, Tokens, fingerprint, name_blocks, natural_length
from pointsman_simulator.vocabulary import Vocabulary

_EMBEDDING_WIDTH: Final = 64
_KEPT_RESPONSES: Final = 1024
_CALL_TOKENS: Final = 24
"""A call's arguments are short."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The served models and their settings."""

    models: tuple[str, ...]
    """Base models, at least one; they share the batch and the cache. Adapters are the first one's."""
    loras: tuple[str, ...] = ()
    max_model_len: int = 131072
    mean_output_tokens: float = 200.0
    """Mean length of an answer that `max_tokens` does not cut; above 16."""


class _Weights(NamedTuple):
    """A base model, or an adapter on it."""

    lora: str | None
    model: str
    root: str
    """Makes its blocks differ from those of other models for the same tokens."""


@dataclass(slots=True)
class _Choice:
    """One choice of an answer on its way."""

    index: int
    words: list[str]
    ids: list[int]
    """The token of each word."""
    reason: str
    stream: TokenStream
    rank: EngineRank
    sent: int = 0

    async def next(self) -> tuple[list[str], bool]:
        count, done = await self.stream.wait_for_tokens()
        start, self.sent = self.sent, self.sent + count
        return self.words[start : self.sent], done


class Inference:
    def __init__(
        self,
        config: ModelConfig,
        ranks: list[EngineRank],
        metrics: SimulatedMetrics,
        headers: dict[str, str],
        vocabulary: Vocabulary,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._metrics = metrics
        self._headers = headers
        self._vocabulary = vocabulary
        self._responses: dict[str, Tokens] = {}
        """Prompts with their answers, by the ids of the responses; the oldest are dropped."""
        self.faults = FaultPlan()

    async def answer_chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_chat)

    async def answer_completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_completion)

    async def answer_response(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_response)

    async def answer_message(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_messages)

    async def answer_token_count(self, request: web.Request) -> web.StreamResponse:
        return self._json(orjson.dumps(parse_count(await request.read(), self._vocabulary)))

    async def answer_embeddings(self, request: web.Request) -> web.StreamResponse:
        await self._strike()
        embedding = parse_embedding(await request.read(), self._vocabulary)
        weights = self._weights(embedding.model)
        # vLLM reads no rank here.
        rank = await self._rank(None)
        width = embedding.dimensions or _EMBEDDING_WIDTH
        vectors: list[object] = []
        for tokens in embedding.inputs:
            stream = self._submit(rank, tokens, len(tokens), weights, None)
            try:
                await stream.wait_for_tokens()
            finally:
                rank.close(stream)
            vector = np.random.default_rng(fingerprint(tokens)).standard_normal(width).astype("<f4")
            vector /= np.linalg.norm(vector)
            data = base64.b64encode(vector.tobytes()).decode() if embedding.base64 else vector.tolist()
            vectors.append({"object": "embedding", "index": len(vectors), "embedding": data})
        total = sum(len(tokens) for tokens in embedding.inputs)
        usage = {"prompt_tokens": total, "total_tokens": total}
        body = {"object": "list", "data": vectors, "model": embedding.model, "usage": usage}
        return self._json(orjson.dumps(body))

    async def _generate(
        self, request: web.Request, parse: Callable[[bytes, Vocabulary], Generation]
    ) -> web.StreamResponse:
        strikes = await self._strike()
        generation = self._with_earlier_turns(parse(await request.read(), self._vocabulary))
        weights = self._weights(generation.model)
        limits = [self._output_limit(prompt, generation) for prompt in generation.prompts]
        # vLLM's responses read no rank.
        asked = None if generation.surface == "responses" else request.headers.get(RANK_HEADER)
        rank = await self._rank(asked)
        async with self._choices(rank, generation, weights, limits) as choices:
            ids = [choice.ids for choice in choices] if generation.returns_ids else None
            answer_id = uuid.uuid4().hex
            if generation.surface == "responses":
                prompt = generation.prompts[0]
                answered = np.array(choices[0].ids, dtype=prompt.dtype)
                self._keep_response(f"resp_{answer_id}", np.concatenate([prompt, answered]))
            shape = shape_of(generation, answer_id, ids)
            if generation.stream:
                return await self._streamed(request, generation, shape, choices, strikes)
            for choice in choices:
                await self._collect(request, choice, strikes)
            answers = [("".join(choice.words), choice.reason) for choice in choices]
            return self._json(shape.build_body(answers, self._usage(generation, choices)))

    def _with_earlier_turns(self, generation: Generation) -> Generation:
        if generation.continues is None:
            return generation
        earlier = self._responses.get(generation.continues)
        if earlier is None:
            raise ApiError(404, f"Response with id '{generation.continues}' not found.", "NotFoundError")
        return replace(generation, prompts=[np.concatenate([earlier, prompt]) for prompt in generation.prompts])

    def _keep_response(self, response: str, tokens: Tokens) -> None:
        self._responses[response] = tokens
        if len(self._responses) > _KEPT_RESPONSES:
            del self._responses[next(iter(self._responses))]

    async def _collect(self, request: web.Request, choice: _Choice, strikes: dict[FaultKind, float]) -> None:
        done = False
        while not done:
            _, done = await choice.next()
            if choice.sent > _last_token(strikes):
                await self._break(request, strikes)
        self._metrics.count_finished(choice.rank.number, choice.stream.sequence.model, choice.reason)

    async def _streamed(
        self,
        request: web.Request,
        generation: Generation,
        shape: AnswerShape,
        choices: list[_Choice],
        strikes: dict[FaultKind, float],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers | {"content-type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        last_token = _last_token(strikes)

        async def send(choice: _Choice) -> None:
            done = False
            while not done:
                before = choice.sent
                words, done = await choice.next()
                event = shape.write_opening(choice.index) if not before else b""
                if choice.sent > last_token:
                    allowed = words[: int(last_token) - before]
                    await response.write(event + shape.write_tokens(choice.index, allowed))
                    await self._break(request, strikes)
                event += shape.write_tokens(choice.index, words)
                if done:
                    event += shape.write_closing(choice.index, choice.reason)
                    self._metrics.count_finished(choice.rank.number, choice.stream.sequence.model, choice.reason)
                await response.write(event)

        if len(choices) == 1:
            await send(choices[0])
        else:
            async with asyncio.TaskGroup() as group:
                for choice in choices:
                    group.create_task(send(choice))
        await response.write(shape.end_stream(self._usage(generation, choices)))
        await response.write_eof()
        return response

    @asynccontextmanager
    async def _choices(
        self, rank: EngineRank, generation: Generation, weights: _Weights, limits: list[tuple[int, str]]
    ) -> AsyncGenerator[list[_Choice]]:
        """Submit every choice; abort the unfinished ones when the reader leaves."""
        choices: list[_Choice] = []
        try:
            for prompt, (length, reason) in zip(generation.prompts, limits, strict=True):
                for _ in range(generation.choices_per_prompt):
                    seed = fingerprint(prompt) ^ generation.seed ^ len(choices)
                    words, output = self._answer(generation, seed, length)
                    tokens = np.concatenate([prompt, output])
                    stream = self._submit(rank, tokens, len(prompt), weights, generation.cache_salt)
                    choices.append(_Choice(len(choices), words, output.tolist(), reason, stream, rank=rank))
            yield choices
        finally:
            for choice in choices:
                choice.rank.close(choice.stream)

    async def _rank(self, asked: str | None) -> EngineRank:
        """The rank for a request with this header; does not return for one that is stuck."""
        rank = choose_rank(self._ranks, None if self.faults.ignores_ranks else asked)
        if rank.number in self.faults.list_ranks("stall-rank"):
            await stall()
        return rank

    def _answer(self, generation: Generation, seed: int, length: int) -> tuple[list[str], Tokens]:
        if generation.document is None:
            return self._vocabulary.make_answer(seed, length)
        text = generation.document
        # A piece for each token; neither knows the other's bounds.
        _, tokens = self._vocabulary.make_answer(seed, -(-len(text) // BYTES_PER_TOKEN))
        return [text[at : at + BYTES_PER_TOKEN] for at in range(0, len(text), BYTES_PER_TOKEN)], tokens

    def _submit(
        self, rank: EngineRank, tokens: Tokens, prompt_tokens: int, weights: _Weights, salt: str | None
    ) -> TokenStream:
        """Queue a sequence of these tokens, prompt and answer; at least one is computed."""
        root = weights.root if salt is None else f"{weights.root}\0{salt}"
        sequence = Sequence(
            request_id=uuid.uuid4().hex,
            prompt_tokens=prompt_tokens,
            output_tokens=max(1, len(tokens) - prompt_tokens),
            blocks=name_blocks(root, tokens, rank.core.config.block_size),
            lora=weights.lora,
            model=weights.model,
        )
        return rank.submit_sequence(sequence, tokens, salt)

    def _weights(self, name: str) -> _Weights:
        """The weights that compute the requests for this name."""
        first = self._config.models[0]
        if name in self._config.models:
            return _Weights(None, name, "" if name == first else name)
        if name not in self._config.loras:
            raise ApiError(404, f"The model `{name}` does not exist.", "NotFoundError", "model")
        return _Weights(name, first, name)

    def _output_limit(self, prompt: Tokens, generation: Generation) -> tuple[int, str]:
        """The number of tokens of the answer, and the reason why it ends."""
        longest = self._config.max_model_len
        room = longest - len(prompt)
        wanted = generation.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            raise ApiError(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{len(prompt) + (wanted or 0)} tokens ({len(prompt)} in the prompt, {wanted or 0} in the "
                "completion). Please reduce the length of the prompt or completion.",
                "BadRequestError",
            )
        natural = natural_length(fingerprint(prompt) ^ generation.seed, self._config.mean_output_tokens)
        if generation.call is not None:
            natural = min(natural, _CALL_TOKENS)
        natural = max(natural, generation.min_tokens)
        if generation.document is not None:
            natural = -(-len(generation.document) // BYTES_PER_TOKEN)
            wanted = None  # a document is whole
        limit = room if wanted is None else wanted
        return (limit, "length") if limit <= natural else (natural, "stop")

    async def _strike(self) -> dict[FaultKind, float]:
        """Apply the faults that come before an answer; return the others."""
        strikes = self.faults.draw_faults()
        if "stall" in strikes:
            await stall()
        if "error" in strikes:
            status = int(strikes["error"])
            raise ApiError(status, f"injected error {status}", "InternalServerError")
        return strikes

    async def _break(self, request: web.Request, strikes: dict[FaultKind, float]) -> None:
        """Break off the answer at hand; does not return."""
        if "die" in strikes:
            os._exit(1)
        transport = request.transport
        if transport is not None:
            transport.abort()
        await stall()

    def _usage(self, generation: Generation, choices: list[_Choice]) -> AnswerUsage:
        block = self._ranks[0].core.config.block_size
        prompts = generation.prompts
        cached = [choice.stream.sequence.cached_tokens for choice in choices[:: generation.choices_per_prompt]]
        created = sum(
            max(0, len(prompt) // block * block - found) for prompt, found in zip(prompts, cached, strict=True)
        )
        completion = sum(len(choice.words) for choice in choices)
        return AnswerUsage(sum(len(prompt) for prompt in prompts), completion, sum(cached), created)

    def _json(self, body: bytes) -> web.Response:
        return web.Response(body=body, content_type="application/json", headers=self._headers)


async def stall() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


def _last_token(strikes: dict[FaultKind, float]) -> float:
    """The number of tokens of a choice that may be sent before it breaks off."""
    return min(strikes.get("cut", float("inf")), strikes.get("die", float("inf")))
