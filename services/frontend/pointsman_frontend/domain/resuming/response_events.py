"""Streams of `/v1/responses` as streams of chats, and the rest of them back again."""

from typing import Final, cast

from pointsman_apis.streams import named_event
from pointsman_apis.texts import Answer, objects
from pointsman_contracts.response import Usage

_PARTS: Final = {"output_text": "content", "reasoning_text": "reasoning"}
"""Members of a chat's delta that have the texts of parts."""
_KINDS: Final = {"text": "output_text", "thinking": "reasoning_text"}
_TYPES: Final = {"output_text": "message", "reasoning_text": "reasoning"}
"""Types of items by the type of their parts."""
_LAST: Final = frozenset({"response.completed", "response.incomplete"})
_CALL: Final = "function_call"
_NO_PART, _IN_PART, _TEXT_DONE, _PART_DONE = range(4)
"""How far an open item is."""


class ResponseEvents:
    """One stream: its events so far, then the rest of them."""

    def __init__(self) -> None:
        self._response: Answer = {}
        self._number = -1
        self._output: list[Answer] = []
        """Items that have ended."""
        self._item: Answer | None = None
        """The item that is open."""
        self._part: Answer | None = None
        """The open part of that item."""
        self._text: list[str] = []
        """Of that part."""
        self._stage = _NO_PART
        self._call: object = None
        """Index of the chat's tool call that is open."""

    @property
    def told_prompt(self) -> int:
        """Tokens of the prompt as the first engine counted them: it does so at the end only."""
        return 0

    @property
    def head(self) -> Answer:
        """Members of the events of a chat; empty before the stream began."""
        get = self._response.get
        return {"id": get("id"), "object": "chat.completion.chunk", "created": 0, "model": get("model")}

    def read_event(self, document: Answer) -> Answer | None:
        """Take an event of the engine; returns the choice of a chat that says the same, None where it says nothing."""
        number = document.get("sequence_number")
        self._number = number if type(number) is int else self._number + 1
        kind = str(document.get("type")).removeprefix("response.")
        response, item, part = document.get("response"), document.get("item"), document.get("part")
        if isinstance(response, dict):
            self._response = cast("Answer", response)
            return {"delta": {}, "finish_reason": "stop"} if document.get("type") in _LAST else None
        if kind == "output_item.added" and isinstance(item, dict):
            self._item, self._part, self._text, self._stage = cast("Answer", item), None, [], _NO_PART
            return None if self._item.get("type") in _TYPES.values() else {"delta": {"tool_calls": [{}]}}
        if kind == "output_item.done" and isinstance(item, dict):
            self._output.append(cast("Answer", item))
            self._item = None
        elif kind == "content_part.added" and isinstance(part, dict):
            second = self._stage != _NO_PART
            self._begin_part(cast("Answer", part))
            return {"delta": {"tool_calls": [{}]}} if second or self._part_kind not in _PARTS else None
        elif kind == "content_part.done":
            self._stage = _PART_DONE
        elif kind.endswith(".delta"):
            return self._said(kind.removesuffix(".delta"), document.get("delta"))
        elif kind.removesuffix(".done") in _PARTS:
            self._stage = _TEXT_DONE
        return None

    @property
    def _part_kind(self) -> str:
        return "" if self._part is None else str(self._part.get("type"))

    def _said(self, stem: str, text: object) -> Answer | None:
        if stem != self._part_kind or stem not in _PARTS or not isinstance(text, str):
            return {"delta": {"tool_calls": [{}]}}
        self._text.append(text)
        return {"delta": {_PARTS[stem]: text}} if text else None

    def _begin_part(self, part: Answer) -> None:
        self._part, self._text, self._stage = part, [], _IN_PART

    def write_part(self, name: str, text: str) -> bytes:
        """The events of more text: `text` or `thinking`."""
        kind = _KINDS[name]
        out = b""
        if self._item is None or self._item.get("type") != _TYPES[kind] or self._stage > _IN_PART:
            out = self._end_item()
        if self._item is None or self._stage == _NO_PART:
            out += self._begin_text(kind)
        self._text.append(text)
        more: Answer = {"logprobs": []} if kind == "output_text" else {}
        return out + self._write_event(f"{kind}.delta", self._place() | {"content_index": 0, "delta": text} | more)

    def _begin_text(self, kind: str) -> bytes:
        out = b""
        if self._item is None:
            begun: Answer = {"id": self._new_id("msg" if kind == "output_text" else "rs"), "type": _TYPES[kind]}
            begun |= {"role": "assistant", "content": []} if kind == "output_text" else {"summary": []}
            out = self._begin_item(begun | {"status": "in_progress"})
        part: Answer = {"type": kind, "text": ""}
        part |= {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        self._begin_part(part)
        return out + self._write_event("content_part.added", self._place() | {"content_index": 0, "part": part})

    def write_calls(self, delta: Answer) -> bytes:
        """The events of the tool calls in a delta of a chat."""
        out = b""
        for call in objects(delta, "tool_calls"):
            given = call.get("function")
            function = cast("Answer", given) if isinstance(given, dict) else {}
            known = self._item is not None and self._item.get("type") == _CALL and call.get("index") == self._call
            if function.get("name") and not known:
                out += self._end_item()
                self._call = call.get("index")
                begun: Answer = {"id": self._new_id("fc"), "type": _CALL, "call_id": call.get("id")}
                begun |= {"name": function["name"], "arguments": "", "status": "in_progress"}
                out += self._begin_item(begun)
            if isinstance(function.get("arguments"), str) and function["arguments"]:
                self._text.append(str(function["arguments"]))
                more = {"delta": function["arguments"]}
                out += self._write_event("function_call_arguments.delta", self._place() | more)
        return out

    def write_end(self, choice: Answer, usage: Usage) -> bytes:
        """The last events. `choice`: the last one of the chat, with its reason."""
        out = self._end_item()
        whole = choice.get("finish_reason") != "length"
        told = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        end: Answer = {
            "status": "completed" if whole else "incomplete",
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "output": self._output,
            "usage": told,
        }
        # vLLM and SGLang end responses that are too long so, too, and never with `response.incomplete`.
        return out + self._write_event("completed", {"response": self._response | end})

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{str(self._response.get('id')).partition('_')[2]}_{len(self._output)}"

    def _begin_item(self, item: Answer) -> bytes:
        self._item, self._part, self._text, self._stage = item, None, [], _NO_PART
        return self._write_event("output_item.added", {"output_index": len(self._output), "item": item})

    def _end_item(self) -> bytes:
        if self._item is None:
            return b""
        item, text, out = self._item, "".join(self._text), b""
        if item.get("type") == _CALL:
            item = item | {"arguments": text}
            out = self._write_event(
                "function_call_arguments.done", self._place() | {"arguments": text, "name": item.get("name")}
            )
        else:
            kind = next(kind for kind, name in _TYPES.items() if name == item.get("type"))
            part = (self._part or {"type": kind}) | {"text": text}
            item = item | {"content": [part] if text else []}
            place = self._place() | {"content_index": 0}
            if self._stage == _IN_PART:
                out = self._write_event(f"{kind}.done", place | {"text": text})
            if self._stage in (_IN_PART, _TEXT_DONE):
                out += self._write_event("content_part.done", place | {"part": part})
        item = item | {"status": "completed"}
        out += self._write_event("output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)
        self._item = None
        return out

    def _place(self) -> Answer:
        return {"item_id": (self._item or {}).get("id"), "output_index": len(self._output)}

    def _write_event(self, kind: str, members: Answer) -> bytes:
        self._number += 1
        return named_event({"type": f"response.{kind}", "sequence_number": self._number} | members)
