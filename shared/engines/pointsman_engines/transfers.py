"""One request on two engines: one computes the prompt, the other one answers. A table by kind of engine has the body of
the first leg, and how the second one gets the prompt's KV cache. Pure.

vLLM, NIXL's pull mode: vllm 0.32, `docs/features/nixl_connector_usage.md` and `kv_connector/v1/nixl`. SGLang: sglang,
`sgl-model-gateway/src/routers/http/pd_router`. TensorRT-LLM: `tensorrt_llm/serve/openai_disagg_service.py`.

vLLM frees the prompt's blocks when the answering engine has read them or says that its request was aborted or refused,
and `kv_lease_duration` (30 s) after that engine was last heard. No kind has a call that frees blocks: a leg that isn't
needed any more is cut off, which makes its engine abort it.
"""

from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Final, NamedTuple, cast

import orjson
from pydantic import JsonValue

from pointsman_contracts.journey import BodyEdit

Document = Mapping[str, JsonValue]
Edits = tuple[BodyEdit, ...]

PREFILL: Final = "prefill"


class LegOutcome:
    """Outcomes of the first leg, as `pointsman_contracts.response.LegReport`, beside those of any attempt."""

    ANSWERED: Final = "answered"
    USELESS: Final = "useless"
    SKIPPED: Final = "skipped"
    LOST: Final = "lost"
    INTENDED: Final = frozenset({ANSWERED, SKIPPED})
    """After any other one the request took longer than it should have."""


CHAT: Final = "chat.completions"
COMPLETIONS: Final = "completions"
BOOTSTRAP_PORT: Final = 8998
"""SGLang's default."""
PAUSE_S: Final = 5.0
_DICE: Final = SystemRandom()
_ROOMS: Final = 2**63
_NOT_OF_THE_PROMPT: Final = (
    "min_tokens", "max_completion_tokens", "stream_options", "logprobs", "top_logprobs", "stop", "stop_sequences",
    "stop_token_ids",
)  # fmt: skip
_TRTLLM_IDS: Final = 2**42, 2**63
"""Ids that hold for several servers; smaller ones are a server's own (tensorrt_llm `llmapi/disagg_utils.py`)."""


class NothingCarried(Exception):
    """The answer of the first leg lacks what the second one needs; the text says what."""


class Pauses:
    """Pairs of engines that couldn't hand a prompt over. They aren't asked to for a while: each try costs the prompt
    twice. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def is_paused(self, prefill: str, decode: str, now: float) -> bool:
        """Whether these two are left alone at the moment."""
        until = self._until
        return bool(until) and max(until.get((prefill, ""), 0.0), until.get((prefill, decode), 0.0)) > now

    def begin_pause(self, prefill: str, decode: str, now: float) -> bool:
        """Leave them alone from now on; an empty `decode`: the first one with any other. True where that is news."""
        news = self._until.get((prefill, decode), 0.0) + PAUSE_S < now
        self._until[prefill, decode] = now + PAUSE_S
        return news


class Leg(NamedTuple):
    """The first leg of one request."""

    api: str
    host: str
    """The host of the engine that computes the prompt, as the answering engine reaches it."""
    port: int
    """At which SGLang's engines find each other."""
    number: int
    """Names the request at both engines. Never a client's: two requests of one number end SGLang's scheduler
    (sgl-project/sglang #40125)."""
    rooms: int | None = None
    """SGLang's rooms, one for each answer or prompt; None for a request with a single one, whose room isn't a list."""
    rank: int | None = None
    """Data-parallel rank of the engine that computes the prompt; None where it has one, or chooses itself."""
    ranks: int = 1
    """The number of its ranks."""


class Transfer(NamedTuple):
    """The protocol of one kind of engine."""

    limits: Mapping[str, str]
    """The APIs that it knows, each with the member that limits the output."""
    asked: Callable[[Leg, str], Edits]
    """The changes of the body for the engine that computes the prompt; gets the member of `limits`."""
    carried: Callable[[Leg, Document], Edits]
    """The changes of the body for the engine that answers; gets the answer of the first leg. Raises NothingCarried."""
    together: bool = False
    """The engines meet while both work: both legs are sent at once. Otherwise the second one waits for the first."""
    alone: bool = True
    """The engine that answers can compute a prompt itself. SGLang's, started with `--disaggregation-mode decode`,
    refuses a request without a room."""


