"""A program orders engines to drain, with the key of an operator."""

import json
from typing import Any

import httpx
import pytest

from pointsman_contracts.draining import DrainAnswer, DrainQuery, OrderedDrain
from pointsman_testing import eventually
from pointsman_testing.console_scene import ConsoleScene

KEY, READER = "pm-operator", "pm-reader"
URL = "http://10.0.0.7:8000"


class Collector:
    """Stands in for a metrics-collector that knows one engine."""

    def __init__(self) -> None:
        self.orders: list[DrainQuery] = []
        self.refusal = ""

    def answer_order(self, query: DrainQuery) -> bytes:
        """See `Bus.answer`."""
        self.orders.append(query)
        known = query.engine == URL or query.host == "10.0.0.7"
        engines = (OrderedDrain(pool="p", worker="w", url=URL, warning="m"),) if known and not self.refusal else ()
        refusal = self.refusal or ("" if known else f"no engine {query.engine} is known")
        return DrainAnswer(instance="c", engines=engines, refusal=refusal).encode()


async def ask(scene: ConsoleScene, key: str, body: Any) -> httpx.Response:
    async with scene.client() as program:
        return await program.post("/api/engines/drain", json=body, headers={"authorization": f"Bearer {key}"})


@pytest.mark.requirement("ENGINE-8")
async def test_a_spot_notice_drains_every_engine_of_its_machine(scene: ConsoleScene) -> None:
    await scene.key(KEY, "console:write")
    await scene.key(READER, "console")
    await scene.start(POINTSMAN_WRITES="true")
    answer = await ask(scene, KEY, {"engine": URL})
    assert (answer.status_code, "No metrics-collector answers" in answer.text) == (502, True)
    collector = Collector()
    scene.seen.bus.answer(DrainQuery, collector.answer_order)

    async def heard() -> bool:
        return (await ask(scene, KEY, {"engine": "http://nowhere"})).status_code == 404

    await eventually(heard)
    collector.orders.clear()
    for wrong, status in (("pm-unknown", 401), ("inference", 401), (READER, 403)):
        assert (await ask(scene, wrong, {"engine": URL})).status_code == status, wrong
    assert not collector.orders
    answer = await ask(scene, KEY, {"host": "10.0.0.7", "within": "110s", "why": "spot notice"})
    assert (answer.status_code, answer.json()["engines"][0]["url"]) == (200, URL)
    assert answer.json()["engines"][0]["unserved"] == "m"
    (order,) = collector.orders
    assert (order.host, order.within_ms, order.force, order.why) == ("10.0.0.7", 110_000, True, "spot notice")
    answer = await ask(scene, KEY, {"engine": URL, "undo": True})
    assert (answer.status_code, collector.orders[-1].undo) == (200, True)
    assert collector.orders[-1].why == f"ordered with the key {KEY}"
    for body, status in (
        ({}, 422),
        ({"engine": URL, "host": "x"}, 422),
        ({"engine": URL, "within": "soon"}, 422),
        ({"engine": "http://nowhere"}, 404),
    ):
        assert (await ask(scene, KEY, body)).status_code == status, json.dumps(body)
    collector.refusal = "it is the last engine of the pool p that serves m"
    assert (await ask(scene, KEY, {"engine": URL, "force": False})).status_code == 409


async def test_a_console_that_may_not_write_orders_nothing(scene: ConsoleScene) -> None:
    await scene.key(KEY, "console:write")
    await scene.start()
    answer = await ask(scene, KEY, {"engine": URL})
    assert (answer.status_code, "POINTSMAN_WRITES" in answer.text) == (403, True)
