"""A plain round-robin balancer: passes each request to the next engine, and its answer back, whatever it is.

`python -m benchmarks.unruly.round_robin NAME=URL,URL…` prints the door of each pool on one line as JSON.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Sequence

import aiohttp
import uvloop
from aiohttp import web


class Balancer:
    """One pool. It knows nothing of health and load, tries nothing twice, and waits for as long as its client does."""

    def __init__(self, urls: Sequence[str], http: aiohttp.ClientSession) -> None:
        self._next = itertools.cycle(urls)
        self._http = http

    async def start(self) -> str:
        """Listen; returns the URL."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        url = next(self._next) + request.path_qs
        headers = {"content-type": request.headers.get("content-type", "")}
        passed = None
        try:
            async with self._http.request(request.method, url, data=await request.read(), headers=headers) as answer:
                passed = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
                await passed.prepare(request)
                async for piece in answer.content.iter_any():
                    await passed.write(piece)
                await passed.write_eof()
                return passed
        except aiohttp.ClientError as error:
            if passed is not None:
                raise
            return web.Response(status=502, text=str(error))


async def serve(pools: Sequence[str]) -> None:
    """A balancer for each pool, without end."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        named = [pool.split("=", 1) for pool in pools]
        doors = {name: await Balancer(urls.split(","), http).start() for name, urls in named}
        sys.stdout.write(json.dumps(doors) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
