"""A long file is accepted in bounded time and memory, and a batch has one result a line whichever process is killed.

`python -m benchmarks.batch upload [--lines 50000] [--megabytes 200] [--store bucket|folder|s3]` uploads a file, makes a
batch of it, waits until its lines are checked and some have run, cancels the batch, downloads the file, and prints the
times and how far the resident memory of each process rose. `s3`: moto's server, in a process of its own.

`python -m benchmarks.batch kill [--lines 20000] [--rate 20]` runs a batch on simulated engines and a cluster of three
NATS servers, under requests of clients. It kills each service once, and the servers that lead the streams of events,
results and batches. It counts results, charges, and failed requests of clients. Exit status 0 when each line has one
result and one charge, and no client's request failed.
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias, cast
from urllib.request import Request, urlopen

import aiohttp
import uvloop

from benchmarks.faults.cluster import LEDGER
from benchmarks.faults.cluster import REPLICAS as CLUSTER_SETTINGS
from benchmarks.machine import describe
from pointsman_contracts.batch import BATCHES_BUCKET, ENDED, RESULTS_BUCKET
from pointsman_contracts.subjects import REST, ROOT
from pointsman_contracts.usage import UsageRecord
from pointsman_runtime.jetstream.stores import EVENT_STREAM
from pointsman_testing import eventually
from pointsman_testing.nats_cluster import ClusterClient, NatsCluster
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.ports import free_port
from pointsman_testing.stack import Stack, StackFactory

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
ENDPOINT: Final = "/v1/chat/completions"
MODEL: Final = "llama-3.1-8b"
KILLED: Final = ("batch", "scheduler", "preprocessor", "profile-picker", "recorder", "metrics-collector", "frontend")
"""In the order in which they are killed. The others run twice; of `recorder` and `metrics-collector` there is one."""
LED: Final = (EVENT_STREAM, f"KV_{RESULTS_BUCKET}", f"KV_{BATCHES_BUCKET}")
"""Streams whose leaders are killed, after the services."""
REPLICAS: Final = {"batch": 2, "scheduler": 2, "preprocessor": 2, "profile-picker": 2, "frontend": 2, "recorder": 1}
LEDGER_S: Final = 180.0
"""How long after the end of a batch its charges may come."""
BUCKET: Final = "files-of-batches"
BOUNDARY: Final = "a-boundary-of-this-benchmark"
Document: TypeAlias = "dict[str, object]"


def line(number: int, tokens: int, padding: int = 0) -> bytes:
    """One line of an input file."""
    content = f"Say {number}. " + "x" * padding
    body = {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": content}]}
    document = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(document).encode() + b"\n"


async def form(lines: int, tokens: int, padding: int) -> AsyncIterator[bytes]:
    """The body of an upload, in pieces."""
    head = 'Content-Disposition: form-data; name="{}"'
    yield f"--{BOUNDARY}\r\n{head.format('purpose')}\r\n\r\nbatch\r\n--{BOUNDARY}\r\n".encode()
    yield f'{head.format("file")}; filename="lines.jsonl"\r\n\r\n'.encode()
    for begin in range(0, lines, 64):
        yield b"".join(line(number, tokens, padding) for number in range(begin, min(lines, begin + 64)))
    yield f"\r\n--{BOUNDARY}--\r\n".encode()


async def upload(http: aiohttp.ClientSession, door: str, lines: int, tokens: int, padding: int = 0) -> Document:
    """The file object. After a 503, as while stores have no leader yet, it is sent again, as official clients do."""
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    while True:
        async with http.post(f"{door}/v1/files", data=form(lines, tokens, padding), headers=headers) as answer:
            document = await answer.json()
            if answer.status != 503:
                assert answer.status == 200, document
                return document
        await asyncio.sleep(1.0)


async def create(http: aiohttp.ClientSession, door: str, file: Document) -> str:
    """The id of a new batch."""
    wanted = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    async with http.post(f"{door}/v1/batches", json=wanted) as answer:
        document = await answer.json()
        assert answer.status == 200, document
        return str(document["id"])


async def look(http: aiohttp.ClientSession, door: str, batch: str) -> Document:
    """The batch; while processes are killed, from the next answer that comes."""
    while True:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with http.get(f"{door}/v1/batches/{batch}") as answer:
                if answer.status == 200:
                    return await answer.json()
        await asyncio.sleep(0.2)


async def look_until(
    http: aiohttp.ClientSession, door: str, batch: str, enough: Callable[[Document], bool]
) -> Document:
    """The batch, once this holds of it."""
    while not enough(found := await look(http, door, batch)):  # noqa: ASYNC110 - another process's state
        await asyncio.sleep(0.2)
    return found


def lines_done(batch: Document) -> int:
    """How many lines have a result."""
    counts = cast("dict[str, int]", batch["request_counts"])
    return counts["completed"] + counts["failed"]


def resident(pid: int) -> int:
    """Bytes of resident memory; 0 when the process is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0


