"""Answers on `/v1/messages`: Anthropic's API as vLLM serves it."""

from typing import Final

import orjson

from pointsman_simulator.api import AnswerUsage, Generation
from pointsman_simulator.asked_json import Json

_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


class MessageShape:
    """One message with one content block."""

    def __init__(self, request: Generation, answer_id: str) -> None:
        self._id = f"chatcmpl-{answer_id}"
        self._model = request.model
        self._call = request.call
        self._before, self._after = request.surrounding_text
        self._prompt_tokens = sum(len(prompt) for prompt in request.prompts)
        self._stop_reason = ""

    def write_opening(self, index: int) -> bytes:
        """The message and its block begin."""
        del index
        start = self._message([], None) | {"usage": {"input_tokens": self._prompt_tokens, "output_tokens": 0}}
        block = self._event({"type": "content_block_start", "index": 0, "content_block": self._block("", {})})
        opened = self._event({"type": "message_start", "message": start}) + block
        return opened if self._call is None else opened + self._delta(self._before)

    def write_tokens(self, index: int, words: list[str]) -> bytes:
        """One event per token."""
        del index
        return b"".join(map(self._delta, words))

    def write_closing(self, index: int, reason: str) -> bytes:
        """The block ends."""
        del index
        self._stop_reason = self._stopped(reason)
        last = b"" if self._call is None else self._delta(self._after)
        return last + self._event({"type": "content_block_stop", "index": 0})

    def end_stream(self, usage: AnswerUsage) -> bytes:
        """Usage and why it ended, then the end of the message."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        last = self._event({"type": "message_delta", "delta": delta, "usage": _usage(usage)})
        return last + self._event({"type": "message_stop"})

    def build_body(self, answers: list[tuple[str, str]], usage: AnswerUsage) -> bytes:
        [(text, reason)] = answers
        message = self._message(
            [self._block(text, {} if self._call is None else orjson.loads(self._before + text + self._after))],
            self._stopped(reason),
        )
        return orjson.dumps(message | {"usage": _usage(usage)})

    def _message(self, content: list[Json], stop_reason: str | None) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "stop_reason": stop_reason,
        }

    def _block(self, text: str, arguments: Json) -> Json:
        if self._call is None:
            return {"type": "text", "text": text}
        return {"type": "tool_use", "id": f"call_{self._id}", "name": self._call, "input": arguments}

    def _delta(self, text: str) -> bytes:
        if self._call is None:
            delta: Json = {"type": "text_delta", "text": text}
        else:
            delta = {"type": "input_json_delta", "partial_json": text}
        return self._event({"type": "content_block_delta", "index": 0, "delta": delta})

    def _stopped(self, reason: str) -> str:
        return "tool_use" if self._call is not None and reason == "stop" else _STOP_REASONS[reason]

    def _event(self, event: Json) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))


def _usage(usage: AnswerUsage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.created_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }
