"""Which requests are copied, and what a mirror does when an edge or the bucket fails."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from pointsman_contracts.batch import LentIdentity
from pointsman_contracts.journey import Target
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_core.config import Mirror, load
from pointsman_hosting.configuration import Configuration
from pointsman_hosting.own_door import OwnDoor
from pointsman_journey.content_client import ContentGone, ContentUnusable
from pointsman_mirror import copier
from pointsman_mirror.configuration import compile_mirrors
from pointsman_mirror.copier import Copier
from pointsman_mirror.handlers import Handlers
from pointsman_mirror.identities import Identities
from pointsman_mirror.metrics import MirrorMetrics
from pointsman_runtime.bus.errors import MessageTooLarge, NoReply
from pointsman_testing import eventually
from pointsman_testing.fake_bucket import FakeBucket
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CONFIG = {
    "pools": {"a": {"models": ["now", "next", "other"]}},
    "mirrors": {
        "default": {"to": ["next", "other"], "limits": {"budget": "5/d"}},
        "hasty": {"to": ["next", "other"], "within": "300ms"},
    },
    "profiles": {"standard": {"response": ["mirror", "mirror/hasty"]}},
}


class Edge:
    def __init__(self) -> None:
        self.problem: Exception | None = None

    async def fetch_body(self, edge: str, request_id: str) -> bytes:
        if self.problem is not None:
            raise self.problem
        return b'{"model":"now","messages":[]}'


class World:
    def __init__(self, door: ScriptedEngine) -> None:
        self.door, self.edge, self.bucket = door, Edge(), FakeBucket()
        self.published: list[MirrorCompared] = []
        self.unheard = False
        self.registry = registry = CollectorRegistry()
        configuration: Configuration[Mapping[str, Mirror]] = Configuration(compile_mirrors, registry)
        assert configuration.offer_revision(1, load(CONFIG).model_dump_json(by_alias=True)), configuration.refused
        metrics = MirrorMetrics(registry, lambda: 0)
        bucket: Any = self.bucket
        self.copier = Copier("mirror-1", OwnDoor(door.url, 2**22), Identities(bucket), self._publish, metrics)
        door.script = self.answer
        self.handlers = Handlers("mirror-1", configuration, self.edge, self.copier, metrics)

    async def answer(self, request: Received) -> None:
        for sequence, request_id in enumerate(("another", request.header("x-request-id") or "")):
            end = ResponseCompleted(
                source="e", sequence=sequence, at_ms=0, request_id=request_id, pool="a", status=200, outcome="ok",
                ttft_ms=5.0 + sequence, duration_ms=8.0, usage=Usage(completion_tokens=2), cost_nanos=30,
            )  # fmt: skip
            self.copier.note_end(end)
            self.copier.note_end(end)
        await request.answer(ANSWER)

    def _publish(self, event: MirrorCompared, mirror: str) -> None:
        if self.unheard:
            raise MessageTooLarge("mirror.compared.v1", 2**16, 2**17)
        assert mirror == event.mirror
        self.published.append(event)

    async def review(self, **changes: Any) -> str:
        """The verdict's note."""
        known: dict[str, Any] = {
            "request_id": "r-1", "edge": "e", "stage": "mirror", "revision": 1, "deadline_ms": 0, "mode": "after",
            "status": 200, "outcome": "ok", "api": "chat.completions", "model": "now",
            "target": Target(model="now", pool="a"), "served": "now",
        }  # fmt: skip
        found = self.handlers.review(ResponseReview(**known | changes))
        verdict = found if isinstance(found, Verdict) else await found
        assert verdict.action == "pass"
        return verdict.note or ""

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"pointsman_mirror_{name}_total", labels) or 0.0

    async def ended(self, copies: int) -> list[MirrorCompared]:
        await eventually(lambda: len(self.published) >= copies)
        return self.published


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with ScriptedEngine() as door:
        made = World(door)
        yield made
        await made.copier.close()


async def test_each_model_gets_one_copy_with_the_mirrors_identity(world: World) -> None:
    assert (await world.review()).startswith("copied as mirror-")
    found = await world.ended(2)
    assert {event.copy.model for event in found} == {"next", "other"}
    assert {event.outcome for event in found} == {"answered"}
    assert {(event.copy.ttft_ms, event.copy.cost_nanos) for event in found} == {(6.0, 30)}
    assert {request.header("x-request-id") for request in world.door.received} == {event.copy_id for event in found}
    lent = [LentIdentity.decode(entry.value) for entry in world.bucket.entries.values()]
    assert [each.identity for each in lent] == [
        {"tenant": "mirror", "subject": "mirror/default", "plan": "mirror", "limits": {"budget": "5/d"}}
    ]
    assert [(each.batch, each.priority) for each in lent] == [("", -100)]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"request_id": "mirror-1"}, "a copy"),
        ({"mirrored": True}, "a copy"),  # of another gateway
        ({"outcome": "client_gone", "status": 499}, "not answered by a model"),
        ({"outcome": "rejected", "status": 404, "target": None, "served": None}, "not answered by a model"),
        ({"served": None}, "not answered by a model"),  # a cache did
        ({"mode": "window"}, "asked too early"),
        ({"policy": "gone"}, "no such mirror"),
        ({"api": "embeddings"}, "api"),
    ],
)
async def test_other_requests_are_not_copied(world: World, changes: dict[str, Any], note: str) -> None:
    assert note in await world.review(**changes)
    assert not world.door.received


