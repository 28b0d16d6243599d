"""How another engine is asked for the rest of an answer."""

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, cast

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.texts import Answer
from pointsman_apis.token_ids import FIELD
from pointsman_frontend.domain.resuming.passed_stream import PassedChoice, PassedStream
from pointsman_frontend.domain.resuming.thoughts import Thoughts

Form = Literal["exact", "text"]
"""By token ids, or by the text that they stand for."""
Body = dict[str, object]

APIS: Final = (CHAT, COMPLETIONS)
"""APIs whose streams can be continued."""
_DEFAULT_MAX_TOKENS: Final = 16
"""The default of completions without `max_tokens` (https://platform.openai.com/docs/api-reference/completions/create)."""
_LAST_SEED: Final = 2**63 - 1
_BIAS: Final = 100.0
"""Largest `logit_bias`."""
_CARRIED: Final = frozenset((
    "model", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "logit_bias", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "seed", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "include_stop_str_in_output", "allowed_token_ids", "bad_words", "user", "priority",
    "cache_salt", "session_id", "return_tokens_as_token_ids", "stream_interval", "thinking_token_budget",
))  # fmt: skip
"""Members that chats and completions of vLLM have alike, and that mean the same for the rest of an answer."""
_REPLACED: Final = frozenset((
    "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "prompt", FIELD,
))  # fmt: skip
_IN_THE_PROMPT: Final = frozenset((
    "messages", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "documents", "reasoning_effort", "truncate_prompt_tokens", "truncation_side", "tools",
    "include_reasoning",
))  # fmt: skip
"""Members whose effect is in the prompt's token ids."""
_WITHOUT_EFFECT: Final = frozenset((
    "store", "metadata", "service_tier", "parallel_tool_calls", "tool_choice", "best_of", "echo", "response_format",
    "suffix", "functions", "function_call", "modalities", "safety_identifier", "prompt_cache_key", "request_id",
))  # fmt: skip
"""Members that `obstacle` has allowed because they change nothing here."""
_KNOWN: Final = _CARRIED | _REPLACED | _IN_THE_PROMPT | _WITHOUT_EFFECT
_STRUCTURED: Final = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
    "json_schema", "regex", "ebnf", "structural_tag",
)  # fmt: skip


class CantContinue(Exception):
    """The rest of an answer can't be asked for. `reason`: one of a few words, for metrics and events."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


class Question(NamedTuple):
    """One request for the rest of one choice."""

    choice: int
    form: Form
    path: str
    body: Body
    sent: "array[int]"
    """Token ids that are sent as the prompt; empty where it is sent otherwise."""
    kept: int
    """Tokens of the answer that the client has, before the point at which the engine goes on."""
    overlap: str
    """Text behind that point that the client has already."""
    again: "array[int]"
    """Tokens behind that point that came already: greedy sampling brings them again."""
    tail: str
    """The last text that the client has."""
    offset: int | None
    """Where `logprobs.text_offset` goes on."""
    whole: bool
    """The prompt certainly ends between two characters."""
    thoughts: Thoughts | None = None
    """The rest may have thoughts."""


class Start(NamedTuple):
    """The point at which an engine is asked to go on."""

    steps_back: int = 0
    """Points before the last one."""
    latest: bool = False
    """The last point, also one within a character: an engine brought other tokens behind the one before it."""


FROM_WHOLE: Final = Start()
"""Greedy sampling goes on at the last point between two characters."""


def obstacle(api: Api, body: Mapping[str, object], form: Form) -> str | None:
    """Why answers to this request can't be continued in this form; None where they can."""
    if api not in APIS:
        return "api"
    if any(body.get(name) is not None for name in _STRUCTURED) or _formatted(body.get("response_format")):
        return "structured_output"
    if body.get("functions") or _has_audio(body.get("modalities")):
        return "tools"
    if body.get("use_beam_search") or _number(body.get("best_of"), 1) > _number(body.get("n"), 1):
        return "beams"
    if body.get("suffix") or body.get("prompt_embeds") or body.get("prompt_logprobs") is not None:
        return "prompt"
    if body.get("presence_penalty"):
        # An engine applies it to the tokens that it generates, and it generates only the rest of the answer.
        return "presence_penalty"
    if form == "text":
        return "frequency_penalty" if body.get("frequency_penalty") else None
    if body.get("frequency_penalty") and body.get("repetition_penalty") not in (None, 1, 1.0):
        return "frequency_penalty"
    if body.get("tools") and body.get("tool_choice") != "none":
        return "tools"
    if body.get("echo"):
        # vLLM answers without the prompt's text where token ids are asked for.
        return "echo"
    if any(body[name] is not None for name in body.keys() - _KNOWN):
        return "unknown_field"
    return "media" if _has_media(body.get("messages")) else None


