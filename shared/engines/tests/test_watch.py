"""One engine as it is seen over HTTP: read, refused, hung, sick, restarted."""

import asyncio
import errno
import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pointsman_contracts.timing import TIMES
from pointsman_engines.client import EngineClient
from pointsman_engines.models import ServedModels
from pointsman_engines.pace import ReadingPace
from pointsman_engines.reading import CacheFacts
from pointsman_engines.status import EngineFacts, EngineStatus, reason_of, state_of
from pointsman_engines.watch import FACTS_INTERVAL_S, EngineWatch
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received, Script

PAGE = b"""process_start_time_seconds 1.75e9
vllm:num_requests_running 1
vllm:num_requests_waiting 2
"""


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
        await seen.until(lambda s: s.reading and s.reading.identity.progress == 5)
        asked = len(engine.asked)
        await eventually(lambda: len(engine.asked) > asked + 3)
        assert "/metrics" in engine.asked[asked:]
        assert not any("name[]" in path for path in engine.asked[asked + 1 :])
        assert seen.now.reachable


async def test_an_engine_that_sleeps_is_asleep_until_it_is_woken() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        awake = await seen.until(lambda s: s.facts)
        engine.asleep = True
        asleep = await seen.until(lambda s: s.asleep)
        assert state_of(asleep) == "asleep"
        assert "sleeps" in reason_of(asleep)
        engine.asleep = False
        again = await seen.until(lambda s: not s.asleep)
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


async def test_an_engine_that_hangs_is_not_ready_and_its_waking_is_the_same_life() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        engine.hang()
        hung = await seen.until(lambda s: s.unready)
        assert state_of(hung) == "not_ready"
        assert hung.unready.startswith("no answer from /")
        assert hung.load_unknown
        engine.release()
        back = await seen.until(lambda s: not s.unready and not s.load_unknown)
        assert back.boot_id == first.boot_id
        assert all(status.reachable for status in seen.told[seen.told.index(first) :]), "the port was never closed"


@pytest.mark.requirement("SIGNAL-1")
async def test_a_late_page_is_waited_for_and_read_and_the_engine_serves_meanwhile() -> None:
    released = asyncio.Event()
    async with FakeEngine(running=3) as engine, watching(engine.url) as seen:

        async def late(request: Received) -> None:
            await released.wait()
            await request.answer(engine.metrics().encode(), content_type="text/plain")

        await seen.until(lambda s: s.facts)
        asked = sum(path.startswith("/metrics") for path in engine.asked)
        engine.pages = {"/metrics": late, "/metrics/": late}
        unknown = await seen.until(lambda s: s.load_unknown and not s.unready)
        assert unknown.load_unknown == "no answer from /metrics for 0.2 s"
        assert state_of(unknown) == "serving"
        checks = engine.asked.count("/health")
        await eventually(lambda: engine.asked.count("/health") > checks)
        assert state_of(seen.now) == "serving"
        assert sum(path.startswith("/metrics") for path in engine.asked) <= asked + 2, "nothing is asked for twice"
        engine.running = 5
        released.set()
        known = await seen.until(lambda s: not s.load_unknown)
        assert known.reading is not None
        assert known.reading.running == 5
    assert seen.watch.tally.late >= 1
    assert seen.watch.tally.hung == 0


async def test_a_page_that_usually_takes_long_is_not_late() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:

        async def slow(request: Received) -> None:
            await asyncio.sleep(0.3)
            await request.answer(engine.metrics().encode(), content_type="text/plain")

        await seen.until(lambda s: s.facts)
        engine.pages = {"/metrics": slow, "/metrics/": slow}
        await seen.until(lambda s: s.load_unknown)
        await seen.until(lambda s: not s.load_unknown)
        late = seen.watch.tally.late
        answered = seen.watch.tally.answered
        await eventually(lambda: seen.watch.tally.answered > answered + 2)
        assert seen.watch.tally.late == late
        assert not seen.now.load_unknown


