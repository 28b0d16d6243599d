"""Requests to providers, and an encoder of AWS's event stream."""

import binascii
import itertools
import struct
from typing import Any, Final

import orjson
from pydantic import JsonValue

from pointsman_providers.exchange import ProviderQuestion, StreamReader

USER: Final[JsonValue] = {"role": "user", "content": "Weather in Oslo?"}
TOOL: Final[JsonValue] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(api: str = "chat.completions", /, **fields: JsonValue) -> ProviderQuestion:
    """A request for a model that the client calls `large` and the provider `model-9`."""
    body: dict[str, JsonValue] = {"model": "model-9"}
    if api in ("chat.completions", "messages"):
        body["messages"] = [USER]
    return ProviderQuestion(
        api=api,
        body=orjson.dumps(body | fields),
        model="model-9",
        asked="large",
        request_id="req-1",
        now_s=1_700_000_000,
    )


def in_pieces(stream: StreamReader, data: bytes, cuts: list[int]) -> bytes:
    """The client's bytes when the provider's bytes arrive cut at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = [stream.translate_bytes(data[start:end]) for start, end in itertools.pairwise(places)]
    return b"".join(found) + stream.translate_end()


def chunks(data: bytes) -> list[dict[str, Any]]:
    """OpenAI's chunks, without the end of the stream, which must be there."""
    *events, done, rest = data.split(b"\n\n")
    if (done, rest) != (b"data: [DONE]", b""):
        raise AssertionError(data[-100:])
    return [orjson.loads(event.removeprefix(b"data: ")) for event in events if not event.startswith(b":")]


def aws_message(kind: str, document: JsonValue | bytes, *, exception: bool = False) -> bytes:
    """One message of AWS's event stream (https://smithy.io/2.0/aws/amazon-eventstream.html)."""
    told = {
        ":message-type": "exception" if exception else "event",
        ":exception-type" if exception else ":event-type": kind,
        ":content-type": "application/json",
    }
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in told.items()
    )
    payload = document if isinstance(document, bytes) else orjson.dumps(document)
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack("!I", binascii.crc32(prelude))
    body = head + headers + payload
    return body + struct.pack("!I", binascii.crc32(body))
