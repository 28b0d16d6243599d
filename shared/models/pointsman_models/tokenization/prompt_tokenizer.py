"""The tokenizer of one model: from a request to the token ids that its engine will see."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

from tokenizers import Tokenizer

from pointsman_models.tokenization.body_values import Field, Json, list_or_none
from pointsman_models.tokenization.chat_template import ChatTemplate
from pointsman_models.tokenization.content_format import ContentFormat
from pointsman_models.tokenization.conversation import conversation, tool_list
from pointsman_models.tokenization.defaults import CACHE_BYTES
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.known_values import KnownValues, find_known_values
from pointsman_models.tokenization.messages_form import MessagesForm
from pointsman_models.tokenization.responses_form import read_responses_body
from pointsman_models.tokenization.segments import SegmentEncoder, little_endian

TOKEN_BYTES: Final = 4
Memo: TypeAlias = dict[int, tuple[object, object]]
"""What a reader keeps for the next body of a conversation, see `EarlierBody.memo`."""

_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_RESERVED: Final = ("chat_template", "tokenize", "messages", "tools", "truncation", "max_length", "padding")
"""Arguments of a template that a request can't set: vLLM refuses some and the others would mean something else."""


class Folder(NamedTuple):
    """The content of a tokenizer's files."""

    tokenizer: Tokenizer
    pre_tokenizer: object
    templates: Mapping[str, str]
    """Name → chat template; `default` is the usual one, `tool_use` the one for requests with tools."""
    special: Mapping[str, object]
    """Special tokens by the names that templates know them by."""


class ServedTemplate(NamedTuple):
    """The engine's settings for chat templates."""

    template: str | None = None
    """The engine's `--chat-template`; None for the tokenizer's own."""
    content_format: ContentFormat | None = None
    """The engine's `--chat-template-content-format`; None for what the template wants."""
    variables: Mapping[str, object] = {}
    """The engine's `--default-chat-template-kwargs`."""
    trust_requests: bool = False
    """The engine's `--trust-request-chat-template`."""


