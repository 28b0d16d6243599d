"""Chat templates, rendered as Hugging Face transformers renders them.

Source: transformers `utils/chat_template_utils.py` (`render_jinja_template`, `_compile_jinja_template`): a sandbox in
which templates can't change their input, loop controls, `tojson` without escapes, `raise_exception`, `strftime_now`.
"""

import json
import marshal
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from typing import Final, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pointsman_models.tokenization.body_values import Json
from pointsman_models.tokenization.bounded_table import BoundedTable
from pointsman_models.tokenization.content_format import ContentFormat, content_format_of
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.known_values import KnownValues
from pointsman_models.tokenization.loop_run import LoopRun
from pointsman_models.tokenization.message_loop import rewrite_loop
from pointsman_models.tokenization.segments import ENTRY_BYTES

WRITTEN_BYTES: Final = 16 * 2**20
"""Bound of the JSON texts that are kept for all models."""
_END_OF_MESSAGE: Final = "CONTINUE_FINAL_MESSAGE_TAG "
_OF_DICTS: Final = frozenset(dir(dict))
_JUDGED: Final[dict[tuple[type, str], bool]] = {}
"""Whether a template may read the attribute of the type."""
_MOST_JUDGED: Final = 1024
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class _Generation(Extension):
    """`{% generation %}` marks the model's text for training; it doesn't change the text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Finds members of JSON objects at once, and judges each attribute of a type once: together these took more than
    half of the time of long conversations."""

    def getattr(self, obj: object, attribute: str) -> object:
        if type(obj) is dict and attribute not in _OF_DICTS:
            # The sandbox looks for an attribute of that name first.
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)  # pyright: ignore[reportUnknownVariableType] - JSON
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        # The verdict depends on the type of the object and the name of the attribute alone.
        kind = type(obj)
        safe = _JUDGED.get((kind, attr))
        if safe is None:
            safe = super().is_safe_attribute(obj, attr, value)
            if len(_JUDGED) < _MOST_JUDGED:
                _JUDGED[kind, attr] = safe
        return safe


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    names = cast("dict[str, object]", environment.globals)
    names.update({"raise_exception": _raise, "strftime_now": _strftime_now})
    return environment


class ChatTemplate:
    """One template, compiled."""

    def __init__(self, source: str, content_format: ContentFormat | None = None) -> None:
        """`content_format` None: detected from the template's text. Raises NotTokenized, which quotes the template."""
        try:
            tree = _environment().parse(source)
            self._template: Final = _environment().from_string(source)
            self.content_format: Final = content_format or content_format_of(tree)
        except Exception as error:  # jinja2 recurses, and the code that it generates may be invalid Python
            raise NotTokenized("template", f"the chat template can't be compiled: {error}", failed=True) from error
        self._source: Final = source

    def render(
        self,
        messages: Sequence[Json],
        known: KnownValues | None = None,
        *,
        tools: Sequence[object] | None = None,
        documents: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object],
    ) -> str:
        """The prompt. `known`: results of the conversation's earlier requests. `variables` are further inputs of the
        template. Raises NotTokenized."""
        if continue_final_message and add_generation_prompt:
            raise NotTokenized("template", "continue_final_message and add_generation_prompt exclude each other")
        known = known or KnownValues()
        chat = known.named.map_inputs(messages, _with_reasoning)
        final = self._open_end(chat) if continue_final_message else ""
        names = {
            **variables,
            "messages": chat,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._render_kept(names, known) if known.kept else self._template.render(names)
        except Exception as error:  # noqa: BLE001 - a template may raise whatever Python can
            raise NotTokenized("template", f"the chat template failed: {_quoteless(error)}", failed=True) from None
        return _cut_at_end(text, final) if continue_final_message else text

    def _render_kept(self, names: dict[str, object], known: KnownValues) -> str:
        """Render for a conversation that is kept: of messages that it had before nothing is rendered again, where the
        template allows it."""
        if self._looping is None:
            known.rendered_whole = True
            return self._template.render(names)
        run = LoopRun(self._looping, _environment(), known.loop)
        text = run.render(names)
        known.loop, known.rendered_whole = run.record, not run.passes
        return text

    @cached_property
    def _looping(self) -> Template | None:
        """The template with its loop rewritten; None where a pass reads what `LoopRun` does not note."""
        tree = _environment().parse(self._source)
        return _environment().from_string(tree) if rewrite_loop(tree) else None

    def _open_end(self, chat: list[Json]) -> str:
        """Marks where the final message ends; returns its text."""
        final = chat[-1].get("content")
        if "content" in self._source:
            if isinstance(final, str):
                chat[-1] = {**chat[-1], "content": final + _END_OF_MESSAGE}
                return final
            if isinstance(final, list):
                parts: list[object] = list(final)  # pyright: ignore[reportUnknownArgumentType] - parts are JSON
                for position, part in reversed(list(enumerate(parts))):
                    if isinstance(part, dict) and "text" in part:
                        text = str(part["text"])  # pyright: ignore[reportUnknownArgumentType] - JSON
                        parts[position] = {**part, "text": text + _END_OF_MESSAGE}
                        chat[-1] = {**chat[-1], "content": parts}
                        return text
        raise NotTokenized("template", "continue_final_message: the final message has no text to continue")


def _cut_at_end(text: str, final: str) -> str:
    mark = _END_OF_MESSAGE.strip()
    if final.strip() not in text or mark not in text:
        raise NotTokenized("template", "continue_final_message: the template drops parts of the final message")
    at = text.rindex(mark)
    # A template that strips the content has taken the mark's space: then it takes the content's as well.
    return text[:at] if text[at : at + len(_END_OF_MESSAGE)] == _END_OF_MESSAGE else text[:at].rstrip()


def _with_reasoning(given: object) -> Json:
    """Copies a model's reasoning to each of its names, as transformers does."""
    message = {key: value for key, value in cast("Json", given).items() if value is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    try:
        # A conversation brings its tools and calls again with each turn, and `json` takes ten times as long to write
        # them as `marshal` does. Format 2 has no references, so equal values have equal bytes.
        form = (value, ensure_ascii, indent, separators, sort_keys)
        key = marshal.dumps(form, 2)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - else it raises
    except ValueError:  # a value of the template's own, or one that nests deep
        key = None
    if key is not None:
        with _WRITTEN_LOCK:
            written = _WRITTEN.look_up(key)
        if written is not None:
            return written
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if key is not None:
        with _WRITTEN_LOCK:
            _WRITTEN.keep(key, text)
    return text


def _entry_size(key: bytes, text: str) -> int:
    return len(key) + sys.getsizeof(text) + ENTRY_BYTES


_WRITTEN: Final = BoundedTable[bytes, str](WRITTEN_BYTES, _entry_size)
"""JSON texts by the value and the form that they have."""
_WRITTEN_LOCK: Final = threading.Lock()


def _raise(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local and without a zone, as the engine's


def _quoteless(error: Exception) -> str:
    """The kind of an error: its text may quote the prompt."""
    if isinstance(error, TemplateError) and type(error) is TemplateError:
        return "it refused the conversation"
    return type(error).__name__
