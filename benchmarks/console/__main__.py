"""The cost of the console: idle, and while a browser follows many decisions and a large fleet.

`python -m benchmarks.console [--seconds 300] [--rate 1000] [--engines 2000]`: a NATS server, the console, and this
process in the place of a gateway. Chromium shows the decisions, then the fleet. First paint is the browser's own
measure (`PerformancePaintTiming`), of the login page and of a page with a session. CPU and memory are of the console's
process; those of the page are its JavaScript heap and its share of a core as the browser counts them.
"""

import argparse
import asyncio
import os
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from playwright.async_api import CDPSession, Page, async_playwright

from benchmarks.machine import describe
from benchmarks.overhead.cpu import Meter, resident_mib
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun, RequestScheduled
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.telling.process import Process
from pointsman_testing.builders import scheduled, unix_ms
from pointsman_testing.console_scene import TOKEN
from pointsman_testing.nats_server import new_nats_server
from pointsman_testing.processes import Processes, ServiceProcess

PAINT_BAR_S: Final = 1.0
CORE_BAR: Final = 0.30
RESIDENT_BAR_MIB: Final = 200.0
CANDIDATES: Final = 16
IDLE_S: Final = 10.0
TURN_S: Final = 0.01


def decision(number: int) -> RequestScheduled:
    """A decision among 16 candidates, of about 3 KB."""
    workers = tuple(f"engine-{(number + each) % 2000}" for each in range(CANDIDATES))
    columns = CandidateColumns(
        workers=workers,
        ages_ms=(12.0,) * CANDIDATES,
        running=(3,) * CANDIDATES,
        waiting=(1,) * CANDIDATES,
        kv_usage=(0.4,) * CANDIDATES,
        matched_tokens=(512,) * CANDIDATES,
        scores={"queue": (0.5,) * CANDIDATES, "prefix-cache": (0.25,) * CANDIDATES},
        totals=(1.75,) * CANDIDATES,
    )
    run = ProfileRun(
        profile="default", chosen=workers[:3], weights={"queue": 2.0, "prefix-cache": 3.0}, candidates=columns
    )
    return scheduled(
        request_id=f"request-{number}", edge="edge-1", sequence=number, at_ms=unix_ms(), pool="p", runs=(run,),
        primary="default", endpoints=workers[:3], level="full" if number % 50 else "degraded",
    )  # fmt: skip


def completed(number: int) -> ResponseCompleted:
    """The end of that request."""
    return ResponseCompleted(
        request_id=f"request-{number}", source="edge-1", sequence=number, at_ms=unix_ms(), pool="p", worker="engine-1",
        status=200, outcome="ok", ttft_ms=80.0, duration_ms=900.0,
    )  # fmt: skip


def snapshot(number: int, engines: int) -> PoolSnapshot:
    """A pool whose figures change with every snapshot."""
    workers = tuple(
        WorkerView(
            worker=f"engine-{each}", url=f"http://10.0.{each // 250}.{each % 250}:8000", running=(each + number) % 60,
            waiting=(each * number) % 7, kv_usage=((each + number) % 100) / 100, age_ms=40.0, models=("llama",),
        )
        for each in range(engines)
    )  # fmt: skip
    return PoolSnapshot(pool="p", source="m", sequence=number, at_ms=unix_ms(), workers=workers, models=("llama",))


async def gateway(bus: Bus, rate: int, engines: int) -> None:
    """Publish `rate` decisions and ends a second, and a snapshot each second."""
    began, sent, told = time.monotonic(), 0, 0
    while True:
        due = round((time.monotonic() - began) * rate)
        while sent < due:
            sent += 1
            bus.publish(decision(sent), "p")
            if sent > rate:
                bus.publish(completed(sent - rate), "p")
        if time.monotonic() - began > told:
            told += 1
            bus.publish(snapshot(told, engines), "p")
        await asyncio.sleep(TURN_S)


async def first_paint(page: Page, url: str) -> float:
    """Seconds from the navigation to the first contentful paint."""
    await page.goto(url)
    await page.wait_for_selector("#content > *")
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
    for _ in range(100):
        found = float(await page.evaluate(script))
        if found >= 0:
            return found / 1000
        await asyncio.sleep(0.02)
    raise RuntimeError(f"{url} never painted")