def read_folder(path: Path) -> Folder:
    """Read a folder with `tokenizer.json`, and what there is of `tokenizer_config.json`, `special_tokens_map.json`,
    `chat_template.jinja` and `additional_chat_templates`. Takes a second for a large vocabulary.

    Raises OSError, and ValueError that names the file.
    """
    file = path / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - that is the type which `tokenizers` raises
        raise ValueError(f"{file}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_json(path / "tokenizer_config.json")
    pre_tokenizer = cast("Json", json.loads(text)).get("pre_tokenizer")
    special = _read_json(path / "special_tokens_map.json") | config
    return Folder(tokenizer, pre_tokenizer, _templates(path, config), _special_tokens(special))


class PromptTokenizer:
    """Renders and tokenizes. May be used by several threads."""

    def __init__(self, folder: Folder, served: ServedTemplate | None = None, cache_bytes: int = CACHE_BYTES) -> None:
        """`cache_bytes` bounds the size of kept texts and tokens. Raises NotTokenized for a wrong template."""
        self.encoder: Final = SegmentEncoder(folder.tokenizer, folder.pre_tokenizer, cache_bytes)
        self._tokenizer: Final = folder.tokenizer
        self._special: Final = folder.special
        served = served or ServedTemplate()
        self._served: Final = served
        sources = folder.templates if served.template is None else {"default": served.template}
        self._templates: Final = {name: ChatTemplate(source, served.content_format) for name, source in sources.items()}
        usual = (self._templates.get(name) for name in ("default", "tool_use"))
        self._messages: Final = MessagesForm([template for template in usual if template is not None])
        self._around: Final = self._tokens_around()

        @lru_cache(maxsize=16)
        def of_request(source: str) -> ChatTemplate:
            try:
                return ChatTemplate(source, served.content_format)
            except NotTokenized as error:
                # The words of jinja2 quote the template, which a client wrote.
                detail = f"the request's chat template can't be compiled: {type(error.__cause__).__name__}"
                raise NotTokenized(error.reason, detail, failed=error.failed) from None

        self._of_request: Final = of_request

    def has_added(self, memo: Memo | None) -> bool:
        """Whether only the addition to the conversation's last prompt was rendered for the prompt after it."""
        return not find_known_values(memo, self).rendered_whole

    def tokenize_chat(self, field: Field, memo: Memo | None = None) -> bytes:
        """Token ids (4 bytes each, little-endian) of a chat completion. `memo`: of its conversation. Raises
        NotTokenized."""
        return self._tokenize_chat(field, find_known_values(memo, self))

    def tokenize_messages(self, field: Field, memo: Memo | None = None) -> bytes:
        """Token ids of a request of Anthropic's Messages. Raises NotTokenized."""
        known = find_known_values(memo, self)
        return self._tokenize_chat(self._messages.read_body(field, known).get, known)

    def tokenize_response(self, field: Field, memo: Memo | None = None) -> bytes:
        """Token ids of a request of OpenAI's Responses. Raises NotTokenized."""
        known = find_known_values(memo, self)
        chat = read_responses_body(field, known).get
        # vLLM 0.32 adds the tokenizer's special tokens, though the template has its own: `build_tok_params` of a chat
        # leaves them out, and that of a response doesn't.
        return self._encode(self.render(chat, known, calls_as_given=True), special=True, field=chat, known=known)

    def tokenize_completion(self, text: str, field: Field) -> bytes:
        """Token ids of a text completion. Raises NotTokenized."""
        return self._encode(text, special=field("add_special_tokens") is not False, field=field)

    def _tokenize_chat(self, field: Field, known: KnownValues) -> bytes:
        special = field("add_special_tokens") is True
        return self._encode(self.render(field, known), special=special, field=field, known=known)

    def render(self, field: Field, known: KnownValues | None = None, *, calls_as_given: bool = False) -> str:
        """The text of a chat completion's prompt. `known`: results of the conversation's earlier requests;
        `calls_as_given`: members of calls keep their order. Raises NotTokenized."""
        known = known or KnownValues()
        asked = _arguments(field("chat_template_kwargs"))
        tools = known.told_tools.map_input(field("tools"), lambda given: tool_list(list_or_none(given)))
        template = self._template(field, asked, tools)
        variables = {**self._special, **self._served.variables, **asked}
        effort = field("reasoning_effort")
        if effort is not None:
            variables["reasoning_effort"] = effort
            if "enable_thinking" not in asked:
                variables["enable_thinking"] = effort != "none"
        opening = field("add_generation_prompt")
        return template.render(
            conversation(
                list_or_none(field("messages")) or [], template.content_format, known, calls_as_given=calls_as_given
            ),
            known,
            tools=tools,
            documents=list_or_none(field("documents")),
            add_generation_prompt=opening is not False,
            continue_final_message=field("continue_final_message") is True,
            variables=variables,
        )

    def _template(self, field: Field, asked: Mapping[str, object], tools: Sequence[Json] | None) -> ChatTemplate:
        own = field("chat_template")
        if own is not None or "chat_template" in asked:
            if not self._served.trust_requests or not isinstance(own, str):
                raise NotTokenized("template_not_trusted", "the request brings a chat template of its own")
            return self._of_request(own)
        for name in asked:
            if name in _RESERVED:
                raise NotTokenized("arguments", f"chat_template_kwargs: {name!r} is not for the template")
        template = self._templates.get("tool_use") if tools is not None else None
        template = template or self._templates.get("default")
        if template is None:
            raise NotTokenized("no_template", "the tokenizer has no chat template", failed=True)
        return template

    def _encode(self, text: str, *, special: bool, field: Field, known: KnownValues | None = None) -> bytes:
        if field("truncate_prompt_tokens") is not None:
            raise NotTokenized("truncated", "truncate_prompt_tokens: the engine cuts the prompt")
        if special and self._around is None:
            return little_endian(self._tokenizer.encode(text, add_special_tokens=True).ids)
        if known is None or not known.kept:
            ids = self.encoder.encode_text(text)
        else:
            known.encoded = self.encoder.encode_next(text, known.encoded)
            ids = known.encoded.ids
        if not special or self._around is None:
            return ids
        before, behind = self._around
        return before + ids + behind

    def _tokens_around(self) -> tuple[bytes, bytes] | None:
        """Special tokens that the tokenizer adds before and after a sequence. None when it changes the sequence."""
        inner = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(whole) - len(inner) + 1):
            if inner and whole[start : start + len(inner)] == inner:
                return little_endian(whole[:start]), little_endian(whole[start + len(inner) :])
        return None


def _templates(path: Path, config: Json) -> dict[str, str]:
    """As transformers reads them: files go before what stands in `tokenizer_config.json`."""
    files = {file.stem: file for file in (path / "additional_chat_templates").glob("*.jinja")}
    if (path / "chat_template.jinja").exists():
        files["default"] = path / "chat_template.jinja"
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    named = cast("list[Json]", given) if isinstance(given, list) else []
    return {str(each.get("name")): str(each.get("template")) for each in named}


def _special_tokens(config: Json) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in _SPECIAL:
        value = config.get(name)
        content = cast("Json", value).get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _read_json(file: Path) -> Json:
    if not file.exists():
        return {}
    try:
        document: object = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{file}: not an object")  # noqa: TRY004 - the content of a file is wrong
    return cast("Json", document)


def _arguments(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}
