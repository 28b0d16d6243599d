"""The processing of every request under one configuration revision."""

from collections.abc import Awaitable, Iterable
from typing import Final

from pointsman_contracts.batch import LENT_AUTHORIZATION
from pointsman_contracts.content import LastBlock, PromptEnd
from pointsman_contracts.journey import (
    BlockChain,
    Journey,
    RequestFacts,
    Stage,
    StageReport,
    edited,
)
from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_core.config import ANSWER_BLOCKS, Config, ProcessorUse, active
from pointsman_core.fingerprint import deciding, fingerprint
from pointsman_core.plugins import within
from pointsman_core.settled_target import HASH_BYTES, salt
from pointsman_plugins.preprocessing import ENGINE_SALT, IDENTITY, Incoming, Ports, RequestProcessor
from pointsman_plugins.prompt import BYTES_PER_TOKEN, MOST_BLOCKS, Prompt, chain, chain_grown
from pointsman_plugins.registry import Registry
from pointsman_preprocessor.domain.admission import Admission
from pointsman_preprocessor.domain.agent_hints import read_hints
from pointsman_preprocessor.domain.chain import Chain, Step, Within
from pointsman_preprocessor.domain.lent import AUTHORIZATION, LentIdentities, take_lent
from pointsman_preprocessor.domain.model_tokenizers import Load, ModelTokenizers, TokenReaders
from pointsman_preprocessor.domain.order import admission_position, check_order
from pointsman_preprocessor.domain.pool_rules import NameRules

NOTE_LIMIT: Final = 256
"""Most characters of a processor's note that are kept."""

_NEEDED_BY: Final = {"semantic-match": "prompt-vector"}
"""Scorer of a model-selector → the processor that produces its input; added when the configuration doesn't list it."""
_RECOGNISER: Final = "agent-session"
_CACHE: Final = "semantic-cache"
_NEXT: Final = (Stage(service="profile-picker"),)
_DEFAULT_BLOCK_TOKENS: Final = 64


def registry(builtin: Iterable[type[RequestProcessor]]) -> Registry[RequestProcessor]:
    """All request processors: built-in ones and those of other distributions."""
    return Registry(RequestProcessor, builtin)


