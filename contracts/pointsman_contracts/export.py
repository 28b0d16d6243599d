"""JSON Schemas and the AsyncAPI document, generated from the models and committed.

`python -m pointsman_contracts export` writes them, `--check` fails when the files are not what the models say.
"""

import json
from pathlib import Path
from typing import Final, get_args

from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.journey import JOURNEY_LIMIT, Journey
from pointsman_contracts.json_schema import schema
from pointsman_contracts.message import JsonValue, Message
from pointsman_contracts.reply import Reply
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import ROOT

ASYNCAPI_FILE: Final = "asyncapi/pointsman.json"


def schema_file(message: type[Message]) -> str:
    """Path of a message's schema, relative to the contracts folder."""
    return f"schemas/{message.address.type_id}.json"


def documents() -> dict[str, str]:
    """Every generated file: path relative to the contracts folder → text."""
    files = {schema_file(message): _text(schema(message)) for message in MESSAGES}
    files[ASYNCAPI_FILE] = _text(_asyncapi())
    return files


def differences(folder: Path) -> list[str]:
    """Missing, stale and superfluous files in `folder`, one sentence each; empty when all match the models."""
    wanted = documents()
    found = {
        str(path.relative_to(folder)) for part in ("schemas", "asyncapi") for path in (folder / part).glob("*.json")
    }
    problems = [f"{path}: is no longer generated; delete it" for path in sorted(found - set(wanted))]
    for path, text in wanted.items():
        file = folder / path
        if not file.exists():
            problems.append(f"{path}: is missing")
        elif file.read_text(encoding="utf-8") != text:
            problems.append(f"{path}: differs from the models")
    return problems


def write(folder: Path) -> None:
    """Write every generated file below `folder` and delete those that are generated no more."""
    wanted = documents()
    for part in ("schemas", "asyncapi"):
        (folder / part).mkdir(exist_ok=True)
        for path in (folder / part).glob("*.json"):
            if str(path.relative_to(folder)) not in wanted:
                path.unlink()
    for path, text in wanted.items():
        (folder / path).write_text(text, encoding="utf-8")


def _text(document: dict[str, JsonValue]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _summary(message: type[Message]) -> str:
    """The first paragraph about it, on one line."""
    return " ".join((message.__doc__ or "").partition("\n\n")[0].split())


def _asyncapi() -> dict[str, JsonValue]:
    channels: dict[str, JsonValue] = {}
    operations: dict[str, JsonValue] = {}
    messages: dict[str, JsonValue] = {}
    schemas: dict[str, JsonValue] = {}
    for message in MESSAGES:
        name = message.__name__
        body = schema(message)
        definitions = body.pop("$defs", {})
        body.pop("$id")
        body.pop("$schema")
        schemas[name] = _relocate(body)
        if isinstance(definitions, dict):
            schemas.update({key: _relocate(value) for key, value in definitions.items()})
        messages[name] = {
            "name": message.address.type_id,
            "title": name,
            "summary": _summary(message),
            "contentType": "application/json",
            "payload": {"$ref": f"#/components/schemas/{name}"},
        }
        for channel, address, route in _channels(message):
            channels[channel] = {
                "address": address,
                "messages": {name: {"$ref": f"#/components/messages/{name}"}},
                **({"parameters": {part: {"description": _ROUTE[part]} for part in route}} if route else {}),
            }
            operations[f"send.{channel}"] = {
                "action": "send",
                "channel": {"$ref": f"#/channels/{channel.replace('/', '~1')}"},
                "summary": _summary(message),
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Pointsman",
            "version": "1",
            "description": "Every message that Pointsman's services exchange over NATS. Route tokens that are not "
            "[A-Za-z0-9_/-]+ travel with `=` and two hexadecimal digits for each other byte. "
            f"A journey and an event are at most {JOURNEY_LIMIT} bytes.",
        },
        "defaultContentType": "application/json",
        "servers": {"nats": {"host": "localhost:4222", "protocol": "nats"}},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


_ROUTE: Final = {
    "pool": "Name of the pool; `-` when the request never had one.",
    "worker": "Name of the worker, unique within its pool.",
    "model": "Name of the model, as requests and the configuration use it.",
    "stage": "Service that ended the request.",
    "service": "Name of the service.",
    "instance": "Instance of the service.",
    "mirror": "Name of the mirror's policy.",
    "edge": "Instance of the edge.",
    "tenant": "Name of the tenant; `-` when the request has none.",
    "sha256": "SHA-256 of an API key, a token or a response's id, 64 hexadecimal digits.",
    "file": "Id of the file.",
    "chunk": "Number of the chunk, from 0.",
    "batch": "Id of the batch.",
    "line": "Number of the line, from 0.",
    "queue": "Name of the work queue.",
    "reply": "As the item names it; `-` when it names none.",
    "item": "Id of the item.",
    "keeper": "Instance of the preprocessor that keeps a shard of the limits.",
    "shard": "Number of a shard of the limits.",
    "budget": "Name of the budget, as configured.",
    "key": "Name of the API key.",
    "inbox": "Private inbox of the edge.",
}

_REPLIES: Final = get_args(Reply)


def _channels(message: type[Message]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Name, address with `{parameter}`s, and parameters of each channel that carries `message`."""
    address = message.address
    if message is Journey:
        return [
            (
                f"request.{stage.verb}",
                ".".join((ROOT, "rpc", "request", stage.verb, "v1", *(f"{{{part}}}" for part in stage.route))),
                stage.route,
            )
            for stage in STAGES.values()
            if Journey.address.type_id in stage.reads
        ]
    if message in _REPLIES or address.route == ("inbox",):
        return [(f"reply.{address.name}", "{inbox}", ("inbox",))]
    if address.bucket:
        return [
            (
                address.type_id,
                ".".join(("$KV", address.bucket, *(f"{{{part}}}" for part in address.route))),
                address.route,
            )
        ]
    stem = f"{ROOT}.{address.kind}.{address.domain}.{address.name}.v{address.version}"
    return [(address.type_id, ".".join((stem, *(f"{{{part}}}" for part in address.route))), address.route)]


def _relocate(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {
            key: inner.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(inner, str)
            else _relocate(inner)
            for key, inner in value.items()
        }
    return [_relocate(inner) for inner in value] if isinstance(value, list) else value
