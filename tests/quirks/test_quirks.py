"""Every quirk of the catalogue, in every place in which it can occur: with guard, cache and ledger, and without."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from pointsman_cli.stack import envoy
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes
from pointsman_testing.envoy_process import start_envoy
from pointsman_testing.observer import observing
from pointsman_testing.scripted_engine import ScriptedEngine
from pointsman_testing.stack import ServedPool, Stack, StackFactory

from . import reading
from .catalogue import ESTIMATED, PAUSES, QUIRKS, Quirk
from .gateway import BACKUP, PLACES, Answered, Door, Far, Place, configuration, model_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stack, Door]]:
    """A gateway of real processes, and its own door."""
    far = Far()
    async with AsyncExitStack() as held:
        server = await held.enter_async_context(ScriptedEngine(far))
        stacks = StackFactory(tmp_path_factory.mktemp("stacks"), SAMPLE)
        changes = configuration(server.url, len(PAUSES))
        stack = await held.enter_async_context(
            stacks.start(
                engines=0,
                replicas={"guard": 1, "semantic-cache": 1, "recorder": 1},
                changes=changes,
                bundled=True,
                settings={"QUIRKS_KEY": "canary-key"},
                served=ServedPool("own", ("pool-0",), ()),
            )
        )
        observer = await held.enter_async_context(observing(stack.nats.url))
        completed = observer.listen(ResponseCompleted, ANY)
        http = await held.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))
        )
        yield stack, Door("frontend", stack.door, far, observer, completed, http, server.port)


async def test_every_quirk_reads_the_same_in_every_place(world: tuple[Stack, Door]) -> None:
    _, door = world
    wrong = await asyncio.gather(*(_at(door, place) for place in PLACES))
    told = [line for lines in wrong for line in lines]
    assert not told, "\n" + "\n".join(told)


BEYOND_ENVOY: Final = frozenset(
    (
        "broken off behind the mark",
        "broken off behind the reason",
        "broken off behind the role",
        "broken off in the middle",
    )
)
"""Envoy resets the client's stream itself when its peer breaks off, and ends the adapter's: neither can add a word."""


@pytest.mark.parametrize("duplex", [True, False], ids=["duplex", "shipped"])
async def test_every_quirk_reads_the_same_behind_envoy(
    world: tuple[Stack, Door], tmp_path: Path, processes: Processes, duplex: bool
) -> None:
    """`duplex`: every answer passes the adapter piece by piece; otherwise as `pointsman up --envoy` has it."""
    stack, door = world
    env = {**stack.env, "POINTSMAN_PORT": "0", "POINTSMAN_PROVIDERS": "true"}
    adapter = processes.fork("pointsman-epp-adapter", env=env)
    await adapter.wait_ready()
    url = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
    there, engine = ("127.0.0.1", int(url.rpartition(":")[2])), ("127.0.0.1", door.port)
    executable = await asyncio.to_thread(envoy.executable)
    document = envoy.document(("127.0.0.1", 0), [there], [engine], duplex=duplex)
    behind = await start_envoy(processes, executable, document, tmp_path)
    envoys = Door("envoy", behind, door.far, door.observer, door.completed, door.http, door.port)
    wrong = await asyncio.gather(*(_at(envoys, place) for place in PLACES if duplex or not place.provider))
    told = [line for lines in wrong for line in lines]
    assert not told, "\n" + "\n".join(told)


async def _at(door: Door, place: Place) -> list[str]:
    """The quirks that a place's answers can have, one after the other. Returns what was wrong."""
    wrong: list[str] = []
    for quirk in QUIRKS:
        skipped = quirk.without & {place.name, door.name, "pool" if not place.provider else "", place.api}
        if place.form not in quirk.forms or skipped:
            continue
        for mode in quirk.modes:
            for plain in (False,) if door.name == "envoy" and place.provider else (False, True):
                try:
                    await _try(door, place, quirk, streamed=mode == "stream", plain=plain)
                except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
                    how = "plain" if plain else "guarded"
                    wrong.append(
                        f"{quirk.name} | {place.name} | {mode} | {how}: {type(error).__name__} {str(error)[:300]}"
                    )
    return wrong


