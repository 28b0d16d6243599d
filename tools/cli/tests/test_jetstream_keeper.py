"""JetStream is restarted in a server that runs on."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import nats
import pytest

from pointsman_cli.stack import nats_server
from pointsman_cli.stack.jetstream_keeper import ROOM_BYTES, JetStreamKeeper, stuck
from pointsman_cli.stack.keeper import Keeper
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.stack.supervision import State
from pointsman_testing import eventually


@contextlib.asynccontextmanager
async def running_server(path: Path) -> AsyncGenerator[tuple[Keeper, JetStreamKeeper, RunFolder]]:
    with RunFolder(path) as folder:
        async with aiohttp.ClientSession() as http:
            keeper = Keeper(nats_server.plan(folder, 0), folder, http, lambda _: None)
            keeper.start_process()
            await eventually(lambda: keeper.life.state is State.READY)
            yield keeper, JetStreamKeeper(keeper, nats_server.config_file(folder), http), folder
            await keeper.end_process(patience_s=5)


def test_each_further_frontend_gives_the_server_more_memory_unless_the_operator_says_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(frontends: int) -> str:
        with RunFolder(tmp_path) as folder:
            return nats_server.plan(folder, 0, frontends).env["GOMEMLIMIT"]

    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    assert [limit(1), limit(2), limit(3)] == ["100MiB", "164MiB", "228MiB"]
    monkeypatch.setenv("GOMEMLIMIT", "1GiB")
    assert limit(2) == "1GiB"


async def test_jetstream_starts_again_and_connections_and_streams_stay(tmp_path: Path) -> None:
    async with running_server(tmp_path) as (keeper, jetstream, folder):
        lost: list[str] = []

        async def disconnected() -> None:
            lost.append("disconnected")

        client = await nats.connect(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            f"nats://127.0.0.1:{keeper.port}", disconnected_cb=disconnected
        )
        js = client.jetstream(timeout=30)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        await js.add_stream(name="S", subjects=["s"])  # pyright: ignore[reportUnknownMemberType]
        await js.publish("s", b"before")
        config = nats_server.config_file(folder).read_text()
        await jetstream.restart_server()
        assert (await js.publish("s", b"after")).seq == 2
        assert not lost
        await client.close()
        assert nats_server.config_file(folder).read_text() == config
        assert folder.log_path("nats").read_text().count("Restarting JetStream") == 1


@dataclass
class Full:
    """A server that can't write."""

    pid: int | None
    url: str
    problem: str = "JetStream stream '$G > PM_EVENTS' write error: no space left on device"


class Disk:
    """Of which `free` bytes are free; counts how often that is asked."""

    def __init__(self) -> None:
        self.free = 0
        self.asked = 0

    def usage(self, path: Path) -> "Disk":
        del path
        self.asked += 1
        return self


async def test_jetstream_stays_as_it_is_until_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    monkeypatch.setattr("pointsman_cli.stack.jetstream_keeper.shutil.disk_usage", disk.usage)
    monkeypatch.setattr("pointsman_cli.stack.jetstream_keeper.LOOK_S", 0.01)
    async with running_server(tmp_path) as (keeper, _, folder), aiohttp.ClientSession() as http:
        server = Full(keeper.pid, keeper.url)
        jetstream = JetStreamKeeper(server, nats_server.config_file(folder), http)
        running = asyncio.create_task(jetstream.run())
        await eventually(lambda: disk.asked > 5)
        assert jetstream.restarts == 0
        disk.free = ROOM_BYTES
        await eventually(lambda: jetstream.restarts)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(
    ("problem", "needs"),
    [
        ("JetStream stream '$G > PM_EVENTS' write error: write 1.blk: no space left on device", True),
        ("JetStream not enabled", True),
        ("doesn't answer", False),
        ("", False),
    ],
)
def test_only_a_problem_of_jetstream_restarts_it(problem: str, needs: bool) -> None:
    assert stuck(problem) is needs
