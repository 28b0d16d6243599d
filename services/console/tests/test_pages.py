"""The data of pages from the bus, from buckets and from files."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from pointsman_console.adapters.window import Window
from pointsman_contracts.fleet import FleetQuery, FleetView
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.response import ResponseCompleted
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_testing.builders import scheduled
from pointsman_testing.console_scene import ConsoleScene, beginning
from pointsman_testing.memory_nats import MemoryNats

KEY = "pm-writer"
FIRST = "pools: {p: {models: [m], discovery: agents}}\n"
SECOND = "pools: {p: {models: [m, n], discovery: agents}}\n"


def events(text: str, name: str) -> list[dict[str, Any]]:
    """The complete documents of a stream's events of this name."""
    found: list[dict[str, Any]] = []
    for block in text.split("\n\n")[:-1]:
        lines = block.split("\n")
        if lines[0] == f"event: {name}":
            found.append(json.loads(lines[1].removeprefix("data: ")))
    return found


async def test_a_console_without_an_open_page_has_no_subscription() -> None:
    server = MemoryNats()
    window = Window(lambda: Bus(server.link(), Process("console", "c-1")))
    assert not window.open
    async with window.hold_bus() as first, window.hold_bus() as second:
        assert first is second
        assert window.open
    assert not window.open


async def test_the_fleet_is_what_snapshots_and_a_scheduler_say(scene: ConsoleScene) -> None:
    await scene.start()
    bus = scene.seen.bus
    asked: list[FleetQuery] = []

    def view(query: FleetQuery) -> bytes:
        asked.append(query)
        return FleetView(
            scheduler="s-1", pool=query.pool, workers=("w-1",), open=(4,), prefix_blocks=(10,), speeds=(1.5,),
            ignored={"w-1": "ejected: 3 of 3 failed"}, block_tokens=64, queued=7,
        ).encode()  # fmt: skip

    bus.answer(FleetQuery, view, "s-1")

    async def tell() -> None:
        for number in itertools.count(1):
            worker = WorkerView(
                worker="w-1", url="http://e:1", verdict="suspect", running=number, kv_usage=0.5, age_ms=10
            )
            bus.publish(PoolSnapshot(pool="p", source="m", sequence=number, at_ms=0, workers=(worker,)), "p")
            beat = ServicePresence(service="scheduler", instance="s-1", sequence=number, at_ms=0, version="1")
            bus.publish(beat, "scheduler", "s-1")
            await asyncio.sleep(0.05)

    async with scene.logged_in() as client:
        telling = asyncio.create_task(tell())
        text = await beginning(client, "/api/fleet/stream", lambda text: "ejected" in text and text.endswith("\n\n"))
        telling.cancel()
    first, *_, last = events(text, "fleet")
    columns = first["columns"]
    [values] = last["rows"]
    row = dict(zip(columns, values, strict=True))
    assert (row["state"], row["reason"], row["open"]) == ("suspect", "ejected: 3 of 3 failed", 4)
    assert (row["prefix_tokens"], row["speed"], row["kv"]) == (640, 1.5, 50)
    assert asked


async def test_decisions_come_with_how_many_of_how_many_are_shown(scene: ConsoleScene) -> None:
    await scene.start()
    bus = scene.seen.bus

    async def decide() -> None:
        for number in itertools.count(1):
            bus.publish(scheduled(request_id=f"r-{number}", edge="edge-1", sequence=number, pool="p"), "p")
            end = ResponseCompleted(
                request_id=f"r-{number}", source="edge-1", sequence=number, at_ms=1, pool="p", status=200, outcome="ok"
            )
            bus.publish(end, "p")
            if number % 10 == 0:
                await asyncio.sleep(0.01)

    def enough(text: str) -> bool:
        return sum(batch["decisions"] for batch in events(text, "decisions")) > 500 and '"outcome"' in text

    async with scene.logged_in() as client:
        deciding = asyncio.create_task(decide())
        text = await beginning(client, "/api/decisions/stream?pool=p", enough)
        deciding.cancel()
    batches = events(text, "decisions")
    decided = sum(batch["decisions"] for batch in batches)
    shown = sum(batch["shown"] for batch in batches)
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch["rows"]]
    assert 0 < shown < decided
    begun: set[str] = {row["key"] for row in rows if row["kind"] == "scheduled"}
    assert len(begun) == shown
    assert {row["key"] for row in rows if row["kind"] == "completed"} <= begun


