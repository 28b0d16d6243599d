"""One engine as it is seen over HTTP: read, refused, hung, sick, restarted."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pointsman_engines.client import EngineClient
from pointsman_engines.models import ServedModels
from pointsman_engines.pace import ReadingPace
from pointsman_engines.reading import CacheFacts
from pointsman_engines.status import EngineFacts, EngineStatus
from pointsman_engines.watch import FACTS_INTERVAL_S, EngineWatch
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine


class Seen:
    """The watch and everything that it told."""

    def __init__(self, watch: EngineWatch, told: list[EngineStatus]) -> None:
        self.watch = watch
        self.told = told

    @property
    def now(self) -> EngineStatus:
        return self.watch.status

    async def until(self, condition: Callable[[EngineStatus], object]) -> EngineStatus:
        await eventually(lambda: bool(condition(self.now)))
        return self.now


@asynccontextmanager
async def watching(url: str, *, api_key: str | None = None, engine: str | None = None) -> AsyncGenerator[Seen]:
    async with aiohttp.ClientSession() as session:
        told: list[EngineStatus] = []
        client = EngineClient(url, api_key=api_key, session=session)
        pace = ReadingPace(busy_s=0.005, idle_s=0.02)
        watch = EngineWatch(client, told.append, engine=engine, pace=pace, answer_timeout_s=0.2)
        task = asyncio.create_task(watch.run())
        try:
            yield Seen(watch, told)
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_an_engine_is_read_and_its_facts_are_learnt() -> None:
    async with FakeEngine(running=3, waiting=2, kv_usage=0.5) as engine, watching(engine.url) as seen:
        status = await seen.until(lambda s: s.facts)
        assert status.reachable
        assert status.reading is not None
        assert (status.reading.running, status.reading.waiting, status.reading.kv_usage) == (3, 2, 0.5)
        assert status.facts == EngineFacts("vllm", "0.11.2", ServedModels(("m",), (), 4096), CacheFacts(16, 1000, 1))
        engine.running = 4
        await seen.until(lambda s: s.reading and s.reading.running == 4)


@pytest.mark.parametrize(
    ("paths", "selective"),
    [(("/metrics", "/metrics/"), "/metrics/?"), (("/metrics",), "/metrics?")],
    ids=["as-vllm", "as-prometheus-client"],
)
async def test_only_the_families_that_are_read_are_asked_for(paths: tuple[str, ...], selective: str) -> None:
    at = selective.removesuffix("?")
    async with FakeEngine(paths=paths, filters_at=at) as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.facts)
        await eventually(lambda: any(path.startswith(selective) for path in engine.asked))
        asked = len(engine.asked)
        await eventually(lambda: len(engine.asked) > asked + 3)
        readings = [path for path in engine.asked[asked:] if path.startswith("/metrics")]
        assert all(path.startswith(f"{selective}name[]=vllm:num_requests_running&") for path in readings)


async def test_facts_that_change_only_with_a_restart_are_asked_for_once_in_a_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman_engines.watch.FACTS_INTERVAL_S", 0.02)
    async with FakeEngine() as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        engine.models = {"data": [{"id": "m", "max_model_len": 4096}, {"id": "sql", "parent": "m"}]}
        await seen.until(lambda s: s.facts and s.facts.served.loras == ("sql",))
        assert (engine.asked.count("/metrics"), engine.asked.count("/version")) == (2, 1)
        engine.started_at = 1.76e9
        await seen.until(lambda s: s.facts and s.boot_id != first.boot_id)
        assert (engine.asked.count("/metrics"), engine.asked.count("/version")) == (3, 2)


async def test_a_cache_that_the_engine_does_not_know_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_engines.watch.FACTS_INTERVAL_S", 0.02)
    async with FakeEngine() as engine, watching(engine.url) as seen:
        known = engine.metrics()
        engine.exposition = known.replace('num_gpu_blocks="1000"', 'num_gpu_blocks="None"')
        await seen.until(lambda s: s.facts and s.facts.cache.kv_blocks is None)
        engine.exposition = known
        await seen.until(lambda s: s.facts and s.facts.cache.kv_blocks == 1000)


@pytest.mark.parametrize("withheld", ["", "vllm:prompt_tokens_total"])
async def test_a_server_that_leaves_out_what_was_asked_for_is_asked_for_everything(withheld: str) -> None:
    async with FakeEngine(running=1, prompt_tokens=5, withheld=(withheld,)) as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.facts)
        await seen.until(lambda s: s.reading and s.reading.progress == 5)
        asked = len(engine.asked)
        await eventually(lambda: len(engine.asked) > asked + 3)
        assert "/metrics" in engine.asked[asked:]
        assert not any("name[]" in path for path in engine.asked[asked + 1 :])
        assert seen.now.reachable


async def test_an_engine_that_sleeps_is_unreachable_until_it_is_woken() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        awake = await seen.until(lambda s: s.facts)
        engine.asleep = True
        asleep = await seen.until(lambda s: not s.reachable)
        assert "sleeps" in asleep.reason
        engine.asleep = False
        again = await seen.until(lambda s: s.reachable)
        assert again.boot_id == awake.boot_id


async def test_an_adapter_that_comes_or_goes_is_known_within_a_second() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.facts)
        asked = engine.asked.count("/v1/models")
        await eventually(lambda: engine.asked.count("/v1/models") > asked + 1)
        assert FACTS_INTERVAL_S <= 0.75


async def test_an_engine_that_is_gone_is_unreachable_and_its_return_is_a_new_life() -> None:
    engine = FakeEngine(started_at=None)
    await engine.start()
    async with watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        await engine.stop()
        gone = await seen.until(lambda s: not s.reachable)
        assert gone.reason == "connection refused"
        assert gone.reading == first.reading
        await engine.start()
        back = await seen.until(lambda s: s.reachable and s.facts)
        assert back.boot_id != first.boot_id
    await engine.stop()
    assert seen.watch.tally.refused > 0


async def test_an_engine_that_hangs_is_unreachable_and_its_waking_is_the_same_life() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        engine.hang()
        hung = await seen.until(lambda s: not s.reachable)
        assert hung.reason == "no answer from /metrics within 0.2 s"
        engine.release()
        back = await seen.until(lambda s: s.reachable)
        assert back.boot_id == first.boot_id


async def test_a_restart_between_two_readings_is_recognised_by_the_start_time() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        engine.started_at = 1.75e9 + 60
        engine.models = {"data": [{"id": "other"}]}
        second = await seen.until(lambda s: s.boot_id != first.boot_id and s.facts)
        assert second.facts is not None
        assert second.facts.served.models == ("other",)
        lives = [status for status in seen.told if status.boot_id == second.boot_id]
        assert lives[0].facts is None, "facts of one life are never told of another"


async def test_an_engine_that_says_it_is_sick_is_unreachable_while_its_metrics_still_answer() -> None:
    async with FakeEngine(healthy=False) as engine, watching(engine.url) as seen:
        sick = await seen.until(lambda s: s.boot_id and not s.reachable)
        assert sick.reason == "/health answers 503"
        engine.healthy = True
        await seen.until(lambda s: s.reachable)


@pytest.mark.parametrize(
    ("exposition", "reason"),
    [
        ("up 1\n", "the metrics are not those of vllm, sglang, trtllm, triton"),
        ("vllm:num_requests_running 1\n", "no sample of vllm:num_requests_waiting"),
        ("vllm:num_requests_running one\n", "malformed sample of vllm:num_requests_running"),
        ('{"running": 1}', "no Prometheus metrics at /metrics or /prometheus/metrics"),
    ],
)
async def test_metrics_that_say_nothing_are_a_reason_in_words(exposition: str, reason: str) -> None:
    async with FakeEngine(exposition=exposition) as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.reason == reason)
        engine.exposition = None
        await seen.until(lambda s: s.reachable)


async def test_a_named_kind_is_not_guessed() -> None:
    async with FakeEngine() as engine, watching(engine.url, engine="sglang") as seen:
        await seen.until(lambda s: s.reason == "the metrics are not those of sglang")


async def test_models_behind_a_key_are_a_problem_that_is_named_and_passes() -> None:
    async with FakeEngine(models_status=401) as engine, watching(engine.url, api_key="k") as seen:
        await eventually(lambda: seen.watch.facts_problem == "/v1/models answers 401")
        assert seen.now.facts is None
        engine.models_status = 200
        await seen.until(lambda s: s.facts)
        assert seen.watch.facts_problem == ""


async def test_an_engine_without_a_list_of_models_has_none() -> None:
    async with FakeEngine(models_status=404) as engine, watching(engine.url) as seen:
        status = await seen.until(lambda s: s.facts)
        assert status.facts is not None
        assert status.facts.served == ServedModels()