async def test_a_health_page_that_is_late_takes_no_engine_out_that_answers_otherwise() -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:

        async def never(request: Received) -> None:
            await request.gone.wait()

        first = await seen.until(lambda s: s.facts)
        engine.pages = {"/health": never}
        await eventually(lambda: "/health" in engine.asked)
        answered = seen.watch.tally.answered
        await eventually(lambda: seen.watch.tally.answered > answered + 20)
        assert {state_of(status) for status in seen.told[seen.told.index(first) :]} == {"serving"}


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


@pytest.mark.requirement("SIGNAL-2")
@pytest.mark.parametrize(("status", "unready"), [(503, True), (500, True), (400, True), (401, False), (429, False)])
async def test_a_health_page_says_whether_an_engine_is_ready(
    status: int, unready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_engines.watch.HEALTH_INTERVAL_S", 0.1)

    async def say(request: Received) -> None:
        await request.answer(b"", status=status)

    async with FakeEngine(pages={"/health": say}) as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.facts)
        checks = engine.asked.count("/health")
        await eventually(lambda: engine.asked.count("/health") > checks + 1)
        assert state_of(seen.now) == ("not_ready" if unready else "serving")
        assert seen.now.unready == (f"/health answers {status}" if unready else "")
        assert not seen.now.load_unknown
        engine.pages.clear()
        await seen.until(lambda s: not s.unready)


async def test_a_slow_health_page_leaves_open_whether_an_engine_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_engines.watch.HEALTH_SLOW_S", 0.1)

    async def never(request: Received) -> None:
        await request.gone.wait()

    async with FakeEngine() as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.facts)
        engine.pages = {"/health": never}
        slow = await seen.until(lambda s: s.findings)
        assert [(finding.kind, finding.what) for finding in slow.findings] == [
            ("health_unknown", "/health takes more than 0.1 s")
        ]
        assert state_of(slow) == "serving"


def page(text: str, status: int = 200, more: str = "", content_type: str = "text/plain") -> Script:
    async def answer(request: Received) -> None:
        await request.answer(text.encode(), status=status, content_type=content_type, more=more)

    return answer


async def nonsense(request: Received) -> None:
    await request.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    request.writer.close()


@pytest.mark.requirement("SIGNAL-1")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page("up 1\n"), "no sample of vllm:num_requests_running"),
        (page("vllm:num_requests_running 1\n"), "no sample of vllm:num_requests_waiting"),
        (page("vllm:num_requests_running one\n"), "malformed sample of vllm:num_requests_running"),
        (page("vllm:num_requests_running NaN\n"), "vllm:num_requests_running is nan"),
        (page("vllm:num_requests_running -2\n"), "vllm:num_requests_running is -2"),
        (page("<html>login</html>", content_type="text/html"), "no sample of vllm:num_requests_running"),
        (page("", 401), "/metrics answers 401"),
        (page("", 404), "/metrics answers 404"),
        (page("", 500), "/metrics answers 500"),
        (page("", 307, "location: http://10.0.0.1/metrics\r\n"), "/metrics answers 307 and leads to http://10.0.0.1"),
        (page("", 307, "location: /metrics\r\n"), "/metrics leads back to itself"),
        (page("x" * 100, more="content-encoding: gzip\r\n"), "/metrics: ClientPayloadError"),
        (nonsense, "/metrics: ClientResponseError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_metrics_that_say_nothing_leave_the_load_unknown_and_the_engine_serving(
    answer: Script, reason: str
) -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        engine.pages = {"/metrics": answer, "/metrics/": answer}
        unknown = await seen.until(lambda s: s.load_unknown == reason)
        assert state_of(unknown) == "serving"
        assert (unknown.boot_id, unknown.facts, unknown.known_load) == (first.boot_id, first.facts, None)
        engine.pages = {}
        await seen.until(lambda s: s.known_load)


async def http_1_0(request: Received) -> None:
    await request.write(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE)
    request.writer.close()