class Pipeline:
    """The compiled `preprocessing` section, and the block size and tokenizer of each model's pool."""

    def __init__(
        self,
        config: Config,
        processors: Registry[RequestProcessor],
        load: Load | None = None,
        ports: Ports | None = None,
        bound: Within | None = None,
    ) -> None:
        """`load` reads a tokenizer; without it none is used. `ports`: services that processors call; `bound`
        keeps the timeouts of those that wait. Raises PluginError for a processor that can't be built or stands in the
        wrong place, and what `load` raises."""
        self.config: Final = config
        self._lent: Final = None if ports is None else ports.find(LentIdentities)
        steps = _steps(config, processors, ports or Ports())
        self._agents: Final = _unlisted_recogniser(config, processors)
        self._chain: Final = Chain(steps, bound)
        self._identifying: Final = Chain([step for step in steps if _identifies(step)], bound)
        pools = config.pools
        own = {
            name: pools[target.pool].block_tokens
            for name in config.model_names()
            if (target := config.find_target(name)) is not None and target.pool is not None
        }
        sizes = tuple(dict.fromkeys(pool.block_tokens for pool in pools.values())) or (_DEFAULT_BLOCK_TOKENS,)
        # A model-selector may send a request for one model to the pool of another.
        self._block_sizes: Final = {
            name: tuple(dict.fromkeys((size, *sizes))) if config.selectors else (size,) for name, size in own.items()
        }
        self._all_block_sizes: Final = sizes
        self._only_block_size: Final = sizes if len(sizes) == 1 else None
        """The same as of every model."""
        profiles = config.profiles.values()
        self._fingerprints: Final = any(use.service == _CACHE for each in profiles for use in active(each.request))
        self.names: Final = NameRules(config)
        self.tokenizers: Final = ModelTokenizers(config, load)
        self.tokenizes: Final = self.tokenizers.has_tokenizers
        """Whether any prompt is tokenized."""
        self.token_readers: Final = TokenReaders(config)
        self._names_answers: Final = config.runs_response_processor(ANSWER_BLOCKS)
        self.reads_prompts: Final = self.tokenizes or self._names_answers
        """Whether any prompt is tokenized, or its end is for the edge."""

    def run(self, incoming: Incoming) -> Awaitable[None] | None:
        """Rewrite the model, then run the processors in order; returns the rest as an awaitable when one of them waits.
        Raises Refusal."""
        headers = incoming.headers
        authorization = incoming.envelope.headers.get(AUTHORIZATION)
        if authorization is not None and authorization.startswith(LENT_AUTHORIZATION) and self._lent is not None:
            take_lent(incoming, authorization, self._lent)
        if (incoming.body.may_name_session or headers.names_agent) and self._agents is not None:
            self._agents.run(incoming)
            headers = incoming.headers
        if self.names.rewrite:
            envelope = incoming.envelope
            found = self.names.rewrite_model(
                incoming.body.model, envelope.request_id, headers.session, envelope.headers
            )
            if found is not None:
                incoming.rule = found.rule
                incoming.set_field("model", found.model)
        if headers.objective is not None:
            headers.priority = self.names.priority_of(headers.objective, incoming.model)
        return self._chain.run(incoming) if self._chain.steps else None

    @property
    def processors(self) -> tuple[RequestProcessor, ...]:
        """The processors that run, in shadow too, in their order."""
        return tuple(step.processor for step in self._chain.steps)

    def block_tokens(self, model: str) -> tuple[int, ...]:
        """Tokens in a block of the pools that may serve `model`, the likeliest first."""
        return self._block_sizes.get(model, self._all_block_sizes)

    def build_facts(self, incoming: Incoming, prompt: Prompt | None = None) -> RequestFacts:
        """Like `describe`, for the configured pools and stages."""
        sizes = self._only_block_size or self._block_sizes.get(incoming.model, self._all_block_sizes)
        return describe(incoming, sizes, prompt, fingerprinted=self._fingerprints)

    def end_for_edge(self, incoming: Incoming, facts: RequestFacts, prompt: Prompt | None = None) -> PromptEnd | None:
        """The end of a prompt, for an edge that names the blocks of answers; None when none does. `prompt`: as of
        `facts`."""
        if not self._names_answers:
            return None
        return end_of_prompt(incoming, facts, prompt or incoming.prompt)

    def identify_sender(self, incoming: Incoming) -> Awaitable[None] | None:
        """Run only the processors that identify the sender. Returns and raises what `run` does."""
        return self._identifying.run(incoming)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The processors that run, in order."""
        return self._chain.steps


def _unlisted_recogniser(config: Config, types: Registry[RequestProcessor]) -> Chain | None:
    """Recognises agents by the table of known ones; None where the configuration does so itself, or turns it off."""
    if _RECOGNISER not in types.types or any(use.use == _RECOGNISER for use in config.preprocessing):
        return None
    use = ProcessorUse(use=_RECOGNISER)
    return Chain([Step.from_entry(types.build([use.spec])[0], use)])


def _identifies(step: Step) -> bool:
    """Whether the processor helps to identify the sender, and is enforced."""
    finds = any(key.name == IDENTITY.name for key in step.processor.produces)
    return not step.shadow and (finds or isinstance(step.processor, Admission))


def _steps(config: Config, types: Registry[RequestProcessor], ports: Ports) -> list[Step]:
    uses = list(config.preprocessing)
    needed = [use for scorer, use in _NEEDED_BY.items() if config.ranks_by(scorer)]
    uses += [ProcessorUse(use=use) for use in needed if all(other.use != use for other in uses)]
    processors = types.build([use.spec for use in uses])
    check_order(uses, processors, config)
    steps: list[Step] = []
    for position, (use, processor) in enumerate(zip(uses, processors, strict=True)):
        if use.mode == "off":
            continue
        with within(position):
            processor.bind(config)
        processor.connect(ports)
        steps.append(Step.from_entry(processor, use))
    admission = admission_position(steps)
    if admission is not None:
        # A processor in shadow rejects no request.
        shadow = all(step.shadow for step in steps if step.processor.authenticates)
        steps.insert(admission, Step(Admission(config), shadow))
    return steps


def describe(
    incoming: Incoming, block_tokens: tuple[int, ...], prompt: Prompt | None = None, *, fingerprinted: bool = False
) -> RequestFacts:
    """The request as later stages will see it, after all processors have run. `block_tokens`: sizes of blocks, at least
    one; `prompt`: its tokens, if known; `fingerprinted`: whether a stage reads its fingerprint."""
    body, headers, attributes = incoming.body, incoming.headers, incoming.attributes
    document, api = body.document, body.api
    if prompt is None:
        prompt = incoming.measured or incoming.measure()
    tenant, keeper = _tenant_and_keeper(incoming) if attributes else ("", "")
    root = _root_of(incoming, keeper, exact=prompt.exact)
    size, others, most = block_tokens[0], (), MOST_BLOCKS
    before = incoming.envelope.continued_tokens
    if before is not None:
        # The engine adds earlier turns in front, whose texts aren't here: no block of the prompt can be named.
        prompt = Prompt(b"", prompt.tokens + before)
    if len(block_tokens) > 1:
        # All chains share the space that a journey has for one.
        most = MOST_BLOCKS // len(block_tokens)
        others = tuple(
            [
                BlockChain(block_tokens=other, blocks=chain(prompt.stream, other * BYTES_PER_TOKEN, root, most))
                for other in block_tokens[1:]
            ]
        )
    priority, hinted = headers.priority, None
    if body.gives_hints or headers.hinted_priority is not None:
        priority, hinted = read_hints(incoming)
    return RequestFacts(
        api=api.name,
        path=incoming.envelope.path,
        stream=document.get("stream") is True,
        body_bytes=len(body.raw),
        prompt_tokens=prompt.tokens,
        tokens_exact=prompt.exact,
        continued_tokens=before,
        max_output_tokens=body.max_output_tokens,
        hinted_output_tokens=hinted,
        answers=body.view.answers,
        block_tokens=size,
        blocks=chain(prompt.stream, size * BYTES_PER_TOKEN, root, most)
        if body.kept is None
        else chain_grown(prompt.stream, size * BYTES_PER_TOKEN, root, most, body.kept.prompts),
        blocks_precise=prompt.exact and not keeper,
        other_chains=others,
        fingerprint=fingerprint(api.name, deciding(edited(document, incoming.body_edits.values())))
        if fingerprinted and api.complete
        else NO_BYTES,
        features=body.features,
        headers=headers.readable,
        fields=body.readable,
        attributes=attributes,
        session=headers.session,
        priority=priority,
        fairness_id=headers.fairness_id or tenant,
        slo_ttft_ms=headers.slo_ttft_ms,
        slo_itl_ms=headers.slo_itl_ms,
        subset=headers.subset,
        workers=headers.workers,
        decision=incoming.envelope.decision,
        escalated=incoming.envelope.escalated or (),
        dry_run=incoming.envelope.dry_run is True,
    )


def _tenant_and_keeper(incoming: Incoming) -> tuple[str, str]:
    """The sender's tenant, and the tenant that the engine doesn't know of, which its blocks are salted with."""
    tenant = str((incoming.read(IDENTITY) or {}).get("tenant") or "")
    return tenant, "" if incoming.read(ENGINE_SALT) else tenant


def _root_of(incoming: Incoming, keeper: str, *, exact: bool) -> int:
    """The hash before a prompt's first block."""
    # Only a salt that the engine has too separates the tenant's blocks: KV events have no other name for them.
    given = incoming.field("cache_salt") if incoming.body_edits else incoming.body.document.get("cache_salt")
    return salt(keeper, str(given) if given else "", "ids" if exact else "text")