def is_open_ended(api: Api, body: Mapping[str, object]) -> bool:
    """Whether only the engine's longest sequence limits the answer."""
    return api is CHAT and body.get("max_completion_tokens") is None and body.get("max_tokens") is None


def held_back(body: Mapping[str, object]) -> int:
    """Characters by which the text of vLLM is behind its tokens, because a stop string could begin in them."""
    stop = body.get("stop")
    if not stop or body.get("include_stop_str_in_output"):
        return 0
    texts = cast("list[object]", stop) if isinstance(stop, list) else [stop]
    return max((len(text) for text in texts if isinstance(text, str)), default=1) - 1


def question_of(
    api: Api,
    body: Body,
    passed: PassedStream,
    index: int,
    form: Form,
    *,
    thinking_end: str | None = None,
    longest: int | None = None,
    start: "Start" = FROM_WHOLE,
) -> Question | None:
    """The request for the rest of a choice; None where nothing is missing but its end. `thinking_end`: the mark behind
    the model's thoughts. `longest`: the engine's longest sequence in tokens, for an answer that nothing else limits.
    Raises CantContinue."""
    choice = passed.choices.get(index) or PassedChoice()
    if choice.called:
        raise CantContinue("tools")
    names = choice.thought_names or next(
        (each.thought_names for each in passed.choices.values() if each.thought_names), ()
    )
    # One that hasn't begun begins as the others did.
    thinking = choice.thinking or bool(names and not choice.events)
    if thinking and (thinking_end is None or form != "exact" or choice.spoke):
        raise CantContinue("thinking")
    if form == "exact":
        question = _exact(api, body, passed, index, choice, longest=longest, start=start)
        if question is None or thinking_end is None or api is not CHAT:
            return question
        if question.kept and not (thinking or thinking_end in question.overlap):
            return question
        return question._replace(thoughts=Thoughts(thinking_end, names, thinking))
    return _by_text(api, body, index, choice)


def _exact(
    api: Api,
    body: Body,
    passed: PassedStream,
    index: int,
    choice: PassedChoice,
    *,
    longest: int | None,
    start: "Start",
) -> Question | None:
    prompt = passed.prompt if api is CHAT else _prompt_of(passed, choice, index, _number(body.get("n"), 1))
    # Of several prompts, one may not have begun: it is sent as the client wrote it.
    unseen = prompt is None and api is COMPLETIONS and not (choice.ids or choice.events)
    if unseen:
        prompt = array("I")
    if prompt is None or not choice.ids_whole:
        raise CantContinue("no_token_ids")
    # Greedy sampling brings the tokens behind an earlier point again; any other may bring others.
    whole = body.get("temperature") == 0 and not start.latest
    mark = choice.last_mark(held_back(body), start.steps_back, whole=whole)
    if mark is None:
        raise CantContinue("no_point")
    sent = prompt + choice.ids[: mark.tokens]
    left = _left(api, body, mark.tokens, None if longest is None else longest - len(prompt))
    if left <= 0:
        return None
    asked = {name: value for name, value in body.items() if name in _CARRIED and value is not None}
    asked |= {
        "prompt": _own_prompt(body, index) if unseen else sent.tolist(),
        "max_tokens": left,
        "stream": True,
        FIELD: True,
    }
    _lessen(asked, "min_tokens", mark.tokens)
    _lessen(asked, "thinking_token_budget", mark.tokens)
    _reseed(asked, index, mark.tokens)
    if body.get("frequency_penalty"):
        asked["logit_bias"] = _biased(body, choice.ids[: mark.tokens])
    if body.get("logprobs") is not None and body.get("logprobs") is not False:
        asked["logprobs"] = _number(body.get("top_logprobs"), 0) if api is CHAT else body["logprobs"]
    return Question(
        choice=index,
        form="exact",
        path=COMPLETIONS.path,
        body=asked,
        sent=sent,
        kept=mark.tokens,
        overlap=mark.overlap,
        again=choice.ids[mark.tokens :],
        tail=choice.text,
        offset=mark.offset,
        whole=mark.whole,
    )


