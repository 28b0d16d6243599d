"""The committed schemas are what the models say, and readable without our code."""

import json
from pathlib import Path
from typing import cast

import pytest

from pointsman_contracts import export
from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.message import JsonValue, Message

FOLDER = Path(__file__).resolve().parent.parent


def test_the_committed_files_are_current() -> None:
    assert export.differences(FOLDER) == []


def test_a_stale_a_missing_and_a_superfluous_file_are_named(tmp_path: Path) -> None:
    export.write(tmp_path)
    (tmp_path / "schemas/worker.load.v1.json").write_text("{}", encoding="utf-8")
    (tmp_path / "schemas/pool.snapshot.v1.json").unlink()
    (tmp_path / "schemas/old.v1.json").write_text("{}", encoding="utf-8")
    assert sorted(export.differences(tmp_path)) == [
        "schemas/old.v1.json: is no longer generated; delete it",
        "schemas/pool.snapshot.v1.json: is missing",
        "schemas/worker.load.v1.json: differs from the models",
    ]


def test_every_reference_of_the_asyncapi_document_resolves() -> None:
    document = cast("JsonValue", json.loads((FOLDER / export.ASYNCAPI_FILE).read_text(encoding="utf-8")))
    references: list[str] = []

    def collect(value: JsonValue) -> None:
        if isinstance(value, dict):
            if isinstance(reference := value.get("$ref"), str):
                references.append(reference)
            for inner in value.values():
                collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)

    collect(document)
    assert references
    for reference in references:
        place = document
        for step in reference.removeprefix("#/").split("/"):
            assert isinstance(place, dict), reference
            place = place[step.replace("~1", "/")]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: cast("type[Message]", m).__name__)
def test_every_message_names_its_senders_and_readers(message: type[Message]) -> None:
    text = (message.__doc__ or "").lower()
    assert any(
        word in text
        for word in ("sent by", "sent and", "published by", "pushed by", "registered it", "heartbeat", "answer to")
    )


def test_no_two_messages_share_a_type_id() -> None:
    """One would overwrite the other's schema, and `Pm-Type` would mean both."""
    identifiers = [message.address.type_id for message in MESSAGES]
    assert len(set(identifiers)) == len(identifiers)
