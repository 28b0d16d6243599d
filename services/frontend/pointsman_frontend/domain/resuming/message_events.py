"""Streams of `/v1/messages` as streams of chats, and the rest of them back again."""

import hashlib
from typing import Final, cast

from pointsman_apis.streams import named_event
from pointsman_apis.texts import Answer, objects
from pointsman_contracts.response import Usage

_REASONS: Final = {"max_tokens": "length", "tool_use": "tool_calls"}
_ENDS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS: Final = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
_PARTS: Final = {"text": "content", "thinking": "reasoning"}
"""Members of a chat's delta that have the texts of blocks."""


class MessageEvents:
    """One stream: its events so far, then the rest of them."""

    def __init__(self) -> None:
        self._usage: Answer = {}
        self._model: object = ""
        self._identity: object = ""
        self._begun = -1
        """Index of the last block."""
        self._open: str | None = None
        """Type of that block while it is open."""
        self._signed = False
        self._call: object = None
        """Index of the chat's tool call that is open."""

    @property
    def told_prompt(self) -> int:
        """Tokens of the prompt as the first engine counted them; 0 where it didn't."""
        counts = (self._usage.get(name) for name in ("input_tokens", "cache_read_input_tokens"))
        return sum(count for count in counts if isinstance(count, int))

    @property
    def head(self) -> Answer:
        """Members of the events of a chat; empty before the stream began."""
        return {"id": self._identity, "object": "chat.completion.chunk", "created": 0, "model": self._model}

    def read_event(self, document: Answer) -> Answer | None:
        """Take an event of the engine; returns the choice of a chat that says the same, None where it says nothing."""
        kind, index = document.get("type"), document.get("index")
        message, block, delta = (_object(document.get(name)) for name in ("message", "content_block", "delta"))
        reason = delta.get("stop_reason")
        if kind == "message_start":
            self._usage = _object(message.get("usage"))
            self._model, self._identity = message.get("model"), message.get("id")
        elif kind == "content_block_start":
            self._begun = index if type(index) is int else self._begun + 1
            self._open, self._signed = str(block.get("type")), bool(block.get("signature"))
            return self._said(self._open, block.get(self._open))
        elif kind == "content_block_delta" and delta.get("type") == "signature_delta":
            self._signed = True
        elif kind == "content_block_delta":
            name = str(delta.get("type")).removesuffix("_delta")
            return self._said(name, delta.get(name))
        elif kind == "content_block_stop":
            self._open = None
        elif kind == "message_stop" or (kind == "message_delta" and reason):
            return {"delta": {}, "finish_reason": _REASONS.get(str(reason), "stop")}
        return None

    def _said(self, name: str, text: object) -> Answer | None:
        if name not in _PARTS or not isinstance(text, str):
            return {"delta": {"tool_calls": [{}]}}
        return {"delta": {_PARTS[name]: text}} if text else None

    def write_part(self, name: str, text: str) -> bytes:
        """The events of more text: `text` or `thinking`."""
        begin = b"" if self._open == name else self._begin({"type": name, name: ""})
        kind, member = _DELTAS[name]
        return begin + self._delta({"type": kind, member: text})

    def write_calls(self, delta: Answer) -> bytes:
        """The events of the tool calls in a delta of a chat."""
        out = b""
        for call in objects(delta, "tool_calls"):
            function = _object(call.get("function"))
            if function.get("name") and (self._open != "tool_use" or call.get("index") != self._call):
                self._call = call.get("index")
                begun: Answer = {"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": {}}
                out += self._begin(begun)
            if function.get("arguments"):
                out += self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
        return out

    def write_end(self, choice: Answer, usage: Usage) -> bytes:
        """The last events. `choice`: the last one of the chat, with its reason."""
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        matched = reason == "stop" and isinstance(stop, str)
        delta: Answer = {
            "stop_reason": "stop_sequence" if matched else _ENDS.get(str(reason), "end_turn"),
            "stop_sequence": stop if matched else None,
        }
        told = dict(self._usage) if self.told_prompt else {"input_tokens": usage.prompt_tokens}
        told["output_tokens"] = usage.completion_tokens
        end = {"type": "message_delta", "delta": delta, "usage": told}
        return self._stop() + named_event(end) + named_event({"type": "message_stop"})

    def _begin(self, block: Answer) -> bytes:
        stopped = self._stop()
        self._begun += 1
        self._open, self._signed = str(block["type"]), False
        return stopped + named_event({"type": "content_block_start", "index": self._begun, "content_block": block})

    def _delta(self, delta: Answer) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._begun, "delta": delta})

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open == "thinking" and not self._signed:
            # Clients send thoughts back with it, and engines ignore it.
            made = hashlib.blake2s(f"{self._identity}/{self._begun}".encode(), digest_size=16).hexdigest()
            signature = self._delta({"type": "signature_delta", "signature": made})
        self._open = None
        return signature + named_event({"type": "content_block_stop", "index": self._begun})


def _object(value: object) -> Answer:
    return cast("Answer", value) if isinstance(value, dict) else {}
