"""Answers on `/v1/responses`: OpenAI's API as vLLM serves it."""

import time

import orjson

from pointsman_simulator.api import AnswerUsage, Generation
from pointsman_simulator.asked_json import Json


class ResponseShape:
    """One response with one output item."""

    def __init__(self, request: Generation, answer_id: str) -> None:
        self._id = f"resp_{answer_id}"
        self._item_id = f"msg_{answer_id}" if request.call is None else f"fc_{answer_id}"
        self._request = request
        self._call = request.call
        self._before, self._after = request.surrounding_text
        self._created = int(time.time())
        self._sequence = 0
        self._text: list[str] = []
        self._status = "completed"

    def write_opening(self, index: int) -> bytes:
        """The response, its item and its part begin."""
        del index
        response = self._response("in_progress", [], None)
        item = self._item("", "in_progress")
        if self._call is None:
            item["content"] = []
        begun = [
            self._event("response.created", {"response": response}),
            self._event("response.in_progress", {"response": response}),
            self._event("response.output_item.added", {"output_index": 0, "item": item}),
        ]
        if self._call is None:
            part = _part("")
            part["logprobs"] = []
            begun.append(self._event("response.content_part.added", self._place() | {"part": part}))
        else:
            begun.append(self._delta(self._before))
        return b"".join(begun)

    def write_tokens(self, index: int, words: list[str]) -> bytes:
        """One event per token."""
        del index
        self._text += words
        return b"".join(map(self._delta, words))

    def write_closing(self, index: int, reason: str) -> bytes:
        """Part and item end."""
        del index
        self._status = _status(reason)
        text = "".join(self._text)
        ended: list[bytes] = []
        if self._call is None:
            whole: Json = {"text": text, "logprobs": []}
            ended += [
                self._event("response.output_text.done", self._place() | whole),
                self._event("response.content_part.done", self._place() | {"part": _part(text)}),
            ]
        else:
            arguments = self._before + text + self._after
            place: Json = {"item_id": self._item_id, "output_index": 0, "name": self._call}
            ended += [
                self._delta(self._after),
                self._event("response.function_call_arguments.done", place | {"arguments": arguments}),
            ]
        item = self._item(text, "completed")
        return b"".join((*ended, self._event("response.output_item.done", {"output_index": 0, "item": item})))

    def end_stream(self, usage: AnswerUsage) -> bytes:
        """The whole response once more, with its usage."""
        item = self._item("".join(self._text), "completed")
        # vLLM names the event so for an incomplete response too (its pull request 45386).
        return self._event("response.completed", {"response": self._response(self._status, [item], usage)})

    def build_body(self, answers: list[tuple[str, str]], usage: AnswerUsage) -> bytes:
        [(text, reason)] = answers
        status = _status(reason)
        return orjson.dumps(self._response(status, [self._item(text, "completed")], usage))

    def _response(self, status: str, output: list[Json], usage: AnswerUsage | None) -> Json:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": details,
            "instructions": None,
            "metadata": None,
            "model": self._request.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto" if self._call is None else "required",
            "tools": [],
            "top_p": 1.0,
            "max_output_tokens": self._request.max_tokens,
            "background": False,
            "service_tier": "auto",
            "truncation": "disabled",
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "status": status,
            "usage": None if usage is None else _usage(usage),
        }

    def _item(self, text: str, status: str) -> Json:
        if self._call is None:
            head: Json = {"id": self._item_id, "type": "message", "role": "assistant", "status": status}
            return head | {"content": [_part(text)]}
        arguments = self._before + text + self._after if text else ""
        item: Json = {"id": self._item_id, "type": "function_call", "call_id": f"call_{self._item_id}"}
        return item | {"name": self._call, "arguments": arguments, "status": status}

    def _delta(self, text: str) -> bytes:
        if self._call is None:
            piece: Json = {"delta": text, "logprobs": []}
            return self._event("response.output_text.delta", self._place() | piece)
        place: Json = {"item_id": self._item_id, "output_index": 0}
        return self._event("response.function_call_arguments.delta", place | {"delta": text})

    def _place(self) -> Json:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, members: Json) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence} | members
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _status(reason: str) -> str:
    return "incomplete" if reason == "length" else "completed"


def _usage(usage: AnswerUsage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