async def test_a_request_that_comes_twice_is_copied_once(world: World) -> None:
    await world.review()
    assert "copied before" in await world.review()
    await world.ended(2)
    assert len(world.door.received) == 2


@pytest.mark.parametrize("problem", [ContentGone("e"), ContentUnusable("e"), NoReply("pm", 1.0)])
async def test_a_request_whose_edge_let_go_gives_its_room_back(world: World, problem: Exception) -> None:
    world.edge.problem = problem
    for number in range(9):
        assert "request gone" in await world.review(request_id=f"r-{number}")
    world.edge.problem = None
    assert "copied as" in await world.review()
    assert len(await world.ended(2)) == 2


async def test_a_gateway_that_hangs_ends_the_copies_as_late_and_frees_their_room(world: World) -> None:
    held = asyncio.Event()

    async def hang(request: Received) -> None:
        await held.wait()

    world.door.script = hang
    await world.review(request_id="r-1", policy="hasty")
    await world.review(request_id="r-2", policy="hasty")
    assert "busy" in await world.review(request_id="r-3", policy="hasty")
    found = await world.ended(4)
    assert {event.outcome for event in found} == {"late"}
    assert {event.copy.status for event in found} == {None}
    assert "copied as" in await world.review(request_id="r-4", policy="hasty")
    assert world.count("skipped", mirror="hasty", reason="busy") == 1.0
    held.set()


async def test_an_answer_without_an_end_is_bounded_and_no_answer(world: World) -> None:
    async def flood(request: Received) -> None:
        await request.begin_stream()
        for _ in range(80):
            await request.chunk(b": " + b"x" * 2**16 + b"\n\n")

    world.door.script = flood
    await world.review(stream=True)
    found = await world.ended(2)
    assert {event.outcome for event in found} == {"oversized"}
    assert {event.likeness for event in found} == {None}


async def test_no_copy_is_sent_without_an_identity(world: World) -> None:
    world.bucket.broken = True
    await world.review()
    found = await world.ended(2)
    assert {event.outcome for event in found} == {"failed"}
    assert not world.door.received


async def test_a_token_that_isnt_known_yet_is_tried_again(world: World) -> None:
    async def unknown_first(request: Received) -> None:
        if len(world.door.received) <= 2:
            await request.answer(b'{"error": {"code": "lent_identity_unknown"}}', status=401)
        else:
            await request.answer(b'{"choices": []}')

    world.door.script = unknown_first
    await world.review()
    found = await world.ended(2)
    assert {event.outcome for event in found} == {"answered"}
    assert {(event.copy.usage, event.copy.duration_ms) for event in found} == {(None, None)}, (
        "no edge told of their end"
    )


async def test_comparisons_that_the_bus_doesnt_take_are_counted(world: World) -> None:
    world.unheard = True
    await world.review()
    for model in ("next", "other"):
        await eventually(lambda model=model: world.count("copies", mirror="default", model=model, outcome="error") == 1)
    world.unheard = False
    await world.review(request_id="r-2")
    assert len(await world.ended(2)) == 2


async def test_a_request_that_comes_twice_at_once_is_copied_once(world: World) -> None:
    notes = await asyncio.gather(world.review(), world.review())
    assert sorted(note.partition(" as ")[0] for note in notes) == ["copied", "not copied: copied before"]
    await world.ended(2)
    assert len(world.door.received) == 2


async def test_a_token_that_stays_unknown_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "UNKNOWN_YET_S", 0.0)

    async def unknown(request: Received) -> None:
        await request.answer(b'{"error": {"code": "lent_identity_unknown"}}', status=401)

    world.door.script = unknown
    await world.review()
    assert {(event.outcome, event.copy.status) for event in await world.ended(2)} == {("refused", 401)}
    lost, world.door.script = set(world.bucket.entries), world.answer
    await world.review(request_id="r-2")
    assert {event.outcome for event in (await world.ended(4))[2:]} == {"answered"}
    assert set(world.bucket.entries) > lost


async def test_a_copy_whose_identity_is_never_known_ends_in_time(world: World) -> None:
    async def unknown(request: Received) -> None:
        await request.answer(b'{"error": {"code": "lent_identity_unknown"}}', status=401)

    world.door.script = unknown
    await world.review(policy="hasty")
    assert {event.outcome for event in await world.ended(2)} == {"late"}
