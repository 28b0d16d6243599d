"""An endpoint that tells nothing of its load, behind a plain HTTP server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pointsman_engines.client import EngineClient
from pointsman_engines.opaque_watch import OpaqueWatch
from pointsman_engines.report import ReportedWorker, load_of, registration_of
from pointsman_engines.status import EngineStatus
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine

WORKER = ReportedWorker("p", "w", "http://w", models=("configured",))


@asynccontextmanager
async def watching(engine: FakeEngine, health: str | None = None) -> AsyncGenerator[OpaqueWatch]:
    async with aiohttp.ClientSession() as session:
        seen: list[EngineStatus] = []
        client = EngineClient(engine.url, session=session)
        watch = OpaqueWatch(client, seen.append, health=health, interval_s=0.02, answer_timeout_s=0.3)
        task = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            task.cancel()
            await asyncio.wait([task])


def registered_models(watch: OpaqueWatch) -> tuple[str, ...] | None:
    made = registration_of(WORKER, watch.status, agent="a", version="1", registered_ms=0)
    return None if made is None else made.models


async def test_its_health_is_all_that_is_asked_and_its_load_is_nothing() -> None:
    async with FakeEngine(running=7, models={"data": [{"id": "m"}]}) as engine, watching(engine) as watch:
        await eventually(lambda: registered_models(watch) == ("m",))
        made = registration_of(WORKER, watch.status, agent="a", version="1", registered_ms=0)
        assert made is not None
        assert made.engine == "opaque"
        load = load_of(WORKER, watch.status, 1, now_ms=0)
        assert load is not None
        assert (load.state, load.running, load.waiting, load.kv_usage) == ("serving", 0, 0, 0.0)
        assert not [path for path in engine.asked if path.startswith("/metrics")]
        engine.healthy = False
        await eventually(lambda: watch.status.unready == "/health answers 503")
        engine.healthy = True
        await eventually(lambda: not watch.status.unready)
        engine.hang()
        await eventually(lambda: "no answer from /health" in watch.status.unready)
        engine.release()
        await eventually(lambda: not watch.status.unready)
        assert watch.status.reachable, "it was all the time"


async def test_one_without_a_health_path_is_well_while_it_lists_its_models() -> None:
    async with FakeEngine(has_health=False) as engine, watching(engine) as watch:
        await eventually(lambda: registered_models(watch) == ("m",))
        assert watch.status.reachable
        engine.models_status = 500
        await eventually(lambda: watch.status.unready == "/v1/models answers 500")


async def test_an_engine_with_neither_path_is_recognised_by_its_health_path() -> None:
    async with FakeEngine(has_health=False, models_status=404) as engine, watching(engine) as watch:
        await eventually(lambda: watch.status.reason == "/health answers 404")


async def test_a_health_path_that_the_operator_chose_has_no_other_in_its_place() -> None:
    async with FakeEngine(has_health=False) as engine, watching(engine, "/health") as watch:
        await eventually(lambda: watch.status.reason == "/health answers 404")
        assert not watch.status.reachable


@pytest.mark.parametrize("status", [401, 403, 404, 405])
async def test_without_a_list_of_models_for_everybody_the_configuration_names_them(status: int) -> None:
    async with FakeEngine(models_status=status) as engine, watching(engine) as watch:
        await eventually(lambda: registered_models(watch) == ("configured",))


@pytest.mark.parametrize("status", [401, 500, 503])
async def test_models_that_it_named_stay_while_its_list_is_not_to_be_had(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_engines.opaque_watch.FACTS_INTERVAL_S", 0.02)
    async with FakeEngine() as engine, watching(engine) as watch:
        await eventually(lambda: registered_models(watch) == ("m",))
        engine.models_status = status
        await eventually(lambda: watch.facts_problem == f"/v1/models answers {status}")
        assert registered_models(watch) == ("m",)
        engine.models_status = 200
        await eventually(lambda: not watch.facts_problem)


async def test_it_is_registered_once_its_list_of_models_answers() -> None:
    async with FakeEngine(models_status=503) as engine, watching(engine) as watch:
        await eventually(lambda: watch.facts_problem == "/v1/models answers 503")
        assert registered_models(watch) is None
        engine.models_status = 200
        await eventually(lambda: registered_models(watch) == ("m",))


async def test_a_path_that_is_not_there_is_no_health() -> None:
    async with FakeEngine() as engine, watching(engine, health="/live") as watch:
        await eventually(lambda: watch.status.reason == "/live answers 404")
        assert registered_models(watch) is None
