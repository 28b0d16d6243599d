"""Two engines that hand a prompt's KV cache over as vLLM 0.32 does with NIXL (its `kv_connector/v1/nixl`): the first
one holds the blocks of a finished prompt until the second one has read them. Both refuse what vLLM refuses."""

import itertools
import json
from types import TracebackType
from typing import Self, cast

from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received, ScriptedEngine

Document = dict[str, object]
LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
WORDS = ("The", " answer", ".")


class NixlPair:
    """`async with NixlPair() as pair:` listens at `pair.prefill.url` and `pair.decode.url`."""

    def __init__(self, model: str = "llama-8b") -> None:
        models: Document = {"data": [{"id": model, "max_model_len": 4096}]}
        self.prefill: ScriptedEngine = FakeEngine(models=models, pages=dict.fromkeys(LIMITS, self.compute))
        self.decode: ScriptedEngine = FakeEngine(models=models, pages=dict.fromkeys(LIMITS, self.answer))
        self.held: dict[str, Document] = {}
        """Blocks of prompts that no engine has read, by the id of their request."""
        self.transfers = 0
        self.computed = 0
        """Prompts that the decoding engine computed itself."""
        self.hands_over = True
        """Whether the first engine has a KV connector."""
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.prefill.start()
        await self.decode.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.prefill.stop()
        await self.decode.stop()

    async def compute(self, request: Received) -> None:
        """The first engine's part."""
        body: Document = json.loads(request.body)
        wrong = _wrong(request.path, body)
        if wrong:
            await _refuse(request, 400, wrong)
            return
        document = _whole(request.path, WORDS[:1], "length")
        asked = body.get("kv_transfer_params")
        if self.hands_over and isinstance(asked, dict) and cast("Document", asked).get("do_remote_decode"):
            number = next(self._numbers)
            held: Document = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": [[number, number + 1]],
                "remote_engine_id": "engine-p",
                "remote_request_id": f"chatcmpl-{number}",
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "tp_size": 1,
                "dcp_size": 1,
                "pp_size": 1,
                "remote_num_tokens": 320,
                "remote_blocks_expiry_time": None,
                "transfer_mode": "pull",
                "remote_prefill_cached_tokens": 64,
            }
            self.held[f"chatcmpl-{number}"] = held
            document["kv_transfer_params"] = held
        await request.answer(json.dumps(document).encode())

    async def answer(self, request: Received) -> None:
        """The second engine's part."""
        body: Document = json.loads(request.body)
        wrong = _wrong(request.path, body)
        if wrong:
            await _refuse(request, 400, wrong)
            return
        given = body.get("kv_transfer_params")
        if isinstance(given, dict) and cast("Document", given).get("do_remote_prefill"):
            if self.held.pop(str(cast("Document", given)["remote_request_id"]), None) != given:
                # `kv_load_failure_policy` is `fail` unless it is set.
                await _refuse(request, 500, "Internal server error")
                return
            self.transfers += 1
        else:
            self.computed += 1
        if body.get("stream"):
            await request.begin_stream()
            for event in _events(request.path):
                await request.chunk(event)
            await request.chunk(b"")
        else:
            await request.answer(json.dumps(_whole(request.path, WORDS, "stop")).encode())


def _wrong(path: str, body: Document) -> str:
    """The reason for which vLLM refuses a body; empty where it takes it."""
    limit, least = body.get(LIMITS[path]), body.get("min_tokens", 0)
    if isinstance(limit, int) and isinstance(least, int) and least > limit:
        return f"min_tokens must be less than or equal to max_tokens={limit}, got {least}."
    if body.get("stream_options") and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`."
    if body.get("top_logprobs") and not body.get("logprobs") and path.endswith("chat/completions"):
        return "when using `top_logprobs`, `logprobs` must be set to true."
    return ""


async def _refuse(request: Received, status: int, message: str) -> None:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    await request.answer(json.dumps(error).encode(), status=status)


def _whole(path: str, words: tuple[str, ...], reason: str) -> Document:
    text, count = "".join(words), len(words)
    counts: Document = {"prompt_tokens": 320, "completion_tokens": count, "total_tokens": 320 + count}
    if path == "/v1/messages":
        return {
            "id": "msg-1", "type": "message", "role": "assistant", "model": "llama-8b",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "max_tokens" if reason == "length" else "end_turn",
            "usage": {"input_tokens": 320, "output_tokens": count},
        }  # fmt: skip
    if path == "/v1/responses":
        part: Document = {"type": "output_text", "text": text, "annotations": []}
        message: Document = {
            "id": "msg-1", "type": "message", "role": "assistant", "status": "completed", "content": [part],
        }  # fmt: skip
        return {
            "id": "resp-1", "object": "response", "status": "completed", "model": "llama-8b", "output": [message],
            "usage": {"input_tokens": 320, "output_tokens": count, "total_tokens": 320 + count},
        }  # fmt: skip
    choice: Document = {"index": 0, "finish_reason": reason}
    if path == "/v1/completions":
        return {
            "id": "cmpl-1", "object": "text_completion", "model": "llama-8b", "choices": [{**choice, "text": text}],
            "usage": counts,
        }  # fmt: skip
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "model": "llama-8b",
        "choices": [{**choice, "message": message}], "usage": counts,
    }  # fmt: skip


def _events(path: str) -> list[bytes]:
    if path == "/v1/messages":
        events: list[Document] = [
            {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 320}}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
                for word in WORDS
            ),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": len(WORDS)}},
            {"type": "message_stop"},
        ]
        return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    if path == "/v1/responses":
        events = [
            *({"type": "response.output_text.delta", "delta": word} for word in WORDS),
            {"type": "response.completed", "response": _whole(path, WORDS, "stop")},
        ]
        return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    member = "text" if path == "/v1/completions" else "delta"
    choices = [{"index": 0, member: word if member == "text" else {"content": word}} for word in WORDS]
    choices[-1]["finish_reason"] = "stop"
    return [*(b"data: " + json.dumps({"choices": [each]}).encode() + b"\n\n" for each in choices), b"data: [DONE]\n\n"]