class SharedPrompt:
    """One request on two engines of this kind: what each of them is asked."""

    def __init__(self, engine: str, leg: Leg) -> None:
        self._engine: Final = engine
        self._leg = leg
        transfer = TRANSFERS[engine]
        self.together: Final = transfer.together
        """As in `Transfer`; likewise `alone`."""
        self.alone: Final = transfer.alone

    def read(self, body: bytes) -> str:
        """Read the client's body. Returns why one engine must serve it; empty where two may."""
        try:
            document: object = orjson.loads(body)
        except orjson.JSONDecodeError:
            return "the body isn't JSON"
        if not isinstance(document, dict):
            return "the body isn't a JSON object"
        read = cast("Document", document)
        self._leg = sized(self._leg, read)
        return unsuited(self._engine, read)

    def edit_prefill(self) -> Edits:
        """The changes of the client's body for the engine that computes the prompt."""
        return prefill_body(self._engine, self._leg)

    def edit_decode(self, answer: bytes = b"") -> Edits:
        """The changes of the client's body for the engine that answers; see `decode_body`."""
        return decode_body(self._engine, self._leg, answer)


def share(
    engine: str, api: str, host: str, port: int | None, rank: int | None = None, ranks: int | None = None
) -> SharedPrompt | None:
    """A request to this API that two engines serve; see `begin`, for the others `Leg`."""
    leg = begin(engine, api, host, port)
    if leg is not None and rank is not None and ranks is not None:
        # SGLang computes a prompt at the rank that its room's number gives, and so does the engine that asks for it.
        leg = leg._replace(rank=rank, ranks=ranks, number=leg.number - leg.number % ranks + rank)
    return None if leg is None else SharedPrompt(engine, leg)


def computes_prompts(engine: str) -> bool:
    """Whether an answering engine of this kind can compute a prompt itself, in a kind that can share requests."""
    transfer = TRANSFERS.get(engine)
    return transfer is None or transfer.alone


def begin(engine: str, api: str, host: str, port: int | None) -> Leg | None:
    """The first leg of a request to this API; None where engines of this kind can't share such requests."""
    transfer = TRANSFERS.get(engine)
    if transfer is None or api not in transfer.limits:
        return None
    low, high = _TRTLLM_IDS if engine == "trtllm" else (0, _ROOMS)
    return Leg(api, host, port or BOOTSTRAP_PORT, _DICE.randrange(low, high))


def sized(leg: Leg, document: Document) -> Leg:
    """The leg for this body: SGLang has a room for each answer of a chat, and for each prompt of a list."""
    count, prompt = document.get("n"), document.get("prompt")
    if leg.api == COMPLETIONS:
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return leg._replace(rooms=len(prompt)) if isinstance(prompt, list) and several else leg
    return leg._replace(rooms=count) if isinstance(count, int) and count > 1 else leg


def unsuited(engine: str, document: Document) -> str:
    """Why one engine must serve the whole request; empty where two may, or one never can."""
    if not TRANSFERS[engine].alone:
        return ""
    for name in ("n", "best_of"):
        count = document.get(name)
        if isinstance(count, int) and count > 1:
            # vLLM fetches the prompt for each answer, and frees it after the first (vllm-project/vllm #38900).
            return f"{name} asks for several answers"
    if document.get("use_beam_search"):
        return "use_beam_search asks for several answers"
    if document.get("echo") or document.get("prompt_logprobs") is not None:
        # The answering engine has no logits of the prompt; vLLM's ended over it (vllm-project/vllm #50792).
        return "log probabilities of the prompt aren't transferred"
    for name in ("previous_response_id", "conversation", "background"):
        if document.get(name):
            return f"{name} belongs to the engine that answers"
    prompt = document.get("prompt")
    if isinstance(prompt, dict):
        return "the prompt is stored at the engine that answers"
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        # TensorRT-LLM takes a list of one as a batch.
        return "several prompts" if len(prompt) > 1 or engine != "vllm" else ""
    return ""


def prefill_body(engine: str, leg: Leg) -> Edits:
    """The changes of the client's body for the engine that computes the prompt."""
    transfer = TRANSFERS[engine]
    return transfer.asked(leg, transfer.limits[leg.api])


def decode_body(engine: str, leg: Leg, answer: bytes = b"") -> Edits:
    """The changes of the client's body for the engine that answers. `answer`: the first leg's, where that was sent
    before. Raises NothingCarried."""
    transfer = TRANSFERS[engine]
    if transfer.together:
        return transfer.carried(leg, {})
    try:
        document: object = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise NothingCarried("its answer isn't JSON") from None
    if not isinstance(document, dict):
        raise NothingCarried("its answer isn't a JSON object")
    return transfer.carried(leg, cast("Document", document))


