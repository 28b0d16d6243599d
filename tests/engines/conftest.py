"""One suite for engines: on the simulated one among all tests, on real ones by `make test-engines`, on yours by
`--engine URL`."""

import asyncio
import json
from collections.abc import AsyncIterator, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_engines.client import EngineClient
from pointsman_engines.models import served_models
from pointsman_engines.probes.features import FEATURES, FeatureResult, Outcome, probed
from pointsman_engines.probes.probed_engine import ProbedEngine
from pointsman_testing import Processes
from pointsman_testing.engine_stack import EngineStack, gateway_before
from pointsman_testing.observer import Observer, observing
from pointsman_testing.real_engine import BLOCK, POOL, RealEngine
from pointsman_testing.stack import EngineProcess, KvTelling
from pointsman_testing.tiny_model import write_adapter, write_model
from pointsman_testing.vllm_installation import NotInstallable, vllm

MEASURED: Final = pytest.StashKey[dict[str, JsonValue]]()
ENDED: Final = pytest.StashKey[dict[str, dict[str, int]]]()
FOUND: Final = pytest.StashKey[dict[str, FeatureResult]]()
SERVERS: Final = pytest.StashKey[list[RealEngine]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("engines")
    group.addoption("--engine", action="append", default=[], metavar="URL", help="a running engine; repeatable")
    group.addoption("--tokenizer", metavar="FOLDER", help="that of the model which --engine serves")
    group.addoption("--vllm", metavar="VERSION", help="install this vLLM for CPUs and start two servers")
    group.addoption(
        "--engine-record", action="store_true", help="write the shapes of its answers, which hold the simulated one"
    )
    group.addoption("--engine-name", metavar="NAME", help="what --engine is, for the results")
    group.addoption("--engine-results", metavar="FILE", help="write what was found here, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fleet: through a whole gateway before real engines")
    config.addinivalue_line("markers", "ours: with engines that the suite itself starts, of a model that it makes")
    config.addinivalue_line("markers", "alone: starts engines of its own, and runs after the others have ended")
    config.stash[SERVERS] = []
    config.stash[MEASURED] = {}
    config.stash[FOUND] = {}
    config.stash[ENDED] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only what can run is chosen: a simulated engine is no fleet."""
    started = config.getoption("--vllm", default=None) is not None
    real = started or bool(_urls(config))
    left_out = () if started else ("ours",) if real else ("ours", "fleet")
    dropped = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    if dropped:
        items[:] = [item for item in items if item not in dropped]
        config.hook.pytest_deselected(items=dropped)
    if started:
        items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Counts how the tests of each file end."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        ended = item.config.stash[ENDED].setdefault(item.path.stem.removeprefix("test_"), {})
        ended[report.outcome] = ended.get(report.outcome, 0) + 1
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was measured: `--engine-results` writes it only where the engine's features were looked for."""
    for name, figures in config.stash[MEASURED].items():
        terminalreporter.write_line(f"{name}: {json.dumps(figures)}")


def _urls(config: pytest.Config) -> list[str]:
    """Base URLs of the engines that are given."""
    urls: list[str] = config.getoption("--engine", default=None) or []
    return [url.rstrip("/").removesuffix("/v1") for url in urls]


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> Path:
    """The environment that vLLM is installed in."""
    try:
        return vllm(str(request.config.getoption("--vllm")))
    except NotInstallable as error:
        pytest.exit(f"SKIPPED: this vLLM can't be installed here: {error}", returncode=0)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model; adapters are beside it."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder / "tiny")
    write_adapter(folder / "lora-a", folder / "tiny", seed=2)
    write_adapter(folder / "lora-b", folder / "tiny", seed=3)
    return folder / "tiny"


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Ended with the session."""
    started = Processes(tmp_path_factory.mktemp("engines"))
    yield started
    started.end_all()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(request: pytest.FixtureRequest, model: Path, processes: Processes) -> list[RealEngine]:
    """Those of `--engine`; or two of vLLM, with LoRA adapters and KV events; none without such an option."""
    urls = _urls(request.config)
    if urls:
        engines = [
            RealEngine(f"engine-{number}", processes, model.parent, url=url) for number, url in enumerate(urls, 1)
        ]
    elif request.config.getoption("--vllm", default=None) is None:
        return []
    else:
        environment: Path = request.getfixturevalue("environment")
        # A queue that a test can fill; older releases have no bound.
        recent = request.config.getoption("--vllm") == "0.32.0"
        options = ("--max-num-seqs", "16", "--max-num-queued-reqs", "16") if recent else ()
        engines = [
            RealEngine(name, processes, model.parent, environment=environment, model=model, options=options)
            for name in ("engine-1", "engine-2")
        ]
    await asyncio.gather(*(engine.start() for engine in engines))
    request.config.stash[SERVERS] = engines
    return engines


@pytest.fixture(scope="module")
def room(request: pytest.FixtureRequest) -> None:
    """Room in memory, of which each engine takes 3.2 GB: no test after this one needs the servers."""
    for each in request.config.stash[SERVERS]:
        if not each.external:
            each.kill()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(servers: list[RealEngine], processes: Processes, model: Path) -> AsyncIterator[ProbedEngine]:
    """The engine that is asked: `--engine`, one of the servers started, or the simulated one."""
    if servers:
        url = servers[0].url
    else:
        simulated = EngineProcess("engine-1", processes, model.parent, 20.0, KvTelling(model, 4096, BLOCK, BLOCK), POOL)
        await simulated.start()
        url = simulated.url
    async with aiohttp.ClientSession() as http:
        served = served_models(await EngineClient(url, session=http).models(timeout=30))
        yield await probed(url, served.models[0], http)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(
    request: pytest.FixtureRequest,
    servers: list[RealEngine],
    engine: ProbedEngine,
    processes: Processes,
    model: Path,
) -> AsyncIterator[EngineStack]:
    """A whole gateway before the engines."""
    tokenizer: str | None = request.config.getoption("--tokenizer")
    if tokenizer is None and not _urls(request.config):
        tokenizer = str(model)
    folder = None if tokenizer is None else Path(tokenizer)
    async with gateway_before(servers, engine.model, folder, processes, model.parent) as stack:
        yield stack


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def seen(fleet: EngineStack) -> AsyncIterator[Observer]:
    """Hears the bus."""
    async with observing(fleet.nats.url) as observer:
        yield observer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield session


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> dict[str, JsonValue]:
    """The tests' measurements, for the results."""
    return request.config.stash[MEASURED]


@pytest.fixture(scope="session")
def found(request: pytest.FixtureRequest) -> dict[str, FeatureResult]:
    """The engine's features, for the results."""
    return request.config.stash[FOUND]


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def results(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Writes what was found."""
    yield
    file = request.config.getoption("--engine-results", default=None)
    found = request.config.stash[FOUND]
    if file is None or not found:
        return
    version = found["version"]
    document = {
        "engine": request.config.getoption("--engine-name") or "vLLM",
        "version": version.note if version.outcome is Outcome.SUPPORTED else "",
        "date": datetime.now(UTC).date().isoformat(),
        "features": {
            feature.key: {"outcome": str(found[feature.key].outcome), "note": found[feature.key].note}
            for feature in FEATURES
            if feature.key in found
        },
        "tests": request.config.stash[ENDED],
        "measured": request.config.stash[MEASURED],
    }
    await asyncio.to_thread(Path(file).write_text, json.dumps(document, indent=2) + "\n", encoding="utf-8")