async def page_figures(session: CDPSession) -> dict[str, float]:
    """`Performance.getMetrics` by name."""
    found = cast("dict[str, list[dict[str, Any]]]", await session.send("Performance.getMetrics"))  # pyright: ignore[reportUnknownMemberType]
    return {each["name"]: float(each["value"]) for each in found["metrics"]}


async def follow(page: Page, console: ServiceProcess, url: str, seconds: float) -> bool:
    """Show a page for so long; print what it cost. Whether the bars are met."""
    session = await page.context.new_cdp_session(page)
    # In ticks of the page's thread: in those of the clock, the waits for a busy processor would count as work.
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # pyright: ignore[reportUnknownMemberType] - untyped in Playwright
    await page.goto(url)
    await page.wait_for_selector("tbody tr")
    await asyncio.sleep(5)
    meter, before, began = Meter({"console": console.pid}), await page_figures(session), time.monotonic()
    most = 0.0
    while time.monotonic() - began < seconds:
        await asyncio.sleep(min(5.0, seconds))
        most = max(most, resident_mib(console.pid))
    passed = time.monotonic() - began
    cores, after = meter.read()["console"] / passed, await page_figures(session)
    busy = (after["TaskDuration"] - before["TaskDuration"]) / passed
    heap = after["JSHeapUsedSize"] / 2**20
    state = (await page.locator("main p.soft").first.inner_text()).strip()
    shown = (await page.locator("section p.soft").all_inner_texts())[-1] if "decisions" in url else state
    name = url.rpartition("/")[2] or "fleet"
    own = f"{cores:8.3f} cores {most:6.0f} MiB"
    print(f"  {name:<10} {own}   page: {busy:6.3f} cores {heap:5.0f} MiB   {shown}")
    return cores <= CORE_BAR and most <= RESIDENT_BAR_MIB and busy <= CORE_BAR and heap <= RESIDENT_BAR_MIB


async def run(seconds: float, rate: int, engines: int) -> bool:
    """Measure everything; whether all bars are met."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("Chromium isn't installed: apt-get install chromium")
        return False
    server = new_nats_server()
    server.start()
    with TemporaryDirectory(prefix="pointsman-bench-") as folder:
        processes = Processes(Path(folder))
        try:
            env = {"POINTSMAN_NATS_URL": server.url, "POINTSMAN_PORT": "0", "POINTSMAN_ONE_TIME_TOKEN": TOKEN}
            console = processes.start("pointsman-console", env=env)
            await console.wait_ready()
            [url] = [str(line["url"]) for line in console.log_lines() if line.get("event") == "serving"]
            bus = Bus(Connection([server.url], name="gateway"), Process("gateway", "gateway-1"))
            bus.open()
            await bus.wait_connected()
            publishing = asyncio.create_task(gateway(bus, rate, engines))
            meter = Meter({"console": console.pid})
            await asyncio.sleep(IDLE_S)
            idle = meter.read()["console"] / IDLE_S
            print(f"  idle       {idle:8.3f} cores {resident_mib(console.pid):6.0f} MiB")
            async with async_playwright() as playwright:
                sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
                browser = await playwright.chromium.launch(executable_path=chromium, args=sandbox)
                page = await browser.new_page(viewport={"width": 1280, "height": 900})
                login_s = await first_paint(page, f"{url}/login")
                await page.goto("about:blank")
                await page.goto(f"{url}/login#token={TOKEN}")
                await page.wait_for_selector("#who button")
                fleet_s = await first_paint(page, f"{url}/")
                print(f"  first paint: login {login_s * 1000:.0f} ms, fleet {fleet_s * 1000:.0f} ms")
                met = max(login_s, fleet_s) < PAINT_BAR_S
                for path in ("/decisions", "/"):
                    met &= await follow(page, console, url + path, seconds)
                await browser.close()
            publishing.cancel()
            await asyncio.wait([publishing])
            await bus.close()
        finally:
            processes.end_all()
            server.close()
    return met


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long each page is followed")
    parser.add_argument("--rate", type=int, default=1000, help="decisions a second")
    parser.add_argument("--engines", type=int, default=2000)
    given = parser.parse_args()
    print(describe())
    print(f"{given.rate} decisions/s, {given.engines} engines, {given.seconds:g} s for each page")
    met = asyncio.run(run(given.seconds, given.rate, given.engines))
    print(
        "bars met" if met else "BARS NOT MET",
        f"(paint < {PAINT_BAR_S:g} s, {CORE_BAR:.0%} of a core, {RESIDENT_BAR_MIB:g} MiB)",
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
