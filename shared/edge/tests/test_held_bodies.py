"""Content by claim check: a stage asks the edge that holds a request, and has it changed. On both transports."""

import os

import pytest

from pointsman_contracts.content import ContentEdits, ContentQuery, PromptTokens
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.message import Blob
from pointsman_edge.taking_in.bodies import HeldBodies
from pointsman_journey.content_client import ContentClient, ContentGone
from pointsman_runtime.bus.errors import NoListener
from pointsman_testing.buses import Buses

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "two\\nlines"}]}\n'


def holding(buses: Buses) -> tuple[HeldBodies, ContentClient]:
    edge, stage = buses.make("frontend", "edge"), buses.make("guard")
    bodies = HeldBodies()
    edge.bus.answer(ContentQuery, bodies.answer_query, "edge-1")
    edge.bus.answer(ContentEdits, bodies.edit_body, "edge-1")
    return bodies, ContentClient(stage)


async def test_a_stage_gets_the_very_bytes_that_the_client_sent(buses: Buses) -> None:
    bodies, client = holding(buses)
    bodies.hold_body("request-1", BODY)
    await buses.meet()
    assert await client.fetch_body("edge-1", "request-1") == BODY


async def test_a_stage_reads_the_body_of_an_edge_in_its_process_without_a_message(buses: Buses) -> None:
    both, other = buses.make("frontend", "edge"), buses.make("frontend", "other")
    bodies, elsewhere = HeldBodies(), HeldBodies()
    both.hold_bodies("edge-1", bodies.find_body)
    other.hold_bodies("edge-2", elsewhere.find_body)
    client = ContentClient(both)
    held = bodies.hold_body("request-1", BODY)
    elsewhere.hold_body("request-1", b"another one")
    held.current = b'{"model": "m"}'
    assert client.body_in_process("edge-1", "request-1") == held.current
    assert client.body_in_process("edge-1", "request-1", original=True) == await client.fetch_body(
        "edge-1", "request-1", original=True
    )
    assert client.body_in_process("edge-2", "request-1") is None
    bodies.let_go(held)
    with pytest.raises(ContentGone):
        client.body_in_process("edge-1", "request-1")
    await both.close()
    assert client.body_in_process("edge-1", "request-1") is None


async def test_a_body_larger_than_a_message_comes_in_parts(buses: Buses) -> None:
    bodies, client = holding(buses)
    body = os.urandom(2 * client.body_room + 7)
    bodies.hold_body("request-1", body)
    await buses.meet()
    assert await client.fetch_body("edge-1", "request-1") == body


async def test_the_engine_and_later_stages_get_the_body_as_a_stage_changed_it(buses: Buses) -> None:
    bodies, client = holding(buses)
    held = bodies.hold_body("request-1", BODY)
    await buses.meet()
    for text in ("once", "twice"):
        await client.edit_body("edge-1", "request-1", "guard", (BodyEdit(field="messages", value=[text]),))
    assert held.current == b'{"model": "m", "messages": ["twice"]}\n'
    assert await client.fetch_body("edge-1", "request-1") == held.current
    assert await client.fetch_body("edge-1", "request-1", original=True) == BODY


@pytest.mark.parametrize("again", [False, True])
async def test_tokens_that_were_counted_before_a_stage_changed_the_prompt_go_nowhere(
    buses: Buses, *, again: bool
) -> None:
    bodies, client = holding(buses)
    held = bodies.hold_body("request-1", BODY)
    await buses.meet()
    tokens = PromptTokens(request_id="request-1", model="m", ids=Blob(b"\x01\x00\x00\x00"))
    bodies.take_tokens(tokens)
    assert held.tokens == tokens
    await client.edit_body("edge-1", "request-1", "guard", (BodyEdit(field="messages", value=["[EMAIL_1]"]),))
    if again:
        # An edge repeats an unanswered question: the prompt is counted again before the guard sees it again.
        bodies.take_tokens(tokens)
    assert held.tokens is None


async def test_a_request_that_has_ended_is_said_to_be_gone(buses: Buses) -> None:
    bodies, client = holding(buses)
    bodies.let_go(bodies.hold_body("request-1", BODY))
    await buses.meet()
    with pytest.raises(ContentGone):
        await client.fetch_body("edge-1", "request-1")
    with pytest.raises(ContentGone):
        await client.edit_body("edge-1", "request-1", "guard", ())
    with pytest.raises(NoListener):
        await client.fetch_body("edge-2", "request-1")


def test_a_request_that_uses_an_id_again_keeps_its_body_when_the_first_one_ends() -> None:
    bodies = HeldBodies()
    first, second = bodies.hold_body("request-1", b"{}"), bodies.hold_body("request-1", BODY)
    bodies.let_go(first)
    assert BODY in bodies.answer_query(ContentQuery(request_id="request-1"))
    bodies.let_go(second)
    assert BODY not in bodies.answer_query(ContentQuery(request_id="request-1"))
