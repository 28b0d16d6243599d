"""`pointsman doctor`: check the server, the streams and every service on the bus, and report problems."""

import asyncio
import time
from typing import Final
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import Error as JetStreamError
from nats.js.errors import KeyNotFoundError, NotFoundError
from rich.console import Console
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.command_line import print_wrapped
from pointsman_cli.doctor import jetstream_facts
from pointsman_cli.doctor.diagnosis import findings
from pointsman_cli.doctor.facts import Facts, Heard, NatsFacts
from pointsman_cli.doctor.finding import Level
from pointsman_cli.explain import recordings
from pointsman_cli.explain.events import ALL_EVENTS
from pointsman_cli.words import counted
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.timing import TIMES
from pointsman_contracts.usage import UsageQuery, UsageSums
from pointsman_core.config import Config, ConfigError
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY

_MARKS: Final = {Level.OK: ("✓", "green"), Level.WARN: ("!", "yellow"), Level.FAIL: ("✗", "red")}


async def doctor(url: str | None, console: Console) -> bool:
    """Print the diagnosis; False when something fails."""
    login = bus.settings(url)
    refused: list[str] = []
    async with bus.connected(login, "pointsman doctor", on_error=_note_refusals(refused)) as client:
        facts = await _look(client, bus.shown(login), refused)
    found = findings(facts)
    for finding in found:
        mark, style = _MARKS[finding.level]
        print_wrapped(console, Text.assemble((f"{mark} ", style), finding.what), indent=1)
        if finding.advice:
            print_wrapped(console, Text(finding.advice, "dim"), indent=3)
    failed = sum(finding.level is Level.FAIL for finding in found)
    warned = sum(finding.level is Level.WARN for finding in found)
    console.print()
    console.print(Text(_verdict(failed, warned), "bold red" if failed else "bold yellow" if warned else "bold green"))
    return not failed


def _verdict(failed: int, warned: int) -> str:
    parts = [counted(count, word) for count, word in ((failed, "failure"), (warned, "warning")) if count]
    return ", ".join(parts) if parts else "Everything is as it should be."


async def _look(client: Client, url: str, refused: list[str]) -> Facts:
    server = await _server(client, url)
    js = client.jetstream(timeout=3.0)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    jetstream = await jetstream_facts.usable(js)
    before = None if jetstream is not None else await jetstream_facts.last_event(js)
    services, pools, events = await _listen(client)
    if jetstream is not None:
        return Facts(server, refused, jetstream=jetstream, services=services, pools=pools)
    config, revision, problem = await _config(js)
    sums = await recordings.ask(client, UsageQuery(by=()), UsageSums)
    return Facts(
        server,
        refused,
        disk=await jetstream_facts.disk_problem(js),
        stream=await jetstream_facts.stream(js, before, events),
        config=config,
        revision=revision,
        config_problem=problem,
        services=services,
        lost=() if sums is None else sums.lost,
        pools=pools,
    )


async def _server(client: Client, url: str) -> NatsFacts:
    began = time.perf_counter()
    await client.flush()
    took = (time.perf_counter() - began) * 1000
    address = client.connected_url
    version = client.connected_server_version
    host = (address.hostname if address is not None else None) or urlsplit(url).hostname or ""
    return NatsFacts(
        url=url,
        version=f"{version.major}.{version.minor}.{version.patch}",
        round_trip_ms=took,
        max_payload=client.max_payload,
        tls=address is not None and address.scheme == "tls",
        auth_required=bool(client._server_info.get("auth_required")),  # pyright: ignore[reportPrivateUsage] - INFO has no public name
        loopback=host in ("127.0.0.1", "::1", "localhost"),
    )


async def _listen(client: Client) -> tuple[list[Heard], list[PoolSnapshot], int]:
    """Services, pools, and how many events came."""
    events = 0
    heard: dict[tuple[str, str], Heard] = {}
    pools: dict[tuple[str, str], PoolSnapshot] = {}

    async def beat(message: Msg) -> None:
        now_ms = time.time() * 1000
        try:
            presence = ServicePresence.decode(message.data)
        except MalformedMessage:
            return
        # A message is at least as old as the clocks differ: of several the smallest difference is the clocks'.
        skew = presence.at_ms - now_ms
        who = (presence.service, presence.instance)
        before = heard.get(who)
        heard[who] = Heard(presence, skew if before is None else min(skew, before.skew_ms, key=abs))

    async def snapshot(message: Msg) -> None:
        try:
            found = PoolSnapshot.decode(message.data)
        except MalformedMessage:
            return
        pools[found.pool, found.source] = found

    async def event(message: Msg) -> None:
        nonlocal events
        del message
        events += 1

    for topic, receive in (
        (subject(ServicePresence, ANY, ANY), beat),
        (subject(PoolSnapshot, ANY), snapshot),
        (ALL_EVENTS, event),
    ):
        await client.subscribe(topic, cb=receive)  # pyright: ignore[reportUnknownMemberType] - nats-py
    await client.flush()
    # The slowest regular message is the snapshot of a pool.
    await asyncio.sleep(1.5 * TIMES.snapshot_s)
    # Messages that queued while the server was slow arrive before its answer.
    await client.flush()
    return list(heard.values()), list(pools.values()), events


async def _config(js: JetStreamContext) -> tuple[Config | None, int, str | None]:
    try:
        entry = await (await js.key_value(CONFIG_BUCKET)).get(CONFIG_KEY)
    except (KeyNotFoundError, NotFoundError):
        return None, 0, "none is stored"
    except (JetStreamError, TimeoutError) as error:
        return None, 0, str(error) or "no answer"
    revision = entry.revision or 0
    try:
        return parse((entry.value or b"").decode(errors="replace")), revision, None
    except ConfigError as error:
        return None, revision, str(error)


def _note_refusals(refused: list[str]) -> bus.OnError:
    async def note(error: Exception) -> None:
        words = str(error).removeprefix("nats: ")
        if "permissions violation" in words.lower() and words not in refused:
            refused.append(words)

    return note
