"""An engine like `ContinuingEngine` that also has `/v1/messages` and `/v1/responses`, with the events of vLLM, and cuts
texts into tokens."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pointsman_testing.continuing_engine import THOUGHT, Body, ContinuingEngine, rendered, thinks, tokens_of

_STOPS: Final = {"stop": "end_turn", "length": "max_tokens"}


@dataclass(frozen=True)
class AnsweringEngine(ContinuingEngine):
    """`stream(path, body)` is the whole stream of an answer."""

    cuts_alike: bool = True
    cuts_texts: bool = True
    """It has `/tokenize`."""

    def events(self, path: str, body: Body) -> Iterator[bytes]:
        """The events of an answer, one by one."""
        if path == "/v1/messages":
            return _Messages(self.chunks(_chat_of_messages(body))).events()
        if path == "/v1/responses":
            return _Responses(self.chunks(_chat_of_response(body))).events()
        return super().events(path, body)

    def chunks(self, chat: Body) -> Iterator[Body]:
        """The documents of a chat's events."""
        chat |= {"stream_options": {"include_usage": True}, "return_token_ids": True}
        for event in super().events("/v1/chat/completions", chat):
            if event != b"data: [DONE]\n\n":
                yield json.loads(event[6:])

    def tokens(self, body: Body) -> list[int]:
        """The answer of `/tokenize`."""
        if "messages" not in body:
            return tokens_of(body["prompt"].encode())
        goes_on = bool(body.get("continue_final_message"))
        return list(rendered(body["messages"], goes_on=goes_on, thinks=thinks(body)))


def _chat_of_messages(body: Body) -> Body:
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    names = {"max_tokens": "max_tokens", "temperature": "temperature", "chat_template_kwargs": "chat_template_kwargs"}
    names |= {"stop_sequences": "stop", "model": "model"}
    chat = {other: body[name] for name, other in names.items() if name in body}
    return chat | {"messages": [*system, *body["messages"]]}


def _chat_of_response(body: Body) -> Body:
    chat = {name: value for name, value in body.items() if name not in ("input", "instructions", "max_output_tokens")}
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return chat | {"messages": [*system, *items]}


def _named(event: Body) -> bytes:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)


def _said(chunk: Body) -> list[tuple[str, str]]:
    delta: Body = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    return [(name, delta[name]) for name in ("reasoning", "content") if delta.get(name)]


def _usage_of(chunk: Body) -> tuple[int, int]:
    usage: Body = chunk.get("usage") or {}
    return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)


@dataclass
class _Messages:
    chunks: Iterator[Body]
    index: int = -1
    kind: str = ""

    def events(self) -> Iterator[bytes]:
        first = next(self.chunks)
        chunks = list(self.chunks)
        usage = {"input_tokens": _usage_of(chunks[-1])[0], "output_tokens": 0}
        message: Body = {
            "id": first["id"],
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": first["model"],
        }
        message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _named({"type": "message_start", "message": message})
        reason, stop = "", None
        for chunk in chunks:
            for name, text in _said(chunk):
                yield from self._begin("thinking" if name == "reasoning" else "text")
                delta = {"type": "thinking_delta", "thinking": text} if name == "reasoning" else {}
                delta = delta or {"type": "text_delta", "text": text}
                yield _named({"type": "content_block_delta", "index": self.index, "delta": delta})
            if chunk["choices"] and chunk["choices"][0]["finish_reason"]:
                reason, stop = chunk["choices"][0]["finish_reason"], chunk["choices"][0]["stop_reason"]
        yield from self._stop()
        prompt, completion = _usage_of(chunks[-1])
        delta = {"stop_reason": _STOPS[reason], "stop_sequence": None}
        if stop is not None:
            delta = {"stop_reason": "stop_sequence", "stop_sequence": stop}
        usage = {"input_tokens": prompt, "output_tokens": completion}
        yield _named({"type": "message_delta", "delta": delta, "usage": usage})
        yield _named({"type": "message_stop"})

    def _begin(self, kind: str) -> Iterator[bytes]:
        if kind == self.kind:
            return
        yield from self._stop()
        self.index, self.kind = self.index + 1, kind
        yield _named({"type": "content_block_start", "index": self.index, "content_block": {"type": kind, kind: ""}})

    def _stop(self) -> Iterator[bytes]:
        if self.kind == "thinking":
            delta = {"type": "signature_delta", "signature": "0123"}
            yield _named({"type": "content_block_delta", "index": self.index, "delta": delta})
        if self.kind:
            yield _named({"type": "content_block_stop", "index": self.index})
        self.kind = ""