async def follow_memory(pids: dict[str, int], most: dict[str, int]) -> None:
    """Keep the most that each process had, for ever."""
    while True:
        for name, pid in pids.items():
            most[name] = max(most.get(name, 0), resident(pid))
        await asyncio.sleep(0.05)


async def run_upload(stack: Stack, lines: int, megabytes: int) -> bool:
    """Upload a file and have it checked."""
    pids = {f"{name}-{at}": each.pid for name, all_of in stack.services.items() for at, each in enumerate(all_of)}
    if isinstance(stack.nats, LocalNatsServer):
        pids["nats-server"] = stack.nats.pid
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        # A first, short batch: what a process needs once isn't the file's.
        await look(http, stack.door, await create(http, stack.door, await upload(http, stack.door, 8, 1)))
        before = {name: resident(pid) for name, pid in pids.items()}
        most: dict[str, int] = {}
        following = asyncio.create_task(follow_memory(pids, most))
        began = time.monotonic()
        padding = max(0, megabytes * 2**20 // lines - len(line(lines, 1)))
        file = await upload(http, stack.door, lines, 1, padding)
        accepted_s = time.monotonic() - began
        print(
            f"{lines} lines, {int(str(file['bytes'])) / 2**20:.0f} MiB: accepted after {accepted_s:.1f} s", flush=True
        )
        batch = await create(http, stack.door, file)
        found = await look_until(http, stack.door, batch, lambda found: found["status"] != "validating")
        print(f"checked after {time.monotonic() - began:.1f} s: {found['status']}", flush=True)
        await look_until(http, stack.door, batch, lambda found: lines_done(found) > 0 or found["status"] in ENDED)
        async with http.post(f"{stack.door}/v1/batches/{batch}/cancel"):
            pass
        over = await look_until(http, stack.door, batch, lambda found: found["status"] in ENDED)
        cancelled_s = time.monotonic() - began
        read = 0
        async with http.get(f"{stack.door}/v1/files/{file['id']}/content") as answer:
            async for piece in answer.content.iter_chunked(2**16):
                read += len(piece)
        whole = read == file["bytes"]
        following.cancel()
    print(f"{over['status']} after {cancelled_s:.1f} s: {over['request_counts']}", flush=True)
    print(f"downloaded {read / 2**20:.0f} MiB, {'all of it' if whole else 'NOT ALL'}")
    rises = {name: (most.get(name, 0) - before[name]) / 2**20 for name in pids}
    for name, rise in sorted(rises.items(), key=lambda entry: -entry[1]):
        print(f"  {name}: {before[name] / 2**20:.0f} MiB, at most {rise:+.0f} MiB")
    return whole and max(rise for name, rise in rises.items() if name != "nats-server") <= 120


class Clients:
    """Requests of clients, at random moments."""

    def __init__(self, door: str, rate: float) -> None:
        self._door = door
        self._rate = rate
        self.statuses: Counter[int] = Counter()
        self.problems: list[str] = []
        """Answers that say why a request failed."""

    async def send(self) -> None:
        """Send until cancelled, and then wait for the answers."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http,
            asyncio.TaskGroup() as group,
        ):
            with suppress(asyncio.CancelledError):
                while True:
                    group.create_task(self._request(http))
                    await asyncio.sleep(random.expovariate(self._rate))

    async def _request(self, http: aiohttp.ClientSession) -> None:
        body = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": f"{random.random()}"}]}
        # A killed frontend ends its connections: a client sends again what had no answer.
        for _ in range(5):
            with suppress(aiohttp.ClientError):
                async with http.post(f"{self._door}{ENDPOINT}", json=body) as answer:
                    text = await answer.text()
                    self.statuses[answer.status] += 1
                    if answer.status != 200:
                        self.problems.append(f"{answer.status}, {answer.headers.get('x-request-id')}: {text}")
                    return
            await asyncio.sleep(0.2)
        self.statuses[0] += 1


async def restart_service(stack: Stack, service: str) -> None:
    """Kill each replica of it, one after the other, and put a new one in its place."""
    for index in range(len(stack.services[service])):
        stack.services[service][index].kill()
        await stack.restart(service, index)


async def restart_leader(cluster: NatsCluster, client: ClusterClient, stream: str) -> None:
    """Kill the server that leads this stream, and start it again; returns when each server has all of the stream."""
    server = cluster.servers[await client.leader(stream)]
    await asyncio.to_thread(server.kill)
    await client.leader(stream)
    await asyncio.to_thread(server.start)
    await client.in_step(stream)


async def run_kill(stack: Stack, cluster: NatsCluster, lines: int, rate: float) -> bool:
    """Run a batch while processes are killed."""
    records: Counter[str] = Counter()
    async with (
        cluster.client() as client,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http,
    ):
        batch = await create(http, stack.door, await upload(http, stack.door, lines, 5))
        clients = Clients(stack.door, rate)
        sending = asyncio.create_task(clients.send())
        began = time.monotonic()
        steps = [(name, partial(restart_service, stack, name)) for name in KILLED]
        steps += [(f"the leader of {stream}", partial(restart_leader, cluster, client, stream)) for stream in LED]
        for number, (name, restart) in enumerate(steps):
            least = lines * (number + 1) // (len(steps) + 2)
            await look_until(http, stack.door, batch, lambda found, least=least: lines_done(found) >= least)
            await restart()
            print(f"{time.monotonic() - began:.0f} s: {least} lines were done, {name} was killed", flush=True)
        over = await look_until(http, stack.door, batch, lambda found: found["status"] in ENDED)
        took_s = time.monotonic() - began
        sending.cancel()
        await asyncio.wait([sending])
        output = ""
        for file in (over["output_file_id"], over["error_file_id"]):
            if file is not None:
                async with http.get(f"{stack.door}/v1/files/{file}/content") as answer:
                    output += await answer.text()
        documents = [json.loads(each) for each in output.splitlines()]
        names = Counter(each["custom_id"] for each in documents)
        failed = Counter(
            str(each["error"] or each["response"]["status_code"])
            for each in documents
            if each["error"] or each["response"]["status_code"] != 200
        )

        async def all_are_charged() -> bool:
            records.clear()
            for message in await client.messages(LEDGER, f"{ROOT}.rec.{REST}"):
                record = UsageRecord.decode(message.data)
                if record.identity.batch == batch and record.usage.completion_tokens:
                    records[record.request_id.split(".")[0]] += 1
            return len(records) >= lines - failed.total()

        ended = time.monotonic()
        with suppress(AssertionError):
            await eventually(all_are_charged, timeout=LEDGER_S)
        whole_s = time.monotonic() - ended
        if len(records) < lines - failed.total():
            for stream in (EVENT_STREAM, LEDGER):
                print(json.dumps(await client.api(f"STREAM.INFO.{stream}")))
                print(json.dumps(await client.api(f"CONSUMER.LIST.{stream}")))
    print(
        f"{lines} lines in {took_s:.0f} s: {len(names)} results, {names.total() - len(names)} twice, "
        f"failed {dict(failed)}"
    )
    twice = sum(count > 1 for count in records.values())
    print(f"ledger, {whole_s:.1f} s after the end: {len(records)} attempts charged, {twice} of them twice")
    print(f"requests of clients by status: {dict(clients.statuses)}", *clients.problems[:5], sep="\n  ")
    whole = names.total() == len(names) == lines and set(records.values()) == {1} and not failed
    return whole and len(records) == lines and set(clients.statuses) == {200}


@contextmanager
def store_of(kind: str, folder: Path) -> Generator[dict[str, str]]:
    """The settings of a store for the content of files, while it runs."""
    if kind == "bucket":
        yield {}
    elif kind == "folder":
        yield {"POINTSMAN_FILES_DIR": str(folder / "files")}
    else:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        login = {
            "AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
        executable = str(Path(sys.executable).with_name("moto_server"))
        with (folder / "moto.log").open("wb") as log:
            server = subprocess.Popen([executable, "-p", str(port)], stdout=log, stderr=log)
        try:
            make_bucket(url)
            yield {**login, "POINTSMAN_FILES_S3_BUCKET": BUCKET, "POINTSMAN_FILES_S3_ENDPOINT": url}
        finally:
            server.kill()
            server.wait()


def make_bucket(url: str) -> None:
    """Make the bucket, once the store listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(Request(f"{url}/{BUCKET}", method="PUT"), timeout=10):  # noqa: S310 - on this machine
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def keep_logs(folder: Path, cluster: NatsCluster, kept: Path) -> None:
    """Copy the logs of all processes."""
    kept.mkdir(parents=True, exist_ok=True)
    for log in folder.rglob("*.log"):
        shutil.copy(log, kept / log.name)
    for number, server in enumerate(cluster.servers):
        shutil.copy(server.log_path, kept / f"nats-{number}.log")


async def main() -> int:
    """Run one of the two."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("what", choices=("upload", "kill"))
    options.add_argument("--lines", type=int)
    options.add_argument("--megabytes", type=int, default=200)
    options.add_argument("--store", choices=("bucket", "folder", "s3"), default="bucket")
    options.add_argument("--rate", type=float, default=20.0)
    options.add_argument("--keep-logs", type=Path, help="folder for the logs of a run that isn't exact")
    asked = options.parse_args()
    print(describe())
    with TemporaryDirectory() as folder:
        factory = StackFactory(Path(folder), SAMPLE)
        settings = {"POINTSMAN_PORT_SHARED": "true"}
        if asked.what == "upload":
            with store_of(asked.store, Path(folder)) as stored:
                settings |= stored
                async with factory.start(replicas={"batch": 1, "recorder": 1}, settings=settings) as stack:
                    good = await run_upload(stack, asked.lines or 50_000, asked.megabytes)
        else:
            cluster = NatsCluster()
            settings |= CLUSTER_SETTINGS
            async with factory.start(replicas=REPLICAS, nats=cluster, static="allow", settings=settings) as stack:
                good = await run_kill(stack, cluster, asked.lines or 20_000, asked.rate)
                if asked.keep_logs is not None and not good:
                    keep_logs(Path(folder), cluster, asked.keep_logs)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
