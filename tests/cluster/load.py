"""Requests at a rate, each on a connection of its own, until standard input ends; then a summary as JSON.

It has how often each outcome came, how late the latest request was sent (seconds), and the part of the time in which a
program of the node waited for a CPU (null where the kernel doesn't count it). The latter two tell a fault of the
gateway from a machine without CPU time.

Runs in a pod with nothing but Python: `python load.py URL RATE [stream]`. A failure is one of
- refused: no connection was made, so the request is nowhere and a client may send it again;
- cut: the connection ended within the answer;
- the status of an error.
"""

import asyncio
import json
import sys
import time
from collections import Counter

TIMEOUT_S = 60
CONNECT_S = 10
MODEL = "llama-3.1-8b"
PRESSURE = "/proc/pressure/cpu"


async def ask(address: str, number: int, *, stream: bool, model: str = MODEL, request_id: str = "") -> str:
    """How a request ended: `ok`, or the kind of its failure."""
    content = f"request {number} " + "x" * 200
    body = json.dumps(
        {"model": model, "max_tokens": 8, "stream": stream, "messages": [{"role": "user", "content": content}]}
    ).encode()
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), CONNECT_S)
    except OSError as error:  # TimeoutError is one
        return f"refused: {error.strerror or 'no answer'}"
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        if request_id:
            head += f"x-request-id: {request_id}\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        answer = await reader.read(-1)
    except OSError as error:
        return f"cut: {error.strerror or error}"
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 "):
        return "cut: no answer"
    status = answer[9:12].decode()
    if status != "200":
        _, _, text = answer.partition(b"\r\n\r\n")
        return f"{status}: {text[:160].decode(errors='replace')}"
    whole = b"[DONE]" in answer if stream else b'"usage"' in answer
    return "ok" if whole else "cut: within the answer"


async def bounded(address: str, number: int, began: float, *, stream: bool) -> str:
    """Ask within a bound. A failure is written to the standard error, with the second of the request's begin."""
    at_s = time.monotonic() - began
    request_id = f"load-{began:.0f}-{number}"
    try:
        outcome = await asyncio.wait_for(ask(address, number, stream=stream, request_id=request_id), TIMEOUT_S)
    except TimeoutError:
        outcome = "cut: no end"
    if outcome != "ok":
        sys.stderr.write(f"        {at_s:.1f} s: {request_id}: {outcome}\n")
    return outcome


def waited_s() -> float | None:
    """How long any program of the node has waited for a CPU since the node's start, in seconds."""
    try:
        with open(PRESSURE) as file:  # noqa: PTH123 - pathlib takes longer to load than a request takes
            some = file.readline()
    except OSError:
        return None
    return int(some.rpartition("total=")[2]) / 1e6


async def main(address: str, rate: float, *, stream: bool) -> None:
    """Send until standard input ends."""
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    began, waited = time.monotonic(), waited_s()
    late_s = 0.0
    tasks: list[asyncio.Task[str]] = []
    while not ended.done():
        late_s = max(late_s, time.monotonic() - began - len(tasks) / rate)
        tasks.append(asyncio.create_task(bounded(address, len(tasks), began, stream=stream)))
        await asyncio.sleep(max(0.0, began + len(tasks) / rate - time.monotonic()))
    outcomes = Counter(await asyncio.gather(*tasks))
    now = waited_s()
    pressure = None if waited is None or now is None else (now - waited) / (time.monotonic() - began)
    sys.stdout.write(json.dumps({"outcomes": outcomes, "late_s": late_s, "pressure": pressure}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].removeprefix("http://"), float(sys.argv[2]), stream="stream" in sys.argv[3:]))
