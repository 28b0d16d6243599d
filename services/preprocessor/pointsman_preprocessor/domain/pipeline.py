"""What one configuration revision does to every request."""

from collections.abc import Awaitable, Iterable, Iterator
from typing import Final

from pointsman_contracts.journey import BlockChain, Journey, RequestFacts, Stage, StageReport
from pointsman_core.config import Config
from pointsman_core.plugins import Registry, Spec, check_dataflow, within
from pointsman_core.prefix import salt
from pointsman_core.rewriting import Rewrites
from pointsman_preprocessor.domain.blocks import LIMIT, chain
from pointsman_preprocessor.domain.facts import features, max_output_tokens, readable_fields
from pointsman_preprocessor.domain.model_tokenizers import Load, ModelTokenizers
from pointsman_preprocessor.domain.processing import ENGINE_SALT, IDENTITY, Incoming, RequestProcessor
from pointsman_preprocessor.domain.prompt import BYTES_PER_TOKEN, Prompt, prompt_of

ENTRY_POINTS: Final = "pointsman.preprocessor.processors"
"""Group in which other distributions offer request processors."""

_NEEDED_BY: Final = {"semantic-match": "prompt-vector"}
"""Scorer of a model-selector → processor that produces what it reads; added when nobody lists it."""
_NEXT: Final = (Stage(service="profile-picker"),)
_DEFAULT_BLOCK_TOKENS: Final = 64


def registry(builtin: Iterable[type[RequestProcessor]]) -> Registry[RequestProcessor]:
    """All request processors: the built-in ones and those of other distributions."""
    return Registry(RequestProcessor, builtin, ENTRY_POINTS)


class Pipeline:
    """The compiled `preprocessing` section, and the block size and tokenizer of each model's pool."""

    def __init__(
        self,
        config: Config,
        processors: Registry[RequestProcessor],
        load: Load | None = None,
    ) -> None:
        """`load` reads a tokenizer; without it none is used. Raises PluginError for a processor that can't be built or
        whose inputs nobody produces, and what `load` raises."""
        specs = [use.spec for use in config.preprocessing]
        needed = [use for scorer, use in _NEEDED_BY.items() if config.ranks_by(scorer)]
        specs += [Spec(use, use, {}) for use in needed if all(spec.use != use for spec in specs)]
        self.processors: Final = processors.build(specs)
        check_dataflow(self.processors)
        for position, processor in enumerate(self.processors):
            with within(position):
                processor.bind(config)
        pools = config.pools
        own = {
            name: pools[served.pool].block_tokens
            for name in config.model_names()
            if (served := config.served(name)) is not None and served.pool is not None
        }
        sizes = tuple(dict.fromkeys(pool.block_tokens for pool in pools.values())) or (_DEFAULT_BLOCK_TOKENS,)
        # A model-selector may send a request for one model to the pool of another.
        self._block_sizes: Final = {
            name: tuple(dict.fromkeys((size, *sizes))) if config.selectors else (size,) for name, size in own.items()
        }
        self._all_block_sizes: Final = sizes
        self._rewrites: Final = Rewrites(config.rewrites)
        self.tokenizers: Final = ModelTokenizers(config, load)

    def run(self, incoming: Incoming) -> Awaitable[None] | None:
        """Rewrite the model, then run the processors in order; returns the rest as an awaitable when one of them waits.
        Raises Refusal."""
        envelope = incoming.envelope
        found = self._rewrites.of(incoming.body.model, envelope.request_id, incoming.headers.session, envelope.headers)
        if found is not None:
            incoming.rule = found.rule
            incoming.set_field("model", found.model)
        return self._run(incoming, iter(self.processors))

    def block_tokens(self, model: str) -> tuple[int, ...]:
        """Tokens in a block of the pools that may serve `model`, the likeliest first."""
        return self._block_sizes.get(model, self._all_block_sizes)

    def _run(self, incoming: Incoming, left: Iterator[RequestProcessor]) -> Awaitable[None] | None:
        for processor in left:
            waiting = processor.process(incoming)
            if waiting is not None:
                return self._resume(incoming, waiting, left)
        return None

    async def _resume(self, incoming: Incoming, waiting: Awaitable[None], left: Iterator[RequestProcessor]) -> None:
        await waiting
        rest = self._run(incoming, left)
        if rest is not None:
            await rest


def describe(incoming: Incoming, block_tokens: tuple[int, ...], prompt: Prompt | None = None) -> RequestFacts:
    """The request as the stages will know it, after all processors have run. `block_tokens`: sizes of blocks, at least
    one; `prompt`: its tokens, if known."""
    body = incoming.body
    document = body.document
    headers = incoming.headers
    if prompt is None:
        prompt = prompt_of(body)
    tenant = str((incoming.read(IDENTITY) or {}).get("tenant") or "")
    # A salt that the engine has too is all that keeps the tenant's blocks apart: KV events name them by it alone.
    keeper = "" if incoming.read(ENGINE_SALT) else tenant
    root = salt(keeper, str(incoming.field("cache_salt") or ""), "ids" if prompt.exact else "text")
    # All chains share the room that a journey has for one.
    first, *others = (
        BlockChain(
            block_tokens=size, blocks=chain(prompt.stream, size * BYTES_PER_TOKEN, root, LIMIT // len(block_tokens))
        )
        for size in block_tokens
    )
    return RequestFacts(
        api=body.api,
        path=incoming.envelope.path,
        stream=document.get("stream") is True,
        body_bytes=len(body.raw),
        prompt_tokens=prompt.tokens,
        tokens_exact=prompt.exact,
        max_output_tokens=max_output_tokens(body),
        block_tokens=first.block_tokens,
        blocks=first.blocks,
        other_chains=tuple(others),
        blocks_precise=prompt.exact and not keeper,
        features=features(body),
        headers=headers.readable,
        fields=readable_fields(document),
        attributes=incoming.attributes,
        session=headers.session,
        priority=headers.priority,
        fairness_id=headers.fairness_id or tenant,
        slo_ttft_ms=headers.slo_ttft_ms,
        slo_itl_ms=headers.slo_itl_ms,
        subset=headers.subset,
    )


def depart(incoming: Incoming, facts: RequestFacts, report: StageReport, degraded: str = "") -> Journey:
    """The journey that leaves preprocessing for the profile-picker. `degraded`: what went wrong here, if anything."""
    envelope = incoming.envelope
    return Journey(
        request_id=envelope.request_id,
        edge=envelope.edge,
        attempt=envelope.attempt,
        received_ms=envelope.received_ms,
        deadline_ms=envelope.deadline_ms,
        revision=envelope.revision,
        request=facts,
        model=incoming.body.model,
        rewritten=None if incoming.model == incoming.body.model else incoming.model,
        itinerary=_NEXT,
        headers=tuple(incoming.header_edits.values()),
        body=tuple(incoming.body_edits.values()),
        answer_headers=tuple(incoming.answer_headers.values()),
        trail=(report,),
        level="degraded" if degraded else "full",
        reasons=(degraded,) if degraded else (),
    )