def end_of_prompt(incoming: Incoming, facts: RequestFacts, prompt: Prompt) -> PromptEnd | None:
    """The end of a prompt, for the blocks of the answer that follows it. None where not one answer follows one prompt,
    or where the prompt has more blocks than its facts."""
    body = incoming.body
    if not prompt.stream or facts.answers > 1 or len(body.view.prompts or ()) > 1 or body.media:
        return None
    ends: list[LastBlock] = []
    for known in (BlockChain(block_tokens=facts.block_tokens, blocks=facts.blocks), *facts.other_chains):
        size = known.block_tokens * BYTES_PER_TOKEN
        rest = prompt.stream[len(known.blocks) // HASH_BYTES * size :]
        parent = known.blocks[-HASH_BYTES:]
        if not parent:
            root = _root_of(incoming, _tenant_and_keeper(incoming)[1], exact=prompt.exact)
            parent = root.to_bytes(HASH_BYTES, "little")
        if len(rest) < size:
            ends.append(LastBlock(block_tokens=known.block_tokens, parent=Blob(parent), rest=Blob(rest)))
    if not ends:
        return None
    return PromptEnd(
        request_id=incoming.envelope.request_id,
        model=incoming.model,
        tokens=prompt.tokens,
        exact=prompt.exact,
        ends=tuple(ends),
    )


def depart(incoming: Incoming, facts: RequestFacts, report: StageReport, degraded: str = "") -> Journey:
    """The journey that goes to the profile-picker. `degraded`: the failure here, if any."""
    envelope = incoming.envelope
    asked, model = incoming.body.model, incoming.model
    edits, body_edits, answer_edits = incoming.header_edits, incoming.body_edits, incoming.answer_headers
    reasons = (*incoming.degraded, degraded) if degraded else tuple(incoming.degraded)
    return Journey(
        request_id=envelope.request_id,
        edge=envelope.edge,
        attempt=envelope.attempt,
        received_ms=envelope.received_ms,
        deadline_ms=envelope.deadline_ms,
        revision=envelope.revision,
        request=facts,
        model=asked,
        rewritten=None if model == asked else model,
        target=None,
        alternatives=(),
        profile=None,
        itinerary=_NEXT,
        response=(),
        headers=tuple(edits.values()) if edits else (),
        body=tuple(body_edits.values()) if body_edits else (),
        answer_headers=tuple(answer_edits.values()) if answer_edits else (),
        level="degraded" if reasons else "full",
        reasons=reasons,
        trail=(*processor_reports(incoming, report.instance), report) if incoming.verdicts else (report,),
    )


def processor_reports(incoming: Incoming, instance: str) -> tuple[StageReport, ...]:
    """The processors' reports for the trail. `instance` is the process that they ran in."""
    return tuple(
        [
            StageReport(
                stage=f"preprocessor/{verdict.processor}",
                instance=instance,
                outcome=verdict.outcome,
                took_ms=verdict.took_ms,
                note=verdict.note and verdict.note[:NOTE_LIMIT],
            )
            for verdict in incoming.verdicts
        ]
    )