def _by_text(api: Api, body: Body, index: int, choice: PassedChoice) -> Question | None:
    left = _left(api, body, choice.tokens, None)
    if left <= 0:
        return None
    text = choice.text[choice.answer_at :]
    asked = {name: value for name, value in body.items() if name not in ("n", "best_of", "echo", FIELD)}
    asked["stream"] = True
    asked["stream_options"] = {"include_usage": True}
    for name in ("max_completion_tokens", "max_tokens"):
        if asked.get(name) is not None:
            asked[name] = left
    if api is COMPLETIONS:
        asked["max_tokens"] = left
        asked["prompt"] = _continued(_own_prompt(body, index), text, echoed=bool(body.get("echo")))
        overlap = ""
    else:
        # Chat templates trim what a message ends with (vllm-project/vllm #9547).
        said = text.rstrip()
        overlap = text[len(said) :]
        asked["messages"] = _with_answer(body, said)
        asked |= {"continue_final_message": True, "add_generation_prompt": False}
    _lessen(asked, "min_tokens", choice.tokens)
    _reseed(asked, index, choice.tokens)
    return Question(
        choice=index,
        form="text",
        path=api.path,
        body=asked,
        sent=array("I"),
        kept=choice.tokens,
        overlap=overlap,
        again=array("I"),
        tail=text,
        offset=None,
        whole=True,
    )


def _prompt_of(passed: PassedStream, choice: PassedChoice, index: int, n: int) -> "array[int] | None":
    """The prompt's token ids, which the choices of one prompt share."""
    if choice.prompt is not None:
        return choice.prompt
    first = index - index % n
    siblings = (passed.choices.get(each) for each in range(first, first + n))
    return next((each.prompt for each in siblings if each is not None and each.prompt is not None), None)


def _own_prompt(body: Body, index: int) -> object:
    """The prompt of one choice."""
    prompt: object = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(cast("list[object]", prompt)[0], int):
        items = cast("list[object]", prompt)
        return items[min(index // _number(body.get("n"), 1), len(items) - 1)]
    return cast("object", prompt)


def _continued(prompt: object, text: str, *, echoed: bool) -> object:
    if not text:
        return prompt
    if not isinstance(prompt, str):
        raise CantContinue("token_prompt")
    return text if echoed and text.startswith(prompt) else prompt + text


def _with_answer(body: Body, said: str) -> list[object]:
    """The conversation with what the client has of the answer."""
    messages = list(cast("list[object]", body["messages"]))
    last = messages[-1] if messages else None
    if body.get("continue_final_message") and isinstance(last, dict):
        begun = cast("Answer", last)
        if not isinstance(begun.get("content"), str):
            raise CantContinue("media")
        messages[-1] = begun | {"content": str(begun["content"]) + said}
        return messages
    return [*messages, {"role": "assistant", "content": said}]


def _left(api: Api, body: Body, tokens: int, room: int | None) -> int:
    """How many tokens the rest may have; at least 1 where nothing limits it."""
    limit = body.get("max_completion_tokens") if api is CHAT else None
    if limit is None:
        limit = body.get("max_tokens")
    if limit is None:
        limit = _DEFAULT_MAX_TOKENS if api is COMPLETIONS else room
    return 1 if limit is None else _number(limit, 1) - tokens


def _lessen(asked: Body, name: str, tokens: int) -> None:
    if asked.get(name) is not None:
        asked[name] = max(0, _number(asked[name], 0) - tokens)


def _reseed(asked: Body, index: int, tokens: int) -> None:
    """A sampled answer doesn't go on with the random numbers that it began with. vLLM seeds the choices of an answer
    one after the other."""
    seed = asked.get("seed")
    if type(seed) is int and asked.get("temperature") != 0:
        asked["seed"] = (seed + index + tokens) & _LAST_SEED


def _biased(body: Body, ids: "array[int]") -> dict[str, float]:
    """`logit_bias` with the penalty of the tokens that came: an engine subtracts it for each of its own
    (https://platform.openai.com/docs/advanced-usage: mu[j] - c[j] * alpha_frequency)."""
    given = body.get("logit_bias")
    known = cast("dict[str, float]", given) if isinstance(given, dict) else {}
    biases = {str(token): float(bias) for token, bias in known.items()}
    penalty = float(cast("float", body["frequency_penalty"]))
    for token, count in Counter(ids).items():
        biases[str(token)] = biases.get(str(token), 0.0) - penalty * count
    if any(abs(bias) > _BIAS for bias in biases.values()):
        raise CantContinue("frequency_penalty")
    return biases


def _number(value: object, otherwise: int) -> int:
    return value if type(value) is int else otherwise


def _formatted(value: object) -> bool:
    return isinstance(value, dict) and cast("Answer", value).get("type") != "text"


def _has_audio(modalities: object) -> bool:
    return isinstance(modalities, list) and "audio" in cast("list[object]", modalities)


def _has_media(messages: object) -> bool:
    for message in cast("list[object]", messages) if isinstance(messages, list) else ():
        content = cast("Answer", message).get("content") if isinstance(message, dict) else None
        for part in cast("list[object]", content) if isinstance(content, list) else ():
            if not isinstance(part, dict) or cast("Answer", part).get("type") != "text":
                return True
    return False