async def gzipped(request: Received) -> None:
    await request.answer(gzip.compress(PAGE), content_type="text/plain", more="content-encoding: gzip\r\n")


async def moved(request: Received) -> None:
    if request.path.startswith("/moved"):
        await request.answer(PAGE, content_type="text/plain")
    else:
        await request.answer(b"", status=307, more="location: /moved\r\n")


@pytest.mark.parametrize(
    "answer", [http_1_0, gzipped, moved, page(PAGE.decode(), content_type="application/octet-stream")]
)
async def test_metrics_in_an_unusual_form_are_read(answer: Script) -> None:
    pages: dict[str, Script] = dict.fromkeys(("/metrics", "/metrics/", "/moved"), answer)
    async with FakeEngine(pages=pages) as engine, watching(engine.url) as seen:
        known = await seen.until(lambda s: s.known_load)
        assert known.reading is not None
        assert (known.reading.running, known.reading.waiting) == (1, 2)


async def test_an_engine_whose_metrics_were_never_readable_is_served_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman_engines.watch.UNREAD_AFTER_S", 0.1)
    async with FakeEngine(exposition="process_start_time_seconds 1.75e9\n") as engine, watching(engine.url) as seen:
        blind = await seen.until(lambda s: s.facts)
        assert (state_of(blind), blind.facts.engine, blind.known_load) == ("serving", "opaque", None)  # type: ignore[union-attr]
        assert blind.load_unknown.startswith("the metrics are not those of")
        engine.exposition = None
        known = await seen.until(lambda s: s.facts and s.facts.engine == "vllm")
        assert known.boot_id == blind.boot_id
        assert known.known_load is not None


async def test_a_server_that_is_no_engine_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_engines.watch.UNREAD_AFTER_S", 0.05)
    html = page("<html></html>", content_type="text/html")
    pages: dict[str, Script] = dict.fromkeys(("/metrics", "/metrics/", "/v1/models", "/health"), html)
    async with FakeEngine(pages=pages) as engine, watching(engine.url) as seen:
        await eventually(lambda: seen.watch.facts_problem)
        assert seen.now.boot_id == ""


async def test_a_renamed_gauge_after_a_restart_leaves_a_new_life_that_serves() -> None:
    async with FakeEngine(started_at=None) as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)
        await engine.stop()
        await seen.until(lambda s: not s.reachable)
        engine.exposition = engine.metrics().replace("num_requests_waiting", "num_waiting_requests")
        await engine.start()
        back = await seen.until(lambda s: s.reachable and s.facts)
        assert back.boot_id != first.boot_id
        assert (state_of(back), back.load_unknown) == ("serving", "no sample of vllm:num_requests_waiting")
        assert back.facts is not None
        assert (back.facts.engine, back.facts.served.models) == ("vllm", ("m",))


@pytest.mark.requirement("SIGNAL-2")
async def test_connections_that_are_closed_without_an_answer_make_an_engine_unreachable() -> None:
    async def close(request: Received) -> None:
        request.cut()

    async with FakeEngine() as engine, watching(engine.url) as seen:
        await seen.until(lambda s: s.facts)
        engine.pages = dict.fromkeys(("/metrics", "/metrics/"), close)
        await seen.until(lambda s: not s.reachable)
        assert "the connection was closed" in seen.now.reason
        engine.pages = {}
        await seen.until(lambda s: s.reachable)


