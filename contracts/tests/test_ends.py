"""Ends of requests as schedulers and collectors read them."""

import msgspec
import pytest
from pydantic import ValidationError

from pointsman_contracts.ends import (
    ChargedEnd,
    EndAttempt,
    EndIdentity,
    EndOfRequest,
    EndTarget,
    EndUsage,
    read_charged_end,
    read_end,
)
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Target
from pointsman_contracts.response import Attempt, ResponseCompleted, Usage

TARGET = Target(model="llama-8b", pool="llama", lora="poet", base="llama")
END = ResponseCompleted(
    request_id="r", source="edge-1", sequence=7, at_ms=1_700_000_000_000, pool="llama", worker="w0", model="poet",
    target=TARGET, api="chat", stream=True, status=200, outcome="ok", level="degraded", decided_ms=1.5, ttft_ms=2.0,
    duration_ms=30.0, usage=Usage(prompt_tokens=9, completion_tokens=8, cached_tokens=7, reasoning_tokens=6), answers=2,
    attempts=(Attempt(worker="p", outcome="limited", status=429, target=TARGET, limited_until_ms=5, remaining=0.25),),
    answered_by="guard", served="poet", identity=Identity(tenant="t", plan="p"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        (EndOfRequest, ResponseCompleted),
        (ChargedEnd, ResponseCompleted),
        (EndTarget, Target),
        (EndAttempt, Attempt),
        (EndUsage, Usage),
        (EndIdentity, Identity),
    ],
)
def test_a_part_has_the_names_and_defaults_of_the_whole(
    part: type[msgspec.Struct], whole: type[ResponseCompleted | Target | Attempt | Usage | Identity]
) -> None:
    for field in msgspec.structs.fields(part):
        twin = whole.model_fields[field.name]
        assert field.required == twin.is_required()
        assert field.required or field.default == twin.get_default()


def test_an_end_is_read_as_it_was_published() -> None:
    read = read_end(END.encode())
    assert isinstance(read, EndOfRequest)
    assert read == msgspec.convert(END.model_dump(), EndOfRequest)
    assert read_charged_end(END.encode()) == msgspec.convert(END.model_dump(), ChargedEnd)


def test_an_end_with_a_number_in_a_string_is_accepted_as_before() -> None:
    read = read_end(END.encode().replace(b'"duration_ms":30.0', b'"duration_ms":"30.0"'))
    assert isinstance(read, ResponseCompleted)
    assert read == END


@pytest.mark.parametrize("payload", [b"", b"{}", b"\xff", b'{"request_id": 1}', END.encode()[:-1]])
def test_a_malformed_end_is_refused_in_pydantics_words(payload: bytes) -> None:
    with pytest.raises(ValidationError):
        read_end(payload)


def test_an_end_that_nests_too_deep_is_refused_like_any_unreadable_one() -> None:
    with pytest.raises(ValidationError):
        read_end(b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