async def _try(door: Door, place: Place, quirk: Quirk, *, streamed: bool, plain: bool) -> None:
    model = model_of(place, 1 + PAUSES.index(quirk) if quirk in PAUSES else 0)
    got = await door.ask(place, quirk, streamed=streamed, model=model, plain=plain)
    if door.name == "envoy" and quirk.name in BEYOND_ENVOY:
        # Before anything of it has left, Envoy answers with an error of its own.
        _same("cut off", got.complete and got.status == 200, False)
        return
    if quirk.fails:
        await _failed(door, place, quirk, got, streamed=streamed, plain=plain, model=model)
        return
    if not got.complete:
        raise AssertionError("cut off without a word")
    if quirk.cut_off and not plain and got.status >= 400:
        return  # the guard held what there was
    if got.status != 200:
        raise AssertionError(f"status {got.status}: {got.body[:200]!r}")
    read = (reading.stream if streamed else reading.whole)(place.api, got.body)
    if quirk.cut_off:
        _same("error", bool(read.error), True)
        _same("code", quirk.code in read.error, True)
        _same("outcome", got.event and got.event.outcome, "cut_off")
        return
    _same("error", read.error, "")
    _same("text", _joined(read.text), _joined(quirk.text))
    if place.api == "chat" or place.provider:
        _same("thought", read.thought, quirk.thought)
    _same("calls", read.calls, list(quirk.calls))
    _same("models", read.models - {""}, {model})
    if streamed:
        # An engine's bytes pass as they are.
        _same("marks", read.marks if place.provider else min(read.marks, 1), 1)
    _same("outcome", got.event and got.event.outcome, "ok")
    _counts(quirk, got.event)


def _counts(quirk: Quirk, event: ResponseCompleted | None) -> None:
    usage = None if event is None else event.usage
    if usage is None:
        raise AssertionError("no usage")
    if quirk.usage == ESTIMATED:
        _same("estimated", (usage.estimated, usage.completion_tokens > 0, usage.prompt_tokens > 0), (True, True, True))
    elif quirk.usage is not None:
        _same("usage", (usage.prompt_tokens, usage.completion_tokens, usage.estimated), (*quirk.usage, False))


async def _failed(
    door: Door, place: Place, quirk: Quirk, got: Answered, *, streamed: bool, plain: bool, model: str
) -> None:
    _same("status >= 400", got.status >= 400, True)
    if quirk.fails != 500:
        _same("status", got.status, quirk.fails)
    error = json.loads(got.body)
    _same("shape", isinstance(error["error"]["message"], str), True)
    _same("type", error.get("type"), "error" if place.api == "messages" else None)
    told = got.body.decode()
    _same("code", (quirk.code in told, told), (True, told))
    _same("details", [each for each in quirk.details if each not in told.replace('": ', '":')], [])
    _same("outcome", got.event is not None and got.event.outcome == "ok" and got.status >= 500, False)
    if quirk.fails not in (400, 422) and door.name != "envoy":
        safe = await door.ask(place, quirk, streamed=streamed, model=f"{model}-safe", plain=plain)
        _same("fallback", (safe.status, BACKUP.encode() in safe.body), (200, True))
    # A good answer lets the provider be asked again.
    if quirk not in PAUSES:
        await door.ask(place, None, streamed=False, model=model, plain=True)


def _joined(text: str) -> str:
    """Pairs of surrogates as characters; a half alone, or what stands for it, left out."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore").replace("\ufffd", "")


def _same(what: str, seen: Any, expected: Any) -> None:
    if seen != expected:
        raise AssertionError(f"{what}: {seen!r}, not {expected!r}")


async def test_the_catalogue_has_eighty_entries_with_a_source_each() -> None:
    names = Counter(quirk.name for quirk in QUIRKS)
    assert [name for name, count in names.items() if count > 1] == []
    assert [quirk.name for quirk in QUIRKS if not quirk.source.strip()] == []
    assert len(QUIRKS) >= 80
