"""Whether an answer has the choices that its request asked for: each index from 0 on once, and each with an end.

Engines and services leave choices out (vllm-project/vllm #52398, #14280), call all of them 0 (ModelTC/lightllm #130,
BerriAI/litellm #3276) or end the wrong one (ggml-org/llama.cpp #20226).
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, cast

from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.streams import Document, EventSplitter, lenient_document
from pointsman_apis.texts import objects

_APIS: Final = frozenset({CHAT.name, COMPLETIONS.name})
_REASON: Final = b'"finish_reason"'
"""Each choice of a whole answer has one. It can't be part of a text: there its quotes are written `\\"`."""
_LATER: Final = re.compile(
    rb'"index"\s*:\s*[1-9]\d*\s*,\s*"(?:delta|text|finish_reason)"|"finish_reason"\s*:\s*[^,{}]+,\s*"index"\s*:\s*[1-9]'
)
"""A choice other than the first. Tool calls have an index too, with other members."""
_SECOND: Final = b'"index":1'
_SPACED: Final = b'"index": 1'
_DONE: Final = b"[DONE]"
_UNCOUNTED: Final = ("prompt_embeds", "use_beam_search")
"""Members of vLLM's with which the number of choices isn't `n` for each prompt."""


def indices(api: str, body: Mapping[str, object]) -> range:
    """Indices of the choices that a request with this body asks for."""
    prompts = 1
    prompt = body.get("prompt")
    if api == COMPLETIONS.name and isinstance(prompt, list) and prompt:
        items = cast("list[object]", prompt)
        prompts = 1 if isinstance(items[0], int) else len(items)
    each = body.get("n")
    return range(prompts * (each if type(each) is int and each > 0 else 1))


class AskedChoices:
    """The choices that one request asks for."""

    def __init__(self, api: str, answers: int, body: Callable[[], Document]) -> None:
        """`answers`: those that the engine generates, as the stages counted them. `body`: gives the body as the engine
        gets it; it is read for requests with several answers, and for answers that seem to be wrong."""
        self._applies = api in _APIS
        self._api = api
        self._body = body
        self.several: Final = self._applies and answers > 1

    @cached_property
    def number(self) -> int | None:
        """How many there are; None where that isn't known."""
        body = self._body()
        return None if any(body.get(name) for name in _UNCOUNTED) else len(indices(self._api, body))

    def fault_of_whole(self, body: bytes) -> str:
        """Why a whole answer isn't one to the request; empty where it is."""
        if not self._applies or not (self.several or body.count(_REASON) > 1):
            return ""
        document = lenient_document(body)
        return "" if document is None else self.fault_of_document(document)

    def fault_of_document(self, document: Document) -> str:
        """Like `fault_of_whole`, for a document that was read."""
        found = objects(document, "choices")
        if not self._applies or not (self.several or len(found) > 1):
            return ""
        asked = self.number
        if asked is None:
            return ""
        if len(found) != asked:
            return f"it has {_count(len(found))} instead of {asked}"
        places = [choice.get("index", position) for position, choice in enumerate(found)]
        if asked > 1 and set(map(repr, places)) != set(map(repr, range(asked))):
            return "its choices aren't numbered from 0 on"
        ended = [bool(choice.get("finish_reason")) for choice in found]
        return "one of its choices has no end" if any(ended) and not all(ended) else ""

    def fault_of_end(self, end: bytes) -> str:
        """Why a stream with one choice isn't an answer to the request, by its last bytes; empty where it is."""
        # Two searches are all that an answer costs.
        if not self._applies or self.several or not (_SECOND in end or _SPACED in end) or _LATER.search(end) is None:
            return ""
        followed = self.follow_stream()
        splitter = EventSplitter()
        for event in (*splitter.split_bytes(end), *splitter.rest()):
            document = lenient_document(event.data)
            if document is not None:
                followed.take_event(document)
        return followed.fault

    def follow_stream(self) -> "FollowedChoices":
        """For the events of one stream."""
        return FollowedChoices(self)


class FollowedChoices:
    """The choices of one stream, from its first event on."""

    def __init__(self, asked: AskedChoices) -> None:
        self._asked = asked
        self._splitter = EventSplitter()
        self._ended: set[int] = set()
        self.fault = ""
        """Why the stream isn't an answer to the request from some event on; empty until then."""

    def take_event(self, document: Document) -> None:
        """The next event."""
        for choice in objects(document, "choices"):
            index = choice.get("index", 0)
            if type(index) is not int:
                # Clients of one choice read it whatever its index is.
                if self._asked.several:
                    self.fault = "the index of a choice isn't a number"
                continue
            if choice.get("finish_reason"):
                self._ended.add(index)
            asked = self._asked.number if index else None
            if asked is not None and not 0 <= index < asked:
                self.fault = f"it has a choice beside the {asked} that were asked for"

    def lacks_a_choice(self) -> bool:
        """Whether one of several choices hasn't ended."""
        asked = self._asked.number if self._asked.several else None
        return asked is not None and not self._ended.issuperset(range(asked))

    def end_stream(self) -> None:
        """The mark at the end has come."""
        if not self.fault and self.lacks_a_choice():
            self.fault = "one of its choices has no end"

    def pass_events(self, data: bytes) -> bytes:
        """Take whole events. Returns those before the one with the fault."""
        passed: list[bytes] = []
        for event in self._splitter.split_one_by_one(data, last=True):
            if event.data.strip() == _DONE:
                self.end_stream()
            elif event.data and (document := lenient_document(event.data)) is not None:
                self.take_event(document)
            if self.fault:
                break
            passed.append(event.raw)
        return b"".join(passed)


def _count(choices: int) -> str:
    return "1 choice" if choices == 1 else f"{choices} choices"
