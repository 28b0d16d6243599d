"""docs/metrics.md says what running processes expose, no more and no less."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.telling.process import Process
from pointsman_testing.answered import answered
from pointsman_testing.stack import Stack, StackFactory
from pointsman_worker_agent.kv_metrics import KvMetrics, KvSource
from pointsman_worker_agent.kv_speaker import KvSpeaker
from pointsman_worker_agent.pd_wiring import LegMetrics

if TYPE_CHECKING:
    from pointsman_worker_agent.adapters.kv_subscriber import KvSubscriber
    from pointsman_worker_agent.adapters.pd_sidecar import PdSidecar

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

REFERENCE = Path(__file__).resolve().parents[2] / "docs/metrics.md"
EVERY_SERVICE = "Every service"
KV_EVENTS = "With KV events"
SIDECAR = "With a sidecar"
OF_AGENTS = "Of agents alone"
OF_THE_CLIENT = ("process_", "python_")

Row = tuple[str, frozenset[str], str]
"""Type, labels, help."""


def documented() -> dict[str, dict[str, Row]]:
    """Rows of each section that has a table of metrics, by name."""
    sections: dict[str, dict[str, Row]] = {}
    section = ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith(("## ", "### ")):
            section = line.lstrip("# ")
        elif match := re.fullmatch(r"\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \| (.*) \|", line):
            labels = frozenset(re.findall(r"`(\w+)`", match[3]))
            sections.setdefault(section, {})[match[1]] = (match[2], labels, match[4])
    return sections


async def exposed(url: str | None) -> dict[str, Metric]:
    """A process's own metrics, by the name that their series have."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
        if not family.name.startswith(OF_THE_CLIENT)
    }


def collected(collector: Collector) -> dict[str, Row]:
    """A collector's metrics, by the name that their series have."""
    found: dict[str, Row] = {}
    for family in collector.collect():
        labels = frozenset(label for sample in family.samples for label in sample.labels)
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, labels, family.documentation)
    return found


def row(name: str, family: Metric) -> str:
    labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    written = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {family.type} | {written} | {family.documentation} |"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    """With the services that stacks are without by default."""
    async with stacks.start(replicas={"recorder": 1, "guard": 1, "semantic-cache": 1}) as started:
        yield started


async def test_every_metric_is_documented_where_it_comes_from(stack: Stack) -> None:
    async with aiohttp.ClientSession() as http:
        for body in ({"stream": True}, {"model": "auto"}, {"model": "nobody-has-this"}):
            asked = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2} | body

            async def once(asked: object = asked) -> tuple[int]:
                async with http.post(f"{stack.door}/v1/chat/completions", json=asked) as answer:
                    await answer.read()
                    return (answer.status,)

            await answered(once)
    sections = documented()
    everywhere = sections.pop(EVERY_SERVICE)
    del sections[KV_EVENTS], sections[SIDECAR]
    of_agents = sections.pop(OF_AGENTS)
    # The console has no metrics of its own.
    services = {name: replicas for name, replicas in stack.services.items() if name != "console"}
    assert set(sections) == {*services, "worker-agent"}
    processes = {name: replicas[0] for name, replicas in services.items() if replicas}
    processes["worker-agent"] = stack.engines[0].agent
    for service, process in processes.items():
        rows = sections[service]
        found = await exposed(process.http_url)
        known = everywhere | rows
        if service == "worker-agent":
            known |= of_agents
        if service == "metrics-collector":
            known |= sections["worker-agent"]  # of engines without an agent
        if service in ("worker-agent", "recorder"):
            # They need no configuration.
            known = {name: kept for name, kept in known.items() if not name.startswith("pointsman_config_")}
        missing = [row(name, family) for name, family in found.items() if name not in known]
        assert not missing, f"docs/metrics.md, section {service}, lacks\n" + "\n".join(missing)
        assert not known.keys() - found.keys(), f"{service} doesn't expose what docs/metrics.md says"
        for name, family in found.items():
            kind, labels, text = known[name]
            assert (kind, text) == (family.type, family.documentation), f"should be {row(name, family)}"
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == labels, f"labels of {name} are {sorted(sample.labels)}"


async def test_an_agents_metrics_of_a_kv_cache_are_documented() -> None:
    bus = Bus(Connection(["nats://127.0.0.1:1"], name="agent"), Process("worker-agent", "agent-1"))
    speaker = KvSpeaker(bus, pool="p", worker="w", block_tokens=16, boot_id=str, model=str, capacity=lambda: None)
    subscriber = SimpleNamespace(connected=True, heard=1, sequence=SimpleNamespace(missed=0))
    source = KvSource(speaker, {0: cast("KvSubscriber", subscriber)})
    assert documented()[KV_EVENTS] == collected(KvMetrics(lambda: [source]))


async def test_a_sidecars_metrics_are_documented() -> None:
    sidecar = SimpleNamespace(outcomes={"used": 1})
    assert documented()[SIDECAR] == collected(LegMetrics(cast("PdSidecar", sidecar)))