@dataclass
class _Responses:
    chunks: Iterator[Body]
    number: int = -1
    kind: str = ""
    text: str = ""
    output: list[Body] = field(default_factory=list[Body])

    def events(self) -> Iterator[bytes]:
        first = next(self.chunks)
        response: Body = {"id": first["id"].replace("chatcmpl-", "resp_"), "object": "response", "created_at": 7}
        response |= {"model": first["model"], "status": "in_progress", "output": [], "usage": None, "error": None}
        response |= {"incomplete_details": None}
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)
        reason, usage, ids = "", (0, 0), list[int]()
        for chunk in self.chunks:
            for name, text in _said(chunk):
                yield from self._begin(name)
                self.text += text
                more: Body = {} if name == "reasoning" else {"logprobs": []}
                yield self._event(f"{self._stem}.delta", **self._place, content_index=0, delta=text, **more)
            if chunk["choices"]:
                reason = chunk["choices"][0]["finish_reason"]
                ids += chunk["choices"][0]["token_ids"] or []
            usage = _usage_of(chunk)
        yield from self._stop()
        thinks = any(item["type"] == "reasoning" for item in self.output)
        thoughts = [*ids, THOUGHT].index(THOUGHT) if thinks else 0
        whole = reason != "length"
        told = {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage[1],
            "output_tokens_details": {"reasoning_tokens": thoughts},
            "total_tokens": sum(usage),
        }
        response |= {"status": "completed" if whole else "incomplete", "output": self.output, "usage": told}
        response |= {"incomplete_details": None if whole else {"reason": "max_output_tokens"}}
        yield self._event("completed", response=response)

    @property
    def _stem(self) -> str:
        return "reasoning_text" if self.kind == "reasoning" else "output_text"

    @property
    def _place(self) -> Body:
        return {"item_id": f"item_{len(self.output)}", "output_index": len(self.output)}

    def _part(self, text: str) -> Body:
        more: Body = {} if self.kind == "reasoning" else {"annotations": [], "logprobs": []}
        return {"type": self._stem, "text": text, **more}

    def _item(self, content: list[Body], status: str) -> Body:
        item: Body = {"id": self._place["item_id"], "content": content, "status": status}
        if self.kind == "reasoning":
            return item | {"type": "reasoning", "summary": []}
        return item | {"type": "message", "role": "assistant"}

    def _begin(self, kind: str) -> Iterator[bytes]:
        if kind == self.kind:
            return
        yield from self._stop()
        self.kind, self.text = kind, ""
        yield self._event("output_item.added", output_index=len(self.output), item=self._item([], "in_progress"))
        yield self._event("content_part.added", **self._place, content_index=0, part=self._part(""))

    def _stop(self) -> Iterator[bytes]:
        if not self.kind:
            return
        yield self._event(f"{self._stem}.done", **self._place, content_index=0, text=self.text)
        yield self._event("content_part.done", **self._place, content_index=0, part=self._part(self.text))
        item = self._item([self._part(self.text)], "completed")
        yield self._event("output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self.kind = ""

    def _event(self, kind: str, **members: Any) -> bytes:
        self.number += 1
        return _named({"type": f"response.{kind}", "sequence_number": self.number, **members})