async def test_a_process_without_descriptors_blames_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:
        first = await seen.until(lambda s: s.facts)

        def exhausted(*args: object, **more: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(aiohttp.ClientSession, "request", exhausted)
        unknown = await seen.until(lambda s: s.load_unknown)
        assert "this process can't open a connection: Too many open files" in unknown.load_unknown
        assert (state_of(unknown), unknown.boot_id) == ("serving", first.boot_id)


@pytest.mark.requirement("SIGNAL-5")
async def test_a_url_that_leads_to_two_processes_is_told_once_and_keeps_its_life(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeEngine() as engine, watching(engine.url) as seen:

        async def either(request: Received) -> None:
            engine.started_at = 1.75e9 + 60 * (len(engine.received) % 2)
            await request.answer(engine.metrics().encode(), content_type="text/plain")

        await seen.until(lambda s: s.facts)
        engine.pages = dict.fromkeys(("/metrics", "/metrics/"), either)
        shared = await seen.until(lambda s: s.findings and s.facts)
        assert [finding.kind for finding in shared.findings] == ["shared_url"]
        assert (state_of(shared), "several processes" in shared.load_unknown) == ("serving", True)
        answered = seen.watch.tally.answered
        await eventually(lambda: seen.watch.tally.answered > answered + 50)
        assert seen.now.boot_id == shared.boot_id
        messages = [record.message for record in caplog.records]
        assert messages.count("engine_restarted") <= 2
        assert messages.count("engine_url_shared") == 1


async def test_a_late_page_of_a_shared_url_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TIMES, "load_worthless_s", 0.3)
    async with FakeEngine() as engine, watching(engine.url) as seen:

        async def either(request: Received) -> None:
            engine.started_at = 1.75e9 + 60 * (len(engine.received) % 2)
            await request.answer(engine.metrics().encode(), content_type="text/plain")

        async def slow(request: Received) -> None:
            await asyncio.sleep(0.5)
            await request.answer(engine.metrics().encode(), content_type="text/plain")

        await seen.until(lambda s: s.facts)
        engine.pages = dict.fromkeys(("/metrics", "/metrics/"), either)
        await seen.until(lambda s: s.findings)
        engine.pages = dict.fromkeys(("/metrics", "/metrics/"), slow)
        told = await seen.until(lambda s: s.load_unknown.startswith("/metrics takes"))
        assert [finding.kind for finding in told.findings] == ["shared_url"]


async def test_a_figure_that_cannot_be_true_is_a_finding() -> None:
    async with FakeEngine(kv_usage=87.5) as engine, watching(engine.url) as seen:
        doubted = await seen.until(lambda s: s.findings)
        assert doubted.findings[0].what == "vllm:kv_cache_usage_perc is 87.5, not a part in [0,1]"
        assert doubted.known_load is not None


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


@pytest.mark.parametrize("listed", [page("<html>Sign in</html>", content_type="text/html"), page("", status=401)])
async def test_an_engine_whose_list_of_models_stays_unreadable_has_those_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, listed: Script
) -> None:
    monkeypatch.setattr("pointsman_engines.endpoint_watch.UNLISTED_AFTER_S", 0.1)
    monkeypatch.setattr("pointsman_engines.watch.FACTS_INTERVAL_S", 0.1)
    monkeypatch.setattr("pointsman_engines.watch.FACTS_RETRY_S", 0.1)
    pages: dict[str, Script] = {"/v1/models": listed}
    async with FakeEngine(pages=pages) as engine, watching(engine.url) as seen:
        served = await seen.until(lambda s: s.facts and s.findings)
        assert served.facts is not None
        assert (state_of(served), served.facts.served) == ("serving", ServedModels())
        assert [finding.kind for finding in served.findings] == ["models_unknown"]
        del pages["/v1/models"]
        known = await seen.until(lambda s: s.facts and s.facts.served.models)
        assert known.findings == ()
        pages["/v1/models"] = listed
        asked = engine.asked.count("/v1/models")
        await eventually(lambda: engine.asked.count("/v1/models") > asked + 1)
        assert seen.now.facts is not None
        assert seen.now.facts.served.models, "a list that was read goes on to hold"


async def test_an_engine_without_a_list_of_models_has_none() -> None:
    async with FakeEngine(models_status=404) as engine, watching(engine.url) as seen:
        status = await seen.until(lambda s: s.facts)
        assert status.facts is not None
        assert status.facts.served == ServedModels()