def _one_token(limit: str) -> Edits:
    """The prompt alone: an engine generates one token at least. `min_tokens` above `max_tokens` is an error
    (vllm-project/vllm #18341). A token that ends the answer keeps earlier releases from handing over the prompt
    (smg-project/smg #1622)."""
    return (
        BodyEdit(field=limit, value=1),
        BodyEdit(field="stream", value=False),
        BodyEdit(field="ignore_eos", value=True),
        *(BodyEdit(field=name, remove=True) for name in _NOT_OF_THE_PROMPT),
    )


def _nixl_asked(leg: Leg, limit: str) -> Edits:
    wanted: dict[str, JsonValue] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    edits = (*_one_token(limit), BodyEdit(field="kv_transfer_params", value=wanted))
    return (*edits, BodyEdit(field="store", value=False)) if leg.api == "responses" else edits


def _nixl_carried(leg: Leg, answer: Document) -> Edits:
    del leg
    params = answer.get("kv_transfer_params")
    if not isinstance(params, dict):
        raise NothingCarried("its answer has no kv_transfer_params: has it a KV connector?")
    if not params.get("do_remote_prefill") or not params.get("remote_block_ids"):
        raise NothingCarried("its kv_transfer_params name no blocks to fetch")
    return (BodyEdit(field="kv_transfer_params", value=params),)


def _bootstrap_asked(leg: Leg, limit: str) -> Edits:
    # As SGLang's own router: both engines get the whole request, and know their part by how they were started.
    del limit
    return _bootstrap(leg)


def _bootstrap_carried(leg: Leg, answer: Document) -> Edits:
    del answer
    if leg.rank is None:
        return _bootstrap(leg)
    return (*_bootstrap(leg), BodyEdit(field="disagg_prefill_dp_rank", value=leg.rank))


def _bootstrap(leg: Leg) -> Edits:
    values: dict[str, JsonValue] = {
        "bootstrap_host": leg.host,
        "bootstrap_port": leg.port,
        "bootstrap_room": leg.number,
    }
    if leg.rooms is not None:
        each = [values | {"bootstrap_room": (leg.number + place * leg.ranks) % _ROOMS} for place in range(leg.rooms)]
        values = {name: [one[name] for one in each] for name in values}
    return tuple([BodyEdit(field=name, value=value) for name, value in values.items()])


def _context_asked(leg: Leg, limit: str) -> Edits:
    # A context server ends after the first token by itself, and needs the client's limit to know whether more follow.
    del limit
    params: dict[str, JsonValue] = {"request_type": "context_only", "disagg_request_id": leg.number}
    return (
        BodyEdit(field="disaggregated_params", value=params),
        BodyEdit(field="stream", value=False),
        BodyEdit(field="stream_options", remove=True),
    )


def _context_carried(leg: Leg, answer: Document) -> Edits:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    params = choice.get("disaggregated_params") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(params, dict):
        raise NothingCarried("its answer has no disaggregated_params")
    if choice.get("finish_reason") not in ("length", "not_finished"):
        raise NothingCarried("its first token ended the answer")
    number = params.get("disagg_request_id")
    # The answer has the members that this release knows; others are errors there.
    carried: dict[str, JsonValue] = {
        **params,
        "request_type": "generation_only",
        # After a retry inside the context server its own id counts (NVIDIA/TensorRT-LLM #15685).
        "disagg_request_id": leg.number if number is None else number,
    }
    if "ctx_usage" in params:
        carried["ctx_usage"] = answer.get("usage")
    edits: Edits = (BodyEdit(field="disaggregated_params", value=carried),)
    tokens = answer.get("prompt_token_ids")
    if tokens is None:
        return edits
    return (*edits, BodyEdit(field="prompt" if leg.api == COMPLETIONS else "prompt_token_ids", value=tokens))


_OF_CHAT: Final = {CHAT: "max_tokens", COMPLETIONS: "max_tokens"}
TRANSFERS: Final[Mapping[str, Transfer]] = {
    "vllm": Transfer(
        {**_OF_CHAT, "messages": "max_tokens", "responses": "max_output_tokens"}, _nixl_asked, _nixl_carried
    ),
    "sglang": Transfer(_OF_CHAT, _bootstrap_asked, _bootstrap_carried, together=True, alone=False),
    "trtllm": Transfer(_OF_CHAT, _context_asked, _context_carried),
}
"""By `WorkerRegistration.engine`."""