async def test_without_a_recorder_the_page_says_so(scene: ConsoleScene) -> None:
    await scene.start()
    async with scene.logged_in() as client:
        for path in ("/api/decision?id=r-1", "/api/usage", "/api/levels"):
            answer = await client.get(path)
            assert (answer.status_code, "No recorder answers" in answer.json()["error"]) == (503, True)
        assert (await client.get("/api/decision?trace=nonsense")).status_code == 422


async def test_revisions_are_compared_and_hashes_of_keys_are_shortened(scene: ConsoleScene) -> None:
    await scene.start()
    digest = "ab" * 32
    key = f"preprocessing: [{{use: api-key-auth, keys: [{{sha256: {digest}, tenant: t}}]}}]\n"
    numbers = [await scene.configure(text) for text in (FIRST, SECOND + key)]
    async with scene.logged_in() as client:
        kept = (await client.get("/api/configuration")).json()
        assert [each["revision"] for each in kept["revisions"]] == numbers[::-1]
        assert kept["writes"] is False
        answer = await client.get(f"/api/configuration/{numbers[1]}")
        shown = answer.json()
        assert shown["keys"] == ["pools.p.models", "preprocessing"]
        assert f"-{FIRST.strip()}" in shown["lines"]
        assert digest not in answer.text
        assert "abababab…" in answer.text
        assert (await client.get("/api/configuration/99")).status_code == 404


@pytest.mark.requirement("CONSOLE-2")
async def test_only_a_session_that_may_write_rolls_back_where_it_is_allowed(scene: ConsoleScene) -> None:
    first = await scene.configure(FIRST)
    await scene.configure(SECOND)
    await scene.key(KEY, "console:write")
    await scene.key("pm-reader", "console")
    await scene.start()
    async with scene.logged_in(KEY) as client:
        answer = await client.post("/api/configuration/rollback", json={"revision": first})
        assert (answer.status_code, "POINTSMAN_WRITES" in answer.json()["error"]) == (403, True)
    assert scene.console is not None
    await scene.console.terminate()
    await scene.start(POINTSMAN_WRITES="true")
    async with scene.logged_in("pm-reader") as reader:
        answer = await reader.post("/api/configuration/rollback", json={"revision": first})
        assert (answer.status_code, "console:write" in answer.json()["error"]) == (403, True)
    async with scene.logged_in(KEY) as client:
        assert (await client.post("/api/configuration/rollback", json={"revision": 99})).status_code == 404
        answer = await client.post("/api/configuration/rollback", json={"revision": first})
        assert answer.status_code == 200, answer.text
        newest = (await client.get(f"/api/configuration/{answer.json()['revision']}")).json()
        assert newest["text"] == FIRST


async def test_results_are_the_json_files_of_the_folder_and_nothing_else(scene: ConsoleScene, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "twin.json").write_text('{"verdict": "trust"}')
    (folder / "lines.json").write_text('{"pool": "a"}\n{"pool": "b"}\n')
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("no")
    (tmp_path / "secret.json").write_text('"secret"')
    (folder / "link.json").symlink_to(tmp_path / "secret.json")
    await scene.start(POINTSMAN_RESULTS_DIR=str(folder))
    async with scene.logged_in() as client:
        names = {each["name"] for each in (await client.get("/api/results")).json()}
        assert {"twin.json", "lines.json"} <= names
        assert "notes.txt" not in names
        assert (await client.get("/api/results/twin.json")).json() == {"verdict": "trust"}
        assert (await client.get("/api/results/lines.json")).json() == [{"pool": "a"}, {"pool": "b"}]
        assert (await client.get("/api/results/broken.json")).status_code == 422
        for name in ("notes.txt", "link.json", "..%2Fsecret.json", "absent.json"):
            assert (await client.get(f"/api/results/{name}")).status_code == 404, name
        assert "'absent.json'" in (await client.get("/api/results/absent.json")).json()["error"]


async def test_the_console_ends_in_time_with_pages_open(scene: ConsoleScene) -> None:
    await scene.start()
    assert scene.console is not None
    async with scene.logged_in() as client, client.stream("GET", "/api/fleet/stream") as answer:
        assert answer.status_code == 200
        chunks = answer.aiter_text()
        assert "retry" in await anext(chunks)
        assert await scene.console.terminate() == 0
