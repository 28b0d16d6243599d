"""Types and bounds of a body's members, the errors for wrong ones, and which of them rules may read. A member that
isn't listed passes unchecked.

Types are those that OpenAI documents (Anthropic for its own API), wider where vLLM or SGLang takes more. Bounds are
coarse: OpenAI, vLLM and SGLang all refuse a negative `temperature`. Engines differ about finer bounds and check them
themselves: `temperature` above 2, a `top_p` of 0, `stream_options` without `stream`, an empty `input`.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import compress, islice
from math import inf
from typing import Final, NamedTuple, cast

import msgspec
from pydantic import JsonValue

from pointsman_contracts.journey import FIELDS_LIMIT
from pointsman_core.refusal import Refusal

Document = dict[str, JsonValue]
"""A decoded body."""

Rule = Callable[[str, JsonValue], None]
"""Checks a value of the right type, given the name of its field. Raises Refusal 400."""


class Expected(msgspec.Struct, frozen=True):
    """The values that a member may have."""

    words: str
    types: tuple[type, ...]
    rule: Rule | None = None
    """A further check of the value."""


def _bounded(words: str, types: tuple[type, ...], least: float, most: float = inf) -> Expected:
    def rule(name: str, value: JsonValue) -> None:
        if not least <= value <= most:  # pyright: ignore[reportOperatorIssue] - its type was checked before
            raise Refusal(
                400,
                f"Invalid value for '{name}': expected {words}, but got {value}.",
                param=name,
                code="invalid_value",
            )

    return Expected(words, types, rule)


def _with_items(words: str, types: tuple[type, ...], item: Expected) -> Expected:
    def rule(name: str, value: JsonValue) -> None:
        if type(value) is list:
            check_items(name, value, item)

    return Expected(words, types, rule)


TEXT: Final = Expected("a string", (str,))
OBJECT: Final = Expected("an object", (dict,))
TEXT_OR_OBJECT: Final = Expected("a string or an object", (str, dict))
FLAG: Final = Expected("a boolean", (bool,))
NUMBER: Final = Expected("a number", (int, float))
INTEGER: Final = Expected("an integer", (int,))
COUNT: Final = _bounded("an integer of 0 or more", (int,), 0)
POSITIVE: Final = _bounded("an integer of 1 or more", (int,), 1)
TEMPERATURE: Final = _bounded("a number of 0 or more", (int, float), 0)
TOP_P: Final = _bounded("a number from 0 to 1", (int, float), 0, 1)
# vLLM takes -1.
ALTERNATIVES: Final = _bounded("an integer of 0 or more, or -1 for all of them", (int,), -1)
# SGLang takes numbers.
EFFORT: Final = Expected("a string or a number", (str, int, float))
LIST: Final = Expected("an array", (list,))
TEXTS: Final = _with_items("an array", (list,), TEXT)
OBJECTS: Final = _with_items("an array", (list,), OBJECT)
TEXT_OR_LIST: Final = Expected("a string or an array", (str, list))
TEXT_OR_TEXTS: Final = _with_items("a string or an array", (str, list), TEXT)

Fields = Mapping[str, Expected]


def _ours(name: str, value: JsonValue) -> None:
    """Refuse a transfer between engines. These members name hosts that an engine connects to, and blocks of its cache,
    which may be another client's; two requests with one room end SGLang's scheduler (sgl-project/sglang #40125)."""
    if isinstance(value, dict) and name == "kv_transfer_params":
        # Other connectors read members of their own from it, e.g. tags.
        value = next((key for key in value if key.startswith(("remote_", "do_remote_"))), None)
    if value is not None:
        raise Refusal(
            400,
            f"'{name}' says how engines hand a prompt over, which the gateway decides; leave it out.",
            param=name,
            code="unsupported_parameter",
        )


_OURS: Final = Expected("nothing", (str, bool, int, float, dict, list), _ours)

COMMON: Final[Fields] = {
    "model": TEXT,
    "stream": FLAG,
    "stream_options": OBJECT,
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "user": TEXT,
    "metadata": OBJECT,
    "cache_salt": TEXT,
    "kv_transfer_params": Expected("an object", (dict,), _ours),
    "disaggregated_params": _OURS,
    "bootstrap_host": _OURS,
    "bootstrap_port": _OURS,
    "bootstrap_room": _OURS,
}
"""Members of every API that generates text."""
TOOLS: Final[Fields] = {"tools": OBJECTS, "tool_choice": TEXT_OR_OBJECT, "parallel_tool_calls": FLAG}
TEXTS_OR_TOKENS: Final = "a string, an array of strings or an array of token ids"


_LONGEST_NAME: Final = 64
_SHAPES: Final = 256
"""Lists of names and types that are remembered of an API."""
_is_identifier: Final = cast("Callable[[JsonValue], object]", re.compile(r"[A-Za-z0-9_.:/@+-]{1,128}").fullmatch)
_CONTENT: Final = frozenset(
    {"messages", "prompt", "input", "instructions", "system", "suffix", "stop", "documents", "chat_template", "text"}
)
"""Fields that hold what people wrote, even where it looks like an identifier."""
NAME_SESSIONS: Final = frozenset({"prompt_cache_key", "litellm_session_id", "metadata"})
"""Fields in which agents, and the gateways before them, name sessions."""
HINTS: Final = "nvext"
"""The field in which clients of NVIDIA's Dynamo give hints about a request."""
_ANYTHING: Final = Expected("a value", (str, bool, int, float, dict, list))


class Shape(NamedTuple):
    """How members with certain names and types, which are right, are read. A member that is null counts as absent."""

    rules: tuple[tuple[str, Rule], ...]
    readable: tuple[bool, ...]
    """Which of them rules may read."""
    texts: tuple[str, ...]
    """Those of these that rules may read only where they are identifiers."""
    nested: tuple[str, ...]
    """The arrays and objects that aren't part of the prompt."""
    limit: str | None
    """The member that limits the output."""
    wide: bool
    """It has more members than rules may read."""
    may_name_session: bool
    """It has a member by which agents name their sessions."""
    gives_hints: bool
    """It has the member `HINTS`."""


class FieldReader:
    """Reads the top level of bodies. Lists of names and types are looked at once each: a client's requests differ in
    values alone. No value is kept."""

    def __init__(
        self,
        fields: Fields,
        *,
        identifiers: bool = True,
        in_prompt: Container[str] = (),
        output_limits: Sequence[str] = (),
    ) -> None:
        """Without `identifiers` the model is the only text that rules may read: in a body with unknown fields, any
        other text may be a prompt. `in_prompt` and `output_limits`: see `Api`."""
        self._fields = fields
        self._identifiers = identifiers
        self._in_prompt = in_prompt
        self._output_limits = output_limits
        self._shapes: dict[tuple[object, ...], Shape] = {}
        """By names and types."""

    def read(self, document: Document) -> tuple[dict[str, JsonValue], Shape]:
        """Check the top level. Returns its numbers, booleans and short identifiers, which rules may read, and how it
        was read. Raises Refusal 400 for the first field that is wrong."""
        shape = self._shapes.get((*document, *map(type, document.values()))) or self._learn_shape(document)
        for name, rule in shape.rules:
            rule(name, document[name])
        readable = dict(compress(document.items(), shape.readable))
        for name in shape.texts:
            if _is_identifier(readable[name]) is None:
                del readable[name]
        if shape.wide:
            readable = dict(islice(readable.items(), FIELDS_LIMIT))
        return readable, shape

    def _learn_shape(self, document: Document) -> Shape:
        """The shape of a document. Raises Refusal 400 for the first field that is wrong."""
        rules: list[tuple[str, Rule]] = []
        readable: list[bool] = []
        texts: list[str] = []
        nested: list[str] = []
        for name, value in document.items():
            kind = type(value)
            expected = self._fields.get(name, _ANYTHING)
            if kind not in expected.types and value is not None:
                raise wrong_type(name, expected.words, value)
            if expected.rule is not None and value is not None:
                expected.rule(name, value)
                rules.append((name, expected.rule))
            reads = value is not None and len(name) <= _LONGEST_NAME
            if kind is str:
                reads = reads and (name not in _CONTENT if self._identifiers else name == "model")
                if reads:
                    texts.append(name)
            elif kind is dict or kind is list:
                reads = False
                if name not in self._in_prompt:
                    nested.append(name)
            readable.append(reads)
        limit = next((name for name in self._output_limits if document.get(name) is not None), None)
        wide = len(document) > FIELDS_LIMIT
        shape = Shape(
            rules=tuple(rules),
            readable=tuple(readable),
            texts=tuple(texts),
            nested=tuple(nested),
            limit=limit,
            wide=wide,
            may_name_session=not NAME_SESSIONS.isdisjoint(document),
            gives_hints=HINTS in document,
        )
        if not wide and max(map(len, document), default=0) <= _LONGEST_NAME:
            # Names come from clients; a flood of new ones must not stay.
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            self._shapes[*document, *map(type, document.values())] = shape
        return shape


def check_items(where: str, items: list[JsonValue], item: Expected) -> None:
    """Refuse the first item that is of a wrong type."""
    for position, value in enumerate(items):
        if type(value) not in item.types:
            raise wrong_type(f"{where}[{position}]", item.words, value)


def wrong_type(param: str, expected: str, value: JsonValue) -> Refusal:
    """The refusal of a value of the wrong type; it names the type, not the value."""
    return Refusal(
        400,
        f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead.",
        param=param,
        code="invalid_type",
    )


def missing(param: str) -> Refusal:
    """The refusal of a request without a field that it must have."""
    return Refusal(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def not_a_text(param: str, value: JsonValue) -> Refusal:
    """The refusal of what is there in place of a text that must be there."""
    return missing(param) if value is None else wrong_type(param, TEXT.words, value)


def empty(param: str, expected: str) -> Refusal:
    """The refusal of an array or text that must not be empty."""
    return Refusal(400, f"Invalid '{param}': expected {expected}, but it is empty.", param=param, code="invalid_value")


def kind_of(value: object) -> str:
    """The type of a JSON value, in words for a client."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    return "an object"


def texts_or_tokens(document: Document, name: str) -> list[str | list[int]]:
    """One text, several texts, token ids of one prompt, or token ids of several. Raises Refusal 400."""
    given = document.get(name)
    if given is None:
        raise missing(name)
    if isinstance(given, str):
        return [given]
    items = cast("list[JsonValue]", given)
    if not items:
        raise empty(name, TEXTS_OR_TOKENS)
    if type(items[0]) is int:
        _check_tokens(items, name)
        return [cast("list[int]", items)]
    for position, item in enumerate(items):
        if type(item) is list:
            _check_tokens(item, f"{name}[{position}]")
        elif type(item) is not str:
            raise wrong_type(f"{name}[{position}]", "a string or an array of token ids", item)
    return cast("list[str | list[int]]", items)


def _check_tokens(items: list[JsonValue], where: str) -> None:
    if not items:
        raise empty(where, "at least one token id")
    if set(map(type, items)) == {int} and min(cast("list[int]", items)) >= 0 and max(cast("list[int]", items)) < 2**32:
        return
    for position, item in enumerate(items):
        if type(item) is not int:
            raise wrong_type(f"{where}[{position}]", "an integer", item)
        if not 0 <= item < 2**32:
            raise Refusal(
                400,
                f"Invalid value for '{where}[{position}]': expected a token id from 0 to {2**32 - 1}.",
                param=f"{where}[{position}]",
                code="invalid_value",
            )
